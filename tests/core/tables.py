"""Small real tables for metadata tests: the manifests are real, the data files are placeholders that must exist."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_paimon import execution
from airflow_paimon.core.commit.draft import CommitIdentity, CommitMessage, CommitOptions, Receipt
from airflow_paimon.core.commit.files import commit_append, commit_buckets, commit_overwrite
from airflow_paimon.core.commit.put import put_new
from airflow_paimon.core.format.binary_row import encode_row
from airflow_paimon.core.format.manifest import EMPTY_STATS, DataFile, ManifestEntry
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import CommitKind
from airflow_paimon.core.format.types import DataField, DataType
from airflow_paimon.core.publish.key_merge import KeyMergeRequest, KeyMergeResult, not_by_key
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import OperationResult, open_context
from airflow_paimon.core.schema.schema_plan import SchemaChange, apply_changes
from airflow_paimon.core.schema.tables import check_alterable, create_table
from airflow_paimon.core.store import open_store
from airflow_paimon.core.table.data_file_paths import bucket_folder
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.partition_text import DEFAULT_PARTITION
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.execution import perform, run_operation
from tests.clock import next_millisecond
from tests.stores import Crash, FaultStore

COLUMNS = (("k", "BIGINT NOT NULL"), ("v", "STRING"), ("dt", "STRING NOT NULL"))


def make_table(warehouse: Path | str, name: str = "d.t", *, primary: bool = True, **options: str) -> Table:
    return create_table(
        str(warehouse),
        name,
        COLUMNS,
        partition_keys=["dt"],
        primary_keys=["dt", "k"] if primary else [],
        options={"bucket": "2" if primary else "-1", **{k.replace("__", "-"): v for k, v in options.items()}},
    )


def partition_schema(
    keys: Sequence[str], types: Sequence[DataType], legacy: bool = True, default: str = DEFAULT_PARTITION
) -> TableSchema:
    """A schema with these partition columns alone."""
    fields = tuple(DataField(at, key, one) for at, (key, one) in enumerate(zip(keys, types, strict=True)))
    options = {"partition.legacy-name": str(legacy).lower(), "partition.default-name": default}
    return TableSchema(id=0, fields=fields, highest_field_id=len(fields), partition_keys=tuple(keys), options=options)


def copied(table: Table) -> Table:
    """The same table elsewhere in memory: for many lives that begin alike, as each commit takes time."""
    uri = f"memory://{uuid.uuid4()}/wh"
    store = open_store(f"{uri}/{'/'.join(table.store.uri.rsplit('/', 2)[1:])}")
    for path in table.store.walk(""):
        store.create(path, table.store.read(path))
    return open_table(uri, table.name)


def alter_table(table: Table, changes: Sequence[SchemaChange]) -> TableSchema:
    """One new version of one branch's schema, as the operation ``alter_table`` makes it."""
    check_alterable(table, changes)
    has_data = table.latest_snapshot_id() is not None
    new = apply_changes(table.require().schema(), changes, has_data=has_data, now_ms=int(time.time() * 1000))
    put_new(table, table.paths.schema(new.id), new.to_bytes())
    return new


def message(table: Table, dt: str, bucket: int = 0, *, rows: int = 1, seq: int = 0, level: int = 0) -> CommitMessage:
    """One new placeholder file of a bucket, with ``rows`` rows and sequence numbers from ``seq``."""
    schema = table.schema()
    types = schema.partition_types
    name = f"data-{uuid.uuid4()}-0.parquet"
    path = f"{bucket_folder(schema, (dt,), bucket)}/{name}"
    table.store.create(path, b"placeholder")
    key = encode_row((seq,), (schema.field("k").type,)) if schema.primary_keys else EMPTY_STATS.min_values
    file = DataFile(name, 11, rows, key, key, EMPTY_STATS, EMPTY_STATS, seq, seq + rows - 1, schema.id, level,
                    file_source=0, delete_row_count=0, value_stats_cols=())  # fmt: skip
    total = 2 if schema.primary_keys else -1
    return CommitMessage(
        partition=encode_row((dt,), types), bucket=bucket, total_buckets=total, new_files=(file,), replaced=()
    )


