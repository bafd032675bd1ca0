"""repair_table: carries out the repairs that check_table proposes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from airflow_paimon.core.check.check import find_all
from airflow_paimon.core.check.check_hash_indexes import HASH_INDEX, KeyHashes
from airflow_paimon.core.check.check_operations import taken_away
from airflow_paimon.core.check.rebuild_hash_indexes import rebuild_hash_indexes
from airflow_paimon.core.commit.committer import execute
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.plan import Plan, RebuildIndexes
from airflow_paimon.core.publish.schema_records import WITHOUT_PUBLISH, reconcile_records
from airflow_paimon.core.requests.context import Context
from airflow_paimon.core.requests.findings import Finding
from airflow_paimon.core.requests.requests import RepairTable
from airflow_paimon.core.requests.result import OperationResult
from airflow_paimon.core.table.paths import MAIN


def repair_table(context: Context, request: RepairTable, keys: KeyHashes | None = None) -> OperationResult:
    """Repair the findings of check_table that are safe to repair unasked, or only those named by id. ``keys`` reads the
    keys of dynamic buckets.

    Raises:
        InvalidInputError: a named finding does not exist, or has no automatic repair. ConflictError,
            UnsafeOperationError: see ``rebuild_hash_indexes``.
    """
    before = context.table.latest_snapshot_id()
    asks = any(i.startswith(f"{HASH_INDEX}:") for i in request.finding)  # reads index files and keys only then
    findings = find_all(context.table, context.now_ms, verify_files=asks, keys=keys if asks else None)
    chosen = _choose(context, request, findings)
    actions = tuple(a for f in chosen for a in f.actions)
    plan = Plan(
        operation=request.operation,
        table=context.table.name,
        actions=actions,
        summary={"findings": [f.id for f in chosen]},
    )
    if actions and not request.dry_run:
        rebuilt = [a for a in actions if isinstance(a, RebuildIndexes)]
        files = replace(plan, actions=tuple(a for a in actions if a not in rebuilt))
        execute(context.table, files)
        execute(context.table, taken_away(context.table, files))
        if keys is not None:
            _rebuild(context, rebuilt, keys)
        if any(f.kind == WITHOUT_PUBLISH for f in chosen):  # a writer may have used the columns at this moment
            reconcile_records(context.table)
    left = [f.to_json() for f in findings if f not in chosen]
    after = context.table.latest_snapshot_id()
    details = {"repaired": [f.to_json() for f in chosen], "left": left}
    return context.result(plan, branch=MAIN, changed=bool(actions), before=before, after=after, details=details)


def _rebuild(context: Context, actions: Sequence[RebuildIndexes], keys: KeyHashes) -> None:
    for branch in sorted({a.branch for a in actions}):
        partitions = {a.partition for a in actions if a.branch == branch}
        rebuild_hash_indexes(context.table.branch(branch), partitions, keys)


def _choose(context: Context, request: RepairTable, findings: list[Finding]) -> list[Finding]:
    mendable = {f.id: f for f in findings if f.actions}
    if not request.finding:
        return [f for f in mendable.values() if not f.by_name_only]
    unknown = [i for i in request.finding if i not in mendable]
    if unknown:
        raise InvalidInputError(
            f"{context.table.name}: there is no finding {unknown[0]!r} that can be repaired; there are: "
            f"{', '.join(sorted(mendable)) or 'none'}"
        )
    return [mendable[i] for i in request.finding]
