"""Whether a branch can be published onto main as both are now: the dry run of a publish, in one word and a sentence."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_paimon.core.errors import ConflictError, PaimonError
from airflow_paimon.core.publish.publish_branch import publish_branch
from airflow_paimon.core.publish.required_checks import REQUIRED_CHECKS
from airflow_paimon.core.requests.context import Context
from airflow_paimon.core.requests.requests import MergeBranch
from airflow_paimon.core.table.table import Table

READY, NOTHING_NEW, CHECKS_OPEN, CHECKS_FAILED = "ready", "nothing new", "checks missing", "checks failed"
CONFLICT, REFUSED = "conflict", "can't be published"


@dataclass(frozen=True, slots=True)
class Publishable:
    """What merge_branch would do now; ``why`` is its message where it would refuse.

    ``writers``: which running jobs may have main's buckets open that it replaces (``describe_writers``).
    """

    state: str
    why: str = ""
    writers: Mapping[str, Any] = field(default_factory=dict)


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
    writers = planned.details.get("open_writers", {})
    if failed := checks.get("failed"):
        return Publishable(CHECKS_FAILED, f"Required by the table: {', '.join(failed)}", writers)
    if missing := checks.get("missing"):
        why = f"Required by the table: {', '.join(missing)}; run check_branch_data"
        return Publishable(CHECKS_OPEN, why, writers)
    if writers.get("effect") == "refused":
        return Publishable(REFUSED, writers["note"], writers)
    parts = ", ".join(planned.details.get("published_partitions", ()))
    before = f"; {parts} were published alone before" if parts else ""
    keyed = planned.details.get("merged_by_key")
    compared = (
        f"; it would compare the keys of {keyed['bucket_count']} buckets that main changed, too "
        f"({keyed['read_bytes'] / 1e6:,.1f} MB)"
        if keyed
        else ""
    )
    return Publishable(READY, f"merge_branch would publish it as it is now{before}{compared}", writers)
