"""Operators that make versions of table sets.

Made by ``make functions`` of the requests and of tests/python_operators.py: change those.
"""

# fmt: off
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_paimon.operators._base import keeps_arguments
from airflow_paimon.operators._table_set import TableSetOperator

__all__ = [
    "CreateTableSetOperator",
]


class CreateTableSetOperator(TableSetOperator):
    """Create the next version of a set of tables: one snapshot of each, read as one."""

    operation = "create_table_set"

    @keeps_arguments
    def __init__(
        self, *, table_set: str, tables: Sequence[str] | str = (), keep: int | str = 10, retention: str = "7 d",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
