"""What a check of a branch does without Spark: its rules, limits of small differences, and what it ends with.

Imports no pyspark.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from airflow_paimon.core.errors import InvalidInputError, UnsafeOperationError, first_few
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import CheckBranchData
from airflow_paimon.core.rules.columns import check_columns
from airflow_paimon.core.rules.required import required_rules, without_rules
from airflow_paimon.core.rules.results import FAILED, SKIPPED, WARNED, RuleResult, outcome_of, put_record
from airflow_paimon.core.rules.rules import (
    VIEWS,
    Function,
    RowLimits,
    Rule,
    is_module,
    read_rules,
)
from airflow_paimon.core.rules.totals import Counts, broken_limits
from airflow_paimon.core.sql_text.checks import further_views
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.data.diff.against import planned_changes
from airflow_paimon.data.diff.differing_buckets import DiffPlan, Skipped
from airflow_paimon.data.diff.keyed import RowDifferences
from airflow_paimon.data.diff.run_diff import Found, by_partition, compare_here, diff_fits, skipped_rows
from airflow_paimon.data.memory_plan import DEFAULT_BYTES

_LISTED = 3


def rules_of(context: Context, request: CheckBranchData) -> tuple[Rule, ...]:
    """Return the table's rules and those of the request, each once, after all checks that need no rows.

    Raises:
        InvalidInputError: a rule is wrong, or names a column that is not there. UnsafeOperationError: a rule of the
            table calls a function that this request doesn't allow. NotFoundError: no such branch.
    """
    if request.branch == MAIN and request.version is None:
        raise InvalidInputError(
            f"{request.table}: main has no changes to check; name the branch that is to be published"
        )
    branch = context.table.branch(request.branch).require()
    required = required_rules(context.table)
    given = read_rules(request.rules, request.table) if request.rules is not None else ()
    known = {rule.digest for rule in required}
    rules = (*required, *(rule for rule in given if rule.digest not in known))
    if strange := [name for name in further_views(request.view) if name.lower() in VIEWS]:
        raise InvalidInputError(f"view (--view): the view {strange[0]!r} exists already; give another name")
    check_columns(rules, branch.schema(), branch.label)
    for rule in required:
        if isinstance(rule, Function) and not is_module(rule.function.partition(":")[0], request.allow_module):
            raise UnsafeOperationError(
                f"{request.table}: its required check {rule.name!r} calls {rule.function}, so users who may alter the "
                f"table could run code here; allow {rule.function.partition(':')[0]} in allow_module (--allow-module), "
                "or for operators in functions of the connection's extra forms"
            )
    return rules


def check_before_spark(
    context: Context, request: CheckBranchData, memory_bytes: int = DEFAULT_BYTES
) -> OperationResult | None:
    """Check the rules, and evaluate them where that needs no Spark session: none, or limits of a difference that takes
    no more memory.

    Raises:
        PaimonError: as ``check_branch_data`` does.
    """
    rules = rules_of(context, request)
    if not rules:
        return without_rules(context, request)
    limits = [rule for rule in rules if isinstance(rule, RowLimits)]
    if len(limits) < len(rules):
        return None
    plan = planned_changes(context, request)
    if not diff_fits(plan, memory_bytes):
        return None
    found = compare_here(plan, 0)
    if inexact_partitions(limits, plan, found):
        return None
    counts = counts_of(plan, found)
    return evaluate(context, request, plan, lambda: [limits_result(rule, request, counts) for rule in limits])


def evaluate(
    context: Context, request: CheckBranchData, plan: DiffPlan, results_of: Callable[[], Sequence[RuleResult]]
) -> OperationResult:
    """Evaluate rules on the branch's snapshot in ``plan``, and keep what they say.

    Raises:
        UnsafeOperationError: a rule of severity ``error`` is broken; ``details["rules"]`` has all results, with rows.
            Or rows wait for a compaction, so that no rule can look at them. InvalidInputError: the branch is empty.
    """
    head = plan.after.scan.snapshot
    if head is None:
        raise InvalidInputError(f"{plan.after.scan.table.label} is empty: it has no snapshot to check")
    _refuse_hidden(plan)
    results = results_of()
    if not request.dry_run:
        put_record(context.table, request.branch, head, plan.before.scan.snapshot, results)
    _refuse_failed(plan, head, results)
    details = {
        "branch_snapshot": head.id,
        "rules": [r.to_json() for r in results],
        "warnings": [f"{r.name}: {r.said}" for r in results if r.outcome in (WARNED, SKIPPED)],
    }
    return context.result(None, branch=request.branch, changed=False, before=head.id, after=head.id, details=details)


def _refuse_hidden(plan: DiffPlan) -> None:
    """Refuse to check what no read shows: a publish would bring it to main all the same, or take it away."""
    label, compact = plan.after.scan.table.label, "Compact (job compact)"
    for hidden, of, helps in (
        (plan.hidden_after, label, f"{compact} the branch, and check it again"),
        (
            plan.hidden_before,
            f"{label}: what it is compared with",
            f"{compact} main, and recreate the branch; or, where main has them compacted already, compare with it as "
            "it is now: against=main (--against)",
        ),
    ):
        if hidden.files:
            rows = f"{hidden.rows:,} row{'s' * (hidden.rows != 1)} in {hidden.files} file{'s' * (hidden.files != 1)}"
            raise UnsafeOperationError(
                f"{of} has {rows} that wait for a compaction; until then no read shows them, so no rule can check "
                f"them; nothing was checked. {helps}",
                details={"rows": hidden.rows, "files": hidden.files},
            )


def _refuse_failed(plan: DiffPlan, head: Snapshot, results: Sequence[RuleResult]) -> None:
    failed = [r for r in results if r.outcome == FAILED]
    if not failed:
        return
    examples = [f", such as {json.dumps(r.rows[0], ensure_ascii=False)}" if r.rows else "" for r in failed]
    faults = [f"{r.name!r}: {r.said}{example}" for r, example in zip(failed, examples, strict=True)]
    said = first_few(faults, _LISTED, "; ")
    raise UnsafeOperationError(
        f"{plan.after.scan.table.label}, snapshot {head.id}, breaks {len(failed)} of {len(results)} rules: {said}. "
        f"Correct the branch and check it again, or change the rule",
        details={"branch_snapshot": head.id, "rules": [r.to_json() for r in results]},
    )


def limits_result(rule: RowLimits, request: CheckBranchData, counts: Sequence[Counts]) -> RuleResult:
    """Compare how many rows differ with a rule's limits."""
    return totals_result(rule, request, broken_limits(rule, counts), "more rows than allowed")


