"""Which snapshots, changelogs, tags and branches expire: decisions over what was read of them. Pure.

Of snapshots always the oldest ones expire, up to the first that something needs: readers rely on no gaps, so what is to
stay longer (one a day) gets an automatic tag. Times of tags are local ones without a zone, as Paimon stores them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from airflow_paimon.core.branches.branch_plan import protection_text
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.metadata_expiry.root_values import (
    CHANGELOG,
    SNAPSHOT,
    TAG,
    LazySnapshots,
    Root,
    Roots,
)
from airflow_paimon.core.table.branch_record import DELETED, DELETING, KEPT_MAIN, READY, BranchRecord
from airflow_paimon.core.table.options import TableOptions, parse_duration
from airflow_paimon.core.table.paths import MAIN, RESERVED_TAG_PREFIX, UNDO_TAG_PREFIX

UNLIMITED = 2**31 - 1
"""Paimon's default of ``snapshot.num-retained.max``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRule:
    """Snapshots beyond the newest ``retain_max`` expire whatever their age; the newest ``retain_min`` never.

    In between a snapshot expires when the next one was committed before ``cutoff_ms`` (epoch milliseconds): then it
    was not the newest any more. ``max_deletes``: how many expire in one run at most.
    """

    retain_min: int
    retain_max: int
    cutoff_ms: int
    max_deletes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRetainer:
    """What needs a snapshot and all later ones of its branch."""

    snapshot_id: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchExpiry:
    """The snapshots of a branch that expire, ascending. ``first_kept``: the oldest one that stays; ``reason``: why."""

    branch: str
    expired: tuple[Root, ...]
    first_kept: Root | None
    reason: str


def retention_rule(
    options: TableOptions,
    where: str,
    *,
    now_ms: int,
    kind: str = SNAPSHOT,
    older_than_ms: int | None = None,
    retain_min: int | None = None,
    retain_max: int | None = None,
    max_deletes: int | None = None,
) -> SnapshotRule:
    """Complete a request by the branch's options, with Paimon's defaults: those of long-lived changelogs (``kind``
    changelog), which count together with the snapshots after them, are the snapshots'.

    Raises:
        InvalidInputError: what is given contradicts itself; of snapshots, also what the options say.
    """
    least, most = _numbers(options, kind)
    if retain_min is None and retain_max is not None:
        least = min(least, retain_max)
    least = least if retain_min is None else retain_min
    most = most if retain_max is None else retain_max
    is_checked = kind == SNAPSHOT or retain_min is not None or retain_max is not None
    if is_checked and (least < 1 or most < least):
        raise InvalidInputError(
            f"{where}: retain_min ({least}) must be at least 1 and at most retain_max ({most}); by default they are "
            f"the options {kind}.num-retained.min and .max"
        )
    if older_than_ms is None:
        older_than_ms = now_ms - _retained(options, kind) // timedelta(milliseconds=1)
    return SnapshotRule(retain_min=least, retain_max=most, cutoff_ms=older_than_ms, max_deletes=max_deletes)


def plan_snapshots(
    branch: str, snapshots: LazySnapshots, rule: SnapshotRule, retainers: Sequence[SnapshotRetainer]
) -> BranchExpiry:
    """Choose the snapshots of one branch that expire; looks at no more of them than that takes."""
    count = len(snapshots.ids)
    least = "all" if rule.retain_min >= UNLIMITED else f"the newest {rule.retain_min}"
    limits = [(count - rule.retain_min, f"{least} stay (retain_min)")]
    if rule.max_deletes is not None:
        limits.append((rule.max_deletes, f"at most {rule.max_deletes} expire in one run (max_deletes)"))
    limits += [(bisect_left(snapshots.ids, pin.snapshot_id), pin.reason) for pin in retainers]
    allowed, reason = min(limits, key=lambda limit: limit[0])
    allowed = max(allowed, 0)
    stop = min(max(count - rule.retain_max, 0), allowed)
    while stop < allowed and snapshots.at(stop + 1).snapshot.time_millis < rule.cutoff_ms:
        stop += 1
    if stop < allowed:
        reason = "it, or the one after it, is too young"
    kept = snapshots.at(stop) if stop < count else None
    expired = tuple(snapshots.by_ids(snapshots.ids[:stop]))
    return BranchExpiry(branch=branch, expired=expired, first_kept=kept, reason=reason)


def count_due(ids: Sequence[int], rule: SnapshotRule, needed: Sequence[int], time_of: Callable[[int], int]) -> int:
    """Count the snapshots that ``plan_snapshots`` lets expire, with few looks at their commit times.

    ``ids``: ascending; ``needed``: the oldest snapshots that something needs. Later snapshots have later times.
    """
    allowed = max(0, min([len(ids) - rule.retain_min, *(sum(i < oldest for i in ids) for oldest in needed)]))
    low, high = min(max(len(ids) - rule.retain_max, 0), allowed), allowed
    middle = low  # mostly none is due
    while low < high:
        if time_of(ids[middle + 1]) < rule.cutoff_ms:
            low = middle + 1
        else:
            high = middle
        middle = (low + high) // 2
    return low


