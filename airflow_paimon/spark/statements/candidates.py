"""The rows of a MERGE's target that can match, found by the keys of its kept source in tasks of ours.

Spark joins these few with the source, as it would all rows: what it says of each stays Spark's. Java would decode every
row of the target for the join, and compile its loop anew for each statement.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_paimon.core.format.types import DataField
from airflow_paimon.data.files.arrow_types import arrow_type
from airflow_paimon.data.row_columns import POSITION_COLUMNS, with_row_columns
from airflow_paimon.data.rows_of_keys import KeyValues, rows_of_keys, share_of_rows
from airflow_paimon.data.scan import ReadSplit, TableRead
from airflow_paimon.spark.jvm import sequence_items
from airflow_paimon.spark.shares import split_groups
from airflow_paimon.spark.spark_types import shipped_schema, spark_schema, spark_type, sql_name, to_shipped
from airflow_paimon.spark.statements.evaluate import analyzed
from airflow_paimon.spark.tasks import map_tasks

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_ROWS_EACH = 8
"""If more than one of so many rows of the target is read so, Spark's own reader costs less."""
_UNUSED = "airflow-paimon left out a column that this MERGE needs; please report it"


def selective_keys(keys: KeyValues, read: TableRead, splits: Sequence[ReadSplit]) -> KeyValues:
    """Return the columns whose values few rows of the target have, as far as a look at some rows of its largest file
    tells; none: Spark reads the rows.
    """
    parts = [part for split in splits for part in split.divided()]
    rows = sum(map(_rows, parts))
    types = {f.name: arrow_type(f.type) for f in with_row_columns(read.schema).fields}
    few = {name: values for name, values in keys.items() if len(values) * _ROWS_EACH <= rows}
    found = {name: values if values.type == types[name] else values.cast(types[name]) for name, values in few.items()}
    if not found or share_of_rows(read, max(parts, key=_rows), found) * _ROWS_EACH > 1:
        return {}
    return found


def _rows(split: ReadSplit) -> int:
    return sum(f.row_count for f in split.files)


def candidate_rows(
    spark: SparkSession, read: TableRead, splits: Sequence[ReadSplit], keys: KeyValues, used: Collection[str]
) -> DataFrame:
    """Return the rows of planned splits with these keys, as the columns of ``read``; ``used``: those that are read."""
    names = tuple(n for n in read.columns if n in used or n in POSITION_COLUMNS)
    inner = replace(read, columns=names)
    parts = [part for split in splits for part in split.divided()]
    frame = map_tasks(spark, split_groups(parts), partial(_shipped, inner, keys), spark_schema(inner.fields))
    return frame.select(*(_column(f, used=f.name in names) for f in read.fields))


def _column(field: DataField, *, used: bool) -> Column:
    from pyspark.sql import functions as sf

    name = sql_name(field.name)
    return sf.col(name) if used else sf.raise_error(sf.lit(_UNUSED)).cast(spark_type(field.type)).alias(field.name)


def used_columns(rows: DataFrame, target: DataFrame) -> frozenset[str]:
    """Return the columns of ``target`` that a query on it needs, as Spark's optimizer says; all where it doesn't."""
    own = {int(a.exprId().id()): str(a.name()) for a in sequence_items(analyzed(target).output())}
    plans = list(_within(rows._jdf.queryExecution().optimizedPlan()))
    leaves = {n for p in plans if not sequence_items(p.children()) for n in _ids(p.output())}
    if not own.keys() & leaves:  # it was found to be empty
        return frozenset(own.values())
    found = {n for p in plans for n in _ids(p.references().toSeq())} | _ids(plans[0].output())
    return frozenset(name for number, name in own.items() if number in found)


def _ids(attributes: Any) -> set[int]:
    return {int(a.exprId().id()) for a in sequence_items(attributes)}


def _within(plan: Any) -> Iterator[Any]:
    yield plan
    for child in sequence_items(plan.children()):
        yield from _within(child)


def _shipped(read: TableRead, keys: KeyValues, split: ReadSplit) -> Iterator[pa.RecordBatch]:
    target = shipped_schema(read.fields)
    for batch in rows_of_keys(read, split, keys):
        if batch.num_rows:
            yield to_shipped(batch, target)
