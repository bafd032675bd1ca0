"""Which snapshots of a branch expire: always the oldest ones, up to the first that something needs. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.metadata_expiry.root_values import CHANGELOG, SNAPSHOT, TAG, Root, Roots
from airflow_paimon.core.table.options import TableOptions, parse_duration
from airflow_paimon.core.table.paths import MAIN, UNDO_TAG_PREFIX

UNLIMITED = 2**31 - 1
"""Paimon's default of ``snapshot.num-retained.max``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiryRule:
    """Snapshots beyond the newest ``retain_max`` expire whatever their age; the newest ``retain_min`` never.

    In between a snapshot expires when the next one was committed before ``cutoff_ms`` (epoch milliseconds): then it
    was not the newest any more. ``max_deletes``: how many expire in one run at most.
    """

    retain_min: int
    retain_max: int
    cutoff_ms: int
    max_deletes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
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


def expiry_rule(
    options: TableOptions,
    where: str,
    *,
    now_ms: int,
    older_than_ms: int | None,
    retain_min: int | None,
    retain_max: int | None,
    max_deletes: int | None,
) -> ExpiryRule:
    """Complete a request by the branch's options, with Paimon's defaults.

    Raises:
        InvalidInputError: ``retain_min`` or an option is below 1, ``retain_max`` below ``retain_min``.
    """
    least = retain_min if retain_min is not None else options.number("snapshot.num-retained.min", 10)
    most = retain_max if retain_max is not None else options.number("snapshot.num-retained.max", UNLIMITED)
    if retain_min is None and retain_max is not None:
        least = min(least, most)
    if least < 1 or most < least:
        raise InvalidInputError(
            f"{where}: retain_min ({least}) must be at least 1 and at most retain_max ({most}); by default they are "
            f"the options snapshot.num-retained.min and .max"
        )
    if older_than_ms is None:
        older_than_ms = now_ms - int(_retained(options, SNAPSHOT).total_seconds() * 1000)
    return ExpiryRule(retain_min=least, retain_max=most, cutoff_ms=older_than_ms, max_deletes=max_deletes)


def plan_branch(branch: str, snapshots: Sequence[Root], rule: ExpiryRule, pins: Sequence[Pin]) -> BranchExpiry:
    """Choose the snapshots of one branch (ascending by id) that expire."""
    limits = [(len(snapshots) - rule.retain_min, f"the newest {rule.retain_min} stay (retain_min)")]
    if rule.max_deletes is not None:
        limits.append((rule.max_deletes, f"at most {rule.max_deletes} expire in one run (max_deletes)"))
    ids = [r.snapshot.id for r in snapshots]
    limits += [(sum(i < pin.snapshot_id for i in ids), pin.reason) for pin in pins]
    allowed, reason = min(limits, key=lambda limit: limit[0])
    allowed = max(allowed, 0)
    stop = min(max(len(snapshots) - rule.retain_max, 0), allowed)
    while stop < allowed and snapshots[stop + 1].snapshot.time_millis < rule.cutoff_ms:
        stop += 1
    if stop < allowed:
        reason = "it, or the one after it, is too young"
    kept = snapshots[stop] if stop < len(snapshots) else None
    return BranchExpiry(branch=branch, expired=tuple(snapshots[:stop]), first_kept=kept, reason=reason)


def pins_of(roots: Roots, branch: str, parents: Mapping[str, str], *, keep_undo: bool) -> list[Pin]:
    """Return what needs snapshots of a branch. ``parents``: the branch that each branch was made from."""
    pins = [
        Pin(snapshot_id=c.next_snapshot, reason=f"consumer {c.name!r} is at snapshot {c.next_snapshot}")
        for c in roots.consumers
        if c.branch == branch
    ]
    pins += [
        Pin(snapshot_id=o.head + 1, reason=f"a retry of operation {o.operation_id!r} looks at all after {o.head}")
        for o in roots.operations
        if o.branch == branch
    ]
    for root in roots.of(branch, TAG) if keep_undo else ():
        if root.name.startswith(UNDO_TAG_PREFIX):
            after = root.snapshot.id + 1
            pins.append(Pin(snapshot_id=after, reason=f"the undo by tag {root.name!r} needs snapshot {after}"))
    return pins + _branch_point(roots, branch, parents.get(branch, MAIN))


def _branch_point(roots: Roots, branch: str, parent: str) -> list[Pin]:
    """A branch can be published only while it has the newest snapshot that it shares with its parent."""
    shared = branch_point_id(roots, branch, parent) if branch != MAIN else None
    if shared is None:
        return []
    return [Pin(snapshot_id=shared, reason=f"the branch starts from snapshot {shared} of {parent}")]


def branch_point_id(roots: Roots, branch: str, parent: str) -> int | None:
    """Return the newest snapshot of a branch that its parent has, too, as a snapshot or tag; None = none."""
    theirs = {r.snapshot.identity for r in roots.roots if r.branch == parent and r.kind in (SNAPSHOT, TAG)}
    return max((r.snapshot.id for r in roots.of(branch, SNAPSHOT) if r.snapshot.identity in theirs), default=None)


def keeps_changelogs(options: TableOptions) -> bool:
    """Whether changelogs live longer than snapshots: an expired snapshot then becomes a long-lived changelog."""
    least, most = (options.number(f"snapshot.num-retained.{m}", d) for m, d in (("min", 10), ("max", UNLIMITED)))
    snapshot_time, changelog_time = _retained(options, SNAPSHOT), _retained(options, CHANGELOG)
    return (
        options.number("changelog.num-retained.min", least) > least
        or options.number("changelog.num-retained.max", most) > most
        or changelog_time > snapshot_time
    )


def changelog_rule(options: TableOptions, now_ms: int) -> ExpiryRule:
    """Return when long-lived changelogs expire: by the options only, counted from the newest snapshot."""
    least, most = (options.number(f"snapshot.num-retained.{m}", d) for m, d in (("min", 10), ("max", UNLIMITED)))
    return ExpiryRule(
        retain_min=options.number("changelog.num-retained.min", least),
        retain_max=options.number("changelog.num-retained.max", most),
        cutoff_ms=now_ms - int(_retained(options, CHANGELOG).total_seconds() * 1000),
    )


def _retained(options: TableOptions, kind: str) -> timedelta:
    default = options.text("snapshot.time-retained", "1 h")
    text = default if kind == SNAPSHOT else options.text("changelog.time-retained", default)
    return parse_duration(text, f"Table option {kind}.time-retained")