def move(table: Table, entry: ManifestEntry) -> Receipt:
    """Compact a bucket by moving a file to the next level: it is deleted and added under one name."""
    live = live_entries(table, table.latest_snapshot()).values()
    old = tuple(e.file for e in live if (e.partition, e.bucket) == (entry.partition, entry.bucket))
    new = tuple(f._replace(level=f.level + 1) if f == entry.file else f for f in old)
    message = CommitMessage(partition=entry.partition, bucket=entry.bucket, total_buckets=entry.total_buckets,
                            new_files=new, replaced=old)  # fmt: skip
    return commit_buckets(table, [message], kind=CommitKind.COMPACT, operation=None)


def append(table: Table, dt: str, bucket: int = 0, *, rows: int = 1, seq: int = 0) -> Receipt:
    head = table.latest_snapshot()
    return commit_append(table, [message(table, dt, bucket, rows=rows, seq=seq)], planned_on=head)


def overwrite(table: Table, dt: str, bucket: int = 0, *, rows: int = 1, seq: int = 0) -> Receipt:
    return commit_overwrite(table, [message(table, dt, bucket, rows=rows, seq=seq)], partitions=[{"dt": dt}])


def rewrite(
    table: Table, dt: str, bucket: int = 0, *, kind: Any = None, seq: int = 0, user: str | None = None
) -> Receipt:
    """Replace a bucket's files by one, as copy-on-write and compaction do."""
    new = message(table, dt, bucket, seq=seq, level=5)
    now = [e.file for e in live_entries(table, table.latest_snapshot()).values()
           if (e.partition, e.bucket) == (new.partition, bucket)]  # fmt: skip
    full = CommitMessage(partition=new.partition, bucket=bucket, total_buckets=new.total_buckets,
                         new_files=new.new_files, replaced=tuple(now))  # fmt: skip
    extra = {} if kind is None else {"kind": kind, "operation": None}
    identity = CommitIdentity() if user is None else CommitIdentity(user=user)
    return commit_buckets(table, [full], CommitOptions(identity=identity), **extra)


def without_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of these tables are placeholders, so nothing is merged by key: it is a conflict."""

    def refuse(asked: KeyMergeRequest) -> KeyMergeResult:
        raise not_by_key(asked.target.name, asked.buckets, asked.schema, "there are no rows", asked.target.branch_name)

    rows = replace(execution.row_functions(), merge_by_key=refuse)
    monkeypatch.setattr(execution, "row_functions", lambda: rows)


def commit_time(table: Table, number: int, millis: int) -> None:
    """Let a snapshot have been committed at another time, epoch milliseconds."""
    path = table.paths.snapshot(number)
    table.store.replace(path, json.dumps({**json.loads(table.store.read(path)), "timeMillis": millis}).encode())


def files(table: Table) -> dict[tuple[bytes, int], set[str]]:
    """The live file names of each bucket: what metadata tests compare."""
    out: dict[tuple[bytes, int], set[str]] = {}
    for entry in live_entries(table, table.latest_snapshot()).values():
        out.setdefault((entry.partition, entry.bucket), set()).add(entry.file.file_name)
    return out


def names(table: Table) -> set[str]:
    return {name for group in files(table).values() for name in group}


def run(on: Table, operation: str, /, **values: Any) -> OperationResult:
    """Run an operation as a job would, on the warehouse two folders up."""
    if values.get("older_than") == "0 s":
        next_millisecond()  # what was written in this very millisecond is not older than that
    warehouse = on.store.uri.removeprefix("file://").rsplit("/", 2)[0]
    if not on.store.uri.startswith("file:"):
        warehouse = on.store.uri.rsplit("/", 2)[0]
    base: Mapping[str, Any] = {"warehouse": warehouse, "table": on.name}
    return run_operation(build_request(operation, {**base, **values}))


def forget_results(table: Table) -> None:
    """Make operations that have ended as if they had been killed before they put their results."""
    for path in table.store.walk("_airflow_paimon/results"):
        table.store.delete(path)


def cut_off(table: Table, step: int, operation: str, **values: Any) -> bool:
    """Run an operation that dies at its n-th change of the storage; False = it has fewer steps than that."""
    warehouse = table.store.uri.removeprefix("file://").rsplit("/", 2)[0]
    request = build_request(operation, {"warehouse": warehouse, "table": table.name, **values})
    context = open_context(request)
    faulty = Table(FaultStore(table.store, fail_at=step, error=Crash(), after=step % 2 == 0), table.name)
    context = type(context)(context.request, faulty, context.now_ms, context.started)
    try:
        perform(context, request)
    except Crash:
        return True
    return False
