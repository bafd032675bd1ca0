"""repair_table: carries out the repairs that check_table proposes.

Hash indexes of dynamic buckets are built anew from the keys of the files: one snapshot, without a changed row.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection
from dataclasses import replace

from airflow_paimon.core.check.check import find_all
from airflow_paimon.core.check.check_history import taken_away
from airflow_paimon.core.check.check_keys import HASH_INDEX, KeyHashes
from airflow_paimon.core.commit.committer import Draft, Receipt, commit, execute, put_new
from airflow_paimon.core.commit.idempotency import REFUSALS
from airflow_paimon.core.errors import ConflictError, FormatError, InvalidInputError, UnsafeOperationError
from airflow_paimon.core.format.hash_index import INDEX_TYPE, write_hash_index
from airflow_paimon.core.format.manifest import IndexEntry
from airflow_paimon.core.format.snapshot import CommitKind, Operation, Snapshot
from airflow_paimon.core.plan import Delete, Plan, RebuildIndexes
from airflow_paimon.core.publish.schema_records import WITHOUT_PUBLISH, reconcile_records
from airflow_paimon.core.requests.context import Context
from airflow_paimon.core.requests.findings import Finding
from airflow_paimon.core.requests.requests import RepairTable
from airflow_paimon.core.requests.result import OperationResult
from airflow_paimon.core.table.dynamic_buckets_plan import pack
from airflow_paimon.core.table.paths import INDEX_DIR, MAIN
from airflow_paimon.core.table.properties import OPERATION_PROPERTY
from airflow_paimon.core.table.scan import read_index
from airflow_paimon.core.table.stored_partitions import StoredPartitions
from airflow_paimon.core.table.table import Table


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
        for branch in sorted({a.branch for a in rebuilt}):
            partitions = {a.partition for a in rebuilt if a.branch == branch}
            if keys is not None:
                rebuild_hash_indexes(context.table.branch(branch), partitions, keys)
        if any(f.kind == WITHOUT_PUBLISH for f in chosen):  # a writer may have used the columns at this moment
            reconcile_records(context.table)
    left = [f.to_json() for f in findings if f not in chosen]
    after = context.table.latest_snapshot_id()
    details = {"repaired": [f.to_json() for f in chosen], "left": left}
    return context.result(plan, branch=MAIN, changed=bool(actions), before=before, after=after, details=details)


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


def rebuild_hash_indexes(view: Table, partitions: Collection[bytes], keys: KeyHashes) -> Receipt:
    """Replace the hash indexes of these partitions (in canonical form). Writers of other engines must be stopped: they
    remember what they have read.

    Raises:
        ConflictError: somebody has committed meanwhile; nothing was changed. UnsafeOperationError: keys with one hash
            are in two buckets, which no index can express.
    """
    schema, head = view.schema(), view.latest_snapshot()
    assert head is not None, "a finding names live files"
    new: list[IndexEntry] = []

    def draft(now: Snapshot | None) -> Draft:
        if now is None or now.identity != head.identity or view.schema().id != schema.id:
            raise ConflictError(
                f"{view.label}: another commit came while hash indexes were built; stop the writers, then run it again"
            )
        form = StoredPartitions(schema).canonical
        kept = [i for i in read_index(view, now) if i.index_type != INDEX_TYPE or form(i.partition) not in partitions]
        return Draft(
            kind=CommitKind.APPEND,
            entries=(),
            index_entries=[*kept, *new],
            schema=schema,
            properties={OPERATION_PROPERTY: "repair_table"},
            operation=Operation.WRITE,
        )

    try:
        _write(view, head, partitions, keys, new)
        return commit(view, draft)
    except REFUSALS:
        unused = tuple(Delete(path=f"{INDEX_DIR}/{e.file_name}", reason="not committed") for e in new)
        execute(view, Plan(operation="repair_table", table=view.name, actions=unused))
        raise


def _write(
    view: Table, head: Snapshot, partitions: Collection[bytes], keys: KeyHashes, written: list[IndexEntry]
) -> None:
    stamp = uuid.uuid4()
    for partition, buckets in keys(view, head, partitions):
        try:
            pack(buckets.items())
        except FormatError as error:
            where = StoredPartitions(view.schema()).text(partition) or "()"
            raise UnsafeOperationError(
                f"{view.label}: the rows of partition {where} are in the wrong buckets ({error.message}), so no index "
                f"can be made. Read its rows and write them with mode=overwrite",
                details={"partition": where},
            ) from None
        for bucket, hashes in sorted(buckets.items()):
            data = write_hash_index(hashes)
            name = f"index-{stamp}-{len(written)}"
            entry = IndexEntry(
                kind=0,
                partition=partition,
                bucket=bucket,
                index_type=INDEX_TYPE,
                file_name=name,
                file_size=len(data),
                row_count=len(data) // 4,
            )
            put_new(view, f"{INDEX_DIR}/{name}", data)
            written.append(entry)
