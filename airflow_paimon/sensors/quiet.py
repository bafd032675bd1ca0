"""Wait until running jobs have left buckets alone."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_paimon import settings
from airflow_paimon._compat import AirflowSensorTimeout, BaseSensorOperator, PokeReturnValue
from airflow_paimon.arguments import StrictTemplates, as_list
from airflow_paimon.core.errors import PaimonError
from airflow_paimon.core.table.options import parse_boolean, requested_duration
from airflow_paimon.links import TableLink, store_links
from airflow_paimon.sensors._deferred import failing_as_a_poke, given
from airflow_paimon.task_run import airflow_error, answer_of

if TYPE_CHECKING:
    from airflow.sdk import Context

__all__ = ["BucketsQuietSensor"]


class BucketsQuietSensor(StrictTemplates, BaseSensorOperator):
    """
    Wait until no running job of another engine may have buckets open whose files are to be replaced, where a publish or
    an overwrite is refused for that (:doc:`/howto/flink-tables`). Succeeds at the first look where nothing is open, and
    for tables where an open writer does no harm.

    A look reads the snapshots of the last day and the changes of each job's last commits. Returns the ``open_writers``
    that plans and diffs show: ``{"effect", "note", "quiet_since", "jobs", "open_buckets", "open_bucket_count"}``.

    :param table: the table, ``db.table`` (templated)
    :param branch: wait for the buckets that this branch has changed (templated)
    :param tag: wait for the buckets that a rollback to this undo tag replaces (templated)
    :param keep_later: the rollback to ``tag`` keeps what came after the publish (templated)
    :param partitions: without both: wait for these partitions of main, such as ``["dt=2025-01-01"]``; left out, all
        (templated)
    :param paimon_conn_id: connection of type ``paimon`` (templated)
    :param time_limit: fail when it takes longer, such as ``1 h``; ``0 s`` looks once. Left out: ``timeout`` (templated)
    :param writers_stopped: no such job is running: succeed without a look (templated)
    :param deferrable: wait in the triggerer instead of a worker; left out, ``[paimon] deferrable``, or else
        ``[operators] default_deferrable``
    :param poke_interval: time between two looks
    """

    template_fields: Sequence[str] = (
        "table",
        "branch",
        "tag",
        "keep_later",
        "partitions",
        "paimon_conn_id",
        "time_limit",
        "writers_stopped",
    )
    operator_extra_links = (TableLink(),)
    ui_color = "#e8f0fe"

    def __init__(
        self,
        *,
        table: str,
        branch: str | None = None,
        tag: str | None = None,
        keep_later: bool | str = True,
        partitions: Sequence[str] | str = (),
        paimon_conn_id: str = settings.CONN_ID,
        time_limit: str | timedelta | None = None,
        writers_stopped: bool | str = False,
        deferrable: bool = settings.DEFERRABLE,
        poke_interval: timedelta | float = settings.POKE_INTERVAL,
        **kwargs: Any,
    ) -> None:
        super().__init__(poke_interval=poke_interval, **kwargs)
        self.table = table
        self.branch = branch
        self.tag = tag
        self.keep_later = keep_later
        self.partitions = partitions
        self.paimon_conn_id = paimon_conn_id
        self.time_limit = time_limit
        self.writers_stopped = writers_stopped
        self.deferrable = deferrable

    def execute(self, context: Context) -> Any:
        """Look, and wait here or in the triggerer."""
        store_links(self, context)
        if parse_boolean(self.writers_stopped, "writers_stopped"):
            self.log.info("Nothing to wait for: the writers are stopped")
            return None
        with failing_as_a_poke(self):
            found, limit = self._look(), self._limit()
        if found["effect"] != "refused":
            return found
        if limit == 0:
            self._end(found)
        self.timeout = limit
        if not self.deferrable:
            return super().execute(context)
        from airflow_paimon.triggers.quiet import BucketsQuietTrigger

        self.defer(
            trigger=BucketsQuietTrigger(
                table=self.table,
                condition=self._condition(),
                paimon_conn_id=self.paimon_conn_id,
                until=time.time() + limit,
                poke_interval=float(self.poke_interval),
            ),
            method_name="execute_complete",
            timeout=timedelta(seconds=limit + 2 * float(self.poke_interval) + 60),  # if the storage doesn't answer
        )
        return None

    def poke(self, context: Context) -> PokeReturnValue:
        """Look once."""
        found = self._look()
        return PokeReturnValue(is_done=found["effect"] != "refused", xcom_value=found)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Take the trigger's event: the jobs and buckets, or an error."""
        found = answer_of(event, "open_writers")
        if found["effect"] == "refused":
            self._end(found)
        return found

    def _end(self, found: dict[str, Any]) -> None:
        with failing_as_a_poke(self):
            raise AirflowSensorTimeout(f"{self.table} is not quiet within {self.time_limit}: {found['note']}")

    def _limit(self) -> float:
        """Return the seconds to wait at most."""
        limit = given("time_limit", self.time_limit)
        if limit is None:
            return float(self.timeout)
        return (limit if isinstance(limit, timedelta) else requested_duration(limit, "time_limit")).total_seconds()

    def _condition(self) -> dict[str, Any]:
        named = {name: given(name, getattr(self, name)) for name in ("branch", "tag")}
        keep_later = parse_boolean(self.keep_later, "keep_later")
        return {**named, "keep_later": keep_later, "partitions": as_list("partitions", self.partitions)}

    def _look(self) -> dict[str, Any]:
        from airflow_paimon.hooks.paimon import PaimonHook
        from airflow_paimon.triggers.quiet import open_writers

        try:
            found = open_writers(PaimonHook(self.paimon_conn_id), self.table, **self._condition())
        except PaimonError as error:
            raise airflow_error(error) from error
        if found["note"]:
            self.log.info("%s: %s", self.table, found["note"])
        return found
