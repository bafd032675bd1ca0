"""Gathers the input of a publish: the changes of branch and main since the branch point or the last publish."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from airflow_paimon.core.branches.publish_draft import ROW_IDS_PROPERTY, ROW_VERSIONS_PROPERTY
from airflow_paimon.core.branches.publish_plan import Sides, neutral_kinds, within_reach
from airflow_paimon.core.branches.retention_tags import (
    BRANCH_IDENTITY_PROPERTY,
    BRANCH_PROPERTY,
    BRANCH_SNAPSHOT_PROPERTY,
    TARGET_PROPERTY,
)
from airflow_paimon.core.commit.since import KEYS_STAY
from airflow_paimon.core.errors import NotFoundError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import CommitKind, Snapshot
from airflow_paimon.core.row_tracking.row_ids_plan import PublishedVersion, Shift, parse_published, parse_shifts
from airflow_paimon.core.table.history import Difference, difference, really_changed, snapshots_between, touched
from airflow_paimon.core.table.scan import BucketKey
from airflow_paimon.core.table.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class LastPublish:
    """The newest publish of a branch in main's history: main's snapshot, and the published one of the branch.

    ``gone``: the buckets whose rows have other versions on main than that publish gave: undone there, or changed other
    than by compaction; all of the branch, if that was rolled back since (rows go back to lower versions).
    """

    main: Snapshot
    branch: Snapshot
    gone: frozenset[BucketKey] = frozenset()

    @property
    def versions(self) -> tuple[PublishedVersion, ...]:
        """What versions of the branch became by this publish and the ones before it."""
        earlier = parse_published(self.main.properties.get(ROW_VERSIONS_PROPERTY, ""))
        return (*earlier, PublishedVersion(self.branch.id, self.main.id))

    @property
    def shifts(self) -> tuple[Shift, ...]:
        """What the publish did to the branch's row ids; empty if it says nothing of them."""
        return parse_shifts(self.main.properties.get(ROW_IDS_PROPERTY, ""))


def gather_sides(
    main: Table, branch: Table, *, base: Snapshot, head: Snapshot, theirs: Snapshot, schema: TableSchema, whole: bool
) -> tuple[Sides, LastPublish | None]:
    """Compare ``theirs`` of the branch and ``head`` of main with their ``base``.

    ``whole``: the branch's whole state is taken, so all buckets of main matter, not only those in reach.
    """
    their_diff, our_diff = difference(branch, base, theirs), difference(main, base, head)
    between = snapshots_between(main, base.id, head.id)
    last = last_publish_of(main, branch, _main_since(main, base, head) if between is None else between)
    neutral = neutral_kinds(schema)
    taken, untouched, published = _of_last_publish(main, branch, base, head, our_diff, last, neutral)
    history = snapshots_between(branch, base.id, theirs.id)
    if last is not None:
        since = last.branch.id
        goes_back = history is None or any(TARGET_PROPERTY in s.properties for s in history if s.id > since)
        last = replace(last, gone=frozenset(published | their_diff.buckets if goes_back else published - untouched))
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
    return sides, last


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
    found = {t.snapshot.id: t.snapshot for t in main.tags() if base.id < t.snapshot.id <= head.id}
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
    for snapshot in reversed(since):
        identity = snapshot.properties.get(BRANCH_IDENTITY_PROPERTY)
        if snapshot.properties.get(BRANCH_PROPERTY) != branch.branch_name or identity is None:
            continue
        number = snapshot.properties.get(BRANCH_SNAPSHOT_PROPERTY, "")
        then = branch.find_snapshot(int(number)) if number.isdigit() else None
        now = main.find_snapshot(snapshot.id)
        if then is None or then.identity != identity or (now is not None and now.identity != snapshot.identity):
            return None
        return LastPublish(main=snapshot, branch=then)
    return None
