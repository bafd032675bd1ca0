"""Checks the arguments of the Python functions that read and write; errors name the argument."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa

from airflow_paimon.core.errors import InvalidInputError, naming_table
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.table.partition_text import parse_partition_text
from airflow_paimon.core.table.partition_values import PartitionSpec, parse_partition_spec
from airflow_paimon.core.table.table import Table, parse_timestamp


def check_table(table: Any) -> None:
    """Refuse anything but a result of ``open_table``."""
    if not isinstance(table, Table):
        raise InvalidInputError(f"table must be a result of airflow_paimon.open_table, not {_named(table)}")


def check_columns(table: Table, columns: Any) -> None:
    """Refuse anything but a sequence of names; the planner checks the names themselves."""
    is_list = isinstance(columns, Sequence) and not isinstance(columns, str | bytes)
    if columns is not None and not is_list:
        raise InvalidInputError(f"{table.label}: columns must be a list, not {_named(columns)}")


def timestamp_argument(timestamp: int | str | datetime | None) -> int | str | None:
    """Return a datetime as epoch milliseconds; texts and numbers are returned unchanged.

    Raises:
        InvalidInputError: it has no time zone.
    """
    return parse_timestamp(timestamp) if isinstance(timestamp, datetime) else timestamp


def check_rows(table: Table, data: Any) -> None:
    """Refuse anything but an Arrow table or record batch."""
    if not isinstance(data, pa.Table | pa.RecordBatch):
        way = "pyarrow.Table.from_pylist makes one of dicts" if isinstance(data, list) else "give a pyarrow.Table"
        raise InvalidInputError(f"{table.label}: rows to write must be an Arrow table, not {_named(data)}; {way}")


def check_operation_id(table: Table, operation_id: Any) -> None:
    """Refuse anything but a text that says something."""
    if operation_id is not None and not (isinstance(operation_id, str) and operation_id.strip()):
        raise InvalidInputError(
            f"{table.label}: operation_id is a string that identifies this write, not {_named(operation_id)}; leave it "
            "out when no retry has to find the write again"
        )


def partition_argument(table: Table, partition: Any) -> PartitionSpec:
    """Refuse anything but a mapping, or a well-formed text such as ``dt=2026-11-18/region=eu``."""
    if isinstance(partition, str):
        parse_partition_text(partition)
    elif not isinstance(partition, Mapping):
        raise InvalidInputError(
            f"{table.label}: a partition must be a dict of columns and values, or a string like "
            f"dt=2026-11-18/region=eu, not {_named(partition)}"
        )
    spec: PartitionSpec = partition
    return spec


def check_partition(table: Table, schema: TableSchema, partition: PartitionSpec) -> None:
    """Refuse a partition that names no partition column, or a value of another type."""
    with naming_table(table.label):
        parse_partition_spec(partition, schema.partition_keys, schema.partition_types)


def partitions_argument(table: Table, partitions: Any) -> list[PartitionSpec]:
    """Return a list of partitions; a single one may be given without a list."""
    alone = isinstance(partitions, str | Mapping) or not isinstance(partitions, Sequence)
    return [partition_argument(table, p) for p in ([partitions] if alone else partitions)]


def _named(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"
