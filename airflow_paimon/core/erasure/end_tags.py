"""Moves chosen tags into the trash, and deletes what has been there for the grace time."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from airflow_paimon.core.branches.tags import check_deletable
from airflow_paimon.core.errors import UnsafeOperationError
from airflow_paimon.core.metadata_expiry.expiry_run import ExpirySelection, run_expiry
from airflow_paimon.core.metadata_expiry.root_values import TAG, Root, Roots
from airflow_paimon.core.requests.context import Context

_REASON = "it reaches rows that are erased"


def end_tags(context: Context, paths: Collection[str]) -> Mapping[str, Any]:
    """Expire the tags whose files are at these paths; return the details of an expiry.

    ``needed``: those that stay, with the reason. The context's request is an ``Expiry``.

    Raises:
        FormatError: something can't be read. ConflictError, InvalidInputError: see ``run_expiry``.
    """
    table = context.table.with_cached_tags()

    def choose(roots: Roots) -> ExpirySelection:
        expiring: list[Root] = []
        needed: dict[str, dict[str, str]] = {}
        for root in roots.roots:
            if root.kind != TAG or root.path not in paths or root.tag is None:
                continue
            try:
                check_deletable(table.branch(root.branch), root.tag)
                expiring.append(root)
            except UnsafeOperationError as error:
                needed.setdefault(root.branch, {})[root.name] = error.message
        expired: dict[str, list[str]] = {}
        for root in expiring:
            expired.setdefault(root.branch, []).append(root.name)
        return ExpirySelection(expiring=tuple(expiring), reason=_REASON, report={"expired": expired, "needed": needed})

    return run_expiry(context, choose, operations_since_ms=context.now_ms).details
