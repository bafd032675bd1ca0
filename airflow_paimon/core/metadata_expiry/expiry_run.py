"""The run of every expiry: move metadata into the trash; delete what only the trash names after a grace time.

Two phases, so that a run that is killed leaves unreferenced files and never a dangling reference, and so that readers
and creators of tags and branches that have read a file keep what it names for the grace time. Between the phases the
roots are looked at again: nothing can be made any more from what lies in the trash.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from airflow_paimon.core.commit.idempotency import attempt_of
from airflow_paimon.core.commit.put import require_committable
from airflow_paimon.core.errors import ConflictError, FormatError, PaimonError, UnsupportedStorageError, first_few
from airflow_paimon.core.format.timestamp import utc_text
from airflow_paimon.core.metadata_expiry.ages import grace_millis
from airflow_paimon.core.metadata_expiry.representative_snapshots import representative_snapshots
from airflow_paimon.core.metadata_expiry.root_values import TAG, Root, Roots, TrashEntry, Vanished
from airflow_paimon.core.metadata_expiry.roots import RootReader, unfinished_warnings
from airflow_paimon.core.metadata_expiry.storage_clock import storage_now
from airflow_paimon.core.metadata_expiry.unreferenced import (
    delete_unreferenced,
    execute_groups,
    execute_repeatedly,
    find_unreferenced,
)
from airflow_paimon.core.metadata_expiry.unreferenced_plan import UnreferencedFiles
from airflow_paimon.core.plan import Action, Delete, Plan, Replace
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import ExpireSnapshots, Expiry
from airflow_paimon.core.store.base import batches, read_existing
from airflow_paimon.core.table.consumers import Consumer, read_consumers
from airflow_paimon.core.table.table import Table

_TRIES = 5
_LISTED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpirySelection:
    """What an expiry takes away: ``expiring`` roots in order, each with a reason.

    ``first``: actions before anything is taken away, which delete ``consumers``; ``before``: those right before a root
    (by its path); ``after``: those at the end. ``hinted``: what a hint among them, by its path, names. ``report``: JSON
    values for the result.
    """

    expiring: tuple[Root, ...]
    reason: str
    consumers: tuple[Consumer, ...] = ()
    first: tuple[Action, ...] = ()
    before: Mapping[str, tuple[Action, ...]] = field(default_factory=dict)
    after: tuple[Action, ...] = ()
    hinted: Mapping[str, Root] = field(default_factory=dict)
    report: Mapping[str, Any] = field(default_factory=dict)


_NOTHING = ExpirySelection(expiring=(), reason="")


def run_expiry(
    context: Context, choose: Callable[[Roots], ExpirySelection], *, operations_since_ms: int | None
) -> OperationResult:
    """Take away what is chosen, and delete what has been in the trash for the grace time.

    Raises:
        InvalidInputError: a grace time below the least one, while writers are at work. FormatError: something can't be
            read. ConflictError: what is chosen kept being replaced. Each says what was done before, if anything.
    """
    request, table = context.request, context.table
    assert isinstance(request, Expiry)
    with attempt_of(context, request.branch, commits=False):
        done = expire(context, choose, operations_since_ms=operations_since_ms)
    head = table.branch(request.branch).latest_snapshot_id()
    at = {"before": head, "after": head}
    return context.result(done.plan, branch=request.branch, changed=done.changed, **at, details=done.details)


@dataclass(frozen=True, slots=True)
class ExpiryOutcome:
    """What an expiry has done: the plan of what it moved into the trash, and what its result says."""

    plan: Plan
    changed: bool
    details: Mapping[str, Any]


def expire(
    context: Context, choose: Callable[[Roots], ExpirySelection], *, operations_since_ms: int | None
) -> ExpiryOutcome:
    """Do what ``run_expiry`` does as a part of another operation; raises what that raises."""
    request, table = context.request, context.table
    assert isinstance(request, Expiry)
    reader = RootReader(table, operations_since_ms, reads_snapshots=not isinstance(request, ExpireSnapshots))
    run = _Expiry(context, reader, grace_millis(table, request))
    try:
        return run.execute(choose)
    except PaimonError as error:
        run.add_done(error)
        raise


@dataclass(slots=True)
class _Expiry:
    """One expiry. ``moved``: what it has moved into the trash."""

    context: Context
    reader: RootReader
    grace_ms: int
    moved: list[Root] = field(default_factory=list)

    def execute(self, choose: Callable[[Roots], ExpirySelection]) -> ExpiryOutcome:
        table, dry_run, files_to_delete = self.context.table, self.context.request.dry_run, UnreferencedFiles()
        for _ in range(_TRIES):
            roots, selection, past_grace, planned_files = self._plan(self.reader.read_once, choose)
            if not dry_run:
                require_committable(table)
                table.store.check_reach(f.path for files in planned_files.stages for f in files)
            if dry_run or _move_to_trash(self.context, selection, self.moved):
                break
        else:
            raise ConflictError(f"{table.name}: what was to expire was replaced {_TRIES} times meanwhile; run it again")
        waiting = [r.trash for r in roots.roots if r.trash is not None]
        waiting += [_entry(r, int(time.time() * 1000), None) for r in self.moved]
        if dry_run:
            files_to_delete = planned_files
        elif past_grace or (selection.expiring and not self.grace_ms):
            # the second phase
            roots, _, past_grace, files_to_delete = self._plan(self.reader.gather, lambda _: _NOTHING)
            delete_unreferenced(table, files_to_delete, [r.trash for r in past_grace if r.trash is not None])
            waiting = [r.trash for r in roots.roots if r.trash is not None and r not in past_grace]
        return ExpiryOutcome(
            _plan(self.context, selection),
            bool(selection.expiring or selection.first or past_grace),
            self._details(selection, roots, files_to_delete, planned_files, waiting),
        )

    def _plan(
        self, look: Callable[[], Roots], choose: Callable[[Roots], ExpirySelection]
    ) -> tuple[Roots, ExpirySelection, list[Root], UnreferencedFiles]:
        """Plan by a look; if a snapshot vanishes before it is read, or something is broken, by one at all snapshots."""
        try:
            return self._plan_on(look(), choose)
        except (Vanished, FormatError):
            if self.reader.reads_snapshots:
                raise
        self.reader.read_all()
        return self._plan_on(look(), choose)

    def _plan_on(
        self, roots: Roots, choose: Callable[[Roots], ExpirySelection]
    ) -> tuple[Roots, ExpirySelection, list[Root], UnreferencedFiles]:
        selection, past_grace = choose(roots), self._past_grace(roots)
        return roots, selection, past_grace, self._find_unreferenced([*past_grace, *selection.expiring], roots)

    def add_done(self, error: PaimonError) -> None:
        """Say in an error what had expired before it."""
        if self.moved:
            some = first_few([r.label for r in self.moved], 3)
            before = f"Before that, {some} had expired: they are in the trash, and the next run continues"
            error.set_message(f"{error.message}. {before}")
            error.details["done"] = {"expired": [r.path for r in self.moved[:_LISTED]], "roots": len(self.moved)}

    def _find_unreferenced(self, expiring: Sequence[Root], roots: Roots) -> UnreferencedFiles:
        """Find what only ``expiring`` ones of the roots name."""
        if not expiring:
            return UnreferencedFiles()
        gone = {r.path for r in expiring}
        living = [r for r in roots.roots if r.path not in gone]
        if roots.unread:
            named = {
                (r.path, r.data): r for some in roots.unread.values() for r in representative_snapshots(some, expiring)
            }
            named |= {(r.path, r.data): r for r in living}
            return find_unreferenced(self.context.table, expiring, list(named.values()))
        return self.reader.without_vanished(living, lambda some: find_unreferenced(self.context.table, expiring, some))

    def _past_grace(self, roots: Roots) -> list[Root]:
        """What has been in the trash for the grace time, or is being deleted since an earlier run."""
        now_ms = self._clock(roots)
        trash = ((r, r.trash) for r in roots.roots if r.trash is not None)
        return [r for r, e in trash if e.reaping or not self.grace_ms or now_ms - e.in_trash_since_ms >= self.grace_ms]

    def _clock(self, roots: Roots) -> int:
        """The storage's time, if something in the trash waits for the end of its grace time: no ``now`` counts."""
        waiting = any(r.trash is not None and not r.trash.reaping for r in roots.roots)
        if self.context.request.dry_run or not (waiting and self.grace_ms):
            return self.context.now_ms
        try:
            return storage_now(self.context.table)
        except UnsupportedStorageError:  # it keeps no times: this machine wrote the times in the trash
            return int(time.time() * 1000)

    def _details(
        self,
        selection: ExpirySelection,
        roots: Roots,
        files_to_delete: UnreferencedFiles,
        planned_files: UnreferencedFiles,
        waiting: Sequence[TrashEntry],
    ) -> dict[str, Any]:
        warnings = [*selection.report.get("warnings", ()), *unfinished_warnings(roots)]
        if files_to_delete.unreadable:
            warnings.append(
                f"{first_few(files_to_delete.unreadable, 1)} could not be read any more: an earlier run was "
                f"interrupted, or another engine expired them. remove_orphan_files finds what they left, if anything"
            )
        if files_to_delete.external:
            warnings.append(
                f"{files_to_delete.external} data files outside of the table's folder stay; delete them yourself"
            )
        oldest = min((e.in_trash_since_ms for e in waiting), default=None)
        next_due = None if oldest is None else utc_text(oldest + self.grace_ms)
        return {
            **selection.report,
            "deleted": files_to_delete.to_json(),
            "kept": planned_files.kept_json(),
            "trash": {"entries": len(waiting), "next_due": next_due},
            "warnings": warnings,
        }


