"""What a check of a branch does without Spark: its rules, limits of small differences, and what it ends with.

Imports no pyspark.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from airflow_paimon.core.checks.columns import check_columns
from airflow_paimon.core.checks.required import required_rules, without_rules
from airflow_paimon.core.checks.results import FAILED, SKIPPED, WARNED, RuleResult, outcome_of, put_record
from airflow_paimon.core.checks.rules import Function, RowLimits, Rule, is_module, read_rules
from airflow_paimon.core.checks.totals import Counts, broken_limits
from airflow_paimon.core.errors import InvalidInputError, UnsafeOperationError
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import CheckBranchData
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.data.diff.against import plan_own_changes
from airflow_paimon.data.diff.compare import Found, by_partition, compare_here, is_small, skipped_rows
from airflow_paimon.data.diff.scan import DiffPlan, Skipped
from airflow_paimon.spark.jobs.correction_sources import BRANCH_VIEW, MAIN_VIEW, further_views

BASE_VIEW, DIFF_VIEW = "base", "diff"
VIEWS = (BRANCH_VIEW, BASE_VIEW, MAIN_VIEW, DIFF_VIEW)
_LISTED = 3


def rules_of(context: Context, request: CheckBranchData) -> tuple[Rule, ...]:
    """Return the table's rules and those of the request, each once, after all checks that need no rows.

    Raises:
        InvalidInputError: a rule is wrong, or names a column that is not there. UnsafeOperationError: a rule of the
            table calls a function that this request doesn't allow. NotFoundError: no such branch.
    """
    if request.branch == MAIN:
        raise InvalidInputError(
            f"{request.table}: main has no changes to check; name the branch that is to be published"
        )
    branch = context.table.branch(request.branch).require()
    required = required_rules(context.table)
    given = read_rules(request.rules, request.table) if request.rules is not None else ()
    known = {rule.digest for rule in required}
    rules = (*required, *(rule for rule in given if rule.digest not in known))
    if strange := set(further_views(request)) & set(VIEWS):
        raise InvalidInputError(f"--view: there is a view {min(strange)!r} already; give another name")
    check_columns(rules, branch.schema(), branch.label)
    for rule in required:
        if isinstance(rule, Function) and not is_module(rule.function.partition(":")[0], request.allow_module):
            raise UnsafeOperationError(
                f"{request.table}: its required check {rule.name!r} calls {rule.function}, and whoever may alter the "
                f"table would run code here; allow it with --allow-module {rule.function.partition(':')[0]} "
                f"(operators: functions in the extra forms of the Paimon connection)"
            )
    return rules


def check_before_spark(context: Context, request: CheckBranchData) -> OperationResult | None:
    """Check the rules, and evaluate them where that needs no Spark session: none, or limits of a small difference.

    Raises:
        PaimonError: as ``check_branch_data`` does.
    """
    rules = rules_of(context, request)
    if not rules:
        return without_rules(context, request)
    limits = [rule for rule in rules if isinstance(rule, RowLimits)]
    plan = plan_own_changes(context, request.branch) if len(limits) == len(rules) else None
    if plan is None or not is_small(plan):
        return None
    found = compare_here(plan, 0)
    return evaluate(context, request, plan, lambda: [limits_result(rule, request, plan, found) for rule in limits])


def evaluate(
    context: Context, request: CheckBranchData, plan: DiffPlan, results_of: Callable[[], Sequence[RuleResult]]
) -> OperationResult:
    """Evaluate rules on the branch's snapshot in ``plan``, and keep what they say.

    Raises:
        UnsafeOperationError: a rule of severity ``error`` is broken; ``details["rules"]`` has all results, with rows.
        InvalidInputError: the branch is empty.
    """
    head = plan.after.scan.snapshot
    if head is None:
        raise InvalidInputError(f"{plan.after.scan.table.label} is empty: it has no snapshot to check")
    results = results_of()
    if not request.dry_run:
        put_record(context.table, request.branch, head, context.now_ms, results)
    _refuse_failed(plan, head, results)
    details = {
        "branch_snapshot": head.id,
        "rules": [r.to_json() for r in results],
        "warnings": [f"{r.name}: {r.said}" for r in results if r.outcome in (WARNED, SKIPPED)],
    }
    return context.result(None, branch=request.branch, changed=False, before=head.id, after=head.id, details=details)


def _refuse_failed(plan: DiffPlan, head: Snapshot, results: Sequence[RuleResult]) -> None:
    failed = [r for r in results if r.outcome == FAILED]
    if not failed:
        return
    said = "; ".join(f"{r.name!r}: {r.said}{_example(r)}" for r in failed[:_LISTED])
    more = f"; and {len(failed) - _LISTED} more" if len(failed) > _LISTED else ""
    raise UnsafeOperationError(
        f"{plan.after.scan.table.label}, snapshot {head.id}, breaks {len(failed)} of {len(results)} rules: {said}"
        f"{more}. Correct the branch and check it again, or change the rule",
        details={"branch_snapshot": head.id, "rules": [r.to_json() for r in results]},
    )


def _example(result: RuleResult) -> str:
    return f", such as {json.dumps(result.rows[0], ensure_ascii=False)}" if result.rows else ""


def limits_result(rule: RowLimits, request: CheckBranchData, plan: DiffPlan, found: Found) -> RuleResult:
    """Compare how many rows differ with a rule's limits."""
    return totals_result(rule, request, broken_limits(rule, _counts_of(plan, found)), "more rows than allowed")


def totals_result(rule: Rule, request: CheckBranchData, broken: list[dict[str, Any]], what: str) -> RuleResult:
    """Return what a rule about totals says; ``broken``: where it is, ``what`` is wrong there."""
    return RuleResult(
        name=rule.name,
        digest=rule.digest,
        outcome=outcome_of(rule, len(broken)),
        broken=len(broken),
        said=f"{what} in {len(broken)} case{'s' * (len(broken) != 1)}" if broken else "kept",
        rows=tuple(broken[: request.sample]),
    )


def _counts_of(plan: DiffPlan, found: Found) -> list[Counts]:
    """Count the rows that differ, by partition; partitions without any are left out."""
    skipped, none = skipped_rows(plan), Skipped()
    counts = [
        Counts(
            partition=name,
            added=f.added,
            changed=f.changed,
            deleted=f.deleted,
            before=f.unchanged + f.changed + f.deleted + skipped.get(name, none).rows,
        )
        for name, f in by_partition(plan.after.scan.schema, found, 0).items()
    ]
    return [c for c in counts if c.added or c.changed or c.deleted]
