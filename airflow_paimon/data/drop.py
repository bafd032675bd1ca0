"""``drop_partitions``: partitions of a branch out of the table, with one commit."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_paimon.core.chain.commit_options import ChainOptions
from airflow_paimon.core.chain.write_report import parse_on_stale, report_write
from airflow_paimon.core.commit import files as commit_files
from airflow_paimon.core.commit.committer import CommitIdentity, find_landed, require_committable
from airflow_paimon.core.commit.landed import verified_commits
from airflow_paimon.core.commit.ledger import commit_identity, forget, open_ledger
from airflow_paimon.core.requests.result import OperationResult
from airflow_paimon.core.table.table import Table
from airflow_paimon.data.arrow_write import NOTHING_PUBLISHED

OPERATION = "drop_partitions"


@verified_commits()
def drop_partitions(
    table: Table,
    partitions: Sequence[Mapping[str, Any]],
    operation_id: str | None = None,
    on_stale: str | None = None,
) -> dict[str, Any]:
    """Drop partitions (typed values or their text, None = null; may be partial) and give the operation's result.

    ``operation_id`` and ``on_stale`` are those of ``write_arrow``. Nothing there: nothing is committed.

    Raises:
        InvalidInputError: no partition is named, or one names no partition column.
        UnsafeOperationError: a chain table's anchor that is needed would be dropped.
    """
    started = time.monotonic()
    table.require()
    require_committable(table)
    policy = parse_on_stale(table, on_stale)
    identity, entry, landed = CommitIdentity(), None, None
    if operation_id is not None:
        identity = commit_identity(operation_id, table.branch_name, OPERATION)
        named = [dict(p) for p in partitions]
        asked = json.dumps({"partitions": named, "on_stale": policy}, sort_keys=True, default=str)
        entry = open_ledger(table, operation_id, hashlib.sha256(asked.encode()).hexdigest(), table.branch_name)
        landed = None if entry.first_try else find_landed(table, identity, entry.head)
    before = landed.id - 1 or None if landed is not None else None
    if landed is None:
        try:
            receipt = commit_files.drop_partitions(
                table, partitions, identity=identity, guard_options=ChainOptions(on_stale=policy)
            )
        except NOTHING_PUBLISHED:
            if entry is not None and entry.first_try:  # nothing was committed under this id: it can be used again
                forget(table, entry.operation_id)
            raise
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
