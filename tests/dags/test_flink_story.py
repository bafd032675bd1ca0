"""Two tables that Flink writes, corrected by one run of a DAG; jobs that read them correct what they made of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from airflow_paimon import open_table
from airflow_paimon.core.publish.undoable_publishes import undoable_publishes
from tests.airflow.conftest import set_connection
from tests.dags.conftest import answering, run_dag, states
from tests.flink_cluster import Flink
from tests.oracles.fixtures import flink

__all__ = ["flink"]

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.oracle,
    pytest.mark.slow,
    pytest.mark.thorough,
    pytest.mark.usefixtures("airflow_home", "warehouse"),
]

DAG, UNDO = "pipeline_correction", "pipeline_correction_undo"
ORDERS, REFUNDS = "story.orders", "story.refunds"
CENTS = "UPDATE branch SET amount = amount / 100 WHERE dt = 'd1'"
Row = tuple[str, str, int, int]
"""``o`` for an order or ``r`` for a refund, the day, the id, the amount."""
# Of day 1 the feed gave cents instead of euros.
FEED: list[Row] = [(kind, day, n, n * (100 if day == "d1" else 1)) for kind in "or" for day in ("d0", "d1") for n in
                   range(1, 501 if kind == "o" else 51)]  # fmt: skip


def corrected(feed: list[Row]) -> list[Row]:
    return [(kind, day, n, amount // 100 if day == "d1" else amount) for kind, day, n, amount in feed]


def copies_of(feed: list[Row]) -> list[tuple[str, int, int]]:
    return sorted(((day, n, amount) for kind, day, n, amount in feed if kind == "o"), key=repr)


def daily_of(feed: list[Row]) -> list[tuple[str, int]]:
    days = sorted({day for _, day, _, _ in feed})
    return [(d, sum(amount * (1 if kind == "o" else -1) for kind, day, _, amount in feed if day == d)) for d in days]


@contextmanager
def going_on(flink: Flink) -> Iterator[list[Row]]:
    """Let rows of a later day come without a pause, and give what came in the end."""
    came: list[Row] = []
    stop = threading.Event()

    def run() -> None:
        while not stop.wait(0.5):
            came.extend(some := [(kind, "d2", len(came) + n, n) for n in range(5) for kind in "or"])
            flink.feed("feed", some)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield came
    finally:
        stop.set()
        thread.join()


def start_jobs(flink: Flink) -> list[str]:
    flink.sql("CREATE DATABASE story")
    flink.sql("USE story")
    flink.source("feed", "kind STRING, dt STRING, id BIGINT, amount BIGINT")
    columns = "dt STRING, id BIGINT, amount BIGINT, PRIMARY KEY (dt, id) NOT ENFORCED"
    lookup = "'bucket'='1', 'changelog-producer'='lookup', 'continuous.discovery-interval'='100ms'"
    for name in ("orders", "refunds"):
        flink.sql(f"CREATE TABLE {name} ({columns}) PARTITIONED BY (dt) WITH ({lookup})")
    flink.sql(f"CREATE TABLE copies ({columns}) WITH ('bucket'='1')")
    flink.sql("CREATE TABLE daily (dt STRING, total BIGINT, PRIMARY KEY (dt) NOT ENFORCED) WITH ('bucket'='1')")
    quickly = {"execution.checkpointing.interval": "1s"}
    write = "INSERT INTO {} SELECT dt, id, amount FROM feed WHERE kind = '{}'"
    both = "SELECT dt, amount FROM orders UNION ALL SELECT dt, -amount FROM refunds"
    read = f"INSERT INTO daily SELECT dt, SUM(amount) FROM ({both}) GROUP BY dt"
    together = [
        (write.format("orders", "o"), write.format("refunds", "r")),
        ("INSERT INTO copies SELECT * FROM orders", read),
    ]
    return [flink.insert(f"EXECUTE STATEMENT SET BEGIN {'; '.join(some)}; END", quickly) for some in together]


def until_made(flink: Flink, feed: list[Row]) -> None:
    """Wait until both downstream tables are those of a feed."""
    flink._wait(lambda: flink.query("SELECT * FROM daily") == daily_of(feed), f"daily totals {daily_of(feed)}")
    flink._wait(lambda: flink.query("SELECT * FROM copies") == copies_of(feed), "copies")


def test_running_jobs_correct_what_they_made_of_two_tables_that_a_dag_corrects(
    flink: Flink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And undoes. Neither the writing job nor the two reading ones are stopped, restarted or replayed."""
    extra = {"warehouse": str(flink.warehouse), "local_execution": "all"}
    set_connection(monkeypatch, "paimon_default", "paimon", extra=extra)
    jobs = start_jobs(flink)
    flink.feed("feed", FEED)
    until_made(flink, FEED)
    tables = [open_table(str(flink.warehouse), name) for name in (ORDERS, REFUNDS)]
    with going_on(flink) as came:
        for table in tables:
            flink.committed(table, table.latest_snapshot().commit_identifier + 3)  # type: ignore[union-attr]
        conf = {"tables": [{"table": table.name, "correct": CENTS} for table in tables], "reason": "cents, not euros"}
        with answering("Approve", DAG) as questions:
            run = run_dag(DAG, conf)
        assert run.state == "success", states(run)
        assert questions[0]["body"].count("get the net changes") == 2
    until_made(flink, [*corrected(FEED), *came])
    with going_on(flink) as more, answering("Approve", UNDO):
        undone = run_dag(UNDO, {"tables": [ORDERS, REFUNDS], "branch": run.xcom("check_params")[0]["branch"]})
    assert undone.state == "success", states(undone)
    until_made(flink, [*FEED, *came, *(row for row in more if row not in came)])
    assert [[one.operation for one in undoable_publishes(table)] for table in tables] == [
        ["merge_branch", "rollback_to"]
    ] * 2
    assert not any(flink.restarts(job) for job in jobs)
    flink.cancel(*jobs)
