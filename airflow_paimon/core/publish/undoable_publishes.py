"""Past publishes and rollbacks: found by their undo tags, and verified against the files that they should hold."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_paimon.core.errors import FormatError, InvalidInputError, NotFoundError
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.publish.bucket_merge_plan import overlapping_buckets, sharing_keys
from airflow_paimon.core.publish.compare import gather_sides
from airflow_paimon.core.publish.earlier_publishes import WHOLE_STATE, known_history, publish_scope, undone_snapshots
from airflow_paimon.core.publish.file_merge_plan import FileMerge, merges_by_file
from airflow_paimon.core.publish.file_sides import merge_branch_files, undo_files
from airflow_paimon.core.publish.partial_publish import is_partial
from airflow_paimon.core.row_tracking.row_ids_plan import origin
from airflow_paimon.core.table.history import branch_point, difference, find_retained, retained_snapshot
from airflow_paimon.core.table.live_files import BucketKey, Difference
from airflow_paimon.core.table.partition_scope import PartitionScope
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.paths import UNDO_TAG_PREFIX
from airflow_paimon.core.table.properties import (
    BRANCH_IDENTITY_PROPERTY,
    BRANCH_OWNER_PROPERTY,
    BRANCH_PROPERTY,
    BRANCH_SNAPSHOT_PROPERTY,
    MERGED_KEYS_PROPERTY,
    OPERATION_PROPERTY,
    TARGET_PROPERTY,
    UNDO_TAG_PROPERTY,
)
from airflow_paimon.core.table.table import Table

log = logging.getLogger(__name__)

_PREFIX = "airflow-paimon."
_LISTED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoablePublish:
    """A publish or rollback whose undo tag still exists. ``before`` is the head on which it was based.

    ``perhaps_undone``: the error of a damaged record of what may have undone it, if nothing else tells.
    """

    snapshot: Snapshot
    before: Snapshot
    undo_tag: str
    perhaps_undone: str | None = None

    @property
    def operation(self) -> str:
        """``merge_branch``, ``fast_forward`` or ``rollback_to``."""
        return self.snapshot.properties.get(OPERATION_PROPERTY, "")

    @property
    def branch(self) -> str | None:
        """The branch that was published, None for a rollback."""
        return self.snapshot.properties.get(BRANCH_PROPERTY)

    @property
    def branch_owner(self) -> str | None:
        """Whose the branch was when it was published."""
        return self.snapshot.properties.get(BRANCH_OWNER_PROPERTY)

    @property
    def branch_identity(self) -> str | None:
        """The identity of the branch's snapshot that was published, None for a rollback."""
        return self.snapshot.properties.get(BRANCH_IDENTITY_PROPERTY)

    @property
    def is_partial(self) -> bool:
        """Whether only some partitions of the branch were published."""
        return is_partial(self.snapshot)

    @property
    def target(self) -> int | None:
        """The snapshot to which a rollback went back."""
        return self.snapshot.number(TARGET_PROPERTY)


def undoable_publishes(view: Table) -> list[UndoablePublish]:
    """Find the publishes and rollbacks of this branch that can still be undone, oldest first.

    A few small reads for each undo tag; tags of refused publishes are skipped.
    """
    found, view = [], view.with_cached_tags()
    for name in view.tag_names():
        if not name.startswith(UNDO_TAG_PREFIX):
            continue
        before = view.tag(name).snapshot
        snapshot = find_retained(view, before.id + 1)
        if snapshot is not None and snapshot.properties.get(UNDO_TAG_PROPERTY) == name:
            found.append(UndoablePublish(snapshot=snapshot, before=before, undo_tag=name))
    return sorted(found, key=lambda p: p.snapshot.id)


def undone_by(points: Sequence[UndoablePublish]) -> dict[str, UndoablePublish]:
    """Map the undo tag of each publish or rollback that was undone to the rollback that did it.

    ``points``: what ``undoable_publishes`` found. A rollback that was undone in turn undoes nothing.
    """
    by_id = {p.snapshot.id: p for p in points}
    undone = undone_snapshots([p.snapshot for p in points])
    return {p.undo_tag: by_id[undone[p.snapshot.id]] for p in points if p.snapshot.id in undone}


def publishes_still_on_main(view: Table) -> list[UndoablePublish]:
    """Find the publishes of branches that no later rollback has undone, oldest first.

    A rollback counts even when its own undo tag is gone already, and its snapshot has expired. One whose record is
    damaged then is in ``perhaps_undone`` of the publishes before it.
    """
    view = view.with_cached_tags()
    points = undoable_publishes(view)
    undone, damaged = _undone(view, points)
    standing = [p for p in points if p.branch is not None and p.snapshot.id not in undone]
    return [
        replace(p, perhaps_undone=next((e.message for i, e in damaged.items() if i > p.snapshot.id), None))
        for p in standing
    ]


