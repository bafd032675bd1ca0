"""The one committer: the only module that changes a table. Everything is put-if-absent or compare-and-swap on heads.

A commit writes manifests under unique names, publishes ``snapshot-(head + 1)`` with put-if-absent, reads it back and
then refreshes the LATEST hint. A loser re-plans on the new head. After an unknown outcome nothing is cleaned up.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from typing import Any

from airflow_paimon.core.commit.conditions import HeadState
from airflow_paimon.core.commit.draft import CommitIdentity as CommitIdentity
from airflow_paimon.core.commit.draft import CommitOptions as CommitOptions
from airflow_paimon.core.commit.draft import Draft as Draft
from airflow_paimon.core.commit.draft import MakeDraft as MakeDraft
from airflow_paimon.core.commit.draft import Receipt as Receipt
from airflow_paimon.core.commit.draft import RetryPolicy as RetryPolicy
from airflow_paimon.core.commit.early import early_state, remember_schema
from airflow_paimon.core.commit.guards import LostInputs, PostCommitCheck, check_draft
from airflow_paimon.core.commit.landed import check_not_built_upon, taken_back, unknown_outcome, verify_at_end
from airflow_paimon.core.commit.landed import find_landed as find_landed
from airflow_paimon.core.commit.latest_hint import refresh_hint
from airflow_paimon.core.commit.lost_races import count_lost_race
from airflow_paimon.core.commit.put import execute as execute
from airflow_paimon.core.commit.put import put_new as put_new
from airflow_paimon.core.commit.put import require_committable as require_committable
from airflow_paimon.core.commit.read_back import is_still_there, read_back, still_follows
from airflow_paimon.core.commit.relay import CommitTurn, takes_turns, turn_of
from airflow_paimon.core.commit.restore import restore_draft
from airflow_paimon.core.commit.seen import Seen
from airflow_paimon.core.commit.staged import (
    Changes,
    Staged,
    discard,
    get_ready,
    make_changes,
    reads_of_head,
    stage,
    write,
)
from airflow_paimon.core.errors import (
    AlreadyExistsError,
    ConflictError,
    FormatError,
    LostMetadataError,
    NotFoundError,
    OutcomeUnknownError,
    PaimonError,
    UnsafeOperationError,
)
from airflow_paimon.core.format.manifest import FileKind
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.store.base import Put, side_by_side
from airflow_paimon.core.table.features import check_known
from airflow_paimon.core.table.guesses import remember
from airflow_paimon.core.table.lineage import Lineage, require_ready
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partitions import Selection, StoredPartitions
from airflow_paimon.core.table.table import Table

log = logging.getLogger(__name__)

_TRIES_OF_LOST = 5
"""How often metadata that is missing may be taken for expired: what an older head needs, the newest may do without."""
LANDED = "landed"
"""Of an error's details: the snapshot that was published, and was found wrong only then."""


def commit(
    table: Table, make_draft: Callable[[Snapshot | None], Draft | None], options: CommitOptions | None = None
) -> Receipt:
    """Commit what ``make_draft`` makes of a head (None: no snapshot yet); see ``commit_at``."""
    return commit_at(table, lambda at: make_draft(at.head), options)


def commit_at(
    table: Table, make_draft: MakeDraft, options: CommitOptions | None = None, *, early: bool = False
) -> Receipt:
    """Plan on the newest head and publish one snapshot; plan again when another writer was faster.

    ``early``: to make a draft in vain costs little, so it may be made before the storage says what the head is.

    Of every attempt the draft's conditions must hold, and it must pass the guards (``core/commit/guards.py``). Dropped
    partitions that a post-commit check still needs are restored: an error if the commit only dropped partitions,
    otherwise a warning in the receipt. ``make_draft`` may raise ``ConflictError``; None = nothing to do.

    Raises:
        ConflictError: a condition doesn't hold, or attempts used up. OutcomeUnknownError: it may have landed.
        UnsafeOperationError: a guard refuses it, everything that it dropped was restored, or a post-commit check
            failed. All leave the table readable.
    """
    require_committable(table)
    return _Commit(table, make_draft, options or CommitOptions(), early).run()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planned:
    """A draft that may go on top of a head."""

    at: HeadState
    draft: Draft
    checks: Sequence[PostCommitCheck]


