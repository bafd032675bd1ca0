"""What the deferred sensor of table sets waits with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_paimon.core.errors import PaimonError, error_to_json
from airflow_paimon.core.table.table_set import TableSet
from airflow_paimon.core.table_sets.wait import SetCondition, awaited_version
from airflow_paimon.hooks.paimon import PaimonHook
from airflow_paimon.triggers._polls import connected_hook

__all__ = ["TableSetTrigger"]


class TableSetTrigger(BaseTrigger):
    """
    Fires once when a table set has a version, with ``{"version": {...}}``, or with ``{"error": {...}, "retryable"}``.

    Storage is read in a thread, so that the triggerer's loop never waits for it. A storage failure is looked at again
    at the next poke; any other error ends the wait.

    :param paimon_conn_id: connection of type ``paimon``
    :param condition: a :class:`~airflow_paimon.core.table_sets.wait.SetCondition` as JSON
    :param poke_interval: seconds between two looks
    """

    def __init__(self, *, paimon_conn_id: str, condition: Mapping[str, Any], poke_interval: float = 60.0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow has no annotations here
        self.paimon_conn_id = paimon_conn_id
        self.condition = dict(condition)
        self.poke_interval = poke_interval

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments."""
        arguments = {
            "paimon_conn_id": self.paimon_conn_id,
            "condition": self.condition,
            "poke_interval": self.poke_interval,
        }
        return f"{type(self).__module__}.{type(self).__qualname__}", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look, wait, look again."""
        try:
            condition = SetCondition.from_json(self.condition)
            hook = await connected_hook(self.paimon_conn_id)
            found = await self._look(hook, condition)
            while found is None:
                await asyncio.sleep(self.poke_interval)
                found = await self._look(hook, condition)
        except PaimonError as error:
            yield _event({"error": error_to_json(error), "retryable": error.retryable})
            return
        yield _event({"version": found.to_json()})

    async def _look(self, hook: PaimonHook, condition: SetCondition) -> TableSet | None:
        try:
            found, _ = await asyncio.to_thread(lambda: awaited_version(hook.get_conn(), condition))
        except PaimonError as error:
            if error.kind != "storage":
                raise
            self.log.warning("Table set %s: %s; looking again", condition.table_set, error.message)
            return None
        return found


def _event(payload: dict[str, Any]) -> TriggerEvent:
    return TriggerEvent(payload)  # type: ignore[no-untyped-call]  # Airflow has no annotations here
