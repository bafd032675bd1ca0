"""Wait for a version of a table set."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_paimon import settings
from airflow_paimon._compat import BaseSensorOperator, PokeReturnValue
from airflow_paimon.arguments import StrictTemplates, as_list
from airflow_paimon.core.errors import PaimonError
from airflow_paimon.core.table_sets.wait import SetCondition, awaited_version, parse_set_condition
from airflow_paimon.sensors._deferred import failing_as_a_poke, given
from airflow_paimon.task_run import airflow_error, answer_of

if TYPE_CHECKING:
    from airflow.sdk import Context

__all__ = ["TableSetSensor"]


class TableSetSensor(StrictTemplates, BaseSensorOperator):
    """
    Wait for a version of a table set; all conditions that are given must hold of the newest one.

    A look costs a listing and one small read, however many tables the set has. Returns ``{"table_set", "number",
    "version", "tag", "created", "operation_id", "tables"}``: hand ``version`` on to what reads the tables, so that all
    of it reads this version, whatever is published meanwhile.

    :param table_set: name of the set (templated)
    :param paimon_conn_id: connection of type ``paimon`` (templated)
    :param after: a later version than this one: its number, or ``set:<name>@<number>`` (templated)
    :param since: a version that was made at this time or later, ISO with an offset, such as ``{{ data_interval_end }}``
        (templated)
    :param tables: the version has these tables (templated)
    :param deferrable: wait in the triggerer instead of a worker; left out, ``[paimon] deferrable``, or else
        ``[operators] default_deferrable``
    :param poke_interval: time between two looks
    """

    template_fields: Sequence[str] = ("table_set", "paimon_conn_id", "after", "since", "tables")
    ui_color = "#e8f0fe"

    def __init__(
        self,
        *,
        table_set: str,
        paimon_conn_id: str = settings.CONN_ID,
        after: int | str | None = None,
        since: int | str | None = None,
        tables: Sequence[str] | str = (),
        deferrable: bool = settings.DEFERRABLE,
        poke_interval: timedelta | float = settings.POKE_INTERVAL,
        **kwargs: Any,
    ) -> None:
        super().__init__(poke_interval=poke_interval, **kwargs)
        self.table_set = table_set
        self.paimon_conn_id = paimon_conn_id
        self.after = after
        self.since = since
        self.tables = tables
        self.deferrable = deferrable

    def poke(self, context: Context) -> PokeReturnValue:
        """Look once."""
        found = self._look()
        return PokeReturnValue(is_done=found is not None, xcom_value=found)

    def execute(self, context: Context) -> Any:
        """Wait here, or look once and go on waiting in the triggerer."""
        if not self.deferrable:
            return super().execute(context)
        with failing_as_a_poke(self):
            found = self._look()
        if found is not None:
            return found
        from airflow_paimon.triggers.table_set import TableSetTrigger

        self.defer(
            trigger=TableSetTrigger(
                paimon_conn_id=self.paimon_conn_id,
                condition=self._condition().to_json(),
                poke_interval=float(self.poke_interval),
            ),
            method_name="execute_complete",
            timeout=timedelta(seconds=self.timeout),
        )
        return None

    def execute_complete(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Take the trigger's event: the version, or an error."""
        return answer_of(event, "version")

    def _condition(self) -> SetCondition:
        for name in ("table_set", "after", "since"):
            given(name, getattr(self, name))
        return parse_set_condition(self.table_set, self.after, self.since, as_list("tables", self.tables))

    def _look(self) -> dict[str, Any] | None:
        from airflow_paimon.hooks.paimon import PaimonHook

        try:
            found, missing = awaited_version(PaimonHook(self.paimon_conn_id).get_catalog(), self._condition())
        except PaimonError as error:
            raise airflow_error(error) from error
        if found is None:
            self.log.info("Waiting for %s", missing)
            return None
        return found.to_json()
