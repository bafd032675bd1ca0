"""``findings(folder)``: what Paimon's newest Java could not read of the metadata of the tables below a folder.

Engines before 2.0, and the Python ones, ignore what they don't know, so a value that Java has no constant for goes
unseen by them, while Java fails on the whole snapshot. Read here as Java reads: snapshots, changelogs, tags, schemas
(types and options too), consumers, hints, and the Avro files in ``manifest/`` (field by field, value by value).
``python -m tests.strict_metadata FOLDER ...`` prints the findings and exits 1 where there are some.

The closed lists are those of Paimon's source: ``Snapshot``, ``Tag``, ``SchemaSerializer``, ``DataTypeJsonParser``,
``CoreOptions``, ``FileKind``, ``FileSource``, ``IndexManifestEntry``, the global indexes' factories.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fastavro

# What a value must be: a predicate and how a finding calls it.
Kind = tuple[Callable[[Any], bool], str]


def _integer(bits: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and -(2 ** (bits - 1)) <= value < 2 ** (bits - 1)


def _one_of(*values: str) -> Kind:
    return (lambda value: value in values, "one of " + ", ".join(values))


INT: Kind = (_integer(32), "int")
LONG: Kind = (_integer(64), "long")
TEXT: Kind = (lambda value: isinstance(value, str), "text")
LIST: Kind = (lambda value: isinstance(value, list), "list")
TEXTS: Kind = (lambda value: isinstance(value, list) and all(isinstance(v, str) for v in value), "list of text")
TEXT_MAP: Kind = (
    lambda value: isinstance(value, dict) and all(isinstance(v, str) for v in value.values()),
    "map of text",
)
# As Jackson's JavaTimeModule writes and reads them: numbers, and ISO text too.
_DURATION = re.compile(r"[+-]?P(\d+D)?(T(\d+H)?(\d+M)?(\d+(\.\d+)?S)?)?", re.IGNORECASE)
DATE_TIME: Kind = (
    lambda value: (
        isinstance(value, str)
        or (isinstance(value, list) and 5 <= len(value) <= 7 and all(type(v) is int for v in value))
    ),
    "date and time as a list of numbers",
)
DURATION: Kind = (
    lambda value: type(value) in (int, float) or (isinstance(value, str) and bool(_DURATION.fullmatch(value))),
    "duration in seconds",
)

# Key: what Java reads, and whether it must be there.
Shape = dict[str, tuple[Kind, bool]]
SNAPSHOT: Shape = {
    "version": (INT, False),
    "uuid": (TEXT, False),
    "id": (LONG, True),
    "schemaId": (LONG, True),
    "baseManifestList": (TEXT, True),
    "baseManifestListSize": (LONG, False),
    "deltaManifestList": (TEXT, True),
    "deltaManifestListSize": (LONG, False),
    "changelogManifestList": (TEXT, False),
    "changelogManifestListSize": (LONG, False),
    "indexManifest": (TEXT, False),
    "commitUser": (TEXT, True),
    "writerVersion": (TEXT, False),
    "commitIdentifier": (LONG, True),
    "commitKind": (_one_of("APPEND", "COMPACT", "OVERWRITE", "ANALYZE"), True),
    "timeMillis": (LONG, True),
    "totalRecordCount": (LONG, False),
    "deltaRecordCount": (LONG, False),
    "changelogRecordCount": (LONG, False),
    "watermark": (LONG, False),
    "statistics": (TEXT, False),
    "properties": (TEXT_MAP, False),
    "nextRowId": (LONG, False),
    "operation": (
        _one_of(
            "WRITE",
            "OVERWRITE",
            "DELETE",
            "TRUNCATE",
            "UPDATE",
            "MERGE",
            "CREATE_TABLE_AS_SELECT",
            "REPLACE_TABLE_AS_SELECT",
            "CREATE_OR_REPLACE_TABLE_AS_SELECT",
        ),
        False,
    ),
}
TAG: Shape = {**SNAPSHOT, "tagCreateTime": (DATE_TIME, False), "tagTimeRetained": (DURATION, False)}
SCHEMA: Shape = {
    "version": (INT, False),
    "id": (LONG, True),
    "fields": (LIST, True),
    "highestFieldId": (INT, True),
    "partitionKeys": (TEXTS, True),
    "primaryKeys": (TEXTS, True),
    "options": (TEXT_MAP, True),
    "comment": (TEXT, False),
    "timeMillis": (LONG, False),
}
FIELD: Shape = {"id": (INT, True), "name": (TEXT, True), "description": (TEXT, False), "defaultValue": (TEXT, False)}
CONSUMER: Shape = {"nextSnapshot": (LONG, True)}

# Options whose value Java looks up among the constants of an enum, whatever the case.
OPTIONS = {
    "type": "table, format-table, materialized-table, object-table, lance-table, iceberg-table",
    "bucket-function.type": "default, mod, hive",
    "merge-engine": "deduplicate, partial-update, aggregation, first-row",
    "changelog-producer": "none, input, full-compaction, lookup",
    "sequence.field.sort-order": "ascending, descending",
    "sort-engine": "min-heap, loser-tree",
    "scan.mode": "default, latest-full, full, latest, latest-delta, compacted-full, from-timestamp, "
    "from-creation-timestamp, from-file-creation-time, from-snapshot, from-snapshot-full, incremental",
    "incremental-between-scan-mode": "auto, delta, changelog, diff",
    "stream-scan-mode": "none, compact-bucket-table, file-monitor",
    "batch-scan-mode": "none, compact",
    "snapshot.expire.execution-mode": "sync, async",
    "tag.automatic-creation": "none, process-time, watermark, batch",
    "tag.creation-period": "daily, hourly, two-hours",
    "tag.period-formatter": "with_dashes, without_dashes, without_dashes_and_spaces",
    "lookup-compact": "radical, gentle",
    "data-file.external-paths.strategy": "none, specific-fs, round-robin, entropy-inject, weight-robin",
    **dict.fromkeys(
        (
            "bucket-append-ordered",
            "chain-table.enabled",
            "data-evolution.enabled",
            "deletion-vectors.enabled",
            "deletion-vectors.bitmap64",
            "ignore-delete",
            "partial-update.remove-record-on-delete",
            "aggregation.remove-record-on-delete",
            "partition.legacy-name",
            "row-tracking.enabled",
            "write-only",
        ),
        "true, false",
    ),
}  # fmt: skip

# The types that Java writes as text; ARRAY, MULTISET, MAP, ROW and VECTOR are objects.
_LENGTH = r"(\s*\(\s*\d+\s*\))?"
_TYPE = re.compile(
    rf"""( (VAR)?CHAR{_LENGTH} | (VAR)?BINARY{_LENGTH} | STRING | BYTES | BOOLEAN
      | (DECIMAL|NUMERIC|DEC)(\s*\(\s*\d+\s*(,\s*\d+\s*)?\))?
      | TINYINT | SMALLINT | INT | INTEGER | BIGINT | FLOAT | DOUBLE(\s+PRECISION)? | DATE
      | TIME{_LENGTH}(\s+WITHOUT\s+TIME\s+ZONE)?
      | TIMESTAMP{_LENGTH}(\s+WITHOUT\s+TIME\s+ZONE|\s+WITH\s+LOCAL\s+TIME\s+ZONE)? | TIMESTAMP_LTZ{_LENGTH}
      | VARIANT | BLOB | (GEOMETRY|GEOGRAPHY)(\(.*\))? )(\s+NOT\s+NULL|\s+NULL)?""",
    re.VERBOSE | re.IGNORECASE,
)
_NESTED = {"ARRAY": ("element",), "MULTISET": ("element",), "VECTOR": ("element",), "MAP": ("key", "value")}

# Avro, by field: the type, then whether it may be null ("?") and may be missing in files of older versions ("-").
_STATS = {"_MIN_VALUES": "bytes", "_MAX_VALUES": "bytes", "_NULL_COUNTS": ["long?"]}
_DATA_FILE = {
    "_FILE_NAME": "string",
    "_FILE_SIZE": "long",
    "_ROW_COUNT": "long",
    "_MIN_KEY": "bytes",
    "_MAX_KEY": "bytes",
    "_KEY_STATS": _STATS,
    "_VALUE_STATS": _STATS,
    "_MIN_SEQUENCE_NUMBER": "long",
    "_MAX_SEQUENCE_NUMBER": "long",
    "_SCHEMA_ID": "long",
    "_LEVEL": "int",
    "_EXTRA_FILES": ["string"],
    "_CREATION_TIME": "time?-",
    "_DELETE_ROW_COUNT": "long?-",
    "_EMBEDDED_FILE_INDEX": "bytes?-",
    "_FILE_SOURCE": "int?-",
    "_VALUE_STATS_COLS": (["string"], "?-"),
    "_EXTERNAL_PATH": "string?-",
    "_FIRST_ROW_ID": "long?-",
    "_WRITE_COLS": (["string"], "?-"),
}
_VECTOR_RANGE = {"f0": "string", "f1": "int", "f2": "int", "_CARDINALITY": "long?-"}
_GLOBAL_INDEX = {
    "_ROW_RANGE_START": "long",
    "_ROW_RANGE_END": "long",
    "_INDEX_FIELD_ID": "int",
    "_EXTRA_FIELD_IDS": (["int"], "?-"),
    "_INDEX_META": "bytes?-",
    "_SOURCE_META": "bytes?-",
}
AVRO: dict[str, dict[str, Any]] = {
    "manifest-list": {
        "_VERSION": "int",
        "_FILE_NAME": "string",
        "_FILE_SIZE": "long",
        "_NUM_ADDED_FILES": "long",
        "_NUM_DELETED_FILES": "long",
        "_PARTITION_STATS": _STATS,
        "_SCHEMA_ID": "long",
        **dict.fromkeys(("_MIN_BUCKET", "_MAX_BUCKET", "_MIN_LEVEL", "_MAX_LEVEL"), "int?-"),
        **dict.fromkeys(("_MIN_ROW_ID", "_MAX_ROW_ID"), "long?-"),
    },
    "index-manifest": {
        "_VERSION": "int",
        "_KIND": "int",
        "_PARTITION": "bytes",
        "_BUCKET": "int",
        "_INDEX_TYPE": "string",
        "_FILE_NAME": "string",
        "_FILE_SIZE": "long",
        "_ROW_COUNT": "long",
        "_DELETIONS_VECTORS_RANGES": ([_VECTOR_RANGE], "?-"),
        "_EXTERNAL_PATH": "string?-",
        "_GLOBAL_INDEX": (_GLOBAL_INDEX, "?-"),
    },
    "manifest": {
        "_VERSION": "int",
        "_KIND": "int",
        "_PARTITION": "bytes",
        "_BUCKET": "int",
        "_TOTAL_BUCKETS": "int",
        "_FILE": _DATA_FILE,
    },
}
_VERSIONS = {"manifest-list": 2, "manifest": 2, "index-manifest": 1}
_FILE_KINDS = (0, 1)
"""ADD and DELETE, Java's ``FileKind``."""
_FILE_SOURCES = (None, 0, 1)
"""Unknown, APPEND and COMPACT, Java's ``FileSource``."""
_GLOBAL_INDEXES = "bitmap btree multivalue full-text es-index lumina lumina-vector-ann diskann ivf-flat ivf-pq ivf-rq"
_INDEX_TYPES = {"HASH", "DELETION_VECTORS", "ivf-sq", *_GLOBAL_INDEXES.split()}

