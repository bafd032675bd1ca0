"""Metrics as they leave the process: packets of a StatsD client, and what an OpenTelemetry exporter posts."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow as pa
import pytest
from airflow.sdk import DAG, Context

from airflow_paimon import metrics
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import open_context
from airflow_paimon.core.requests.requests import Request
from airflow_paimon.data.arrow_write import write_arrow
from airflow_paimon.execution import perform, run_here, run_operation
from airflow_paimon.hooks.paimon import PaimonHook
from airflow_paimon.operators.branch import DeleteTagOperator
from airflow_paimon.operators.maintenance import CompactOperator, TableHealthOperator
from airflow_paimon.operators.pipeline import UndoTablesOperator
from tests.airflow.conftest import RunDag
from tests.core.tables import append, make_table, rewrite, run
from tests.stores import RivalledStore

pytestmark = pytest.mark.airflow

Packets = Callable[[], dict[str, str]]


def begin() -> None:
    """Start Airflow's metrics anew, as a task's process does."""
    from airflow.sdk.observability import stats
    from airflow.sdk.observability.metrics import stats_utils

    stats.initialize(factory=stats_utils.get_stats_factory(), export_legacy_names=True)


@pytest.fixture
def packets(monkeypatch: pytest.MonkeyPatch) -> Iterator[Packets]:
    """Listen as a StatsD does; gives what has come since, the values by their names."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as statsd:
        statsd.bind(("127.0.0.1", 0))
        statsd.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        statsd.settimeout(0.2)
        monkeypatch.setenv("AIRFLOW__METRICS__STATSD_ON", "True")
        monkeypatch.setenv("AIRFLOW__METRICS__STATSD_HOST", "127.0.0.1")
        monkeypatch.setenv("AIRFLOW__METRICS__STATSD_PORT", str(statsd.getsockname()[1]))
        begin()

        def received() -> dict[str, str]:
            found = {}
            try:
                while True:
                    name, _, value = statsd.recv(4096).decode().partition(":")
                    if name.startswith("airflow.paimon."):
                        found[name] = value
            except TimeoutError:
                return found

        yield received
        monkeypatch.undo()
        begin()


@pytest.fixture
def small_files(warehouse: Path) -> Path:
    table = make_table(warehouse, "d.t", primary=False)
    for _ in range(10):
        append(table, "a")
    return warehouse


