"""What the deferred sensor of quiet buckets waits with."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.hooks.paimon import PaimonHook
from airflow_paimon.triggers._waits import WaitingTrigger

__all__ = ["BucketsQuietTrigger"]


def open_writers(
    hook: PaimonHook,
    table: str,
    *,
    branch: str | None = None,
    tag: str | None = None,
    keep_later: bool = True,
    partitions: Sequence[str] = (),
) -> dict[str, Any]:
    """Describe the jobs that may have buckets open which a publish, an undo or an overwrite is to replace.

    Raises:
        InvalidInputError: more than one of ``branch``, ``tag`` and ``partitions`` is given.
    """
    from airflow_paimon.core.publish.quiet import look_for_writers
    from airflow_paimon.core.requests.arguments import build_request
    from airflow_paimon.execution import run_operation

    if sum(map(bool, (branch, tag, partitions))) > 1:
        raise InvalidInputError("Give one of branch, tag and partitions")
    if not tag:
        return look_for_writers(hook.get_table(table), branch, partitions, int(time.time() * 1000))
    reach = {"warehouse": hook.warehouse, "storage_options": hook.storage_options, "table": table}
    undo = {"tag": tag, "keep_later": keep_later, "writers_stopped": True, "dry_run": True}
    plan = run_operation(build_request("rollback_to", {**reach, **undo}))
    return dict(plan.details.get("open_writers") or {"effect": None, "note": ""})


class BucketsQuietTrigger(WaitingTrigger):
    """
    Fires once when running jobs have closed some buckets, or at a deadline, with ``{"open_writers": {...}}``, or with
    ``{"error": {...}, "retryable"}``.

    Storage is read in a thread, so that the triggerer's loop never waits for it. A storage failure is looked at again
    at the next poke; any other error ends the wait.

    :param table: the table, ``db.table``
    :param condition: which buckets: ``branch``, ``tag`` and ``keep_later``, or ``partitions``, as
        :class:`~airflow_paimon.sensors.quiet.BucketsQuietSensor` takes them
    :param paimon_conn_id: connection of type ``paimon``
    :param until: the deadline, in seconds since the epoch
    :param poke_interval: seconds between two looks
    """

    awaited = "open_writers"

    def __init__(
        self,
        *,
        table: str,
        condition: Mapping[str, Any],
        paimon_conn_id: str,
        until: float,
        poke_interval: float = 60.0,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow has no annotations here
        self.table = table
        self.condition = dict(condition)
        self.paimon_conn_id = paimon_conn_id
        self.until = until
        self.poke_interval = poke_interval

    @property
    def label(self) -> str:
        """See ``WaitingTrigger.label``."""
        return self.table

    def look(self, hook: PaimonHook) -> dict[str, Any] | None:
        """See ``WaitingTrigger.look``."""
        found = open_writers(hook, self.table, **self.condition)
        return found if found["effect"] != "refused" or time.time() >= self.until else None
