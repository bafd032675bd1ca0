"""What a task waits with whose job runs in a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from airflow_paimon._compat import AirflowRuntimeError
from airflow_paimon.core.errors import PaimonError
from airflow_paimon.hooks.cluster_job import JobWatch, Submission
from airflow_paimon.hooks.spark_job import SparkJobHook
from airflow_paimon.triggers._polls import connected_hook, connection_of
from airflow_paimon.triggers.waits import PollingTrigger, serialized

__all__ = ["SparkJobTrigger"]


class SparkJobTrigger(PollingTrigger):
    """
    Fires once when a submitted job is over: ``job``, and ``state``, ``timed_out`` or ``error``.

    It looks for the job's result and asks the cluster for the driver's state; the task reads the result. When the
    triggerer stops, another one goes on watching the same driver. When the task is marked or cleared while it waits,
    the driver is killed (from Airflow 3.3 on), and so it is when the deadline has passed.

    :param job: the submission, as JSON
    :param paimon_conn_id: connection of type ``paimon``, whose results folder the job writes to
    :param spark_conn_id: connection of type ``spark`` that the job was submitted with
    :param poll_interval: seconds between two polls
    :param deadline: epoch seconds at which the task's ``execution_timeout`` has passed
    """

    def __init__(
        self,
        *,
        job: Mapping[str, Any],
        paimon_conn_id: str,
        spark_conn_id: str,
        poll_interval: float = 10.0,
        deadline: float | None = None,
    ) -> None:
        super().__init__(job=dict(job))
        self.job = Submission(**job)
        self.paimon_conn_id = paimon_conn_id
        self.spark_conn_id = spark_conn_id
        self.poll_interval = poll_interval
        self.deadline = deadline
        self._job_watch: JobWatch | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments."""
        names = ("paimon_conn_id", "spark_conn_id", "poll_interval", "deadline")
        return serialized(self, *names, job=asdict(self.job))

    async def _poll(self) -> dict[str, Any] | None:
        try:
            self._job_watch = self._job_watch or await self._watch()
            state = await asyncio.to_thread(self._job_watch.poll)
        except AirflowRuntimeError as error:  # of the API server
            self.log.warning("Driver %s: the connections can't be read: %s; checking again", self.job.driver_id, error)
            return None
        return None if state is None else {"state": state}

    async def on_kill(self) -> None:
        """Kill the driver: somebody has marked or cleared the task, or its time is over. Failures are logged."""
        try:
            await asyncio.to_thread((await self._watch()).kill)
        except (OSError, RuntimeError, AirflowRuntimeError, PaimonError) as error:
            self.log.error("Driver %s could not be killed and may still run: %s", self.job.driver_id, error)
            return
        self.log.info("Driver %s was killed", self.job.driver_id)
        try:
            paimon = await connected_hook(self.paimon_conn_id)
            await asyncio.to_thread(self.job.delete_files, paimon.storage_options)
        except (OSError, RuntimeError, AirflowRuntimeError, PaimonError) as error:
            self.log.warning("The files of driver %s could not be deleted: %s", self.job.driver_id, error)

    async def _watch(self) -> JobWatch:
        paimon = await connected_hook(self.paimon_conn_id)
        spark = SparkJobHook(
            self.spark_conn_id,
            conf=self.job.spark_settings(),
            options={"deploy_mode": "cluster"},
            connection=await connection_of(self.spark_conn_id),
        )
        return spark.watch(self.job, self.job.result_file(paimon.results_folder, paimon.storage_options))
