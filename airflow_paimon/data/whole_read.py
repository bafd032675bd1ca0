"""Reads of so many files that tasks plan them: no process keeps more than a part of the files.

Some tasks sort the entries of manifests, and the deletion vectors, into groups: by bucket where rows of several files
are merged, by row ids where files hold columns of the same rows, else by file. Others plan and read a group each, as a
read of few files is planned. Each branch of a table that is read together with another one is a read of its own.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from itertools import islice
from types import MappingProxyType
from typing import Any, NamedTuple
from zlib import crc32

import pyarrow.compute as pc

from airflow_paimon.core.check.live_states import live_states_for_read
from airflow_paimon.core.errors import PaimonError
from airflow_paimon.core.format.manifest import (
    DeletionVectorRange,
    FileKind,
    IndexEntry,
    ManifestEntry,
    ManifestFile,
)
from airflow_paimon.core.parallel.workers import WORTH_IT
from airflow_paimon.core.table.features import check_index
from airflow_paimon.core.table.name_digests import ANY_NAME
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partitions import BucketSelection, Selection, StoredPartitions
from airflow_paimon.core.table.predicate import Predicate
from airflow_paimon.core.table.read_once import reading_once
from airflow_paimon.core.table.scan import (
    ScanPlan,
    all_manifests,
    each_columns,
    each_entries,
    live_of_entries,
    read_index,
    splits_of,
    without_statistics,
)
from airflow_paimon.core.table.table import Table
from airflow_paimon.data.layers import (
    Layer,
    PinnedLayers,
    files_for,
    first_state,
    layer_states,
    partition_key,
    plan_pinned,
    plan_states,
    shown_in,
    top_level_only,
)
from airflow_paimon.data.row_id_groups import RowIdDivisions, divide_row_ids
from airflow_paimon.data.scan import TableRead, plan_read

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MANY_ENTRIES = WORTH_IT
"""Entries of manifests, additions and deletions, above which tasks plan a read."""
_AT_ONCE = 50_000
"""Entries that are sorted at a time."""
_SAMPLE = 1000
"""Files from whose sizes those of the others are estimated."""
_CHUNKS = 1 << 20
"""More than a manifest is cut into."""


class Listed(NamedTuple):
    """A manifest and its place among those of a snapshot, which is the order of their entries; None: the index
    manifest.
    """

    place: int
    manifest: ManifestFile | None


class Sorted(NamedTuple):
    """Some entries of one group. Of two parts of a group, that with the smaller ``place`` comes first. ``data``: see
    ``packed``; 25 to 40 bytes for each entry without statistics. ``files`` and ``size``: how many files it adds and
    their bytes, without those that it takes away. ``schema_ids``: of all of these.
    """

    group: int
    place: int
    data: bytes
    files: int = 0
    size: int = 0
    schema_ids: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRead:
    """What a group of files is planned with. Picklable. ``state``: the snapshot and the columns, without files.
    ``top_level``: see ``layers.plan_table_read``. ``kinds``: the columns of ``$audit_log`` to give instead; None: it is
    another read. ``layered``: the table is read together with another branch.
    """

    state: ScanPlan
    columns: tuple[str, ...]
    where: pc.Expression | None
    predicate: Predicate | None
    time_travel: bool
    top_level: bool = False
    kinds: tuple[str, ...] | None = None
    layered: bool = False

    @property
    def has_filter(self) -> bool:
        """Whether files may be left out by their statistics."""
        return self.where is not None or self.predicate is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeRead:
    """A read that tasks plan: they ``sort_out`` what is listed, then ``plan_group`` each group.

    ``read``: the common parameters, without the files' schemas. ``files``: how many are live. ``rows``: about how many
    they have; None: unknown. ``row_ids``: where files of the same rows may be divided. ``hidden``: partitions that the
    first branch has, by ``layers.partition_key``. ``second``: the read of the other branch.
    """

    of: GroupRead
    read: TableRead
    listed: tuple[Listed, ...]
    files: int
    rows: int | None = None
    row_ids: RowIdDivisions | None = None
    hidden: frozenset[tuple[Any, ...]] = frozenset()
    second: WholeRead | None = None

    @property
    def branches(self) -> tuple[WholeRead, ...]:
        """The reads of all branches, the first of which has the table's columns."""
        return (self,) if self.second is None else (self, self.second)

    def changed(self, **of: Any) -> WholeRead:
        """Replace fields of what the groups of all branches are planned with."""
        second = None if self.second is None else self.second.changed(**of)
        return replace(self, of=replace(self.of, **of), second=second)


