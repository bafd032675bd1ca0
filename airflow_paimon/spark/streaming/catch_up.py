"""Runs a query with ``Trigger.AvailableNow`` until nothing is new."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from airflow_paimon.core.errors import ConflictError

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger(__name__)


def catch_up(start: Callable[[], StreamingQuery], timeout_s: float = 3600) -> int:
    """Start a query again and again until a run of it makes no batch; returns the number of batches.

    ``start`` starts the query with ``trigger(availableNow=True)`` and always the same checkpoint location. Before 4.2
    Spark makes at most one batch of a Python source in such a run: one that was left unfinished, or, with
    ``maxFilesPerTrigger``, the next part. After a time-out, or when the query fails, the next call goes on where this
    one ended.

    Raises:
        ConflictError: it has not caught up within ``timeout_s`` seconds.
    """
    deadline = time.monotonic() + timeout_s
    batches = 0
    while True:
        query = start()
        try:
            done = query.awaitTermination(max(1, round(deadline - time.monotonic())))
        finally:
            query.stop()
        made = sum("addBatch" in progress["durationMs"] for progress in query.recentProgress)
        batches += made
        log.info("%d batches so far", batches)
        if done and not made:
            return batches
        if time.monotonic() >= deadline:
            raise ConflictError(
                f"The stream has not caught up within {timeout_s:g} s; it made {batches} batches. Run it again: it "
                "continues from its checkpoint"
            )
