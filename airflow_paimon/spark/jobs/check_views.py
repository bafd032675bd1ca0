"""What rules look at: the branch, where it began, main, and the rows that differ, each of one pinned snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_paimon.core.errors import UnsupportedFeatureError
from airflow_paimon.core.format.types import ArrayType, DataType, MapType, RowType
from airflow_paimon.core.requests.requests import CheckBranchData
from airflow_paimon.core.table.partitions import Selection
from airflow_paimon.core.table.scan import plan_state
from airflow_paimon.data.diff.scan import DiffPlan, Side
from airflow_paimon.data.scan import plan_read
from airflow_paimon.spark.jobs.check_diff import BEFORE, CHANGE, diff_frame
from airflow_paimon.spark.jobs.correction_sources import BRANCH_VIEW, MAIN_VIEW
from airflow_paimon.spark.jobs.small_input import view_frame
from airflow_paimon.spark.statements.views import plan_view, view_columns

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
        return view_frame(self.spark, [plan_read(self.plan.after.scan, columns=columns, time_travel=True)])

    def other(self, table: str) -> DataFrame:
        """Return the rows of a table ``db.t[$branch_b][@VERSION]``."""
        return view_frame(self.spark, plan_view(self.request.warehouse, table, self.request.storage_options, None))

    def diff(self) -> DataFrame:
        """Return the rows that differ, as they are on the branch, or were before where it deletes them.

        ``_change`` is ``added``, ``changed`` or ``deleted``, ``_before`` the row as it was, NULL of an added one.
        Without a primary key a changed row is a deleted and an added one.

        Raises:
            UnsupportedFeatureError: rows of an append table with a map can't be compared.
        """
        if self._diff is None:
            self._diff = self._differing()
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

    def _side(self, side: Side, columns: Sequence[str] | None, partitions: Selection | None) -> DataFrame:
        chosen = plan_state(side.scan, partitions)
        return view_frame(self.spark, [plan_read(chosen, columns=columns, time_travel=True)])

    def _differing(self) -> DataFrame:
        plan = self.plan
        if plan.keys:
            return diff_frame(self.spark, plan)
        before, after = (
            view_frame(self.spark, [plan_read(side.scan, columns=plan.columns, time_travel=True)])
            for side in (plan.before, plan.after)
        )
        return self._as_multisets(before, after)

    def _as_multisets(self, before: DataFrame, after: DataFrame) -> DataFrame:
        from pyspark.sql import functions as sf

        schema = self.plan.after.scan.schema
        maps = [f.name for f in schema.fields if f.name in self.plan.columns and _has_map(f.type)]
        if maps:
            raise UnsupportedFeatureError(
                f"{self.plan.after.scan.table.label}: Spark can't compare rows with a map ({', '.join(maps)}), so that "
                f'there is no view diff: give the rule "rows": "all", or a SELECT on branch'
            )
        none = sf.lit(None)
        added = after.exceptAll(before).select("*", sf.lit("added").alias(CHANGE))
        added = added.withColumn(BEFORE, none.cast(before.schema))
        deleted = before.exceptAll(after).select("*", sf.lit("deleted").alias(CHANGE))
        return added.unionByName(deleted.withColumn(BEFORE, sf.struct(*self.plan.columns)))


def _has_map(data_type: DataType) -> bool:
    """Whether Spark can't compare values of a type: a map, or a variant, in any depth."""
    if isinstance(data_type, MapType) or data_type.root == "VARIANT":
        return True
    if isinstance(data_type, ArrayType):
        return _has_map(data_type.element)
    return isinstance(data_type, RowType) and any(_has_map(f.type) for f in data_type.fields)
