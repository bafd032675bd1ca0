"""System tables of any branch as Arrow tables, with Paimon's column names.

``$snapshots $schemas $tags $branches $files $manifests $partitions $buckets $options $consumers $statistics``;
``$branches`` adds ``tag_name`` and ``tagged_snapshot_id``, which Paimon does not store.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import pyarrow as pa

from airflow_paimon.core.errors import FormatError, InvalidInputError, LostMetadataError
from airflow_paimon.core.format.binary_row import decode_row
from airflow_paimon.core.format.manifest import DataFile, FileSource, ManifestEntry, ManifestFile, Stats
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.format.types import DataType, field_to_json
from airflow_paimon.core.table.branch_record import BranchRecord, matching_branch_record, read_branch_record
from airflow_paimon.core.table.consumers import read_consumers
from airflow_paimon.core.table.live_entries import live_columns, live_entries
from airflow_paimon.core.table.manifest_lists import all_manifests, read_changelog_list
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.paths import MAIN, STATISTICS_DIR, BranchPaths
from airflow_paimon.core.table.reachability import entry_paths
from airflow_paimon.core.table.table import Table, resolve_version

_TIME, _LONG, _TEXT = pa.timestamp("ms"), pa.int64(), pa.string()


def inspect(table: Table, system_table: str, version: int | str | Snapshot | None = None) -> pa.Table:
    """Return a system table of this branch. ``version``: a snapshot or as of ``resolve_version``, for files,
    manifests, partitions and statistics (what ANALYZE has collected).

    Times are UTC without a zone, except ``$tags.create_time`` and ``$files.creation_time``, which Paimon stores as the
    writer's local time.

    Raises:
        InvalidInputError: an unknown system table, or a version for one that takes none.
    """
    name = system_table.lstrip("$").lower()
    if name in _BY_SNAPSHOT:
        if isinstance(version, Snapshot):
            return _BY_SNAPSHOT[name](table, version)
        view, snapshot = resolve_version(table.require(), version)
        return _BY_SNAPSHOT[name](view, snapshot)
    if name not in _WHOLE:
        known = ", ".join(f"${n}" for n in sorted({*_BY_SNAPSHOT, *_WHOLE}))
        raise InvalidInputError(f"{table.label}: there is no system table {system_table!r}; there are: {known}")
    if version is not None:
        raise InvalidInputError(f"{table.label}: ${name} takes no version")
    return _WHOLE[name](table.require())


def takes_version(system_table: str) -> bool:
    """Whether a system table shows one snapshot, so that ``inspect`` takes a version for it."""
    return system_table.lower() in _BY_SNAPSHOT


_Columns = Mapping[str, tuple[pa.DataType, Callable[[Any], Any]]]
"""Each column with its type, and how its value follows from what a row describes."""


def _build(columns: _Columns, described: Iterable[Any]) -> pa.Table:
    kept = list(described)
    return pa.table({name: pa.array(map(value, kept), kind) for name, (kind, value) in columns.items()})


def _build_rows(columns: Mapping[str, pa.DataType], rows: Iterable[Sequence[Any]]) -> pa.Table:
    return _build({name: (kind, itemgetter(at)) for at, (name, kind) in enumerate(columns.items())}, rows)


def _moment(millis: int | None) -> datetime | None:
    return None if millis is None else datetime.fromtimestamp(millis / 1000, UTC).replace(tzinfo=None)


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


_SNAPSHOTS: _Columns = {
    "snapshot_id": (_LONG, attrgetter("id")),
    "schema_id": (_LONG, attrgetter("schema_id")),
    "commit_user": (_TEXT, attrgetter("commit_user")),
    "commit_identifier": (_LONG, attrgetter("commit_identifier")),
    "commit_kind": (_TEXT, attrgetter("commit_kind")),
    "commit_time": (_TIME, lambda s: _moment(s.time_millis)),
    "base_manifest_list": (_TEXT, attrgetter("base_manifest_list")),
    "delta_manifest_list": (_TEXT, attrgetter("delta_manifest_list")),
    "changelog_manifest_list": (_TEXT, attrgetter("changelog_manifest_list")),
    "total_record_count": (_LONG, attrgetter("total_record_count")),
    "delta_record_count": (_LONG, attrgetter("delta_record_count")),
    "changelog_record_count": (_LONG, attrgetter("changelog_record_count")),
    "watermark": (_LONG, attrgetter("watermark")),
    "next_row_id": (_LONG, attrgetter("next_row_id")),
    "operation": (_TEXT, attrgetter("operation")),
}
_SCHEMAS: _Columns = {
    "schema_id": (_LONG, attrgetter("id")),
    "fields": (_TEXT, lambda s: _compact([field_to_json(f) for f in s.fields])),
    "partition_keys": (_TEXT, lambda s: _compact(s.partition_keys)),
    "primary_keys": (_TEXT, lambda s: _compact(s.primary_keys)),
    "options": (_TEXT, lambda s: _compact(dict(s.options))),
    "comment": (_TEXT, attrgetter("comment")),
    "update_time": (_TIME, lambda s: _moment(s.time_millis)),
}
_TAGS: _Columns = {
    "tag_name": (_TEXT, attrgetter("name")),
    "snapshot_id": (_LONG, attrgetter("snapshot.id")),
    "schema_id": (_LONG, attrgetter("snapshot.schema_id")),
    "commit_time": (_TIME, lambda t: _moment(t.snapshot.time_millis)),
    "record_count": (_LONG, attrgetter("snapshot.total_record_count")),
    "create_time": (_TIME, attrgetter("create_time")),
    "time_retained": (_TEXT, lambda t: None if t.time_retained is None else _java_duration(t.time_retained)),
}


def _java_duration(value: timedelta) -> str:
    """Format a duration as Java does: ``PT87600H``, ``PT1H30M``, ``PT0.5S``."""
    micros = value // timedelta(microseconds=1)
    hours, rest = divmod(micros, 3_600_000_000)
    minutes, rest = divmod(rest, 60_000_000)
    seconds = f"{rest / 1_000_000:.6f}".rstrip("0").rstrip(".") if rest else ""
    text = (f"{hours}H" if hours else "") + (f"{minutes}M" if minutes else "") + (f"{seconds}S" if seconds else "")
    return "PT" + (text or "0S")


def _branches(table: Table) -> pa.Table:
    columns = {
        "branch_name": _TEXT,
        "create_time": _TIME,
        "tag_name": _TEXT,
        "tagged_snapshot_id": _LONG,
        "from_branch": _TEXT,
        "owner": _TEXT,
        "reason": _TEXT,
        "retention": _TEXT,
        "protected_by": _TEXT,
    }
    main = table.branch(MAIN)
    rows: list[tuple[Any, ...]] = []
    for name in main.branch_names():
        verified, record = matching_branch_record(main, name), read_branch_record(main, name)
        made = _folder_time(main, name) if verified is None else _moment(verified.created_ms)
        origin = (verified.from_tag, verified.snapshot_id, verified.from_branch) if verified else (None, None, None)
        rows.append((name, made, *origin, *_ownership(record, fits=verified is not None)))
    return _build_rows(columns, rows)


def _ownership(record: BranchRecord | None, *, fits: bool) -> tuple[str | None, str | None, str | None, str | None]:
    """Owner, reason, retention, and who protects the branch (``unknown`` if nobody was named).

    Of a record that doesn't fit the branch only the protection counts.
    """
    if record is None:
        return None, None, None, None
    protected_by = (record.protected_by or "unknown") if record.protected else None
    if not fits and record.known_origin:
        return None, None, None, protected_by
    return record.owner, record.reason, record.retention, protected_by


def _folder_time(table: Table, branch: str) -> datetime | None:
    """The time at which the branch's oldest file was written (Paimon shows the folder's time)."""
    files = table.store.list(BranchPaths(branch).schema_dir)
    return _moment(min((f.modified_ms for f in files if f.modified_ms is not None), default=None))


def _options(table: Table) -> pa.Table:
    return _build_rows({"key": _TEXT, "value": _TEXT}, sorted(table.schema().options.items()))


def _consumers(table: Table) -> pa.Table:
    columns = {"consumer_id": _TEXT, "next_snapshot_id": _LONG}
    return _build_rows(columns, sorted((c.name, c.next_snapshot) for c in read_consumers(table)))


def _statistics(table: Table, snapshot: Snapshot | None) -> pa.Table:
    """What ANALYZE has collected; empty where the snapshot has none."""
    columns = {
        "snapshot_id": _LONG,
        "schema_id": _LONG,
        "mergedRecordCount": _LONG,
        "mergedRecordSize": _LONG,
        "colstat": _TEXT,
    }
    if snapshot is None or snapshot.statistics is None:
        return _build_rows(columns, [])
    path = f"{STATISTICS_DIR}/{snapshot.statistics}"
    try:
        found = json.loads(table.store.read(path))
        counts = (found["snapshotId"], found["schemaId"], found.get("mergedRecordCount"), found.get("mergedRecordSize"))
        return _build_rows(columns, [(*counts, _compact(found.get("colStats") or {}))])
    except (ValueError, KeyError, TypeError, AttributeError):
        raise FormatError(f"{table.label}: the statistics {path} can't be read") from None


def _manifests(table: Table, snapshot: Snapshot | None) -> pa.Table:
    types = table.schema().partition_types
    columns: _Columns = {
        "file_name": (_TEXT, attrgetter("file_name")),
        "file_size": (_LONG, attrgetter("file_size")),
        "num_added_files": (_LONG, attrgetter("num_added_files")),
        "num_deleted_files": (_LONG, attrgetter("num_deleted_files")),
        "schema_id": (_LONG, attrgetter("schema_id")),
        "min_partition_stats": (_TEXT, lambda m: _row_text(m.partition_stats.min_values, types)),
        "max_partition_stats": (_TEXT, lambda m: _row_text(m.partition_stats.max_values, types)),
        "min_row_id": (_LONG, attrgetter("min_row_id")),
        "max_row_id": (_LONG, attrgetter("max_row_id")),
    }
    return _build(columns, [] if snapshot is None else [*all_manifests(table, snapshot), *_changelog(table, snapshot)])


def _changelog(table: Table, snapshot: Snapshot) -> list[ManifestFile]:
    """The manifests of its changelog; Paimon's expiry keeps them for no tag and no branch's base."""
    try:
        return read_changelog_list(table, snapshot)
    except LostMetadataError:
        return []


def _row_text(data: bytes, types: Sequence[DataType]) -> str:
    values = decode_row(data, types)
    return "{" + ", ".join("null" if v is None else str(v) for v in values) + "}"


class _LiveFile(NamedTuple):
    """``schema``: the file's own; ``stats``: see ``_value_stats``."""

    entry: ManifestEntry
    partition: str
    path: str
    schema: TableSchema
    stats: tuple[str, str, str]

    @property
    def file(self) -> DataFile:
        return self.entry.file


