"""The operator that makes a version of a table set."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_paimon.arguments import as_list
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.requests.requests import SET_KEEP, SET_RETENTION
from airflow_paimon.operators._base import PaimonOperator, keeps_arguments

if TYPE_CHECKING:
    from airflow.sdk import Context

__all__ = ["CreateTableSetOperator"]


class CreateTableSetOperator(PaimonOperator):
    """
    Make the next version of a set of tables: one snapshot of each, which readers get together or not at all.

    Put it behind the tasks that load the tables. Every table gets the tag ``set-<name>-<number>``, by which any engine
    reads that version; our own readers take ``set:<name>``. Versions that are over are deleted, with their tags.

    The result's ``details`` are ``{"table_set", "number", "version", "tag", "created", "operation_id", "tables",
    "expired"}``; ``version`` is ``set:<name>@<number>``, ``tables`` the snapshot ids by table.

    :param table_set: name of the set (templated)
    :param tables: its tables, each as ``db.table``, whose newest snapshot it gets, or ``db.table@version``: a tag or a
        snapshot id of main (templated)
    :param keep: the newest versions that stay, whatever their age (templated)
    :param retention: how long an older version stays from when the next one took its place (templated)
    :param abandon: go on although a pipeline has begun to publish tables of the set, as its run was killed (templated)
    """

    operation = "create_table_set"
    attribute_names: ClassVar[dict[str, str]] = {"member": "tables"}
    table_set: Any
    tables: Any

    @keeps_arguments
    def __init__(
        self,
        *,
        table_set: str,
        tables: Sequence[str] | str = (),
        keep: int | str = SET_KEEP,
        retention: str = SET_RETENTION,
        abandon: bool | str = False,
        **kwargs: Any,
    ) -> None:
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

    def _log_lines(self, result: Mapping[str, Any]) -> list[str]:
        made = result["details"]
        return [f"{made['version']}: {name} at snapshot {at}" for name, at in made["tables"].items()]
