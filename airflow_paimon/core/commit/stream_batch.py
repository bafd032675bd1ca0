"""Makes each batch of a stream one commit at most: commit user = query id, commit identifier = batch id.

The record ``_airflow_paimon/streams/<query id>.json`` holds the batch that was tried last and the branch's newest
snapshot right before that. It is replaced with each batch: a query has one batch at a time. A batch that is tried again
looks for its commit behind that snapshot, so what expires before it doesn't matter; what comes after it is kept for a
while (``expire_snapshots``, ``retry_window``). So does a batch above the recorded one: a process that was stopped right
before it wrote the record, and went on after its query had been restarted, can have replaced a later record by its own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from airflow_paimon.core.commit.committed import find_committed
from airflow_paimon.core.commit.draft import CommitIdentity
from airflow_paimon.core.commit.put import require_committable
from airflow_paimon.core.errors import FormatError, OutcomeUnknownError, UnsafeOperationError
from airflow_paimon.core.format.records import Record
from airflow_paimon.core.format.snapshot import Snapshot, SnapshotRef
from airflow_paimon.core.table.record_kinds import STREAMS
from airflow_paimon.core.table.table import Table

ROWS_PROPERTY = "airflow-paimon.stream-rows"
"""Snapshot property of a batch: a digest of its rows (``data/rows_digest.py``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRecord(Record):
    """The batch that was tried last; ``head`` and ``identity`` are the newest snapshot's right before, 0 and empty
    without one.
    """

    query: str
    branch: str
    batch: int
    head: int
    identity: str
    KIND = STREAMS


_QUERY = re.compile(r"[A-Za-z0-9-]{1,64}")


def begin_batch(table: Table, query: str, batch: int) -> tuple[CommitIdentity, Snapshot | None]:
    """Record a batch before its first commit is tried; returns its identity, and the commit of an earlier try.

    Raises:
        UnsafeOperationError: a later batch was tried before (the checkpoint is older than the table), the query writes
            to another branch, or the branch was rolled back below the commit to look for.
        OutcomeUnknownError: the snapshots that could tell have expired.
    """
    require_committable(table)
    head = table.latest_snapshot()
    found = _read(table, query)
    if found is None:
        return _first_try(table, query, batch, head), None
    _check(table, query, batch, found)
    since = SnapshotRef(found.head, found.identity)
    identity = CommitIdentity(user=query, identifier=batch, since=since)
    if found.batch < batch:
        committed = _committed_unrecorded(table, identity, since, head)
        return (identity, committed) if committed is not None else (_first_try(table, query, batch, head), None)
    _check_history(table, query, batch, since, head)
    try:
        return identity, find_committed(table, identity, since, head)
    except OutcomeUnknownError as error:
        raise OutcomeUnknownError(
            f"{table.label}: cannot determine whether batch {batch} of stream {query} was committed: snapshots since "
            f"{since.id} have expired. Check the table's rows (commit user {query}), then use a new checkpoint location"
        ) from error


def check_same_batch(
    table: Table, query: str, batch: int, committed: Snapshot, rows: int, content: str | None = None
) -> None:
    """Check that a batch that is repeated has the rows of its commit; without a digest, that it has no more rows.

    It has others when the query's checkpoint was restored from before that batch: then Spark plans it again, with what
    has come since, and skips nothing of that later. ``content``: a digest of the rows, as ``ROWS_PROPERTY`` has it.

    Raises:
        UnsafeOperationError: it has others.
    """
    known, recorded = committed.delta_record_count, committed.properties.get(ROWS_PROPERTY)
    more = known is not None and rows > known
    if not more and (content is None or recorded is None or content == recorded):
        return
    says = (
        f"with {rows:,} rows, but its commit, snapshot {committed.id}, has {known:,}"
        if more
        else (f"with other rows than its commit, snapshot {committed.id}")
    )
    raise UnsafeOperationError(
        f"{table.label}: stream {query} repeats batch {batch} {says}: its checkpoint is older than the table, so rows "
        "would be lost. Use the newest checkpoint, or a new one after a rollback; for random results set "
        "sink.other-rows-when-repeated",
        details={"snapshot": committed.id, "rows": rows, "committed": known},
    )


def branch_of_stream(table: Table, query: str) -> str | None:
    """Return the branch that a query writes to, None without a record.

    Raises:
        FormatError: the record is unreadable.
    """
    found = _read(table, query)
    return None if found is None else found.branch


def _first_try(table: Table, query: str, batch: int, head: Snapshot | None) -> CommitIdentity:
    since = SnapshotRef.of(head)
    record = BatchRecord(query=query, branch=table.branch_name, batch=batch, head=since.id, identity=since.identity)
    table.store.replace(_path(table, query), record.to_bytes())
    return CommitIdentity(user=query, identifier=batch, since=since)


def _committed_unrecorded(
    table: Table, identity: CommitIdentity, since: SnapshotRef, head: Snapshot | None
) -> Snapshot | None:
    """Search for a batch that the record does not hold: a try of an earlier batch that was stopped right before it
    wrote the record has replaced a later one when it went on.

    If snapshots behind the recorded one have expired, the remaining ones decide: a stream may rest for long.

    Raises:
        OutcomeUnknownError: there is a commit of this batch, of which it can't be told whether it is in.
    """
    try:
        return find_committed(table, identity, since, head)
    except OutcomeUnknownError:
        rest = (table.find_snapshot(i) for i in table.snapshot_ids() if i > since.id)
        mine = (identity.user, identity.identifier)
        if any(s is not None and (s.commit_user, s.commit_identifier) == mine for s in rest):
            raise
        return None


def _check(table: Table, query: str, batch: int, found: BatchRecord) -> None:
    if found.branch != table.branch_name:
        raise UnsafeOperationError(
            f"{table.label}: stream {query} has written to branch {found.branch!r} before: a batch could be on both. "
            "Use a new checkpoint location for another branch"
        )
    if found.batch > batch:
        raise UnsafeOperationError(
            f"{table.label}: stream {query} repeats batch {batch}, but has begun batch {found.batch} already: its "
            "checkpoint is older than the table, so rows would come twice. Use the newest checkpoint, or a new "
            "location after a rollback"
        )


def _check_history(table: Table, query: str, batch: int, since: SnapshotRef, head: Snapshot | None) -> None:
    newest = 0 if head is None else head.id
    before = table.find_snapshot(since.id) if since.id else None
    if newest < since.id or (before is not None and before.identity != since.identity):
        raise UnsafeOperationError(
            f"{table.label} was rolled back or fast-forwarded by another engine at or below snapshot {since.id} during "
            f"batch {batch} of stream {query}: cannot determine whether it has its rows. Check them, then use a new "
            "checkpoint location"
        )


def _read(table: Table, query: str) -> BatchRecord | None:
    return BatchRecord.find(table.store, _path(table, query), table.label)


def _path(table: Table, query: str) -> str:
    if not _QUERY.fullmatch(query):
        raise FormatError(f"{table.label}: {query!r} is not the id of a streaming query")
    return STREAMS.path(query)
