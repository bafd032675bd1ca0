"""Operators that keep what auditors ask for outside of the tables it is about.

Made by ``make functions`` of the requests and of tests/python_operators.py: change those.
"""

# fmt: off
from __future__ import annotations

from typing import Any

from airflow_paimon.operators._base import PaimonOperator, keeps_arguments

__all__ = [
    "ExportAuditOperator",
]


class ExportAuditOperator(PaimonOperator):
    """Write who changed tables, why, and who approved it, to a file or to a table."""

    operation = "export_audit"

    @keeps_arguments
    def __init__(
        self, *, from_: str | None = None, to: str | None = None, uri: str | None = None, format: str | None = None,
        to_table: str | None = None, skip_unreadable: bool | str = False, **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
