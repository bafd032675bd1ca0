"""Operators about rows that are to be gone for good.

Made by ``make functions`` of the requests and of tests/python_operators.py: change those.
"""

# fmt: off
from __future__ import annotations

from typing import Any

from airflow_paimon.operators._base import PaimonOperator, keeps_arguments

__all__ = [
    "EraseRowsOperator", "FindRowsOperator",
]


class FindRowsOperator(PaimonOperator):
    """Find the stored files with rows of a condition, on all branches, and the snapshots and tags that need them."""

    operation = "find_rows"

    @keeps_arguments
    def __init__(
        self, *, where: str, limit: int | str = 100, **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class EraseRowsOperator(PaimonOperator):
    """Erase rows of a condition from main, every branch, and old snapshots and tags."""

    operation = "erase_rows"

    @keeps_arguments
    def __init__(
        self, *, where: str, expire_tags: bool | str = False, expire_history: bool | str = False, grace: str = "1 h",
        writers_stopped: bool | str = False, orphans_older_than: str = "1 d", reason: str | None = None,
        approved_by: str | None = None, requested_by: str | None = None, four_eyes: bool | str = False,
        skip_checks: bool | str = False, limit: int | str = 100, **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
