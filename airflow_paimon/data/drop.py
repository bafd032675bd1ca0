"""``drop_partitions``: drops partitions of a branch with one commit."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_paimon.core.chain.guard import parse_on_stale, report_write
from airflow_paimon.core.chain.write_plan import ChainOptions
from airflow_paimon.core.commit import files as commit_files
from airflow_paimon.core.commit.draft import CommitIdentity, CommitMessage, CommitOptions, Receipt
from airflow_paimon.core.commit.idempotency import digest_of
from airflow_paimon.core.commit.put import require_committable
from airflow_paimon.core.table.table import Table
from airflow_paimon.data.arguments import check_operation_id, check_table, partitions_argument
from airflow_paimon.data.arrow_write import WriteRequest, write_once, write_result

OPERATION = "drop_partitions"


def drop_partitions(
    table: Table,
    partitions: Sequence[Mapping[str, Any] | str] | Mapping[str, Any] | str,
    operation_id: str | None = None,
    on_stale: str | None = None,
    *,
    writers_stopped: bool = False,
) -> dict[str, Any]:
    """Drop partitions and return the operation's result.

    Each is a dict (typed values or their texts, None = null) or a text such as ``dt=2026-11-18/region=eu``; may be
    partial.

    ``operation_id``, ``on_stale`` and ``writers_stopped`` are those of ``write_arrow``. If there are no such
    partitions, nothing is committed.

    Raises:
        InvalidInputError: no partition is given, or one has an unknown column.
        UnsafeOperationError: a required anchor of a chain table would be dropped; or a running job may have one open.
    """
    started = time.monotonic()
    check_table(table)
    check_operation_id(table, operation_id)
    table.require()
    require_committable(table)
    policy = parse_on_stale(table, on_stale)
    specs = partitions_argument(table, partitions)
    digest = digest_of({"partitions": [p if isinstance(p, str) else dict(p) for p in specs], "on_stale": policy})

    def drop(identity: CommitIdentity) -> tuple[Receipt, Sequence[CommitMessage]]:
        guard = ChainOptions(on_stale=policy)
        options = CommitOptions(identity=identity, guard_options=guard, writers_stopped=writers_stopped)
        return commit_files.drop_partitions(table, specs, options), ()

    request = WriteRequest(OPERATION, operation_id, digest)
    written = write_once(table, request, drop, lambda committed: report_write(table, committed))
    return write_result(table, OPERATION, written, written.report, started)