def totals_result(rule: Rule, request: CheckBranchData, broken: list[dict[str, Any]], what: str) -> RuleResult:
    """Return what a rule about totals says; ``broken``: where it is, ``what`` is wrong there."""
    said = f"{what} in {len(broken)} case{'s' * (len(broken) != 1)}"
    return rule_result(rule, len(broken), said, broken[: request.sample])


def rule_result(rule: Rule, broken: int, said: str, rows: Iterable[dict[str, Any]]) -> RuleResult:
    """Return the result of a rule that is broken so often; ``said``: what is told then."""
    return RuleResult(
        name=rule.name,
        digest=rule.digest,
        outcome=outcome_of(rule, broken),
        broken=broken,
        said=said if broken else "kept",
        rows=tuple(rows),
    )


def counts_of(plan: DiffPlan, found: Found, exact: Mapping[str, int] | None = None) -> list[Counts]:
    """Count the rows that differ, by partition; partitions without any are left out.

    ``exact``: how many rows partitions had before, where metadata doesn't say it.
    """
    skipped, none, known = skipped_rows(plan), Skipped(), exact or {}
    return [
        Counts(
            partition=name,
            added=f.added,
            changed=f.changed,
            deleted=f.deleted,
            before=known.get(name, f.unchanged + f.changed + f.deleted + skipped.get(name, none).rows),
        )
        for name, f in _differing(plan, found).items()
    ]


def inexact_partitions(limits: Sequence[RowLimits], plan: DiffPlan, found: Found) -> set[bytes]:
    """Return the partitions of which a limit needs a part, and metadata doesn't say how many rows they had.

    Buckets that are the same on both sides are not read, and may hold several versions of a row.
    """
    if not any(most.percent for rule in limits for _, most in rule.limits):
        return set()
    differing, stored = _differing(plan, found), StoredPartitions(plan.after.scan.schema)
    return {p for p, s in plan.skipped.items() if not s.exact and stored.text(p) in differing}


def _differing(plan: DiffPlan, found: Found) -> dict[str, RowDifferences]:
    by_name = by_partition(plan.after.scan.schema, found, 0)
    return {name: f for name, f in by_name.items() if f.added or f.changed or f.deleted}
