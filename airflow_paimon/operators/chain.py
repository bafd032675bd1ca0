"""Operators for chain tables: compact, set up, check, alter.

Made by ``make functions`` of the requests and of tests/python_operators.py: change those.
"""

# fmt: off
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_paimon.operators._base import PaimonOperator, keeps_arguments

__all__ = [
    "AlterChainTableOperator", "ChainCompactOperator", "CheckChainTableOperator", "CreateChainTableOperator",
]


class ChainCompactOperator(PaimonOperator):
    """Compact partitions of a chain table into full partitions of its snapshot branch."""

    operation = "compact_chain_table"

    @keeps_arguments
    def __init__(
        self, *, partition: Sequence[str] | str = (), from_: str | None = None, to: str | None = None,
        pending: bool | str = False, max_chain_length: int | str | None = None, overwrite: bool | str = False,
        gap_policy: str = "empty", task_memory_mb: int | str = 256, **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class AlterChainTableOperator(PaimonOperator):
    """Apply one schema change to all three branches of a chain table, or to none."""

    operation = "alter_chain_table"

    @keeps_arguments
    def __init__(
        self, *, change: Sequence[str] | str = (), **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class CheckChainTableOperator(PaimonOperator):
    """Find problems of a chain table: option drift, gaps, stale partitions, hidden deltas."""

    operation = "check_chain_table"


class CreateChainTableOperator(PaimonOperator):
    """Create a chain table, or convert a primary-key table, with its branches and options."""

    operation = "create_chain_table"

    @keeps_arguments
    def __init__(
        self, *, column: Sequence[str] | str = (), primary_key: Sequence[str] | str = (),
        partition_key: Sequence[str] | str = (), option: Sequence[str] | str = (), snapshot_branch: str = "snapshot",
        delta_branch: str = "delta", chain_partition_key: Sequence[str] | str = (),
        timestamp_pattern: str | None = None, timestamp_formatter: str | None = None,
        sequence_field: Sequence[str] | str = (), **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
