"""The difference between two snapshots, and the point where the histories of two branches diverge."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from hashlib import blake2b
from typing import Any, TypeVar

from airflow_paimon.core.errors import FormatError, LostMetadataError, NotFoundError
from airflow_paimon.core.format.manifest import FileId, FileKind, IndexEntry, ManifestEntry, ManifestFile
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import CommitKind, Snapshot
from airflow_paimon.core.store.base import batches, run_parallel
from airflow_paimon.core.table.branch_record import matching_branch_record
from airflow_paimon.core.table.features import is_chain_part
from airflow_paimon.core.table.live_files import BucketKey, Difference, NetChange, net_change
from airflow_paimon.core.table.manifest_entries import each_columns, read_entries, read_index_entries, selected_entries
from airflow_paimon.core.table.manifest_lists import all_manifests, read_delta_lists
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partitions import Selection, StoredPartitions
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.table import Table

MERGED_BYTES = 1 << 20
"""Of manifests with more bytes on both sides, digests are compared first."""
_COMPARED_AT_ONCE = 4
"""How many of the newest snapshots of two branches are read at once where that takes its time."""

T = TypeVar("T")

_TRIES = 4
_PAUSE_S = 0.05
"""As long as Paimon's expiry may take from a snapshot's manifests to the snapshot itself."""


def difference(
    table: Table, before: Snapshot | None, after: Snapshot | None, schema: TableSchema | None = None
) -> Difference:
    """Compare the live files of two snapshots, also of different branches: file names are unique in the table.

    Reads only the manifests that the two don't share. ``schema``: one of the table's, if it is known.
    """
    if before is not None and after is not None and before.identity == after.identity:
        return Difference()
    reads: list[Callable[[], Any]] = [partial(_manifests, table, s) for s in (before, after)]
    old, new, known = run_parallel(table.store, [*reads, table.schema if schema is None else lambda: schema])
    stored = StoredPartitions(known)
    added, removed = (
        {bucket: {e.identifier: e.added() for e in group} for bucket, group in stored.by_bucket(files.values()).items()}
        for files in changed_files(table, old, new)
    )
    return Difference(added, removed, _index_difference(table, before, after, stored))


def changed_files(
    table: Table, old: Sequence[ManifestFile], new: Sequence[ManifestFile], merged_bytes: int = MERGED_BYTES
) -> tuple[dict[FileId, ManifestEntry], dict[FileId, ManifestEntry]]:
    """Compare the live files of two states, given by their manifests: files only in the new one, and only in the old.

    Reads only the manifests that the two don't share, and if those are many, as one side has merged its manifests,
    makes objects only of files in partitions that differ. ``merged_bytes``: of both sides from which on they are many.
    """
    shared = {m.file_name for m in old} & {m.file_name for m in new}
    olds, news = ([m for m in some if m.file_name not in shared] for some in (old, new))
    differing = None
    if min(sum(m.file_size for m in some) for some in (olds, news)) > merged_bytes:
        differing = StoredPartitions(table.schema()).those(_differing_partitions(table, olds, news))
    before, after = _net(table, olds, differing), _net(table, news, differing)
    old_deleted = before.deleted.keys() - before.added.keys()
    new_deleted = after.deleted.keys() - after.added.keys()
    added = {k: e for k, e in after.added.items() if k not in before.added and k not in after.deleted}
    added |= {k: before.deleted[k] for k in old_deleted - new_deleted}
    removed = {k: e for k, e in before.added.items() if k not in after.added and k not in before.deleted}
    removed |= {k: after.deleted[k] for k in new_deleted - old_deleted}
    return added, removed


def _differing_partitions(table: Table, old: Sequence[ManifestFile], new: Sequence[ManifestFile]) -> Iterator[bytes]:
    """Return the partitions, as stored, in which the net changes of two groups of manifests differ.

    A file is live by its additions less its deletions, whatever their order, and manifests that both states share add
    the same to both. So the sums of its digests, of 128 bits each, are the same in both where it is live in both.
    """
    sums: Counter[bytes] = Counter()
    for manifests, sign in ((old, -1), (new, 1)):
        for _, columns in each_columns(table, manifests):
            for kind, key in zip(columns.kinds, columns.identifiers(), strict=True):
                number = int.from_bytes(blake2b(repr(key).encode(), digest_size=16).digest())
                sums[key.partition] += sign * number if kind == FileKind.ADD else -sign * number
    return (partition for partition, total in sums.items() if total)


def files_only_in(
    table: Table, state: Sequence[ManifestFile], other: Sequence[ManifestFile]
) -> dict[FileId, ManifestEntry]:
    """Return the live files of a state that another one has on no level. Reads what ``changed_files`` reads."""
    added, removed = changed_files(table, state, other)
    again = {key.file_name for key in added}
    return {key: entry for key, entry in removed.items() if key.file_name not in again}


def _index_difference(
    table: Table, before: Snapshot | None, after: Snapshot | None, stored: StoredPartitions
) -> dict[BucketKey, frozenset[IndexEntry]]:
    names = [s.index_manifest if s is not None else None for s in (before, after)]
    if names[0] == names[1]:
        return {}
    old, new = (index_of_buckets(table, s, stored) for s in (before, after))
    none: frozenset[IndexEntry] = frozenset()
    return {b: new.get(b, none) for b in old.keys() | new.keys() if old.get(b, none) != new.get(b, none)}


def index_of_buckets(
    table: Table, snapshot: Snapshot | None, stored: StoredPartitions
) -> dict[BucketKey, frozenset[IndexEntry]]:
    """Return a snapshot's index entries by bucket."""
    groups = stored.by_bucket(read_index_entries(table, snapshot))
    return {bucket: frozenset(group) for bucket, group in groups.items()}


