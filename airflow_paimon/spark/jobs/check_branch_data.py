"""check_branch_data: rules that the rows of a branch have to keep, and what they say about its newest snapshot.

The results are kept beside the table, so that a publish can ask for those that the table requires.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_paimon.core.errors import PaimonError, UnsafeOperationError, UnsupportedFeatureError
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import CheckBranchData
from airflow_paimon.core.rules.required import required_rules
from airflow_paimon.core.rules.results import SKIPPED, RuleResult
from airflow_paimon.core.rules.rules import VIEWS, ColumnRule, Drift, Function, Relationships, RowLimits, Rule, Sql
from airflow_paimon.core.sql_text.checks import further_views
from airflow_paimon.core.table.masking import columns_to_mask, masks_of
from airflow_paimon.data.diff.against import planned_changes
from airflow_paimon.data.diff.differing_buckets import DiffPlan
from airflow_paimon.spark.failures import query_errors, without_values
from airflow_paimon.spark.jobs.check_results import (
    counts_of,
    evaluate,
    inexact_partitions,
    limits_result,
    rule_result,
    rules_of,
    totals_result,
)
from airflow_paimon.spark.jobs.check_rows import broken_by_columns, broken_by_function, broken_by_sql
from airflow_paimon.spark.jobs.check_samples import Samples, Show, table_masks, view_masks
from airflow_paimon.spark.jobs.check_totals import drifts, rows_before
from airflow_paimon.spark.jobs.check_views import DIFF_VIEW, CheckViews
from airflow_paimon.spark.jobs.diff_branches import find_differences
from airflow_paimon.spark.jvm import has_jvm
from airflow_paimon.spark.statements.analysed import REACHES
from airflow_paimon.spark.statements.restricted_sql import check_restricted_sql
from airflow_paimon.spark.statements.views import may_mention, registered

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def check_branch_data(spark: SparkSession, context: Context, request: CheckBranchData) -> OperationResult:
    """Evaluate the rules of the table and of the request on the newest snapshot of a branch, and keep what they say.

    Raises:
        UnsafeOperationError: a rule of severity ``error`` is broken; ``details["rules"]`` has all results, with rows.
        InvalidInputError: a rule is wrong.
    """
    rules = rules_of(context, request)
    plan = planned_changes(context, request)
    checks = _Checks(spark, context, request, plan, rules)
    try:
        return evaluate(context, request, plan, lambda: [checks.result(rule) for rule in rules])
    finally:
        checks.close()


_REQUIRED_REACHES = (
    "SQL in the table's option airflow-paimon.required-checks sees tables only, since users who may alter the table "
    "could run it. Change the option, or give the rule to the check itself, in rules (--rules)"
)
_FORM_REACHES = (
    "restricted_sql (--restricted-sql) refuses that in rules of a form or a template. To allow it to every user who "
    'may trigger, set "sql": "any" in the extra forms of the Paimon connection; a DAG\'s own code may set '
    "restricted_sql=False"
)


class _Checks:
    """Evaluates rules one after the other; what several of them need is made once."""

    def __init__(
        self, spark: SparkSession, context: Context, request: CheckBranchData, plan: DiffPlan, rules: Sequence[Rule]
    ) -> None:
        self._spark, self._request, self._plan = spark, request, plan
        # Rules about columns rarely come as far as the diff.
        keeps_diff = sum(
            isinstance(r, Function) or (isinstance(r, Sql) and may_mention(r.sql, DIFF_VIEW)) for r in rules
        )
        self._views = CheckViews(spark, request, plan, further_views(request.view), keeps_diff > 1)
        schemas = (context.table.schema(), plan.before.scan.schema, plan.after.scan.schema)
        self._masks = masks_of(schemas, columns_to_mask(context.table.name, request.mask))
        further = {name: view_masks(request, text) for name, text in self._views.further.items()}
        self._samples = Samples(self._masks, further)
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
            with query_errors(f"Rule {rule.name!r}"), without_values(self._samples.hides()):
                return self._result(rule)
        except PaimonError as error:
            if rule.name in error.message:
                raise
            error.set_message(f"Rule {rule.name!r}: {error.message}")
            raise

    def _result(self, rule: Rule) -> RuleResult:
        if isinstance(rule, RowLimits):
            return self._of_limits(rule)
        if isinstance(rule, Drift):
            return self._of_drift(rule)
        if isinstance(rule, Sql):
            return self._of_sql(rule)
        if isinstance(rule, Function):
            given, frames = broken_by_function(rule, self._views, hides=self._samples.hides())
            if isinstance(given, list):
                return self._of_list(rule, given, self._samples.of_list)
            return self._of_rows(rule, given, self._samples.of_query(given, frames))
        if not isinstance(rule, ColumnRule):
            raise TypeError(f"no check is known for a {type(rule).__name__}")
        more = []  # columns whose fields are masked in the other table
        if isinstance(rule, Relationships):
            masked = view_masks(self._request, rule.to).columns
            more = [c for c, field in zip(rule.columns, rule.fields, strict=True) if field.lower() in masked]
        rows = broken_by_columns(rule, self._views)
        if rows is None:
            return self._of_list(rule, [], dict)
        return self._of_rows(rule, rows, lambda row: self._samples.of_columns(row, more))

    def _of_sql(self, rule: Sql) -> RuleResult:
        restricted = self._request.restricted_sql or rule.digest in self._required
        with self._naming_reach(rule):
            if restricted:
                check_restricted_sql(self._spark, self._request, rule.sql, {*VIEWS, *self._views.further})
            names = [name for name in (*VIEWS, *self._views.further) if may_mention(rule.sql, name)]
            frames = {name: self._views.named(name, rule.sql) for name in names}
        with registered(self._spark, frames, marked=restricted):
            with self._naming_reach(rule):
                rows, tables = broken_by_sql(rule, self._views, restricted=restricted)
            named = table_masks(self._request, tables)
            with without_values(self._samples.hides(named)):
                return self._of_rows(rule, rows, self._samples.of_query(rows, frames, named))

    def _of_limits(self, rule: RowLimits) -> RuleResult:
        if self._found is None:
            self._found = find_differences(self._spark, self._plan, 0)
        inexact = inexact_partitions([rule], self._plan, self._found)
        exact = rows_before(self._views, inexact) if inexact else {}
        return limits_result(rule, self._request, counts_of(self._plan, self._found, exact))

    @contextmanager
    def _naming_reach(self, rule: Sql) -> Iterator[None]:
        """Say of a refusal which rule it is, and whether the table or the request has it."""
        is_required = rule.digest in self._required
        try:
            yield
        except UnsafeOperationError as error:
            if REACHES not in error.details:
                raise
            helps = _REQUIRED_REACHES if is_required else _FORM_REACHES
            raise UnsafeOperationError(
                f"Rule {rule.name!r} reaches beyond the tables: it has {error.details[REACHES]}. {helps}"
            ) from None
        except UnsupportedFeatureError:
            if not is_required or has_jvm(self._spark):
                raise
            raise UnsupportedFeatureError(
                f"Rule {rule.name!r} is one of the table's own, whose SQL is checked in the parsed plan, and a Spark "
                "Connect client can't parse. Check this table with a connection of type spark, or with spark-submit"
            ) from None

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

    def _of_rows(self, rule: Rule, rows: DataFrame, show: Show) -> RuleResult:
        few = max(self._request.sample, 1)
        first = [row.asDict(recursive=True) for row in rows.limit(few + 1).collect()]
        return self._of_list(rule, first, show, rows.count if len(first) > few else None)

    def _of_list(
        self, rule: Rule, first: list[dict[str, Any]], show: Show, count: Callable[[], int] | None = None
    ) -> RuleResult:
        broken = count() if count is not None else len(first)
        said = f"{broken:,} row{'s' * (broken != 1)} break{'s' * (broken == 1)} it"
        return rule_result(rule, broken, said, map(show, first[: self._request.sample]))