_FILES: _Columns = {
    "partition": (_TEXT, attrgetter("partition")),
    "bucket": (pa.int32(), attrgetter("entry.bucket")),
    "file_path": (_TEXT, attrgetter("path")),
    "file_format": (_TEXT, lambda f: f.file.file_name.rsplit(".", 1)[-1]),
    "schema_id": (_LONG, attrgetter("file.schema_id")),
    "level": (pa.int32(), attrgetter("file.level")),
    "record_count": (_LONG, attrgetter("file.row_count")),
    "file_size_in_bytes": (_LONG, attrgetter("file.file_size")),
    "min_key": (_TEXT, lambda f: _key_text(f.file.min_key, f.schema)),
    "max_key": (_TEXT, lambda f: _key_text(f.file.max_key, f.schema)),
    "null_value_counts": (_TEXT, lambda f: f.stats[2]),
    "min_value_stats": (_TEXT, lambda f: f.stats[0]),
    "max_value_stats": (_TEXT, lambda f: f.stats[1]),
    "min_sequence_number": (_LONG, attrgetter("file.min_sequence_number")),
    "max_sequence_number": (_LONG, attrgetter("file.max_sequence_number")),
    "creation_time": (_TIME, lambda f: _moment(f.file.creation_time_ms)),
    "deleteRowCount": (_LONG, attrgetter("file.delete_row_count")),
    "file_source": (_TEXT, lambda f: None if f.file.file_source is None else FileSource(f.file.file_source).name),
    "first_row_id": (_LONG, attrgetter("file.first_row_id")),
    "write_cols": (pa.list_(_TEXT), attrgetter("file.write_cols")),
}


