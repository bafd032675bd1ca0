"""UPDATE, DELETE, MERGE and correct_branch on the snapshot and the delta branch of chain tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_paimon.core.check.check import find_all
from airflow_paimon.core.errors import InvalidInputError, UnsafeOperationError, UnsupportedFeatureError
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.local_execution import NONE
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table
from airflow_paimon.spark import sql
from airflow_paimon.spark.jobs.before_spark import run_before_spark
from tests.data.chain.compactions import compact
from tests.data.chain.tables import DAYS, PARTIAL, TWO_VALUES, Row, Writes, chain_table, seen
from tests.spark.jobs.operations import correct as correct_fix
from tests.spark.jobs.operations import diff, in_tasks, run, values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SIMPLE: Writes = [
    ("snapshot", "20250810", [(1, 1, "a"), (2, 1, "a"), (3, 1, "a"), (8, 1, "a")]),
    ("delta", "20250811", [(1, 2, "b"), (2, 2, "", "-D"), (4, 1, "b")]),
    ("delta", "20250812", [(4, 2, "c"), (5, 1, "c")]),
]
FIRST = [(1, 2, "b"), (3, 1, "a"), (4, 1, "b"), (8, 1, "a")]
SECOND = [(1, 2, "b"), (3, 1, "a"), (4, 2, "c"), (5, 1, "c"), (8, 1, "a")]


def days(table: Table) -> dict[str, list[Row]]:
    out: dict[str, list[Row]] = {}
    for row in seen(table):
        out.setdefault(row[-1], []).append(row[:-1])
    return out


def change(spark: SparkSession, warehouse: Path, text: str, **more: Any) -> dict[str, Any]:
    details: dict[str, Any] = sql(spark, str(warehouse), text, **more)["details"]
    return details


@pytest.mark.every(2, first=1)
@pytest.mark.parametrize("place", ["here", "in tasks"])
def test_an_update_of_a_delta_keeps_what_it_hides(spark: SparkSession, tmp_path: Path, place: str) -> None:
    table = chain_table(tmp_path, SIMPLE)
    assert days(table) == {"20250810": SIMPLE[0][2], "20250811": FIRST, "20250812": SECOND}
    text = "UPDATE d.`t$branch_delta` SET v = concat(v, '!') WHERE dt = '20250811'"
    if place == "here":
        details = change(spark, tmp_path, text)
    else:
        with in_tasks():
            details = change(spark, tmp_path, text)
    assert (details["rows_updated"], details["rows_deleted"]) == (2, 0)
    assert "stale" not in details
    now = days(table)
    assert now["20250811"] == [(1, 2, "b!"), (3, 1, "a"), (4, 1, "b!"), (8, 1, "a")], "key 2 stays deleted"
    assert now["20250812"] == [(1, 2, "b!"), *SECOND[1:]]
    assert seen(table.branch("delta"))[:2] == [(1, 2, "b!", "20250811"), (4, 1, "b!", "20250811")]


def test_a_delete_hides_the_row_from_that_day_on(spark: SparkSession, tmp_path: Path) -> None:
    table = chain_table(tmp_path, SIMPLE)
    details = change(spark, tmp_path, "DELETE FROM d.`t$branch_delta` WHERE dt = '20250811' AND k = 1")
    assert details["rows_deleted"] == 1
    now = days(table)
    assert now["20250811"] == FIRST[1:], "not the row of the day before either"
    assert now["20250812"] == SECOND[1:]
    assert now["20250810"] == SIMPLE[0][2]
    change(spark, tmp_path, "DELETE FROM d.`t$branch_delta` WHERE dt = '20250812'")
    assert "20250812" not in days(table), "a condition on partitions alone drops them"


def test_a_merge_updates_deletes_and_inserts(spark: SparkSession, tmp_path: Path) -> None:
    table = chain_table(tmp_path, SIMPLE)
    fixes = spark.createDataFrame([(1, "x"), (2, "y"), (4, None), (9, "z")], "k INT, v STRING")
    text = (
        "MERGE INTO d.`t$branch_delta` t USING fixes f ON t.k = f.k AND t.dt = '20250811' "
        "WHEN MATCHED AND f.v IS NULL THEN DELETE WHEN MATCHED THEN UPDATE SET v = f.v "
        "WHEN NOT MATCHED THEN INSERT (k, s, v, dt) VALUES (f.k, 2, f.v, '20250811')"
    )
    details = change(spark, tmp_path, text, views={"fixes": fixes})
    assert [details[f"rows_{n}"] for n in ("updated", "deleted", "inserted")] == [1, 1, 2]
    rows = [(1, 2, "x"), (2, 2, "y"), (3, 1, "a"), (8, 1, "a"), (9, 2, "z")]
    assert days(table)["20250811"] == rows, "an inserted row takes the place of a delete"
    assert days(table)["20250812"] == [*rows[:3], (4, 2, "c"), (5, 1, "c"), *rows[3:]]


def test_full_partitions_become_stale_and_are_built_again(spark: SparkSession, tmp_path: Path) -> None:
    table = chain_table(tmp_path, SIMPLE)
    for day in ("20250811", "20250812"):
        compact(table, f"dt={day}")
    before = days(table)
    text = "UPDATE d.`t$branch_delta` SET v = 'new' WHERE dt = '20250811' AND k = 1"
    with pytest.raises(UnsafeOperationError, match="would be invisible"):
        change(spark, tmp_path, text, on_stale="refuse")
    details = change(spark, tmp_path, text, operation_id="fix")
    assert [(s["partition"], s["cascade"]) for s in details["stale"]] == [("dt=20250811", False), ("dt=20250812", True)]
    assert change(spark, tmp_path, text, operation_id="fix")["stale"] == details["stale"], "a retry reports the same"
    assert days(table) == before, "readers see the full partitions until they are built again"
    compact(table, pending=True, max_chain_length=10)
    assert days(table)["20250811"] == [(1, 2, "new"), *FIRST[1:]]
    assert days(table)["20250812"] == [(1, 2, "new"), *SECOND[1:]]
    assert run(tmp_path, "check_chain_table").details["stale"] == []
    # undo
    undone = run(tmp_path, "rollback_to", branch="delta", snapshot=details_before(table))
    assert undone.changed
    assert len(run(tmp_path, "check_chain_table").details["stale"]) == 2
    compact(table, pending=True, max_chain_length=10)
    assert days(table) == before


def details_before(table: Table) -> int:
    """The delta's snapshot before its newest."""
    head = table.branch("delta").latest_snapshot_id()
    assert head is not None
    return head - 1


