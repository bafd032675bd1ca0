"""The tables that a correction's query reads: of a large one only the files that it can need are planned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from airflow_paimon.core.requests.requests import CorrectBranch
from airflow_paimon.core.table.manifest_lists import count_live_files
from airflow_paimon.core.table.partitions import partitions_where
from airflow_paimon.core.table.scan import ScanPlan, plan_snapshot
from airflow_paimon.data.fallback_branches import other_branch
from airflow_paimon.data.read_groups import plan_of
from airflow_paimon.data.read_splits import plan_read
from airflow_paimon.data.row_columns import with_row_columns
from airflow_paimon.spark.jobs.correction import CorrectionBase
from airflow_paimon.spark.jobs.correction_sources import BRANCH_VIEW, MAIN_VIEW
from airflow_paimon.spark.jobs.small_input import view_frame
from airflow_paimon.spark.jvm import has_jvm
from airflow_paimon.spark.statements.pruning import EVERYTHING, Needed
from airflow_paimon.spark.statements.tables import NamedTables, own_rows
from airflow_paimon.spark.statements.views import may_mention, view_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LARGE = 2000
"""Above so many files of the branch, those that a query needs are found before they are planned."""


class CorrectionTables(NamedTables):
    """Tables and views of a query that corrects a branch, which is read at the head that is corrected."""

    def __init__(self, spark: SparkSession, request: CorrectBranch, base: CorrectionBase, sql: str | None) -> None:
        """``sql``: the query; None: a function, which may need all rows of each view."""
        super().__init__(spark, request, sql, base.table, restricted=request.restricted_sql, is_query=True)
        self._main, self._base = request.table, base
        self._own_source = self._own_at_head
        if sql is None or not has_jvm(spark):  # there is no plan to look at
            self._needed = {}

    def all_views(self, further: Mapping[str, str]) -> dict[str, DataFrame]:
        """Return the rows of the views that the query can mean. ``further``: ``db.t`` or the like by view name."""
        found = self.views({MAIN_VIEW: self._main, **further})
        return found | ({BRANCH_VIEW: self._branch()} if may_mention(self._text, BRANCH_VIEW) else {})

    def rows(self, sql: str) -> DataFrame:
        """Return the rows of the query; raises as ``query`` does."""
        return self.query(sql, self._own_at_head)

    def _branch(self) -> DataFrame:
        """Return the branch as it is corrected: what is replaced, rows that wait for a compaction among it."""
        base = self._base

        def rows(needed: Needed) -> DataFrame:
            columns, whole = view_columns(base.schema, self._text), bool(base.schema.primary_keys)
            return view_frame(self._spark, plan_of(plan_read(self._scan(needed), columns=columns, whole_buckets=whole)))

        return self._of_base(rows, BRANCH_VIEW) if is_large(base) else rows(EVERYTHING)

    def _own_at_head(self) -> DataFrame:
        """Return the branch as readers see it, for its own name."""
        base = self._base

        def rows(needed: Needed) -> DataFrame:
            return own_rows(self._spark, self._text, self._scan(needed))

        prunes = is_large(base) and other_branch(ScanPlan(base.table, None, base.schema)) is None
        return self._of_base(rows, None) if prunes else rows(EVERYTHING)

    def _of_base(self, rows: Callable[[Needed], DataFrame], view: str | None) -> DataFrame:
        schema = self._base.schema
        shown = schema if view_columns(schema, self._text) is None else with_row_columns(schema)
        return self._pruned((self._base.table.name, self._base.table.branch_name, None, view, -1), shown, rows)

    def _scan(self, needed: Needed) -> ScanPlan:
        base = self._base
        return plan_snapshot(base.table, base.head, base.schema, partitions_where(needed.predicate, base.schema))


def is_large(base: CorrectionBase) -> bool:
    """Whether the branch has so many files that it pays to know which are needed before they are read."""
    return bool(base.schema.partition_keys) and count_live_files(base.table, base.head) > LARGE
