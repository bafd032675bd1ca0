"""Moves chosen tags into the trash, and deletes what has been there for the grace time."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from airflow_paimon.core.metadata_expiry.expire_snapshots_and_tags import select_tags
from airflow_paimon.core.metadata_expiry.expiry_run import ExpirySelection, run_expiry
from airflow_paimon.core.metadata_expiry.root_values import TAG, Roots
from airflow_paimon.core.requests.context import Context


def end_tags(context: Context, paths: Collection[str]) -> Mapping[str, Any]:
    """Expire the tags whose files are at these paths; return the details of an expiry.

    ``needed``: those that stay, with the reason. The context's request is an ``Expiry``.

    Raises:
        FormatError: something can't be read. ConflictError, InvalidInputError: see ``run_expiry``.
    """
    table = context.table.with_cached_tags()

    def choose(roots: Roots) -> ExpirySelection:
        due = [r for r in roots.roots if r.kind == TAG and r.path in paths]
        return select_tags(table, due, "it reaches rows that are erased", of_sets=True)

    return run_expiry(context, choose, operations_since_ms=context.now_ms).details