def _entry(root: Root, now_ms: int, operation_id: str | None) -> TrashEntry:
    return TrashEntry(
        branch=root.branch,
        kind=root.kind,
        name=root.name,
        path=root.path,
        content=root.data,
        unlinked_ms=now_ms,
        operation_id=operation_id,
    )


def _trash_actions(context: Context, root: Root, reason: str) -> tuple[Replace, Delete]:
    """Return the actions that move a root into the trash; again is harmless."""
    entry = _entry(root, context.now_ms, context.request.operation_id)
    keep = Replace(path=entry.trash_path, data=entry.to_bytes(), reason=f"keeps {root.label} for the grace time")
    return keep, Delete(path=root.path, expected=root.data, reason=reason)


def _plan(context: Context, selection: ExpirySelection) -> Plan:
    moved = (
        a
        for r in selection.expiring
        for a in (*selection.before.get(r.path, ()), *_trash_actions(context, r, selection.reason))
    )
    return Plan(
        operation=context.request.operation,
        table=context.table.name,
        actions=(*selection.first, *moved, *selection.after),
        summary=dict(selection.report),
    )


def _move_to_trash(context: Context, selection: ExpirySelection, moved: list[Root]) -> bool:
    """Carry out the selection; each root and consumer must still be what was chosen. False: one has been replaced.

    One that is gone was expired by another run, or another engine. ``moved`` gets those that this run takes away.
    """
    table, by_path = context.table, {r.path: r for r in selection.expiring}
    if not _still_unused(table, selection.consumers):
        return False
    try:
        execute_repeatedly(table, selection.first)
        for some in batches(selection.expiring):
            there = read_existing(table.store, [r.path for r in some])
            steps = {r.path: _trash_actions(context, r, selection.reason) for r in some if r.path in there}
            execute_groups(table, [[*selection.before.get(path, ()), put] for path, (put, _) in steps.items()])
            # The oldest snapshot goes first: a run that is killed leaves no gap, and a commit that finds the snapshot
            # before its own knows that no expiry has made its id free (``took_expired_id``).
            deletions = [deletion for _, deletion in steps.values()]
            groups = [[one] for one in deletions] if all(r.kind == TAG for r in some) else [deletions]
            execute_groups(table, groups, lambda a: moved.append(by_path[a.path]))
        execute_repeatedly(table, _final_actions(table, selection))
    except ConflictError:  # a root was replaced, a stream has moved its consumer, or a writer its hint
        _undo_puts(context, selection)
        return False
    return True


