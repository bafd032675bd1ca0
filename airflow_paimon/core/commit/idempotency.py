"""Makes a retry return the first try's result: the operation record ``_airflow_paimon/operations/<hash of id>.json``.

The record is put if absent before the first commit. It holds a digest of the request and the branch's newest snapshot,
so that a later try refuses another request and searches for the commit after that snapshot. Without a record nothing
was committed under the id (or the folder was removed).

A mark for each record is put if absent as well. It says either that a second try has found the record, which is then
valid for good, or that the first try was refused: then the record is void, and the next try puts another one.

When an operation has ended, its result is put beside, ``_airflow_paimon/results/<hash of id>.json``. A retry returns
it, whatever has become of the table since: what the operation deleted may have been made again. Only if the first try
was killed before it put its result, or another engine has taken its commit away since, the retry looks for what that
try has done.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar, cast

from airflow_paimon.core.commit.committed import VerifiedCommits, find_committed, once_verified, verified_commits
from airflow_paimon.core.commit.draft import CommitIdentity
from airflow_paimon.core.commit.put import put_new
from airflow_paimon.core.errors import (
    AlreadyExistsError,
    ConflictError,
    FormatError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    StorageError,
    UnsafeOperationError,
    UnsupportedError,
)
from airflow_paimon.core.format.records import Record, is_record
from airflow_paimon.core.format.snapshot import Snapshot, SnapshotRef
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import Request
from airflow_paimon.core.store.base import read_if_exists
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.record_kinds import CHECKS, EXPIRY_PLANS, MARKS, OPERATIONS, RESULTS
from airflow_paimon.core.table.table import Table

log = logging.getLogger(__name__)

R = TypeVar("R", bound=OperationResult | None)

REFUSALS = (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    NotFoundError,
    UnsafeOperationError,
    UnsupportedError,
)
"""Errors after which nothing is published: the try's files can be discarded and its operation id can be reused."""
_FOUND, _REFUSED = b"", b"refused"
_RECORD = re.compile(r"([0-9a-f]{32})(?:-\d+)?(?:\.json)?")
_NOT_PART_OF_REQUEST = frozenset({"storage_options", "operation_id", "warehouse", "restricted_sql"})


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecord(Record):
    """What the first try was asked for, as digests, and the branch's newest snapshot before it.

    ``commits``: False: the retry looks at no snapshot.
    """

    operation_id: str
    request: str
    branch: str
    head: int
    head_identity: str = ""
    head_time: int = 0
    content: str | None = None
    commits: bool = True
    KIND = OPERATIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptResult(Record):
    """The result of an operation that has ended. ``request``: as in ``AttemptRecord``; ``commit``: the identity of the
    snapshot that it ends with, of a new branch that of its base, None if there is none.
    """

    request: str
    result: Mapping[str, Any]
    commit: str | None = None
    KIND = RESULTS


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One try of an operation.

    Attributes:
        operation_id: None = the operation has none, or is a dry run: no record.
        branch: The branch to write.
        head: Its newest snapshot when the operation was first tried; without an id only read if no writer is open
            (``writers_stopped``).
        retried: The operation was tried before, and that try was not refused.
        number: Which record of the id: how many tries were refused before.
    """

    table: Table
    operation_id: str | None = None
    branch: str = MAIN
    head: SnapshotRef = field(default_factory=SnapshotRef)
    retried: bool = False
    number: int = 0

    def identity(self, step: str) -> CommitIdentity:
        """Return the identity of a commit on the branch; the committer looks for a concurrent try that has it."""
        identity = commit_identity(self.operation_id, self.branch, step)
        if self.operation_id is None:
            return dataclasses.replace(identity, began=self.head if self.head.id else None)
        return dataclasses.replace(identity, since=self.head, retry_mark=_mark_path(self.operation_id, self.number))

    def committed(self, step: str) -> Snapshot | None:
        """Find the commit that an earlier try made as this step.

        Raises:
            OutcomeUnknownError: the snapshots to search are expired.
        """
        if not self.retried:
            return None
        return find_committed(self.table.branch(self.branch), self.identity(step), self.head)

    def forget(self) -> None:
        """Mark the record of a first try that committed nothing as void, unless a second try has found it meanwhile."""
        if self.operation_id is None or self.retried:
            return
        try:
            put_new(self.table, _mark_path(self.operation_id, self.number), _REFUSED)
        except AlreadyExistsError:
            pass
        except (StorageError, OutcomeUnknownError) as error:  # why it was refused matters more
            log.warning("%s: operation id %r can't be used again (%s)", self.table.name, self.operation_id, error)


@contextmanager
def attempt(
    table: Table,
    operation_id: str | None,
    branch: str,
    request: str,
    content: str | None = None,
    *,
    commits: bool = True,
    writers_stopped: bool = False,
) -> Iterator[Attempt]:
    """Write the operation record, or find an existing one; that of a first try that is refused becomes void.

    After an error with ``details["done"]`` something was committed, so the record stays.

    Args:
        operation_id: None = no record.
        request: Digest of the request.
        content: Digest of the rows, where available.
        commits: Whether a retry looks for commits, whose snapshots must not expire meanwhile.
        writers_stopped: Whether no writer of another engine is open now, so that the head has to be known.

    Raises:
        InvalidInputError: the id was used for another request, for another branch, or for other rows.
    """
    if operation_id is None:
        view = table.branch(branch)
        yield Attempt(table=table, branch=branch, head=_head_of(view, True) if writers_stopped else SnapshotRef())
        return
    entered = _enter(table, operation_id, branch, request, content, commits)
    try:
        yield entered
    except REFUSALS as error:
        if not error.details.get("done"):
            entered.forget()
        raise


def attempt_of(
    context: Context, branch: str = MAIN, request: Request | None = None, *, commits: bool = True
) -> AbstractContextManager[Attempt]:
    """Start an attempt at the context's operation (or at ``request``, its complete form); see ``attempt``."""
    request = request or context.request
    operation_id, digest = None if request.dry_run else request.operation_id, request_digest(request)
    if operation_id is not None:
        context.attempts[operation_id] = digest
    stopped = getattr(request, "writers_stopped", False)
    return attempt(context.table, operation_id, branch, digest, commits=commits, writers_stopped=stopped)