def plan_or_whole(
    table: Table,
    *,
    version: int | str | None = None,
    timestamp: int | str | None = None,
    columns: Sequence[str] | None = None,
    where: pc.Expression | None = None,
    predicate: Predicate | None = None,
    more_than: int | None = None,
) -> list[Layer] | WholeRead:
    """Plan a read as ``layers.plan_table_read`` does, which also says what is raised, or leave that to tasks where
    there are ``more_than`` so many entries (None: ``MANY_ENTRIES``).
    """
    with reading_once():
        states = layer_states(first_state(table, version, timestamp), version, timestamp)
        travels = version is not None or timestamp is not None
        whole = _whole_read(states, travels, columns, where, predicate, more_than)
        if whole is not None:
            return whole
        return plan_states(states, travels=travels, columns=columns, where=where, predicate=predicate)


def plan_pinned_or_whole(
    pinned: PinnedLayers,
    *,
    columns: Sequence[str] | None = None,
    where: pc.Expression | None = None,
    predicate: Predicate | None = None,
    more_than: int | None = None,
) -> list[Layer] | WholeRead:
    """Plan a read of a pinned state, as ``plan_or_whole``."""
    with reading_once():
        whole = whole_of_pinned(pinned, columns=columns, where=where, predicate=predicate, more_than=more_than)
        return plan_pinned(pinned, columns=columns, where=where, predicate=predicate) if whole is None else whole


def whole_of_pinned(
    pinned: PinnedLayers,
    *,
    columns: Sequence[str] | None = None,
    where: pc.Expression | None = None,
    predicate: Predicate | None = None,
    more_than: int | None = None,
) -> WholeRead | None:
    """Return the read that ``plan_pinned_or_whole`` leaves to tasks; None: it plans it."""
    if pinned.whole is not None:
        return None
    return _whole_read(pinned.states, pinned.travels, columns, where, predicate, more_than)


class _Branch(NamedTuple):
    """The manifests of a branch, ``every`` one and those that may have selected entries."""

    state: ScanPlan
    every: list[ManifestFile]
    manifests: list[ManifestFile]
    selection: Selection | None

    @property
    def entries(self) -> int:
        """How many entries the manifests have that may have selected ones."""
        return sum(map(entries_of, self.manifests))

    @property
    def selected(self) -> int:
        """How many are selected, at least."""
        some = self.selection
        return sum(entries_of(m) for m in self.manifests if some is None or _is_within(m, some))


def _whole_read(
    states: Sequence[ScanPlan],
    travels: bool,
    columns: Sequence[str] | None,
    where: pc.Expression | None,
    predicate: Predicate | None,
    more_than: int | None,
) -> WholeRead | None:
    """Return the read of very many files of a state; None where those that the filter selects have no ``more_than`` so
    many entries, and where it selects buckets.
    """
    more_than = MANY_ENTRIES if more_than is None else more_than
    layered = len(states) > 1
    select = partial(files_for, by_bucket=not layered, where=where, predicate=predicate)
    branches = [_branch(state, select(state.schema)) for state in states]
    if any(isinstance(branch.selection, BucketSelection) for branch in branches):
        return None  # a part of each partition, by an index of blocks where there is one
    if sum(b.entries for b in branches) <= more_than or sum(b.selected for b in branches) <= more_than:
        return None
    of = partial(GroupRead, where=where, predicate=predicate, time_travel=travels, layered=layered)
    planned = []
    for branch in branches:
        bare = replace(branch.state, splits=(), index_entries=())
        read, _ = plan_read(
            bare, columns=columns, where=where, predicate=predicate, time_travel=travels, layered=layered
        )
        planned.append(_whole_branch(branch, of(state=bare, columns=read.columns), read))
    first, *others = planned
    return replace(first, second=replace(others[0], hidden=_partitions_in(states[0])) if others else None)


def _branch(state: ScanPlan, selection: Selection | None) -> _Branch:
    every = [] if state.snapshot is None else all_manifests(state.table, state.snapshot)
    return _Branch(state, every, [m for m in every if selection is None or selection.may_be_in(m)], selection)


def _whole_branch(branch: _Branch, of: GroupRead, read: TableRead) -> WholeRead:
    state, manifests = branch.state, branch.manifests
    files = _live_in(manifests)
    rows = None if state.snapshot is None else state.snapshot.total_record_count
    return WholeRead(
        of=of,
        read=read,
        listed=(Listed(0, None), *(Listed(number, m) for number, m in enumerate(manifests, start=1))),
        files=files,
        rows=None if rows is None else rows * files // max(_live_in(branch.every), 1),
        row_ids=_row_ids(state, manifests) if TableOptions(state.schema.options).data_evolution else None,
    )


