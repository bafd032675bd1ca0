"""Which files are live: manifests of a snapshot, merged, and grouped into the splits of a read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, Protocol, TypeVar

from airflow_paimon.core.errors import ConflictError, FormatError, LostMetadataError, NotFoundError
from airflow_paimon.core.format.manifest import (
    EMPTY_STATS,
    DataFile,
    EntryColumns,
    FileId,
    IndexEntry,
    ManifestEntry,
    ManifestFile,
)
from airflow_paimon.core.format.manifest_blocks import EntryFilter
from airflow_paimon.core.format.manifest_io import (
    entry_blocks,
    read_index_manifest,
    read_manifest,
    read_manifest_columns,
    read_manifest_list,
)
from airflow_paimon.core.format.schema import TableSchema, parse_schema
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.plan import HeadIs
from airflow_paimon.core.store.base import read_if_there, side_by_side
from airflow_paimon.core.store.threads import AT_ONCE
from airflow_paimon.core.table.live_files import BucketSplit, live_columns_of, net_change, never_added
from airflow_paimon.core.table.merge_options import options_in_older_names
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partitions import Selection, StoredPartitions, partition_path, partition_types
from airflow_paimon.core.table.paths import MAIN, bucket_dir, checked_name, manifest_path
from airflow_paimon.core.table.read_once import read_files
from airflow_paimon.core.table.table import Table, resolve_version

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
_STATS, _STATS_COLS = (DataFile._fields.index(name) for name in ("key_stats", "value_stats_cols"))
"""Where the statistics of a file are, those of the key followed by those of the values."""


@dataclass(frozen=True, slots=True)
class ScanPlan:
    """The files of one snapshot. ``table`` is the view whose schemas the files' schema ids refer to.

    ``stored_schema``: the schema of the read as it is stored, if ``schema`` has other options. ``schemas``: those of
    files that are known, by id, see ``with_schemas``.
    """

    table: Table
    snapshot: Snapshot | None
    schema: TableSchema
    splits: tuple[BucketSplit, ...] = ()
    index_entries: tuple[IndexEntry, ...] = ()
    stored_schema: TableSchema | None = None
    schemas: Mapping[int, TableSchema] = field(default_factory=dict, compare=False)

    @property
    def precondition(self) -> HeadIs:
        """The precondition of what is planned from it: the branch is as it was read."""
        return HeadIs.of(self.table.branch_name, self.snapshot, self.schema.id)


def read_lists(table: Table, snapshot: Snapshot) -> tuple[list[ManifestFile], list[ManifestFile]]:
    """Read the base and the delta manifest list, at once.

    Raises:
        FormatError: one is missing or corrupt; the message names it and the snapshot.
    """
    base, delta = read_named_lists(table, [base_list(snapshot), delta_list(snapshot)])
    return base, delta


def read_delta_lists(table: Table, snapshots: Sequence[Snapshot]) -> list[ManifestFile]:
    """Read the delta manifest lists of several snapshots, at once, as one; raises as ``read_lists`` does."""
    return [m for rows in read_each_delta_list(table, snapshots) for m in rows]


def read_each_delta_list(table: Table, snapshots: Sequence[Snapshot]) -> list[list[ManifestFile]]:
    """Read the delta manifest lists of several snapshots, at once; raises as ``read_lists`` does."""
    return read_named_lists(table, list(map(delta_list, snapshots)))


def all_manifests(table: Table, snapshot: Snapshot) -> list[ManifestFile]:
    """Read both lists as one, in order: these manifests determine the live files of the snapshot."""
    base, delta = read_lists(table, snapshot)
    return base + delta


def count_live(table: Table, snapshot: Snapshot | None) -> int:
    """Return how many files are live, from the lists alone: each entry that deletes takes one away that another has
    added.
    """
    manifests = [] if snapshot is None else all_manifests(table, snapshot)
    return sum(m.num_added_files - m.num_deleted_files for m in manifests)


class NamedList(NamedTuple):
    """A manifest list to read: its name, its size if known, and whose it is, for messages."""

    name: str
    size: int | None
    whose: str


def base_list(snapshot: Snapshot, whose: str | None = None) -> NamedList:
    """Name a snapshot's base manifest list. ``whose``: None = the snapshot's."""
    whose = whose or f"snapshot {snapshot.id}"
    return NamedList(snapshot.base_manifest_list, snapshot.base_manifest_list_size, whose)


def delta_list(snapshot: Snapshot, whose: str | None = None) -> NamedList:
    """Name a snapshot's delta manifest list, as ``base_list``."""
    whose = whose or f"snapshot {snapshot.id}"
    return NamedList(snapshot.delta_manifest_list, snapshot.delta_manifest_list_size, whose)


