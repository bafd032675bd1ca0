"""What all expiries of metadata do: move files into the trash, and delete what only the trash names after a grace time.

Two phases, so that a run that is killed leaves unreferenced files and never a dangling reference, and so that readers
and creators of tags and branches that have read a file keep what it names for the grace time. Between the phases all
roots are read again: nothing can be made any more from what lies in the trash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from airflow_paimon.core.commit.put import require_committable
from airflow_paimon.core.errors import ConflictError, InvalidInputError, NotFoundError
from airflow_paimon.core.maintenance.reap import carry_out, execute_reap, gather_reap
from airflow_paimon.core.maintenance.reap_plan import Reap
from airflow_paimon.core.maintenance.root_values import Consumer, Root, Roots
from airflow_paimon.core.maintenance.roots import consumers_of, gather_roots, require_finished
from airflow_paimon.core.maintenance.trash import TrashEntry
from airflow_paimon.core.plan import Action, Delete, Plan, Replace
from airflow_paimon.core.requests.context import Context
from airflow_paimon.core.table.options import parse_duration
from airflow_paimon.core.table.table import Table, parse_timestamp

_TRIES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What an expiry takes away: ``dead`` roots in order, each with a reason.

    ``first``: actions before anything is taken away, which delete ``consumers``; ``before``: those right before a root
    (by its path); ``after``: those at the end. ``report``: JSON values for the result.
    """

    dead: tuple[Root, ...]
    reason: str
    consumers: tuple[Consumer, ...] = ()
    first: tuple[Action, ...] = ()
    before: Mapping[str, tuple[Action, ...]] = field(default_factory=dict)
    after: tuple[Action, ...] = ()
    report: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expired:
    """The outcome of an expiry: ``plan`` of what was moved into the trash, and JSON values for the result."""

    plan: Plan
    changed: bool
    details: Mapping[str, Any]


def run_expiry(
    context: Context, choose: Callable[[Roots], Choice], *, grace: str, operations_since_ms: int | None
) -> Expired:
    """Take away what is chosen, and delete what has been in the trash for the grace time.

    Raises:
        FormatError: something can't be read, so nothing was deleted. ConflictError: a branch is incomplete, or roots
            kept changing.
    """
    table, grace_ms = context.table, duration_ms(grace, "grace")
    for _ in range(_TRIES):
        roots = gather_roots(table, operations_since_ms=operations_since_ms)
        require_finished(table, roots)
        choice = choose(roots)
        plan = _plan(context, choice)
        due = _due(roots, context.now_ms, grace_ms)
        gone = {r.path for r in (*due, *choice.dead)}
        foreseen = gather_reap(table, [*due, *choice.dead], [r for r in roots.roots if r.path not in gone])
        if context.request.dry_run:
            trash = [r.trash for r in roots.roots if r.trash is not None]
            return Expired(
                plan=plan,
                changed=bool(choice.dead or choice.first or due),
                details=_details(choice, foreseen, foreseen, trash, grace_ms),
            )
        require_committable(table)
        if _unlink(table, choice, plan):
            break
    else:
        raise ConflictError(
            f"{table.name}: what was to expire was replaced {_TRIES} times meanwhile; run it again", table=table.name
        )
    return _finish(context, choice, plan, foreseen, grace_ms)


def _finish(context: Context, choice: Choice, plan: Plan, foreseen: Reap, grace_ms: int) -> Expired:
    """The second phase, on roots that are read again."""
    table = context.table
    roots = gather_roots(table, operations_since_ms=context.now_ms)
    require_finished(table, roots)
    due = _due(roots, context.now_ms, grace_ms)
    gone = {r.path for r in due}
    reap = gather_reap(table, due, [r for r in roots.roots if r.path not in gone])
    execute_reap(table, reap, [r.trash for r in due if r.trash is not None])
    waiting = [r.trash for r in roots.roots if r.trash is not None and r.path not in gone]
    return Expired(
        plan=plan,
        changed=bool(choice.dead or choice.first or due),
        details=_details(choice, reap, foreseen, waiting, grace_ms),
    )


def _due(roots: Roots, now_ms: int, grace_ms: int) -> list[Root]:
    """What has been in the trash for the grace time, or is being deleted since an earlier run."""
    trash = ((r, r.trash) for r in roots.roots if r.trash is not None)
    return [r for r, entry in trash if entry.reaping or now_ms - entry.unlinked_ms >= grace_ms]