def _row_ids(state: ScanPlan, manifests: Sequence[ManifestFile]) -> RowIdDivisions:
    ranges = (one for entry in read_index(state.table, state.snapshot) for one in entry.deletion_vector_ranges or ())
    marked = {one.data_file for one in ranges if one is not None}
    return divide_row_ids((columns for _, columns in each_columns(state.table, manifests)), marked)


def _partitions_in(state: ScanPlan) -> frozenset[tuple[Any, ...]]:
    """Return the partitions with a live file, by ``partition_key``."""
    if state.snapshot is None:
        return frozenset()
    stored = {partition for partition, _ in live_states_for_read(state.table).live_buckets(state.table, state.snapshot)}
    key, values = partition_key(state.schema), StoredPartitions(state.schema).values
    return frozenset(key(values(partition)) for partition in stored)


def _live_in(manifests: Sequence[ManifestFile]) -> int:
    return sum(m.num_added_files - m.num_deleted_files for m in manifests)


def bytes_of(whole: WholeRead) -> int:
    """Estimate how large the files of a read are together: as many bytes for each row as at the beginning of the
    largest manifest, which is read. Files differ in size from partition to partition more than their rows do.

    Raises:
        FormatError: that manifest is missing or corrupt.
    """
    size, rows, files = first_files(whole.of.state.table, [m for _, m in whole.listed if m is not None])
    if whole.rows is None or not rows:
        return size * whole.files // max(files, 1)
    return size * whole.rows // rows


def first_files(table: Table, manifests: Sequence[ManifestFile]) -> tuple[int, int, int]:
    """Return the bytes, the rows and the number of some files at the beginning of the largest manifest.

    Raises:
        FormatError: that manifest is missing or corrupt.
    """
    largest = sorted(manifests, key=entries_of)[-1:]
    for _, entries in islice(each_entries(table, largest), 1):
        files = [entry.file for entry in entries[:_SAMPLE]]
        return sum(f.file_size for f in files), sum(f.row_count for f in files), len(files)
    return 0, 0, 0


def entries_of(manifest: ManifestFile) -> int:
    """Return how many entries a manifest has."""
    return manifest.num_added_files + manifest.num_deleted_files


def _is_within(manifest: ManifestFile, selection: Selection) -> bool:
    """Whether a manifest seems to have entries of selected partitions only: its bounds are selected."""
    try:
        return selection(manifest.partition_stats.min_values) and selection(manifest.partition_stats.max_values)
    except PaimonError:
        return False  # other columns, or values that we don't know


def sort_out(whole: WholeRead, listed: Sequence[Listed], groups: int) -> Iterator[Sorted]:
    """Read some of the manifests of one branch and divide their entries by group, without statistics that the read
    doesn't need.

    Raises:
        FormatError: a manifest is missing or corrupt. UnsupportedFeatureError: an index file that this engine does not
            read.
    """
    return divided(
        whole.of.state,
        listed,
        _grouping(whole, groups),
        statistics=whole.of.has_filter,
        marked={} if whole.row_ids is None else whole.row_ids.marked,
        selection=_shown(whole),
    )


def divided(
    state: ScanPlan,
    listed: Sequence[Listed],
    group_of: GroupOf,
    *,
    statistics: bool,
    marked: Mapping[str, int] = MappingProxyType({}),
    selection: Callable[[bytes], bool] | None = None,
) -> Iterator[Sorted]:
    """Divide the entries of some manifests as ``sort_out`` does, of selected partitions only (None: all). ``marked``:
    see ``RowIdDivisions``.
    """
    slim = _as_it_is if statistics else without_statistics
    places = {one.manifest.file_name: one.place for one in listed if one.manifest is not None}
    for one in listed:
        if one.manifest is None:
            for own, vectors in _divided_index(state, group_of, marked).items():
                yield Sorted(own, one.place * _CHUNKS, packed(([], vectors)))
    groups_of: dict[int, list[ManifestEntry]] = {}
    number, place, chunk = 0, 0, 0
    for manifest, entries in each_entries(state.table, [m for _, m in listed if m is not None]):
        if number >= _AT_ONCE or places[manifest.file_name] != place:
            yield from _parts(groups_of, place * _CHUNKS + chunk)
            chunk = chunk + 1 if places[manifest.file_name] == place else 0
            groups_of, number, place = {}, 0, places[manifest.file_name]
        kept = entries if selection is None else [e for e in entries if selection(e.partition)]
        for entry in kept:
            group = group_of(entry.partition, entry.bucket, entry.file.file_name, entry.file.first_row_id)
            if group is not None:
                groups_of.setdefault(group, []).append(slim(entry))
        number += len(kept)
    yield from _parts(groups_of, place * _CHUNKS + chunk)


