"""What rules look at: the branch, where it began, main, and the rows that differ, each of one pinned snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_paimon.core.requests.requests import CheckBranchData
from airflow_paimon.core.table.partitions import Selection
from airflow_paimon.core.table.scan import with_planned_files
from airflow_paimon.data.diff.differing_buckets import DiffPlan, DiffSide
from airflow_paimon.data.diff.unkeyed import COUNT
from airflow_paimon.data.read_groups import plan_of
from airflow_paimon.data.read_splits import plan_read
from airflow_paimon.spark.jobs.correction_sources import BRANCH_VIEW, MAIN_VIEW
from airflow_paimon.spark.jobs.diff_branches import BEFORE, CHANGE, diff_frame, surplus
from airflow_paimon.spark.jobs.small_input import view_frame
from airflow_paimon.spark.spark_types import sql_name
from airflow_paimon.spark.statements.tables import NamedTables
from airflow_paimon.spark.statements.views import view_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BASE_VIEW, DIFF_VIEW = "base", "diff"


@dataclass(slots=True)
class CheckViews:
    """DataFrames over the two sides of a planned diff, made when a rule first needs them.

    ``keeps_diff``: whether several rules look at the rows that differ, so that Spark keeps them.
    """

    spark: SparkSession
    request: CheckBranchData
    plan: DiffPlan
    further: dict[str, str]
    keeps_diff: bool = True
    _diff: DataFrame | None = None

    def branch(self, columns: Sequence[str] | None = None, partitions: Selection | None = None) -> DataFrame:
        """Return rows of the branch."""
        return self._side(self.plan.after, columns, partitions)

    def base(self, columns: Sequence[str] | None = None, partitions: Selection | None = None) -> DataFrame:
        """Return rows of what the branch is compared with."""
        return self._side(self.plan.before, columns, partitions)

    def differing_buckets(self, columns: Sequence[str]) -> DataFrame:
        """Return the rows of the branch in buckets (files of a table without keys) that differ: all that may differ."""
        return view_frame(self.spark, plan_of(plan_read(self.plan.after.scan, columns=columns)))

    def other(self, table: str) -> DataFrame:
        """Return the rows of a table ``db.t[$branch_b][@VERSION]``."""
        return NamedTables(self.spark, self.request, None).view(table)

    def diff(self) -> DataFrame:
        """Return the rows that differ, as they are on the branch, or were before where it deletes them.

        ``_change`` is ``added``, ``changed`` or ``deleted``, ``_before`` the row as it was, NULL of an added one.
        Without a primary key a changed row is a deleted and an added one.
        """
        if self._diff is None:
            plan = self.plan
            self._diff = diff_frame(self.spark, plan) if plan.keys else _differing(self.spark, plan)
            if self.keeps_diff:  # it is small beside what it is computed from
                self._diff.persist()
        return self._diff

    def close(self) -> None:
        """Free what Spark keeps for the rules."""
        if self._diff is not None and self.keeps_diff:
            self._diff.unpersist()

    def named(self, name: str, sql: str | None) -> DataFrame:
        """Return a view by its name, for a SELECT or a function."""
        if name == DIFF_VIEW:
            return self.diff()
        if name in (BRANCH_VIEW, BASE_VIEW):
            side = self.plan.after if name == BRANCH_VIEW else self.plan.before
            return self._side(side, view_columns(side.scan.schema, sql), None)
        return self.other(self.request.table if name == MAIN_VIEW else self.further[name])

    def _side(self, side: DiffSide, columns: Sequence[str] | None, partitions: Selection | None) -> DataFrame:
        chosen = with_planned_files(side.scan, partitions)
        return view_frame(self.spark, plan_of(plan_read(chosen, columns=columns)))


def _differing(spark: SparkSession, plan: DiffPlan) -> DataFrame:
    """Return each row as often as one side has it more often than the other, as ``diff_branches`` counts them."""
    from pyspark.sql import functions as sf

    before, after = (
        view_frame(spark, plan_of(plan_read(side.scan, columns=plan.columns))) for side in (plan.before, plan.after)
    )
    found = surplus(before, after, plan.columns)
    times, added = sf.sequence(sf.lit(1).cast("long"), sf.abs(found[COUNT])), found[COUNT] > 0
    return found.select("*", sf.explode(times)).select(
        *map(sql_name, plan.columns),
        sf.when(added, "added").otherwise("deleted").alias(CHANGE),
        sf.when(~added, sf.struct(*map(sql_name, plan.columns))).alias(BEFORE),
    )
