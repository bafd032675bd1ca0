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
class SchemaLogs:
    """The schema versions of both sides. ``put_schema_ids``: those of main that this try has put. ``were_put``: it, or
    one of this operation that was cut off, may have put some.
    """

    main: Sequence[TableSchema] = ()
    branch: Sequence[TableSchema] = ()
    put_schema_ids: Collection[int] = ()
    were_put: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A consistent reading of both sides: ``head`` of main and ``branch_snapshot``, compared with their ``base``.

    ``schema``: main's newest. ``branch_since_base``, ``main_since_base``: what differs from ``base``, and
    ``branch_commits``, ``main_commits`` the snapshots since then; None: some have expired. ``scope``: the partitions
    that are published; ``sides`` has no others. Where main has got a state of the branch, ``sides`` compares with the
    newest one. ``published``: of a merge by file, what the branch had changed, in each partition, when that was last
    published. ``on_main``: the publishes that main's head still stands on; ``base_of``: of each bucket that is compared
    with a state of the branch, which that is. ``earlier_publishes_known``: whether main's history tells so; else a
    publish, or what became of it, may have expired. ``branch_partitions``: all partitions in which the branch differs
    from the base, or was published; ``unpublished_partitions``: those out of scope in which it has something that main
    lacks. ``logs``: of a planner's comparison only.
    """

    main: Table
    branch: Table
    base: Snapshot
    head: Snapshot
    branch_snapshot: Snapshot
    schema: TableSchema
    branch_since_base: Difference
    main_since_base: Difference
    branch_commits: Sequence[Snapshot] | None
    main_commits: Sequence[Snapshot] | None
    sides: Sides
    scope: PartitionScope = WHOLE
    on_main: PublishesOnMain = field(default_factory=PublishesOnMain)
    published: Difference = field(default_factory=Difference)
    base_of: Mapping[BucketKey, Snapshot] = field(default_factory=dict)
    earlier_publishes_known: bool = True
    branch_partitions: frozenset[bytes] = frozenset()
    unpublished_partitions: frozenset[bytes] = frozenset()
    logs: SchemaLogs = SchemaLogs()

    @property
    def branch_rolled_back(self) -> bool:
        """Whether the branch was rolled back after its last publish, so that rows have lower versions."""
        commits = self.branch_commits
        back = None if commits is None else max((s.id for s in commits if TARGET_PROPERTY in s.properties), default=0)
        return any(back is None or publish.branch.id < back for publish, _ in self.on_main.each())


def gather_sides(
    main: Table,
    branch: Table,
    *,
    base: Snapshot,
    head: Snapshot,
    branch_snapshot: Snapshot,
    schema: TableSchema,
    takes_all: bool,
    unfinished: Sequence[Hold] = (),
    scope: PartitionScope = WHOLE,
) -> Comparison:
    """Compare ``branch_snapshot`` and ``head`` of main with their ``base``.

    ``takes_all``: the branch's whole state is taken, so all buckets of main matter, not only those in reach.
    ``unfinished``: other publishes of the branch, which may have been committed. ``scope``: see ``Comparison``.

    Raises:
        FormatError: an earlier publish says unreadably of which partitions it was; or the copy of one is damaged of
            which nothing else is left.
    """
    reads: list[Callable[[], Any]] = [
        partial(snapshots_between, main, base.id, head.id),
        partial(difference, branch, base, branch_snapshot, schema),
        partial(difference, main, base, head, schema),
        partial(snapshots_between, branch, base.id, branch_snapshot.id),
    ]
    main_commits, their_diff, our_diff, branch_commits = run_parallel(main.store, reads)
    compared = Comparison(
        main=main,
        branch=branch,
        base=base,
        head=head,
        branch_snapshot=branch_snapshot,
        schema=schema,
        branch_since_base=their_diff,
        main_since_base=our_diff,
        branch_commits=branch_commits,
        main_commits=main_commits,
        sides=Sides(theirs=their_diff, ours=our_diff, theirs_changed=their_diff.buckets, ours_changed=our_diff.buckets),
        scope=scope,
    )
    on_main = _find_publishes(compared)
    compared = replace(compared, on_main=on_main)
    by_file = merges_by_file(schema) and not takes_all
    compared = _by_file(compared, unfinished) if by_file else _by_bucket(compared, takes_all)
    return replace(compared, sides=compared.sides.only(scope))


def _find_publishes(compared: Comparison) -> PublishesOnMain:
    """Find the publishes that main stands on."""
    main, branch, base = compared.main, compared.branch, compared.base
    commits = compared.main_commits
    known = known_history(main, base, compared.head) if commits is None else KnownHistory(snapshots=commits)
    for damaged in known.damaged.values():
        raise damaged
    matched = match_publishes(main, branch, known.snapshots, compared.schema)

    def brought(number: int) -> set[str]:
        publish = matched.get(number)
        if publish is None or publish.whose is not Whose.OWN:
            return set()
        return _added_names(difference(branch, base, publish.branch), publish.scope)

    def kept(number: int) -> set[str]:
        return brought(number) & _added_names(compared.main_since_base, WHOLE)

    return match_relatives(main, branch, publishes_on_main(known.without_contradicted(brought, kept), matched))


def _added_names(change: Difference, scope: PartitionScope) -> set[str]:
    """Return the names, as on the branch, of the files that were added in these partitions."""
    groups = (files for b, files in change.added.items() if scope.holds(b.partition))
    return {origin_name(i.file_name) for files in groups for i in files}


def _by_file(compared: Comparison, unfinished: Sequence[Hold]) -> Comparison:
    on_main, scope, theirs = compared.on_main, compared.scope, compared.branch_since_base
    published = published_difference(compared, on_main)
    lost = compared.main_commits is None and is_lost(
        compared.branch, compared.base, published, compared.main_since_base, on_main, unfinished, scope
    )
    unknown = [*on_main.unknown, *(p.scope for p in on_main.unmatched)]
    if others := on_main.of_other_branches:
        added, ours, brought = (_added_names(d, scope) for d in (theirs, compared.main_since_base, published))
        lost = lost or brought_and_removed(compared.main, others, added - ours - brought)
    neutral, left = neutral_kinds(compared.schema), set[BucketKey]()
    if not scope.is_whole:
        real = changed_buckets(compared.branch, compared.branch_commits, theirs.buckets, neutral) | published.buckets
        left = {b for b in real if not (scope.holds(b.partition) or theirs.same_in(b, published))}
    return replace(
        compared,
        earlier_publishes_known=not lost and not any(map(scope.meets, unknown)),
        published=published,
        branch_partitions=_partitions(theirs.buckets | published.buckets),
        unpublished_partitions=_partitions(left),
    )


def _by_bucket(compared: Comparison, takes_all: bool) -> Comparison:
    schema, branch, scope = compared.schema, compared.branch, compared.scope
    parts = [_BucketsOfBase.since(compared, publish, counts) for publish, counts in compared.on_main.each()]
    parts.append(_BucketsOfBase.of_the_rest(compared, {b for part in parts for b in part.buckets}))
    theirs, ours = together(p.theirs for p in parts), together(p.ours for p in parts)
    candidates = ours.buckets if takes_all else sharing_keys(ours.buckets, theirs.buckets, schema)
    neutral, added = neutral_kinds(schema), compared.main_since_base.added
    sides = Sides(
        theirs=theirs,
        ours=ours,
        theirs_changed={b for p in parts for b in changed_buckets(branch, p.history, p.theirs.buckets, neutral)},
        ours_changed={b for part in parts for b in part.changed_by_main(compared.main, candidates, neutral)},
        main_entries_by_origin={origin(i): e for group in added.values() for i, e in group.items()},
    )
    left = (b for b in sides.theirs_changed if not scope.holds(b.partition) and not theirs.same_in(b, ours))
    return replace(
        compared,
        sides=sides,
        base_of={b: part.base for part in parts for b in part.buckets},
        earlier_publishes_known=not compared.on_main.unknown,
        branch_partitions=_partitions(compared.branch_since_base.buckets.union(*(part.buckets for part in parts))),
        unpublished_partitions=_partitions(left),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _BucketsOfBase:
    """Buckets that are compared with one base: a state of the branch that main got, or the branch point.

    ``theirs`` and ``ours``: what differs from that state. ``history`` and ``between``: the snapshots of the branch and
    of main since, None: some have expired. ``taken_exactly``: the buckets in which main had that very state after the
    publish. ``taken_back``: buckets that main has again as at the branch point, while it still has others of the
    publish: that is main's change.
    """

    base: Snapshot
    buckets: set[BucketKey]
    theirs: Difference
    ours: Difference
    history: Sequence[Snapshot] | None
    between: Sequence[Snapshot] | None
    taken_exactly: Collection[BucketKey]
    taken_back: Collection[BucketKey] = ()

    @classmethod
    def since(cls, compared: Comparison, publish: BranchPublish, counts: Callable[[bytes], bool]) -> _BucketsOfBase:
        """Take the buckets that the branch had really changed when main got them: in the others it had the rows of the
        branch point. Not those of which an earlier publish was undone since. Where main's history has expired, a
        rollback may have taken the publish back: only those buckets are taken then in which main still has it.

        ``counts``: in which partitions the publish is the newest one.
        """
        main, branch, base, our_diff = compared.main, compared.branch, compared.base, compared.main_since_base
        published = difference(branch, base, publish.branch).only(counts)
        between = snapshots_between(main, publish.main.id, compared.head.id)
        until, history = (
            None if compared.branch_commits is None
            else [s for s in compared.branch_commits if (s.id > publish.branch.id) == after]
            for after in (False, True)
        )  # fmt: skip
        buckets = changed_buckets(branch, until, published.buckets, neutral_kinds(compared.schema))
        if undos := [undo for undo, number in compared.on_main.undos if number < publish.main.id < undo.id]:
            buckets -= touched_buckets(main, undos) or buckets
        taken_back = set[BucketKey]()
        if between is None:
            as_before = buckets - our_diff.buckets
            taken_back = as_before if as_before < published.buckets else taken_back
            buckets = {b for b in buckets if published.same_in(b, our_diff)}
        index = index_of_buckets(branch, base, StoredPartitions(compared.schema)) if published.index else {}
        theirs, ours = (
            d.within(buckets).since(published.within(buckets), index) for d in (compared.branch_since_base, our_diff)
        )
        taken = buckets
        if ours.buckets:
            then = difference(main, base, publish.main)
            taken = {b for b in buckets if published.same_in(b, then)}
        return cls(base=publish.branch, buckets=buckets, theirs=theirs, ours=ours, history=history, between=between,
                   taken_exactly=taken, taken_back=taken_back)  # fmt: skip

    @classmethod
    def of_the_rest(cls, compared: Comparison, buckets: set[BucketKey]) -> _BucketsOfBase:
        """Take all buckets but these."""
        rest = (compared.branch_since_base.buckets | compared.main_since_base.buckets) - buckets
        theirs, ours = compared.branch_since_base.within(rest), compared.main_since_base.within(rest)
        return cls(base=compared.base, buckets=set(), theirs=theirs, ours=ours, history=compared.branch_commits,
                   between=compared.main_commits, taken_exactly=rest)  # fmt: skip

    def changed_by_main(
        self, main: Table, candidates: Collection[BucketKey], neutral: Collection[CommitKind]
    ) -> set[BucketKey]:
        """Return those of some buckets that main has changed other than by compaction."""
        changed = self.ours.buckets.intersection(candidates)
        taken = changed.intersection(self.taken_exactly)
        return (changed - taken) | changed_buckets(main, self.between, taken, neutral) | set(self.taken_back)


def _partitions(buckets: Iterable[BucketKey]) -> frozenset[bytes]:
    return frozenset(b.partition for b in buckets)


def main_changed_since_unmatched(compared: Comparison, buckets: Collection[BucketKey]) -> bool:
    """Whether main itself changed one of these buckets after a relative's publish of which can't be told what it has in
    common with the branch. What main put back as it had been would count as unchanged.
    """
    for publish in compared.on_main.unmatched:
        held = {b for b in buckets if publish.scope.holds(b.partition)}
        between = snapshots_between(compared.main, publish.main.id, compared.head.id)
        if between is None:
            return bool(held)
        own = [
            s
            for s in between
            if s.commit_kind not in neutral_kinds(compared.schema)
            and s.properties.keys().isdisjoint((BRANCH_IDENTITY_PROPERTY, TARGET_PROPERTY))
        ]
        changed = touched_buckets(compared.main, own) if own else set()
        if held if changed is None else held & changed:
            return True
    return False


def published_difference(compared: Comparison, on_main: PublishesOnMain) -> Difference:
    """Return what the branch had changed, in each partition, when that was last published."""
    branch, base = compared.branch, compared.base
    return together(difference(branch, base, publish.branch).only(counts) for publish, counts in on_main.each())