Finding = tuple[Path, str]
_TORN = "not readable as Avro"


_DAMAGED: set[Path] = set()


def damaged_on_purpose(folder: Path) -> None:
    """Pass over what lies in ``folder`` from now on; for a single test there is the mark ``damages_metadata``."""
    _DAMAGED.add(folder)


def findings(folder: str | Path) -> Iterator[Finding]:
    """Everything below ``folder`` that Java could not read, but for what was damaged on purpose.

    That a file is missing is no finding, nor is one that vanishes meanwhile: a table may be in use. Nor is a part of
    an Avro file that nothing names: a process that was killed while it wrote the file leaves that.
    """
    torn = []
    for path, sentence in _of_files(folder):
        if sentence.startswith(_TORN):
            torn.append((path, sentence))
        else:
            yield path, sentence
    if torn:
        named = _names(folder)
        yield from ((path, sentence) for path, sentence in torn if path.name in named)


def _names(folder: str | Path) -> set[str]:
    """Return the names of manifests and lists that the snapshots, changelogs and tags below ``folder`` name."""
    lists: set[str] = set()
    for kind in ("snapshot", "changelog", "tag"):
        for path in Path(folder).rglob(f"{kind}/{kind}-*"):
            read = _in_json(path.read_bytes(), {})[0]
            lists |= {str(value) for key, value in read.items() if key.endswith(("ManifestList", "indexManifest"))}
    named = set(lists)
    for path in Path(folder).rglob("manifest/manifest-list-*"):
        if path.name in lists:
            # A list that can't be read is a finding itself.
            with contextlib.suppress(Exception):
                named |= {record["_FILE_NAME"] for record in fastavro.reader(io.BytesIO(path.read_bytes()))}
    return named


