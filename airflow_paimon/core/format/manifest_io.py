"""Encodes and decodes manifests, manifest lists and index manifests (docs/contributing/format.md, Manifests,
Deletion vectors).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from airflow_paimon.core.errors import UnsupportedFeatureError
from airflow_paimon.core.format.avro.container import read_blocks, read_container, read_header
from airflow_paimon.core.format.avro.decoder import END, RecordForm, decode_columns, decode_records, naming
from airflow_paimon.core.format.avro.encoder import encode_records
from airflow_paimon.core.format.avro.types import avro_schema, avro_text
from airflow_paimon.core.format.manifest import (
    DataFile,
    DeletionVectorRange,
    EntryColumns,
    FileKind,
    GlobalIndex,
    IndexEntry,
    ManifestEntry,
    ManifestFile,
    Stats,
)
from airflow_paimon.core.format.manifest_blocks import EntryFilter, block_index, blocks_of, indexed_blocks
from airflow_paimon.core.format.stats import stored_row_stats
from airflow_paimon.core.format.types import DataType

_VERSIONS, _INDEX_VERSIONS = (2,), (1,)
_SAMPLE = 1000
_STATS = ("_MIN_VALUES bytes", "_MAX_VALUES bytes", "_NULL_COUNTS ?[?long]")


ENTRY_SCHEMA: Final = avro_schema([
    "_VERSION int", "_KIND int", "_PARTITION bytes", "_BUCKET int", "_TOTAL_BUCKETS int",
    ("_FILE record", [
        "_FILE_NAME string", "_FILE_SIZE long", "_ROW_COUNT long", "_MIN_KEY bytes", "_MAX_KEY bytes",
        ("_KEY_STATS record", _STATS), ("_VALUE_STATS record", _STATS),
        "_MIN_SEQUENCE_NUMBER long", "_MAX_SEQUENCE_NUMBER long", "_SCHEMA_ID long", "_LEVEL int",
        "_EXTRA_FILES [string]", "_CREATION_TIME ?timestamp-millis", "_DELETE_ROW_COUNT ?long",
        "_EMBEDDED_FILE_INDEX ?bytes", "_FILE_SOURCE ?int", "_VALUE_STATS_COLS ?[string]", "_EXTERNAL_PATH ?string",
        "_FIRST_ROW_ID ?long", "_WRITE_COLS ?[string]", "_WRITE_COLS_SEQUENCES ?[long]",
    ]),
])  # fmt: skip
LIST_SCHEMA: Final = avro_schema([
    "_VERSION int", "_FILE_NAME string", "_FILE_SIZE long", "_NUM_ADDED_FILES long", "_NUM_DELETED_FILES long",
    ("_PARTITION_STATS record", _STATS), "_SCHEMA_ID long", "_MIN_BUCKET ?int", "_MAX_BUCKET ?int",
    "_MIN_LEVEL ?int", "_MAX_LEVEL ?int", "_MIN_ROW_ID ?long", "_MAX_ROW_ID ?long",
])  # fmt: skip

_ENTRIES = RecordForm(
    avro_text(ENTRY_SCHEMA),
    {"record": ManifestEntry, "record__FILE": DataFile,
     "record__FILE__KEY_STATS": Stats, "record__FILE__VALUE_STATS": Stats},
    {"_VERSION": _VERSIONS, "_KIND": (0, 1)},
)  # fmt: skip
_COLUMNS = (
    ("record", ("_KIND", "_PARTITION", "_BUCKET", "_TOTAL_BUCKETS")),
    ("record__FILE", ("_FILE_NAME", "_FILE_SIZE", "_ROW_COUNT", "_MAX_SEQUENCE_NUMBER", "_SCHEMA_ID", "_LEVEL",
                      "_EXTRA_FILES", "_CREATION_TIME", "_EMBEDDED_FILE_INDEX", "_FILE_SOURCE", "_EXTERNAL_PATH",
                      "_FIRST_ROW_ID")),
)  # fmt: skip
"""In the order of ``EntryColumns``."""
_WHERE = (("record", ("_PARTITION", "_BUCKET", "_TOTAL_BUCKETS", END)),)
_LISTS = RecordForm(
    avro_text(LIST_SCHEMA),
    {"record": ManifestFile, "record__PARTITION_STATS": Stats},
    {"_VERSION": _VERSIONS},
)


def read_manifest(data: bytes, *, name: str | None = None, only: EntryFilter | None = None) -> list[ManifestEntry]:
    """Decode a manifest of any release since 0.4; fields that its release lacks are None.

    Raises:
        FormatError: truncated or corrupt; the message starts with ``name``.
        UnsupportedFeatureError: a later version of the format.
    """
    return [entry for some in entry_blocks(data, name=name, only=only) for entry in some]


def entry_blocks(
    data: bytes, *, name: str | None = None, only: EntryFilter | None = None
) -> Iterator[list[ManifestEntry]]:
    """Decode a manifest as ``read_manifest`` does, the entries of one block at a time."""
    with naming(name):
        schema, blocks = _blocks(data, only)
        for block in blocks:
            yield decode_records(schema, [block], _ENTRIES)


def read_manifest_columns(data: bytes, *, name: str | None = None, only: EntryFilter | None = None) -> EntryColumns:
    """Decode only some fields of a manifest, three times as fast; otherwise as ``read_manifest``."""
    with naming(name):
        return EntryColumns(*decode_columns(*_blocks(data, only), _ENTRIES, _COLUMNS))


def _blocks(data: bytes, only: EntryFilter | None) -> tuple[str, Iterable[tuple[int, bytes]]]:
    """Return the schema, and of the blocks the wanted entries: their number, and their bytes."""
    header = read_header(data)
    if only is None:
        return header.schema, read_blocks(data, header, header.end)
    index = indexed_blocks(header, len(data))
    if index is None:
        blocks = read_blocks(data, header, header.end)
    else:
        blocks = blocks_of(filter(only.may_be_in, index), data, header)
    return header.schema, (_kept(header.schema, number, block, only) for number, block in blocks)


def _kept(schema: str, number: int, block: bytes, only: EntryFilter) -> tuple[int, bytes]:
    partitions, buckets, totals, ends = decode_columns(schema, [(number, block)], _ENTRIES, _WHERE)
    known = {partition: only(partition) for partition in set(partitions)}
    keep = [known[p] and only.holds(*at) for p, *at in zip(partitions, buckets, totals, strict=True)]
    if all(keep):
        return number, block
    found = [block[start:end] for start, end, kept in zip([0, *ends], ends, keep, strict=False) if kept]
    return len(found), b"".join(found)


def read_manifest_list(data: bytes, *, name: str | None = None) -> list[ManifestFile]:
    """Decode a manifest list; raises as ``read_manifest`` does."""
    return _records(data, _LISTS, name)


def _records(data: bytes, form: RecordForm, name: str | None) -> list[Any]:
    with naming(name):
        container = read_container(data)
        return decode_records(container.schema, container.blocks, form)


def write_manifest(entries: Iterable[ManifestEntry], partition_types: Sequence[DataType] | None = None) -> bytes:
    """Encode a manifest. The same entries give the same bytes.

    ``partition_types``: of the table, whose manifests get an index of their blocks if it pays; None = it gets none.
    """
    if partition_types is None:
        return encode_records(entries, _ENTRIES)
    rows, types = list(entries), partition_types
    return encode_records(rows, _ENTRIES, lambda sizes: block_index(rows, types, sizes))


def write_manifest_list(rows: Iterable[ManifestFile]) -> bytes:
    """Encode a manifest list; without rows it is still a valid file."""
    return encode_records(rows, _LISTS)


def written_manifests(
    entries: Sequence[ManifestEntry], partition_types: Sequence[DataType], target_bytes: int
) -> list[tuple[Sequence[ManifestEntry], bytes]]:
    """Encode entries as the manifests into which ``rolling_manifests`` splits them; few are encoded only once."""
    if 0 < len(entries) < _SAMPLE:
        data = write_manifest(entries, partition_types)
        if len(data) <= target_bytes:
            return [(entries, data)]
    return [(part, write_manifest(part, partition_types)) for part in rolling_manifests(entries, target_bytes)]


def rolling_manifests(entries: Sequence[ManifestEntry], target_bytes: int = 8 << 20) -> list[list[ManifestEntry]]:
    """Split entries, in order, into manifests of about ``target_bytes`` each when written, rather smaller ones where a
    partition then begins with a manifest.

    The size of an entry is estimated from a sample: a manifest may come out somewhat larger or smaller.
    """
    if not entries:
        return []
    sample = entries[:: len(entries) // _SAMPLE + 1]
    number = max(1, target_bytes * len(sample) // len(write_manifest(sample)))
    parts, start = [], 0
    while start < len(entries):
        end = _border(entries, start + max(1, number * 3 // 4), start + number)
        parts.append(list(entries[start:end]))
        start = end
    return parts


def _border(entries: Sequence[ManifestEntry], earliest: int, latest: int) -> int:
    """Return the last position within these bounds where a partition begins, the latest if none does."""
    if latest >= len(entries):
        return len(entries)
    for at in range(latest, earliest - 1, -1):
        if entries[at].partition != entries[at - 1].partition:
            return at
    return latest


def describe_manifest(
    file_name: str, file_size: int, entries: Sequence[ManifestEntry], partition_types: Sequence[DataType]
) -> ManifestFile:
    """Return the manifest list row of a manifest with these entries. All bounds are exact: readers prune by them."""
    added = sum(1 for e in entries if e.kind == FileKind.ADD)
    row_ids = [e.file.first_row_id for e in entries]
    ends = [e.file.first_row_id + e.file.row_count - 1 for e in entries if e.file.first_row_id is not None]
    buckets, levels = [e.bucket for e in entries], [e.file.level for e in entries]
    known = [number for number in row_ids if number is not None]
    all_known = bool(known) and len(known) == len(row_ids)
    return ManifestFile(
        file_name=file_name,
        file_size=file_size,
        num_added_files=added,
        num_deleted_files=len(entries) - added,
        partition_stats=stored_row_stats((e.partition for e in entries), partition_types),
        schema_id=max((e.file.schema_id for e in entries), default=0),
        min_bucket=min(buckets, default=None),
        max_bucket=max(buckets, default=None),
        min_level=min(levels, default=None),
        max_level=max(levels, default=None),
        min_row_id=min(known) if all_known else None,
        max_row_id=max(ends) if all_known else None,
    )


INDEX_SCHEMA: Final = avro_schema([
    "_VERSION int", "_KIND int", "_PARTITION bytes", "_BUCKET int", "_INDEX_TYPE string", "_FILE_NAME string",
    "_FILE_SIZE long", "_ROW_COUNT long",
    ("_DELETIONS_VECTORS_RANGES ?[?record]", ["f0 string", "f1 int", "f2 int", "_CARDINALITY ?long"]),
    "_EXTERNAL_PATH ?string",
    ("_GLOBAL_INDEX ?record", [
        "_ROW_RANGE_START long", "_ROW_RANGE_END long", "_INDEX_FIELD_ID int", "_EXTRA_FIELD_IDS ?[int]",
        "_INDEX_META ?bytes", "_SOURCE_META ?bytes",
    ]),
])  # fmt: skip

_FORM = RecordForm(
    avro_text(INDEX_SCHEMA),
    {"record": IndexEntry, "record__DELETIONS_VECTORS_RANGES": DeletionVectorRange,
     "record__GLOBAL_INDEX": GlobalIndex},
    {"_VERSION": _INDEX_VERSIONS, "_KIND": (0, 1)},
)  # fmt: skip


def read_index_manifest(data: bytes, *, name: str | None = None) -> list[IndexEntry]:
    """Decode an index manifest.

    Raises:
        FormatError: truncated or corrupt; the message starts with ``name``.
        UnsupportedFeatureError: a later version of the format.
    """
    return _records(data, _FORM, name)


def write_index_manifest(entries: Iterable[IndexEntry]) -> bytes:
    """Encode an index manifest.

    Raises:
        UnsupportedFeatureError: an entry came with fields that we don't know and would lose.
    """
    rows = list(entries)
    lost = sorted({name for entry in rows for name in entry.unknown_names()})
    if lost:
        raise UnsupportedFeatureError(
            f"The index manifest has fields of a later Paimon release ({', '.join(lost)}) that rewriting would "
            f"lose; change this table with that release"
        )
    return encode_records(rows, _FORM)
