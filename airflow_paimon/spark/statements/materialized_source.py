"""The source of a MERGE, evaluated once and kept, if it is small enough to be sent to every task.

Then the target's rows need not be brought together with the source's: each task joins its part of the files, and what
the source's keys are is known before a file is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.table.predicate import AllOf, Condition, Predicate
from airflow_paimon.core.table.table import Table
from airflow_paimon.spark.arrow_frames import collect_arrow
from airflow_paimon.spark.failures import fault_of_query
from airflow_paimon.spark.jvm import analyzed, asks_for_the_time, estimated_bytes, kept_bytes, optimized, sequence_items
from airflow_paimon.spark.spark_types import sql_name
from airflow_paimon.spark.statements.evaluate import SOURCE_ROW, Evaluation
from airflow_paimon.spark.statements.statement_plan import Statement
from airflow_paimon.spark.statements.target_files import partitions_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

KEPT_BYTES = 128 << 20
"""Larger sources are joined as Spark sees fit. Counted as rows take in its memory: about 100 bytes and their values."""
_READ_BYTES = 1 << 30
"""A source that reads more than this is not tried, as far as Spark knows how much it reads."""
_LISTED_VALUES = 1000
_MOST_PARTITIONS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """What the source's keys say of the target's rows that can match. ``ranges``: the lowest and the highest value of
    columns; ``nothing``: no row can match.
    """

    predicate: Predicate | None = None
    ranges: Mapping[str, tuple[Any, Any]]
    nothing: bool = False

    def within(self, target: DataFrame) -> DataFrame:
        """Return the target's rows within the ranges: Spark skips row groups by this."""
        from pyspark.sql import functions as sf

        for name, (low, high) in self.ranges.items():
            column = sf.col(sql_name(name))
            target = target.where(column.between(_literal(low), _literal(high)))
        return target


def _literal(value: Any) -> Column:
    """Return a value as Spark has it; ``lit`` fails for dates before the year 1000."""
    from pyspark.sql import functions as sf

    return sf.lit(value.isoformat()).cast("date") if isinstance(value, date) else sf.lit(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class MaterializedSource:
    """A MERGE of which the source is evaluated. ``statement``: with these rows as its source; ``keys``: of the target's
    rows that can change; ``inserted``: the partitions that can get new rows.
    """

    statement: Statement
    keys: Keys
    inserted: frozenset[bytes]


@contextmanager
def materialized_source_of(
    spark: SparkSession, statement: Statement, evaluation: Evaluation, table: Table, schema: TableSchema
) -> Iterator[MaterializedSource | None]:
    """Evaluate the source of a MERGE, once, and find out which partitions it concerns; None if that isn't known."""
    with materialized_source(spark, statement, evaluation) as kept:
        inserted = None if kept is None else _inserted(spark, statement, kept, table, schema)
        if kept is None or inserted is None:
            yield None
            return
        rows = evaluation.named_as(kept.drop(SOURCE_ROW), kept)
        assert statement.source is not None
        yield MaterializedSource(
            statement=replace(statement, source=replace(statement.source, node=analyzed(rows))),
            keys=keys_of_source(evaluation, kept),
            inserted=inserted,
        )


def _inserted(
    spark: SparkSession,
    statement: Statement,
    kept: DataFrame,
    table: Table,
    schema: TableSchema,
) -> frozenset[bytes] | None:
    """Return the partitions of what would be inserted if no row of the source matched; None if that isn't known."""
    if not statement.not_matched:
        return frozenset()
    evaluation = Evaluation(spark, statement, schema, (), whole=False)
    rows = evaluation.inserts(kept).select(*(sql_name(k) for k in schema.partition_keys))
    if asks_for_the_time(rows) or not optimized(rows).deterministic():
        return None  # it may be another one when the rows are computed
    found = collect_arrow(rows.distinct().limit(_MOST_PARTITIONS + 1))
    if found.num_rows > _MOST_PARTITIONS:
        return None
    try:
        return partitions_of(found, table, schema)
    except InvalidInputError:  # of a row that may match, and is not inserted then
        return None


@contextmanager
def materialized_source(
    spark: SparkSession, statement: Statement, evaluation: Evaluation
) -> Iterator[DataFrame | None]:
    """Evaluate the source of a MERGE, once, and keep its rows for the context; None if it is large."""
    source = evaluation.source()
    if _names_hidden_columns(source, statement) or estimated_bytes(source) > _READ_BYTES:
        yield None
        return
    from pyspark.sql import functions as sf

    kept = source.withColumn(SOURCE_ROW, sf.monotonically_increasing_id()).localCheckpoint()
    rdd = analyzed(kept).rdd()
    try:
        yield evaluation.named_as(kept, source) if kept_bytes(spark, rdd.id()) <= KEPT_BYTES else None
    finally:
        rdd.unpersist(False)


def keys_of_source(evaluation: Evaluation, kept: DataFrame) -> Keys:
    """Return what the condition of a MERGE, and the keys of its kept source, say of the target's rows."""
    found = evaluation.run(evaluation.empty_target(), kept)
    keys = keys_of(kept, found.equal)
    known = tuple(p for p in (found.predicate, keys.predicate) if p is not None)
    return replace(keys, predicate=AllOf(known) if known else None)


def keys_of(kept: DataFrame, equal: Sequence[tuple[str, Column]]) -> Keys:
    """Return which values the target's columns can have, given what the kept source has in the expressions they
    equal.
    """
    if not equal:
        return Keys(ranges={})
    found = _values_of(kept.select(*(column.alias(str(i)) for i, (_, column) in enumerate(equal))))
    if found is None:
        return Keys(ranges={})
    parts: list[Predicate] = []
    ranges: dict[str, tuple[Any, Any]] = {}
    for (name, _), column in zip(equal, found.columns, strict=True):
        values = pc.drop_null(pc.unique(column))
        if not len(values):
            return Keys(ranges={}, nothing=True)
        try:
            bounds = pc.min_max(values).as_py()
        except (OverflowError, ValueError):  # a date that Python doesn't have
            continue
        low, high = bounds["min"], bounds["max"]
        ranges[name] = low, high
        parts += [Condition(name, ">=", low), Condition(name, "<=", high)]
        parts += [Condition(name, "in", tuple(values.to_pylist()))] if len(values) <= _LISTED_VALUES else []
    return Keys(predicate=AllOf(tuple(parts)) if parts else None, ranges=ranges)


def _values_of(rows: DataFrame) -> pa.Table | None:
    """Run a query; None where its expressions fail for a row, which may be one that another part of ON leaves out."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        return collect_arrow(rows)
    except (PySparkException, Py4JJavaError) as error:
        if fault_of_query(error) is None:
            raise
        return None


def _names_hidden_columns(source: DataFrame, statement: Statement) -> bool:
    """Whether the statement may name columns that the source has beside its own, such as those of its files."""
    hidden = {str(a.name()).lower() for a in sequence_items(analyzed(source).metadataOutput())}
    names = [n.lower() for n in source.columns]
    return len(set(names)) < len(names) or any(name in statement.text.lower() for name in hidden)
