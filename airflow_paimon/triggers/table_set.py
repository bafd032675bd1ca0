"""What the deferred sensor of table sets waits with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_paimon.core.table_sets.wait import SetCondition, awaited_version
from airflow_paimon.hooks.paimon import PaimonHook
from airflow_paimon.triggers.waits import SensorWait

__all__ = ["TableSetTrigger"]


class TableSetTrigger(SensorWait):
    """
    Fires once when a table set has a version, with ``{"found": {...}}``, or with ``{"error": {...}, "retryable"}``.

    Storage is read in a thread, so that the triggerer's loop never waits for it. A storage failure is looked at again
    at the next poke; any other error ends the wait.

    :param paimon_conn_id: connection of type ``paimon``
    :param condition: the fields of a :class:`~airflow_paimon.core.table_sets.wait.SetCondition`
    :param poke_interval: seconds between two polls
    """

    @property
    def label(self) -> str:
        """See ``SensorWait.label``."""
        return f"Table set {self.condition['table_set']}"

    def poll(self, hook: PaimonHook) -> tuple[dict[str, Any] | None, Sequence[str]]:
        """See ``SensorWait.poll``."""
        found, missing = awaited_version(hook.get_catalog(), SetCondition(**self.condition))
        return (None, [f"waiting for {missing}"]) if found is None else (found.to_json(), ())
