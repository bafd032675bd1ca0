"""The one committer: how a snapshot comes into a table. Everything is put-if-absent or compare-and-swap on heads.

A commit writes manifests under unique names, publishes ``snapshot-(head + 1)`` with put-if-absent, reads it back and
then refreshes the LATEST hint. A loser re-plans on the new head. After an unknown outcome nothing is cleaned up.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from airflow_paimon.core.commit.cache import CommitCache
from airflow_paimon.core.commit.committed import (
    check_not_built_upon,
    find_committed,
    head_is_unchanged,
    is_still_there,
    read_back,
    take_back_misplaced,
    unknown_outcome,
    verify_at_end,
)
from airflow_paimon.core.commit.conditions import HeadState
from airflow_paimon.core.commit.draft import CommitOptions, Draft, MakeDraft, Receipt
from airflow_paimon.core.commit.guard import PostCommitCheck, commit_guard
from airflow_paimon.core.commit.lost_races import count_lost_race, wait_after_lost_race
from airflow_paimon.core.commit.metadata_files import (
    ChangeFiles,
    discard,
    make_change_files,
    new_snapshot,
    write,
)
from airflow_paimon.core.commit.put import require_committable
from airflow_paimon.core.errors import (
    AlreadyExistsError,
    ConflictError,
    FormatError,
    LostMetadataError,
    NotFoundError,
    OutcomeUnknownError,
    PaimonError,
)
from airflow_paimon.core.format.manifest import FileKind
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import Snapshot, SnapshotRef
from airflow_paimon.core.store.base import run_parallel
from airflow_paimon.core.table.branch_record import BranchRecord, require_ready
from airflow_paimon.core.table.features import check_known
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.table import Table

log = logging.getLogger(__name__)

_TRIES_OF_LOST = 5
"""How often metadata that is missing may be taken for expired: what an older head needs, the newest may do without."""
COMMITTED = "committed_snapshot"
"""Of an error's details: the snapshot that was published, and was found wrong only then."""


def commit(
    table: Table, make_draft: Callable[[Snapshot | None], Draft | None], options: CommitOptions | None = None
) -> Receipt:
    """Commit what ``make_draft`` makes of a head (None: no snapshot yet); see ``commit_at``."""
    return commit_at(table, lambda at: make_draft(at.head), options)


def commit_at(table: Table, make_draft: MakeDraft, options: CommitOptions | None = None) -> Receipt:
    """Plan on the newest head and publish one snapshot; plan again when another writer was faster.

    Of every attempt the draft's conditions must hold, and it must pass the guard (``core/commit/guard.py``). Dropped
    partitions that its post-commit check still needs are restored: an error if the commit only dropped partitions,
    otherwise a warning in the receipt. ``make_draft`` may raise ``ConflictError``; None = nothing to do.

    Raises:
        ConflictError: a condition doesn't hold, or attempts used up. OutcomeUnknownError: it may have been committed.
        UnsafeOperationError: the guard refuses it, everything that it dropped was restored, or the post-commit check
            failed. All leave the table readable.
    """
    require_committable(table)
    return _Commit(table, make_draft, options or CommitOptions()).run()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planned:
    """A draft that may go on top of a head."""

    at: HeadState
    draft: Draft
    check: PostCommitCheck | None


