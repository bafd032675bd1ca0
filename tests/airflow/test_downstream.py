"""Who is downstream by a backend of OpenLineage: a small server answers as Marquez documents it."""

import json
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from airflow.sdk import DAG

from airflow_paimon import settings
from airflow_paimon.lineage import downstream
from airflow_paimon.lineage.datasets import dataset_of, table_of
from airflow_paimon.lineage.downstream import ask_backend, ask_downstream
from airflow_paimon.lineage.downstream_plan import downstream_of, pipeline_form
from airflow_paimon.operators.branch import PlanCorrectionOperator
from airflow_paimon.runbooks.pipeline_plan import parse_tables
from airflow_paimon.shown.correction_text import plan_lines
from tests.airflow.conftest import RunDag, set_connection
from tests.core.tables import append, make_table

pytestmark = pytest.mark.airflow
S3 = "s3a://lake/warehouse/"


def node(kind: str, namespace: str, name: str, *after: str) -> dict[str, Any]:
    """A node with its edges outwards; Marquez gives those inwards as well."""
    own = f"{kind}:{namespace}:{name}"
    return {
        "id": own, "type": kind.upper(),
        "data": {"id": {"namespace": namespace, "name": name}, "namespace": namespace, "name": name},
        "inEdges": [], "outEdges": [{"origin": own, "destination": one} for one in after],
    }  # fmt: skip


def graph(warehouse: str) -> dict[str, Any]:
    """sales.orders -> daily -> sales.daily -> export -> a table elsewhere; a job reads sales.orders and writes nothing,
    and a correction writes a branch of it.
    """
    place, orders = dataset_of(warehouse, "d.t")
    _, branch = dataset_of(warehouse, "d.t", "fix")
    _, daily = dataset_of(warehouse, "d.daily")
    return {"graph": [
        node("dataset", "kafka://k", "orders", "job:spark:load"),
        node("job", "spark", "load", f"dataset:{place}:{orders}"),
        node("dataset", place, orders, "job:airflow:daily.make", "job:bi:dashboard", "job:airflow:fix.correct"),
        node("job", "airflow", "daily.make", f"dataset:{place}:{daily}"),
        node("job", "airflow", "fix.correct", f"dataset:{place}:{branch}"),
        node("job", "bi", "dashboard"),
        node("dataset", place, daily, "job:airflow:export"),
        node("job", "airflow", "export", "dataset:postgres://db:public.daily"),
        node("dataset", "postgres://db", "public.daily", f"dataset:{place}:{orders}"),
    ]}  # fmt: skip


