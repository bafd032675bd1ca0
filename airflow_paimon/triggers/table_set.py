"""What the deferred sensor of table sets waits with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_paimon.core.table_sets.wait import SetCondition, awaited_version
from airflow_paimon.hooks.paimon import PaimonHook
from airflow_paimon.triggers._waits import WaitingTrigger

__all__ = ["TableSetTrigger"]


class TableSetTrigger(WaitingTrigger):
    """
    Fires once when a table set has a version, with ``{"version": {...}}``, or with ``{"error": {...}, "retryable"}``.

    Storage is read in a thread, so that the triggerer's loop never waits for it. A storage failure is looked at again
    at the next poke; any other error ends the wait.

    :param paimon_conn_id: connection of type ``paimon``
    :param condition: a :class:`~airflow_paimon.core.table_sets.wait.SetCondition` as JSON
    :param poke_interval: seconds between two looks
    """

    awaited = "version"

    def __init__(self, *, paimon_conn_id: str, condition: Mapping[str, Any], poke_interval: float = 60.0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow has no annotations here
        self.paimon_conn_id = paimon_conn_id
        self.condition = dict(condition)
        self.poke_interval = poke_interval

    @property
    def label(self) -> str:
        """See ``WaitingTrigger.label``."""
        return f"Table set {self.condition['table_set']}"

    def look(self, hook: PaimonHook) -> dict[str, Any] | None:
        """See ``WaitingTrigger.look``."""
        found, _ = awaited_version(hook.get_catalog(), SetCondition.from_json(self.condition))
        return None if found is None else found.to_json()
