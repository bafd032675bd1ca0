"""DELETE of whole partitions: a condition on partition columns alone takes their files away, and reads no row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.predicate import Predicate
from airflow_paimon.core.table.scan import ScanPlan
from airflow_paimon.data.copy_on_write import replacing_message
from airflow_paimon.data.files.arrow_types import FILE_POSITION, FILE_POSITION_FIELD, repeated
from airflow_paimon.data.read_splits import ReadSplit, plan_read
from airflow_paimon.data.row_columns import with_row_columns
from airflow_paimon.data.write import TableWrite
from airflow_paimon.spark.arrow_frames import frame_of_arrow
from airflow_paimon.spark.spark_types import shipped_schema, spark_schema, spark_type, to_shipped
from airflow_paimon.spark.statements.evaluate import Evaluated, Evaluation
from airflow_paimon.spark.statements.outcome import StatementOutcome
from airflow_paimon.spark.statements.statement_plan import Statement

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Partitions = Mapping[Any, tuple[Any, ...]]
"""The values of partitions, by what tells them apart."""


def takes_whole_partitions(statement: Statement, plan: ScanPlan, found: Evaluated) -> bool:
    """Return whether a DELETE takes all rows of a partition or none. ``found``: evaluated on no rows."""
    return statement.kind == "DELETE" and found.uses <= frozenset(plan.schema.partition_keys)


def drop_partitions(
    spark: SparkSession,
    statement: Statement,
    plan: ScanPlan,
    write: TableWrite,
    predicate: Predicate | None,
    *,
    dry_run: bool,
) -> StatementOutcome:
    """Let Spark evaluate the condition on each partition's values; the files of those that it holds for are dropped.

    ``predicate``: true for every such partition.

    Raises:
        UnsupportedFeatureError: a table whose rows can't be read correctly.
    """
    _, readable = plan_read(plan, predicate=predicate, layered=True)
    form = StoredPartitions(plan.schema).canonical
    visible = [s for s in plan.splits if s.bucket >= 0]
    partitions: Partitions = {form(s.partition): s.values for s in visible}
    if statement.condition is not None:
        partitions = _chosen(spark, statement, plan.schema, partitions)
    taken = [s for s in visible if form(s.partition) in partitions]
    rows, is_exact = _rows([s for s in readable if form(s.bucket.partition) in partitions])
    return StatementOutcome(
        read=plan,
        write=write,
        messages=() if dry_run else tuple(replacing_message(s, *s.files) for s in taken),
        deleted=rows,
        deleted_at_most=not is_exact,
        rewritten=frozenset(f.file_name for s in taken for f in s.files),
    )


def _chosen(spark: SparkSession, statement: Statement, schema: TableSchema, partitions: Partitions) -> Partitions:
    """Return the partitions that the condition holds for."""
    from pyspark.sql import functions as sf

    if not partitions:
        return {}
    fields = [*schema.partition_fields, FILE_POSITION_FIELD]
    numbered = [(*values, number) for number, values in enumerate(partitions.values())]
    columns = [pa.concat_arrays([repeated(row[i], f.type, 1) for row in numbered]) for i, f in enumerate(fields)]
    named = pa.RecordBatch.from_arrays(columns, [f.name for f in fields])
    batch = to_shipped(named, shipped_schema(fields))
    stored = frame_of_arrow(spark, pa.Table.from_batches([batch]), spark_schema(fields))
    others = {
        f.name: sf.lit(None).cast(spark_type(f.type))
        for f in with_row_columns(schema).fields
        if f.name not in schema.partition_keys
    }
    evaluation = Evaluation(spark, statement, schema, [FILE_POSITION], whole=False)
    found = evaluation.run(stored.withColumns(others)).rows.select(FILE_POSITION).collect()
    known = list(partitions.items())
    return dict(known[row[0]] for row in found)


def _rows(splits: Sequence[ReadSplit]) -> tuple[int, bool]:
    """Return how many rows the splits have by the manifests, and whether that is exact.

    It is not where files have to be merged, or deletion vectors don't say how many rows they delete.
    """
    rows, is_exact = 0, True
    for split in splits:
        deleted = [where.cardinality for _, where in split.deletions]
        rows += sum(f.row_count for f in split.files) - sum(n or 0 for n in deleted)
        is_exact = is_exact and None not in deleted and all(s.is_raw for s in split.sections)
    return rows, is_exact