def _of_files(folder: str | Path) -> Iterator[Finding]:
    if Path(folder) in _DAMAGED:
        return
    for place, folders, names in os.walk(folder):
        here = Path(place)
        # No metadata lies beside data files, nor in the folder that is ours alone.
        folders[:] = sorted(
            f for f in folders if not f.startswith("bucket-") and f != "_airflow_paimon" and here / f not in _DAMAGED
        )
        look = _ROOMS.get(here.name)
        for name in sorted(names) if look else ():
            if name.startswith(".") or not (here / name).is_file():  # a named pipe would never end
                continue
            try:
                content = (here / name).read_bytes()
            except FileNotFoundError:
                continue
            yield from ((here / name, sentence) for sentence in look(here / name, content))


def _in_json(content: bytes, shape: Shape, number: str | None = None) -> tuple[dict[str, Any], list[str]]:
    try:
        read = json.loads(content.decode("utf-8"))
    except ValueError as error:
        return {}, [f"not JSON: {error}"]
    if not isinstance(read, dict):
        return {}, [f"not an object: {json.dumps(read)[:60]}"]
    found = list(_of_shape(read, shape))
    if number is not None and str(read.get("id")) != number:
        found.append(f"id is {read.get('id')}, the file's name says {number}")
    return read, found


def _of_shape(read: dict[str, Any], shape: Shape) -> Iterator[str]:
    for key, ((fits, what), required) in shape.items():
        value = read.get(key)
        if value is None:
            if required:
                yield f"{key} is missing"
        elif not fits(value):
            yield f"{key} is {json.dumps(value)[:60]}, Java reads {what}"


