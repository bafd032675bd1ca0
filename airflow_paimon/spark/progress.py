"""Logs the progress of a Spark job: tasks done, tasks in all, and an estimate of the time left."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark import StatusTracker
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

INTERVAL_S = 10.0


@contextmanager
def progress(spark: SparkSession, what: str, interval_s: float = INTERVAL_S) -> Iterator[None]:
    """Log the progress of the Spark jobs inside the block every ``interval_s`` seconds, and the total at the end."""
    started = time.monotonic()
    log.info("%s: started", what)
    done = threading.Event()
    watcher = None
    if hasattr(spark, "_jsparkSession"):  # a Spark Connect client can't look into the cluster
        tracker = spark.sparkContext.statusTracker()
        watcher = threading.Thread(
            target=_watch, args=(tracker, what, started, done, interval_s), name="progress", daemon=True
        )
        watcher.start()
    try:
        yield
    finally:  # the watcher ends first, so that the total is the last line
        done.set()
        if watcher is not None:
            watcher.join()
    log.info("%s: done in %.1f s", what, time.monotonic() - started)


def _watch(tracker: StatusTracker, what: str, started: float, done: threading.Event, interval_s: float) -> None:
    while not done.wait(interval_s):
        finished, total = _tasks(tracker)
        if total:
            log.info("%s: %s", what, describe(finished, total, time.monotonic() - started))


def _tasks(tracker: StatusTracker) -> tuple[int, int]:
    stages = [s for i in tracker.getActiveStageIds() if (s := tracker.getStageInfo(i)) is not None]
    return sum(s.numCompletedTasks for s in stages), sum(s.numTasks for s in stages)


def describe(finished: int, total: int, elapsed_s: float) -> str:
    """Return ``12 of 48 tasks after 30 s, about 90 s to go``; the estimate covers the running stages."""
    text = f"{finished} of {total} tasks after {elapsed_s:.0f} s"
    if not finished:
        return text
    return f"{text}, about {elapsed_s * (total - finished) / finished:.0f} s to go"
