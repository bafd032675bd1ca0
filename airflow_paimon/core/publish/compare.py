"""Gathers the input of a publish: the changes of branch and main since the branch point or the last publish."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import CommitKind, Snapshot
from airflow_paimon.core.publish.bucket_merge_plan import Sides, neutral_kinds, sharing_keys
from airflow_paimon.core.publish.earlier_publishes import (
    BranchPublish,
    KnownHistory,
    PublishesOnMain,
    Whose,
    is_lost,
    known_history,
    match_publishes,
    publishes_on_main,
)
from airflow_paimon.core.publish.file_merge_plan import merges_by_file
from airflow_paimon.core.publish.hold import Hold
from airflow_paimon.core.publish.related_publishes import brought_and_removed, match_relatives
from airflow_paimon.core.row_tracking.row_ids_plan import origin, origin_name
from airflow_paimon.core.store.base import run_parallel
from airflow_paimon.core.table.history import (
    changed_buckets,
    difference,
    index_of_buckets,
    snapshots_between,
    touched_buckets,
)
from airflow_paimon.core.table.live_files import BucketKey, Difference, together
from airflow_paimon.core.table.partition_scope import WHOLE, PartitionScope
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.properties import BRANCH_IDENTITY_PROPERTY, TARGET_PROPERTY
from airflow_paimon.core.table.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A consistent reading of both sides: ``head`` of main and ``branch_snapshot``, compared with their ``base``.

    ``schema``: main's newest. ``scope``: the partitions that are published; ``sides`` has no others. Where main has got
    a state of the branch, ``sides`` compares with the newest one; ``theirs_since_base`` and ``ours_since_base`` with
    ``base``. ``on_main``: the publishes that main's
    head still stands on; ``base_publish``: of each bucket that is compared with a state of the branch, by which of them
    main got that. ``earlier_publishes_known``: whether main's history tells so; else a publish, or what became of it,
    may have expired. ``branch_rolled_back``: the branch was rolled back after its last publish, so that rows have lower
    versions. ``branch_partitions``: all partitions in which the branch differs from the base, or was published;
    ``unpublished_partitions``: those out of scope in which it has something that main lacks.
    """

    base: Snapshot
    head: Snapshot
    branch_snapshot: Snapshot
    schema: TableSchema
    sides: Sides
    theirs_since_base: Difference
    ours_since_base: Difference
    scope: PartitionScope = WHOLE
    on_main: PublishesOnMain = field(default_factory=PublishesOnMain)
    base_publish: Mapping[BucketKey, BranchPublish] = field(default_factory=dict)
    earlier_publishes_known: bool = True
    branch_rolled_back: bool = False
    branch_partitions: frozenset[bytes] = frozenset()
    unpublished_partitions: frozenset[bytes] = frozenset()


