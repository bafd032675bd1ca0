"""Whether a branch can be published onto main as both are now: the dry run of a publish, in one word and a sentence."""

from __future__ import annotations

import time
from dataclasses import dataclass

from airflow_paimon.core.errors import ConflictError, PaimonError
from airflow_paimon.core.publish.merge import publish_branch
from airflow_paimon.core.publish.required_checks import REQUIRED_CHECKS
from airflow_paimon.core.requests.context import Context
from airflow_paimon.core.requests.requests import MergeBranch
from airflow_paimon.core.table.table import Table

READY, NOTHING_NEW, CHECKS_OPEN, CHECKS_FAILED = "ready", "nothing new", "checks missing", "checks failed"
CONFLICT, REFUSED = "conflict", "can't be published"


@dataclass(frozen=True, slots=True)
class Publishable:
    """What merge_branch would do now; ``why`` is its message where it would refuse."""

    state: str
    why: str = ""


def publishable(main: Table, branch: str, now_ms: int) -> Publishable:
    """Plan the publish of a branch by metadata alone, as a dry run does. A protected branch needs force besides."""
    request = MergeBranch(table=main.name, branch=branch, dry_run=True, force=True)
    try:
        planned = publish_branch(Context(request, main, now_ms, time.monotonic()), request)
    except ConflictError as error:
        return Publishable(CONFLICT, error.message)
    except PaimonError as error:
        return Publishable(REFUSED, error.message)
    checks = planned.details.get(REQUIRED_CHECKS, {})
    if not planned.changed:
        return Publishable(NOTHING_NEW, "Main has all that it changed")
    if failed := checks.get("failed"):
        return Publishable(CHECKS_FAILED, f"Required by the table: {', '.join(failed)}")
    if missing := checks.get("missing"):
        return Publishable(CHECKS_OPEN, f"Required by the table: {', '.join(missing)}; run check_branch_data")
    parts = ", ".join(planned.details.get("published_partitions", ()))
    before = f"; {parts} were published alone before" if parts else ""
    return Publishable(READY, f"merge_branch would publish it as it is now{before}")