def empty_snapshot(schema_id: int) -> Snapshot:
    """Return what a table or branch is before its first snapshot: the number 0, and no files."""
    return Snapshot(
        id=0,
        schema_id=schema_id,
        base_manifest_list="",
        delta_manifest_list="",
        commit_user="",
        commit_identifier=0,
        commit_kind=CommitKind.APPEND,
        time_millis=0,
    )


def _manifests(table: Table, snapshot: Snapshot | None) -> list[ManifestFile]:
    return [] if snapshot is None or snapshot.id == 0 else all_manifests(table, snapshot)


def _net(table: Table, manifests: list[ManifestFile], selection: Selection | None) -> NetChange:
    return net_change(selected_entries(table, manifests, selection), table.label)


def snapshots_between(table: Table, after: int, up_to: int) -> list[Snapshot] | None:
    """Read the snapshots with ``after`` < id <= ``up_to``; None when one of them is gone."""
    try:
        return table.snapshots(list(range(after + 1, up_to + 1)))
    except NotFoundError:
        return None


def find_retained(table: Table, number: int) -> Snapshot | None:
    """Return a snapshot, also one that only a tag retains. None: it is gone, or tags name several of that number."""
    found = table.find_snapshot(number)
    if found is not None:
        return found
    tagged = {t.snapshot.identity: t.snapshot for t in table.cached_tags() if t.snapshot.id == number}
    return next(iter(tagged.values())) if len(tagged) == 1 else None


def retained_snapshot(table: Table, number: int) -> Snapshot:
    """Return what ``find_retained`` finds.

    Raises:
        NotFoundError: it finds none.
    """
    return find_retained(table, number) or table.snapshot(number)


def is_retained(table: Table, snapshot: Snapshot) -> bool:
    """Whether a snapshot still exists, or a tag retains it."""
    there = table.find_snapshot(snapshot.id, snapshot.identity) is not None
    return there or any(t.snapshot.identity == snapshot.identity for t in table.tags())


def existing_snapshots(table: Table, ids: list[int]) -> list[Snapshot]:
    """Read the snapshots of these ids, without those that have expired meanwhile."""
    try:
        return table.snapshots(ids)
    except NotFoundError:
        return [s for i in ids if (s := table.find_snapshot(i)) is not None]


def repeat_beside_expiry(read: Callable[[], T], wrong: Callable[[T], object] = lambda _: None) -> T:
    """Call ``read`` until nothing is missing, or the same twice: what an expiry takes away while it is read is missing
    only once. ``wrong``: what is wrong with what it returns; false: nothing.

    Raises:
        FormatError, NotFoundError: what ``read`` raises.
    """
    before: object = None
    for left in reversed(range(_TRIES)):
        try:
            found = read()
            problem = wrong(found)
            if not (problem and left) or problem == before:
                return found
        except (FormatError, NotFoundError) as error:
            problem = error.message
            if not left or problem == before:
                raise
        before = problem
        time.sleep(_PAUSE_S)
    raise AssertionError  # the last try returns or raises


def snapshot_by_watermark(table: Table, watermark_ms: int) -> Snapshot:
    """Return the newest snapshot whose watermark is at most this (epoch milliseconds).

    Raises:
        NotFoundError: no snapshot has such a watermark; names the earliest there is.
    """
    earliest: int | None = None
    for number in reversed(table.snapshot_ids()):
        snapshot = table.find_snapshot(number)
        if snapshot is None or snapshot.known_watermark is None:
            continue
        if snapshot.known_watermark <= watermark_ms:
            return snapshot
        earliest = snapshot.known_watermark
    found = "none of its snapshots has a watermark" if earliest is None else f"its earliest watermark is {earliest} ms"
    raise NotFoundError(f"{table.label} has no snapshot with a watermark of at most {watermark_ms} ms: {found}")


