"""What triggers share that fire once: poll until there is an answer. And the one of deferred sensors."""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_paimon.core.errors import PaimonError, error_to_json
from airflow_paimon.hooks.paimon import PaimonHook
from airflow_paimon.triggers._polls import connected_hook

__all__ = ["SensorTrigger"]

Check = Callable[..., tuple[dict[str, Any] | None, Sequence[str]]]
"""Checks storage once, by a hook and a condition; returns what was found, None = not yet, and notes for the log."""


def serialized(trigger: Any, *names: str, **others: Any) -> tuple[str, dict[str, Any]]:
    """Return the class path of a trigger and its arguments: the attributes of these names, and ``others``."""
    arguments = {name: getattr(trigger, name) for name in names} | others
    return f"{type(trigger).__module__}.{type(trigger).__qualname__}", arguments


def event(payload: dict[str, Any]) -> TriggerEvent:
    """Make an event."""
    return TriggerEvent(payload)  # type: ignore[no-untyped-call]  # Airflow has no annotations here


class PollingTrigger(BaseTrigger):
    """Fires once: with an answer, with ``timed_out`` at the deadline, or with ``error`` and ``retryable``.

    Whatever may wait for storage or a server runs in a thread, so that the triggerer's loop never does.
    """

    poll_interval: float
    deadline: float | None = None

    def __init__(self, **about: Any) -> None:
        """``about``: what each event says besides."""
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow has no annotations here
        self._about = about

    @abstractmethod
    async def _poll(self) -> dict[str, Any] | None:
        """Poll once: returns the answer, None = not yet."""

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Poll until there is an answer."""
        try:
            while (found := await self._poll()) is None:
                left = self.poll_interval if self.deadline is None else self.deadline - time.time()
                if left <= 0:
                    await self.on_kill()
                    found = {"timed_out": True}
                    break
                await asyncio.sleep(min(self.poll_interval, left))
        except PaimonError as error:
            found = {"error": error_to_json(error), "retryable": error.retryable}
        yield event({**self._about, **found})


class SensorTrigger(PollingTrigger):
    """
    Fires once: with ``{"found": {...}}``, or with ``{"error": {...}, "retryable"}``.

    A storage failure is looked at again at the next poll; any other error ends the wait.

    :param check: the path of the function that looks, as ``module:name``
    :param condition: its arguments, besides the hook
    :param paimon_conn_id: connection of type ``paimon``
    :param poll_interval: seconds between two polls
    """

    def __init__(
        self, *, check: str, condition: Mapping[str, Any], paimon_conn_id: str, poll_interval: float = 60.0
    ) -> None:
        super().__init__()
        self.check = check
        self.condition = dict(condition)
        self.paimon_conn_id = paimon_conn_id
        self.poll_interval = poll_interval
        self._hook: PaimonHook | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments; those of this class for a subclass, too."""
        _, arguments = serialized(self, "check", "condition", "paimon_conn_id", "poll_interval")
        return f"{__name__}.{SensorTrigger.__qualname__}", arguments

    async def _poll(self) -> dict[str, Any] | None:
        self._hook = self._hook or await connected_hook(self.paimon_conn_id)
        module, _, name = self.check.partition(":")
        check: Check = getattr(import_module(module), name)
        try:
            found, _ = await asyncio.to_thread(check, self._hook, **self.condition)
        except PaimonError as error:
            if error.kind != "storage":
                raise
            self.log.warning("%s; checking again", error.message)
            return None
        return None if found is None else {"found": found}
