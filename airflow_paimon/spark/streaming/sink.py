"""``df.writeStream.format("airflow_paimon")``: each batch is one commit, and the same one when it is repeated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext

from airflow_paimon.core.commit.committed import verified_commits
from airflow_paimon.core.commit.draft import CommitMessage, CommitOptions
from airflow_paimon.core.commit.idempotency import REFUSALS
from airflow_paimon.core.commit.put import require_committable
from airflow_paimon.core.commit.stream_batch import ROWS_PROPERTY, begin_batch, check_same_batch
from airflow_paimon.core.errors import FormatError, InvalidInputError
from airflow_paimon.core.table.table import Table
from airflow_paimon.data.arrow_write import commit_or_discard_write
from airflow_paimon.data.compact_keyed import compact_written
from airflow_paimon.data.rows_digest import RowsDigest, rows_digest, total_of
from airflow_paimon.data.task_messages import merged_messages
from airflow_paimon.data.write import TableWrite, WriteMode, discard_files, plan_write, write_rows
from airflow_paimon.spark.rows_in import check_columns, conform_for
from airflow_paimon.spark.source_api import DataSourceStreamArrowWriter, WriterCommitMessage
from airflow_paimon.spark.tasks import forgetting_zip_importers

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

QUERY_ID = "sql.streaming.queryId"
SPARK_OPTIONS = ("checkpointLocation", "queryName")
"""Options of Spark's own that a sink gets as well."""
OTHER_ROWS = "sink.other-rows-when-repeated"
"""``true``: the query computes other rows when a batch is repeated (random numbers): only their number is compared."""


@dataclass(frozen=True)
class StreamFiles(WriterCommitMessage):
    """The files that one task wrote, the query that it belongs to, and the digest of its rows."""

    query: str
    messages: tuple[CommitMessage, ...]
    rows: RowsDigest


def plan_stream_writer(
    table: Table, schema: StructType, overwrite: bool, *, other_rows: bool = False
) -> PaimonStreamWriter:
    """Check that the rows fit the table and plan one batch. ``other_rows``: see ``OTHER_ROWS``.

    Raises:
        InvalidInputError: the rows don't fit, or the output mode is ``complete``.
        UnsupportedFeatureError: the table has a feature that this engine does not write.
    """
    table.require()
    if overwrite:
        raise InvalidInputError(
            f"{table.label}: a stream writes in output mode append (with the column _row_kind also updates and "
            f"deletes), not complete: replace the table in foreachBatch with write_table(mode='overwrite')"
        )
    require_committable(table)
    write = plan_write(table, tasks_share_buckets=True)
    check_columns(schema, write.schema, table.label, partial=write.partial)
    return PaimonStreamWriter(table, write, other_rows)


@dataclass(frozen=True)
class PaimonStreamWriter(DataSourceStreamArrowWriter):
    """Spark makes one for each batch in each process that takes part. ``other_rows``: see ``OTHER_ROWS``."""

    table: Table
    plan: TableWrite
    other_rows: bool

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StreamFiles:
        write, digests = self.plan, list[RowsDigest]()

        def rows() -> Iterator[pa.RecordBatch]:
            for given in iterator:
                batch = conform_for(write, given)
                if not self.other_rows:
                    digests.append(rows_digest(batch))
                yield batch

        with forgetting_zip_importers():
            messages = tuple(write_rows(write, rows()))
        context = TaskContext.get()
        query = (context.getLocalProperty(QUERY_ID) if context is not None else None) or ""
        return StreamFiles(query, messages, total_of(digests))

    @forgetting_zip_importers()
    @verified_commits()
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        tasks = [m for m in messages if isinstance(m, StreamFiles)]
        files = merged_messages(self.plan, [t.messages for t in tasks])
        if not files:
            return
        content = None if self.other_rows else total_of([t.rows for t in tasks]).text
        commit_batch(self.table, self.plan, files, _query_of(self.table, tasks), batchId, content)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Keep the files: Spark calls this also after a failed commit, which may have been committed."""


def commit_batch(
    table: Table, write: TableWrite, files: list[CommitMessage], query: str, batch: int, content: str | None = None
) -> None:
    """Commit the files of a batch, unless an earlier try of the batch was committed: then they are not needed.

    ``content``: the digest of the batch's rows, which is recorded with the commit; None: it isn't compared.

    Raises:
        ConflictError: another writer has written the same buckets meanwhile; the next run of the query repeats the
            batch. Others: see ``begin_batch`` and ``check_same_batch``.
    """
    try:
        identity, committed = begin_batch(table, query, batch)
        if committed is not None:
            rows = sum(f.row_count for m in files for f in m.new_files)
            check_same_batch(table, query, batch, committed, rows, content)
    except REFUSALS:
        discard_files(write, files)
        raise
    if committed is not None:
        discard_files(write, files)
    else:
        properties = {} if content is None else {ROWS_PROPERTY: content}
        options = CommitOptions(identity=identity, properties=properties)
        committed = commit_or_discard_write(table, write, files, WriteMode(), options)[0].snapshot
    compact_written(table, committed)


def _query_of(table: Table, tasks: list[StreamFiles]) -> str:
    queries = {t.query for t in tasks}
    if len(queries) != 1 or "" in queries:
        raise FormatError(f"{table.label}: Spark did not pass the id of the query to the tasks of a batch: {queries}")
    return queries.pop()
