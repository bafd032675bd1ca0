"""Logs the progress of a Spark job, the number first: percent, rows, rate and time left of the step that is running.

Rows come from the metrics of Spark's plan, which are live inside a task as well: of two long tasks none is done for
minutes. They arrive with the heartbeats of executors, every 10 s.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_paimon.spark.jvm import has_jvm, status_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

INTERVAL_S = 10.0
_MADE, _MOVED, _TAKEN = "number of output rows", "shuffle records written", "records read"


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """``finished`` of the ``tasks`` of the running stages. ``rows``: read so far, of ``total``; None = unknown.

    ``step``: 1 while rows are read and computed, nobody knows how many; 2 once they are taken from a shuffle, to be
    written.
    """

    finished: int
    tasks: int
    step: int = 1
    rows: int = 0
    total: int | None = None


@contextmanager
def progress(spark: SparkSession, what: str, interval_s: float = INTERVAL_S) -> Iterator[None]:
    """Log the progress of the Spark jobs inside the block every ``interval_s`` seconds, and the total at the end."""
    started = time.monotonic()
    log.info("%s: started", what)
    done = threading.Event()
    watcher = None
    if has_jvm(spark):  # a Spark Connect client can't look into the cluster
        watch = _Watch(spark, what, started)
        watcher = threading.Thread(target=watch.run, args=(done, interval_s), name="progress", daemon=True)
        watcher.start()
    try:
        yield
    finally:  # the watcher ends first, so that the total is the last line
        done.set()
        if watcher is not None:
            watcher.join()
    log.info("%s: done in %.1f s", what, time.monotonic() - started)


class _Watch:
    """Looks at the running stages and the newest query of a session."""

    def __init__(self, spark: SparkSession, what: str, started: float) -> None:
        self._tracker = spark.sparkContext.statusTracker()
        self._queries = status_store(spark)
        self._earlier = self._newest()
        self._what = what
        self._started = started
        self._step = (1, started)

    def run(self, done: threading.Event, interval_s: float) -> None:
        while not done.wait(interval_s):
            try:
                found = self._count()
            except Exception as error:  # whatever Spark's status says, the work itself goes on
                log.debug("%s: no progress to show: %s", self._what, error)
                continue
            if found.tasks:
                now = time.monotonic()
                if found.step != self._step[0]:
                    self._step = (found.step, now)
                log.info("%s (%s)", describe(found, now - self._started, now - self._step[1]), self._what)

    def _count(self) -> Counted:
        ids = self._tracker.getActiveStageIds()
        stages = [s for i in ids if (s := self._tracker.getStageInfo(i)) is not None]
        finished, tasks = sum(s.numCompletedTasks for s in stages), sum(s.numTasks for s in stages)
        newest = self._newest()
        if newest is None or newest == self._earlier or not tasks:
            return Counted(finished=finished, tasks=tasks)
        made, moved, taken = self._metrics(newest)
        if taken:
            return Counted(finished=finished, tasks=tasks, step=2, rows=taken, total=moved or None)
        return Counted(finished=finished, tasks=tasks, rows=max(made, moved))

    def _newest(self) -> int | None:
        """Return the id of the newest query; one from before the block is none of ours."""
        known = self._queries.executionsList()
        return int(known.apply(known.size() - 1).executionId()) if known.size() else None

    def _metrics(self, query: int) -> tuple[int, int, int]:
        """Return the most rows that a part of the plan gave, and those that were written to and read from shuffles."""
        values = self._queries.executionMetrics(query)
        found = {_MADE: 0, _MOVED: 0, _TAKEN: 0}
        metrics = self._queries.execution(query).get().metrics().iterator()
        while metrics.hasNext():
            metric = metrics.next()
            name = str(metric.name())
            value = values.get(metric.accumulatorId()) if name in found else None
            if value is not None and value.isDefined():
                found[name] = max(found[name], _number(str(value.get())))
        return found[_MADE], found[_MOVED], found[_TAKEN]


def _number(text: str) -> int:
    """Read ``1,200,000`` as Spark shows a sum."""
    digits = re.sub(r"[^\d]", "", text.splitlines()[0]) if text else ""
    return int(digits) if digits else 0


def describe(found: Counted, elapsed_s: float, step_s: float) -> str:
    """Return ``42 % of step 1, 2,100 of 5,000 rows, 11 rows/s, about 264 s left; 0 of 2 tasks after 190 s``.

    ``elapsed_s``: since the work began; ``step_s``: since the step began, which the rate and the time left are of.
    """
    total = max(found.total or 0, found.rows) if found.total else 0
    part = max(found.rows / total if total else 0.0, found.finished / found.tasks)
    shown = min(int(part * 100), 99)  # a step that is done is not shown
    out = [f"{shown} % of step {found.step}"]
    if found.rows:
        out.append(f"{found.rows:,}{f' of {total:,}' if total else ''} rows")
        out.append(f"{found.rows / max(step_s, 0.001):,.0f} rows/s")
    if 0 < part < 1:
        out.append(f"about {step_s * (1 - part) / part:,.0f} s left")
    return f"{', '.join(out)}; {found.finished} of {found.tasks} tasks after {elapsed_s:,.0f} s"
