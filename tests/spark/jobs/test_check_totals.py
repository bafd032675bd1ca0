"""Rules about totals over tables: what parts are parts of, which partition is the one a week before."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.data.arrow_write import write_arrow
from airflow_paimon.spark.jobs.before_spark import run_before_spark
from tests.spark.jobs.checks import check, outcome
from tests.spark.jobs.operations import in_tasks, make_branch, put, run, values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_paimon.core.table.table import Table


def test_a_part_is_one_of_the_rows_and_not_of_what_is_stored(spark: SparkSession, tmp_path: Path) -> None:
    """The bucket that stays the same held three versions of each of its rows, which counted three times."""
    main, _ = make_branch(tmp_path)
    for version in "xy":
        put(main, [(k, version, "a") for k in range(10)])
    run(tmp_path, "create_branch", branch="other", snapshot=main.latest_snapshot_id())
    put(main.branch("other"), [(1, "y", "a", "-D")])
    for part, said in (("10 %", "passed"), ("9.9 %", "failed")):
        rule = {"row_limits": {"deleted": part}}
        [found] = check(spark, tmp_path, rule, branch="other")
        assert found["outcome"] == said
        with in_tasks():
            assert outcome(spark, tmp_path, rule, branch="other")[0] == said
    assert found["rows"] == [{"partition": "dt=a", "rows": "deleted", "number": 1, "of": 10}]
    (tmp_path / "rules.json").write_text(json.dumps([{"row_limits": {"deleted": 1}}]))
    request = build_request("check_branch_data", values(tmp_path, branch="other", rules=str(tmp_path / "rules.json")))
    assert run_before_spark(request) is not None  # a number needs no count


def days(warehouse: Path, partition_type: str, amounts: dict[Any, int]) -> Table:
    """A table with one row a day."""
    columns = [("dt", f"{partition_type} NOT NULL"), ("shop", "INT NOT NULL"), ("k", "INT NOT NULL"), ("amount", "INT")]
    main = create_table(
        str(warehouse),
        "d.t",
        columns,
        partition_keys=["shop", "dt"],
        primary_keys=["shop", "dt", "k"],
        options={"bucket": "1"},
    )
    fill(main, amounts)
    run(warehouse, "create_branch", branch="fix", snapshot=1)
    return main


def fill(view: Table, amounts: dict[Any, int | None], kind: str = "+I") -> None:
    rows = [{"dt": dt, "shop": 20260101, "k": 1, "amount": v, "_row_kind": kind} for dt, v in amounts.items()]
    write_arrow(view, pa.Table.from_pylist(rows))


WEEK = {"drift": {"measure": "sum", "column": "amount", "against": "week-before", "most": "10 %"}}


@pytest.mark.every(2)
@pytest.mark.parametrize("kind", ["STRING", "DATE", "TIMESTAMP(3)", "TIMESTAMP_LTZ(6)"])
def test_a_day_that_the_branch_empties_is_compared_with_its_week_before(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    def day(number: int) -> Any:
        at = datetime(2026, 11, number, 13, 30, tzinfo=UTC if "LTZ" in kind else None)
        return f"2026-11-{number}" if kind == "STRING" else at.date() if kind == "DATE" else at

    main = days(tmp_path, kind, {day(17): 100, day(24): 105, day(18): 100})
    fill(main.branch("fix"), {day(24): 109})
    assert outcome(spark, tmp_path, WEEK) == ("passed", 0)
    fill(main.branch("fix"), {day(24): None}, "-D")
    [found] = check(spark, tmp_path, WEEK)
    assert (found["outcome"], found["rows"][0]["before"], found["rows"][0]["after"]) == ("failed", 100, 0)
    assert "2026-11-24" in found["rows"][0]["partition"]
    fill(main.branch("fix"), {day(18): 1, day(24): 100})
    [found] = check(spark, tmp_path, WEEK)
    assert (found["outcome"], found["said"]) == ("skipped", "1 partitions have none a week before to be compared with")


def test_a_column_of_dates_can_be_named(spark: SparkSession, tmp_path: Path) -> None:
    main = days(tmp_path, "INT", {20261117: 100, 20261124: 100})
    fill(main.branch("fix"), {20261124: 150})
    [found] = check(spark, tmp_path, {"drift": {**WEEK["drift"], "date": "dt"}})
    assert found["rows"][0]["change"] == "+50 %"
    with pytest.raises(Exception, match="shop and dt both hold numbers that may be dates; name the one that does"):
        check(spark, tmp_path, WEEK)
    with pytest.raises(Exception, match="which is not a partition column; those are: shop, dt"):
        check(spark, tmp_path, {"drift": {**WEEK["drift"], "date": "amount"}})


def test_infinity_and_the_first_week_of_all_crash_no_drift(spark: SparkSession, tmp_path: Path) -> None:
    _, branch = make_branch(tmp_path)
    put(branch, [(3, "Infinity", "a"), (4, "0001-01-01", "0001-01-01")])
    drift = {"measure": "max", "column": "k", "most": 0, "against": "week-before"}
    assert outcome(spark, tmp_path, {"drift": drift}) == ("skipped", 0)
    table = create_table(str(tmp_path), "d.u", [("k", "INT NOT NULL"), ("v", "DOUBLE")])
    infinite, nan = float("inf"), float("nan")
    write_arrow(table, pa.table({"k": pa.array([1], pa.int32()), "v": [infinite]}))
    run(tmp_path, "create_branch", table="d.u", branch="fix", snapshot=1)
    write_arrow(table.branch("fix"), pa.table({"k": pa.array([2], pa.int32()), "v": [1.0]}))
    total = {"drift": {"measure": "sum", "column": "v", "most": "1 %"}}
    assert outcome(spark, tmp_path, total, table="d.u") == ("passed", 0)
    write_arrow(table.branch("fix"), pa.table({"k": pa.array([3], pa.int32()), "v": [nan]}))
    [found] = check(spark, tmp_path, total, table="d.u")
    assert found["rows"] == [{"partition": "", "before": "Infinity", "after": "NaN", "change": None}]
    json.dumps(found, allow_nan=False)


def test_unique_over_all_rows_looks_at_every_partition(spark: SparkSession, tmp_path: Path) -> None:
    main, _ = make_branch(tmp_path, primary=False)
    put(main, [(1, "b1", "b")])  # twice in a partition that the branch leaves as it is
    run(tmp_path, "create_branch", branch="other", snapshot=main.latest_snapshot_id())
    put(main.branch("other"), [(50, "new", "a")])
    assert outcome(spark, tmp_path, {"unique": ["k", "dt"]}, branch="other") == ("passed", 0)
    assert outcome(spark, tmp_path, {"unique": ["k", "dt"], "rows": "all"}, branch="other") == ("failed", 1)
