"""UPDATE, DELETE and MERGE of rows given as Python functions, through the copy-on-write of files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from airflow_paimon.core.commit.draft import Receipt
from airflow_paimon.core.commit.rewrites import commit_rewrite
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import read_arrow
from airflow_paimon.data.copy_on_write import (
    CHANGED,
    CopyOnWrite,
    plan_copy_on_write,
    read_columns,
    replacing_message,
    write_kept,
)
from airflow_paimon.data.files.arrow_types import arrow_schema
from airflow_paimon.data.files.conform import conform_rows
from airflow_paimon.data.read import read_split
from airflow_paimon.data.read_splits import plan_read
from airflow_paimon.data.write import write_rows

Row = dict[str, Any]
Change = Callable[[Row], Row | None]
"""Gives the same row where nothing changes, and None where it is deleted."""

IDS = ["_ROW_ID", "_SEQUENCE_NUMBER"]


def planned(table: Table, change: Change, inserts: Sequence[Row] = ()) -> tuple[CopyOnWrite, list[Any]]:
    """What a statement writes before its commit: files without a row that it changes stay."""
    plan = plan_copy_on_write(table)
    read, splits = plan_read(plan.scan, columns=read_columns(plan))
    messages = []
    for split in (part for s in splits for part in s.divided()):
        old = pa.Table.from_batches(list(read_split(read, split)), read.output_schema).to_pylist()
        new = [change(dict(row)) for row in old]
        if new == old:
            continue
        kept = [{**row, CHANGED: row != before} for row, before in zip(new, old, strict=True) if row is not None]
        schema = read.output_schema.append(pa.field(CHANGED, pa.bool_()))
        messages += write_kept(plan, pa.Table.from_pylist(kept, schema=schema).to_batches())
        messages.append(replacing_message(split.bucket, *split.files))
    if inserts:
        rows = pa.Table.from_pylist(list(inserts), schema=arrow_schema(plan.write.schema.fields))
        batches = (conform_rows(b, plan.write.schema, plan.write.label) for b in rows.to_batches())
        messages += write_rows(plan.write, batches)
    return plan, messages


def statement(table: Table, change: Change, inserts: Sequence[Row] = (), operation: str = "UPDATE") -> Receipt:
    plan, messages = planned(table, change, inserts)
    return commit_rewrite(table, messages, read=plan.scan, operation=operation)


def with_ids(table: Table, **read: Any) -> list[tuple[Any, ...]]:
    """All rows with id and version, in the order of their ids."""
    rows = read_arrow(table, columns=[*table.schema().field_names, *IDS], **read).to_pylist()
    return sorted((tuple(r.values()) for r in rows), key=lambda r: r[-2])