def once(context: Context, run: Callable[[], R], complete: Callable[[Request], Request] = lambda given: given) -> R:
    """Run an operation, or return the result of its first try if that has ended with the same request.

    ``complete``: the request as ``attempt_of`` gets it. ``run`` gives None where another process has to run it.

    Raises:
        PaimonError: as the operation does. OutcomeUnknownError: see ``verified_commits``.
    """
    earlier = _first_result(context, complete)
    if earlier is not None:
        return cast(R, earlier)
    with verified_commits():
        result = run()
        if result is not None:
            once_verified(partial(_keep_result, context, result))
    return result


def _first_result(context: Context, complete: Callable[[Request], Request]) -> OperationResult | None:
    request = context.request
    if request.operation_id is None or request.dry_run:
        return None
    try:
        kept = KeptResult.find(context.table.store, RESULTS.path(name_of_try(request.operation_id)), context.table.name)
        if kept is None:
            return None
        known = {f.name: kept.result[f.name] for f in dataclasses.fields(OperationResult)}
        result = OperationResult(**known | {"details": {**known["details"], "replayed": True}})
    except (FormatError, KeyError, TypeError):
        log.warning("%s: the result of operation %r is unreadable", context.table.name, request.operation_id)
        return None
    if kept.request != request_digest(complete(request)) or not _is_still_made(context.table, result, kept.commit):
        return None
    return result