def _files(table: Table, snapshot: Snapshot | None) -> pa.Table:
    schema = table.schema()
    schemas = {s.id: s for s in table.schemas()}
    text, root = StoredPartitions(schema).text, table.store.uri.rstrip("/")

    def described(entry: ManifestEntry) -> _LiveFile:
        own, path = schemas.get(entry.file.schema_id, schema), entry_paths(schema, [entry])[0]
        path = path if "://" in path else f"{root}/{path}"
        return _LiveFile(entry, text(entry.partition), path, own, _value_stats(own, entry.file))

    return _build(_FILES, map(described, live_entries(table, snapshot).values()))


def _key_text(data: bytes, schema: TableSchema) -> str | None:
    if not schema.primary_keys:
        return None
    values = decode_row(data, [f.type for f in schema.key_fields])
    return "[" + ", ".join("null" if v is None else str(v) for v in values) + "]"


def _value_stats(schema: TableSchema, file: DataFile) -> tuple[str, str, str]:
    """Minima, maxima and null counts as ``{column=value, …}``, for the columns that have statistics."""
    names = file.value_stats_cols if file.value_stats_cols is not None else file.write_cols or schema.field_names
    stats: Stats = file.value_stats
    fields = [schema.field(n) for n in names if n in schema.field_names]
    if not fields or len(fields) != len(names):
        return "{}", "{}", "{}"
    types = [f.type for f in fields]
    low, high = (decode_row(b, types) if len(b) > 12 else (None,) * len(types) for b in
                 (stats.min_values, stats.max_values))  # fmt: skip
    nulls = stats.null_counts or (None,) * len(types)
    lows, highs, counts = (
        "{" + ", ".join(f"{f.name}={'null' if v is None else v}" for f, v in zip(fields, values, strict=False)) + "}"
        for values in (low, high, nulls)
    )
    return lows, highs, counts


