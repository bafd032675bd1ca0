"""What refuses a correction for certain, by the table and the request alone."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.schema import TableSchema


def check_mode(schema: TableSchema, mode: str, partitions: Sequence[str], label: str) -> None:
    """Refuse an upsert without keys, and an overwrite that names no partition of a partitioned table.

    Raises:
        InvalidInputError: says which.
    """
    if mode == "upsert" and not schema.primary_keys:
        raise InvalidInputError(f"{label} has no primary key to upsert by; use --mode overwrite with --partitions")
    if mode == "overwrite" and schema.partition_keys and not partitions:
        raise InvalidInputError(
            f"{label} is partitioned by {', '.join(schema.partition_keys)}: name the partitions to overwrite "
            f"with --partitions, e.g. --partitions {schema.partition_keys[0]}=..."
        )
