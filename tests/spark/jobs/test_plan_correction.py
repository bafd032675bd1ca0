"""What plan_correction foresees, beside what the correction then does."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.execution import run_operation
from airflow_paimon.spark.jobs import run_spark_operation
from tests.data.test_plan_correction import orders

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize(
    ("keyed", "sql", "partitions"),
    [
        (True, "UPDATE branch SET amount = amount + 1 WHERE dt = '2026-11-18'", ()),
        (False, "UPDATE branch SET amount = amount + 1 WHERE dt = '2026-11-18' AND id = 5", ()),
        (False, "DELETE FROM branch WHERE dt < '2026-11-19'", ()),
        (True, "SELECT dt, id, amount + 1 AS amount FROM branch WHERE dt = '2026-11-19'", ("dt=2026-11-19",)),
    ],
)
def test_it_foresees_what_is_done(
    spark: SparkSession, tmp_path: Path, keyed: bool, sql: str, partitions: tuple[str, ...]
) -> None:
    table = orders(str(tmp_path / "wh"), keyed=keyed)
    (tmp_path / "fix.sql").write_text(sql)
    common = {"warehouse": str(tmp_path / "wh"), "table": table.name, "branch": "fix"}
    asked = {**common, "sql": str(tmp_path / "fix.sql"), "partitions": partitions}
    plan = run_operation(build_request("plan_correction", asked)).details
    run_operation(build_request("create_branch", {**common, "snapshot": 3}))
    before = {f for f in table.store.walk("") if f.endswith(".parquet")}
    done = run_spark_operation(spark, build_request("correct_branch", asked))
    changed = done.details.get("changed_partitions") or sorted(done.details["partitions"])
    assert done.changed and list(plan["replaces"]["partitions"]) == changed
    new = [f for f in table.store.walk("") if f.endswith(".parquet") and f not in before]
    written = sum(i.size for i in table.store.files("") if i.name in new)
    assert written <= plan["writes"]["bytes"] * 1.2 and bool(written) == bool(plan["writes"]["bytes"])
