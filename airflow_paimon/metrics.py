"""Metrics through Airflow's own StatsD or OpenTelemetry: what operations did to which table, and how tables fare.

Sent by the process of the task. Names are given below, without Airflow's prefix (``[metrics] statsd_prefix``,
``otel_prefix``: ``airflow``). Where the backend has tags (OpenTelemetry, Datadog, StatsD with
``statsd_influxdb_enabled``) the tags say which connection, table and operation; a plain StatsD gets their values at the
end of the name, with ``__`` for dots: ``paimon.health.score.paimon_default.sales__orders``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from airflow_paimon._compat import Stats, conf

log = logging.getLogger(__name__)

PREFIX = "paimon."
TABLE_TAGS = ("connection", "table")
OPERATION_TAGS = (*TABLE_TAGS, "operation")
_OF = Callable[[Mapping[str, Any]], Any]

GAUGES: Mapping[str, _OF] = {
    "health.score": lambda d: d["score"],
    "health.unreadable": lambda d: int(d["score"] is None),
    "health.cost_bytes": lambda d: d["cost_bytes"],
    "health.files": lambda d: d["files"]["files"],
    "health.bytes": lambda d: d["files"]["bytes"],
    "health.small_files": lambda d: d["files"]["small_files"],
    "health.sorted_runs": lambda d: d["files"]["most_runs"],
    "health.waiting_rows": lambda d: d["files"]["waiting_rows"],
    "health.hidden_rows": lambda d: d["files"]["hidden_rows"],
    "health.deleted_rows": lambda d: d["deletions"]["rows"],
    "health.snapshots": lambda d: d["retained"]["snapshots"],
    "health.due_snapshots": lambda d: d["retained"]["due_snapshots"],
    "health.tags": lambda d: d["retained"]["tags"],
    "health.branches": lambda d: d["retained"]["branches"],
    "health.replaced_bytes": lambda d: d["retained"]["replaced_bytes"],
    "health.oldest_state_ms": lambda d: (d["retained"]["oldest"] or {"since_ms": 0})["since_ms"],
    "health.committed_ms": lambda d: d["committed_ms"] or 0,
    "health.manifests": lambda d: d["manifests"]["count"],
    "health.stale_partitions": lambda d: (d["chain"] or {"stale": 0})["stale"],
}
"""Gauges of ``table_health``; tags: connection, table."""
COUNTERS = tuple(f"operation.{name}" for name in ("success", "changed", "failure", "task_retry", "commit_retry"))
"""Counters of all operators; tags: connection, table, operation. A failure is that of one attempt of a task."""
TIMINGS = ("operation.duration",)
"""Timings of all operators, in milliseconds; tags: connection, table, operation."""


@contextmanager
def _only_logged() -> Iterator[None]:
    """Log what goes wrong: its commits are in the table, so a task doesn't fail because nobody takes its figures."""
    try:
        yield
    except Exception as error:  # whatever the backend's client raises
        log.warning("Metrics were not sent: %s: %s", type(error).__name__, error)


def names() -> dict[str, tuple[str, ...]]:
    """Return all names of metrics, each with its tags."""
    found = {PREFIX + name: TABLE_TAGS for name in GAUGES} | {PREFIX + n: OPERATION_TAGS for n in (*COUNTERS, *TIMINGS)}
    return found | {f"{PREFIX}operation.failure": (*OPERATION_TAGS, "kind")}


@_only_logged()
def send_health(paimon_conn_id: str, table: str, details: Mapping[str, Any]) -> None:
    """Send the gauges of a table. ``details``: of ``table_health``; with ``score`` None nothing else is known."""
    tags = {"connection": paimon_conn_id, "table": table}
    for name, of in GAUGES.items():
        if details["score"] is not None or name == "health.unreadable":
            _send("gauge", name, tags, of(details))


@_only_logged()
def send_success(paimon_conn_id: str, result: Mapping[str, Any], *, try_number: int) -> None:
    """Count an operation that succeeded, and send what it measured.

    ``result``: the operation's; those on several tables have no duration.
    """
    tags = {"connection": paimon_conn_id, "table": result["table"], "operation": result["operation"]}
    if "duration_s" in result:
        _send("timing", "operation.duration", tags, result["duration_s"] * 1000)
    retries = result["details"].get("commit_retries", 0)
    for name, count in (
        ("success", 1),
        ("changed", int(result["changed"] and not result.get("dry_run"))),
        ("task_retry", int(try_number > 1)),
        ("commit_retry", retries),
    ):
        if count:
            _send("incr", f"operation.{name}", tags, count)
    if result["operation"] == "table_health":
        details = result["details"]
        for one in details.get("tables", [{"table": result["table"], **details}]):
            send_health(paimon_conn_id, one["table"], one)


@_only_logged()
def send_failure(paimon_conn_id: str, table: str, operation: str, kind: str) -> None:
    """Count an operation that failed."""
    tags = {"connection": paimon_conn_id, "table": table, "operation": operation, "kind": kind}
    _send("incr", "operation.failure", tags, 1)


def _send(method: str, name: str, tags: Mapping[str, str], value: float) -> None:
    with_tags = ("otel_on", "statsd_datadog_enabled", "statsd_influxdb_enabled")
    if any(conf.getboolean("metrics", one, fallback=False) for one in with_tags):
        getattr(Stats, method)(PREFIX + name, value, tags=dict(tags))
    else:
        getattr(Stats, method)(".".join([PREFIX + name, *map(_segment, tags.values())]), value)


def _segment(value: str) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c in "_-") else "__" if c == "." else "_" for c in value)
