"""What every correction has, whichever engine writes it: its ledger entry, its checks, and the result of a retry."""

from __future__ import annotations

import dataclasses
import json

from airflow_paimon.core.commit import CommitIdentity, find_landed
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.operations.context import Context
from airflow_paimon.core.operations.ledger import LedgerEntry, commit_identity, forget, open_ledger, request_hash
from airflow_paimon.core.operations.request import CorrectBranch
from airflow_paimon.core.operations.result import OperationResult
from airflow_paimon.core.schema import TableSchema
from airflow_paimon.core.snapshot import Snapshot
from airflow_paimon.core.table import Table
from airflow_paimon.spark.operations.sources import text_digest

DETAILS = "airflow-paimon.details"
"""Snapshot property with the result's details: a retry gives the first try's result."""


def enter(context: Context, request: CorrectBranch, sql: str | None) -> tuple[CommitIdentity, LedgerEntry | None]:
    """Enter the correction in the ledger; a dry run enters nothing."""
    identity = commit_identity(request.operation_id, request.branch, request.operation)
    if request.operation_id is None or request.dry_run:
        return identity, None
    asked = request if sql is None else dataclasses.replace(request, sql=text_digest(sql))
    ledger = open_ledger(context.table, request.operation_id, request_hash(asked), request.branch)
    return ledger.guard(identity), ledger


def replayed(
    context: Context, request: CorrectBranch, identity: CommitIdentity, ledger: LedgerEntry | None
) -> OperationResult | None:
    """Give the first try's result if it had landed; None = go on."""
    if ledger is None or ledger.first_try:
        return None
    landed = find_landed(context.table.branch(request.branch), identity, ledger.head)
    return None if landed is None else result_of(context, request, landed)


def result_of(context: Context, request: CorrectBranch, landed: Snapshot) -> OperationResult:
    """Give the result of another try's commit."""
    details = json.loads(landed.properties.get(DETAILS, "{}")) | {"replayed": True}
    return context.result(
        None, branch=request.branch, changed=True, before=landed.id - 1 or None, after=landed.id, details=details
    )


def strike(context: Context, ledger: LedgerEntry | None) -> None:
    """Strike the ledger entry of a first try that committed nothing."""
    if ledger is not None and ledger.first_try:
        forget(context.table, ledger.operation_id)


def properties(request: CorrectBranch, details: dict[str, object]) -> dict[str, str]:
    """Give the snapshot properties of a correction."""
    out = {
        "airflow-paimon.operation": request.operation,
        "airflow-paimon.mode": request.mode,
        DETAILS: json.dumps(details),
    }
    return out | ({"airflow-paimon.operation-id": request.operation_id} if request.operation_id else {})


def check_request(branch: Table, schema: TableSchema, request: CorrectBranch) -> None:
    """Refuse an upsert without keys, and an overwrite that names no partition of a partitioned table."""
    if request.mode == "upsert" and not schema.primary_keys:
        raise InvalidInputError(
            f"{branch.label} has no primary key to upsert by; use --mode overwrite with --partitions", table=branch.name
        )
    if request.mode == "overwrite" and schema.partition_keys and not request.partitions:
        raise InvalidInputError(
            f"{branch.label} is partitioned by {', '.join(schema.partition_keys)}: name the partitions to overwrite "
            f"with --partitions, e.g. --partitions {schema.partition_keys[0]}=...",
            table=branch.name,
        )