def _is_still_made(table: Table, result: OperationResult, commit: str | None) -> bool:
    """Whether the operation's commit is there, or has expired since. Not if another engine has rolled its branch back
    below it, or has taken its id: then the search by user and identifier decides.
    """
    if commit is None:
        return True
    view, number = table.branch(result.branch), result.snapshot_after or 0
    now = view.find_snapshot(number)
    if now is not None:
        return now.identity == commit
    ids = view.snapshot_ids()  # none: the branch is gone
    return not ids or ids[0] > number


def _keep_result(context: Context, result: OperationResult, published: VerifiedCommits) -> None:
    """Keep the result of an operation that has an operation record and has changed something, for a retry.

    Not if its commit was another try's: only who publishes a snapshot knows for certain which one is its own.
    """
    operation_id = context.request.operation_id
    if operation_id is None or operation_id not in context.attempts or not result.changed:
        return
    mine = {(t.name, t.branch_name, s.id): s.identity for t, s in published}
    commit = mine.get((context.table.name, result.branch, result.snapshot_after or 0))
    commit = commit or result.details.get("base_identity")
    if commit is None and result.snapshot_after not in (None, result.snapshot_before):
        return
    kept = KeptResult(request=context.attempts[operation_id], commit=commit, result=result.to_json())
    try:
        put_new(context.table, RESULTS.path(name_of_try(operation_id)), kept.to_bytes())
    except AlreadyExistsError:
        pass  # a concurrent try was faster
    except (StorageError, OutcomeUnknownError, TypeError, ValueError) as error:  # a retry looks for the commit
        log.warning("%s: the result of operation %r isn't kept (%s)", context.table.name, operation_id, error)


def branch_of_attempt(table: Table, operation_id: str | None) -> str | None:
    """Return the branch that an operation was first tried on; None: it was not tried."""
    path = OPERATIONS.path(name_of_try(operation_id or ""))
    found = None if operation_id is None else AttemptRecord.find(table.store, path, table.name)
    return None if found is None else found.branch


def request_digest(request: Request) -> str:
    """Return a digest of the request, without user, credentials and what is only noted.

    What has its default is left out: a later version may have more fields, and a retry by it asks for the same.
    """
    names = (
        f.name for f in dataclasses.fields(request) if f.name not in _NOT_PART_OF_REQUEST and _is_given(request, f)
    )
    return digest_of({"operation": request.operation, **{name: getattr(request, name) for name in names}})


def _is_given(request: Request, field: dataclasses.Field[Any]) -> bool:
    if field.metadata.get("only_noted"):
        return False
    default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    return bool(getattr(request, field.name) != default)


