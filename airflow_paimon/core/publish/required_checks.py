"""The gate at a publish: a table's required checks must have passed for exactly the snapshot that is published."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from airflow_paimon.core.errors import FormatError, UnsafeOperationError, first_few
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.publish.fold import is_fold
from airflow_paimon.core.requests.context import OperationResult
from airflow_paimon.core.requests.requests import Approved, Publish, PublishBranch, RollbackTo
from airflow_paimon.core.rules.required import required_rules
from airflow_paimon.core.rules.results import FAILED, CheckRecord, RuleOutcome, newest_outcomes, records_of
from airflow_paimon.core.rules.rules import Rule
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.properties import CHECKS_FORCED_PROPERTY, CHECKS_PROPERTY
from airflow_paimon.core.table.table import Table

if TYPE_CHECKING:
    from airflow_paimon.core.publish.publication import Publication

log = logging.getLogger(__name__)

REQUIRED_CHECKS = "required_checks"
"""What a dry run's details call the required checks that are missing or failed."""
MISSING = "missing"
"""The outcome of a required check without a result."""
_LISTED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RequiredChecks:
    """What a table requires, and what checks of a ``snapshot`` of a branch have said: of what is published, or
    of what a rollback goes back to.
    """

    request: Publish
    branch: Table
    snapshot: Snapshot
    required: tuple[Rule, ...]
    records: Sequence[CheckRecord]

    def checked(self, planned: Publication, compared: Snapshot, *, is_main: bool) -> Publication:
        """Return the publication with what the checks said, if every required rule has passed, or only warned, in
        comparison with a snapshot.

        ``is_main``: that is main as it is now, all of which this publish or rollback replaces, and not the branch's
        base, or the publish that an undo takes back. A dry run is let through, and says what is missing, as the checks
        may follow it. What comes back with its own checks keeps saying what they said.

        Raises:
            UnsafeOperationError: one is missing or failed, without ``skip_checks``.
        """
        outcomes = newest_outcomes([r for r in self.records if r.compared_with == compared.identity])
        missing = [r.name for r in self.required if r.digest not in outcomes]
        failed = [r.name for r in self.required if r.digest in outcomes and outcomes[r.digest].outcome == FAILED]
        found = {"missing": missing, "failed": failed, "against": "main" if is_main else "base"}
        if self.request.dry_run:
            return replace(planned, summary={**planned.summary, REQUIRED_CHECKS: found}) if self.required else planned
        said = {CHECKS_PROPERTY: _summary(self.required, outcomes)} if outcomes or self.required else {}
        if missing or failed:
            if not self.request.skip_checks:
                if isinstance(self.request, RollbackTo):
                    raise _refusal_to_go_back(self.branch, self.snapshot.id, found)
                raise _refusal(self.branch.label, self.snapshot.id, found)
            said[CHECKS_FORCED_PROPERTY] = "true"
        return replace(planned, properties={**said, **planned.properties})


def read_required_checks(request: Publish, main: Table, branch: Table, theirs: Snapshot) -> RequiredChecks:
    """Read what the table requires, and what is known of a snapshot, or of those that it has only folded.

    Raises:
        InvalidInputError: the table's option is not a list of rules. FormatError: a record is unreadable, and the table
            requires checks.
    """
    required = required_rules(main)
    records: list[CheckRecord] = []
    try:
        if required or not request.dry_run:
            records = records_of(main, branch.branch_name, _checked(branch, theirs))
    except FormatError as error:
        if required:
            raise
        log.warning("%s: %s; its snapshot will not record the results of checks", branch.label, error)
    return RequiredChecks(request=request, branch=branch, snapshot=theirs, required=required, records=records)


def refuse_unchecked(request: PublishBranch, planned: OperationResult) -> None:
    """Refuse what the dry run of a publish has found out about required checks, before anything is published.

    Raises:
        UnsafeOperationError: one is missing or failed, without ``skip_checks``.
    """
    found: Any = planned.details.get(REQUIRED_CHECKS)
    if found and (found["missing"] or found["failed"]) and not request.skip_checks:
        raise _refusal(f"{planned.table}: branch {request.branch!r}", planned.details["branch_snapshot"], found)