class _Answer(Enum):
    """What the storage said to the put of a snapshot."""

    DONE = "done"
    EXISTS = "exists"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Put:
    """A snapshot that was ``ready`` and put on top of ``head``, or tried to. ``branch``: the branch's record right
    before.
    """

    head: Snapshot | None
    staged: Staged
    ready: Put
    branch: Lineage | None
    answer: _Answer


@dataclass(eq=False, slots=True)
class _Commit:
    """One commit. ``changes``: those of its files that are written, and that certainly no snapshot names.

    ``in_doubt``: the snapshot that was put, or perhaps was, until it is certain that it did not land. Every error means
    an unknown outcome till then: after other errors callers delete the files that they wrote.
    """

    table: Table
    make_draft: MakeDraft
    options: CommitOptions
    early: bool
    seen: Seen = field(init=False)
    looked: int | None = field(init=False)
    draft: Draft | None = None
    changes: Changes | None = None
    in_doubt: Snapshot | None = None

    def __post_init__(self) -> None:
        self.seen = Seen(self.table)
        self.looked = self.options.identity.since

    def run(self) -> Receipt:
        retry = self.options.retry
        try:
            for attempt in range(1, retry.max_attempts + 1):
                receipt = self._attempt(attempt)
                if receipt is not None:
                    return receipt
                count_lost_race()
                time.sleep(retry.wait_s(attempt))
            raise ConflictError(
                f"{self.table.label}: {retry.max_attempts} attempts to publish lost to other commits; nothing was "
                f"published, run it again when fewer writers commit at once"
            )
        except PaimonError as error:
            self._discard_changes()
            if self.in_doubt is None or isinstance(error, OutcomeUnknownError) or LANDED in error.details:
                raise
            why = f"it could not be read back ({error.message})"
            raise unknown_outcome(self.table, self.in_doubt, why) from error

    def _attempt(self, attempt: int) -> Receipt | None:
        """Plan on the newest head, and put a snapshot on top of it, or of a newer one; None: another came first."""
        table = self.table
        planned = self._plan_early() if self.early and attempt == 1 else None
        if planned is None:
            first = self._plan_newest(attempt)
            if first is None or isinstance(first, Receipt):
                return first
            planned = first
            if takes_turns(table):
                self._write_changes(planned, self._new_changes(planned))
        at = planned.at
        with turn_of(table) as turn:
            if turn is not None:
                again = self._plan_in_turn(planned, turn, attempt)
                if isinstance(again, Receipt):
                    return again
                planned = again
            moved = turn is not None and (turn.waited or planned.at is not at)
            put = self._put(planned, turn, schema_too=moved, ahead=attempt == 1)
        if put is None or not self._has_landed(put, planned.draft):
            return None
        before, landed = planned.at.head, put.staged.snapshot
        remember(table.store, table.paths.snapshot_dir, [landed.id], looked=False)
        refresh_hint(table, landed.id)
        warning = _run_checks(table, before, planned.draft, landed, planned.checks)
        verify_at_end(table, landed)
        return Receipt(before=before, snapshot=landed, attempts=attempt, warning=warning)

    def _plan_early(self) -> _Planned | None:
        """Plan on what was told of the head, and look for it while the changes are written; None: it didn't help."""
        known = early_state(self.table, self.seen)
        if known is None:
            return None
        made: tuple[_Planned, Changes | None] | None = None
        with suppress(Exception):  # what is wrong, and not only on a table made anew, shows on what is there
            planned = self._plan(known.at, 1)
            if isinstance(planned, _Planned) and _may_go_ahead(planned.draft):
                made = planned, self._new_changes(planned)
        if made is not None:
            newest, schema = self._write_changes(*made, [known.newest_id, known.schema])
            if known.holds(newest, schema):
                return made[0]
        self._forget()
        return None

    def _plan_newest(self, attempt: int) -> _Planned | Receipt | None:
        """Plan on the newest head; None: that is another one meanwhile, and what this one needs is gone."""
        at = _newest_state(self.table, self.seen)
        try:
            return self._plan(at, attempt)
        except FormatError as error:
            if at.head is None or not self._is_outdated(at.head, attempt, error):
                raise
            self._forget()
            return None

    def _is_outdated(self, head: Snapshot, attempt: int, error: FormatError) -> bool:
        """Whether the head was taken away, or others have committed so much that what it needs has expired."""
        if not still_follows(self.table, head):
            return True
        lost = isinstance(error, LostMetadataError) and attempt < _TRIES_OF_LOST
        return lost and self.table.latest_snapshot_id() not in (None, head.id)

    def _plan(self, at: HeadState, attempt: int) -> _Planned | Receipt:
        """Make the draft for a head; a receipt: there is nothing to do, or another try has done it."""
        table, head, identity = self.table, at.head, self.options.identity
        self.seen.add([] if head is None else [head])
        if self.looked is not None and head is not None:
            landed = find_landed(table, identity, self.looked, head, self.seen.history)
            if landed is not None:
                self._discard_changes()
                return Receipt(before=_before(table, landed), snapshot=landed, attempts=attempt, replayed=True)
            self.looked = head.id
        draft = self.draft = _followed(self.draft, head) or self.make_draft(at)
        if draft is None:
            self._discard_changes()
            return Receipt(before=head, snapshot=None, attempts=attempt)
        check_known([head], table=table.label)
        for condition in (*self.options.conditions, *draft.conditions):
            condition.check(at)
        checks = check_draft(table, head, replace(draft, guard_options=self.options.guard_options))
        return _Planned(at=at, draft=draft, checks=checks)

    def _plan_in_turn(self, planned: _Planned, turn: CommitTurn, attempt: int) -> _Planned | Receipt:
        """Plan again if there is a newer head: at the first attempt also on one that is not there yet.

        On such a one, and on one that is gone though it was told of, nothing else counts, neither a refusal nor that
        nothing is to do: it is planned again on what is there.
        """
        head = planned.at.head
        for ahead in (attempt == 1 and _may_go_ahead(planned.draft), False):
            newer = turn.newest(head, self.seen, ahead=ahead)
            if newer is head:
                return planned
            try:
                again = self._plan(planned.at.on(newer), attempt)
            except PaimonError:
                if not turn.is_ahead() and turn.is_there(newer):
                    raise
            else:
                if isinstance(again, _Planned):
                    counts = not turn.is_ahead() or _may_go_ahead(again.draft)
                else:
                    counts = not turn.is_ahead() and turn.is_there(newer)
                if counts:
                    return again
            self._forget()
        newer = turn.newest(head, self.seen, ahead=False)
        return planned if newer is head else self._plan(planned.at.on(newer), attempt)

    def _forget(self) -> None:
        """Forget what was learned of snapshots, as one of them was not there."""
        self.seen.forget()
        self.draft = None
        self.looked = self.options.identity.since

    def _new_changes(self, planned: _Planned) -> Changes | None:
        """Make what doesn't depend on the head, to be written before the turn; None: it is written, or does depend."""
        head, draft = planned.at.head, planned.draft
        if self._has_changes_of(draft) or TableOptions(draft.schema.options).row_tracking:
            return None
        return make_changes(self.table, head, draft)

    def _write_changes(
        self, planned: _Planned, new: Changes | None, beside: Sequence[Callable[[], Any]] = ()
    ) -> Sequence[Any]:
        """Write changes. Where that takes a while, read the lists of the head that there is: on a local disk the next
        one's are told, or read in no time. Give what the calls ``beside`` return.
        """
        if new is None:
            return side_by_side(self.table.store, beside)
        self.changes = new
        reads = reads_of_head(self.seen, planned.at.head, planned.draft) if self.table.store.remote else ()
        return write(self.table, new.files, [*beside, *(partial(_try, read) for read in reads)])[: len(beside)]

    def _has_changes_of(self, draft: Draft) -> bool:
        if self.changes is not None and not self.changes.fit(draft):
            self._discard_changes()
        return self.changes is not None

    def _discard_changes(self) -> None:
        if self.changes is not None:
            discard(self.table, self.changes.files)
            self.changes = None

    def _put(self, planned: _Planned, turn: CommitTurn | None, *, schema_too: bool, ahead: bool) -> _Put | None:
        """Put the snapshot file if absent, unless the head is gone. None: it certainly did not land.

        If the id is free but the head is gone, the branch was deleted (and perhaps recreated), or rolled back by
        another engine. The snapshot would then bring the old rows back. ``schema_too``: look whether the branch was
        altered since it was planned first. ``ahead``: the next one may be told of it before it is put.
        """
        table, at, draft = self.table, planned.at, planned.draft
        written = self._has_changes_of(draft)
        changes = self.changes = self.changes or make_changes(table, at.head, draft)
        looks: list[Callable[[], object]] = [
            partial(require_ready, table),
            partial(is_still_there, table, at.head, draft),
        ]
        if schema_too:
            looks.append(at.has_newest_schema)
        staged = self._staged(planned, changes, turn, stamp=str(uuid.uuid4()) if written else changes.stamp)
        if staged is None:
            return None
        # Whoever plans on it can read all that it names, and is told of its base list.
        if turn is not None and ahead and written and len(staged.files) == 1 and _may_go_ahead(draft):
            turn.go_ahead(staged)
        waits = turn is not None and turn.is_ahead()  # looked at before the head is looked for
        ready, (branch, there, *fine) = get_ready(table, staged, written=written, beside=looks)
        if there is None and waits and turn is not None:
            there = turn.has_come()
        if not there:
            self._forget()
            if turn is not None:
                turn.leave(None)
        if not there or not all(fine) or not self._prepared(draft, staged, ready):
            ready.discard()
            discard(table, staged.files)
            return None
        answer = self._put_ready(staged, ready)
        if turn is not None:
            turn.leave(staged if answer is _Answer.DONE else None)
        return _Put(head=at.head, staged=staged, ready=ready, branch=branch, answer=answer)

    def _staged(self, planned: _Planned, changes: Changes, turn: CommitTurn | None, *, stamp: str) -> Staged | None:
        try:
            return stage(self.seen, planned.at.head, planned.draft, self.options, changes, stamp=stamp)
        except PaimonError:
            if self._has_head(planned, turn):
                raise
            self._forget()  # what the head names may be gone with it
            if turn is not None and not turn.is_ahead():
                turn.leave(None)
            return None

    def _has_head(self, planned: _Planned, turn: CommitTurn | None) -> bool:
        """Whether the head that was planned on is there: it may only have been told of."""
        if turn is None:
            return bool(is_still_there(self.table, planned.at.head, planned.draft))
        return not turn.is_ahead() and turn.is_there(planned.at.head)

    def _put_ready(self, staged: Staged, ready: Put) -> _Answer:
        self.changes = None  # from here on they may be named
        self.in_doubt = staged.snapshot
        try:
            ready.put()
        except AlreadyExistsError:
            return _Answer.EXISTS
        except OutcomeUnknownError:
            return _Answer.UNKNOWN
        except PaimonError:
            self.in_doubt = None
            discard(self.table, [*staged.files, *staged.changes.files])
            raise
        return _Answer.DONE

    def _prepared(self, draft: Draft, staged: Staged, ready: Put) -> bool:
        try:
            return draft.prepare is None or draft.prepare()
        except PaimonError:
            ready.discard()
            discard(self.table, staged.files)  # the snapshot was not put yet
            raise

    def _has_landed(self, put: _Put, draft: Draft) -> bool:
        """Read back what was put. False: it certainly did not land, or had to be taken back."""
        table, staged, answer = self.table, put.staged, put.answer
        if answer is _Answer.DONE:
            try:
                put.ready.settle()
            except OutcomeUnknownError:
                answer = _Answer.UNKNOWN
        certain = answer is _Answer.EXISTS
        looks: list[Callable[[], bool | None]] = [
            partial(read_back, table, staged, put.branch, certain=certain),
            partial(still_follows, table, put.head),
        ]
        landed, in_order = side_by_side(table.store, looks)
        if landed is None:
            self.in_doubt = None
            discard(table, [*staged.files, *staged.changes.files])
            raise ConflictError(
                f"{table.label}: the branch was renamed or deleted during the commit; nothing was written"
            )
        if landed and (in_order or not taken_back(table, staged.snapshot, put.head, put.branch)):
            return True
        if landed:
            self._forget()
        elif answer is _Answer.DONE:
            raise unknown_outcome(table, staged.snapshot, "another engine wrote over it right after it was published")
        elif answer is _Answer.UNKNOWN:
            # Its manifests stay: a commit on top of ours, made before it was replaced, refers to them.
            check_not_built_upon(table, draft, staged.snapshot)
        else:
            discard(table, staged.files)
            self.changes = staged.changes
        self.in_doubt = None
        return False


