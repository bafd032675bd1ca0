"""The earlier publishes of a branch, found in main's history by the properties of its snapshots.

A publish may have been of some partitions only, so what was published last, and whether main still stands on it, is
known for each partition (docs/contributing/publishing.md, The base moves).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial

from airflow_paimon.core.errors import FormatError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.publish.audit_properties import recorded_between
from airflow_paimon.core.publish.hold import Hold
from airflow_paimon.core.requests.requests import FastForward, ReplaceMain
from airflow_paimon.core.row_tracking.row_ids_plan import PublishedVersion, Shift, origin, parse_published, parse_shifts
from airflow_paimon.core.table.branch_record import read_branch_record, snapshot_key
from airflow_paimon.core.table.history import difference, existing_snapshots
from airflow_paimon.core.table.live_files import Difference
from airflow_paimon.core.table.partition_scope import WHOLE, PartitionScope, choose_partitions, recorded_scope
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.properties import (
    BASE_SNAPSHOT_PROPERTY,
    BRANCH_IDENTITY_PROPERTY,
    BRANCH_PROPERTY,
    BRANCH_SNAPSHOT_PROPERTY,
    CAME_FROM_PROPERTY,
    FAMILY_PROPERTY,
    KEEP_LATER_PROPERTY,
    ONLY_PARTITIONS_PROPERTY,
    OPERATION_PROPERTY,
    ROW_IDS_PROPERTY,
    ROW_VERSIONS_PROPERTY,
    TARGET_PROPERTY,
    UNDO_TAG_PROPERTY,
)
from airflow_paimon.core.table.table import Table

WHOLE_STATE = (FastForward.operation, ReplaceMain.operation)
"""The publishes that make main what the branch is."""


class Whose(Enum):
    """Whose state a publish brought to main, as seen from one branch. ``UNKNOWN``: its own, but which one is gone."""

    OWN = auto()
    RELATIVE = auto()
    OTHER = auto()
    UNKNOWN = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchPublish:
    """A publish: main's snapshot, the state of the branch that main got by it, and the partitions that main took.

    ``branch``: main's snapshot itself where that state isn't known. ``versions``: what versions of the branch became by
    this publish and the ones before it. ``of_parent``: ``branch`` is a snapshot of the branch that this one was made
    from.
    """

    main: Snapshot
    branch: Snapshot
    whose: Whose
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishesOnMain:
    """The publishes that main's head stands on: those of the branch itself, the oldest first, and those of relatives.

    ``unknown``: the partitions of own ones of which can't be told what they brought; ``unmatched``: those of relatives
    of which can't be told what they have in common with the branch; ``of_other_branches``: of all other branches.
    ``undone``: ids of main's snapshots that were publishes of the branch, on which its head does not stand; ``undos``:
    what took back one of all these publishes, and which. ``last``: the newest own one, whether main stands on it or
    not; None also if that is an unknown one.
    """

    publishes: tuple[BranchPublish, ...] = ()
    relatives: tuple[BranchPublish, ...] = ()
    undone: frozenset[int] = frozenset()
    undos: tuple[tuple[Snapshot, int], ...] = ()
    unknown: tuple[PartitionScope, ...] = ()
    unmatched: tuple[BranchPublish, ...] = ()
    of_other_branches: tuple[Snapshot, ...] = ()
    last: BranchPublish | None = None

    def of(self, partition: bytes) -> BranchPublish | None:
        """Return the publish by which main got the newest state of the branch in a partition."""
        return next((p for p in self._newest_first if p.scope.holds(partition)), None)

    def each(self) -> Iterator[tuple[BranchPublish, Callable[[bytes], bool]]]:
        """Return each publish that is the newest one somewhere, and a test of the partitions where it is."""
        for publish in self._newest_first:
            yield publish, partial(self._counts, publish)
            if publish.scope.is_whole:
                return

    @property
    def _newest_first(self) -> list[BranchPublish]:
        """The branch's own states are later than those of its parents."""
        return sorted(
            (*self.publishes, *self.relatives), key=lambda p: (not p.of_parent, p.branch.id, p.main.id), reverse=True
        )

    def _counts(self, publish: BranchPublish, partition: bytes) -> bool:
        return self.of(partition) is publish

    @property
    def versions(self) -> tuple[PublishedVersion, ...]:
        """What versions of the branch are on main."""
        newest = self.publishes[-1].versions if self.publishes else ()
        return tuple(v for v in newest if v.target not in self.undone)

    @property
    def partitions(self) -> list[str]:
        """The partitions that were published alone, for people."""
        return sorted({text for publish, _ in self.each() for text in publish.scope.texts})


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownHistory:
    """What is known of main's snapshots in a range: those that exist, those that tags hold, and the publishes and
    rollbacks of which a copy is kept, by id.

    ``copies``: ids of which nothing but a copy is left, so another engine may have rolled them back; ``damaged``: the
    errors of copies that can't be read, of snapshots of which nothing else is left.
    """

    snapshots: Sequence[Snapshot]
    copies: frozenset[int] = frozenset()
    damaged: Mapping[int, FormatError] = field(default_factory=dict)

    def without_contradicted(
        self, brought: Callable[[int], set[str]], kept: Callable[[int], set[str]]
    ) -> Sequence[Snapshot]:
        """Leave out the rollbacks that main's files contradict: it has some that only a publish brought that they
        undid, so another engine has rolled the rollback back.

        ``brought``: the names of the files that a publish of this id brought; ``kept``: of those that main still has.
        """
        undone = {i: by for i, by in undone_snapshots(self.snapshots).items() if by in self.copies}
        if not undone:
            return self.snapshots
        files = {s.id: brought(s.id) for s in self.snapshots if UNDO_TAG_PROPERTY in s.properties}
        back = {by for i, by in undone.items() if kept(i).difference(*(files[j] for j in files if j != i))}
        return [s for s in self.snapshots if s.id not in back]


