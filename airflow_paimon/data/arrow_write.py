"""``write_arrow``: writes an Arrow table to a Paimon table, in this process, with one commit."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from airflow_paimon.core.chain.guard import parse_on_stale, report_write
from airflow_paimon.core.chain.write_plan import ChainOptions
from airflow_paimon.core.commit.committed import verified_commits
from airflow_paimon.core.commit.conditions import has_moving_keys
from airflow_paimon.core.commit.draft import CommitIdentity, CommitMessage, CommitOptions, Receipt
from airflow_paimon.core.commit.files import Overwrite, commit_append, commit_overwrite
from airflow_paimon.core.commit.idempotency import REFUSALS, attempt, digest_of
from airflow_paimon.core.commit.put import require_committable
from airflow_paimon.core.errors import ConflictError, InvalidInputError
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.plan import HeadIs
from airflow_paimon.core.requests.context import OperationResult
from airflow_paimon.core.table.partition_values import PartitionSpec
from airflow_paimon.core.table.properties import OPERATION_PROPERTY
from airflow_paimon.core.table.read_cache import cached_reads
from airflow_paimon.core.table.table import Table
from airflow_paimon.data.arguments import check_operation_id, check_rows, check_table, partition_argument
from airflow_paimon.data.compact_keyed import compact_written
from airflow_paimon.data.compaction_tasks import RunTasks, run_here
from airflow_paimon.data.files.conform import conform_rows
from airflow_paimon.data.moving_keys import complete_messages
from airflow_paimon.data.rows_digest import rows_digest, total_of
from airflow_paimon.data.write import (
    PartitionsOf,
    TableWrite,
    WriteMode,
    discard_files,
    partitions_of_rows,
    plan_write,
    write_rows,
)

log = logging.getLogger(__name__)

Committed = TypeVar("Committed")
OPERATION = "write_arrow"
MODES = ("append", "overwrite", "dynamic_overwrite")
ATTEMPTS = 5
"""How often rows are computed again before other writers' commits make it a conflict."""
_BATCH_ROWS = 1 << 20


def write_arrow(
    table: Table,
    data: pa.Table | pa.RecordBatch,
    mode: str = "append",
    partition: PartitionSpec | None = None,
    operation_id: str | None = None,
    on_stale: str | None = None,
    *,
    writers_stopped: bool = False,
) -> dict[str, Any]:
    """Write rows with one commit and return the operation's result (docs/contributing/design.md, One result).

    ``append`` adds rows, or upserts by primary key; ``overwrite`` replaces everything, or the given ``partition``
    (a dict of typed values or their texts, None = null, or a text such as ``dt=2026-11-18/region=eu``; may be partial);
    ``dynamic_overwrite`` replaces the partitions that occur in the rows. A column ``_row_kind`` (``+I -U +U -D``)
    expresses deletes. Rows appended to a table with ``merge-engine`` partial-update or aggregation may lack columns
    that can be null: they are null, as in an INSERT with a list of columns. With ``operation_id`` a retry writes
    nothing and returns the first try's snapshot, without counts of files; the same id with other rows is refused.

    ``on_stale`` applies to the delta branch of a chain table: a write to a partition hidden by a full one is refused
    (``refuse``, the default of ``append``), or done, and the full partitions that become stale are listed in
    ``details["stale"]`` (``record``, the default of the other modes) for ``compact_chain_table --pending``.

    ``writers_stopped`` confirms that no job writes what is overwritten (docs/howto/flink-tables.md, Open writers).

    Raises:
        InvalidInputError: the rows don't fit the table; the message names the column.
        UnsafeOperationError: a required anchor of a chain table would be dropped, or rows would be invisible; or a
            running job may have open what would be overwritten.
        UnsupportedFeatureError: the table has a feature that this engine does not write.
        ConflictError: other writers kept changing the same buckets.
    """
    started = time.monotonic()
    check_table(table)
    check_rows(table, data)
    check_operation_id(table, operation_id)
    write_mode = parse_write_mode(table, mode, partition)
    table.require()
    require_committable(table)
    guard, properties = ChainOptions(on_stale=parse_on_stale(table, on_stale)), {OPERATION_PROPERTY: OPERATION}
    options = CommitOptions(properties=properties, guard_options=guard, writers_stopped=writers_stopped)

    def write(identity: CommitIdentity) -> tuple[Receipt, Sequence[CommitMessage]]:
        return commit_with_retries(
            table,
            write_mode,
            replace(options, identity=identity),
            write_files=lambda write: write_rows(write, _batches(data, write)),
            partitions=partitions_of_rows(data, table.store, table.label),
        )

    content = None if operation_id is None else _content_digest(data)
    request = WriteRequest(OPERATION, operation_id, _request_digest(data, write_mode), content)
    written = write_once(table, request, write, partial(report_write, table), writers_stopped=writers_stopped)
    return _result(table, mode, written, data.num_rows, started)