def _look_at_snapshot(path: Path, content: bytes) -> list[str]:
    if path.name in ("LATEST", "EARLIEST"):
        # Long.parseLong: no space and no line end around the number.
        return [] if re.fullmatch(rb"\d+", content) else [f"is {content[:40]!r}, not a number"]
    prefix = f"{path.parent.name}-"
    return _in_json(content, SNAPSHOT, path.name[len(prefix) :])[1] if path.name.startswith(prefix) else []


def _look_at_tag(path: Path, content: bytes) -> list[str]:
    return _in_json(content, TAG)[1] if path.name.startswith("tag-") else []


def _look_at_consumer(path: Path, content: bytes) -> list[str]:
    return _in_json(content, CONSUMER)[1] if path.name.startswith("consumer-") else []


def _look_at_schema(path: Path, content: bytes) -> list[str]:
    if not path.name.startswith("schema-"):
        return []
    read, found = _in_json(content, SCHEMA, path.name[len("schema-") :])
    if found:
        return found
    for field in read["fields"]:
        found += _in_field(field, "")
    if found:
        return found
    names = [field["name"] for field in read["fields"]]
    if len(set(names)) < len(names):
        found.append("two fields have one name")
    for key in ("partitionKeys", "primaryKeys"):
        found += [f"{key} names {name}, which is no field" for name in read[key] if name not in names]
    if any(field["id"] > read["highestFieldId"] for field in read["fields"]):
        found.append("a field's id is above highestFieldId")
    for key, values in OPTIONS.items():
        value = read["options"].get(key)
        if value is not None and value.lower() not in values.split(", "):
            found.append(f"option {key} is {value}, Java reads one of {values}")
    return found


