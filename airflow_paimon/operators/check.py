"""Operators that check the rows of a branch before anybody is asked.

Made by ``make functions`` of the requests and of tests/python_operators.py: change those.
"""

# fmt: off
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_paimon.operators._base import keeps_arguments
from airflow_paimon.operators._checks import CheckingOperator
from airflow_paimon.settings import SAMPLE

__all__ = [
    "CheckBranchOperator",
]


class CheckBranchOperator(CheckingOperator):
    """Check the rows of a branch against rules."""

    operation = "check_branch_data"

    @keeps_arguments
    def __init__(
        self, *, branch: str | None = None, rules: Sequence[Mapping[str, Any]] | str | None = None,
        against: str = "base", version: str | None = None, view: Sequence[str] | str = (),
        restricted_sql: bool | str | None = None, allow_module: Sequence[str] | str = (), sample: int | str = SAMPLE,
        mask: Sequence[str] | str = (), **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
