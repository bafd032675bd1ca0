"""What the deferred sensor of quiet buckets waits with."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.hooks.paimon import PaimonHook
from airflow_paimon.triggers.waits import SensorWait

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
    from airflow_paimon.core.publish.running_writers import look_for_writers
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


class BucketsQuietTrigger(SensorWait):
    """
    Fires once when running jobs have closed some buckets, or at a deadline, with ``{"found": {...}}``, or with
    ``{"error": {...}, "retryable"}``.

    Storage is read in a thread, so that the triggerer's loop never waits for it. A storage failure is looked at again
    at the next poke; any other error ends the wait.

    :param condition: which buckets: ``table``, with ``branch``, ``tag`` and ``keep_later``, or ``partitions``, as
        :class:`~airflow_paimon.sensors.quiet.BucketsQuietSensor` takes them
    :param until: the deadline, in seconds since the epoch
    :param paimon_conn_id: connection of type ``paimon``
    :param poke_interval: seconds between two polls
    """

    own = ("until",)

    def __init__(self, *, until: float, **waits: Any) -> None:
        super().__init__(**waits)
        self.until = until

    @property
    def label(self) -> str:
        """See ``SensorWait.label``."""
        return str(self.condition["table"])

    def poll(self, hook: PaimonHook) -> tuple[dict[str, Any] | None, Sequence[str]]:
        """See ``SensorWait.poll``."""
        found = open_writers(hook, **self.condition)
        is_over = found["effect"] != "refused" or time.time() >= self.until
        return found if is_over else None, [found["note"]] if found["note"] else []
