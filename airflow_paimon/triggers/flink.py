"""What a task waits with whose Flink job is to stop, to run or to finish."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from airflow_paimon.hooks.flink import FlinkError, FlinkHook, FlinkPoll, Stop
from airflow_paimon.triggers._polls import connection_of
from airflow_paimon.triggers.waits import PollingTrigger, serialized

__all__ = ["FlinkTrigger"]


class FlinkTrigger(PollingTrigger):
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
        super().__init__(job_id=stop["job_id"] if stop else job_id)
        self.flink_conn_id = flink_conn_id
        self.stop = None if stop is None else Stop(**stop)
        self.job_id = job_id
        self.until_finished = until_finished
        self.poll_interval = poll_interval
        self.until = until
        self.deadline = deadline
        self._flink_poll: FlinkPoll[str] | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments."""
        names = ("flink_conn_id", "job_id", "until_finished", "poll_interval", "until", "deadline")
        return serialized(self, *names, stop=None if self.stop is None else asdict(self.stop))

    async def _poll(self) -> dict[str, Any] | None:
        if self._flink_poll is None:
            hook, finished = await self._hook(), self.until_finished
            self._flink_poll = hook.polling(self.stop, self.job_id, until_finished=finished, until=self.until)
        found = await asyncio.to_thread(self._flink_poll)
        return None if found is None else {"found": found}

    async def on_kill(self) -> None:
        """Cancel the job: somebody has marked or cleared the task. A stop goes on: its job may be gone already."""
        if self.job_id is not None:
            try:
                await asyncio.to_thread((await self._hook()).cancel, self.job_id)
            except FlinkError as error:
                self.log.error("Flink job %s was not cancelled and may still run: %s", self.job_id, error.message)

    async def _hook(self) -> FlinkHook:
        return FlinkHook(self.flink_conn_id, connection=await connection_of(self.flink_conn_id))