def known_history(main: Table, base: Snapshot, head: Snapshot) -> KnownHistory:
    """Find out what is known of main's history after ``base`` up to ``head``, of which snapshots may have expired."""
    copies, damaged = recorded_between(main, base.id, head.id)
    found = {t.snapshot.id: t.snapshot for t in main.cached_tags() if base.id < t.snapshot.id <= head.id}
    there = [number for number in main.snapshot_ids() if base.id < number <= head.id]
    found |= {s.id: s for s in existing_snapshots(main, there)}
    only_copies = {s.id: s for s in copies if s.id not in found}
    every = found | only_copies
    return KnownHistory(
        snapshots=[every[number] for number in sorted(every)],
        copies=frozenset(only_copies),
        damaged={number: error for number, error in damaged.items() if number not in every},
    )


def match_publishes(
    main: Table, branch: Table, since: Sequence[Snapshot], schema: TableSchema
) -> dict[int, BranchPublish]:
    """Find the publishes among main's snapshots after the base, by id, and whose they are, as seen from a branch.

    Its own are those of its states, also under an earlier name or by a branch that was made from it: but not where it
    had taken the state back by then. Unknown are those whose snapshot of the branch is gone. Those of an earlier branch
    of its name are left out.
    """
    published = [s for s in since if BRANCH_IDENTITY_PROPERTY in s.properties]
    record = read_branch_record(main, branch.branch_name) if published else None
    made = None if record is None else record.created_ms
    parents, above = set[str](), record
    while above is not None and above.from_branch not in {MAIN, branch.branch_name, *parents}:
        parents.add(above.from_branch)
        above = read_branch_record(main, above.from_branch)

    found: dict[int, BranchPublish] = {}
    for snapshot in published:
        said = snapshot.properties
        own = branch.find_snapshot(state_number(said.get(BRANCH_SNAPSHOT_PROPERTY, "")))
        is_named = said.get(BRANCH_PROPERTY) == branch.branch_name
        if own is not None and own.identity == said[BRANCH_IDENTITY_PROPERTY]:
            back = [] if is_named else rollbacks_before(branch, own)
            whose = Whose.RELATIVE if any(s.time_millis <= snapshot.time_millis for s in back) else Whose.OWN
        elif is_named and (made is None or snapshot.time_millis >= made):
            whose = Whose.UNKNOWN
        elif (
            said.get(BRANCH_PROPERTY) in parents
            or (record is not None and said.get(FAMILY_PROPERTY) == record.family_name)
            or any(own_state(branch, text) is not None for text in snapshot.values(CAME_FROM_PROPERTY, list))
        ):
            whose = Whose.RELATIVE
        elif is_named:
            continue
        else:
            whose = Whose.OTHER
        scope, then, versions = publish_scope(schema, snapshot, main.label), snapshot, tuple[PublishedVersion, ...]()
        if whose is Whose.OWN and own is not None:
            then, text = own, said.get(ROW_VERSIONS_PROPERTY, "")
            earlier = parse_published(text, lambda texts: choose_partitions(schema, texts, main.label))
            versions = (*earlier, PublishedVersion(own.id, snapshot.id, None if scope.is_whole else scope))
        found[snapshot.id] = BranchPublish(main=snapshot, branch=then, whose=whose, scope=scope, versions=versions)
    return found


def own_state(branch: Table, text: str) -> Snapshot | None:
    """Return the branch's own snapshot that ``snapshot_key`` has written, None if it is another branch's, or gone."""
    found = branch.find_snapshot(state_number(text))
    return found if found is not None and snapshot_key(found) == text else None


def state_number(text: str) -> int:
    """Return the number of the snapshot that ``snapshot_key`` has written; 0, which none has: it is damaged."""
    number = text.partition(":")[0]
    return int(number) if number.isdigit() else 0