@dataclass(frozen=True, slots=True)
class WriteRequest:
    """What a write with an operation id is recognised by. ``digest``: of the request; ``content``: of its rows, None =
    they are not compared.
    """

    operation: str
    operation_id: str | None
    digest: str
    content: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The outcome of a write. ``replayed``: an earlier try of the operation was committed, and this one wrote nothing.

    ``before`` and ``after`` are snapshot ids; ``report`` has the result's fields about other partitions of
    a chain table.
    """

    before: int | None
    after: int | None
    messages: Sequence[CommitMessage] = ()
    report: Mapping[str, Any]
    replayed: bool = False


@verified_commits()
@cached_reads()
def write_once(
    table: Table,
    request: WriteRequest,
    write: Callable[[CommitIdentity], tuple[Receipt, Sequence[CommitMessage]]],
    report_on: Callable[[Snapshot | None], Mapping[str, Any]],
    *,
    run: RunTasks = run_here,
    writers_stopped: bool = False,
) -> Written:
    """Write, or find the commit of an earlier try with this operation id; ``report_on`` is called after the commit.

    No result is kept for a retry: the commit says which snapshot it was, and whether another engine has taken it away,
    as long as ``expire_snapshots`` keeps it (``retry_window``); a kept result would be one more file of each write.

    ``run`` compacts where readers wait for that (``compact_written``).

    Raises:
        InvalidInputError: the operation id was used for another request, or for other rows.
    """
    where = (table, request.operation_id, table.branch_name, request.digest, request.content)
    with attempt(*where, writers_stopped=writers_stopped) as tried:
        committed = tried.committed(request.operation)
        if committed is not None:
            receipt = Receipt(before=None, snapshot=committed, replayed=True)
            messages: Sequence[CommitMessage] = ()
        else:
            receipt, messages = write(tried.identity(request.operation))
    before = receipt.before.id if receipt.before is not None else None
    if committed is not None:
        before = committed.id - 1 or None
    after = receipt.snapshot.id if receipt.snapshot is not None else before
    report = report_on(receipt.snapshot)
    compacted = compact_written(table, receipt.snapshot, run, writers_stopped=writers_stopped)
    warnings = [text for text in (receipt.warning, compacted.warning) if text is not None]
    if warnings:
        report = {**report, "warnings": [*report.get("warnings", ()), *warnings]}
    return Written(
        before=before,
        after=compacted.snapshot or after,
        messages=messages,
        report=report,
        replayed=receipt.replayed,
    )


def parse_write_mode(table: Table, mode: str, partition: PartitionSpec | None) -> WriteMode:
    """Refuse an unknown mode, and a partition in a mode that takes none."""
    if mode not in MODES:
        raise InvalidInputError(f"{table.label}: mode is one of {', '.join(MODES)}, not {mode!r}")
    if partition is not None and mode != "overwrite":
        raise InvalidInputError(f"{table.label}: partition is allowed only with mode='overwrite'")
    return WriteMode(mode, None if partition is None else partition_argument(table, partition))


def _request_digest(data: pa.Table | pa.RecordBatch, mode: WriteMode) -> str:
    named = {"mode": mode.name, "partition": mode.partition}
    return digest_of({**named, "columns": data.schema.names, "rows": data.num_rows})


def commit_with_retries(
    table: Table,
    mode: WriteMode,
    options: CommitOptions,
    write_files: Callable[[TableWrite], Sequence[CommitMessage]],
    *,
    read_head: Callable[[], bool] = lambda: False,
    tasks: int = 1,
    partitions: PartitionsOf = lambda _: None,
) -> tuple[Receipt, Sequence[CommitMessage]]:
    """Write files and commit them; if a bucket has changed meanwhile, repeat with new sequence numbers.

    ``read_head``: whether the rows were computed from the table's own: an overwrite then replaces only what was read.
    ``tasks``: how many may write one new partition with dynamic buckets.
    """

    def attempt() -> tuple[Receipt, Sequence[CommitMessage]]:
        write = plan_write(table, overwrite=mode.overwrites, chained=True, tasks=tasks, partitions=partitions)
        messages = write_files(write)
        return commit_or_discard_write(table, write, messages, mode, options, only_planned=read_head())

    return until_committed(table.label, attempt)


def until_committed(label: str, attempt: Callable[[], Committed]) -> Committed:
    """Return what an attempt to compute rows and commit them returns; repeat it where another writer was faster.

    Raises:
        ConflictError: other writers were faster each time.
    """
    for _ in range(1, ATTEMPTS):
        try:
            return attempt()
        except ConflictError as error:
            log.warning("%s: another writer committed first (%s); running it again", label, error.message)
    return attempt()


def commit_or_discard_write(
    table: Table,
    write: TableWrite,
    messages: Sequence[CommitMessage],
    mode: WriteMode,
    options: CommitOptions,
    *,
    only_planned: bool = False,
) -> tuple[Receipt, Sequence[CommitMessage]]:
    """Commit what tasks have written, with what belongs to it (``complete_messages``); returns what was committed.
    Without a commit of them the files are deleted, as those of a try that another one has overtaken.

    Raises:
        REFUSALS: why nothing was committed.
    """
    try:
        messages = complete_messages(table, write, messages, mode)
        receipt = commit_write(table, write, messages, mode, options, only_planned=only_planned)
    except REFUSALS:
        discard_files(write, messages)
        raise
    if receipt.replayed:
        discard_files(write, messages)
    return receipt, () if receipt.replayed else messages


def _content_digest(data: pa.Table | pa.RecordBatch) -> str:
    """Digest rows in their order: of rows with one key the last one wins."""
    batches = [data] if isinstance(data, pa.RecordBatch) else data.to_batches()
    starts = accumulate((b.num_rows for b in batches), initial=0)
    names, rows = [*data.schema.names, "\0row"], []
    for batch, start in zip(batches, starts, strict=False):
        places = pa.array(np.arange(start, start + batch.num_rows))
        rows.append(pa.RecordBatch.from_arrays([*batch.columns, places], names))
    return total_of(list(map(rows_digest, rows))).text


def _batches(data: pa.Table | pa.RecordBatch, write: TableWrite) -> Iterator[pa.RecordBatch]:
    """Check and return the rows in pieces, as a whole column of long texts can exceed the size of an Arrow array."""
    table = data if isinstance(data, pa.Table) else pa.Table.from_batches([data])
    for batch in table.to_batches(max_chunksize=_BATCH_ROWS) or [table]:
        yield conform_rows(batch, write.schema, write.label, partial=write.partial)


def commit_write(
    table: Table,
    write: TableWrite,
    messages: Sequence[CommitMessage],
    mode: WriteMode,
    options: CommitOptions,
    *,
    only_planned: bool = False,
) -> Receipt:
    """Commit the files of a write, according to its mode. ``only_planned``: overwrite no commit after the planned one.

    Raises:
        REFUSALS: the files can be discarded.
    """
    options = replace(options, written_with=write.schema)
    if not mode.overwrites:
        return commit_append(table, messages, options, planned_on=write.planned_on)
    specs: Overwrite = None if mode.partition is None else [mode.partition]
    if mode.name == "dynamic_overwrite" and write.schema.partition_keys:
        specs = "dynamic"
    stays = specs is not None  # and a key of what stays may not come with the rows
    read = None
    if only_planned or (stays and has_moving_keys(write.schema)):
        read = HeadIs.of(table.branch_name, write.planned_on, why="another writer committed what would be overwritten")
    return commit_overwrite(table, messages, options, partitions=specs, read=read)


def _result(table: Table, mode: str, written: Written, rows: int, started: float) -> dict[str, Any]:
    details: dict[str, Any] = {
        "mode": mode,
        "rows": rows,
        "files": sum(len(m.new_files) for m in written.messages),
        "bytes": sum(f.file_size for m in written.messages for f in m.new_files),
        "buckets": sum(bool(m.new_files) for m in written.messages),
        **written.report,
    }
    return write_result(table, OPERATION, written, details, started)


def write_result(
    table: Table, operation: str, written: Written, details: Mapping[str, Any], started: float
) -> dict[str, Any]:
    """Return a write's result; ``started`` is a reading of the monotonic clock."""
    return OperationResult(
        operation=operation,
        table=table.name,
        branch=table.branch_name,
        changed=written.before != written.after,
        snapshot_before=written.before,
        snapshot_after=written.after,
        details=details,
        duration_s=time.monotonic() - started,
    ).to_json()