def _try(read: Callable[[], object]) -> None:
    """Read ahead: what is wrong, as with a head that is gone, shows when it is needed."""
    with suppress(PaimonError):
        read()


def _may_go_ahead(draft: Draft) -> bool:
    """Whether it may be planned on a snapshot that is not there yet: it reads nothing but what that one names."""
    return draft.only_new and draft.prepare is None and draft.follow is None and draft.base is None


def _newest_state(table: Table, seen: Seen) -> HeadState:
    """Read the head; on a remote storage the newest schema at the same time."""
    if not table.store.remote:
        return HeadState(table, table.latest_snapshot(), seen)

    def schema() -> TableSchema | None:
        with suppress(PaimonError):  # who needs the schema is told why there is none
            return table.schema()
        return None

    found: list[Any] = side_by_side(table.store, [table.latest_snapshot, schema])
    head, known = found
    if head is not None and known is not None and known.id < head.schema_id:
        known = None  # the branch was altered, and the head written, after the schema was read
    remember_schema(table, known)
    return HeadState(table, head, seen, known)


def _before(table: Table, landed: Snapshot) -> Snapshot | None:
    try:
        return table.snapshot(landed.id - 1) if landed.id > 1 else None
    except NotFoundError:
        return None


def _followed(draft: Draft | None, head: Snapshot | None) -> Draft | None:
    return None if draft is None or draft.follow is None or head is None else draft.follow(head)


