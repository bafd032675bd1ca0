"""A job that runs in a cluster, from its submission to its result, whoever waits for it: the task or a trigger."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_paimon.core.errors import PaimonError
from airflow_paimon.hooks._drivers import GONE, Drivers, has_ended
from airflow_paimon.hooks._job_files import RESULT_LINE, ResultFile, delete_job_files, result_in
from airflow_paimon.hooks._kubernetes import CONTEXT, PendingError
from airflow_paimon.hooks.job_result import error_of_lost_driver, result_or_raise

log = logging.getLogger(__name__)

_LOOKS_UNTIL_GONE = 3
"""A resource manager that has just restarted may not know its applications yet."""
LEFT_RESULT = "it left its result"


@dataclass(frozen=True, slots=True)
class Submission:
    """A job that was submitted to a cluster, of plain JSON values without secrets: what a deferred task waits for.

    ``files`` is the folder with the job's files, or its URI, where the driver reads them there, and else None.
    ``context`` is the kubeconfig's that ``spark-submit`` was told to use.
    """

    operation: str
    table: str
    driver_id: str
    result_name: str
    files: str | None = None
    namespace: str | None = None
    spark_url: str | None = None
    context: str | None = None

    def spark_settings(self) -> dict[str, str]:
        """Return the Spark settings by which another process finds the driver."""
        settings = {"spark.kubernetes.namespace": self.namespace, CONTEXT: self.context}
        return {name: value for name, value in settings.items() if value}

    def result_file(self, results_folder: str, storage_options: Mapping[str, Any] | None) -> ResultFile:
        """Return the file that the job's result will be in."""
        return result_in(results_folder, self.result_name, storage_options)

    def collect(
        self, result: ResultFile, state: str, storage_options: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Take the result of a job that is over, or raise the error in it. ``state`` is what the driver was last in."""
        found = result.take()
        self.delete_files(storage_options)
        if found is None:
            raise error_of_lost_driver(self.operation, self.table, self.driver_id, state, result.uri)
        return result_or_raise(found)

    def delete_files(self, storage_options: Mapping[str, Any] | None = None) -> None:
        """Delete the job's files from where they lie for its driver."""
        if self.files is not None:
            delete_job_files(self.files, storage_options)


class JobWatch:
    """Looks whether a submitted job is over. What gives no answer, cluster or storage, is looked at again."""

    def __init__(self, drivers: Drivers, driver: str, result: ResultFile) -> None:
        self.drivers = drivers
        self._driver = driver
        self._result = result
        self._gone = 0
        self._reported = ""

    def poll(self) -> str | None:
        """Return None while the job runs; then ``LEFT_RESULT``, or the driver's state when there is no result.

        Raises ``PaimonError`` when there is no result and the cluster refuses to tell the state.
        """
        # In this order: a driver that has ended by now had left its result before.
        state, refused = self._state()
        try:
            if self._result.exists():
                self._log_driver()
                return LEFT_RESULT
        except PaimonError as error:
            self._report(f"the result can't be read: {error.message}")
            return None
        if refused is not None:
            raise refused
        self._gone = self._gone + 1 if state == GONE else 0
        if state is None or not (has_ended(state) or self._gone >= _LOOKS_UNTIL_GONE):
            return None
        self._log_driver()
        return state

    def kill(self) -> None:
        """Ask the cluster to end the driver. Raises as ``Drivers.kill``."""
        self.drivers.kill(self._driver)

    def _state(self) -> tuple[str | None, PaimonError | None]:
        """Return the driver's state where it is told, and the error of a cluster that refuses to tell it."""
        try:
            return self.drivers.state(self._driver), None
        except PendingError as error:
            self._report(str(error))
        except PaimonError as error:
            return None, error
        except (OSError, RuntimeError) as error:
            self._report(f"the cluster does not report its state: {error}")
        return None, None

    def _log_driver(self) -> None:
        """Put the end of the driver's log into this one."""
        try:
            lines = self.drivers.log(self._driver)
        except (OSError, RuntimeError, PaimonError) as error:
            log.warning("The log of driver %s can't be read: %s", self._driver, error)
            return
        lines = [line for line in lines if not line.startswith(RESULT_LINE)]
        if lines:
            log.info("The end of the log of driver %s:\n%s", self._driver, "\n".join(lines))

    def _report(self, text: str) -> None:
        if text != self._reported:
            log.warning("Driver %s: %s; checking again", self._driver, text)
        self._reported = text
