"""``write_table``: a DataFrame into a Paimon table. Tasks write files, the driver commits once."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_paimon.core.chain.guard import parse_on_stale, report_write
from airflow_paimon.core.chain.write_plan import ChainOptions
from airflow_paimon.core.commit.draft import CommitIdentity, CommitMessage, CommitOptions, Receipt
from airflow_paimon.core.commit.idempotency import digest_of
from airflow_paimon.core.commit.put import require_committable
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.requests.context import running_in_spark
from airflow_paimon.core.table.merge_options import combines_rows
from airflow_paimon.core.table.partition_values import PartitionSpec
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.properties import OPERATION_PROPERTY
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.data.arguments import check_operation_id, check_partition
from airflow_paimon.data.arrow_write import (
    WriteRequest,
    Written,
    commit_with_retries,
    parse_write_mode,
    write_once,
    write_result,
)
from airflow_paimon.data.dynamic_buckets import check_indexes_of
from airflow_paimon.data.write import KnownBuckets, TableWrite, WriteMode, discard_files, write_placed_rows
from airflow_paimon.spark.compaction import in_tasks
from airflow_paimon.spark.failures import task_errors
from airflow_paimon.spark.plan_text import plan_text
from airflow_paimon.spark.rows_in import (
    BATCH_CONF,
    check_frame,
    conform_for,
    distributed,
    temporary_conf,
    without_group,
)
from airflow_paimon.spark.tasks import SCHEMA, collect, cores_of, map_in_arrow, ship

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OPERATION = "write_table"


@running_in_spark()
def write_table(
    frame: DataFrame,
    warehouse: str | None = None,
    name: str | None = None,
    branch: str = MAIN,
    mode: str = "append",
    partition: PartitionSpec | None = None,
    operation_id: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    on_stale: str | None = None,
    *,
    writers_stopped: bool = False,
    path: str | None = None,
) -> dict[str, Any]:
    """Write the rows of a DataFrame with one commit and return the operation's result (docs/contributing/design.md,
    One result).

    Modes, ``partition``, ``_row_kind``, ``operation_id``, ``on_stale`` and ``writers_stopped`` are those of
    ``write_arrow``. Columns are matched by name; none may be unknown or of another type, nor missing but as in
    ``write_arrow``. If two rows of the DataFrame have the same key, either may win unless ``sequence.field`` decides.
    Task retries and speculation may leave unreferenced files, never duplicate rows. If another writer changes the same
    buckets meanwhile, the DataFrame is computed and written again.

    Raises:
        InvalidInputError: the rows don't fit the table; the message names the column.
        UnsupportedFeatureError: the table has a feature that this engine does not write.
        UnsafeOperationError: a chain table's anchor that is needed would be dropped, or rows would be invisible.
        ConflictError: other writers kept changing the same buckets.
    """
    started = time.monotonic()
    if not hasattr(frame, "sparkSession"):
        raise InvalidInputError(f"write_table takes a Spark DataFrame, not a {type(frame).__name__}")
    table = open_table(warehouse, name, branch, storage_options, path=path).require()
    check_operation_id(table, operation_id)
    write_mode = parse_write_mode(table, mode, partition)
    require_committable(table)
    policy = parse_on_stale(table, on_stale)
    schema = table.schema()
    if write_mode.partition is not None:
        check_partition(table, schema, write_mode.partition)
    check_frame(frame, schema, table.label, partial=mode == "append" and combines_rows(schema))
    tasks, properties = cores_of(frame.sparkSession), {OPERATION_PROPERTY: OPERATION}
    guard = ChainOptions(on_stale=policy)

    def write(identity: CommitIdentity) -> tuple[Receipt, Sequence[CommitMessage]]:
        options = CommitOptions(
            identity=identity, properties=properties, guard_options=guard, writers_stopped=writers_stopped
        )
        files = partial(write_files, frame)
        return commit_with_retries(table, write_mode, options, files, tasks=tasks)

    digest = "" if operation_id is None else _request_digest(frame, write_mode)
    report, run = partial(report_write, table), in_tasks(frame.sparkSession, table.name)
    request = WriteRequest(OPERATION, operation_id, digest)
    written = write_once(table, request, write, report, run=run, writers_stopped=writers_stopped)
    return _result(table, mode, written, started)


def _request_digest(frame: DataFrame, mode: WriteMode) -> str:
    """Return a digest that identifies the request: what is replaced, and the query behind the rows."""
    types = [field.dataType.simpleString() for field in frame.schema.fields]
    named = {"mode": mode.name, "partition": mode.partition, "columns": frame.columns, "types": types}
    return digest_of({**named, "plan": plan_text(frame)})


def write_files(frame: DataFrame, write: TableWrite) -> list[CommitMessage]:
    """Write the rows in tasks; return what the driver commits, for each task its successful attempt."""

    placed, looking_up = write.after_look_up(), write
    if write.dynamic is not None:
        looking_up = replace(write, dynamic=replace(write.dynamic, checks=False))

    def rows_in(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[pa.RecordBatch, KnownBuckets | None]]:
        for batch in batches:
            rows, known = without_group(placed, batch)
            yield conform_for(placed, rows), known

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return ship(lambda: write_placed_rows(placed, rows_in(batches)))

    with temporary_conf(frame.sparkSession, BATCH_CONF), task_errors():
        messages = collect(map_in_arrow(distributed(frame, looking_up), work, SCHEMA))
    try:
        check_indexes_of(write.dynamic, messages)
    except BaseException:
        discard_files(write, messages)
        raise
    return messages


def _result(table: Table, mode: str, written: Written, started: float) -> dict[str, Any]:
    files = [f for m in written.messages for f in m.new_files]
    details: dict[str, Any] = {"mode": mode, "replayed": True}
    if not written.replayed:
        details = {
            "mode": mode,
            "rows": sum(f.row_count for f in files),
            "files": len(files),
            "bytes": sum(f.file_size for f in files),
            "buckets": len({m.key for m in written.messages}),
        }
    return write_result(table, OPERATION, written, {**details, **written.report}, started)
