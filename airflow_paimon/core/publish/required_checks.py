"""The gate at a publish: a table's required checks must have passed for exactly the snapshot that is published."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from airflow_paimon.core.checks.required import required_rules
from airflow_paimon.core.checks.results import FAILED, outcomes_for
from airflow_paimon.core.checks.rules import Rule
from airflow_paimon.core.errors import UnsafeOperationError
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.publish.fold import is_fold
from airflow_paimon.core.requests.requests import PublishBranch
from airflow_paimon.core.table.properties import CHECKS_FORCED_PROPERTY, CHECKS_PROPERTY
from airflow_paimon.core.table.table import Table


def check_gate(request: PublishBranch, main: Table, branch: Table, theirs: Snapshot) -> dict[str, str]:
    """Check that every required rule has passed, or only warned, for a snapshot of a branch.

    Returns what the publish's snapshot says about it. A dry run is let through, as the checks may follow it.

    Raises:
        UnsafeOperationError: one is missing or failed, without ``force``.
    """
    rules = required_rules(main)
    if not rules or request.dry_run:
        return {}
    outcomes = _outcomes(main, branch, theirs)
    missing = [r for r in rules if r.digest not in outcomes]
    failed = [r for r in rules if outcomes.get(r.digest) == FAILED]
    if not missing and not failed:
        return {CHECKS_PROPERTY: _summary(rules, outcomes)}
    if request.force:
        return {CHECKS_PROPERTY: _summary(rules, outcomes), CHECKS_FORCED_PROPERTY: "true"}
    raise UnsafeOperationError(
        f"{main.name}: {branch.label} can't be published: {_said(missing, failed, theirs)}; nothing was published. "
        f"Correct what is wrong on the branch and run check_branch_data; --force publishes it all the same, and its "
        f"snapshot says so",
        details={
            "missing_checks": [r.name for r in missing],
            "failed_checks": [r.name for r in failed],
            "branch_snapshot": theirs.id,
        },
    )


def _summary(rules: Sequence[Rule], outcomes: Mapping[str, str]) -> str:
    return json.dumps({r.name: outcomes.get(r.digest, "missing") for r in rules}, ensure_ascii=False)


def _outcomes(main: Table, branch: Table, theirs: Snapshot) -> dict[str, str]:
    """Return the outcomes for a snapshot, or for the one that earlier tries of the publish have only folded."""
    checked: Snapshot | None = theirs
    while checked is not None and is_fold(checked):
        checked = branch.find_snapshot(checked.id - 1)
    return outcomes_for(main, branch.branch_name, checked or theirs)


def _said(missing: Sequence[Rule], failed: Sequence[Rule], theirs: Snapshot) -> str:
    parts = [f"its check {r.name!r} failed" for r in failed[:3]]
    parts += [f"the required check {r.name!r} has no result for its snapshot {theirs.id}" for r in missing[:3]]
    more = len(missing) + len(failed) - len(parts)
    return "; ".join(parts) + (f"; and {more} more" if more else "")