@dataclass(eq=False, slots=True)
class _Commit:
    """One commit. ``changes``: those of its files that are written, and that certainly no snapshot names.

    ``head_at_begin``: the head when the operation began. ``in_doubt``: the snapshot that was put, or perhaps was, until
    it is certain that it was not committed. Every error means an unknown outcome till then: after other errors callers
    delete the files that they wrote.
    """

    table: Table
    make_draft: MakeDraft
    options: CommitOptions
    cache: CommitCache = field(init=False)
    searched_up_to: SnapshotRef | None = field(init=False)
    head_at_begin: SnapshotRef | None = field(init=False)
    draft: Draft | None = None
    changes: ChangeFiles | None = None
    in_doubt: Snapshot | None = None

    def __post_init__(self) -> None:
        self.cache = CommitCache(self.table)
        self.searched_up_to = self.options.identity.since
        self.head_at_begin = self.searched_up_to or self.options.identity.began

    def run(self) -> Receipt:
        most = self.options.max_attempts
        try:
            for attempt in range(1, most + 1):
                receipt = self._attempt(attempt)
                if receipt is not None:
                    return receipt
                count_lost_race()
                wait_after_lost_race(attempt)
            raise ConflictError(
                f"{self.table.label}: {most} attempts to commit lost to other writers; nothing was "
                f"written. Run it again when fewer writers commit",
                code="commit-lost",
            )
        except PaimonError as error:
            self._discard_changes()
            if self.in_doubt is None or isinstance(error, OutcomeUnknownError) or COMMITTED in error.details:
                raise
            why = f"it could not be read back ({error.message})"
            raise unknown_outcome(self.table, self.in_doubt, why) from error

    def _attempt(self, attempt: int) -> Receipt | None:
        """Plan on the newest head, and put a snapshot on top of it; None: another came first."""
        table = self.table
        planned = self._plan_newest(attempt)
        if not isinstance(planned, _Planned):
            return planned
        written = self._write(planned)
        if written is None or not self._put(planned, *written):
            return None
        before, committed = planned.at.head, written[0]
        _refresh_hint(table, committed.id)
        warning = _run_check(planned, committed)
        verify_at_end(table, committed)
        return Receipt(before=before, snapshot=committed, attempts=attempt, warning=warning)

    def _plan_newest(self, attempt: int) -> _Planned | Receipt | None:
        """Plan on the newest head; None: that is another one meanwhile, and what this one needs is gone."""
        at = _newest_state(self.table, self.cache)
        self.head_at_begin = self.head_at_begin or SnapshotRef.of(at.head)
        at.stopped_at = self.head_at_begin if self.options.writers_stopped else None
        try:
            return self._plan(at, attempt)
        except FormatError as error:
            if at.head is None or not self._is_outdated(at.head, attempt, error):
                raise
            self._forget_snapshots()
            return None

    def _is_outdated(self, head: Snapshot, attempt: int, error: FormatError) -> bool:
        """Whether the head was taken away, or others have committed so much that what it needs has expired."""
        if not head_is_unchanged(self.table, head):
            return True
        lost = isinstance(error, LostMetadataError) and attempt < _TRIES_OF_LOST
        return lost and self.table.latest_snapshot_id() not in (None, head.id)

    def _plan(self, at: HeadState, attempt: int) -> _Planned | Receipt:
        """Make the draft for a head; a receipt: there is nothing to do, or another try has done it."""
        table, head, identity = self.table, at.head, self.options.identity
        if self.searched_up_to is not None and head is not None:
            committed = find_committed(table, identity, self.searched_up_to, head)
            if committed is not None:
                self._discard_changes()
                return Receipt(before=_before(table, committed), snapshot=committed, attempts=attempt, replayed=True)
            self.searched_up_to = SnapshotRef.of(head)
        kept = self.draft
        kept = None if kept is None or kept.on_newer_head is None or head is None else kept.on_newer_head(head)
        draft = self.draft = kept or self.make_draft(at)
        if draft is None:
            self._discard_changes()
            return Receipt(before=head, snapshot=None, attempts=attempt)
        check_known([head], table=table.label)
        for condition in (*self.options.conditions, *draft.conditions):
            condition.check(at)
        check = commit_guard()(table, head, draft, self.options.guard_options)
        return _Planned(at=at, draft=draft, check=check)

    def _forget_snapshots(self) -> None:
        """Forget what was learned of snapshots, as one of them was not there."""
        self.cache.forget()
        self.draft = None
        self.searched_up_to = self.options.identity.since

    def _discard_changes(self) -> None:
        if self.changes is not None:
            discard(self.table, self.changes.files)
            self.changes = None

    def _write(self, planned: _Planned) -> tuple[Snapshot, Mapping[str, bytes], BranchRecord | None] | None:
        """Write all that a snapshot names, and return it with the files that only it names and the branch's record;
        None: the head is gone.

        If the id is free but the head is gone, the branch was deleted (and perhaps recreated), or rolled back by
        another engine. The snapshot would then bring the old rows back.
        """
        table, head, draft = self.table, planned.at.head, planned.draft
        written = self.changes is not None and self.changes.matches(draft)
        if not written:
            self._discard_changes()
        changes = self.changes or make_change_files(table, head, draft)
        new = self._new_snapshot(planned, changes, stamp=str(uuid.uuid4()) if written else changes.stamp)
        if new is None:
            return None
        self.changes = changes
        snapshot, own = new
        files = own if written else {**changes.files, **own}
        try:
            branch, there = write(
                table, files, [partial(require_ready, table), partial(is_still_there, table, head, draft)]
            )
            if not there:
                self._forget_snapshots()
            if not there or (draft.prepare is not None and not draft.prepare()):
                discard(table, own)
                return None
        except PaimonError:
            discard(table, own)  # the snapshot was not put yet
            raise
        return snapshot, own, branch

    def _new_snapshot(
        self, planned: _Planned, changes: ChangeFiles, *, stamp: str
    ) -> tuple[Snapshot, dict[str, bytes]] | None:
        try:
            return new_snapshot(self.cache, planned.at.head, planned.draft, self.options, changes, stamp=stamp)
        except PaimonError:
            if is_still_there(self.table, planned.at.head, planned.draft):
                raise
            self._forget_snapshots()  # what the head names is gone with it
            return None

    def _put(
        self, planned: _Planned, snapshot: Snapshot, files: Mapping[str, bytes], branch: BranchRecord | None
    ) -> bool:
        """Put the snapshot file if absent, and read it back. False: it certainly was not committed, or had to be taken
        back. ``files``: those that only this snapshot names.
        """
        table, head, refused = self.table, planned.at.head, None
        changes, self.changes = self.changes, None  # from here on they may be named
        assert changes is not None
        self.in_doubt = snapshot
        try:
            table.store.create(table.paths.snapshot(snapshot.id), snapshot.to_bytes())
        except (AlreadyExistsError, OutcomeUnknownError) as error:
            refused = error
        except PaimonError:
            self.in_doubt = None
            discard(table, [*files, *changes.files])
            raise
        certain = isinstance(refused, AlreadyExistsError)
        looks: list[Callable[[], bool | None]] = [
            partial(read_back, table, snapshot, branch, certain=certain),
            partial(head_is_unchanged, table, head),
        ]
        committed, head_unchanged = run_parallel(table.store, looks)
        if committed is None:
            self.in_doubt = None
            discard(table, [*files, *changes.files])
            raise ConflictError(
                f"{table.label}: the branch was renamed or deleted during the commit; nothing was written"
            )
        if committed and (head_unchanged or not take_back_misplaced(table, snapshot, head, branch)):
            return True
        if committed:
            self._forget_snapshots()
        elif refused is None:
            raise unknown_outcome(table, snapshot, "another engine wrote over it right after it was published")
        elif not certain:
            # Its manifests stay: a commit on top of ours, made before it was replaced, refers to them.
            check_not_built_upon(table, planned.draft, snapshot)
        else:
            discard(table, files)
            self.changes = changes
        self.in_doubt = None
        return False


