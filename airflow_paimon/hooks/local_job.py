"""Jobs on few rows without Spark: a Python process beside the task tries, before anything is submitted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_paimon._compat import BaseHook
from airflow_paimon.core.requests.arguments import LOCAL, NEEDS_SPARK, WITHOUT_SPARK
from airflow_paimon.core.requests.local_execution import ALL
from airflow_paimon.core.requests.requests import Request, flag_name
from airflow_paimon.hooks._job_files import JobFolder
from airflow_paimon.hooks._job_process import JobProcess
from airflow_paimon.hooks.job_result import error_without_result, result_or_raise

__all__ = ["LocalJobHook"]


class LocalJobHook(BaseHook):
    """
    Run one bundled job in plain Python, if it is small enough for that: if it takes no more than 1 GiB of memory.

    The job is a process beside the task, so that its memory is not the worker's, and dies with it. It decides by a plan
    from metadata alone.
    """

    def __init__(self) -> None:
        super().__init__()
        self._process = JobProcess(self.log)

    def run_job(self, request: Request, *, texts: Mapping[str, str] | None = None) -> dict[str, Any] | None:
        """
        Run the request's job and give its result JSON; None where the job is one for Spark.

        A process that ends without a result, for want of memory say, also leaves its work to Spark: a job with the
        same operation id looks first whether it was committed.

        :param request: what to do
        :param texts: fields of the request that name a file (``sql``), with the file's content
        :raises PaimonError: the job's own failure, of its class
        """
        flags = [f"{flag_name(LOCAL)}={ALL}", flag_name(WITHOUT_SPARK)]  # whether it may is decided already
        with JobFolder() as folder:
            code, found = self._process.run_job(folder, request, texts or {}, flags=flags)
        if found is not None and code != NEEDS_SPARK:
            return result_or_raise(found)
        if self._process.killed:
            raise error_without_result(request, code, "its file", program="the job's process")
        if found is None:
            self.log.warning("The job ended in plain Python with exit code %s; submitting it", code)
        else:
            self.log.info("Submitting the job: %s", found.get("needs_spark"))
        return None

    def on_kill(self) -> None:
        """End the job; returns within 4 seconds."""
        self._process.end()
