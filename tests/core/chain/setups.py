"""Requests that set chain tables up, and tables to convert."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from airflow_paimon.core.requests.context import OperationResult
from airflow_paimon.core.schema.schema_plan import AddColumn
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.table import Table, open_table
from tests.core.chain.tables import add
from tests.core.tables import alter_table, run

NEW: Mapping[str, Any] = {
    "column": ["k BIGINT", "s BIGINT", "v STRING 'what it''s worth'", "region STRING", "dt STRING NOT NULL"],
    "primary_key": ["region", "dt", "k"],
    "partition_key": ["region", "dt"],
    "chain_partition_key": ["dt"],
    "timestamp_pattern": "$dt",
    "timestamp_formatter": "yyyyMMdd",
    "sequence_field": "s",
    "option": ["bucket=2", "file.format=parquet"],
}
CONVERT: Mapping[str, Any] = {
    "chain_partition_key": ["dt"],
    "timestamp_pattern": "$dt",
    "timestamp_formatter": "yyyyMMdd",
}
HOURLY: Mapping[str, Any] = {
    "partition_key": ["dt", "hour"],
    "primary_key": ["dt", "hour", "k"],
    "chain_partition_key": ["dt", "hour"],
    "timestamp_pattern": "$dt $hour:00:00",
    "timestamp_formatter": "yyyyMMdd HH:mm:ss",
}
ENDS = ("main", "snapshot", "delta")


def warehouse() -> str:
    return f"memory://{uuid.uuid4()}/wh"


def plain_table(folder: str, *partitions: str, **options: str) -> Table:
    """A primary-key table with two schema versions and some partitions."""
    table = create_table(
        folder,
        "d.t",
        [("k", "BIGINT"), ("s", "BIGINT"), ("region", "STRING"), ("dt", "STRING")],
        primary_keys=["region", "dt", "k"],
        partition_keys=["region", "dt"],
        options={"bucket": "2", "sequence.field": "s", **options},
    )
    alter_table(table, [AddColumn(name="v", type="STRING")])
    for partition in partitions:
        add(table, partition)
    return table


def setup(folder: str, **values: Any) -> OperationResult:
    return run(open_table(folder, "d.t"), "create_chain_table", **values)


def made(folder: str, **values: Any) -> Table:
    """Set a chain table up, and return it."""
    setup(folder, **values)
    return open_table(folder, "d.t")


def shape(table: Table) -> dict[str, list[Any]]:
    """All schema versions of the three branches but their times."""
    return {n: [(s.id, s.content, dict(s.options)) for s in table.branch(n).schemas()] for n in ENDS}
