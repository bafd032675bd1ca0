"""System tables of any branch as Arrow tables, with Paimon's column names.

``$snapshots $schemas $tags $branches $files $manifests $partitions $options $consumers $statistics``; ``$branches``
adds ``tag_name`` and ``tagged_snapshot_id``, which Paimon does not store.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from airflow_paimon.core.errors import FormatError, InvalidInputError
from airflow_paimon.core.format.binary_row import decode_row
from airflow_paimon.core.format.manifest import DataFile, ManifestEntry, Stats
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.format.types import DataType, field_to_json
from airflow_paimon.core.table.consumers import read_consumers
from airflow_paimon.core.table.lineage import Lineage, read_lineage, verified_lineage
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partitions import readable_value
from airflow_paimon.core.table.paths import MAIN, STATISTICS_DIR, BranchPaths
from airflow_paimon.core.table.reachability import entry_paths
from airflow_paimon.core.table.scan import all_manifests, live_columns, live_entries, partition_types
from airflow_paimon.core.table.stored_partitions import StoredPartitions
from airflow_paimon.core.table.table import Table, resolve_version

_TIME = pa.timestamp("ms")


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


def _build(columns: Mapping[str, pa.DataType], rows: Iterable[Sequence[Any]]) -> pa.Table:
    kept = list(rows)
    arrays = [pa.array([r[i] for r in kept], t) for i, t in enumerate(columns.values())]
    return pa.table(dict(zip(columns, arrays, strict=True)))


def _moment(millis: int | None) -> datetime | None:
    return None if millis is None else datetime.fromtimestamp(millis / 1000, UTC).replace(tzinfo=None)


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _snapshots(table: Table) -> pa.Table:
    columns = {
        "snapshot_id": pa.int64(),
        "schema_id": pa.int64(),
        "commit_user": pa.string(),
        "commit_identifier": pa.int64(),
        "commit_kind": pa.string(),
        "commit_time": _TIME,
        "base_manifest_list": pa.string(),
        "delta_manifest_list": pa.string(),
        "changelog_manifest_list": pa.string(),
        "total_record_count": pa.int64(),
        "delta_record_count": pa.int64(),
        "changelog_record_count": pa.int64(),
        "watermark": pa.int64(),
        "next_row_id": pa.int64(),
        "operation": pa.string(),
    }
    rows = (
        (
            s.id,
            s.schema_id,
            s.commit_user,
            s.commit_identifier,
            s.commit_kind.value,
            _moment(s.time_millis),
            s.base_manifest_list,
            s.delta_manifest_list,
            s.changelog_manifest_list,
            s.total_record_count,
            s.delta_record_count,
            s.changelog_record_count,
            s.watermark,
            s.next_row_id,
            s.operation,
        )
        for s in table.snapshots()
    )
    return _build(columns, rows)


def _schemas(table: Table) -> pa.Table:
    columns = {
        "schema_id": pa.int64(),
        "fields": pa.string(),
        "partition_keys": pa.string(),
        "primary_keys": pa.string(),
        "options": pa.string(),
        "comment": pa.string(),
        "update_time": _TIME,
    }
    rows = (
        (
            s.id,
            _compact([field_to_json(f) for f in s.fields]),
            _compact(list(s.partition_keys)),
            _compact(list(s.primary_keys)),
            _compact(dict(s.options)),
            s.comment,
            _moment(s.time_millis),
        )
        for s in table.schemas()
    )
    return _build(columns, rows)


def _tags(table: Table) -> pa.Table:
    columns = {
        "tag_name": pa.string(),
        "snapshot_id": pa.int64(),
        "schema_id": pa.int64(),
        "commit_time": _TIME,
        "record_count": pa.int64(),
        "create_time": _TIME,
        "time_retained": pa.string(),
    }
    rows = (
        (
            t.name,
            t.snapshot.id,
            t.snapshot.schema_id,
            _moment(t.snapshot.time_millis),
            t.snapshot.total_record_count,
            t.create_time,
            None if t.time_retained is None else _java_duration(t.time_retained),
        )
        for t in table.tags()
    )
    return _build(columns, rows)


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
        "branch_name": pa.string(),
        "create_time": _TIME,
        "tag_name": pa.string(),
        "tagged_snapshot_id": pa.int64(),
        "from_branch": pa.string(),
        "owner": pa.string(),
        "reason": pa.string(),
        "retention": pa.string(),
        "protected_by": pa.string(),
    }
    main = table.branch(MAIN)
    rows: list[tuple[Any, ...]] = []
    for name in main.branch_names():
        lineage, record = verified_lineage(main, name), read_lineage(main, name)
        made: datetime | None = None
        origin: tuple[Any, ...] = (None, None, None)
        if lineage is None:
            made = _folder_time(main, name)
        else:
            made = datetime.fromisoformat(lineage.created_at).astimezone(UTC).replace(tzinfo=None)
            origin = lineage.from_tag, lineage.snapshot_id, lineage.from_branch
        rows.append((name, made, *origin, *_ownership(record, fits=lineage is not None)))
    return _build(columns, rows)


def _ownership(record: Lineage | None, *, fits: bool) -> tuple[str | None, str | None, str | None, str | None]:
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
    return _build({"key": pa.string(), "value": pa.string()}, sorted(table.schema().options.items()))


def _consumers(table: Table) -> pa.Table:
    columns = {"consumer_id": pa.string(), "next_snapshot_id": pa.int64()}
    return _build(columns, sorted((c.name, c.next_snapshot) for c in read_consumers(table)))


def _statistics(table: Table, snapshot: Snapshot | None) -> pa.Table:
    """What ANALYZE has collected; empty where the snapshot has none."""
    columns = {
        "snapshot_id": pa.int64(),
        "schema_id": pa.int64(),
        "mergedRecordCount": pa.int64(),
        "mergedRecordSize": pa.int64(),
        "colstat": pa.string(),
    }
    if snapshot is None or snapshot.statistics is None:
        return _build(columns, [])
    path = f"{STATISTICS_DIR}/{snapshot.statistics}"
    try:
        found = json.loads(table.store.read(path))
        counts = (found["snapshotId"], found["schemaId"], found.get("mergedRecordCount"), found.get("mergedRecordSize"))
        return _build(columns, [(*counts, _compact(found.get("colStats") or {}))])
    except (ValueError, KeyError, TypeError, AttributeError):
        raise FormatError(f"{table.label}: the statistics {path} can't be read", table=table.name) from None


def _manifests(table: Table, snapshot: Snapshot | None) -> pa.Table:
    columns = {
        "file_name": pa.string(),
        "file_size": pa.int64(),
        "num_added_files": pa.int64(),
        "num_deleted_files": pa.int64(),
        "schema_id": pa.int64(),
        "min_partition_stats": pa.string(),
        "max_partition_stats": pa.string(),
        "min_row_id": pa.int64(),
        "max_row_id": pa.int64(),
    }
    types = partition_types(table.schema())
    rows = (
        (
            m.file_name,
            m.file_size,
            m.num_added_files,
            m.num_deleted_files,
            m.schema_id,
            _row_text(m.partition_stats.min_values, types),
            _row_text(m.partition_stats.max_values, types),
            m.min_row_id,
            m.max_row_id,
        )
        for m in (all_manifests(table, snapshot) if snapshot is not None else [])
    )
    return _build(columns, rows)


def _row_text(data: bytes, types: Sequence[DataType]) -> str:
    values = decode_row(data, types)
    return "{" + ", ".join("null" if v is None else str(v) for v in values) + "}"


def _files(table: Table, snapshot: Snapshot | None) -> pa.Table:
    columns = {
        "partition": pa.string(),
        "bucket": pa.int32(),
        "file_path": pa.string(),
        "file_format": pa.string(),
        "schema_id": pa.int64(),
        "level": pa.int32(),
        "record_count": pa.int64(),
        "file_size_in_bytes": pa.int64(),
        "min_key": pa.string(),
        "max_key": pa.string(),
        "null_value_counts": pa.string(),
        "min_value_stats": pa.string(),
        "max_value_stats": pa.string(),
        "min_sequence_number": pa.int64(),
        "max_sequence_number": pa.int64(),
        "creation_time": _TIME,
        "deleteRowCount": pa.int64(),
        "file_source": pa.string(),
        "first_row_id": pa.int64(),
        "write_cols": pa.list_(pa.string()),
    }
    schema = table.schema()
    schemas = {s.id: s for s in table.schemas()}
    text = StoredPartitions(schema).text
    entries = live_entries(table, snapshot).values()
    return _build(columns, (_file_row(table, schema, schemas, e, text(e.partition)) for e in entries))


def _file_row(
    table: Table, schema: TableSchema, schemas: Mapping[int, TableSchema], entry: ManifestEntry, partition: str
) -> list[Any]:
    file = entry.file
    own = schemas.get(file.schema_id, schema)
    key_types = [f.type for f in own.key_fields] if own.primary_keys else []
    low, high, nulls = _value_stats(own, file)
    path = entry_paths(schema, [entry])[0]
    return [
        partition,
        entry.bucket,
        path if "://" in path else f"{table.store.uri.rstrip('/')}/{path}",
        file.file_name.rsplit(".", 1)[-1],
        file.schema_id,
        file.level,
        file.row_count,
        file.file_size,
        _key_text(file.min_key, key_types),
        _key_text(file.max_key, key_types),
        nulls,
        low,
        high,
        file.min_sequence_number,
        file.max_sequence_number,
        _moment(file.creation_time_ms),
        file.delete_row_count,
        None if file.file_source is None else ("APPEND", "COMPACT")[file.file_source],
        file.first_row_id,
        None if file.write_cols is None else list(file.write_cols),
    ]


def _key_text(data: bytes, types: Sequence[DataType]) -> str | None:
    if not types:
        return None
    return "[" + ", ".join("null" if v is None else str(v) for v in decode_row(data, types)) + "]"


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
    columns = {
        "partition": pa.string(),
        "record_count": pa.int64(),
        "file_size_in_bytes": pa.int64(),
        "file_count": pa.int64(),
        "last_update_time": _TIME,
    }
    schema = table.schema()
    stored = StoredPartitions(schema)
    live = live_columns(table, snapshot)
    groups: dict[bytes, list[int]] = {}
    for at, partition in enumerate(live.partitions):
        groups.setdefault(stored.canonical(partition), []).append(at)
    rows = (
        (
            _partition_text(schema, stored.values(partition)),
            sum(live.row_counts[i] for i in files),
            sum(live.file_sizes[i] for i in files),
            len(files),
            _moment(max((t for i in files if (t := live.creation_times_ms[i]) is not None), default=None)),
        )
        for partition, files in groups.items()
    )
    return _build(columns, rows)


def _partition_text(schema: TableSchema, values: Sequence[Any]) -> str:
    """``p=2025-01-31``, nothing escaped; null and blank values show as the default partition's name, as in Paimon."""
    types = partition_types(schema)
    default = TableOptions(schema.options).partition_default_name
    parts = []
    for key, kind, value in zip(schema.partition_keys, types, values, strict=True):
        blank = value is None or (isinstance(value, str) and not value.strip())
        parts.append(f"{key}={default if blank else readable_value(value, kind)}")
    return "/".join(parts)


_WHOLE: Mapping[str, Callable[[Table], pa.Table]] = {
    "snapshots": _snapshots,
    "schemas": _schemas,
    "tags": _tags,
    "branches": _branches,
    "options": _options,
    "consumers": _consumers,
}
_BY_SNAPSHOT: Mapping[str, Callable[[Table, Snapshot | None], pa.Table]] = {
    "files": _files,
    "manifests": _manifests,
    "partitions": _partitions,
    "statistics": _statistics,
}
