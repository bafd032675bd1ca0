"""What a task waits with whose Flink job is to stop, to run or to finish."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_paimon.core.errors import PaimonError, error_to_json
from airflow_paimon.hooks.flink import FlinkError, FlinkHook, Stop
from airflow_paimon.triggers._polls import connection_of
from airflow_paimon.triggers.waits import event, serialized

__all__ = ["FlinkTrigger"]


class FlinkTrigger(BaseTrigger):
    """
    Fires once: with ``found``, the savepoint's path or the job's id, or with ``error``.

    :param flink_conn_id: connection of type ``paimon_flink``
    :param stop: the stop with savepoint that was asked for, as JSON; or
    :param job_id: the job that is to run
    :param until_finished: the job is to finish
    :param poll_interval: seconds between two polls
    :param until: epoch seconds at which to give up
    :param deadline: epoch seconds at which the task's ``execution_timeout`` has passed; the job is cancelled then
    """

    def __init__(
        self,
        *,
        flink_conn_id: str,
        stop: Mapping[str, str] | None = None,
        job_id: str | None = None,
        until_finished: bool = False,
        poll_interval: float = 2.0,
        until: float | None = None,
        deadline: float | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow has no annotations here
        self.flink_conn_id = flink_conn_id
        self.stop = None if stop is None else Stop(**stop)
        self.job_id = job_id
        self.until_finished = until_finished
        self.poll_interval = poll_interval
        self.until = until
        self.deadline = deadline

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments."""
        names = ("flink_conn_id", "job_id", "until_finished", "poll_interval", "until", "deadline")
        return serialized(self, *names, stop=None if self.stop is None else asdict(self.stop))

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Poll until there is an answer."""
        try:
            hook = await self._hook()
            poll = hook.polling(self.stop, self.job_id, until_finished=self.until_finished, until=self.until)
            while (found := await asyncio.to_thread(poll)) is None:
                if self.deadline is not None and self.deadline <= time.time():
                    await self.on_kill()
                    yield self._event({"timed_out": True})
                    return
                await asyncio.sleep(self.poll_interval)
        except PaimonError as error:
            yield self._event({"error": error_to_json(error), "retryable": error.retryable})
        else:
            yield self._event({"found": found})

    async def on_kill(self) -> None:
        """Cancel the job: somebody has marked or cleared the task. A stop goes on: its job may be gone already."""
        if self.job_id is not None:
            try:
                await asyncio.to_thread((await self._hook()).cancel, self.job_id)
            except FlinkError as error:
                self.log.error("Flink job %s was not cancelled and may still run: %s", self.job_id, error.message)

    async def _hook(self) -> FlinkHook:
        return FlinkHook(self.flink_conn_id, connection=await connection_of(self.flink_conn_id))

    def _event(self, payload: dict[str, Any]) -> TriggerEvent:
        return event({"job_id": self.stop.job_id if self.stop else self.job_id, **payload})
