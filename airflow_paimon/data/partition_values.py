"""Checks the values of partition columns, which become names of folders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.store import Store
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partition_text import escape_path_name
from airflow_paimon.core.table.partitions import DEFAULT_PARTITION
from airflow_paimon.core.table.paths import LONGEST_NAME


def check_partition_values(
    store: Store, schema: TableSchema, label: str, partitions: Sequence[tuple[Any, ...]]
) -> None:
    """Refuse the text that represents null: its rows would share null's folder, and no request could name them.

    Raises:
        InvalidInputError: that text, or one that is too long for the name of a folder (object stores allow it).
    """
    reserved = {DEFAULT_PARTITION, TableOptions(schema.options).partition_default_name}
    for values in partitions:
        for key, value in zip(schema.partition_keys, values, strict=True):
            if isinstance(value, str) and value in reserved:
                raise InvalidInputError(
                    f"{label}: partition column {key!r} holds the text {value!r}, which represents null in "
                    f"partition names (option partition.default-name); write null, or another text",
                    table=label,
                )
            _check_folder(store, label, key, value)


def _check_folder(store: Store, label: str, key: str, value: Any) -> None:
    if not isinstance(value, str) or not store.uri.startswith("file:"):
        return
    size = len(f"{escape_path_name(key)}={escape_path_name(value)}".encode())
    if size > LONGEST_NAME:
        raise InvalidInputError(
            f"{label}: partition column {key!r} holds a text of {len(value)} characters ({value[:40]!r}...): its "
            f"folder name would have {size} bytes, and the file system allows {LONGEST_NAME}; partition by a shorter "
            f"value",
            table=label,
        )