def read_named_lists(table: Table, wanted: Sequence[NamedList]) -> list[list[ManifestFile]]:
    """Read manifest lists by their names, at once; raises as ``read_lists`` does."""
    try:
        blobs = read_files(table.store, [manifest_path(w.name) for w in wanted])
    except NotFoundError:
        lost = next((w for w in wanted if not table.store.exists(manifest_path(w.name))), wanted[0])
        raise _lost(table, f"manifest list {lost.name}", lost.whose) from None
    for one, data in zip(wanted, blobs, strict=True):
        _check_size(table, one.name, len(data), one.size)
    names = [f"{table.label}: {w.name}" for w in wanted]
    return [read_manifest_list(data, name=name) for data, name in zip(blobs, names, strict=True)]


def _check_size(table: Table, name: str, found: int, size: int | None) -> None:
    """Avro itself does not detect a file truncated at the end of a block."""
    if size is not None and found != size:
        raise FormatError(
            f"{table.label}: {name} has {found} bytes instead of {size}: it is truncated or replaced; "
            f"restore it from a backup"
        )


def _lost(table: Table, what: str, whose: str) -> LostMetadataError:
    return LostMetadataError(
        f"{table.label}: {what} of {whose} is missing: the snapshot was expired, its branch was deleted, or another "
        f"engine deleted a file that is still referenced; run check_table"
    )


def read_entries(
    table: Table, manifests: Iterable[ManifestFile], selection: Selection | None = None
) -> list[list[ManifestEntry]]:
    """Read manifests, one list of entries each, in order: those of the selected partitions (None: all)."""
    return [found for _, found in _each(table, manifests, selection, read_manifest)]


def each_entries(
    table: Table, manifests: Iterable[ManifestFile], selection: Selection | None = None
) -> Iterator[tuple[ManifestFile, list[ManifestEntry]]]:
    """Read manifests as ``read_entries`` does: the entries of one block are in memory at a time."""
    for manifest, blocks in _each(table, manifests, selection, entry_blocks):
        for entries in blocks:
            yield manifest, entries


def each_columns(
    table: Table, manifests: Iterable[ManifestFile], selection: Selection | None = None
) -> Iterator[tuple[ManifestFile, EntryColumns]]:
    """Read some fields of manifests one after the other, in order; three times as fast as ``each_entries``."""
    return _each(table, manifests, selection, read_manifest_columns)


def read_columns(table: Table, manifests: Iterable[ManifestFile]) -> list[EntryColumns]:
    """Read some fields of manifests, in order."""
    return [found for _, found in each_columns(table, manifests)]


class _Decode(Protocol[T_co]):
    def __call__(self, data: bytes, *, name: str | None, only: EntryFilter | None) -> T_co: ...


def _each(
    table: Table, manifests: Iterable[ManifestFile], selection: Selection | None, decode: _Decode[T]
) -> Iterator[tuple[ManifestFile, T]]:
    for some in _batches(manifests):
        for manifest, data in zip(some, _read_manifests(table, some), strict=True):
            yield manifest, decode(data, name=f"{table.label}: {manifest.file_name}", only=selection)


_AT_ONCE_BYTES = 32 << 20


def _batches(manifests: Iterable[ManifestFile]) -> Iterator[list[ManifestFile]]:
    """Divide manifests into batches that are read at once: small ones side by side, few large ones."""
    some: list[ManifestFile] = []
    size = 0
    for manifest in manifests:
        if some and (len(some) == AT_ONCE or size + manifest.file_size > _AT_ONCE_BYTES):
            yield some
            some, size = [], 0
        some.append(manifest)
        size += manifest.file_size
    if some:
        yield some


def _read_manifests(table: Table, manifests: Sequence[ManifestFile]) -> list[bytes]:
    names = [m.file_name for m in manifests]
    try:
        blobs = read_files(table.store, [manifest_path(n) for n in names])
    except NotFoundError:
        missing = next((n for n in names if not table.store.exists(manifest_path(n))), "one")
        raise _lost(table, f"manifest {missing}", "a live snapshot") from None
    for manifest, blob in zip(manifests, blobs, strict=True):
        _check_size(table, manifest.file_name, len(blob), manifest.file_size)
    return blobs


def read_index(table: Table, snapshot: Snapshot | None) -> list[IndexEntry]:
    """Read the index manifest of a snapshot: deletion vectors, hash indexes. Empty when it has none."""
    if snapshot is None or snapshot.index_manifest is None:
        return []
    name = snapshot.index_manifest
    try:
        [data] = read_files(table.store, [manifest_path(name)])
    except NotFoundError:
        raise _lost(table, f"index manifest {name}", f"snapshot {snapshot.id}") from None
    return read_index_manifest(data, name=f"{table.label}: {name}")


