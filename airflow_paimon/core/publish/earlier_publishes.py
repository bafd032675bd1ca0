"""The earlier publishes of a branch, found in main's history by the properties of its snapshots.

A publish may have been of some partitions only, so what was published last, and whether main still stands on it, is
known for each partition (docs/contributing/publishing.md, A branch that is published more than once).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.publish.hold import PublishedMark
from airflow_paimon.core.row_tracking.row_ids_plan import PublishedVersion, Shift, origin, parse_published, parse_shifts
from airflow_paimon.core.table.history import Difference, difference, snapshots_there
from airflow_paimon.core.table.lineage import read_lineage
from airflow_paimon.core.table.partition_scope import WHOLE, PartitionScope, partition_scope, recorded_scope
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.properties import (
    BRANCH_IDENTITY_PROPERTY,
    BRANCH_PROPERTY,
    BRANCH_SNAPSHOT_PROPERTY,
    KEEP_LATER_PROPERTY,
    ONLY_PARTITIONS_PROPERTY,
    ROW_IDS_PROPERTY,
    ROW_VERSIONS_PROPERTY,
    TARGET_PROPERTY,
)
from airflow_paimon.core.table.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchPublish:
    """A publish of a branch: main's snapshot, the published one of the branch, and the partitions that main took.

    ``versions``: what versions of the branch became by this publish and the ones before it. ``of_parent``: ``branch``
    is a snapshot of the branch that this one was made from.
    """

    main: Snapshot
    branch: Snapshot
    scope: PartitionScope = WHOLE
    versions: tuple[PublishedVersion, ...] = ()
    of_parent: bool = False

    @property
    def shifts(self) -> tuple[Shift, ...]:
        """What the publish did to the branch's row ids; empty if it says nothing of them."""
        return parse_shifts(self.main.properties.get(ROW_IDS_PROPERTY, ""))


def publish_scope(schema: TableSchema, snapshot: Snapshot, label: str) -> PartitionScope:
    """Return the partitions that a publish was about.

    Raises:
        FormatError: the snapshot's property is damaged.
    """
    return recorded_scope(schema, snapshot.properties.get(ONLY_PARTITIONS_PROPERTY), label)