def gather_sides(
    main: Table,
    branch: Table,
    *,
    base: Snapshot,
    head: Snapshot,
    theirs: Snapshot,
    schema: TableSchema,
    takes_all: bool,
    unfinished: Sequence[Hold] = (),
    scope: PartitionScope = WHOLE,
) -> Comparison:
    """Compare ``theirs`` of the branch and ``head`` of main with their ``base``.

    ``takes_all``: the branch's whole state is taken, so all buckets of main matter, not only those in reach.
    ``unfinished``: other publishes of the branch, which may have been committed. ``scope``: see ``Comparison``.

    Raises:
        FormatError: an earlier publish says unreadably of which partitions it was; or the copy of one is damaged of
            which nothing else is left.
    """
    reads: list[Callable[[], Any]] = [
        partial(snapshots_between, main, base.id, head.id),
        partial(difference, branch, base, theirs, schema),
        partial(difference, main, base, head, schema),
        partial(snapshots_between, branch, base.id, theirs.id),
    ]
    between, their_diff, our_diff, history = run_parallel(main.store, reads)
    sides = Sides(theirs=their_diff, ours=our_diff, theirs_changed=their_diff.buckets, ours_changed=our_diff.buckets)
    seen = _ReadSides(
        main=main,
        branch=branch,
        between=between,
        since=known_history(main, base, head) if between is None else KnownHistory(snapshots=between),
        history=history,
        neutral=neutral_kinds(schema),
        compared=Comparison(
            base=base,
            head=head,
            branch_snapshot=theirs,
            schema=schema,
            sides=sides,
            theirs_since_base=their_diff,
            ours_since_base=our_diff,
            scope=scope,
        ),
    )
    for damaged in seen.since.damaged.values():
        raise damaged
    on_main = _find_publishes(seen)
    by_file = merges_by_file(schema) and not takes_all
    found = _by_file(seen, on_main, unfinished) if by_file else _by_bucket(seen, on_main, takes_all)
    return replace(
        found, sides=_only(found.sides, scope), on_main=on_main,
        branch_rolled_back=_goes_back(history, on_main),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReadSides:
    """What was read of both sides since their base.

    ``between``: main's snapshots, ``history`` the branch's, None: some have expired. ``since``: what is known of
    main's. ``compared``: with the base alone, as if nothing had been published before.
    """

    main: Table
    branch: Table
    between: Sequence[Snapshot] | None
    since: KnownHistory
    history: Sequence[Snapshot] | None
    neutral: Collection[CommitKind]
    compared: Comparison

    @property
    def base(self) -> Snapshot:
        return self.compared.base

    @property
    def scope(self) -> PartitionScope:
        return self.compared.scope

    @property
    def their_diff(self) -> Difference:
        return self.compared.theirs_since_base

    @property
    def our_diff(self) -> Difference:
        return self.compared.ours_since_base


def _find_publishes(s: _ReadSides) -> PublishesOnMain:
    """Find the publishes that main stands on."""
    matched = match_publishes(s.main, s.branch, s.since.snapshots, s.compared.schema)

    def brought(number: int) -> set[str]:
        publish = matched.get(number)
        if publish is None or publish.whose is not Whose.OWN:
            return set()
        return _added_names(difference(s.branch, s.base, publish.branch), publish.scope)

    since = s.since.without_contradicted(brought, lambda number: brought(number) & _added_names(s.our_diff, WHOLE))
    return match_relatives(s.main, s.branch, publishes_on_main(since, matched))


def _added_names(change: Difference, scope: PartitionScope) -> set[str]:
    """Return the names, as on the branch, of the files that were added in these partitions."""
    groups = (files for b, files in change.added.items() if scope.holds(b.partition))
    return {origin_name(i.file_name) for files in groups for i in files}


def _by_file(s: _ReadSides, on_main: PublishesOnMain, unfinished: Sequence[Hold]) -> Comparison:
    lost = s.between is None and is_lost(s.branch, s.base, s.their_diff, s.our_diff, on_main, unfinished, s.scope)
    unknown = [*on_main.unknown, *(p.scope for p in on_main.unmatched)]
    if others := on_main.of_other_branches:
        published = published_difference(s.branch, s.base, on_main)
        theirs, ours, brought = (_added_names(change, s.scope) for change in (s.their_diff, s.our_diff, published))
        lost = lost or brought_and_removed(s.main, others, theirs - ours - brought)
    changed, left = s.their_diff.buckets, set[BucketKey]()
    if not s.scope.is_whole:
        then = published_difference(s.branch, s.base, on_main)
        real = changed_buckets(s.branch, s.history, changed, s.neutral) | then.buckets
        changed = changed | then.buckets
        left = {b for b in real if not (s.scope.holds(b.partition) or s.their_diff.same_in(b, then))}
    return replace(
        s.compared,
        earlier_publishes_known=not lost and not any(map(s.scope.meets, unknown)),
        branch_partitions=_partitions(changed),
        unpublished_partitions=_partitions(left),
    )


def _by_bucket(s: _ReadSides, on_main: PublishesOnMain, takes_all: bool) -> Comparison:
    schema = s.compared.schema
    parts = [_BucketsOfBase.since(s, on_main, publish, counts) for publish, counts in on_main.each()]
    parts.append(_BucketsOfBase.of_the_rest(s, {b for part in parts for b in part.buckets}))
    theirs, ours = together(p.theirs for p in parts), together(p.ours for p in parts)
    candidates = ours.buckets if takes_all else sharing_keys(ours.buckets, theirs.buckets, schema)
    sides = Sides(
        theirs=theirs,
        ours=ours,
        theirs_changed={b for p in parts for b in changed_buckets(s.branch, p.history, p.theirs.buckets, s.neutral)},
        ours_changed={b for part in parts for b in part.changed_by_main(s, candidates)},
        main_entries_by_origin={origin(i): e for group in s.our_diff.added.values() for i, e in group.items()},
    )
    left = (b for b in sides.theirs_changed if not s.scope.holds(b.partition) and not theirs.same_in(b, ours))
    return replace(
        s.compared,
        sides=sides,
        base_publish={b: part.publish for part in parts if part.publish is not None for b in part.buckets},
        earlier_publishes_known=not on_main.unknown,
        branch_partitions=_partitions(s.their_diff.buckets.union(*(part.buckets for part in parts))),
        unpublished_partitions=_partitions(left),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _BucketsOfBase:
    """Buckets that are compared with one base: the state of the branch that main got by ``publish``; None: the branch
    point.

    ``theirs`` and ``ours``: what differs from that state. ``history`` and ``between``: the snapshots of the branch and
    of main since, None: some have expired. ``taken_exactly``: the buckets in which main had that very state after the
    publish. ``taken_back``: buckets that main has again as at the branch point, while it still has others of the
    publish: that is main's change.
    """

    publish: BranchPublish | None
    buckets: set[BucketKey]
    theirs: Difference
    ours: Difference
    history: Sequence[Snapshot] | None
    between: Sequence[Snapshot] | None
    taken_exactly: Collection[BucketKey] | None = None
    taken_back: Collection[BucketKey] = ()

    @classmethod
    def since(
        cls, s: _ReadSides, on_main: PublishesOnMain, publish: BranchPublish, counts: Callable[[bytes], bool]
    ) -> _BucketsOfBase:
        """Take the buckets that the branch had really changed when main got them: in the others it had the rows of the
        branch point. Not those of which an earlier publish was undone since. Where main's history has expired, a
        rollback may have taken the publish back: only those buckets are taken then in which main still has it.

        ``counts``: in which partitions the publish is the newest one.
        """
        published = difference(s.branch, s.base, publish.branch).only(counts)
        between = snapshots_between(s.main, publish.main.id, s.compared.head.id)
        until, history = (
            None if s.history is None else [x for x in s.history if (x.id > publish.branch.id) == after]
            for after in (False, True)
        )
        buckets = changed_buckets(s.branch, until, published.buckets, s.neutral)
        if undos := [undo for undo, number in on_main.undos if number < publish.main.id < undo.id]:
            buckets -= touched_buckets(s.main, undos) or buckets
        taken_back = set[BucketKey]()
        if between is None:
            as_before = buckets - s.our_diff.buckets
            taken_back = as_before if as_before < published.buckets else taken_back
            buckets = {b for b in buckets if published.same_in(b, s.our_diff)}
        index = index_of_buckets(s.branch, s.base, StoredPartitions(s.compared.schema)) if published.index else {}
        theirs, ours = (d.within(buckets).since(published.within(buckets), index) for d in (s.their_diff, s.our_diff))
        taken = buckets
        if ours.buckets:
            then = difference(s.main, s.base, publish.main)
            taken = {b for b in buckets if published.same_in(b, then)}
        return cls(publish=publish, buckets=buckets, theirs=theirs, ours=ours, history=history, between=between,
                   taken_exactly=taken, taken_back=taken_back)  # fmt: skip

    @classmethod
    def of_the_rest(cls, s: _ReadSides, buckets: set[BucketKey]) -> _BucketsOfBase:
        """Take all buckets but these."""
        rest = (s.their_diff.buckets | s.our_diff.buckets) - buckets
        theirs, ours = s.their_diff.within(rest), s.our_diff.within(rest)
        return cls(publish=None, buckets=set(), theirs=theirs, ours=ours, history=s.history, between=s.between)

    def changed_by_main(self, s: _ReadSides, candidates: Collection[BucketKey]) -> set[BucketKey]:
        """Return those of some buckets that main has changed other than by compaction."""
        changed = self.ours.buckets.intersection(candidates)
        taken = changed if self.taken_exactly is None else changed.intersection(self.taken_exactly)
        return (changed - taken) | changed_buckets(s.main, self.between, taken, s.neutral) | set(self.taken_back)


def _partitions(buckets: Iterable[BucketKey]) -> frozenset[bytes]:
    return frozenset(b.partition for b in buckets)


def _only(sides: Sides, scope: PartitionScope) -> Sides:
    if scope.is_whole:
        return sides
    return Sides(
        theirs=sides.theirs.only(scope.holds),
        ours=sides.ours.only(scope.holds),
        theirs_changed={b for b in sides.theirs_changed if scope.holds(b.partition)},
        ours_changed={b for b in sides.ours_changed if scope.holds(b.partition)},
        main_entries_by_origin=sides.main_entries_by_origin,
    )


def _goes_back(history: Sequence[Snapshot] | None, on_main: PublishesOnMain) -> bool:
    """Whether the branch was rolled back since a publish; ``history``: its snapshots, None: some have expired."""
    back = None if history is None else max((s.id for s in history if TARGET_PROPERTY in s.properties), default=0)
    return any(back is None or publish.branch.id < back for publish, _ in on_main.each())


def main_changed_since_unmatched(main: Table, compared: Comparison, buckets: Collection[BucketKey]) -> bool:
    """Whether main itself changed one of these buckets after a relative's publish of which can't be told what it has in
    common with the branch. What main put back as it had been would count as unchanged.
    """
    for publish in compared.on_main.unmatched:
        held = {b for b in buckets if publish.scope.holds(b.partition)}
        between = snapshots_between(main, publish.main.id, compared.head.id)
        if between is None:
            return bool(held)
        own = [
            s
            for s in between
            if s.commit_kind not in neutral_kinds(compared.schema)
            and s.properties.keys().isdisjoint((BRANCH_IDENTITY_PROPERTY, TARGET_PROPERTY))
        ]
        changed = touched_buckets(main, own) if own else set()
        if held if changed is None else held & changed:
            return True
    return False


def published_difference(branch: Table, base: Snapshot, on_main: PublishesOnMain) -> Difference:
    """Return what the branch had changed, in each partition, when that was last published."""
    return together(difference(branch, base, publish.branch).only(counts) for publish, counts in on_main.each())
