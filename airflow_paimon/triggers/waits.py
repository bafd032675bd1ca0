"""What the triggers of deferred sensors share: poll until there is an answer."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, ClassVar

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_paimon.core.errors import PaimonError, error_to_json
from airflow_paimon.hooks.paimon import PaimonHook
from airflow_paimon.triggers._polls import connected_hook


def serialized(trigger: Any, *names: str, **others: Any) -> tuple[str, dict[str, Any]]:
    """Return the class path of a trigger and its arguments: the attributes of these names, and ``others``."""
    arguments = {name: getattr(trigger, name) for name in names} | others
    return f"{type(trigger).__module__}.{type(trigger).__qualname__}", arguments


def event(payload: dict[str, Any]) -> TriggerEvent:
    """Make an event."""
    return TriggerEvent(payload)  # type: ignore[no-untyped-call]  # Airflow has no annotations here


class SensorWait(BaseTrigger):
    """
    Fires once: with ``{"found": {...}}``, or with ``{"error": {...}, "retryable"}``.

    Storage is read in a thread, so that the triggerer's loop never waits for it. A storage failure is looked at again
    at the next poke; any other error ends the wait.
    """

    own: ClassVar[tuple[str, ...]] = ()
    """Further arguments of a subclass."""

    def __init__(self, *, paimon_conn_id: str, condition: Mapping[str, Any], poke_interval: float = 60.0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow has no annotations here
        self.paimon_conn_id = paimon_conn_id
        self.condition = dict(condition)
        self.poke_interval = poke_interval

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments."""
        return serialized(self, "paimon_conn_id", "condition", "poke_interval", *self.own)

    @property
    @abstractmethod
    def label(self) -> str:
        """What is looked at, for the log."""

    @abstractmethod
    def poll(self, hook: PaimonHook) -> tuple[dict[str, Any] | None, Sequence[str]]:
        """Poll once: returns what was found, None = not yet, and notes for the log."""

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Poll until there is an answer."""
        try:
            hook = await connected_hook(self.paimon_conn_id)
            found = await self._poll_storage(hook)
            while found is None:
                await asyncio.sleep(self.poke_interval)
                found = await self._poll_storage(hook)
        except PaimonError as error:
            yield event({"error": error_to_json(error), "retryable": error.retryable})
            return
        yield event({"found": found})

    async def _poll_storage(self, hook: PaimonHook) -> dict[str, Any] | None:
        try:
            return (await asyncio.to_thread(self.poll, hook))[0]
        except PaimonError as error:
            if error.kind != "storage":
                raise
            self.log.warning("%s: %s; checking again", self.label, error.message)
            return None
