"""Compacting the chain tables of tests in this process, and writing to their branches in between."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_paimon.core.commit.files import drop_partitions
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import CompactChainTable
from airflow_paimon.core.store import Store
from airflow_paimon.core.table.partition_text import parse_partition_text
from airflow_paimon.core.table.table import Table
from airflow_paimon.data.chain.compact import compact_chain_table
from airflow_paimon.data.compaction_tasks import RunTasks, Workers, run_here
from tests.data.chain.tables import Row, seen, set_options, write


def compact(
    table: Table,
    *partition: str,
    store: Store | None = None,
    run: RunTasks = run_here,
    tasks_at_once: int = 1,
    **more: Any,
) -> OperationResult:
    """``store`` stands in front of the table's own."""
    request = CompactChainTable(warehouse="w", table=table.name, partition=partition, **more)
    view = table if store is None else Table(store, table.name)
    context = Context(request, view, 1_767_225_600_000, 0.0)
    return compact_chain_table(context, request, Workers(run, tasks_at_once))


def outcomes(result: OperationResult) -> dict[str, str]:
    return {row["partition"]: row["outcome"] for row in result.details["partitions"]}


def full(table: Table) -> list[Row]:
    """All rows of the snapshot branch."""
    return seen(table.branch("snapshot"))


def drop(table: Table, branch: str, partition: str) -> None:
    """Drop a partition as an engine does that looks at nothing else."""
    view = table.branch(branch)
    options = dict(view.schema().options)
    set_options(view, {"chain-table.enabled": "false"})
    drop_partitions(view, [parse_partition_text(partition)])
    set_options(view, options)


def change(table: Table, branch: str, partition: str, rows: Sequence[Row], *, mode: str = "append") -> None:
    """Write to a branch as another engine does, which knows nothing of chains."""
    view = table.branch(branch)
    schema = view.schema()
    set_options(view, {"chain-table.enabled": "false", "merge-engine": "deduplicate"})
    columns = [n for n in schema.field_names if n not in schema.partition_keys]
    write(view, columns, schema.partition_keys, partition, rows, mode)
    set_options(view, dict(schema.options))


def kinds(table: Table) -> list[str]:
    branch = table.branch("snapshot")
    return [s.commit_kind.value for s in branch.snapshots(branch.snapshot_ids())]