def _undone(view: Table, points: Sequence[UndoablePublish]) -> tuple[dict[int, int], Mapping[int, FormatError]]:
    """Return what ``undone_snapshots`` does, and the damaged records of what may have undone others. The tags of a
    rollback may have gone before those of what it undid.
    """
    head = view.latest_snapshot() if points else None
    if head is None:
        return {}, {}
    history, by_id = known_history(view, points[0].before, head), {p.snapshot.id: p for p in points}
    for error in history.damaged.values():
        log.warning("%s; what it said may have undone a publish", error.message)

    def added(number: int, until: Snapshot | None = None) -> set[str]:
        point = by_id.get(number)
        if point is None:
            return set()
        groups = difference(view, point.before, until or point.snapshot).added.values()
        return {i.file_name for group in groups for i in group}

    standing = history.without_contradicted(added, lambda number: added(number) & added(number, head))
    return undone_snapshots(standing), history.damaged


def is_fully_published(
    main: Table, branch: Table, base: Snapshot | None, head: Snapshot, publishes: Sequence[Snapshot]
) -> bool:
    """Whether these publishes of a branch, on which main still stands, have brought all that it is at ``head``: in each
    partition that it has changed since ``base``, the newest of them has.

    A compaction of the branch since then counts as a change. What main did to the rows since doesn't matter.

    Raises:
        FormatError: a publish says unreadably of which partitions it was.
    """
    brought: list[PartitionScope] = []

    def is_left(partition: bytes) -> bool:
        return not any(scope.holds(partition) for scope in brought)

    for publish in sorted(publishes, key=lambda s: s.id, reverse=True):
        then = branch.find_snapshot(publish.number(BRANCH_SNAPSHOT_PROPERTY) or 0)
        if then is None or then.identity != publish.properties.get(BRANCH_IDENTITY_PROPERTY):
            continue
        scope = publish_scope(main.schema(), publish, main.label)
        changed = {b.partition for b in difference(branch, then, head).buckets}
        if any(scope.holds(p) and is_left(p) for p in changed):
            return False
        if scope.is_whole:
            return True
        brought.append(scope)
    return bool(brought) and not any(is_left(b.partition) for b in difference(branch, base, head).buckets)


def is_undone(view: Table, snapshot_id: int) -> bool | None:
    """Whether a rollback has undone this publish; None = some of the snapshots since then are expired."""
    ids = [i for i in view.snapshot_ids() if i >= snapshot_id]
    if ids != list(range(snapshot_id, snapshot_id + len(ids))) or not ids:
        return None
    return snapshot_id in undone_snapshots(view.snapshots(ids))


def last_publish(main: Table) -> UndoablePublish:
    """Find the publish to undo: the newest one of a branch.

    Raises:
        NotFoundError: there is none with an undo tag. InvalidInputError: it is already undone.
    """
    known = undoable_publishes(main)
    latest = next((p for p in reversed(known) if p.operation != "rollback_to"), None)
    if latest is None:
        raise NotFoundError(
            f"{main.label}: nothing to undo: there is no undo tag ({UNDO_TAG_PREFIX}...) with its publish "
            f"after it. Name a tag to go back to"
        )
    undone = _undone(main, known)[0].get(latest.snapshot.id)
    if undone is not None:
        tag = next((f" (tag {p.undo_tag})" for p in known if p.snapshot.id == undone), "")
        raise InvalidInputError(
            f"{main.label}: the last publish, snapshot {latest.snapshot.id}, was undone already, by snapshot "
            f"{undone}. To go back further, or to undo the undo{tag}, name the tag"
        )
    return latest


def verify_publish(main: Table, *, snapshot_id: int, branch: str, branch_snapshot: int) -> dict[str, Any]:
    """Compare a publish with its branch: every published bucket holds the branch's files, no other bucket changed. Of a
    publish of some partitions, those are compared. Buckets that were merged by key hold files of their own.

    Raises:
        FormatError: main differs from the branch; the message lists the buckets.
        NotFoundError: a required snapshot is gone.
    """
    view = main.branch(branch)
    published, theirs = main.snapshot(snapshot_id), view.snapshot(branch_snapshot)
    base = branch_point(main, view)
    if base is None:
        raise NotFoundError(f"{view.label} shares no snapshot with main any more")
    expected = {
        BRANCH_PROPERTY: branch,
        BRANCH_SNAPSHOT_PROPERTY: str(branch_snapshot),
        BRANCH_IDENTITY_PROPERTY: theirs.identity,
    }
    for key, value in expected.items():
        found = published.properties.get(key)
        if found != value:
            raise FormatError(
                f"{main.label}: snapshot {snapshot_id} has {key}={found!r}, not {value!r}: another engine replaced "
                f"it, or it is not a publish of {branch!r}"
            )
    before, schema = main.snapshot(snapshot_id - 1), main.schema()
    takes_all = published.properties.get(OPERATION_PROPERTY) in WHOLE_STATE
    scope = publish_scope(schema, published, main.label)
    compared = gather_sides(
        main, view, base=base, head=before, branch_snapshot=theirs, schema=schema, takes_all=takes_all, scope=scope
    )
    sides = compared.sides
    if merges_by_file(schema) and not takes_all:
        merge = merge_branch_files(compared, keep_appended=True, revert_compaction=True)
        return _verify_files(main, published, merge)
    wanted = sides.theirs.buckets | sides.ours.buckets if takes_all else sides.theirs_changed
    keyed = overlapping_buckets(sides, schema) if MERGED_KEYS_PROPERTY in published.properties else set()
    return _verify(main, source=theirs, published=published, wanted=wanted, keyed=keyed)


