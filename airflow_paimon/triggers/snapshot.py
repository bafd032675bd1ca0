"""What the deferred sensor waits with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_paimon._compat import AirflowNotFoundException
from airflow_paimon.core.branches.catch_up import CatchUpCondition, Verdict, check
from airflow_paimon.core.errors import InvalidInputError, PaimonError, error_to_json
from airflow_paimon.hooks.paimon import PaimonHook

__all__ = ["SnapshotCatchUpTrigger"]


class SnapshotCatchUpTrigger(BaseTrigger):
    """
    Fires once when a branch has caught up, with ``{"verdict": {...}}``, or with ``{"error": {...}, "retryable"}``.

    Storage is read in a thread, so that the triggerer's loop never waits for it. A storage failure is looked at again
    at the next poke; any other error ends the wait.

    :param table: the table, ``db.table``
    :param branch: the branch that has to catch up
    :param paimon_conn_id: connection of type ``paimon``
    :param condition: a :class:`~airflow_paimon.core.branches.catch_up.CatchUpCondition` as JSON
    :param poke_interval: seconds between two looks
    """

    def __init__(
        self,
        *,
        table: str,
        branch: str,
        paimon_conn_id: str,
        condition: Mapping[str, Any],
        poke_interval: float = 60.0,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow has no annotations here
        self.table = table
        self.branch = branch
        self.paimon_conn_id = paimon_conn_id
        self.condition = dict(condition)
        self.poke_interval = poke_interval

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments."""
        arguments = {
            "table": self.table,
            "branch": self.branch,
            "paimon_conn_id": self.paimon_conn_id,
            "condition": self.condition,
            "poke_interval": self.poke_interval,
        }
        return f"{type(self).__module__}.{type(self).__qualname__}", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look, wait, look again."""
        try:
            condition = CatchUpCondition.from_json(self.condition)
            hook = await self._hook()
            verdict = await self._look(hook, condition)
            while verdict is None or not verdict.caught_up:
                await asyncio.sleep(self.poke_interval)
                verdict = await self._look(hook, condition)
        except PaimonError as error:
            yield _event({"error": error_to_json(error), "retryable": error.retryable})
            return
        yield _event({"verdict": verdict.to_json()})

    async def _hook(self) -> PaimonHook:
        try:
            connection = await PaimonHook.aget_connection(self.paimon_conn_id)
        except AirflowNotFoundException:
            raise InvalidInputError(f"There is no Airflow connection {self.paimon_conn_id!r}") from None
        hook = PaimonHook(self.paimon_conn_id, connection=connection)
        # The options are read here and kept: masking their secrets talks to the supervisor, which a thread must not.
        hook.storage_options  # noqa: B018
        return hook

    async def _look(self, hook: PaimonHook, condition: CatchUpCondition) -> Verdict | None:
        try:
            return await asyncio.to_thread(lambda: check(hook.get_table(self.table, self.branch), condition))
        except PaimonError as error:
            if error.kind != "storage":
                raise
            self.log.warning("%s, branch %s: %s; looking again", self.table, self.branch, error.message)
            return None


def _event(payload: dict[str, Any]) -> TriggerEvent:
    return TriggerEvent(payload)  # type: ignore[no-untyped-call]  # Airflow has no annotations here