def test_a_full_partition_is_changed_in_place(spark: SparkSession, tmp_path: Path) -> None:
    table = chain_table(tmp_path, SIMPLE)
    compact(table, "dt=20250812")
    details = change(spark, tmp_path, "UPDATE d.`t$branch_snapshot` SET v = 'A' WHERE dt = '20250810' AND k IN (3, 8)")
    assert [s["partition"] for s in details["stale"]] == ["dt=20250812"]
    assert days(table)["20250811"] == [(1, 2, "b"), (3, 1, "A"), (4, 1, "b"), (8, 1, "A")]
    change(spark, tmp_path, "DELETE FROM d.`t$branch_snapshot` WHERE dt = '20250810' AND k = 8")
    assert [r[0] for r in days(table)["20250811"]] == [1, 3, 4]
    with pytest.raises(UnsafeOperationError, match="can't be dropped"):
        change(spark, tmp_path, "DELETE FROM d.`t$branch_snapshot` WHERE dt = '20250810'")
    compact(table, pending=True, max_chain_length=10)
    assert [r[0] for r in days(table)["20250812"]] == [1, 3, 4, 5]


def test_a_statement_reads_the_chain_itself(spark: SparkSession, tmp_path: Path) -> None:
    """By name, as a view, and as the view main of correct_branch: each a chain read."""
    table = chain_table(tmp_path, SIMPLE)
    text = (
        "MERGE INTO d.`t$branch_delta` t USING (SELECT k, s + 9 AS s FROM d.t WHERE dt = '20250811' AND k = 3) f "
        "ON t.k = f.k AND t.dt = '20250811' WHEN NOT MATCHED THEN INSERT (k, s, v, dt) VALUES (k, s, 'new', '20250811')"
    )
    assert change(spark, tmp_path, text)["rows_inserted"] == 1
    assert days(table)["20250811"] == [(1, 2, "b"), (3, 10, "new"), *FIRST[2:]]
    text = "DELETE FROM d.`t$branch_delta` WHERE dt = '20250811' AND k IN (SELECT k FROM then WHERE v = 'new')"
    assert change(spark, tmp_path, text, views={"then": "d.t"})["rows_deleted"] == 1
    assert [r[0] for r in days(table)["20250811"]] == [1, 4, 8]
    rows = "SELECT k, s + 1 AS s, 'up' AS v, dt FROM main WHERE dt = '20250812' AND k = 8"
    correct(spark, tmp_path, rows, mode="upsert")
    assert days(table)["20250812"] == [(1, 2, "b"), (4, 2, "c"), (5, 1, "c"), (8, 2, "up")]