def changed_buckets(
    table: Table,
    between: Iterable[Snapshot] | None,
    candidates: set[BucketKey],
    neutral: Collection[CommitKind],
) -> set[BucketKey]:
    """Return the candidate buckets that were changed by commits of other kinds than ``neutral``.

    ``between`` None (history expired): all of them, as it can't be determined.
    """
    if between is None or not candidates:
        return set(candidates)
    snapshots = list(between)
    if not any(s.commit_kind in neutral for s in snapshots):
        return set(candidates)
    seen = touched_buckets(table, [s for s in snapshots if s.commit_kind not in neutral])
    return set(candidates) if seen is None else candidates & seen


def touched_buckets(table: Table, commits: Sequence[Snapshot]) -> set[BucketKey] | None:
    """Return the buckets whose files or deletion vectors these commits changed; None if the history has expired."""
    stored, known = StoredPartitions(table.schema()), {s.id: s for s in commits}
    try:
        deltas = read_delta_lists(table, commits)
        seen = {stored.bucket(e) for part in read_entries(table, deltas) for e in part}
        for snapshot in commits:
            previous = known.get(snapshot.id - 1) or table.find_snapshot(snapshot.id - 1)
            if previous is None and snapshot.index_manifest is not None:
                return None
            seen |= _index_difference(table, previous, snapshot, stored).keys()
    except LostMetadataError:
        return None
    return seen


def branch_point(main: Table, branch: Table) -> Snapshot | None:
    """Find the greatest snapshot that both histories share, by identity; tags count as history. None = none.

    A branch of a branch begins with a snapshot that main never had: its branch point is that of its parent. One of a
    chain table's branch is published onto that, so its branch point lies there.
    """
    shared = last_shared_snapshot(main, branch)
    if shared is not None:
        return shared
    record = matching_branch_record(main, branch.branch_name)
    if record is None or record.from_branch in (MAIN, branch.branch_name) or record.snapshot_id is None:
        return None
    parent = main.branch(record.from_branch)
    if _is_chain_part(parent):
        return last_shared_snapshot(parent, branch)
    began = parent.find_snapshot(record.snapshot_id)
    return branch_point(main, parent) if began is not None and began.identity == record.identity else None


def publish_target(main: Table, branch: Table) -> Table:
    """Return the branch onto which one is published: main, or the branch of a chain table that it began with."""
    record = matching_branch_record(main, branch.branch_name)
    parent = main if record is None else main.branch(record.from_branch)
    return parent if _is_chain_part(parent) else main


def _is_chain_part(view: Table) -> bool:
    is_there = view.branch_name != MAIN and view.exists()
    return is_there and is_chain_part(TableOptions(view.schema().options), view.branch_name)


def last_shared_snapshot(main: Table, branch: Table) -> Snapshot | None:
    """Find the greatest snapshot that one branch's history and tags share with another's, by identity."""
    reads: list[Callable[[], Any]] = [partial(_own_and_tagged, branch), main.snapshot_ids]
    theirs, listed = run_parallel(main.store, reads)
    ours_ids = set(listed)
    main_tags = None if theirs.keys() <= ours_ids else _tagged(main)

    def both(snapshot_id: int) -> tuple[Snapshot | None, Snapshot | None]:
        known = theirs[snapshot_id]
        views = [*([branch] if known is None else []), *([main] if snapshot_id in ours_ids else [])]
        found = run_parallel(main.store, [partial(view.find_snapshot, snapshot_id) for view in views])
        return known or found[0], found[-1] if snapshot_id in ours_ids else None

    for some in batches(sorted(theirs, reverse=True), _COMPARED_AT_ONCE if main.store.remote else 1):
        for mine, ours in run_parallel(main.store, [partial(both, snapshot_id) for snapshot_id in some]):
            if mine is None:
                continue
            if ours is None and main_tags is None:  # it has expired since it was listed
                main_tags = _tagged(main)
            candidates = (ours, (main_tags or {}).get(mine.id))
            if any(c is not None and c.identity == mine.identity for c in candidates):
                return mine
    return None


def _tagged(table: Table) -> dict[int, Snapshot]:
    return {t.snapshot.id: t.snapshot for t in table.cached_tags()}


def _own_and_tagged(branch: Table) -> dict[int, Snapshot | None]:
    """Ids of a branch's snapshots (None: not read yet), and the expired snapshots that its tags still hold."""
    known: dict[int, Snapshot | None] = dict.fromkeys(branch.snapshot_ids())
    for tag in branch.cached_tags():
        if tag.snapshot.id not in known:
            known[tag.snapshot.id] = tag.snapshot
    return known
