"""Rules on a branch beside the correction that they guard: an UPDATE of one day in ten of a primary-key table.

One warm session. The environment variable ``ROWS`` sets the number of rows.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.execution import run_operation
from airflow_paimon.spark import write_table
from airflow_paimon.spark.jobs import run_spark_operation
from benchmarks.spark_read_write import in_turns, report, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = int(os.environ.get("ROWS", "10000000"))
DAYS, RUNS = 10, 3
RULES: dict[str, list[dict[str, Any]]] = {
    "row_limits": [{"row_limits": {"deleted": 0, "changed": "100 %"}}],
    "not_null": [{"not_null": ["amount", "v"]}],
    "SELECT on diff": [{"sql": "SELECT * FROM diff WHERE abs(amount - _before.amount) > 1e9"}],
    "unique keys": [{"unique": ["dt", "k"]}],
    "drift of a sum": [{"drift": {"measure": "sum", "column": "amount", "most": "1000 %"}}],
}


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="airflow-paimon-bench-") as folder, session(Path(folder)) as spark:
        bench(spark, Path(folder))


def bench(spark: SparkSession, folder: Path) -> None:
    common = {"warehouse": f"{folder}/warehouse", "table": "d.t"}
    columns = [("dt", "STRING NOT NULL"), ("k", "BIGINT NOT NULL"), ("amount", "DOUBLE"), ("v", "STRING")]
    create_table(
        common["warehouse"], "d.t", columns, partition_keys=["dt"], primary_keys=["dt", "k"], options={"bucket": "4"}
    )
    rows = spark.range(0, ROWS, 1, 8).selectExpr(
        f"concat('2026-11-1', id % {DAYS}) AS dt", "id AS k", "id / 7 AS amount", "concat('v', id % 100000) AS v"
    )
    write_table(rows, common["warehouse"], "d.t")
    run_operation(build_request("create_branch", {**common, "branch": "fix", "snapshot": 1}))
    (folder / "fix.sql").write_text("UPDATE branch SET amount = amount + 1 WHERE dt = '2026-11-13'")

    def correct() -> None:
        asked = {**common, "branch": "fix", "sql": str(folder / "fix.sql")}
        run_spark_operation(spark, build_request("correct_branch", asked))

    def check(rules: list[dict[str, Any]]) -> None:
        (folder / "rules.json").write_text(json.dumps(rules))
        asked = {**common, "branch": "fix", "rules": str(folder / "rules.json")}
        run_spark_operation(spark, build_request("check_branch_data", asked))

    print(f"{ROWS:,} rows in {DAYS} days, of which one is corrected, Spark {spark.version}")
    work = {"correct_branch: UPDATE of a day": correct}
    work |= {f"check_branch_data: {name}": (lambda rules=rules: check(rules)) for name, rules in RULES.items()}
    every = [rule for rules in RULES.values() for rule in rules]
    report("work", in_turns({**work, "check_branch_data: all of these": lambda: check(every)}, RUNS))


if __name__ == "__main__":
    main()