def live_entries(
    table: Table, snapshot: Snapshot | None, selection: Selection | None = None, *, statistics: bool = True
) -> dict[FileId, ManifestEntry]:
    """Return the live files of a snapshot, of the selected partitions only (None: all).

    Manifests whose partition statistics exclude the selected partitions are not read. Without ``statistics`` those of
    columns may be left out, which are half of what a file takes in memory.

    Raises:
        FormatError: a manifest is missing or corrupt, a file is added twice or deleted without having been added.
    """
    if snapshot is None:
        return {}
    manifests = all_manifests(table, snapshot)
    entries = selected_entries(table, manifests, selection)
    return live_of_entries(table, snapshot, entries if statistics else map(without_statistics, entries))


def without_statistics(entry: ManifestEntry) -> ManifestEntry:
    """Return an entry as far as a read without a filter needs it."""
    f = entry.file  # not by _replace, which takes twice as long
    slim = (*f[:_STATS], EMPTY_STATS, EMPTY_STATS, *f[_STATS + 2 : _STATS_COLS], None, *f[_STATS_COLS + 1 :])
    return ManifestEntry(
        entry.kind, entry.partition, entry.bucket, entry.total_buckets, DataFile._make(slim), entry.unknown
    )


def live_of_entries(table: Table, snapshot: Snapshot, entries: Iterable[ManifestEntry]) -> dict[FileId, ManifestEntry]:
    """Merge all entries of some files, in order; raises as ``live_entries`` does."""
    where = f"{table.label}: snapshot {snapshot.id}"
    change = net_change(entries, where)
    if change.deleted:
        raise never_added(where, next(iter(change.deleted.values())).file.file_name)
    return change.added


def live_columns(table: Table, snapshot: Snapshot | None, selection: Selection | None = None) -> EntryColumns:
    """Return the live files of a snapshot, some fields of them only; several times as fast as ``live_entries``, and
    otherwise as that.
    """
    manifests = all_manifests(table, snapshot) if snapshot else []
    wanted = [m for m in manifests if selection is None or selection.may_be_in(m)]
    parts = [found for _, found in each_columns(table, wanted, selection)]
    fields = zip(*parts, strict=True) if parts else ((),) * len(EntryColumns._fields)
    columns = EntryColumns._make(list(chain.from_iterable(f)) for f in fields)
    return live_columns_of(columns, f"{table.label}: snapshot {snapshot.id}" if snapshot is not None else table.label)


def selected_entries(
    table: Table, manifests: Iterable[ManifestFile], selection: Selection | None
) -> Iterator[ManifestEntry]:
    """Read the entries of the selected partitions (None: all), in order, from those manifests that can hold any."""
    wanted = [m for m in manifests if selection is None or selection.may_be_in(m)]
    return (e for _, some in each_entries(table, wanted, selection) for e in some)


def plan_scan(table: Table, *, selection: Selection | None = None) -> ScanPlan:
    """Plan a read of the newest snapshot, of the selected partitions only (None: all).

    Partitions with equal values are merged into one, even if their stored bytes differ (nulls before Paimon 1.1).
    """
    return plan_state(choose_state(table), selection)


def choose_state(table: Table, version: int | str | None = None, timestamp: int | str | None = None) -> ScanPlan:
    """Choose the snapshot of a read and its columns; no file is planned.

    Time travel reads with that snapshot's columns, otherwise with the latest. The options are the latest ones in any
    case, as in Paimon: they say how versions of a key are merged. Columns that they name are found by their field ids.
    """
    view, snapshot = resolve_version(table, version, timestamp)
    travels = version is not None or timestamp is not None
    schema = view.schema()
    if travels and snapshot is not None and snapshot.schema_id != schema.id:
        stored = view.schema(snapshot.schema_id)
        travelled = replace(stored, options=options_in_older_names(schema, stored))
        return ScanPlan(view, snapshot, travelled, stored_schema=stored)
    return ScanPlan(view, snapshot, schema)


def plan_state(state: ScanPlan, selection: Selection | None = None, *, statistics: bool = True) -> ScanPlan:
    """Plan the files of a chosen state, of the selected partitions only (None: all). ``statistics``: see
    ``live_entries``.
    """
    plan = plan_snapshot(state.table, state.snapshot, state.schema, selection, statistics=statistics)
    return replace(plan, stored_schema=state.stored_schema, schemas=state.schemas)