def _publish(main: Table, schema: TableSchema, snapshot: Snapshot, then: Snapshot) -> BranchPublish:
    scope = publish_scope(schema, snapshot, main.label)
    earlier = parse_published(
        snapshot.properties.get(ROW_VERSIONS_PROPERTY, ""), lambda texts: partition_scope(schema, texts, main.label)
    )
    versions = (*earlier, PublishedVersion(then.id, snapshot.id, None if scope.is_whole else scope))
    return BranchPublish(main=snapshot, branch=then, scope=scope, versions=versions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The publishes that main's head stands on, the oldest first. For each partition the newest one of it counts.

    ``undone``: ids of main's snapshots that were publishes of the branch, on which its head does not stand.
    """

    publishes: tuple[BranchPublish, ...] = ()
    undone: frozenset[int] = frozenset()

    def of(self, partition: bytes) -> BranchPublish | None:
        """Return the publish that counts for a partition."""
        return next((p for p in reversed(self.publishes) if p.scope.holds(partition)), None)

    def each(self) -> Iterator[tuple[BranchPublish, Callable[[bytes], bool]]]:
        """Return each publish that counts somewhere, the newest first, and a test of the partitions where it does."""
        later: tuple[PartitionScope, ...] = ()
        for publish in reversed(self.publishes):
            yield publish, partial(_counts, publish.scope, later)
            if publish.scope.is_whole:
                return
            later = (*later, publish.scope)

    @property
    def versions(self) -> tuple[PublishedVersion, ...]:
        """What versions of the branch are on main."""
        newest = self.publishes[-1].versions if self.publishes else ()
        return tuple(v for v in newest if v.target not in self.undone)

    @property
    def partitions(self) -> list[str]:
        """The partitions that were published alone, for people."""
        return sorted({text for publish, _ in self.each() for text in publish.scope.texts})


def _counts(scope: PartitionScope, later: Sequence[PartitionScope], partition: bytes) -> bool:
    return scope.holds(partition) and not any(s.holds(partition) for s in later)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recognised:
    """The publishes of a branch, by the id of main's snapshot. ``unknown``: those of which can't be told what they
    brought, with their partitions.
    """

    found: Mapping[int, BranchPublish] = field(default_factory=dict)
    unknown: Mapping[int, PartitionScope] = field(default_factory=dict)

    @property
    def last(self) -> BranchPublish | None:
        """The newest publish, whether main stands on it or not; None also if that is an unknown one."""
        newest = max((*self.found, *self.unknown), default=None)
        return None if newest is None else self.found.get(newest)


def main_since(main: Table, base: Snapshot, head: Snapshot) -> list[Snapshot]:
    """Return the rest of main's history after ``base``: snapshots that still exist, and those that tags hold.

    A publish is among them while its branch exists: the tag that protects the shared files is on it.
    """
    found = {t.snapshot.id: t.snapshot for t in main.tags_once() if base.id < t.snapshot.id <= head.id}
    there = [number for number in main.snapshot_ids() if base.id < number <= head.id]
    found |= {s.id: s for s in snapshots_there(main, there)}
    return [found[number] for number in sorted(found)]


def own_publishes(main: Table, branch: Table, since: Sequence[Snapshot], schema: TableSchema) -> Recognised:
    """Find the publishes of this branch, by its name. ``since``: main's snapshots after the base.

    Unknown are those whose snapshot of the branch is gone, or which another engine has rolled back.
    """
    found: dict[int, BranchPublish] = {}
    unknown: dict[int, PartitionScope] = {}
    for snapshot in since:
        said = snapshot.properties
        if said.get(BRANCH_PROPERTY) != branch.branch_name or BRANCH_IDENTITY_PROPERTY not in said:
            continue
        number = said.get(BRANCH_SNAPSHOT_PROPERTY, "")
        then = branch.find_snapshot(int(number)) if number.isdigit() else None
        now = main.find_snapshot(snapshot.id)
        replaced = now is not None and now.identity != snapshot.identity
        if then is None or then.identity != said[BRANCH_IDENTITY_PROPERTY] or replaced:
            unknown[snapshot.id] = publish_scope(schema, snapshot, main.label)
        else:
            found[snapshot.id] = _publish(main, schema, snapshot, then)
    return Recognised(found=found, unknown=unknown)


def recognise(main: Table, branch: Table, since: Sequence[Snapshot], schema: TableSchema) -> Recognised | None:
    """Find the publishes of states that the branch has come from: its own, also under an earlier name, and those of the
    branches that it was made from, before that.

    None: the branch shares files with another publish, and what that brought can't be told: the published snapshot is
    gone, or the parent went on before it was published. Or another branch published a state that this one had taken
    back before: that is no reason to take it from main as well.
    """
    parents, record = dict[str, int](), read_lineage(main, branch.branch_name)
    made = record.created_ms if record is not None else None
    while record is not None and record.from_branch not in {MAIN, branch.branch_name, *parents}:
        parents[record.from_branch] = record.snapshot_id or 0
        record = read_lineage(main, record.from_branch)
    found: dict[int, BranchPublish] = {}
    for snapshot in (s for s in since if BRANCH_IDENTITY_PROPERTY in s.properties):
        said = snapshot.properties
        name, identity = said.get(BRANCH_PROPERTY, ""), said[BRANCH_IDENTITY_PROPERTY]
        text = said.get(BRANCH_SNAPSHOT_PROPERTY, "")
        number = int(text) if text.isdigit() else 0
        own = branch.find_snapshot(number)
        if own is not None and own.identity == identity:
            back = [] if name == branch.branch_name else rollbacks_before(branch, own)
            if any(s.time_millis <= snapshot.time_millis for s in back):
                return None
            found[snapshot.id] = _publish(main, schema, snapshot, own)
        elif name == branch.branch_name and own is None:
            if made is None or snapshot.time_millis >= made:
                return None  # else it was an earlier branch of this name
        elif name in parents:
            then = main.branch(name).find_snapshot(number)
            if then is None or then.identity != identity or number > parents[name]:
                return None
            found[snapshot.id] = _publish(main, schema, snapshot, then)
    return Recognised(found=found)


def rollbacks_before(branch: Table, then: Snapshot) -> list[Snapshot]:
    """Return the rollbacks of a branch to before a snapshot of its own."""
    later = snapshots_there(branch, [number for number in branch.snapshot_ids() if number > then.id])
    targets = ((s, s.number(TARGET_PROPERTY)) for s in later)
    return [s for s, target in targets if target is not None and target < then.id]


_Stack = tuple[BranchPublish, ...]


def standing_of(since: Sequence[Snapshot], known: Recognised) -> Standing:
    """Find the publishes that main's newest snapshot still stands on: a rollback to before one takes it back, and the
    undo of that rollback brings it again.

    ``since``: main's snapshots after the branch point.
    """
    standing: dict[int, _Stack] = {}
    rollbacks: dict[int, tuple[_Stack, _Stack]] = {}
    now: _Stack = ()
    for snapshot in since:
        before, target = now, snapshot.properties.get(TARGET_PROPERTY, "")
        if snapshot.id in known.found:
            now = (*now, known.found[snapshot.id])
        elif snapshot.id in known.unknown:
            now = tuple(p for p in now if not p.scope.meets(known.unknown[snapshot.id]))
        elif target.isdigit() and snapshot.properties.get(KEEP_LATER_PROPERTY) == "true":
            now = _undone(now, int(target) + 1, rollbacks)
        elif target.isdigit():
            now = standing.get(max((i for i in standing if i <= int(target)), default=-1), ())
        if target.isdigit():
            rollbacks[snapshot.id] = (_without(before, now), _without(now, before))
        standing[snapshot.id] = now
    ids = {p.main.id for p in now}
    return Standing(publishes=now, undone=frozenset(i for i in known.found if i not in ids))


def _undone(now: _Stack, number: int, rollbacks: Mapping[int, tuple[_Stack, _Stack]]) -> _Stack:
    """Return what stands after the undo of one snapshot. In the partitions of a later publish that one counts: what
    main did to published files stands there. In the others what was undone comes again.
    """
    if number in rollbacks:
        removed, added = rollbacks[number]
        return tuple(sorted((*_without(now, added), *_without(removed, now)), key=lambda p: p.main.id))
    return tuple(p for p in now if p.main.id != number)


def _without(some: _Stack, others: _Stack) -> _Stack:
    ids = {p.main.id for p in others}
    return tuple(p for p in some if p.main.id not in ids)


def is_lost(
    branch: Table,
    base: Snapshot,
    theirs: Difference,
    ours: Difference,
    standing: Standing,
    marks: Sequence[PublishedMark],
    scope: PartitionScope,
) -> bool:
    """Whether it can't be told, without main's history, what main still has of these partitions of the branch: they
    were published since, or main has none of the published files. A rollback has taken them away then, or main has
    merged them into others.

    ``theirs`` and ``ours``: what the two changed since the base.
    """
    changed = {b.partition for b in theirs.buckets if scope.holds(b.partition)}
    if any(_is_newer(branch, base, mark, standing, changed, scope) for mark in marks):
        return True
    here = {origin(i) for group in ours.added.values() for i in group}
    gone = {i for group in ours.removed.values() for i in group}
    for publish, counts in standing.each():
        published = difference(branch, base, publish.branch).only(counts).only(scope.holds)
        added, removed = (
            {i for group in side.values() for i in group} for side in (published.added, published.removed)
        )
        if (added or removed) and not (added & here or removed & gone):
            return True
    return False


def _is_newer(
    branch: Table,
    base: Snapshot,
    mark: PublishedMark,
    standing: Standing,
    changed: set[bytes],
    scope: PartitionScope,
) -> bool:
    """Whether a note tells of a publish that main's history doesn't know any more, of some of these partitions."""
    then = branch.find_snapshot(mark.snapshot)
    if then is None:
        known = (p for p in standing.publishes if p.branch.id >= mark.snapshot)
        return mark.scope.meets(scope) and not any(p.scope.covers(mark.scope) for p in known)
    parts = changed | {b.partition for b in difference(branch, base, then).buckets if scope.holds(b.partition)}
    last = (standing.of(p) for p in parts if mark.scope.holds(p))
    return any(p is None or p.branch.id < mark.snapshot for p in last)