def _undo_puts(context: Context, selection: ExpirySelection) -> None:
    """Delete what was put before something could be taken away that was replaced then: in a table that was dropped and
    made anew it would be of another table.
    """
    now = read_existing(context.table.store, [r.path for r in selection.expiring])
    for root in (r for r in selection.expiring if now.get(r.path, r.data) != r.data):
        put = (*selection.before.get(root.path, ()), *_trash_actions(context, root, selection.reason))
        done = [Delete(path=a.path, expected=a.data, reason="put too late") for a in put if isinstance(a, Replace)]
        with suppress(ConflictError):
            execute_repeatedly(context.table, done)


def _final_actions(table: Table, selection: ExpirySelection) -> list[Action]:
    """Return the actions at the end, but for hints of what is gone: in a table that was dropped and made anew, an old
    hint would prove that its snapshots were lost.
    """
    now = read_existing(table.store, [r.path for r in selection.hinted.values()])
    wrong = {hint for hint, root in selection.hinted.items() if now.get(root.path) != root.data}
    return [action for action in selection.after if action.path not in wrong]


def _still_unused(table: Table, consumers: Sequence[Consumer]) -> bool:
    """Whether no stream has written one of them since the roots were read."""
    planned = {(c.branch, c.name): (c.next_snapshot, c.modified_ms) for c in consumers}
    found = [c for branch in {c.branch for c in consumers} for c in read_consumers(table.branch(branch))]
    now = {(c.branch, c.name): (c.next_snapshot, c.modified_ms) for c in found}
    return all(now.get(consumer, at) == at for consumer, at in planned.items())