def _shown(whole: WholeRead) -> Callable[[bytes], bool] | None:
    """Tell which stored partitions are read; None: all."""
    of = whole.of
    selection = files_for(of.state.schema, by_bucket=not of.layered, where=of.where, predicate=of.predicate)
    return shown_in(of.state, whole.hidden, selection)


def _parts(groups: dict[int, list[ManifestEntry]], place: int) -> Iterator[Sorted]:
    for group, entries in groups.items():
        signs = [1 if e.kind == FileKind.ADD else -1 for e in entries]
        size = sum(sign * e.file.file_size for sign, e in zip(signs, entries, strict=True))
        schema_ids = frozenset(e.file.schema_id for e in entries)
        yield Sorted(group, place, packed((entries, [])), sum(signs), size, schema_ids)


def packed(value: object) -> bytes:
    """Return a value in few bytes, for ``unpacked``."""
    return zstd.compress(pickle.dumps(value, pickle.HIGHEST_PROTOCOL), 1)


def unpacked(data: bytes) -> Any:
    """Return what was ``packed``."""
    return pickle.loads(zstd.decompress(data))


def _divided_index(state: ScanPlan, group_of: GroupOf, marked: Mapping[str, int]) -> dict[int, list[IndexEntry]]:
    """Divide the deletion vectors of a snapshot by the groups of their files."""
    entries = read_index(state.table, state.snapshot)
    check_index(entries, table=state.table.label)
    found: dict[int, list[IndexEntry]] = {}
    for entry in entries:
        ranges: dict[int, list[DeletionVectorRange]] = {}
        for one in entry.deletion_vector_ranges or ():
            if one is not None:
                group = group_of(entry.partition, entry.bucket, one.data_file, marked.get(one.data_file))
                if group is not None:
                    ranges.setdefault(group, []).append(one)
        for group, some in ranges.items():
            found.setdefault(group, []).append(entry._replace(deletion_vector_ranges=tuple(some)))
    return found


GroupOf = Callable[[bytes, int, str, int | None], int | None]
"""Gives the group of a file, by its partition as it is stored, its bucket, its name and its first row id; None: it is
not read.
"""


def _grouping(whole: WholeRead, groups: int) -> GroupOf:
    schema, row_ids = whole.of.state.schema, whole.row_ids

    def by_file(partition: bytes, bucket: int, name: str, first_row_id: int | None) -> int:
        if row_ids is None or first_row_id is None:
            return crc32(name.encode(errors=ANY_NAME)) % groups
        return row_ids.group(first_row_id, groups)

    if not schema.primary_keys:
        return by_file
    # Files that a plan takes for one bucket (``scan.splits_of``): without partition columns whatever bytes are stored.
    canonical = StoredPartitions(schema).canonical if schema.partition_keys else lambda _: b""
    known: dict[tuple[bytes, int], int] = {}

    def by_bucket(partition: bytes, bucket: int, name: str, first_row_id: int | None) -> int:
        found = known.get((partition, bucket))
        if found is None:
            digest = blake2b(canonical(partition) + bucket.to_bytes(4, "big", signed=True), digest_size=8).digest()
            found = known[partition, bucket] = int.from_bytes(digest, "big") % groups
        return found

    return by_bucket


def _as_it_is(entry: ManifestEntry) -> ManifestEntry:
    return entry


def plan_group(of: GroupRead, parts: Iterable[bytes]) -> Layer:
    """Plan the read of a group, by the data of all its parts in the order of their places.

    Raises:
        FormatError: a file is added twice or deleted without having been added. UnsupportedFeatureError: a file that
            this engine does not read.
    """
    entries: list[ManifestEntry] = []
    index: list[IndexEntry] = []
    state = of.state
    assert state.snapshot is not None
    for part in parts:
        some, vectors = unpacked(part)
        entries += some
        index += vectors
    live = live_of_entries(state.table, state.snapshot, entries).values()
    plan = replace(state, splits=splits_of(state.schema, live), index_entries=tuple(index))
    plan = top_level_only(plan) if of.top_level else plan
    read, splits = plan_read(
        plan,
        columns=of.columns,
        where=of.where,
        predicate=of.predicate,
        time_travel=of.time_travel,
        layered=of.layered,
    )
    return (read if of.kinds is None else replace(read, columns=of.kinds, kinds=True)), splits