def to_trash(root: Root, now_ms: int, operation_id: str | None, reason: str) -> tuple[Replace, Delete]:
    """Return the actions that move a root into the trash; again is harmless."""
    entry = TrashEntry(
        branch=root.branch,
        kind=root.kind,
        name=root.name,
        path=root.path,
        content=root.data,
        unlinked_ms=now_ms,
        operation_id=operation_id,
    )
    keep = Replace(path=entry.trash_path, data=entry.to_bytes(), reason=f"keeps {root.label} for the grace time")
    return keep, Delete(path=root.path, reason=reason)


def _plan(context: Context, choice: Choice) -> Plan:
    request = context.request
    moved = [
        a
        for r in choice.dead
        for a in (*choice.before.get(r.path, ()), *to_trash(r, context.now_ms, request.operation_id, choice.reason))
    ]
    return Plan(
        operation=request.operation,
        table=context.table.name,
        actions=(*choice.first, *moved, *choice.after),
        summary=dict(choice.report),
    )


def _unlink(table: Table, choice: Choice, plan: Plan) -> bool:
    """Carry out the plan; each root and consumer must still be what was planned. False: one has been replaced.

    One that is gone was expired by another run, or another engine.
    """
    at = {r.path: r for r in choice.dead}
    if not _still_unused(table, choice.consumers):
        return False
    carry_out(table, replace(plan, actions=choice.first))
    for steps in _by_root(plan.actions[len(choice.first) :], at):
        root = at.get(steps[-1].path)
        if root is not None:
            try:
                if table.store.read(root.path) != root.data:
                    return False
            except NotFoundError:
                continue
        carry_out(table, replace(plan, actions=tuple(steps)))
    return True


def _still_unused(table: Table, consumers: Sequence[Consumer]) -> bool:
    """Whether no stream has written one of them since the roots were read."""
    planned = {(c.branch, c.name): (c.next_snapshot, c.modified_ms) for c in consumers}
    try:
        found = [c for branch in {c.branch for c in consumers} for c in consumers_of(table.branch(branch))]
    except NotFoundError:
        return False
    now = {(c.branch, c.name): (c.next_snapshot, c.modified_ms) for c in found}
    return all(now.get(consumer, at) == at for consumer, at in planned.items())


def _by_root(actions: Sequence[Action], at: Mapping[str, Root]) -> Iterable[list[Action]]:
    """Divide actions after each that takes a root away."""
    steps: list[Action] = []
    for action in actions:
        steps.append(action)
        if action.path in at and isinstance(action, Delete):
            yield steps
            steps = []
    if steps:
        yield steps


def _details(
    choice: Choice, reap: Reap, foreseen: Reap, waiting: Sequence[TrashEntry], grace_ms: int
) -> dict[str, Any]:
    warnings = list(choice.report.get("warnings", ()))
    if reap.unreadable:
        warnings.append(
            f"{reap.unreadable[0]} and {len(reap.unreadable) - 1} more could not be read any more: an earlier run was "
            f"interrupted, or another engine expired them. remove_orphan_files finds what they left, if anything"
        )
    if reap.external:
        warnings.append(f"{reap.external} data files outside of the table's folder stay; delete them yourself")
    oldest = min((e.unlinked_ms for e in waiting), default=None)
    return {
        **choice.report,
        "reaped": reap.to_json(),
        "kept": foreseen.kept_json(),
        "trash": {"entries": len(waiting), "next_due": None if oldest is None else _iso(oldest + grace_ms)},
        "warnings": warnings,
    }


def _iso(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="seconds")


def duration_ms(text: str, name: str) -> int:
    """Parse a duration of a request into milliseconds."""
    return int(parse_duration(text, name).total_seconds() * 1000)


def time_before(text: str | None, now_ms: int, where: str) -> int | None:
    """Return the time that ``older_than`` means: an age (``7 d``), an ISO time with an offset, or epoch milliseconds.

    Raises:
        InvalidInputError: neither, or it lies in the future.
    """
    if text is None:
        return None
    try:
        found = parse_timestamp(text) if text.strip().isdigit() else now_ms - duration_ms(text, "older_than")
    except InvalidInputError:
        try:
            found = parse_timestamp(text)
        except InvalidInputError:
            raise InvalidInputError(
                f"{where}: older_than is an age (e.g. '7 d') or a time with an offset (e.g. "
                f"2026-11-21T02:00:00+00:00), not {text!r}"
            ) from None
    if found > now_ms:
        raise InvalidInputError(f"{where}: older_than ({text}) lies in the future; nothing was deleted")
    return found
