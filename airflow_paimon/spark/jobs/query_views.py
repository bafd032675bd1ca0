"""The tables that a correction's query reads: of a large one only the files that it can need are planned.

For that the query is planned first on empty rows, as every SELECT is (``statements/select.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.table.manifest_lists import count_live_files
from airflow_paimon.core.table.partition_filter import partitions_where
from airflow_paimon.core.table.partitions import Selection
from airflow_paimon.core.table.predicate import Predicate
from airflow_paimon.core.table.scan import ScanPlan, plan_snapshot
from airflow_paimon.data.chain.scan import is_chain_read
from airflow_paimon.data.fallback_branches import other_branch
from airflow_paimon.data.planner import pin, plan_pinned
from airflow_paimon.data.read_groups import IN_SPARK
from airflow_paimon.data.read_request import ReadRequest
from airflow_paimon.data.row_columns import with_row_columns
from airflow_paimon.data.scan import plan_read
from airflow_paimon.spark.jobs.correction import CorrectionBase
from airflow_paimon.spark.jobs.small_input import view_frame
from airflow_paimon.spark.read import Planned
from airflow_paimon.spark.statements.pruning import needed_of, placeholder, read_by, united
from airflow_paimon.spark.statements.tables import NamedTables, own_rows
from airflow_paimon.spark.statements.views import plan_read_for, view_columns, viewed_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Running = Callable[[Mapping[str, "DataFrame"], Callable[[str], "DataFrame"]], AbstractContextManager["DataFrame"]]
"""Gives the rows of the query, by the rows of its views and by what runs its text."""


LARGE = 2000
"""Above so many files of a table, those that a query needs are found before they are planned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryView:
    """A table at one snapshot. ``schema``: the columns that the query can mean; ``plan``: plans the read of the rows
    for which a predicate holds, and perhaps of others (None: of all).
    """

    schema: TableSchema
    is_large: bool
    plan: Callable[[Predicate | None], Planned]


def branch_view(base: CorrectionBase, sql: str | None) -> QueryView:
    """Return the branch as it is corrected: what is replaced, rows that wait for a compaction among it."""
    schema, columns = base.schema, view_columns(base.schema, sql)

    def plan(predicate: Predicate | None) -> Planned:
        scan = plan_snapshot(base.table, base.head, schema, partitions_where(predicate, schema))
        return [plan_read(scan, columns=columns, whole_buckets=bool(schema.primary_keys))]

    return QueryView(schema=_with(schema, columns), is_large=is_large(base), plan=plan)


def is_large(base: CorrectionBase) -> bool:
    """Whether the branch has so many files that it pays to know which are needed before they are read."""
    return bool(base.schema.partition_keys) and count_live_files(base.table, base.head) > LARGE


def other_view(warehouse: str, text: str, storage_options: Mapping[str, Any] | None, sql: str | None) -> QueryView:
    """Return ``db.t``, ``db.t$branch_b`` or either with ``@VERSION``.

    Raises:
        NotFoundError: no such table, branch or version. InvalidInputError: not of that form.
    """
    table, version = viewed_table(warehouse, text, storage_options)
    if is_chain_read(table, version):
        return QueryView(schema=table.schema(), is_large=False, plan=lambda _: plan_read_for(table, sql, version))
    state = pin(table, version)
    schema = state.states[0].schema
    columns = view_columns(schema, sql)
    return QueryView(
        schema=_with(schema, columns),
        is_large=sum(count_live_files(s.table, s.snapshot) for s in state.states) > LARGE,
        plan=lambda predicate: plan_pinned(state, ReadRequest(columns=columns, predicate=predicate), IN_SPARK),
    )


def _with(schema: TableSchema, columns: Sequence[str] | None) -> TableSchema:
    return schema if columns is None else with_row_columns(schema)


def needed_frames(
    spark: SparkSession,
    views: Mapping[str, QueryView],
    base: CorrectionBase,
    sql: str,
    tables: NamedTables,
    running: Running,
) -> tuple[dict[str, DataFrame], Callable[[], DataFrame]]:
    """Return the rows of the views that a query can need; and what gives those of the branch under its own name.

    Raises:
        InvalidInputError: Spark refuses the query.
    """
    frames = {name: view_frame(spark, view.plan(None)) for name, view in views.items() if not view.is_large}
    large = {name: view for name, view in views.items() if view.is_large}
    prunes_own = is_large(base) and other_branch(ScanPlan(base.table, None, base.schema)) is None
    if not large and not prunes_own:
        return frames, lambda: own_rows(spark, sql, _scan(base, None))
    numbers: dict[int, tuple[str | None, TableSchema]] = {}

    def empty(name: str | None, schema: TableSchema) -> DataFrame:
        frame, number = placeholder(spark, schema)
        numbers[number] = (name, schema)
        return frame

    def own() -> DataFrame:
        if not prunes_own:
            return own_rows(spark, sql, _scan(base, None))
        return empty(None, _with(base.schema, view_columns(base.schema, sql)))

    first = frames | {name: empty(name, view.schema) for name, view in large.items()}
    with running(first, lambda text: tables.query(text, own)) as rows:
        read = read_by(rows, numbers)
        found = needed_of(rows, {number: schema for number, (_, schema) in numbers.items()})
    predicates: dict[str | None, Predicate | None] = {
        numbers[number][0]: united(found.get(number, [])).predicate for number in read
    }
    frames |= {name: view_frame(spark, large[name].plan(p)) for name, p in predicates.items() if name is not None}
    selection = partitions_where(predicates.get(None), base.schema)
    return frames, lambda: own_rows(spark, sql, _scan(base, selection))


def _scan(base: CorrectionBase, selection: Selection | None) -> ScanPlan:
    return plan_snapshot(base.table, base.head, base.schema, selection)