def test_what_cannot_be_changed_in_place(spark: SparkSession, tmp_path: Path) -> None:
    chain_table(tmp_path / "days", DAYS)
    with pytest.raises(UnsupportedFeatureError, match=r"name the branch whose rows are to change, as db\.`t\$branch"):
        change(spark, tmp_path / "days", "UPDATE d.t SET v = 'x' WHERE k = 1")
    with pytest.raises(InvalidInputError, match="on_stale applies only to writes to the delta branch"):
        change(spark, tmp_path / "days", "DELETE FROM d.`t$branch_snapshot` WHERE k = 1", on_stale="record")
    for number, (writes, options) in enumerate(
        [(PARTIAL, {"merge_engine": "partial-update"}), (DAYS, {"ignore_delete": "true"})]
    ):
        values = TWO_VALUES if writes is PARTIAL else {"v": "STRING"}
        table = chain_table(tmp_path / str(number), writes, values=values, **options)
        before = seen(table)
        with pytest.raises(UnsupportedFeatureError, match="rows in place in chain tables"):
            change(spark, tmp_path / str(number), "DELETE FROM d.`t$branch_delta` WHERE k = 1")
        assert seen(table) == before


def correct(spark: SparkSession, warehouse: Path, text: str | None, branch: str = "delta", **more: Any) -> Any:
    """As the job does it: its checks before Spark starts come first."""
    file = warehouse / "query.sql"
    file.write_text(text or "")
    asked = {**more, **({"sql": str(file)} if text else {}), "branch": branch}
    run_before_spark(build_request("correct_branch", values(warehouse, **asked)), NONE)
    return correct_fix(spark, warehouse, text, **{"branch": branch, **more})


def test_correct_branch_compare_undo(spark: SparkSession, tmp_path: Path) -> None:
    """A statement, what it changed, and the way back, without a branch of its own."""
    table = chain_table(tmp_path, SIMPLE)
    compact(table, "dt=20250812")
    before, asked = seen(table.branch("delta")), "UPDATE branch SET v = 'new' WHERE dt = '20250811' AND k <= 2"
    looked = correct(spark, tmp_path, asked, dry_run=True)
    assert (looked.changed, looked.details["rows_updated"]) == (True, 1)
    assert seen(table.branch("delta")) == before
    result = correct(spark, tmp_path, asked, operation_id="fix")
    assert result.details["rows_updated"] == 1
    assert [s["partition"] for s in result.details["stale"]] == ["dt=20250812"]
    again = correct(spark, tmp_path, asked, operation_id="fix")
    assert again.details["replayed"]
    assert again.details["stale"] == result.details["stale"]
    assert days(table)["20250811"] == [(1, 2, "new"), *FIRST[1:]]
    found = diff(spark, tmp_path, branch="delta", against=f"delta@{result.snapshot_before}")
    (partition,) = found["partitions"]
    assert (partition["partition"], partition["added"], partition["changed"], partition["deleted"]) == (
        *("dt=20250811", 0, 1, 0),
    )
    run(tmp_path, "rollback_to", branch="delta", snapshot=result.snapshot_before)
    assert seen(table.branch("delta")) == before
    assert run(tmp_path, "check_chain_table").details["stale"] == [], "it is built from these very files"
    assert not diff(spark, tmp_path, branch="delta", against=f"delta@{result.snapshot_before}")["different"]
    with pytest.raises(InvalidInputError, match=r"an earlier version of it \(delta@VERSION\)"):
        diff(spark, tmp_path, branch="delta", against="delta")


def test_several_statements_do_what_they_do_one_by_one(spark: SparkSession, tmp_path: Path) -> None:
    statements = (
        "UPDATE branch SET v = 'x' WHERE dt = '20250811' AND k = 4",
        "DELETE FROM branch WHERE v = 'x'",
        "UPDATE branch SET v = concat(v, '!') WHERE k IN (1, 5)",
    )
    tables = {}
    for name in ("apart", "together"):
        (tmp_path / name).mkdir()
        tables[name] = chain_table(tmp_path / name, SIMPLE)
        compact(tables[name], "dt=20250812")
    apart = [correct(spark, tmp_path / "apart", text) for text in statements]
    done = correct(spark, tmp_path / "together", ";".join(statements), operation_id="x")
    assert done.snapshot_after == done.snapshot_before + 1
    assert seen(tables["together"].branch("delta")) == seen(tables["apart"].branch("delta"))
    assert days(tables["together"]) == days(tables["apart"])
    assert days(tables["together"])["20250811"] == [(1, 2, "b!"), (3, 1, "a"), (8, 1, "a")], "4 and 2 stay deleted"
    assert done.details["stale"] == apart[-1].details["stale"] != []
    assert correct(spark, tmp_path / "together", ";".join(statements), operation_id="x").details["replayed"]


