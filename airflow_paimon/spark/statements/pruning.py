"""What a query needs of each table that it reads: found in Spark's optimized plan, where empty rows stand for them.

Spark pushes filters and columns down to what it reads, but tells a table that is read by this package nothing of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.table.predicate import AllOf, AnyOf, Predicate
from airflow_paimon.spark.filters import condition_predicate
from airflow_paimon.spark.jvm import analyzed, asks_for_the_time, id_of, ids_of, kind_of, optimized, sequence_items
from airflow_paimon.spark.spark_types import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class Needed:
    """``predicate``: holds for every row that matters, None = all rows. ``columns``: None = all."""

    predicate: Predicate | None
    columns: frozenset[str] | None


EVERYTHING = Needed(None, None)


def placeholder(spark: SparkSession, schema: TableSchema) -> tuple[DataFrame, int]:
    """Return a DataFrame that stands for a table with these columns, and the number by which it is found in a plan."""
    frame = spark.createDataFrame(spark.sparkContext.emptyRDD(), spark_schema(schema.fields))
    return frame, int(analyzed(frame).rdd().id())


def needed_of(frame: DataFrame, placeholders: Mapping[int, TableSchema]) -> dict[int, list[Needed]]:
    """Return what the query needs of each placeholder, once for each place where it is read."""
    found: dict[int, list[Needed]] = {}
    _look(optimized(frame), (), None, placeholders, found)
    if asks_for_the_time(frame):
        # current_date() is a constant in an optimized plan, and another one when the rows are read tomorrow
        return {number: [Needed(None, n.columns) for n in needed] for number, needed in found.items()}
    return found


def united(needed: Sequence[Needed]) -> Needed:
    """Return what all of these need; nothing known = everything."""
    predicates = [n.predicate for n in needed]
    known = [p for p in predicates if p is not None]
    whole = not needed or len(known) < len(predicates)
    columns = [n.columns for n in needed]
    named = [c for c in columns if c is not None]
    return Needed(
        predicate=None if whole else known[0] if len(known) == 1 else AnyOf(tuple(known)),
        columns=frozenset().union(*named) if needed and len(named) == len(columns) else None,
    )


def _look(
    plan: Any,
    conditions: Sequence[Any],
    used: frozenset[int] | None,
    placeholders: Mapping[int, TableSchema],
    found: dict[int, list[Needed]],
) -> None:
    """``conditions``: of filters right above. ``used``: ids of the attributes that a projection right above takes."""
    for subquery in sequence_items(plan.subqueries()):
        _look(subquery, (), None, placeholders, found)
    kind = kind_of(plan)
    if kind == "LogicalRDD":
        number = int(plan.rdd().id())
        if number in placeholders:
            found.setdefault(number, []).append(_needed(plan, conditions, used, placeholders[number]))
        return
    if kind == "Filter":
        below = None if used is None else used | ids_of(plan.condition().references().toSeq())
        _look(plan.child(), (*conditions, plan.condition()), below, placeholders, found)
    elif kind == "Project":
        taken = frozenset[int]().union(*(ids_of(e.references().toSeq()) for e in sequence_items(plan.projectList())))
        _look(plan.child(), conditions, taken, placeholders, found)
    else:
        for child in sequence_items(plan.children()):
            _look(child, (), None, placeholders, found)


def _needed(leaf: Any, conditions: Sequence[Any], used: frozenset[int] | None, schema: TableSchema) -> Needed:
    names = {id_of(a): str(a.name()) for a in sequence_items(leaf.output())}
    ids = frozenset(names)
    parts = [p for c in conditions if (p := condition_predicate(c, schema, ids)) is not None]
    columns = None if used is None else frozenset(names[i] for i in used & ids)
    return Needed(parts[0] if len(parts) == 1 else AllOf(tuple(parts)) if parts else None, columns)
