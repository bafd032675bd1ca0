"""What Paimon checks of the formats, names and indexes of files when it opens a table, or first writes one (pure).

See ``opening_rules``.
"""

from __future__ import annotations

from collections.abc import Iterator

from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.types import AtomicType, DataType, MapType, types_within
from airflow_paimon.core.table.option_values import map_of
from airflow_paimon.core.table.options import TableOptions

_INDEXES = ("bitmap", "bloom-filter", "bsi", "range-bitmap")
_TEXTS = frozenset({"CHAR", "VARCHAR", "STRING"})
_AVRO_DIGITS = {"TIMESTAMP": 6, "TIMESTAMP_LTZ": 6, "TIME": 3}
_CODECS = {
    "parquet": frozenset({"none", "uncompressed", "snappy", "gzip", "lzo", "brotli", "lz4", "lz4_raw", "zstd"}),
    "orc": frozenset({"none", "snappy", "lzo", "lz4", "zstd", "zlib", "brotli"}),
    "avro": frozenset({"null", "deflate", "snappy", "bzip2", "xz", "zstandard", "zstd"}),
}
"""Compressions of each file format that is read here; Paimon's own default is zstd."""


def file_types(schema: TableSchema, options: TableOptions) -> Iterator[str]:
    """Columns of times with more digits than Avro's."""
    levels = map_of(options.given("file.format.per.level") or "")
    for field in schema.fields:
        for found in types_within(field.type) if options.file_format == "avro" else ():
            if _too_fine(found):
                yield f"file.format=avro can't store column {field.name!r}, which is or has {found}"
        for level, name in levels.items():
            if name.lower() == "avro" and _too_fine(field.type) and field.type.root != "TIME":
                yield f"file.format.per.level={level}:avro can't store column {field.name!r} of type {field.type}"


def _too_fine(found: DataType) -> bool:
    """Whether a time has more digits than Avro's."""
    return isinstance(found, AtomicType) and found.root in _AVRO_DIGITS and found.args[0] > _AVRO_DIGITS[found.root]


def file_indexes(schema: TableSchema, options: TableOptions) -> Iterator[str]:
    indexed: dict[str, set[str]] = {}
    for key in options.raw:
        if key.startswith("file-index.") and key.endswith(".columns"):
            kind = key.removeprefix("file-index.").removesuffix(".columns")
            names = options.split_names(key)
            indexed.setdefault(kind, set()).update(names, (n.partition("[")[0] for n in names))
            yield from (fault for name in names for fault in _indexed_column(schema, key, kind, name))
    for key in options.raw:
        parts = key.removeprefix("file-index.").split(".")
        of_column = key.startswith("file-index.") and len(parts) == 3 and not key.endswith(".columns")
        if of_column and parts[1] not in indexed.get(parts[0], ()):
            yield f"{key} is for column {parts[1]!r}, which file-index.{parts[0]}.columns doesn't name"


def _indexed_column(schema: TableSchema, key: str, kind: str, name: str) -> Iterator[str]:
    column, bracket, _ = name.partition("[")
    nested = bool(bracket) and name.endswith("]")
    name = column if nested else name
    if name not in schema.field_names:
        yield f"{key} names column {name!r}, which the table doesn't have"
        return
    found = schema.field(name).type
    if nested and (not isinstance(found, MapType) or found.key.root not in _TEXTS):
        yield f"{key} names a key of column {name!r}, which is not a MAP with keys of type STRING"
    elif kind not in _INDEXES:
        yield f"{key} is for an index that Paimon doesn't have; there are {', '.join(_INDEXES)}"


def compressions(schema: TableSchema, options: TableOptions) -> Iterator[str]:
    own = options.file_format
    levels = {level: name.lower() for level, name in map_of(options.text("file.format.per.level")).items()}
    yield from _compression("file.compression", options.given("file.compression"), own)
    yield from _compression("manifest.compression", options.given("manifest.compression"), "avro")
    if options.text("changelog-producer", "none").lower() != "none":
        key, kind = "changelog-file.compression", options.text("changelog-file.format", own).lower()
        yield from _compression(key, options.given(key), kind)
    compressed = map_of(options.text("file.compression.per.level"))
    for level, value in compressed.items():
        yield from _compression("file.compression.per.level", value, levels.get(level, own))
    for level in levels.keys() - compressed.keys():
        yield from _compression("file.compression", options.given("file.compression"), levels[level])


def _compression(key: str, value: str | None, kind: str) -> Iterator[str]:
    known = _CODECS.get(kind)
    if value is not None and known is not None and value.lower() not in known:
        yield f"{key}={value!r} is not a compression of {kind} files, which are {', '.join(sorted(known))}"


def file_names(schema: TableSchema, options: TableOptions) -> Iterator[str]:
    """A file whose name begins with a folder's is written into that folder, and looked for beside it."""
    for key in ("data-file.prefix", "changelog-file.prefix"):
        if "/" in options.text(key):
            yield f"{key}={options.text(key)} has a slash, and no file would be found again"