def _newest_state(table: Table, cache: CommitCache) -> HeadState:
    """Read the head; on a remote storage the newest schema at the same time."""
    if not table.store.remote:
        return HeadState(table, table.latest_snapshot(), cache)

    def schema() -> TableSchema | None:
        with suppress(PaimonError):  # who needs the schema is told why there is none
            return table.schema()
        return None

    found: list[Any] = run_parallel(table.store, [table.latest_snapshot, schema])
    head, known = found
    if head is not None and known is not None and known.id < head.schema_id:
        known = None  # the branch was altered, and the head written, after the schema was read
    return HeadState(table, head, cache, known)


def _before(table: Table, committed: Snapshot) -> Snapshot | None:
    try:
        return table.snapshot(committed.id - 1) if committed.id > 1 else None
    except NotFoundError:
        return None


def _refresh_hint(table: Table, snapshot_id: int) -> None:
    """Write the LATEST hint. It may be older than the one that another writer has just written: whoever reads a hint
    looks for the next snapshot as well.
    """
    try:
        table.store.hint(table.paths.latest_hint, str(snapshot_id).encode())
        if not table.store.remote and not table.store.exists(table.paths.snapshot(snapshot_id)):
            table.store.delete(table.paths.latest_hint)  # expired meanwhile, or the table was made anew
        if table.branch_name != MAIN and not table.exists():  # deleted meanwhile, and this would be its only file
            table.store.delete(table.paths.latest_hint)
    except PaimonError as error:
        log.warning("%s: LATEST hint not refreshed (%s); readers list the folder instead", table.label, error)


def _run_check(planned: _Planned, committed: Snapshot) -> str | None:
    """Restore dropped partitions that are still needed. It is committed: the caller must not delete its files."""
    problem = None if planned.check is None else planned.check(planned.at.head, committed)
    if problem is None:
        return None
    if all(e.kind != FileKind.ADD for e in planned.draft.entries):
        problem.details[COMMITTED] = committed.id
        raise problem
    log.warning("%s", problem.message)
    return problem.message
