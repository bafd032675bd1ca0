"""Wait until running jobs have left buckets alone."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_paimon._compat import AirflowSensorTimeout
from airflow_paimon.arguments import as_list, keeps_arguments
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.table.options import parse_boolean, requested_duration
from airflow_paimon.links import TableLink, store_links
from airflow_paimon.sensors._deferred import DeferrableSensor, not_blank
from airflow_paimon.task_run import in_airflows_terms

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_paimon.hooks.paimon import PaimonHook

__all__ = ["BucketsQuietSensor"]


def check_buckets(
    hook: PaimonHook, *, table: str, branch: str | None, tag: str | None, keep_later: bool, partitions: Sequence[str],
    until: float,
) -> tuple[dict[str, Any] | None, Sequence[str]]:  # fmt: skip
    """Look once for jobs that may have buckets open which a publish, an undo or an overwrite is to replace.

    Raises:
        InvalidInputError: more than one of ``branch``, ``tag`` and ``partitions`` is given.
    """
    from airflow_paimon.core.publish.running_writers import look_for_writers
    from airflow_paimon.core.requests.arguments import build_request
    from airflow_paimon.execution import run_operation

    if sum(map(bool, (branch, tag, partitions))) > 1:
        raise InvalidInputError("Give one of branch, tag and partitions")
    if tag:
        reach = {"warehouse": hook.warehouse, "storage_options": hook.storage_options, "table": table}
        undo = {"tag": tag, "keep_later": keep_later, "writers_stopped": True, "dry_run": True}
        plan = run_operation(build_request("rollback_to", {**reach, **undo}))
        found = dict(plan.details.get("open_writers") or {"effect": None, "note": ""})
    else:
        found = look_for_writers(hook.get_table(table), branch, partitions, int(time.time() * 1000))
    is_over = found["effect"] != "refused" or time.time() >= until
    return found if is_over else None, [found["note"]] if found["note"] else []


class BucketsQuietSensor(DeferrableSensor):
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
    :param poke_interval: time between two polls
    """

    operator_extra_links = (TableLink(),)
    check = staticmethod(check_buckets)
    table: str
    keep_later: bool | str
    partitions: Sequence[str] | str
    time_limit: str | timedelta | None
    writers_stopped: bool | str
    _until = 0.0

    @keeps_arguments
    def __init__(
        self,
        *,
        table: str,
        branch: str | None = None,
        tag: str | None = None,
        keep_later: bool | str = True,
        partitions: Sequence[str] | str = (),
        time_limit: str | timedelta | None = None,
        writers_stopped: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)

    def execute(self, context: Context) -> Any:
        """Look, and wait here or in the triggerer."""
        with in_airflows_terms(context):
            stopped, self.timeout = parse_boolean(self.writers_stopped, "writers_stopped"), self._limit()
        if stopped:
            store_links(self, context)
            self.log.info("Nothing to wait for: the writers are stopped")
            return None
        self._until = time.time() + self.timeout
        return super().execute(context)

    @property
    def _timeout_seconds(self) -> float:
        return float(self.timeout) + 2 * float(self.poke_interval) + 60  # if the storage doesn't answer

    def _result_of(self, found: dict[str, Any]) -> dict[str, Any]:
        if found["effect"] == "refused":
            raise AirflowSensorTimeout(f"{self.table} is not quiet within {self.time_limit}: {found['note']}")
        return found

    def _limit(self) -> float:
        """Return the seconds to wait at most."""
        limit = not_blank("time_limit", self.time_limit)
        if limit is None:
            return float(self.timeout)
        return (limit if isinstance(limit, timedelta) else requested_duration(limit, "time_limit")).total_seconds()

    def _condition(self) -> dict[str, Any]:
        condition = {name: not_blank(name, getattr(self, name)) for name in ("table", "branch", "tag")}
        condition["keep_later"] = parse_boolean(self.keep_later, "keep_later")
        condition["partitions"] = as_list("partitions", self.partitions)
        return {**condition, "until": self._until}