def _run_checks(
    table: Table, before: Snapshot | None, draft: Draft, landed: Snapshot, checks: Sequence[PostCommitCheck]
) -> str | None:
    """Restore dropped partitions that are still needed. The commit has landed: the caller must not delete its files."""
    warnings = []
    for check in checks:
        try:
            lost = check.run()
            problem = None if lost is None else _restore(table, before, landed, lost)
        except PaimonError as error:
            problem = check.not_made(error.message)
        if problem is None:
            continue
        if all(e.kind != FileKind.ADD for e in draft.entries):
            problem.details[LANDED] = landed.id
            raise problem
        log.warning("%s", problem.message)
        warnings.append(problem.message)
    return "; ".join(warnings) or None


def _restore(table: Table, before: Snapshot | None, landed: Snapshot, lost: LostInputs) -> UnsafeOperationError:
    chosen = StoredPartitions(table.schema()).where(lost.partitions.__contains__)
    try:
        options = CommitOptions(guard_options=lost.guard_options)
        done = restore_partitions(table, before, landed, chosen, options, beside_appends=lost.beside_appends)
    except PaimonError as error:
        return lost.not_restored(before.id if before else None, error.message)
    return lost.restored(done.snapshot.id if done.snapshot else None)


def restore_partitions(
    table: Table,
    before: Snapshot | None,
    dropped: Snapshot,
    chosen: Selection,
    options: CommitOptions | None = None,
    *,
    beside_appends: bool,
) -> Receipt:
    """Add again, by reference, files that the snapshot ``dropped`` took from ``before``, of the chosen partitions.

    A partition that is not empty any more is skipped, unless it was only
    appended to and ``beside_appends`` says that its old rows belong beside the new ones.
    """
    return commit(table, partial(restore_draft, table, before, dropped, chosen, beside_appends), options)