def refuse_without_checks(request: Approved, table: Table, done: str) -> None:
    """Refuse what takes rows from main before any check can look at the outcome, where the table requires checks.

    ``done``: what was not done then. A dry run is let through.

    Raises:
        UnsafeOperationError: the table requires checks, and ``skip_checks`` is not given. InvalidInputError: the
            table's option is not a list of rules.
    """
    required = required_rules(table)
    if not required or request.skip_checks or request.dry_run:
        return
    names = first_few([repr(rule.name) for rule in required], _LISTED)
    raise UnsafeOperationError(
        f"{request.table} requires checks ({names}), and none of them can check what {request.operation} will leave; "
        f"nothing was {done}. skip_checks (--skip-checks) does it without, and its snapshots record that",
        details={REQUIRED_CHECKS: {"missing": [rule.name for rule in required]}},
    )


def unchecked_properties(table: Table) -> dict[str, str]:
    """Return what the snapshots of an operation say that was let through without the checks that the table requires."""
    required = required_rules(table)
    return {CHECKS_PROPERTY: _summary(required, {}), CHECKS_FORCED_PROPERTY: "true"} if required else {}


def outcomes_of(main: Table, branch: Table, snapshot: Snapshot) -> dict[str, str]:
    """Return what checks of a branch's snapshot said, by the rules' names; ``missing``: required, and without a result.

    Raises:
        InvalidInputError: the table's option is not a list of rules. FormatError: a record is unreadable.
    """
    records = records_of(main, branch.branch_name, _checked(branch, snapshot))
    return _by_name(required_rules(main), newest_outcomes(records))


def _checked(branch: Table, theirs: Snapshot) -> list[Snapshot]:
    """Return a snapshot, and those below it that earlier tries of the publish have only folded."""
    found = [theirs]
    while is_fold(found[-1]) and (below := branch.find_snapshot(found[-1].id - 1)) is not None:
        found.append(below)
    return found


def _summary(required: Sequence[Rule], outcomes: Mapping[str, RuleOutcome]) -> str:
    return json.dumps(_by_name(required, outcomes), ensure_ascii=False)


def _by_name(required: Sequence[Rule], outcomes: Mapping[str, RuleOutcome]) -> dict[str, str]:
    said = {one.name: one.outcome for one in outcomes.values()}
    return said | {r.name: outcomes[r.digest].outcome if r.digest in outcomes else MISSING for r in required}


def _refusal(label: str, snapshot_id: int, found: Mapping[str, Any]) -> UnsafeOperationError:
    is_main = found["against"] == "main"
    where = f"snapshot {snapshot_id}" + (" in comparison with main as it is now" if is_main else "")
    return UnsafeOperationError(
        f"{label} can't be published: {_said(found, where)}; nothing was published. Correct what is wrong on the "
        f"branch and run check_branch_data{' --against main' if is_main else ''}; skip_checks (--skip-checks) "
        "publishes it without, and its snapshot records that",
        details={
            "missing_checks": found["missing"],
            "failed_checks": found["failed"],
            "branch_snapshot": snapshot_id,
        },
    )


def _refusal_to_go_back(branch: Table, number: int, found: Mapping[str, Any]) -> UnsafeOperationError:
    against = f" --against {MAIN}" if found["against"] == MAIN else ""
    return UnsafeOperationError(
        f"{branch.label} can't go back to snapshot {number}: {_said(found, f'snapshot {number}')}; nothing was "
        f"changed. To check it, run check_branch_data --branch {branch.branch_name} --version {number}{against}; "
        "skip_checks (--skip-checks) goes back without, and its snapshot records that",
        code="checks-missing",
        details={"missing_checks": found["missing"], "failed_checks": found["failed"], "target_snapshot": number},
    )


def _said(found: Mapping[str, Any], where: str) -> str:
    missing, failed = found["missing"], found["failed"]
    parts = [f"its check {name!r} failed" for name in failed[:_LISTED]]
    parts += [f"the required check {name!r} has no result for its {where}" for name in missing[:_LISTED]]
    more = len(missing) + len(failed) - len(parts)
    return "; ".join(parts) + (f"; and {more} more" if more else "")
