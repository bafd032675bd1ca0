"""What the deferred sensor of quiet buckets waits with."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from airflow_paimon.hooks.paimon import PaimonHook
from airflow_paimon.triggers._waits import WaitingTrigger

__all__ = ["BucketsQuietTrigger"]


class BucketsQuietTrigger(WaitingTrigger):
    """
    Fires once when running jobs have closed some buckets, or at a deadline, with ``{"open_writers": {...}}``, or with
    ``{"error": {...}, "retryable"}``.

    Storage is read in a thread, so that the triggerer's loop never waits for it. A storage failure is looked at again
    at the next poke; any other error ends the wait.

    :param table: the table, ``db.table``
    :param branch: the branch whose changed buckets are meant; without one, those of ``partitions`` of main
    :param partitions: such as ``["dt=2025-01-01"]``; empty: all
    :param paimon_conn_id: connection of type ``paimon``
    :param until: the deadline, in seconds since the epoch
    :param poke_interval: seconds between two looks
    """

    awaited = "open_writers"

    def __init__(
        self,
        *,
        table: str,
        branch: str | None,
        partitions: Sequence[str],
        paimon_conn_id: str,
        until: float,
        poke_interval: float = 60.0,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow has no annotations here
        self.table = table
        self.branch = branch
        self.partitions = list(partitions)
        self.paimon_conn_id = paimon_conn_id
        self.until = until
        self.poke_interval = poke_interval

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments."""
        arguments = {
            "table": self.table,
            "branch": self.branch,
            "partitions": self.partitions,
            "paimon_conn_id": self.paimon_conn_id,
            "until": self.until,
            "poke_interval": self.poke_interval,
        }
        return f"{type(self).__module__}.{type(self).__qualname__}", arguments

    @property
    def label(self) -> str:
        """See ``WaitingTrigger.label``."""
        return self.table if self.branch is None else f"{self.table}, branch {self.branch}"

    def look(self, hook: PaimonHook) -> dict[str, Any] | None:
        """See ``WaitingTrigger.look``."""
        from airflow_paimon.core.publish.quiet import look_for_writers

        now = time.time()
        found = look_for_writers(hook.get_table(self.table), self.branch, self.partitions, int(now * 1000))
        return found if found["effect"] != "refused" or now >= self.until else None