def _verify_files(view: Table, published: Snapshot, merge: FileMerge) -> dict[str, Any]:
    """Check that a publish, or an undo, of a table that is merged by file added and deleted just these files."""
    before = view.snapshot(published.id - 1)
    change = difference(view, before, published)
    have = {origin(i) for side in (change.added, change.removed) for group in side.values() for i in group}
    should = {origin(e.identifier) for c in merge.changes for e in (*c.add, *c.delete)}
    if have != should:
        other = sorted(i.file_name for i in have ^ should)[:_LISTED]
        raise FormatError(
            f"{view.label}: snapshot {published.id} added or deleted other files than the publish: {', '.join(other)}",
            details={"files": other},
        )
    return _report(view, before, published, change)


def verify_rollback(view: Table, *, snapshot_id: int, target: Snapshot, keep_later: bool) -> dict[str, Any]:
    """Compare a rollback with its target: the restored buckets hold the target's files, but for those that were merged
    by key, and no other bucket changed.

    Raises:
        FormatError: the branch differs from the target; the message lists the buckets.
        NotFoundError: a required snapshot is gone.
    """
    published, schema = view.snapshot(snapshot_id), view.schema()
    if keep_later and merges_by_file(schema):
        publish, before = retained_snapshot(view, target.id + 1), view.snapshot(snapshot_id - 1)
        merge = undo_files(view, publish=publish, target=target, head=before, schema=schema, revert_compaction=True)
        return _verify_files(view, published, merge)
    since = view.snapshot(snapshot_id - 1)
    if keep_later:
        since = retained_snapshot(view, target.id + 1)
    wanted, keyed = difference(view, target, since).buckets, set[BucketKey]()
    if MERGED_KEYS_PROPERTY in published.properties:
        later = difference(view, since, view.snapshot(snapshot_id - 1)).buckets
        keyed = sharing_keys(later | wanted, later & sharing_keys(later, wanted, schema), schema)
    return _verify(view, source=target, published=published, wanted=wanted, keyed=keyed)


def _verify(
    view: Table, *, source: Snapshot, published: Snapshot, wanted: set[BucketKey], keyed: set[BucketKey]
) -> dict[str, Any]:
    """Check that ``published`` holds the files of ``source`` in the ``wanted`` buckets, but for those that were merged
    by key, and is unchanged elsewhere.
    """
    before = view.snapshot(published.id - 1)
    change = difference(view, before, published)
    name = StoredPartitions(view.schema()).bucket_text
    other = difference(view, source, published)
    differing = {name(b) for b in (other.buckets & wanted) - keyed if not _only_moved(other, b)}
    foreign = {name(b) for b in change.buckets - wanted - keyed}
    for buckets, fault in ((differing, "do not contain the files that were published"), (foreign, "changed as well")):
        if buckets:
            listed = ", ".join(sorted(buckets)[:_LISTED])
            raise FormatError(
                f"{view.label}: after snapshot {published.id}, {len(buckets)} buckets {fault}: {listed}",
                details={"buckets": sorted(buckets)[:_LISTED]},
            )
    return _report(view, before, published, change)


def _only_moved(change: Difference, bucket: BucketKey) -> bool:
    """Whether a bucket has the same files and indexes, on other levels: a publish leaves files where a compaction has
    moved them.
    """
    added, removed = ({i.file_name for i in side.get(bucket, ())} for side in (change.added, change.removed))
    return added == removed and bucket not in change.index


def _report(view: Table, before: Snapshot, published: Snapshot, change: Difference) -> dict[str, Any]:
    return {
        "snapshot": published.id,
        "before": before.id,
        "buckets": len(change.buckets),
        "partitions": _by_partition(view, change),
        "properties": _own(published.properties),
    }


def _by_partition(view: Table, change: Difference) -> dict[str, dict[str, int]]:
    """Count, per partition, the files and rows that a snapshot removed and added."""
    name = StoredPartitions(view.schema()).bucket_text
    counts: dict[str, dict[str, int]] = {}
    for side, word in ((change.removed, "out"), (change.added, "in")):
        for bucket, entries in side.items():
            partition = name(bucket).rpartition("/")[0]
            count = counts.setdefault(partition, {"files_out": 0, "rows_out": 0, "files_in": 0, "rows_in": 0})
            count[f"files_{word}"] += len(entries)
            count[f"rows_{word}"] += sum(e.file.row_count for e in entries.values())
    return dict(sorted(counts.items()))


def _own(properties: Mapping[str, str]) -> dict[str, str]:
    return {k.removeprefix(_PREFIX): v for k, v in properties.items() if k.startswith(_PREFIX)}