def with_schemas(plan: ScanPlan, ids: Iterable[int] | None = None) -> ScanPlan:
    """Read the schemas of these ids, or of the plan's files, that are not known yet: a branch that is made anew before
    rows are read gives the same ids to others. One that is missing may be that of files which are gone.

    Raises:
        ConflictError: the branch was deleted, or made anew, after its columns were read.
    """
    view, stored = plan.table, plan.stored_schema or plan.schema
    known = {**plan.schemas, stored.id: stored}
    if ids is None:
        ids = {f.schema_id for split in plan.splits for f in split.files}
    missing = sorted({*ids} - known.keys())
    paths = [view.paths.schema(i) for i in missing]
    found = side_by_side(view.store, [partial(read_if_there, view.store, path) for path in paths])
    read = ((i, data) for i, data in zip(missing, found, strict=True) if data is not None)
    known |= {i: parse_schema(data, f"{view.label}: schema-{i}") for i, data in read}
    if missing and view.branch_name != MAIN:
        _require_same_branch(view, stored)
    return replace(plan, schemas=known)


def _require_same_branch(view: Table, stored: TableSchema) -> None:
    """Look at the newest schema of a read once more: if it is the same, so are those before it."""
    data = read_if_there(view.store, view.paths.schema(stored.id))
    now = None if data is None else parse_schema(data, f"{view.label}: schema-{stored.id}")
    if now is None or (now.fields, now.time_millis) != (stored.fields, stored.time_millis):
        raise ConflictError(f"{view.label} was deleted or recreated while its files were planned; read it again")


def with_schemas_of_branch(plan: ScanPlan) -> ScanPlan:
    """Read all schemas of a branch, for reads of files that are planned later. Those of main stay what they are."""
    return plan if plan.table.branch_name == MAIN else with_schemas(plan, plan.table.schema_ids())


def plan_snapshot(
    table: Table,
    snapshot: Snapshot | None,
    schema: TableSchema,
    selection: Selection | None = None,
    *,
    statistics: bool = True,
) -> ScanPlan:
    """Plan a read of exactly this snapshot with this schema. ``statistics``: see ``live_entries``."""
    if snapshot is None:
        return ScanPlan(table, None, schema)
    live = live_entries(table, snapshot, selection, statistics=statistics).values()
    return ScanPlan(table, snapshot, schema, splits_of(schema, live), tuple(read_index(table, snapshot)))


def splits_of(schema: TableSchema, live: Iterable[ManifestEntry]) -> tuple[BucketSplit, ...]:
    """Group live files by bucket; partitions with equal values are one, see ``plan_scan``."""
    stored = StoredPartitions(schema)
    groups_of: dict[bytes, dict[int, list[ManifestEntry]]] = {}
    by_form: dict[bytes, dict[int, list[ManifestEntry]]] = {}
    for entry in live:
        partition = entry.partition
        groups = groups_of.get(partition)
        if groups is None:
            groups = groups_of[partition] = by_form.setdefault(stored.canonical(partition), {})
        groups.setdefault(entry.bucket, []).append(entry)
    return tuple(
        BucketSplit(g[0].partition, stored.values(g[0].partition), bucket, g[0].total_buckets, tuple(e.file for e in g))
        for groups in by_form.values()
        for bucket, g in groups.items()
    )


def bucket_folder(schema: TableSchema, values: Sequence[Any], bucket: int) -> str:
    """Folder of a bucket's files, relative to the table root."""
    options = TableOptions(schema.options)
    parts = [options.data_path_directory] if options.data_path_directory else []
    if schema.partition_keys:
        types = partition_types(schema)
        default, legacy = options.partition_default_name, options.legacy_partition_name
        parts.append(partition_path(values, schema.partition_keys, types, default, legacy))
    return "/".join([*parts, bucket_dir(bucket)])


def legacy_schema(schema: TableSchema) -> TableSchema | None:
    """Return the schema as seen by an engine without ``partition.legacy-name`` (0.9), which names folders differently.

    None where that makes no difference, or where such a folder name is unpredictable (BINARY).
    """
    binary = any(t.root in ("BINARY", "VARBINARY", "BYTES") for t in partition_types(schema))
    if TableOptions(schema.options).legacy_partition_name or not schema.partition_keys or binary:
        return None
    return replace(schema, options={**schema.options, "partition.legacy-name": "true"})


def data_file_path(schema: TableSchema, values: Sequence[Any], bucket: int, file: DataFile) -> str:
    """Path of a data file, relative to the table root; an absolute URI for an external file."""
    return file.external_path or f"{bucket_folder(schema, values, bucket)}/{checked_name(file.file_name)}"
