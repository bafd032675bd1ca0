"""A function for ``foreachBatch``: each batch of a stream is one commit, and the same one when it is repeated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_paimon.core.commit.committed import verified_commits
from airflow_paimon.core.commit.draft import CommitOptions
from airflow_paimon.core.commit.put import require_committable
from airflow_paimon.core.commit.stream_batch import begin_batch, check_same_batch
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.table.merge_options import combines_rows
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.table import open_table
from airflow_paimon.data.arrow_write import commit_with_retries
from airflow_paimon.data.compact_keyed import compact_written
from airflow_paimon.data.write import WriteMode
from airflow_paimon.spark.compaction import in_tasks
from airflow_paimon.spark.rows_in import check_frame
from airflow_paimon.spark.streaming.sink import QUERY_ID
from airflow_paimon.spark.write import write_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def batch_writer(
    warehouse: str | None = None,
    name: str | None = None,
    branch: str = MAIN,
    storage_options: Mapping[str, Any] | None = None,
    *,
    path: str | None = None,
) -> Callable[[DataFrame, int], None]:
    """Return a function for ``DataStreamWriter.foreachBatch`` that appends or, with a primary key, upserts.

    The same guarantee as the format ``airflow_paimon``, with the distribution of ``write_table``: the rows of a bucket
    come together. If another writer commits to the same buckets meanwhile, the batch is computed and written again. Of
    a batch that was committed the rows are only counted, those of a primary-key table not even that. Of two rows with
    one key in a batch either may win unless ``sequence.field`` decides. Not for Spark Connect.

    Raises:
        NotFoundError: no such table or branch; later errors end the query, see ``write_table``.
    """
    table = open_table(warehouse, name, branch, storage_options, path=path).require()
    require_committable(table)

    @verified_commits()
    def write(frame: DataFrame, batch: int) -> None:
        query = frame.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
        if query is None:
            raise InvalidInputError(f"{table.label}: batch_writer() gives a function for foreachBatch of a stream")
        schema = table.schema()
        check_frame(frame, schema, table.label, partial=combines_rows(schema))
        identity, committed = begin_batch(table, query, batch)
        if committed is not None and not schema.primary_keys:  # of rows with one key only the last is written
            check_same_batch(table, query, batch, committed, frame.count())
        if committed is None:
            write_batch, options = partial(write_files, frame), CommitOptions(identity=identity)
            committed = commit_with_retries(table, WriteMode(), options, write_batch)[0].snapshot
        compact_written(table, committed, in_tasks(frame.sparkSession, table.name))

    return write