def retainers_of(roots: Roots, branch: str, parents: Mapping[str, str], *, keep_undo: bool) -> list[SnapshotRetainer]:
    """Return what needs snapshots of a branch. ``parents``: the branch that each branch was made from."""
    retainers = _consumers(roots, branch)
    retainers += [
        SnapshotRetainer(
            snapshot_id=o.start, reason=f"a retry of operation {o.operation_id!r} searches from snapshot {o.start} on"
        )
        for o in roots.operations
        if o.branch == branch
    ]
    for root in roots.of(branch, TAG) if keep_undo else ():
        if root.name.startswith(UNDO_TAG_PREFIX):
            after = root.snapshot.id + 1
            retainers.append(
                SnapshotRetainer(snapshot_id=after, reason=f"the undo by tag {root.name!r} needs snapshot {after}")
            )
    # A branch can be published only while it has the newest snapshot that it shares with its parent.
    parent = parents.get(branch, MAIN)
    shared = branch_point_id(roots, branch, parent) if branch != MAIN else None
    if shared is not None:
        reason = f"the branch starts from snapshot {shared} of {parent}"
        retainers.append(SnapshotRetainer(snapshot_id=shared, reason=reason))
    return retainers


def _consumers(roots: Roots, branch: str) -> list[SnapshotRetainer]:
    return [
        SnapshotRetainer(snapshot_id=c.next_snapshot, reason=f"consumer {c.name!r} is at snapshot {c.next_snapshot}")
        for c in roots.consumers
        if c.branch == branch
    ]


def branch_point_id(roots: Roots, branch: str, parent: str) -> int | None:
    """Return the newest snapshot of a branch that its parent has, too, as a snapshot or tag; None = none."""
    mine, theirs = roots.snapshots(branch), roots.snapshots(parent)
    tagged = {r.snapshot.identity for r in roots.roots if r.branch == parent and r.kind == TAG}
    there = set(theirs.ids)
    for some in mine.backwards():
        same = {r.snapshot.identity for r in theirs.by_ids([r.snapshot.id for r in some if r.snapshot.id in there])}
        shared = next((r.snapshot.id for r in some if r.snapshot.identity in same | tagged), None)
        if shared is not None:
            return shared
    return None


def keeps_changelogs(options: TableOptions) -> bool:
    """Whether changelogs live longer than snapshots: an expired snapshot then becomes a long-lived changelog."""
    changelogs, snapshots = (_numbers(options, kind) for kind in (CHANGELOG, SNAPSHOT))
    longer = _retained(options, CHANGELOG) > _retained(options, SNAPSHOT)
    return any(one > other for one, other in zip(changelogs, snapshots, strict=True)) or longer


def plan_changelogs(roots: Roots, branch: str, rule: SnapshotRule | None) -> BranchExpiry:
    """Choose the long-lived changelogs of a branch that expire. What a consumer is to read stays, and the newest one.

    ``rule`` None: all of them, the newest one too, but for what a consumer is to read.
    """
    changelogs = roots.of(branch, CHANGELOG)
    if not changelogs:
        return BranchExpiry(branch=branch, expired=(), first_kept=None, reason="there is none")
    retainers = _consumers(roots, branch)
    snapshots = roots.snapshots(branch)
    there = set(snapshots.ids)
    if rule is None:
        first = min(retainers, key=lambda pin: pin.snapshot_id, default=None)
        found = [r for r in changelogs if r.snapshot.id not in there]  # else its snapshot is about to become it
        gone = tuple(r for r in found if first is None or r.snapshot.id < first.snapshot_id)
        reason = first.reason if first is not None and len(gone) < len(found) else "its snapshot is still there"
    else:
        retainers.append(SnapshotRetainer(snapshot_id=changelogs[-1].snapshot.id, reason="it is the newest changelog"))
        known = {r.snapshot.id: r for r in (*changelogs, *snapshots.by_ids(snapshots.ids))}
        plan = plan_snapshots(branch, LazySnapshots.of(branch, [known[i] for i in sorted(known)]), rule, retainers)
        gone, reason = tuple(r for r in plan.expired if r.kind == CHANGELOG), plan.reason
    ids = {r.snapshot.id for r in gone}
    kept = next((r for r in changelogs if r.snapshot.id not in ids), None)
    return BranchExpiry(branch=branch, expired=gone, first_kept=kept, reason=reason)


def _numbers(options: TableOptions, kind: str) -> tuple[int, int]:
    least, most = (
        options.number("snapshot.num-retained.min", 10),
        options.number("snapshot.num-retained.max", UNLIMITED),
    )
    if kind == SNAPSHOT:
        return least, most
    return options.number("changelog.num-retained.min", least), options.number("changelog.num-retained.max", most)


