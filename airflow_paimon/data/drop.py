"""``drop_partitions``: drops partitions of a branch with one commit."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_paimon.core.chain.guard import parse_on_stale, report_write
from airflow_paimon.core.chain.write_plan import ChainOptions
from airflow_paimon.core.commit import files as commit_files
from airflow_paimon.core.commit.committer import require_committable
from airflow_paimon.core.commit.draft import CommitOptions
from airflow_paimon.core.commit.idempotency import attempt, digest_of
from airflow_paimon.core.commit.landed import verified_commits
from airflow_paimon.core.requests.result import OperationResult
from airflow_paimon.core.table.table import Table
from airflow_paimon.data.arguments import check_operation_id, check_table, partitions_argument

OPERATION = "drop_partitions"


@verified_commits()
def drop_partitions(
    table: Table,
    partitions: Sequence[Mapping[str, Any] | str] | Mapping[str, Any] | str,
    operation_id: str | None = None,
    on_stale: str | None = None,
) -> dict[str, Any]:
    """Drop partitions and return the operation's result.

    Each is a dict (typed values or their texts, None = null) or a text such as ``dt=2026-11-18/region=eu``; may be
    partial.

    ``operation_id`` and ``on_stale`` are those of ``write_arrow``. If there are no such partitions, nothing is
    committed.

    Raises:
        InvalidInputError: no partition is given, or one has an unknown column.
        UnsafeOperationError: a required anchor of a chain table would be dropped.
    """
    started = time.monotonic()
    check_table(table)
    check_operation_id(table, operation_id)
    table.require()
    require_committable(table)
    policy = parse_on_stale(table, on_stale)
    specs = partitions_argument(table, partitions)
    asked = digest_of({"partitions": [dict(p) for p in specs], "on_stale": policy})
    with attempt(table, operation_id, table.branch_name, asked) as tried:
        landed = tried.landed(OPERATION)
        before = landed.id - 1 or None if landed is not None else None
        if landed is None:
            receipt = commit_files.drop_partitions(
                table,
                specs,
                CommitOptions(identity=tried.identity(OPERATION), guard_options=ChainOptions(on_stale=policy)),
            )
            before, landed = receipt.before.id if receipt.before else None, receipt.snapshot
    return OperationResult(
        operation=OPERATION,
        table=table.name,
        branch=table.branch_name,
        changed=landed is not None,
        snapshot_before=before,
        snapshot_after=before if landed is None else landed.id,
        details=report_write(table, landed),
        duration_s=time.monotonic() - started,
    ).to_json()