def rollbacks_before(branch: Table, then: Snapshot) -> list[Snapshot]:
    """Return the rollbacks of a branch to before a snapshot of its own."""
    later = existing_snapshots(branch, [number for number in branch.snapshot_ids() if number > then.id])
    targets = ((s, s.number(TARGET_PROPERTY)) for s in later)
    return [s for s, target in targets if target is not None and target < then.id]


def publishes_on_main(since: Sequence[Snapshot], matched: Mapping[int, BranchPublish]) -> PublishesOnMain:
    """Find the publishes that main's newest snapshot still stands on. ``since``: main's snapshots after the branch
    point. ``matched``: the publishes among them, see ``match_publishes``.
    """
    taken_back, by_id = undone_snapshots(since), {s.id: s for s in since}
    standing = [matched[s.id] for s in since if s.id in matched and s.id not in taken_back]
    own: list[BranchPublish] = []
    unknown: list[PartitionScope] = []
    for publish in reversed(standing):
        if publish.whose is Whose.UNKNOWN:
            unknown.append(publish.scope)
        elif publish.whose is Whose.OWN and not any(map(publish.scope.meets, unknown)):
            own.append(publish)
    ids = {p.main.id for p in own}
    of_branch = [p for p in matched.values() if p.whose in (Whose.OWN, Whose.UNKNOWN)]
    last = max(of_branch, key=lambda p: p.main.id, default=None)
    return PublishesOnMain(
        publishes=tuple(reversed(own)),
        relatives=tuple(p for p in standing if p.whose is Whose.RELATIVE),
        undone=frozenset(p.main.id for p in of_branch if p.whose is Whose.OWN and p.main.id not in ids),
        undos=tuple(
            (by_id[undo], i) for i, undo in taken_back.items() if i in matched and matched[i].whose is not Whose.OTHER
        ),
        of_other_branches=tuple(p.main for p in standing if p.whose is Whose.OTHER),
        unknown=tuple(unknown),
        last=None if last is None or last.whose is Whose.UNKNOWN else last,
    )


def undone_snapshots(snapshots: Sequence[Snapshot]) -> dict[int, int]:
    """Map the id of each publish or rollback that was undone to that of the snapshot that did it.

    A rollback undoes the snapshot right after its target, and without ``keep_later`` all that follow. A publish that
    takes another branch's whole state undoes what main got since that branch's base. What was undone undoes nothing.
    """
    ours = [s for s in snapshots if UNDO_TAG_PROPERTY in s.properties]
    found: dict[int, int] = {}
    for snapshot in reversed(ours):
        later = (s for s in ours if s.id > snapshot.id and s.id not in found)
        undo = next((s.id for s in later if takes_back(s, snapshot)), None)
        if undo is not None:
            found[snapshot.id] = undo
    return found


def takes_back(later: Snapshot, snapshot: Snapshot) -> bool:
    said = later.properties
    if said.get(OPERATION_PROPERTY) in WHOLE_STATE:
        base = later.number(BASE_SNAPSHOT_PROPERTY)
        return base is not None and base < snapshot.id and not _are_of_one_branch(said, snapshot.properties)
    target = later.number(TARGET_PROPERTY)
    if target is None or target >= snapshot.id:
        return False
    return target == snapshot.id - 1 or said.get(KEEP_LATER_PROPERTY) == "false"


def _are_of_one_branch(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Whether two publishes are of the same branch, not of one that was made later under its name."""
    families = {said[FAMILY_PROPERTY] for said in (one, other) if FAMILY_PROPERTY in said}
    return one.get(BRANCH_PROPERTY) == other.get(BRANCH_PROPERTY) and len(families) < 2


def is_lost(
    branch: Table,
    base: Snapshot,
    published: Difference,
    ours: Difference,
    on_main: PublishesOnMain,
    unfinished: Sequence[Hold],
    scope: PartitionScope,
) -> bool:
    """Whether it can't be told, without main's history, what main still has of these partitions of the branch: a later
    publish may have been committed of which main's history doesn't know any more, or main has none of the published
    files. A rollback has taken them away then, or main has merged them into others.

    ``published``: what the branch had changed since the base when it was published; ``ours``: what main has.
    """
    for hold in unfinished:
        of, then = hold.scope(branch), branch.find_snapshot(hold.snapshot.id)
        known = [p.scope for p in on_main.publishes if p.branch.id >= hold.snapshot.id]
        if hold.snapshot.id <= base.id or not of.meets(scope) or any(k.covers(of) for k in known):
            continue
        if then is None:
            return True
        parts = {b.partition for b in published.buckets | difference(branch, base, then).buckets}
        if any(of.holds(p) and scope.holds(p) and not any(k.holds(p) for k in known) for p in parts):
            return True
    here = {origin(i) for group in ours.added.values() for i in group}
    gone = {i for group in ours.removed.values() for i in group}
    for _, counts in on_main.each():
        part = published.only(counts).only(scope.holds)
        added, removed = ({i for group in side.values() for i in group} for side in (part.added, part.removed))
        if (added or removed) and not (added & here or removed & gone):
            return True
    return False
