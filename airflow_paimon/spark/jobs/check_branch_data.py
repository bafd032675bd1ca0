"""check_branch_data: rules that the rows of a branch have to keep, and what they say about its newest snapshot.

The results are kept beside the table, so that a publish can ask for those that the table requires.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_paimon.core.checks.required import required_rules
from airflow_paimon.core.checks.results import SKIPPED, RuleResult, outcome_of
from airflow_paimon.core.checks.rules import Drift, Function, RowLimits, Rule, Sql
from airflow_paimon.core.errors import PaimonError
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import CheckBranchData
from airflow_paimon.core.table.masking import Masks, masks_of
from airflow_paimon.data.diff.against import plan_own_changes
from airflow_paimon.data.diff.keyed import json_value
from airflow_paimon.data.diff.scan import DiffPlan
from airflow_paimon.spark.failures import query_errors
from airflow_paimon.spark.jobs.check_results import VIEWS, evaluate, limits_result, rules_of, totals_result
from airflow_paimon.spark.jobs.check_rows import broken_by_columns, broken_by_function, broken_by_sql, sql_views
from airflow_paimon.spark.jobs.check_totals import drifts
from airflow_paimon.spark.jobs.check_views import BEFORE, CheckViews
from airflow_paimon.spark.jobs.correction_sources import further_views
from airflow_paimon.spark.jobs.diff_branches import find_differences
from airflow_paimon.spark.statements.views import registered

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def check_branch_data(spark: SparkSession, context: Context, request: CheckBranchData) -> OperationResult:
    """Evaluate the rules of the table and of the request on the newest snapshot of a branch, and keep what they say.

    Raises:
        UnsafeOperationError: a rule of severity ``error`` is broken; ``details["rules"]`` has all results, with rows.
        InvalidInputError: a rule is wrong.
    """
    rules = rules_of(context, request)
    plan = plan_own_changes(context, request.branch)
    checks = _Checks(spark, context, request, plan)
    try:
        return evaluate(context, request, plan, lambda: [checks.result(rule) for rule in rules])
    finally:
        checks.close()


class _Checks:
    """Evaluates rules one after the other; what several of them need is made once."""

    def __init__(self, spark: SparkSession, context: Context, request: CheckBranchData, plan: DiffPlan) -> None:
        self._spark, self._request, self._plan = spark, request, plan
        self._views = CheckViews(spark, request, plan, further_views(request))
        schemas = (context.table.schema(), plan.before.scan.schema, plan.after.scan.schema)
        self._masks: Masks = masks_of(schemas, request.mask)
        self._required = {rule.digest for rule in required_rules(context.table)}
        self._found: Any = None

    def close(self) -> None:
        """Free what the rules had in common."""
        self._views.close()

    def result(self, rule: Rule) -> RuleResult:
        """Evaluate a rule.

        Raises:
            PaimonError: it can't be evaluated; the message names it.
        """
        try:
            with query_errors(f"Rule {rule.name!r}"):
                return self._result(rule)
        except PaimonError as error:
            if rule.name in error.message:
                raise
            raise type(error)(f"Rule {rule.name!r}: {error.message}", details=error.details) from None

    def _result(self, rule: Rule) -> RuleResult:
        if isinstance(rule, RowLimits):
            if self._found is None:
                self._found = find_differences(self._spark, self._plan, 0)
            return limits_result(rule, self._request, self._plan, self._found)
        if isinstance(rule, Drift):
            return self._of_drift(rule)
        if isinstance(rule, Sql):
            self._check_reach(rule)
            with registered(self._spark, sql_views(rule, self._views)):
                return self._of_rows(rule, broken_by_sql(rule, self._views))
        if isinstance(rule, Function):
            given = broken_by_function(rule, self._views)
            return self._of_rows(rule, given) if not isinstance(given, list) else self._of_list(rule, given)
        return self._of_rows(rule, broken_by_columns(rule, self._views))  # type: ignore[arg-type]

    def _check_reach(self, rule: Sql) -> None:
        from airflow_paimon.spark.statements.reach import check_reach

        if self._request.restricted_sql or rule.digest in self._required:
            check_reach(self._spark, self._request, rule.sql, {*VIEWS, *further_views(self._request)})

    def _of_drift(self, rule: Drift) -> RuleResult:
        broken, alone = drifts(rule, self._views)
        measured = f"{rule.measure}({rule.column or '*'})"
        result = totals_result(rule, self._request, broken, f"{measured} moved by more than {rule.most}")
        if rule.column is not None and rule.column.lower() in self._masks.columns:
            result = replace(result, rows=tuple({"partition": row.get("partition")} for row in result.rows))
        if alone and not broken:
            said = f"{alone} partitions have none a week before to be compared with"
            return replace(result, outcome=SKIPPED, said=said)
        return result

    def _of_rows(self, rule: Rule, rows: DataFrame) -> RuleResult:
        few = max(self._request.sample, 1)
        first = [row.asDict(recursive=True) for row in rows.limit(few + 1).collect()]
        return self._of_list(rule, first, rows.count if len(first) > few else None)

    def _of_list(self, rule: Rule, first: list[dict[str, Any]], count: Callable[[], int] | None = None) -> RuleResult:
        broken = count() if count is not None else len(first)
        return RuleResult(
            name=rule.name,
            digest=rule.digest,
            outcome=outcome_of(rule, broken),
            broken=broken,
            said=f"{broken:,} row{'s' * (broken != 1)} break{'s' * (broken == 1)} it" if broken else "kept",
            rows=tuple(self._sample(row) for row in first[: self._request.sample]),
        )

    def _sample(self, row: Mapping[str, Any]) -> dict[str, Any]:
        shown = {name: json_value(value) for name, value in row.items()}
        before = shown.get(BEFORE)
        if isinstance(before, dict):
            shown[BEFORE] = self._masks.row(before)
        return self._masks.row(shown)
