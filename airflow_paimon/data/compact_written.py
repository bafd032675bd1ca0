"""Compacts the buckets of a write where readers get its rows only from a compaction: those with deletion vectors and
first-row, and streaming readers of the changelog producers lookup and full-compaction.

As Paimon's batch writers do, a write is an APPEND of level-0 files, and then a COMPACT. The rows are committed with the
first; if the second does not succeed, they wait for any later compaction of their bucket.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace

from airflow_paimon.core.commit.committer import CommitIdentity
from airflow_paimon.core.commit.idempotency import REFUSALS, commit_identity
from airflow_paimon.core.commit.landed import find_landed
from airflow_paimon.core.errors import ConflictError, OutcomeUnknownError, PaimonError
from airflow_paimon.core.format.manifest import FileKind
from airflow_paimon.core.format.snapshot import CommitKind, Operation, Snapshot
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.properties import OPERATION_PROPERTY
from airflow_paimon.core.table.scan import read_delta_lists, selected_entries
from airflow_paimon.core.table.table import Table
from airflow_paimon.core.table.visibility import waits_for_compaction
from airflow_paimon.data.compact_keyed import KeyedCompaction, plan_buckets
from airflow_paimon.data.compaction_tasks import RunTasks, TaskOutput, run_here
from airflow_paimon.data.write import discard_files

log = logging.getLogger(__name__)

_TRIES = 5


@dataclass(frozen=True, slots=True)
class Compacted:
    """``snapshot``: the id of the compaction's, also of an earlier try's; None: there was nothing to compact.
    ``warning``: the rows wait for a later compaction.
    """

    snapshot: int | None = None
    warning: str | None = None


def compact_written(table: Table, landed: Snapshot | None, run: RunTasks = run_here) -> Compacted:
    """Compact the buckets in which a write has added files of level 0, if its readers wait for that.

    ``landed``: the snapshot of the write, or of an earlier try of it; None = it has written nothing. A bucket that has
    been compacted since is left alone. What an overwrite has written is no change that a changelog tells.

    Raises:
        PaimonError: why the files could not be merged; ``details["done"]`` is the snapshot that holds the rows.
    """
    if landed is None or not waits_for_compaction(table.schema(), table.branch_name):
        return Compacted()
    try:
        return _compact(table, landed, run)
    except PaimonError as error:
        error.details.setdefault("done", [landed.id])
        raise


def _compact(table: Table, landed: Snapshot, run: RunTasks) -> Compacted:
    delta = selected_entries(table, read_delta_lists(table, [landed]), None)
    new = [e for e in delta if e.kind == FileKind.ADD and e.file.level == 0]
    if not new:
        return Compacted()
    identity = commit_identity(landed.commit_user, table.branch_name, f"compact {landed.id}")
    names = {e.file.file_name for e in new}
    selection = StoredPartitions(table.schema()).those({e.partition for e in new})
    for _ in range(_TRIES):
        planned = plan_buckets(
            table, selection, lambda bucket: any(f.level == 0 and f.file_name in names for f in bucket.files)
        )
        if not planned.groups:
            return Compacted(snapshot=_earlier(table, identity, landed))
        planned = replace(planned, operation=Operation.WRITE)  # as Paimon's writers name it
        files = {f.file_name for g in planned.groups for f in g.bucket.files}
        if landed.commit_kind is CommitKind.OVERWRITE and files <= names:  # what others have added since is told
            planned = replace(planned, changelog=None)
        done = _commit(table, planned, run, identity)
        if done is not None:
            return done
    warning = (
        f"the rows are committed (snapshot {landed.id}), but other commits changed their buckets in each of {_TRIES} "
        f"tries to compact them: readers get them from the next compaction (compact)"
    )
    log.warning("%s: %s", table.label, warning)
    return Compacted(warning=warning)


def _earlier(table: Table, identity: CommitIdentity, landed: Snapshot) -> int | None:
    """Return the compaction of an earlier try; None: somebody else's, or it has expired."""
    try:
        found = find_landed(table, identity, landed.id)
    except OutcomeUnknownError:
        return None
    return None if found is None else found.id


def _commit(table: Table, planned: KeyedCompaction, run: RunTasks, identity: CommitIdentity) -> Compacted | None:
    """Merge the buckets and commit them; None = another commit has changed one."""
    outputs = _outputs(planned, run(planned.works(planned.groups)))
    messages = [m for o in outputs for m in o.messages]
    properties = {OPERATION_PROPERTY: "compact"}
    try:
        receipt = planned.commit(table, planned.groups, messages, identity, properties)
    except REFUSALS as error:
        discard_files(planned.write, messages)
        if not isinstance(error, ConflictError):
            raise
        log.warning("%s; the buckets are planned again", error.message)
        return None
    return Compacted(snapshot=receipt.snapshot.id if receipt.snapshot is not None else None)


def _outputs(planned: KeyedCompaction, outputs: Iterable[TaskOutput]) -> list[TaskOutput]:
    done: list[TaskOutput] = []
    try:
        for output in outputs:
            done.append(output)
    except BaseException:
        discard_files(planned.write, [m for o in done for m in o.messages])
        raise
    return done
