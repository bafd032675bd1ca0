"""Rules that lie with a table, so that nothing is published onto it without them."""

from __future__ import annotations

from typing import Any

from airflow_paimon.core.requests.context import Context, OperationResult, open_context
from airflow_paimon.core.requests.requests import CheckBranchData, Request
from airflow_paimon.core.rules.rules import Rule, parse_rules_text
from airflow_paimon.core.table.options import REQUIRED_CHECKS_OPTION
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.table import Table


def nothing_required(request: Request) -> OperationResult | None:
    """Return the result of a check without rules of its own, where the table requires none; None if it does.

    Raises:
        NotFoundError: no such table or branch.
    """
    context = open_context(request)
    return None if required_rules(context.table) else without_rules(context, request)


def without_rules(context: Context, request: Request) -> OperationResult:
    """Return the result of a check that has no rule to evaluate.

    Raises:
        NotFoundError: no such branch.
    """
    assert isinstance(request, CheckBranchData)
    head = context.table.branch(request.branch).require().latest_snapshot_id()
    details: dict[str, Any] = {"branch_snapshot": head, "rules": [], "warnings": []}
    return context.result(None, branch=request.branch, changed=False, before=head, after=head, details=details)


def required_rules(table: Table) -> tuple[Rule, ...]:
    """Return the rules of the table's option, as main has it now.

    Raises:
        InvalidInputError: the option is not a list of rules in JSON.
    """
    text = table.branch(MAIN).schema().options.get(REQUIRED_CHECKS_OPTION, "")
    return parse_rules_text(text, f"{table.name}: option {REQUIRED_CHECKS_OPTION}")
