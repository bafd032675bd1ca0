"""compact: small files of append tables become large ones, and deleted rows go; row ids and versions stay. With a
primary key the files of a bucket are merged into one sorted run on its top level.

Several commits, each of some groups of files: a retry with the same operation id counts those that were committed, by
their snapshot properties, and plans the rest anew. A commit whose files another commit has changed is planned again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_paimon.core.commit.draft import CommitIdentity, CommitOptions
from airflow_paimon.core.commit.idempotency import Attempt, attempt_of, commit_identity, digest_of
from airflow_paimon.core.commit.put import require_committable
from airflow_paimon.core.errors import ConflictError, PaimonError
from airflow_paimon.core.format.snapshot import Snapshot, SnapshotRef
from airflow_paimon.core.plan import HeadIs, Plan
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import Compact
from airflow_paimon.core.table.partition_scope import choose_partitions
from airflow_paimon.core.table.partition_values import shown_partition
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.properties import DETAILS_PROPERTY, OPERATION_PROPERTY
from airflow_paimon.core.table.table import Table
from airflow_paimon.data.compact_append import plan_append
from airflow_paimon.data.compact_keyed import plan_keyed
from airflow_paimon.data.compaction_plan import FileGroup
from airflow_paimon.data.compaction_tasks import HERE, PlannedCompaction, Workers, committed_earlier, in_chunks
from airflow_paimon.data.memory_plan import fits

MAX_ROUNDS = 5
"""How often files are planned again because other commits changed them."""

_COUNTS = (
    "partitions", "files_before", "files_after", "bytes_before", "bytes_after", "rows", "deleted_rows", "expired_rows",
)  # fmt: skip
_LISTED = 100


def compact(context: Context, request: Compact, workers: Workers = HERE) -> OperationResult:
    """Compact the chosen partitions. What one call of the workers has written is one commit.

    Raises:
        UnsupportedFeatureError: a feature that this engine does not write.
        ConflictError: other commits kept changing the files; ``details["done"]`` lists the snapshots that were
        committed.
    """
    table = context.table.branch(request.branch).require()
    compaction = _Compaction(context, request, table, workers)
    if request.dry_run:
        return compaction.dry_run()
    require_committable(table)
    with attempt_of(context, request.branch) as tried:
        try:
            return compaction.finish(tried)
        except PaimonError as error:
            if compaction.done:
                error.details.setdefault("done", compaction.done)
            raise


def compaction_fits(context: Context, request: Compact, memory_bytes: int) -> bool:
    """Check everything that can be checked without reading rows, before a session is started; raises as ``compact``.

    True = one process compacts it in so much memory (``data/memory_plan.py``).
    """
    table = context.table.branch(request.branch).require()
    planned = _plan(table, request)
    if not request.dry_run:
        require_committable(table)
    return fits((f for one in planned.groups for f in one.files), planned.write.schema, memory_bytes)


def _plan(table: Table, request: Compact, began: SnapshotRef | None = None) -> PlannedCompaction:
    schema = table.schema()
    selection = choose_partitions(schema, request.partitions, table.label).selection(schema)
    if schema.primary_keys:
        return plan_keyed(table, request, selection, began)
    return plan_append(table, request, selection)


@dataclass(slots=True)
class _Compaction:
    """One try of the operation, and what it has done so far."""

    _context: Context
    _request: Compact
    _table: Table
    _workers: Workers
    _counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_COUNTS, 0))
    _partitions: set[str] = field(default_factory=set)
    _before: int | None = None
    done: list[int] = field(default_factory=list)

    def dry_run(self) -> OperationResult:
        planned = _plan(self._table, self._request)
        head, groups = planned.write.planned_on, planned.groups
        names = sorted({self._name(planned, g) for g in groups})
        details = {
            "partitions": len(names),
            "partition_names": names[:_LISTED],
            "files_before": sum(len(g.files) for g in groups),
            "bytes_before": sum(g.size for g in groups),
            "groups": len(groups),
            **self._open(planned),
        }
        fences = () if head is None else (HeadIs.of(self._request.branch, head, planned.write.schema.id),)
        shown = Plan(operation="compact", table=self._table.name, preconditions=fences, summary=details)
        number = head.id if head else None
        return self._context.result(
            shown, branch=self._request.branch, changed=bool(groups), before=number, after=number, details=details
        )

    def finish(self, tried: Attempt) -> OperationResult:
        self._before = self._table.latest_snapshot_id()
        for snapshot, details in committed_earlier(self._table, tried):  # what expired ones wrote is not small any more
            self._before = min(self._before or snapshot.id, snapshot.id - 1) or None
            self._add(snapshot, details)
        for _ in range(MAX_ROUNDS):
            planned = _plan(self._table, self._request, tried.head)
            chunks = in_chunks(planned.groups, lambda g: (1, g.size), self._workers)
            if not sum([self._commit(tried, planned, chunk) for chunk in chunks]):
                return self._result(planned)
        raise ConflictError(
            f"{self._table.label}: other commits changed the files in each of {MAX_ROUNDS} attempts to compact them; "
            "run it again when there are fewer writers"
        )

    def _commit(self, tried: Attempt, planned: PlannedCompaction, chunk: Sequence[FileGroup]) -> bool:
        """Write and commit some groups of files. True = another commit has changed one of them: plan again."""
        outputs = planned.run(self._workers.run, chunk)
        messages = [m for o in outputs for m in o.messages]
        added = [f for m in messages for f in m.new_files]
        details = {
            "partition_names": sorted({self._name(planned, g) for g in chunk}),
            "files_before": sum(len(g.files) for g in chunk),
            "files_after": len(added),
            "bytes_before": sum(g.size for g in chunk),
            "bytes_after": sum(f.file_size for f in added),
            "rows": sum(o.rows for o in outputs),
            "deleted_rows": sum(o.deleted_rows for o in outputs),
            "expired_rows": sum(o.expired_rows for o in outputs),
        }
        properties = {OPERATION_PROPERTY: "compact", DETAILS_PROPERTY: json.dumps(details)}
        stopped = self._request.writers_stopped
        identity = self._identity(tried, chunk)
        options = CommitOptions(identity=identity, properties=properties, writers_stopped=stopped)
        receipt = planned.commit_or_discard(self._table, chunk, messages, options)
        if receipt is not None and receipt.snapshot is not None:
            self._add(receipt.snapshot, details)
        return receipt is None

    def _identity(self, tried: Attempt, chunk: Sequence[FileGroup]) -> CommitIdentity:
        names = digest_of(sorted(f.file_name for g in chunk for f in g.files))
        known = tried.identity("compact")
        return replace(known, identifier=commit_identity(tried.operation_id, self._request.branch, names).identifier)

    def _add(self, snapshot: Snapshot, details: dict[str, Any]) -> None:
        self.done.append(snapshot.id)
        self._partitions |= set(details["partition_names"])
        for name in _COUNTS:
            self._counts[name] += details.get(name, 0)

    def _name(self, planned: PlannedCompaction, one: FileGroup) -> str:
        return shown_partition(planned.write.schema, one.bucket.values)

    def _open(self, planned: PlannedCompaction) -> dict[str, Any]:
        """What the result says of the buckets that were left out, as a running job may have them open."""
        names = StoredPartitions(planned.write.schema).bucket_text
        found = [one.to_json(names(one.bucket)) for one in planned.left_open]
        if not found:
            return {}
        warning = (
            f"{len(found)} buckets were left alone, as a running job may have them open: its next rows would be there "
            f"twice, or merged with old ones. They are compacted once the job has committed three times without rows "
            f"of them"
        )
        return {"open_buckets": found[:_LISTED], "warnings": [warning]}

    def _result(self, planned: PlannedCompaction) -> OperationResult:
        details = {
            **self._counts,
            "partitions": len(self._partitions),
            "partition_names": sorted(self._partitions)[:_LISTED],
            "snapshots": sorted(self.done),
            **self._open(planned),
        }
        after = max(self.done, default=self._before)
        return self._context.result(
            None,
            branch=self._request.branch,
            changed=bool(self.done),
            before=self._before,
            after=after,
            details=details,
        )