def test_correct_branch_upserts_and_overwrites(spark: SparkSession, tmp_path: Path) -> None:
    table = chain_table(tmp_path, SIMPLE)
    rows = "SELECT k, s, 'up' AS v, dt, IF(k = 1, '-D', '+I') AS _row_kind FROM branch WHERE dt = '20250811'"
    correct(spark, tmp_path, rows, mode="upsert")
    assert days(table)["20250811"] == [(3, 1, "a"), (4, 1, "up"), (8, 1, "a")]
    same = "SELECT k, s, upper(v) AS v, dt FROM branch WHERE dt = '{}'"
    before = seen(table)
    with pytest.raises(UnsafeOperationError, match="dt=20250811 contains deletes"):
        correct(spark, tmp_path, same.format("20250811"), partitions=["dt=20250811"])
    assert seen(table) == before
    correct(spark, tmp_path, same.format("20250812"), partitions=["dt=20250812"])
    assert days(table)["20250812"] == [(3, 1, "a"), (4, 2, "C"), (5, 1, "C"), (8, 1, "a")]
    correct(spark, tmp_path, same.format("20250810"), branch="snapshot", partitions=["dt=20250810"])
    assert days(table)["20250812"] == [(3, 1, "A"), (4, 2, "C"), (5, 1, "C"), (8, 1, "A")]
    files = [f for s in plan_scan(table.branch("snapshot")).splits for f in s.files]
    assert all(f.max_sequence_number < 4 for f in files), "as before, so that newer versions win"
    with pytest.raises(UnsafeOperationError, match="can't be dropped"):
        correct(spark, tmp_path, same.format("x"), branch="snapshot", partitions=["dt=20250810"])


def test_a_branch_of_the_delta_is_corrected_compared_published_and_undone(spark: SparkSession, tmp_path: Path) -> None:
    table = chain_table(tmp_path, SIMPLE)
    compact(table, "dt=20250812")
    delta, before = table.branch("delta"), days(table)
    head = delta.latest_snapshot_id()
    run(tmp_path, "create_branch", branch="fix", from_branch="delta", snapshot=head)
    fix = table.branch("fix")
    assert seen(fix) == seen(delta), "read as it is stored"
    correct(spark, tmp_path, "UPDATE branch SET v = 'new' WHERE dt = '20250811' AND k = 1", branch="fix")
    change(spark, tmp_path, "DELETE FROM d.`t$branch_fix` WHERE dt = '20250811' AND k = 4")
    assert days(table) == before, "nobody sees it yet"
    found = diff(spark, tmp_path, branch="fix", against="base")
    (partition,) = found["partitions"]
    assert (partition["added"], partition["changed"], partition["deleted"]) == (0, 1, 1)
    with pytest.raises(UnsafeOperationError, match="by merge_branch alone"):
        run(tmp_path, "fast_forward", branch="fix")
    with pytest.raises(UnsafeOperationError, match="nobody approved it"):
        run(tmp_path, "merge_branch", branch="fix", four_eyes=True, requested_by="ann")
    looked = run(tmp_path, "merge_branch", branch="fix", dry_run=True)
    assert (looked.changed, looked.branch) == (True, "delta")
    result = run(tmp_path, "merge_branch", branch="fix", operation_id="publish")
    assert (result.branch, result.snapshot_before) == ("delta", head)
    assert [s["partition"] for s in result.details["stale"]] == ["dt=20250812"]
    assert days(table)["20250811"] == [(1, 2, "new"), (3, 1, "a"), (8, 1, "a")], "key 2 stays deleted"
    again = run(tmp_path, "merge_branch", branch="fix", operation_id="publish")
    assert (again.snapshot_after, again.details["stale"]) == (result.snapshot_after, result.details["stale"])
    assert table.latest_snapshot_id() is None, "main has nothing of it"
    compact(table, pending=True, max_chain_length=10)
    assert days(table)["20250812"] == [(1, 2, "new"), (3, 1, "a"), (4, 2, "c"), (5, 1, "c"), (8, 1, "a")]
    run(tmp_path, "rollback_to", branch="delta", tag=result.details["undo_tag"])
    assert run(tmp_path, "check_chain_table").details["stale"] == ["dt=20250812"]
    compact(table, pending=True, max_chain_length=10)
    assert days(table) == before
    assert [f for f in find_all(table, 0, verify_files=True) if f.severity != "info"] == []
    run(tmp_path, "delete_branch", branch="fix")
    assert [f for f in find_all(table, 0, verify_files=True) if f.severity != "info"] == []