class Marquez:
    """``asked``: node ids and tokens. ``answer``: the body and the status, ``wait``: seconds before it."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str | None]] = []
        self.answer: tuple[int, bytes] = (200, b"{}")
        self.wait = 0.0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                at = urlsplit(self.path)
                assert at.path == "/api/v1/lineage" and parse_qs(at.query)["depth"]
                outer.asked.append((parse_qs(at.query)["nodeId"][0], self.headers.get("Authorization")))
                time.sleep(outer.wait)
                status, body = outer.answer
                self.send_response(status)
                if status == 302:
                    self.send_header("Location", "http://localhost:1/elsewhere")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            def handle_error(self, *args: Any) -> None:
                """Of a client that has heard enough."""

        self.server = Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def connection(self, **changes: Any) -> Any:
        return SimpleNamespace(
            **{"host": "127.0.0.1", "port": self.server.server_port, "schema": "http", "password": "s3cret", **changes}
        )


@pytest.fixture
def marquez(monkeypatch: pytest.MonkeyPatch) -> Iterator[Marquez]:
    monkeypatch.setattr(downstream, "PATIENCE_S", 120.0)  # on a busy machine as well
    found = Marquez()
    yield found
    found.server.shutdown()
    found.server.server_close()


@pytest.mark.parametrize(
    ("warehouse", "dataset"),
    [
        (S3, ("s3://lake", "warehouse/d.db/t")),
        ("/data/wh", ("file", "/data/wh/d.db/t")),
        ("hdfs://nn:9000/wh", ("hdfs://nn:9000", "wh/d.db/t")),
        ("s3://lake", ("s3://lake", "d.db/t")),
    ],
)
def test_names_of_datasets_there_and_back(warehouse: str, dataset: tuple[str, str]) -> None:
    assert dataset_of(warehouse, "d.t") == dataset
    assert table_of(warehouse, *dataset) == "d.t"
    assert table_of(warehouse, *dataset_of(warehouse, "d.t", "fix")) == "d.t"
    assert table_of(warehouse, dataset[0], f"{dataset[1]}/snapshot") is None
    assert table_of(warehouse, "postgres://db", dataset[1]) is None
    assert table_of(f"{warehouse}/other", *dataset) is None


def test_what_is_made_from_a_table_directly_and_further_on(marquez: Marquez) -> None:
    marquez.answer = (200, json.dumps(graph(S3)).encode())
    found = ask_downstream(marquez.connection(), S3, "d.t")
    assert found["problem"] is None and found["asked"] == f"http://127.0.0.1:{marquez.server.server_port}"
    assert [(one["table"], one["name"], one["by"], one["steps"]) for one in found["datasets"]] == [
        ("d.daily", "s3://lake/warehouse/d.db/daily", "airflow/daily.make", 1),
        (None, "postgres://db/public.daily", "airflow/export", 2),
    ]
    assert found["jobs"] == ["bi/dashboard"]
    assert marquez.asked == [("dataset:s3://lake:warehouse/d.db/t", "Bearer s3cret")]


@pytest.mark.parametrize(
    ("status", "body", "problem"),
    [
        (404, b"", None),
        (401, b"s3cret", "it answered 401"),
        (302, b"", "it answered 302"),
        (200, b"<html>", "its answer is not JSON"),
        (200, b"[" * 100_000, ""),
        (200, b"{}", "the answer is not a graph of lineage"),
        (200, b'{"graph": [{"id": "dataset:x", "outEdges": [7]}]}', ""),
        (200, b"9" * (9 << 20), "its answer has more than 8 MiB"),
    ],
)
def test_whatever_a_backend_answers_is_a_sentence(
    marquez: Marquez, status: int, body: bytes, problem: str | None
) -> None:
    marquez.answer = (status, body)
    found = ask_downstream(marquez.connection(), S3, "d.t")
    assert found["problem"] == problem or (problem == "" and found["problem"])
    assert found["datasets"] == [] and "s3cret" not in json.dumps(found)


def test_a_backend_that_does_not_answer(marquez: Marquez, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downstream, "PATIENCE_S", 0.05)
    marquez.wait = 0.5
    assert ask_downstream(marquez.connection(), S3, "d.t")["problem"] == "it did not answer within 0.05 s"
    gone = marquez.connection(host="http://user:s3cret@localhost:1", port=None)
    found = ask_downstream(gone, S3, "d.t")
    assert "refused" in found["problem"].lower() and found["asked"] == "http://localhost:1"
    assert "must begin with http" in ask_downstream(marquez.connection(host="file:///etc"), S3, "d.t")["problem"]


def test_a_cycle_ends_and_a_large_graph_is_bounded() -> None:
    start = node("dataset", "n", "t", *(f"job:n:j{i}" for i in range(500)))
    jobs = [node("job", "n", f"j{i}", "dataset:n:t", f"dataset:n:d{i}") for i in range(500)]
    found = downstream_of({"graph": [start, *jobs]}, "n", "t", lambda *_: None)
    assert len(found["datasets"]) + len(found["jobs"]) <= 100


def test_the_form_of_a_pipeline_can_be_read_back() -> None:
    form = {"sql": "UPDATE branch SET v = 1 WHERE k = 1", "mode": "overwrite", "partitions": [], "views": []}
    made = pipeline_form("d.t", form, ["d.daily", "d.weekly"], "lake")
    first, *replays = parse_tables(made["tables"])
    assert first.correct == form["sql"] and made["paimon_conn_id"] == "lake"
    assert [one.table for one in replays] == ["d.daily", "d.weekly"]
    assert all(one.sources == {"t": "d.t"} for one in replays)
    upsert = {"sql": "SELECT * FROM branch", "mode": "upsert", "partitions": ["dt=1"], "views": ["r=d.r"]}
    (one,) = parse_tables(pipeline_form("d.t", upsert, [], None)["tables"])
    assert (one.mode, one.partitions, one.views) == ("upsert", ("dt=1",), ("r=d.r",))


def test_a_task_names_who_is_downstream_and_how_to_correct_all(
    marquez: Marquez, warehouse: Path, run_dag: RunDag, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(make_table(warehouse, "d.t"), "1")
    server = {"host": "127.0.0.1", "port": marquez.server.server_port, "password": "s3cret"}
    set_connection(monkeypatch, "marquez", "http", **server)
    marquez.answer = (200, json.dumps(graph(str(warehouse))).encode())

    def details(lineage_conn_id: str) -> dict[str, Any]:
        monkeypatch.setattr(settings, "LINEAGE_CONN_ID", lineage_conn_id)
        with DAG("test_downstream", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
            PlanCorrectionOperator(task_id="plan", table="d.t", sql="UPDATE branch SET v = 1 WHERE k = 1")
        found: dict[str, Any] = run_dag(dag).xcom("plan")["details"]
        return found

    found = details("marquez")
    lines = plan_lines(found)
    assert "d.daily is made from this table, by airflow/daily.make (OpenLineage)" in lines
    assert "bi/dashboard reads this table (OpenLineage)" in lines
    assert [one["table"] for one in found["pipeline"]["tables"]] == ["d.t", "d.daily"]
    assert any(line.startswith('{"tables": [{"table": "d.t"') for line in lines)
    assert "/paimon/paimon_default/d/t?tab=plan&sql=UPDATE+branch" in lines[-1]
    assert marquez.asked[0][1] == "Bearer s3cret" and "s3cret" not in json.dumps(found)
    again = details("nobody")
    assert again["pipeline"] is None and "no Airflow connection 'nobody'" in again["lineage"]["problem"]
    assert details("")["lineage"] is None


def test_a_connection_that_can_not_be_read_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> Any:
        raise ValueError("its settings: s3cret")

    monkeypatch.setattr(settings, "LINEAGE_CONN_ID", "marquez")
    found = ask_backend(S3, "d.t", broken)
    assert found is not None and found["problem"] == "connection 'marquez' can't be used (ValueError)"