def _in_field(field: Any, within: str) -> list[str]:
    if not isinstance(field, dict):
        return [f"{within}field is {json.dumps(field)[:60]}"]
    found = [f"{within}field: {sentence}" for sentence in _of_shape(field, FIELD)]
    return found or _in_type(field.get("type"), f"{within}{field['name']}")


def _in_type(type_: Any, where: str) -> list[str]:
    if isinstance(type_, str):
        return [] if _TYPE.fullmatch(type_.strip()) else [f"the type of {where} is {type_}"]
    name = type_.get("type") if isinstance(type_, dict) else None
    if not isinstance(name, str):
        return [f"the type of {where} is {json.dumps(type_)[:60]}"]
    if name.startswith("ROW") and isinstance(type_.get("fields"), list):
        return [sentence for field in type_["fields"] for sentence in _in_field(field, f"{where}.")]
    parts = next((parts for start, parts in _NESTED.items() if name.startswith(start)), None)
    if parts is None:
        return [f"the type of {where} is {name}"]
    return [sentence for part in parts for sentence in _in_type(type_.get(part), f"{where}.{part}")]


def _look_at_manifest(path: Path, content: bytes) -> list[str]:
    kind = next((k for k in ("manifest-list", "index-manifest", "manifest") if path.name.startswith(f"{k}-")), None)
    if kind is None:
        return []
    try:
        reader = fastavro.reader(io.BytesIO(content))
        found = list(_in_avro_schema(reader.metadata["avro.schema"], kind))
        if not found:
            for record in reader:
                found += _in_record(record, kind)
    except Exception as error:  # whatever an Avro reader stumbles over is the finding
        return [f"{_TORN}: {error!r}"[:200]]
    return found


# A version of a writer has one text for each kind of file, so this is done once for thousands of files.
@functools.lru_cache
def _in_avro_schema(schema: str, kind: str) -> tuple[str, ...]:
    known: dict[str, Any] = {}
    read = json.loads(schema)
    if isinstance(read, list) and len(read) == 2 and read[0] == "null":  # as Rust has it; Java looks for it
        read = read[1]
    return tuple(_in_fields(read, AVRO[kind], "", known))


def _in_fields(schema: Any, want: dict[str, Any], where: str, known: dict[str, Any]) -> Iterator[str]:
    if not isinstance(schema, dict) or schema.get("type") != "record":
        yield f"{where or 'the file'} is no record"
        return
    known[schema["name"]] = known[f"{schema.get('namespace', '')}.{schema['name']}".lstrip(".")] = schema
    have = {field["name"]: field["type"] for field in schema["fields"]}
    for name, kind in want.items():
        kind, flags = (
            (kind.rstrip("?-"), kind) if isinstance(kind, str) else kind if isinstance(kind, tuple) else (kind, "")
        )
        if name in have:
            yield from _in_avro_type(have[name], kind, f"{where}{name}", known)
        elif "-" not in flags:
            yield f"{where}{name} is missing"
    for name in have.keys() - want.keys():
        if not (isinstance(have[name], list) and "null" in have[name]):
            yield f"{where}{name} is unknown to some readers and can't be null"


def _in_avro_type(have: Any, want: Any, where: str, known: dict[str, Any]) -> Iterator[str]:
    if isinstance(have, list):
        # Java takes the first member of a union for null without looking.
        if len(have) != 2 or have[0] != "null":
            yield f"{where} is {json.dumps(have)[:60]}, Java reads null first, then one type"
            return
        have = have[1]
    if isinstance(have, str) and have in known:
        have = known[have]
    if isinstance(want, dict):
        yield from _in_fields(have, want, f"{where}.", known)
    elif isinstance(want, list):
        if isinstance(have, dict) and have.get("type") == "array":
            items = want[0].rstrip("?") if isinstance(want[0], str) else want[0]
            yield from _in_avro_type(have["items"], items, f"{where}[]", known)
        else:
            yield f"{where} is {json.dumps(have)[:60]}, Java reads an array"
    elif _avro_name(have) != want:
        yield f"{where} is {json.dumps(have)[:60]}, Java reads {want}"