def digest_of(values: Any) -> str:
    """Return a digest of values, by their JSON or else their text."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()


def commit_identity(operation_id: str | None, branch: str, step: str, partition: str = "") -> CommitIdentity:
    """Return the commit user and the stable 63-bit commit identifier of one step (docs/contributing/commits.md,
    Retries).
    """
    if operation_id is None:
        return CommitIdentity()
    digest = hashlib.sha256("\0".join((branch, partition, step)).encode()).digest()
    return CommitIdentity(user=operation_id, identifier=int.from_bytes(digest[:8], "big") >> 1)


def name_part(operation_id: str) -> str:
    """Turn an operation id into a part of a file or tag name: readable, at most 100 characters, still unique."""
    clean = re.sub(r"[^A-Za-z0-9_.-]+", "-", operation_id).strip("-.")
    digest = hashlib.sha256(operation_id.encode()).hexdigest()[:8]
    return clean if clean == operation_id and len(clean) <= 100 else f"{clean[:90].rstrip('-.')}-{digest}"


def old_records(table: Table, before_ms: int) -> list[str]:
    """Return the files that go by their age and were put before a time (epoch milliseconds), in the order in which to
    delete them.

    All files of an operation id go or none. Marks go first, and the first record last: a record without its mark counts
    as one that was tried, whereas a mark without its record would void the next one.
    """
    groups: dict[str, list[tuple[str, int | None]]] = {}
    for kind in (MARKS, EXPIRY_PLANS, OPERATIONS, RESULTS, CHECKS):
        for info in table.store.list(kind.folder):
            match = _RECORD.fullmatch(info.name)
            path = f"{kind.folder}/{info.name}"
            if match is not None or (kind is CHECKS and is_record(path)):
                groups.setdefault(path if match is None else match[1], []).append((path, info.modified_ms))
    old = (files for files in groups.values() if all(ms is not None and ms < before_ms for _, ms in files))
    return [path for files in old for path, _ in sorted(files, key=lambda f: _deletion_order(f[0]))]


def _deletion_order(path: str) -> tuple[bool, int]:
    number = path.removesuffix(".json").rpartition("/")[2].partition("-")[2]
    return path.endswith(".json"), -int(number or 0)


def _enter(table: Table, operation_id: str, branch: str, request: str, content: str | None, commits: bool) -> Attempt:
    head = _head_of(table.branch(branch), commits)
    record = AttemptRecord(
        operation_id=operation_id,
        request=request,
        branch=branch,
        head=head.id,
        head_identity=head.identity,
        head_time=head.time_millis,
        content=content,
        commits=commits,
    )
    for number in itertools.count():
        path = OPERATIONS.path(name_of_try(operation_id, number))
        try:
            put_new(table, path, record.to_bytes())
            return Attempt(table=table, operation_id=operation_id, branch=branch, head=head, number=number)
        except AlreadyExistsError:
            pass
        if _is_refused(table, operation_id, number):
            continue
        found = AttemptRecord.parse(read_if_exists(table.store, path) or b"", f"{table.name}: {path}")
        _check_same(table, operation_id, found, record)
        try:
            put_new(table, _mark_path(operation_id, number), _FOUND)
        except AlreadyExistsError:
            if _is_refused(table, operation_id, number):
                continue
        head = SnapshotRef(found.head, found.head_identity, found.head_time)
        return Attempt(table=table, operation_id=operation_id, branch=branch, head=head, retried=True, number=number)
    raise AssertionError("some record is new")


def _head_of(view: Table, commits: bool) -> SnapshotRef:
    """Return the branch's newest snapshot; of an operation without commits its id alone."""
    number = view.latest_snapshot_id() or 0
    if not number or not commits:
        return SnapshotRef(number)
    try:
        return SnapshotRef.of(view.snapshot(number))
    except (FormatError, NotFoundError):  # the operation may be there to mend it
        return SnapshotRef(number)


def _is_refused(table: Table, operation_id: str, number: int) -> bool:
    try:
        return table.store.read(_mark_path(operation_id, number)) == _REFUSED
    except NotFoundError:
        return False


def _check_same(table: Table, operation_id: str, found: AttemptRecord, record: AttemptRecord) -> None:
    if found.request != record.request or found.operation_id != operation_id:
        raise InvalidInputError(
            f"{table.name}: operation id {operation_id!r} was used for another request; give a new one",
            code="operation-id-used",
        )
    if found.branch != record.branch:
        raise InvalidInputError(
            f"{table.name}: operation id {operation_id!r} was used for branch {found.branch!r}; nothing was written "
            f"to branch {record.branch!r}. Give a new operation id"
        )
    if None not in (record.content, found.content) and found.content != record.content:
        raise InvalidInputError(
            f"{table.name}: operation id {operation_id!r} was used for other rows; these were not written. Give a new "
            f"operation id to write them"
        )


def _mark_path(operation_id: str, number: int) -> str:
    return f"{MARKS.folder}/{name_of_try(operation_id, number)}"


def name_of_try(operation_id: str, number: int = 0) -> str:
    """Return how the files of a try of an operation, or of a round of an expiry, are named."""
    digest = hashlib.sha256(operation_id.encode()).hexdigest()[:32]
    return f"{digest}-{number}" if number else digest
