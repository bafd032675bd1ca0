"""Holds: what a publish or rollback takes its files from is kept by a root of its own until its snapshot is there.

Between the look at a branch and the snapshot on main somebody may delete the branch, or expire the snapshot that is
gone back to, and then clean up: no root would name the files that main gets. So a hold is put first, and only then is
it checked that what it holds is still there (docs/contributing/deletion.md, Two looks miss nothing). It is no tag:
another branch's snapshot id among main's tags would mislead Paimon's expiry.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from airflow_paimon.core.commit.put import delete_files, put_new
from airflow_paimon.core.errors import ConflictError, FormatError, NotFoundError, PaimonError
from airflow_paimon.core.format.records import Record, is_record
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.table.history import is_retained, publish_target
from airflow_paimon.core.table.partition_scope import WHOLE, PartitionScope, recorded_scope
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.record_kinds import HOLDS
from airflow_paimon.core.table.table import Table

log = logging.getLogger(__name__)

_LEFT_AFTER_MS = 7 * 24 * 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold(Record):
    """The content of a hold: a snapshot of a branch. ``user``: the commit user of a publish, None of anything else;
    ``partitions``: those that it is about, as ``PartitionScope.json`` has them, None: all. ``schema``: the target's
    newest one before the publish's.
    """

    branch: str
    snapshot: Snapshot
    user: str | None = None
    partitions: str | None = None
    schema: int | None = None
    KIND = HOLDS

    def scope(self, branch: Table) -> PartitionScope:
        """Return the partitions of the branch that the publish is about.

        Raises:
            FormatError: they are damaged.
        """
        return recorded_scope(branch.schema(), self.partitions, branch.label)


def put_hold(
    source: Table,
    snapshot: Snapshot,
    user: str | None = None,
    scope: PartitionScope = WHOLE,
    schema: int | None = None,
) -> str:
    """Hold a snapshot of a branch, and return the hold's path. ``user``: of a publish of these partitions; ``schema``:
    see ``Hold``.

    Holds of killed processes go after a week; those of publishes when a retry has committed, or not before the branch's
    snapshot has gone, as they may have been committed.

    Raises:
        ConflictError: the snapshot, and each tag on it, is gone already; nothing is held.
    """
    path = HOLDS.path(str(uuid.uuid4()))
    only = None if scope.is_whole else scope.json
    hold = Hold(branch=source.branch_name, snapshot=snapshot, user=user, partitions=only, schema=schema)
    put_new(source, path, hold.to_bytes())
    if not is_retained(source, snapshot):
        delete_files(source, [path])
        raise _gone(source, snapshot)
    _drop_left(source, path)
    return path


@contextmanager
def conflict_if_gone(source: Table, snapshot: Snapshot) -> Iterator[None]:
    """Tell what is missing because somebody takes the branch's snapshot away meanwhile from damage.

    Paimon's own rollback deletes what it takes back at once, and asks for no hold. Who deletes a branch and makes it
    anew takes away its columns as well.

    Raises:
        ConflictError: in place of the error of a file that is missing, if the snapshot is gone, too.
    """
    try:
        yield
    except (FormatError, NotFoundError) as error:
        if is_retained(source, snapshot):
            raise
        raise _gone(source, snapshot) from error


def _gone(source: Table, snapshot: Snapshot) -> ConflictError:
    return ConflictError(
        f"{source.label}: snapshot {snapshot.id} no longer exists: the branch was deleted or rolled back by another "
        "engine, or the snapshot has expired; nothing was changed"
    )


def drop_hold(table: Table, path: str) -> None:
    """Delete a hold. A failure leaves it for a week: it keeps files, and harms nothing."""
    try:
        delete_files(table, [path])
    except PaimonError as error:
        log.info("%s: %s was left behind (%s)", table.label, path, error.message)


def drop_holds_of(table: Table, user: str) -> None:
    """Delete what the tries of a publish that was committed still hold: none of them can commit any more."""
    for path in HOLDS.listed(table.store):
        with suppress(FormatError):
            hold = Hold.find(table.store, path, table.name)
            if hold is not None and hold.user == user:
                drop_hold(table, path)


def _drop_left(table: Table, own: str) -> None:
    infos = {f"{HOLDS.folder}/{i.name}": i.modified_ms for i in table.store.list(HOLDS.folder) if is_record(i.name)}
    now = infos.get(own)
    left = [p for p, put in infos.items() if now is not None and put is not None and put < now - _LEFT_AFTER_MS]
    delete_files(table, [path for path in left if _is_over(table, path)])


def _is_over(table: Table, path: str) -> bool:
    hold = Hold.find(table.store, path, table.name)
    if hold is None or hold.user is None:
        return hold is not None
    return table.branch(hold.branch).find_snapshot(hold.snapshot.id, hold.snapshot.identity) is None


def publishes_onto(target: Table) -> list[Hold]:
    """Return the holds of publishes onto a branch that are running or were killed, of all branches that exist.

    Raises:
        FormatError: a hold is damaged.
    """
    main = target.branch(MAIN)
    there = [h for h in _of_publishes(target) if main.branch(h.branch).exists()]
    return [h for h in there if publish_target(main, main.branch(h.branch)).branch_name == target.branch_name]


def unfinished_publishes(branch: Table) -> list[Hold]:
    """Return the holds of a branch's publishes that are running or were killed, also of its time under another name:
    each may have been committed.

    Raises:
        FormatError: a hold is damaged.
    """
    found: list[Hold] = []
    for hold in _of_publishes(branch):
        then = branch.find_snapshot(hold.snapshot.id)
        if hold.branch == branch.branch_name if then is None else then.identity == hold.snapshot.identity:
            found.append(hold)
    return found


def _of_publishes(table: Table) -> list[Hold]:
    holds = (Hold.find(table.store, path, table.name) for path in HOLDS.listed(table.store))
    return [hold for hold in holds if hold is not None and hold.user is not None]
