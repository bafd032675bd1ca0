"""plan_correction beside the correction that it plans: what it costs.

Statements on a table with keys and on one without, in turns, in one warm session. The environment variable ``ROWS``
sets the number of rows.
"""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.execution import run_operation
from airflow_paimon.spark import write_table
from airflow_paimon.spark.jobs import run_spark_operation
from benchmarks.spark_read_write import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = int(os.environ.get("ROWS", "10000000"))
DAYS, TURNS = 10, 3
COLUMNS = [("dt", "STRING NOT NULL"), ("k", "BIGINT NOT NULL"), ("amount", "DOUBLE"), ("v", "STRING")]
DAY = "dt = '2026-11-13'"
STATEMENTS = {
    "UPDATE of a day": ("UPDATE branch SET amount = amount + 1 WHERE " + DAY, ()),
    "UPDATE of 1 % of a day": (f"UPDATE branch SET amount = amount + 1 WHERE {DAY} AND k % 100 = 3", ()),
    "SELECT of a day": (f"SELECT dt, k, amount + 1 AS amount, v FROM branch WHERE {DAY}", ("dt=2026-11-13",)),
    "UPDATE of all rows": ("UPDATE branch SET amount = amount + 1 WHERE k >= 0", ()),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Seconds of one plan and of the correction after it."""

    plan: float
    actual: float


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="airflow-paimon-bench-") as folder, session(Path(folder)) as spark:
        print(f"{ROWS:,} rows in {DAYS} days, Spark {spark.version}, {spark.sparkContext.master}")
        for keyed in (True, False):
            bench(spark, Path(folder), "with keys" if keyed else "without keys", keyed)


def bench(spark: SparkSession, folder: Path, what: str, keyed: bool) -> None:
    common = {"warehouse": f"{folder}/warehouse", "table": "d.keyed" if keyed else "d.plain"}
    keys: dict[str, Any] = {"primary_keys": ["dt", "k"]} if keyed else {}
    options = {"bucket": "4" if keyed else "-1"}
    create_table(common["warehouse"], common["table"], COLUMNS, partition_keys=["dt"], options=options, **keys)
    rows = spark.range(0, ROWS, 1, 8).selectExpr(
        f"concat('2026-11-1', id % {DAYS}) AS dt", "id AS k", "id / 7 AS amount", "concat('v', id % 100000) AS v"
    )
    write_table(rows, common["warehouse"], common["table"])
    run_operation(build_request("create_branch", {**common, "branch": "fix", "snapshot": 1}))
    turns: dict[str, list[Turn]] = {name: [] for name in STATEMENTS}
    for _ in range(TURNS):
        for name, (sql, partitions) in STATEMENTS.items():
            (folder / "fix.sql").write_text(sql)
            asked = {**common, "branch": "fix", "sql": str(folder / "fix.sql"), "partitions": partitions}
            turns[name].append(one_turn(spark, asked))
    for name, found in turns.items():
        plan, actual = min(t.plan for t in found), min(t.actual for t in found)
        print(f"table {what}, {name}: plan {plan:.3f} s, {plan / actual:.3f} of the correction's {actual:.2f} s")


def one_turn(spark: SparkSession, asked: dict[str, Any]) -> Turn:
    started = time.perf_counter()
    run_operation(build_request("plan_correction", asked))
    planned = time.perf_counter() - started
    started = time.perf_counter()
    run_spark_operation(spark, build_request("correct_branch", asked))
    return Turn(plan=planned, actual=time.perf_counter() - started)


if __name__ == "__main__":
    main()
