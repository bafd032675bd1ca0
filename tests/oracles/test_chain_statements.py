"""Paimon's Java engine reads, writes and compacts the branches of a chain table after our statements on them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_paimon.spark import sql
from tests.core.chain.setups import made
from tests.core.tables import run
from tests.data.chain.tables import seen
from tests.oracles.drivers import JavaOracle
from tests.oracles.processes import OracleError
from tests.oracles.test_chain_setup import NEW, row, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.oracle


def test_java_reads_and_writes_after_statements(spark: SparkSession, java_oracle: JavaOracle, tmp_path: Path) -> None:
    table = made(str(tmp_path), **NEW)
    java_oracle.write(tmp_path, "d.t", [row(k, 1, "a", "01") for k in range(1, 7)], branch="snapshot")
    kinds = {1: "+I", 2: "-D", 3: "+I", 7: "+I"}
    delta = [row(k, 2, "b", "02", _row_kind=kind) for k, kind in kinds.items()]
    java_oracle.write(tmp_path, "d.t", delta, branch="delta")

    def same() -> dict[int, str]:
        found = rows(java_oracle, tmp_path)
        assert sorted((tuple(r.values()) for r in found), key=repr) == seen(table)
        return {r["k"]: r["v"] for r in found if r["dt"] == "20250102"}

    def change(text: str) -> dict[str, Any]:
        return dict(sql(spark, str(tmp_path), text)["details"])

    assert same() == {1: "b", 3: "b", 4: "a", 5: "a", 6: "a", 7: "b"}
    change("UPDATE d.`t$branch_delta` SET v = 'B' WHERE dt = '20250102' AND k IN (1, 2)")
    change("DELETE FROM d.`t$branch_delta` WHERE dt = '20250102' AND k = 3")
    assert same() == {1: "B", 4: "a", 5: "a", 6: "a", 7: "b"}
    change(
        "MERGE INTO d.`t$branch_delta` t USING (SELECT explode(array(2, 4, 9)) AS k) f "
        "ON t.k = f.k AND t.dt = '20250102' "
        "WHEN NOT MATCHED THEN INSERT (k, s, v, dt) VALUES (f.k, 3, 'new', '20250102')"
    )
    assert same() == {1: "B", 2: "new", 4: "new", 5: "a", 6: "a", 7: "b", 9: "new"}
    change("UPDATE d.`t$branch_snapshot` SET v = 'A' WHERE k >= 5")
    change("DELETE FROM d.`t$branch_snapshot` WHERE k = 6")
    assert same() == {1: "B", 2: "new", 4: "new", 5: "A", 7: "b", 9: "new"}
    java_oracle.write(tmp_path, "d.t", [row(5, 4, "late", "02"), row(2, 4, "again", "02")], branch="delta")
    assert same() == {1: "B", 2: "again", 4: "new", 5: "late", 7: "b", 9: "new"}, "its rows are newer than ours"
    java_oracle.do("compact", tmp_path, "d.t", "delta", full=True)
    assert same() == {1: "B", 2: "again", 4: "new", 5: "late", 7: "b", 9: "new"}


def test_java_reads_a_branch_of_the_delta_and_what_is_published(
    spark: SparkSession, java_oracle: JavaOracle, tmp_path: Path
) -> None:
    table = made(str(tmp_path), **NEW)
    java_oracle.write(tmp_path, "d.t", [row(k, 1, "a", "01") for k in range(1, 5)], branch="snapshot")
    kinds = {1: "+I", 2: "-D", 3: "+I"}
    java_oracle.write(
        tmp_path, "d.t", [row(k, 2, "b", "02", _row_kind=kind) for k, kind in kinds.items()], branch="delta"
    )
    run(table, "create_branch", branch="fix", from_branch="delta", snapshot=1)
    assert [r["k"] for r in rows(java_oracle, tmp_path, "fix")] == [1, 3], "as it is stored, not as a chain"
    sql(spark, str(tmp_path), "UPDATE d.`t$branch_fix` SET v = 'B' WHERE k = 1")
    sql(spark, str(tmp_path), "DELETE FROM d.`t$branch_fix` WHERE k = 3")
    assert [(r["k"], r["v"]) for r in rows(java_oracle, tmp_path, "fix")] == [(1, "B")]
    with pytest.raises(OracleError):  # its compaction would drop the deletes that hide rows of the day before
        java_oracle.write(tmp_path, "d.t", [row(9, 2, "x", "02")], branch="fix")
    assert [(r["k"], r["v"]) for r in rows(java_oracle, tmp_path, "fix")] == [(1, "B")]
    run(table, "merge_branch", branch="fix")
    found = rows(java_oracle, tmp_path)
    assert sorted((tuple(r.values()) for r in found), key=repr) == seen(table)
    assert {r["k"]: r["v"] for r in found if r["dt"] == "20250102"} == {1: "B", 4: "a"}
    run(table, "delete_branch", branch="fix")
    java_oracle.write(tmp_path, "d.t", [row(1, 3, "later", "02")], branch="delta")
    assert {r["k"]: r["v"] for r in rows(java_oracle, tmp_path) if r["dt"] == "20250102"} == {1: "later", 4: "a"}
