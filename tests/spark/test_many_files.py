"""Reads of very many files in Spark, which are planned group by group: the rows of ``read_arrow``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airflow_paimon.core.errors import FormatError
from airflow_paimon.core.table.data_file_paths import data_file_path
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.data import read_arrow, write_arrow
from airflow_paimon.data.read_groups import GroupSizes
from airflow_paimon.data.system_tables import AUDIT_LOG
from airflow_paimon.spark import read, read_table, sql
from airflow_paimon.spark.failures import task_errors
from airflow_paimon.spark.statements import tables
from airflow_paimon.spark.statements.pruning import needed_of
from tests.data.chain.tables import DAYS, chain_table, seen
from tests.data.used_tables import branch_of_columns, make, make_anew, used
from tests.randomness import chance

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (read, tables):
        monkeypatch.setattr(module, "IN_SPARK", GroupSizes(entries=0, files=4))
    monkeypatch.setattr(tables, "FEW_FILES", -1)


@pytest.mark.thorough
def test_the_same_rows(spark: SparkSession, tmp_path: Path) -> None:
    for kind in ("keyed", "deletion vectors", "data evolution", "fallback branch"):
        warehouse = str(tmp_path / kind.replace(" ", "_"))
        table = used(kind, chance(f"spark {kind}"), warehouse)
        expected = read_arrow(table)
        found = read_table(spark, warehouse, "d.t", columns=["dt", "v"], where="v > 40 AND k >= 0")
        high = [(r["dt"], r["v"]) for r in expected.to_pylist() if r["v"] > 40]
        assert sorted(map(tuple, found.collect())) == sorted(high)
        audit = read_table(spark, warehouse, f"d.t${AUDIT_LOG}", columns=["rowkind", "v"]).collect()
        assert len(audit) >= expected.num_rows
    [row] = sql(spark, warehouse, "SELECT count(*), sum(v) FROM d.t WHERE v > 40").collect()
    assert tuple(row) == (len(high), sum(v for _, v in high) or None)


def test_chains(spark: SparkSession, tmp_path: Path) -> None:
    rows = [(k, 3, "new") if k % 5 else (k, 3, "", "-D") for k in range(0, 40, 3)]
    table = chain_table(tmp_path, [*DAYS, ("delta", "20250811", rows), ("delta", "20250815", rows)], buckets=3)
    warehouse = str(tmp_path)
    hybrid = {"gap_policy": "carry_forward", "chain_read": "hybrid"}
    found = read_table(spark, warehouse, "d.t", **hybrid).collect()
    assert sorted(map(tuple, found), key=repr) == seen(table, **hybrid)
    where = "dt >= '20250814' AND k < 20"
    high = [(k, v) for k, _, v, day in seen(table) if day >= "20250814" and k < 20]
    found = read_table(spark, warehouse, "d.t", columns=["k", "v"], where=where).collect()
    assert sorted(map(tuple, found)) == sorted(high)
    found = sql(spark, warehouse, f"SELECT k, v FROM days WHERE {where}", views={"days": "d.t"}).collect()
    assert sorted(map(tuple, found)) == sorted(high)


def test_a_branch_that_is_made_anew_while_a_query_is_planned(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    branch = branch_of_columns(str(tmp_path))
    expected = sorted((r["k"], r["b"]) for r in read_arrow(branch).to_pylist() if r["b"] is not None)

    def needed(*given: Any) -> Any:
        make_anew(branch)
        return needed_of(*given)

    monkeypatch.setattr(tables, "needed_of", needed)
    frame = sql(spark, str(tmp_path), "SELECT k, b FROM d.`t$branch_b` WHERE b IS NOT NULL")
    assert sorted(map(tuple, frame.collect())) == expected != []


def test_a_file_that_is_gone(spark: SparkSession, tmp_path: Path) -> None:
    table = make("append", str(tmp_path))
    for k in range(12):
        write_arrow(table, pa.table({"dt": ["a"], "k": pa.array([k], pa.int32()), "v": pa.array([k], pa.int32())}))
    frame = read_table(spark, str(tmp_path), "d.t")
    assert frame.count() == read_arrow(table, where=pc.field("k") >= 0).num_rows == 12
    split = plan_scan(table).splits[0]
    table.store.delete(data_file_path(table.schema(), split.values, split.bucket, split.files[0]))
    with pytest.raises(FormatError, match=split.files[0].file_name), task_errors():
        frame.collect()
