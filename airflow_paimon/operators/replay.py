"""Operators that replay upstream changes into branches of downstream tables.

Made by ``make functions`` of the requests and of tests/python_operators.py: change those.
"""

# fmt: off
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_paimon.operators._base import keeps_arguments
from airflow_paimon.operators._corrections import SqlOrFunctionOperator

__all__ = [
    "ReplayBranchOperator",
]


class ReplayBranchOperator(SqlOrFunctionOperator):
    """Run a function or statements over upstream tables, from a snapshot on, into branches."""

    operation = "replay_branch"

    @keeps_arguments
    def __init__(
        self, *, branch: str | None = None, source: Sequence[str] | str = (), target: Sequence[str] | str = (),
        function: str | None = None, sql: str | None = None, restricted_sql: bool | str | None = None,
        all_rows: bool | str = False, tag: str | None = None, snapshot: Sequence[str] | str = (),
        timestamp: str | None = None, available_now: bool | str = False, until_snapshot: Sequence[str] | str = (),
        until_watermark: str | None = None, timeout: str = "1 h", checkpoint: str | None = None, **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
