"""A task that leaves its worker while its job runs in a cluster, and comes back for the result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_paimon._compat import AirflowTaskTimeout
from airflow_paimon.hooks.cluster_job import Submission
from airflow_paimon.hooks.job_result import error_from_json
from airflow_paimon.hooks.paimon import PaimonHook

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_paimon._compat import BaseOperator


def deadline_of(operator: BaseOperator, context: Context) -> float | None:
    """Return when the ``execution_timeout`` of a task has passed, in epoch seconds; None without one."""
    limit, started = operator.execution_timeout, context["ti"].start_date
    return None if limit is None or started is None else (started + limit).timestamp()


def collect(paimon_conn_id: str, job: Submission, event: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of a job that the trigger has seen the end of; raise what it failed with."""
    if "error" in event:
        raise error_from_json(event["error"])
    hook = PaimonHook(paimon_conn_id)
    if event.get("timed_out"):
        job.delete_files(hook.storage_options)
        raise AirflowTaskTimeout(
            f"{job.operation} on {job.table} took longer than execution_timeout; driver {job.driver_id} was killed"
        )
    result = job.result_file(hook.results_folder, hook.storage_options)
    return job.collect(result, str(event["state"]), hook.storage_options)