def test_a_task_sends_what_it_did_and_how_the_table_fares(
    small_files: Path, packets: Packets, run_dag: RunDag, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__METRICS__STATSD_INFLUXDB_ENABLED", "True")
    with DAG("test_metrics", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
        TableHealthOperator(task_id="health", table="d.t")
        DeleteTagOperator(task_id="fails", table="d.t", tag="none")
    run_dag(dag)
    found = packets()
    of_table = ",connection=paimon_default,table=d.t"
    health = {
        name.removeprefix("airflow.paimon.").removesuffix(of_table): value
        for name, value in found.items()
        if ".health." in name
    }
    assert health.keys() == metrics.GAUGES.keys()
    assert (health["health.score"], health["health.files"], health["health.unreadable"]) == ("76|g", "10|g", "0|g")
    assert (health["health.bytes"], health["health.waiting_rows"]) == ("110|g", "10|g")
    assert found[f"airflow.paimon.operation.success{of_table},operation=table_health"] == "1|c"
    assert found[f"airflow.paimon.operation.duration{of_table},operation=table_health"].endswith("|ms")
    assert found[f"airflow.paimon.operation.failure{of_table},operation=delete_tag,kind=not-found"] == "1|c"
    assert not [name for name in found if ".changed" in name or ".retry" in name]
    assert {name.partition(",")[0].removeprefix("airflow.") for name in found} <= metrics.names().keys()


def test_tables_that_were_done_before_one_failed_are_counted(
    warehouse: Path, packets: Packets, run_dag: RunDag
) -> None:
    for name in ("d.t", "d.u"):
        table = make_table(warehouse, name)
        append(table, "1")
        append(table, "2")
    with DAG("undo_several", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
        UndoTablesOperator(
            task_id="t", tables=[{"table": "d.t", "snapshot": 1}, {"table": "d.u", "snapshot": 77}], retries=0
        )
    assert run_dag(dag).state == "failed"
    found = packets()
    assert found["airflow.paimon.operation.changed.paimon_default.d__t.rollback_to"] == "1|c"
    assert "airflow.paimon.operation.success.paimon_default.d__u.rollback_to" not in found


def test_the_health_of_several_tables_has_the_gauges_of_each(small_files: Path, packets: Packets) -> None:
    append(make_table(small_files, "d.u"), "a")
    asked = build_request("table_health", {"warehouse": str(small_files), "table": "*"})
    metrics.send_success("lake", run_operation(asked).to_json(), try_number=1)
    found = packets()
    assert [found[f"airflow.paimon.health.score.lake.d__{t}"] for t in "tu"] == ["76|g", "100|g"]


class CompactsHere(CompactOperator):
    """Does without Spark, which a job on several tables would start."""

    def _submit(self, hook: PaimonHook, request: Request, context: Context) -> dict[str, Any]:
        return run_here(request).to_json()


def test_when_one_of_several_tables_fails_those_that_are_done_are_counted(
    warehouse: Path, packets: Packets, run_dag: RunDag
) -> None:
    for name in ("d.t", "d.u"):
        table = make_table(warehouse, name, primary=False)
        for k in range(2):
            write_arrow(table, pa.table({"k": pa.array([k], pa.int64()), "v": ["a"], "dt": ["1"]}))
    for path in table.store.walk("dt=1"):
        table.store.delete(path)
    with DAG("compacts", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
        CompactsHere(task_id="compact", table="d.*", min_files=2)
    done = run_dag(dag)
    assert done.tasks == {"compact": ("failed", 1)}
    counted = {name.removeprefix("airflow.paimon.operation."): v for name, v in packets().items()}
    assert [name for name in counted if "duration" not in name] == [
        "success.paimon_default.d__t.compact",
        "changed.paimon_default.d__t.compact",
        "failure.paimon_default.d__u.compact.corrupt",
    ]


def test_without_tags_the_name_says_it_all(packets: Packets) -> None:
    metrics.send_failure("lake", "sales.größe,x=1", "merge_branch", "conflict")
    assert packets() == {"airflow.paimon.operation.failure.lake.sales__gr__e_x_1.merge_branch.conflict": "1|c"}
    metrics.send_health("lake", "d.t", {"score": None})
    assert packets() == {"airflow.paimon.health.unreadable.lake.d__t": "1|g"}


def test_commits_that_other_writers_were_faster_than_are_counted(warehouse: Path, packets: Packets) -> None:
    table = make_table(warehouse)
    append(table, "a")
    run(table, "create_branch", branch="fix", snapshot=1)
    rewrite(table.branch("fix"), "a")
    values = {"warehouse": str(warehouse), "table": "d.t", "branch": "fix"}
    request = build_request("merge_branch", values)
    context = open_context(request)
    busy = RivalledStore(context.table.store, lambda number: append(table, "c", seq=number), 2)
    result = perform(replace(context, table=replace(context.table, store=busy)), request).to_json()
    assert result["details"]["commit_retries"] == busy.lost == 2
    metrics.send_success("lake", result, try_number=2)
    found = packets()
    assert {name: value for name, value in found.items() if "duration" not in name} == {
        f"airflow.paimon.operation.{name}.lake.d__t.merge_branch": value
        for name, value in {"success": "1|c", "changed": "1|c", "task_retry": "1|c", "commit_retry": "2|c"}.items()
    }
    assert "commit_retries" not in run(table, "table_health").details


def test_a_backend_that_fails_stops_no_task(packets: Packets, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__METRICS__STATSD_PORT", "no port")
    begin()
    metrics.send_failure("lake", "d.t", "compact", "conflict")
    assert packets() == {}


class _Collector(BaseHTTPRequestHandler):
    """Keeps what is posted to it."""

    bodies: list[bytes]

    def do_POST(self) -> None:
        self.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


_PROCESS = """
from airflow.sdk.observability import stats
from airflow.sdk.observability.metrics import stats_utils
from airflow_paimon import metrics

stats.initialize(factory=stats_utils.get_stats_factory(), export_legacy_names=True)
metrics.send_failure("lake", "d.t", "compact", "conflict")
metrics.send_health("lake", "d.t", {"score": None})
"""
"""What the process of a task does; its end sends what the exporter still holds."""


def test_an_opentelemetry_collector_gets_the_same_with_tags() -> None:
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    handler = type("Handler", (_Collector,), {"bodies": []})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        settings = {
            "AIRFLOW__METRICS__OTEL_ON": "True",
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        }
        done = subprocess.run(
            [sys.executable, "-c", _PROCESS], env={**os.environ, **settings}, timeout=500, check=False
        )
        server.shutdown()
        thread.join()
    assert done.returncode == 0
    found = {}
    for body in handler.bodies:
        sent = ExportMetricsServiceRequest.FromString(body)
        for metric in (m for r in sent.resource_metrics for s in r.scope_metrics for m in s.metrics):
            for point in (*metric.sum.data_points, *metric.gauge.data_points):
                tags = {a.key: a.value.string_value for a in point.attributes}
                found[metric.name] = (tags, point.as_int or point.as_double)
    tags = {"connection": "lake", "table": "d.t"}
    assert found["airflow.paimon.operation.failure"] == ({**tags, "operation": "compact", "kind": "conflict"}, 1)
    assert found["airflow.paimon.health.unreadable"] == (tags, 1)


def test_a_result_that_lacks_a_figure_stops_no_task(packets: Packets) -> None:
    result = {"table": "d.t", "operation": "replay_branch", "changed": False, "details": {}}
    metrics.send_success("lake", result, try_number=1)
    assert packets() == {"airflow.paimon.operation.success.lake.d__t.replay_branch": "1|c"}
    metrics.send_success("lake", {"table": "d.t"}, try_number=1)
    metrics.send_health("lake", "d.t", {"score": 5})
    assert set(packets()) == {"airflow.paimon.health.score.lake.d__t", "airflow.paimon.health.unreadable.lake.d__t"}
