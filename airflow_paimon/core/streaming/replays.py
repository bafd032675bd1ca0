"""The record with which a replay goes on, ``_airflow_paimon/replays/<key>.json`` of the table that it writes.

A replay by streams belongs to its branch: another branch of the name has another key. A rollback of the branch begins
another generation, with checkpoints of its own. A batch belongs to its operation id.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from airflow_paimon.core.commit.idempotency import digest_of
from airflow_paimon.core.commit.put import execute
from airflow_paimon.core.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    UnsafeOperationError,
)
from airflow_paimon.core.format.records import Record
from airflow_paimon.core.plan import PutNew, Replace
from airflow_paimon.core.table.branch_record import read_branch_record
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.properties import OPERATION_PROPERTY
from airflow_paimon.core.table.record_kinds import REPLAYS
from airflow_paimon.core.table.table import Table

_ROLLBACK = "rollback_to"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRecord(Record):
    """``starts``, ``ends``: snapshots of the sources by name (ends of a batch only); ``before``: of the targets.

    Of streams: ``generation`` is the branch's last rollback when the replay began, 0 = none; ``head`` its newest
    snapshot when a run of the replay began or ended last.
    """

    asked: str
    starts: Mapping[str, int]
    identities: Mapping[str, str]
    ends: Mapping[str, int] = field(default_factory=dict)
    before: Mapping[str, int] = field(default_factory=dict)
    generation: int = 0
    head: int = 0
    KIND = REPLAYS


def stream_key(view: Table) -> str:
    """Return the key of replays by streams into a branch."""
    main = view.branch(MAIN)
    made_from = read_branch_record(main, view.branch_name)
    made = None if made_from is None else (made_from.created_at, made_from.operation_id, made_from.identity)
    return digest_of([view.branch_name, made])[:32]


def current_generation(view: Table, record: ReplayRecord | None) -> int:
    """Return the last rollback of the branch, 0 without one; one that has expired is in the record.

    Raises:
        UnsafeOperationError: snapshots since the last run have expired, among which a rollback may have been.
    """
    snapshots = view.snapshots()
    if record is not None and snapshots and snapshots[0].id > record.head + 1:
        raise UnsafeOperationError(
            f"{view.label}: its snapshots {record.head + 1} to {snapshots[0].id - 1} have expired since it was last "
            "replayed, so a rollback in the meantime could go unnoticed. Replay into a new branch"
        )
    back = [s.id for s in snapshots if s.properties.get(OPERATION_PROPERTY) == _ROLLBACK]
    return max([0 if record is None else record.generation, *back])


def batch_key(operation_id: str) -> str:
    """Return the key of a batch."""
    return digest_of(["batch", operation_id])[:32]


def find_replay(table: Table, key: str) -> ReplayRecord | None:
    """Return the record of an earlier run.

    Raises:
        FormatError: the record is unreadable.
    """
    return ReplayRecord.find(table.store, REPLAYS.path(key), table.label)


def check_same_request(table: Table, record: ReplayRecord, request_digest: str) -> None:
    """Check that a re-run asks for what the first run did.

    Raises:
        InvalidInputError: it doesn't.
    """
    if record.asked != request_digest:
        raise InvalidInputError(
            f"{table.label} was replayed before with another function, other tables or another start. Give the same "
            "arguments to continue it, or start over: on a new branch, or on this one after rollback_to its base"
        )


def record_replay(table: Table, key: str, record: ReplayRecord, *, is_new: bool = False) -> None:
    """Keep what a re-run needs, before the first row is written.

    Raises:
        ConflictError: ``is_new``, and another try has recorded it meanwhile: its snapshots are the ones to read.
    """
    path, data, reason = REPLAYS.path(key), record.to_bytes(), "a re-run of the replay continues with it"
    action = PutNew(path=path, data=data, reason=reason) if is_new else Replace(path=path, data=data, reason=reason)
    try:
        execute(table, [action])
    except AlreadyExistsError:
        raise ConflictError(
            f"{table.label}: another attempt of this replay has begun in the meantime; nothing was written. Run it "
            "again: it continues that attempt"
        ) from None


def replay_path(key: str) -> str:
    """Return the place of a replay in the table's folder: its record with ``.json``, its checkpoints in the folder."""
    return f"{REPLAYS.folder}/{key}"
