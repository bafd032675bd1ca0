"""What the operator does that makes a version of a table set, besides building its request."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from airflow_paimon.arguments import as_list
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.operators._base import PaimonOperator

if TYPE_CHECKING:
    from airflow.sdk import Context


class TableSetOperator(PaimonOperator):
    """Takes the tables of the set; ``table`` is the first of them."""

    table_set: Any
    tables: Any

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"table": "", **kwargs})

    def execute(self, context: Context) -> Any:
        """Make the version and return the result."""
        with self._airflow_errors(context):
            self.table = self._first()
        return super().execute(context)

    def _first(self) -> str:
        named = [self.table] if self.table else as_list("tables", self.tables)
        if not named:
            raise InvalidInputError(f"Table set {self.table_set!r}: tables is empty; name one table at least")
        return named[0].partition("@")[0].strip()

    def _value(self, spec: dataclasses.Field[Any]) -> Any:
        return self._first() if spec.name == "table" else super()._value(spec)