def _retained(options: TableOptions, kind: str) -> timedelta:
    default = options.text("snapshot.time-retained", "1 h")
    text = default if kind == SNAPSHOT else options.text("changelog.time-retained", default)
    return parse_duration(text, f"Table option {kind}.time-retained")


@dataclass(frozen=True, slots=True, kw_only=True)
class TagRule:
    """Tags whose own retention ends before ``at`` expire, and with ``older_than`` those created before it.

    A tag without a retention counts only with ``include_unlimited``, and by the time of its file. A tag that this
    package made (``airflow-paimon-...``) expires by its own retention only.
    """

    at: datetime
    older_than: datetime | None = None
    prefix: str = ""
    include_unlimited: bool = False


def expired_tags(tags: Sequence[Root], rule: TagRule, file_times: Mapping[str, datetime]) -> list[Root]:
    """Choose the tags of one branch that expire; whether something needs them is not decided here."""
    return [r for r in tags if r.name.startswith(rule.prefix) and _expires(r, rule, file_times.get(r.name))]


def _expires(root: Root, rule: TagRule, file_time: datetime | None) -> bool:
    tag = root.tag
    assert tag is not None
    end = tag.expires_at()
    if end is not None and end < rule.at:
        return True
    if rule.older_than is None or root.name.startswith(RESERVED_TAG_PREFIX):
        return False
    if tag.time_retained is not None:
        return tag.create_time is not None and tag.create_time < rule.older_than
    return rule.include_unlimited and file_time is not None and file_time < rule.older_than


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchRules:
    """What was asked for, in milliseconds; ``older_than`` and ``idle_for`` are for branches without a retention.
    ``owner``: may be a pattern.
    """

    older_than: int | None = None
    idle_for: int | None = None
    owner: str | None = None
    drop_unpublished: bool = False
    notify_before: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchAge:
    """``record``: None for a branch of another engine. ``head``: the newest commit."""

    name: str
    record: BranchRecord | None
    head: Snapshot | None


def expiry_reason(age: BranchAge, rules: BranchRules, now_ms: int) -> str | None:
    """Return why the time of a branch is over, None if it isn't.

    Its own retention wins over the rules, which don't apply to main as it was before it was replaced.
    """
    end, record = due_ms(age, rules), age.record
    if end is None or end >= now_ms:
        return None
    if record is not None and record.retention is not None:
        return f"its retention of {record.retention} is over"
    parts = ["it was created before the time of older_than (--older-than)"] if rules.older_than is not None else []
    parts += ["nothing was committed to it for the time of idle_for (--idle-for)"] if rules.idle_for is not None else []
    return " and ".join(parts)


def due_ms(age: BranchAge, rules: BranchRules) -> int | None:
    """Return when the time of a branch is over (epoch milliseconds), None if it has no end."""
    record = age.record
    if record is None or record.retention is not None:
        return None if record is None else record.expires_ms
    made_ms = record.created_ms
    if made_ms is None or record.reason == KEPT_MAIN:
        return None
    ends = [] if rules.older_than is None else [made_ms + rules.older_than]
    ends += (
        []
        if rules.idle_for is None
        else [max(made_ms, 0 if age.head is None else age.head.time_millis) + rules.idle_for]
    )
    return max(ends, default=None)


def expires_soon(age: BranchAge, rules: BranchRules, now_ms: int) -> int | None:
    """Return when a branch that isn't due expires, if that is within ``notify_before`` and it isn't protected."""
    end = due_ms(age, rules)
    if end is None or rules.notify_before is None or end > now_ms + rules.notify_before:
        return None
    return None if why_kept(age.record, fits=True) is not None else end


def why_kept(record: BranchRecord | None, *, fits: bool) -> str | None:
    """Return why a branch stays although its time is over, as far as its record says; None if nothing keeps it.

    ``fits``: whether the record is about the branch that is there now.
    """
    if record is None:
        return "another engine created it, and it has no retention (alter_branch)"
    if record.protected:
        return f"it is {protection_text(record)}"
    if record.state not in (READY, DELETING, DELETED):
        return f"another operation is changing it ({record.state})"
    if not fits and record.known_origin and record.state == READY:
        return "its record doesn't fit the present branch: another engine recreated it, or expired its base"
    return None


def why_unpublished(commits: int, *, on_main: bool | None, drop: bool) -> str | None:
    """Return why a branch stays for its commits. ``on_main`` None: unknown, as the history has expired."""
    if not commits or on_main or drop:
        return None
    counted = f"{commits:,} commit{'' if commits == 1 else 's'}"
    if on_main is None:
        return (
            f"cannot determine whether main has its {counted}: it was published, and main has changed since, whose "
            "snapshots are expired; drop_unpublished (--drop-unpublished) expires it"
        )
    return f"it has {counted} that main doesn't have; drop_unpublished (--drop-unpublished) expires it"