def _avro_name(have: Any) -> str:
    """The type without its logical type, but for a time: Java takes that for a timestamp, and only that."""
    if not isinstance(have, dict):
        return str(have)
    logical = have.get("logicalType", "")
    return "time" if logical in ("timestamp-millis", "local-timestamp-millis") else str(have.get("type"))


def _in_record(record: dict[str, Any], kind: str) -> Iterator[str]:
    if record["_VERSION"] != _VERSIONS[kind]:
        yield f"_VERSION is {record['_VERSION']}, Java reads {_VERSIONS[kind]}"
    yield from _nulls(record, AVRO[kind], "")
    if kind == "manifest-list":
        yield from _in_stats(record["_PARTITION_STATS"], "_PARTITION_STATS")
        return
    if record["_KIND"] not in _FILE_KINDS:
        yield f"_KIND is {record['_KIND']}"
    yield from _in_row(record["_PARTITION"], "_PARTITION")
    if kind == "manifest":
        yield from _in_data_file(record["_FILE"])
        return
    type_ = record["_INDEX_TYPE"]
    if type_ not in _INDEX_TYPES:
        yield f"_INDEX_TYPE is {type_}"
    if type_ == "DELETION_VECTORS" and record.get("_DELETIONS_VECTORS_RANGES") is None:
        yield "deletion vectors without _DELETIONS_VECTORS_RANGES"


def _in_data_file(file: dict[str, Any]) -> Iterator[str]:
    if file.get("_FILE_SOURCE") not in _FILE_SOURCES:
        yield f"_FILE_SOURCE is {file['_FILE_SOURCE']}"
    for key in ("_MIN_KEY", "_MAX_KEY"):
        yield from _in_row(file[key], key)
    for key in ("_KEY_STATS", "_VALUE_STATS"):
        yield from _in_stats(file[key], key)


def _nulls(record: dict[str, Any], want: dict[str, Any], where: str) -> Iterator[str]:
    """Name the values that are null where Java asks for one (a writer may declare more as nullable)."""
    for name, kind in want.items():
        value = record.get(name)
        if value is None:
            flags = kind if isinstance(kind, str) else kind[1] if isinstance(kind, tuple) else ""
            if "?" not in flags:
                yield f"{where}{name} is null"
        elif isinstance(kind, dict):
            yield from _nulls(value, kind, f"{where}{name}.")


def _in_row(row: bytes | None, where: str) -> Iterator[str]:
    """``deserializeBinaryRow``: four bytes say how many fields follow, each with eight bytes after the null bits."""
    if row is None:
        return
    arity = int.from_bytes(row[:4], "big")
    if len(row) < 4 or len(row) - 4 < (arity + 8 + 63) // 64 * 8 + 8 * arity:
        yield f"{where} has {len(row)} bytes, too few for a row"


def _in_stats(stats: dict[str, Any] | None, where: str) -> Iterator[str]:
    if stats is None or None in stats.values():
        return
    for key in ("_MIN_VALUES", "_MAX_VALUES"):
        yield from _in_row(stats[key], f"{where}.{key}")
    arities = {stats["_MIN_VALUES"][:4], stats["_MAX_VALUES"][:4]}
    if len(arities) > 1 or int.from_bytes(arities.pop(), "big") != len(stats["_NULL_COUNTS"]):
        yield f"{where} has minima, maxima and null counts of different numbers of columns"


_ROOMS: dict[str, Callable[[Path, bytes], list[str]]] = {
    "snapshot": _look_at_snapshot,
    "changelog": _look_at_snapshot,
    "tag": _look_at_tag,
    "schema": _look_at_schema,
    "consumer": _look_at_consumer,
    "manifest": _look_at_manifest,
}


def main(folders: list[str]) -> int:
    found = [finding for folder in folders for finding in findings(folder)]
    for path, sentence in found:
        print(f"{path}: {sentence}")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
