"""Gathers the input of a publish: the changes of branch and main since the branch point or the last publish."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

from airflow_paimon.core.commit.conditions import KEYS_STAY
from airflow_paimon.core.errors import NotFoundError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import CommitKind, Snapshot
from airflow_paimon.core.publish.bucket_merge_plan import Sides, neutral_kinds, within_reach
from airflow_paimon.core.publish.file_merge_plan import merges_by_file
from airflow_paimon.core.row_tracking.row_ids_plan import (
    PublishedVersion,
    Shift,
    origin,
    parse_published,
    parse_shifts,
)
from airflow_paimon.core.table.history import Difference, difference, really_changed, snapshots_between, touched
from airflow_paimon.core.table.lineage import read_lineage
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.properties import (
    BRANCH_IDENTITY_PROPERTY,
    BRANCH_PROPERTY,
    BRANCH_SNAPSHOT_PROPERTY,
    KEEP_LATER_PROPERTY,
    ROW_IDS_PROPERTY,
    ROW_VERSIONS_PROPERTY,
    TARGET_PROPERTY,
)
from airflow_paimon.core.table.scan import BucketKey
from airflow_paimon.core.table.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class LastPublish:
    """The newest publish of a branch in main's history: main's snapshot, and the published one of the branch.

    ``gone``: the buckets whose rows have other versions on main than that publish gave: undone there, or changed other
    than by compaction; all of the branch, if that was rolled back since (``goes_back``: rows have lower versions).
    """

    main: Snapshot
    branch: Snapshot
    gone: frozenset[BucketKey] = frozenset()
    goes_back: bool = False

    @property
    def versions(self) -> tuple[PublishedVersion, ...]:
        """What versions of the branch became by this publish and the ones before it."""
        earlier = parse_published(self.main.properties.get(ROW_VERSIONS_PROPERTY, ""))
        return (*earlier, PublishedVersion(self.branch.id, self.main.id))

    @property
    def shifts(self) -> tuple[Shift, ...]:
        """What the publish did to the branch's row ids; empty if it says nothing of them."""
        return parse_shifts(self.main.properties.get(ROW_IDS_PROPERTY, ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A consistent reading of both sides: ``head`` of main and ``theirs`` of the branch, compared with their ``base``.

    ``schema``: main's newest. ``last``: the last publish of the branch. ``standing``: the newest one that main's head
    still stands on; None: there is none, or a rollback has taken it back. ``is_known``: whether main's history tells
    so; else a publish, or what became of it, may have expired.
    """

    base: Snapshot
    head: Snapshot
    theirs: Snapshot
    schema: TableSchema
    sides: Sides
    last: LastPublish | None
    standing: LastPublish | None = None
    is_known: bool = True


def gather_sides(
    main: Table,
    branch: Table,
    *,
    base: Snapshot,
    head: Snapshot,
    theirs: Snapshot,
    schema: TableSchema,
    whole: bool,
    marked: int | None = None,
) -> Compared:
    """Compare ``theirs`` of the branch and ``head`` of main with their ``base``.

    ``whole``: the branch's whole state is taken, so all buckets of main matter, not only those in reach.
    ``marked``: what ``published_mark`` said before this publish made its own note.
    """
    compared = partial(Compared, base=base, head=head, theirs=theirs, schema=schema)
    their_diff, our_diff = difference(branch, base, theirs), difference(main, base, head)
    between = snapshots_between(main, base.id, head.id)
    since = _main_since(main, base, head) if between is None else between
    history = snapshots_between(branch, base.id, theirs.id)
    if merges_by_file(schema) and not whole:
        found = _recognised(main, branch, since)
        standing = _standing(since, found or {})
        lost = between is None and _is_lost(branch, base, standing, our_diff, marked)
        newest = (found[s.id] for s in reversed(since) if s.id in found) if found is not None else ()
        last = _with_history(next(iter(newest), None), history)
        sides = Sides(theirs=their_diff, ours=our_diff, theirs_real=their_diff.buckets, ours_real=our_diff.buckets)
        is_known = found is not None and not lost
        return compared(sides=sides, last=last, standing=standing, is_known=is_known)
    last = _with_history(last_publish_of(main, branch, since), history)
    neutral = neutral_kinds(schema)
    taken, untouched, published = _of_last_publish(main, branch, base, head, our_diff, last, neutral)
    if last is not None:
        gone = published | their_diff.buckets if last.goes_back else published - untouched
        last = replace(last, gone=frozenset(gone))
    withdrawn = taken - their_diff.buckets
    candidates = our_diff.buckets if whole else within_reach(our_diff.buckets, their_diff.buckets | withdrawn, schema)
    given_back = _given_back(main, head, published, published - our_diff.buckets, last, neutral)
    real = really_changed(branch, history, their_diff.buckets, neutral)
    sides = Sides(
        theirs=their_diff,
        ours=our_diff,
        theirs_real=real | withdrawn,
        ours_real=(really_changed(main, between, candidates, neutral) - untouched) | given_back,
    )
    return compared(sides=sides, last=last)


def _with_history(last: LastPublish | None, history: Sequence[Snapshot] | None) -> LastPublish | None:
    """Say whether the branch was rolled back since; ``history``: its snapshots, None: some have expired."""
    if last is None:
        return None
    then = last.branch.id
    return replace(
        last, goes_back=history is None or any(TARGET_PROPERTY in s.properties for s in history if s.id > then)
    )


def _of_last_publish(
    main: Table,
    branch: Table,
    base: Snapshot,
    head: Snapshot,
    ours: Difference,
    last: LastPublish | None,
    neutral: Collection[CommitKind],
) -> tuple[set[BucketKey], set[BucketKey], set[BucketKey]]:
    """Return the buckets that main took from the branch and that still differ from the base, those of them that
    only compaction has changed since, and all that the branch had changed when it was published.
    """
    if last is None:
        return set(), set(), set()
    published = difference(branch, base, last.branch)
    candidates = published.buckets & ours.buckets
    same = {b for b in candidates if published.same_in(b, ours)}
    if same == candidates:
        return same, same, published.buckets
    then = difference(main, base, last.main)
    others = {b for b in candidates - same if published.same_in(b, then)}
    moved = really_changed(main, snapshots_between(main, last.main.id, head.id), others, neutral)
    return same | others, same | (others - moved), published.buckets


def _given_back(
    main: Table,
    head: Snapshot,
    published: set[BucketKey],
    buckets: set[BucketKey],
    last: LastPublish | None,
    neutral: Collection[CommitKind],
) -> set[BucketKey]:
    """Of ``published`` buckets that are as at the base again (``buckets``), return those that a commit of main put so:
    a partition that the publish brought was dropped or has expired. The next publish would bring it again.

    After a rollback, which is how a publish is undone, it shall. If main's history has expired, a rollback is taken for
    the cause where nothing of the publish is left.
    """
    if last is None or not buckets:
        return set()
    between = snapshots_between(main, last.main.id, head.id)
    if between is None:
        return buckets if buckets < published else set()
    found: set[BucketKey] = set()
    rest, later = set(buckets), []
    for snapshot in reversed([s for s in between if s.commit_kind not in neutral]):
        if TARGET_PROPERTY not in snapshot.properties:
            later.append(snapshot)
            continue
        found |= _touched_of(main, rest, later)
        rest -= found | _touched_of(main, rest, [snapshot])
        later = []
    return found | _touched_of(main, rest, later)


def _touched_of(main: Table, buckets: set[BucketKey], commits: Sequence[Snapshot]) -> set[BucketKey]:
    seen = touched(main, commits) if buckets and commits else set()
    return set(buckets) if seen is None else buckets & seen


def keys_stay(branch: Table, base: Snapshot, theirs: Snapshot, sides: Sides) -> bool:
    """Whether each key of the branch is where it is on main: it has only corrections in place, and main no changes."""
    history = snapshots_between(branch, base.id, theirs.id)
    return (
        not sides.ours_real
        and history is not None
        and all(
            s.commit_kind in (CommitKind.COMPACT, CommitKind.ANALYZE) or KEYS_STAY.items() <= s.properties.items()
            for s in history
        )
    )


def _main_since(main: Table, base: Snapshot, head: Snapshot) -> list[Snapshot]:
    """Return the rest of main's history after ``base``: snapshots that still exist, and those that tags hold.

    A publish is among them while its branch exists: the tag that protects the shared files is on it.
    """
    found = {t.snapshot.id: t.snapshot for t in main.tags_once() if base.id < t.snapshot.id <= head.id}
    there = [number for number in main.snapshot_ids() if base.id < number <= head.id]
    try:
        found |= {s.id: s for s in main.snapshots(there)}
    except NotFoundError:  # expired meanwhile
        found |= {s.id: s for number in there if (s := main.find_snapshot(number)) is not None}
    return [found[number] for number in sorted(found)]


def last_publish_of(main: Table, branch: Table, since: Sequence[Snapshot]) -> LastPublish | None:
    """Find the newest publish of this branch by the properties of main's snapshots since the base.

    None also when the branch's snapshot is gone, or another engine has rolled main back after the publish.
    """
    newest = next((s for s in reversed(since) if _is_publish_of(branch, s)), None)
    return None if newest is None else _publish_of(main, branch, newest)


def _standing(since: Sequence[Snapshot], published: Mapping[int, LastPublish]) -> LastPublish | None:
    """Return the newest publish that main's newest snapshot still stands on: a rollback to before it, and its undo, go
    back to the publish before it.

    ``since``: main's snapshots after the branch point; ``published``: those that are publishes, by id.
    """
    standing: dict[int, LastPublish | None] = {}
    now: LastPublish | None = None
    for snapshot in since:
        target = snapshot.properties.get(TARGET_PROPERTY, "")
        if snapshot.id in published:
            now = published[snapshot.id]
        elif target.isdigit():
            whole = snapshot.properties.get(KEEP_LATER_PROPERTY) != "true"
            if whole or (now is not None and now.main.id == int(target) + 1):
                now = standing.get(max((i for i in standing if i <= int(target)), default=-1))
        standing[snapshot.id] = now
    return now


def _recognised(main: Table, branch: Table, since: Sequence[Snapshot]) -> dict[int, LastPublish] | None:
    """Find the publishes of states that the branch has come from: its own, also under an earlier name, and those of the
    branches that it was made from, before that. By the id of main's snapshot.

    None: the branch shares files with another publish, and what that brought can't be told: the published snapshot is
    gone, or the parent went on before it was published.
    """
    parents, record = dict[str, int](), read_lineage(main, branch.branch_name)
    made = _millis(record.created_at) if record is not None else None
    while record is not None and record.from_branch not in {MAIN, branch.branch_name, *parents}:
        parents[record.from_branch] = record.snapshot_id or 0
        record = read_lineage(main, record.from_branch)
    found: dict[int, LastPublish] = {}
    for snapshot in (s for s in since if BRANCH_IDENTITY_PROPERTY in s.properties):
        said = snapshot.properties
        name, identity = said.get(BRANCH_PROPERTY, ""), said[BRANCH_IDENTITY_PROPERTY]
        text = said.get(BRANCH_SNAPSHOT_PROPERTY, "")
        number = int(text) if text.isdigit() else 0
        own = branch.find_snapshot(number)
        if own is not None and own.identity == identity:
            found[snapshot.id] = LastPublish(main=snapshot, branch=own)
        elif name == branch.branch_name and own is None:
            if made is None or snapshot.time_millis >= made:
                return None  # else it was an earlier branch of this name
        elif name in parents:
            then = main.branch(name).find_snapshot(number)
            if then is None or then.identity != identity or number > parents[name]:
                return None
            found[snapshot.id] = LastPublish(main=snapshot, branch=then)
    return found


def _millis(text: str) -> int | None:
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        return None


def _is_lost(branch: Table, base: Snapshot, standing: LastPublish | None, ours: Difference, marked: int | None) -> bool:
    """Whether it can't be told, without main's history, what main still has of the branch: it was published since, or
    main has none of the published files. A rollback has taken them away then, or main has merged them into others.
    """
    if marked is not None and (standing is None or standing.branch.id < marked):
        return True
    if standing is None:
        return False
    published = difference(branch, base, standing.branch)
    added, removed = ({i for group in side.values() for i in group} for side in (published.added, published.removed))
    here = {origin(i) for group in ours.added.values() for i in group}
    return not (added & here or removed & {i for group in ours.removed.values() for i in group})


def _is_publish_of(branch: Table, snapshot: Snapshot) -> bool:
    said = snapshot.properties
    return said.get(BRANCH_PROPERTY) == branch.branch_name and BRANCH_IDENTITY_PROPERTY in said


def _publish_of(main: Table, branch: Table, snapshot: Snapshot) -> LastPublish | None:
    """Return None if the branch's snapshot is gone, or another engine has replaced main's."""
    number = snapshot.properties.get(BRANCH_SNAPSHOT_PROPERTY, "")
    then = branch.find_snapshot(int(number)) if number.isdigit() else None
    now = main.find_snapshot(snapshot.id)
    identity = snapshot.properties[BRANCH_IDENTITY_PROPERTY]
    if then is None or then.identity != identity or (now is not None and now.identity != snapshot.identity):
        return None
    return LastPublish(main=snapshot, branch=then)