def _partitions(table: Table, snapshot: Snapshot | None) -> pa.Table:
    return _grouped(table, snapshot, by_bucket=False)


def _buckets(table: Table, snapshot: Snapshot | None) -> pa.Table:
    return _grouped(table, snapshot, by_bucket=True)


def _grouped(table: Table, snapshot: Snapshot | None, *, by_bucket: bool) -> pa.Table:
    """Sum up the live files of each partition, or of each bucket of it."""
    schema = table.schema()
    stored, types = StoredPartitions(schema), schema.partition_types
    live = live_columns(table, snapshot)
    groups: dict[tuple[bytes, int], list[int]] = {}
    for at, partition in enumerate(live.partitions):
        bucket = live.buckets[at] if by_bucket else 0
        groups.setdefault((stored.canonical(partition), bucket), []).append(at)

    def updated(files: Sequence[int]) -> datetime | None:
        return _moment(max((t for i in files if (t := live.creation_times_ms[i]) is not None), default=None))

    columns: _Columns = {
        "partition": (_TEXT, lambda g: _row_text(g[0][0], types) if by_bucket else stored.text(g[0][0])),
        **({"bucket": (pa.int32(), lambda g: g[0][1])} if by_bucket else {}),
        "record_count": (_LONG, lambda g: sum(live.row_counts[i] for i in g[1])),
        "file_size_in_bytes": (_LONG, lambda g: sum(live.file_sizes[i] for i in g[1])),
        "file_count": (_LONG, lambda g: len(g[1])),
        "last_update_time": (_TIME, lambda g: updated(g[1])),
    }
    return _build(columns, groups.items())


def live_partitions(table: Table, snapshot: Snapshot | None) -> list[tuple[Any, ...]]:
    """Return the values of the partitions of a snapshot that hold files."""
    stored = StoredPartitions(table.schema())
    found = {stored.canonical(p): p for p in live_columns(table, snapshot).partitions}
    return [stored.values(p) for p in found.values()]


_WHOLE: Mapping[str, Callable[[Table], pa.Table]] = {
    "snapshots": lambda table: _build(_SNAPSHOTS, table.snapshots()),
    "schemas": lambda table: _build(_SCHEMAS, table.schemas()),
    "tags": lambda table: _build(_TAGS, table.tags()),
    "branches": _branches,
    "options": _options,
    "consumers": _consumers,
}
_BY_SNAPSHOT: Mapping[str, Callable[[Table, Snapshot | None], pa.Table]] = {
    "files": _files,
    "manifests": _manifests,
    "partitions": _partitions,
    "buckets": _buckets,
    "statistics": _statistics,
}
