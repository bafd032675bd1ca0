"""diff_branches: counts and samples by partition, what is not read, and its Markdown."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from airflow_paimon.core.errors import InvalidInputError, UnsafeOperationError
from airflow_paimon.core.format.types import AtomicType, parse_type
from airflow_paimon.core.schema.schema_plan import AddColumn
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.table import open_table
from airflow_paimon.data.arrow_write import write_arrow
from airflow_paimon.shown.diff_markdown import render_markdown
from tests.core.tables import alter_table
from tests.randomness import every
from tests.spark.jobs.operations import correct, diff, make_branch, put, rows_of, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.every(2)
@pytest.mark.parametrize("primary", [True, False], ids=["keyed", "append"])
def test_counts_and_samples_by_partition(spark: SparkSession, tmp_path: Path, primary: bool) -> None:
    main, _ = make_branch(tmp_path, primary=primary)
    sql = "SELECT k, if(k < 2, 'x|y', v) AS v, dt FROM branch WHERE dt = 'a' AND k < 8 UNION ALL SELECT 50, NULL, 'a'"
    correct(spark, tmp_path, sql, partitions=["dt=a"])
    put(main, [(70, "later", "c")])
    found = diff(spark, tmp_path)
    [a] = found["partitions"]
    changed = 2 if primary else 0
    assert (a["partition"], a["added"], a["changed"], a["deleted"], a["unchanged"]) == (
        ("dt=a", 1, 2, 2, 6) if primary else ("dt=a", 3, 0, 4, 6)
    )
    assert {"k": 50, "v": None, "dt": "a"} in a["samples"]["added"]
    assert {"k": 9, "v": "a9", "dt": "a"} in a["samples"]["deleted"]
    assert len(a["samples"].get("changed", [])) == changed
    if primary:
        pair = next(p for p in a["samples"]["changed"] if p["after"]["k"] == 1)
        assert (pair["before"]["v"], pair["after"]["v"]) == ("a1", "x|y")
    assert found["total"] == {k: a[k] for k in ("added", "changed", "deleted")} | {
        "unchanged": 26,
        "unchanged_exact": True,
    }
    assert (found["branch_snapshot"], found["against_snapshot"], found["main_snapshot"]) == (4, 3, 4)
    assert found["buckets"]["skipped"] == (4 if primary else 2)
    text = render_markdown(json.loads(json.dumps(found)))
    assert "| dt=a |" in text and ("x\\|y" in text) and "its base" in text
    against_main = diff(spark, tmp_path, against="main")
    assert [p["partition"] for p in against_main["partitions"]] == ["dt=a", "dt=c"]
    assert against_main["partitions"][1]["deleted"] == 1
    only_c = diff(spark, tmp_path, against="main", partitions=["dt=c"])
    assert [p["partition"] for p in only_c["partitions"]] == ["dt=c"] and not only_c["notes"]
    none = diff(spark, tmp_path, against="main", partitions=["dt=a", "dt=2026-02-31"])
    assert none["notes"] == ["neither side has partition dt=2026-02-31: check how it is written"]


@pytest.mark.parametrize("options", [{}, {"row-tracking.enabled": "true"}], ids=["append", "row ids"])
def test_columns_whose_names_have_dots_and_backticks(
    spark: SparkSession, tmp_path: Path, options: dict[str, str]
) -> None:
    columns = [("a.b", "INT"), ("`", "STRING"), ("a`b", "DOUBLE")]
    main = create_table(str(tmp_path), "d.t", columns, partition_keys=["`"], options=options)
    found = pa.table({"a.b": pa.array([1, 2], pa.int32()), "`": ["x", "y"], "a`b": [0.5, None]})
    write_arrow(main, found)
    run(tmp_path, "create_tag", tag="base")
    run(tmp_path, "create_branch", branch="fix", tag="base")
    write_arrow(main.branch("fix"), found.slice(0, 1))
    [changed] = diff(spark, tmp_path)["partitions"]
    assert (changed["added"], changed["deleted"], changed["unchanged"]) == (1, 0, 1)
    [sample] = changed["samples"]["added"]
    assert sample == {"a.b": 1, "`": "x", "a`b": 0.5, **({"_ROW_ID": 2} if options else {})}


def test_identical_buckets_are_not_read(spark: SparkSession, tmp_path: Path) -> None:
    make_branch(tmp_path)
    same = diff(spark, tmp_path)
    assert not same["different"] and same["total"]["unchanged"] == 30 and same["buckets"]["compared"] == 0
    assert "no row differs" in render_markdown(same)
    correct(spark, tmp_path, "SELECT k, 'n' AS v, dt FROM branch WHERE dt = 'b'", partitions=["dt=b"])
    for file in (tmp_path / "d.db" / "t" / "dt=a").rglob("*.parquet"):
        file.unlink()
    found = diff(spark, tmp_path, sample=1)
    assert found["total"]["changed"] == 10 and len(found["partitions"][0]["samples"]["changed"]) == 1


def test_a_count_that_needs_a_merge_is_said_to_be_a_bound(spark: SparkSession, tmp_path: Path) -> None:
    main, _ = make_branch(tmp_path)
    put(main, [(1, "again", "c")])
    run(tmp_path, "create_branch", branch="other", snapshot=4)
    found = diff(spark, tmp_path, branch="other")
    assert found["total"]["unchanged"] == 31 and not found["total"]["unchanged_exact"]
    assert found["notes"] and "upper bound" in render_markdown(found)


def test_random_changes_equal_a_dictionary(spark: SparkSession, tmp_path: Path) -> None:
    main, fix = make_branch(tmp_path, bucket="3")
    dice = random.Random(7)
    for _ in range(3):
        keys = dice.sample(range(40), 12)
        put(fix, [(k, f"n{dice.randrange(3)}" if k % 3 else f"a{k}", "a", dice.choice(["+I", "-D"])) for k in keys])
    before = {r[0]: r for r in rows_of(main) if r[2] == "a"}
    after = {r[0]: r for r in rows_of(fix) if r[2] == "a"}
    both = before.keys() & after.keys()
    expected = Counter(
        added=len(after.keys() - both),
        deleted=len(before.keys() - both),
        changed=sum(before[k] != after[k] for k in both),
    )
    [a] = diff(spark, tmp_path)["partitions"]
    assert {k: a[k] for k in ("added", "deleted", "changed")} == dict(expected)
    assert a["unchanged"] == len(both) - expected["changed"]


def test_columns_that_one_side_lacks_are_left_out(spark: SparkSession, tmp_path: Path) -> None:
    _, fix = make_branch(tmp_path)
    alter_table(fix, [AddColumn(name="extra", type=AtomicType("INT"))])
    correct(spark, tmp_path, "SELECT k, v, dt, 1 AS extra FROM branch WHERE dt = 'a'", partitions=["dt=a"])
    found = diff(spark, tmp_path)
    assert found["total"]["changed"] == 10, "the base is read with the branch's columns: null became 1"
    against_main = diff(spark, tmp_path, against="main")
    assert against_main["total"]["changed"] == 0 and against_main["columns_only_in_branch"] == ["extra"]
    assert "not compared" in render_markdown(against_main)


def test_values_of_every_kind_are_shown(spark: SparkSession, tmp_path: Path) -> None:
    table = create_table(
        str(tmp_path),
        "d.t",
        [("k", "INT NOT NULL"), ("f", "DOUBLE"), ("d", "DECIMAL(5, 2)"), ("b", "BYTES"), ("at", "TIMESTAMP(9)"),
         ("day", "DATE")],
        primary_keys=["k"],
        options={"bucket": "1"},
    )  # fmt: skip
    run(tmp_path, "create_branch", branch="empty")
    nan = float("nan")

    def rows(f: list[float | None]) -> pa.Table:
        return pa.table({
            "k": pa.array([1, 2, 3], pa.int32()), "f": f, "d": pa.array(["1.50"] * 3).cast(pa.decimal128(5, 2)),
            "b": [b"\x00"] * 3,
            "at": pa.array([1, None, -1], pa.timestamp("ns")), "day": pa.array([0] * 3, pa.date32()),
        })  # fmt: skip

    write_arrow(table, rows([nan, 0.0, None]))
    run(tmp_path, "create_branch", branch="fix", snapshot=1)
    write_arrow(table.branch("fix"), rows([nan, -0.0, nan]))
    found = diff(spark, tmp_path)
    [whole] = found["partitions"]
    assert (whole["changed"], whole["unchanged"]) == (2, 1)
    shown = {p["after"]["k"]: p for p in whole["samples"]["changed"]}
    assert shown[3]["before"]["f"] is None and shown[3]["after"] == {
        "k": 3, "f": "nan", "d": "1.50", "b": "0x00", "at": "1969-12-31 23:59:59.999999999", "day": "1970-01-01",
    }  # fmt: skip
    assert "(whole table)" in render_markdown(json.loads(json.dumps(found)))
    with pytest.raises(UnsafeOperationError, match="shares no snapshot"):
        diff(spark, tmp_path, branch="empty")
    with pytest.raises(InvalidInputError, match="compared with itself"):
        diff(spark, tmp_path, against="fix")


def test_rows_without_key_are_compared_by_all_their_values(spark: SparkSession, tmp_path: Path) -> None:
    columns = [("f", "DOUBLE"), ("g", "FLOAT"), ("s", "STRING"), ("m", "DECIMAL(5, 2)"),
               ("l", parse_type({"type": "ARRAY", "element": "INT"}))]  # fmt: skip
    table = create_table(str(tmp_path), "d.t", columns, options={"bucket": "-1"})
    nan = float("nan")

    def rows(f: list[float | None], g: list[float | None]) -> pa.Table:
        count = len(f)
        return pa.table({
            "f": f, "g": pa.array(g, pa.float32()), "s": ["x", None] * (count // 2),
            "m": pa.array(["1.50"] * count).cast(pa.decimal128(5, 2)),
            "l": pa.array([[1, None]] * count, pa.list_(pa.int32())),
        })  # fmt: skip

    write_arrow(table, rows([nan, 0.0, None, 1.1], [1.1, nan, 2.5, 0.0]))
    run(tmp_path, "create_branch", branch="fix", snapshot=1)
    write_arrow(table.branch("fix"), rows([nan, -0.0, None, 1.1], [1.1, nan, 2.5, -0.0]), mode="overwrite")
    found = diff(spark, tmp_path, sample=9)
    assert found["total"] == {"added": 2, "changed": 0, "deleted": 2, "unchanged": 2, "unchanged_exact": True}
    shown = found["partitions"][0]["samples"]
    assert sorted(str((r["f"], r["g"])) for r in shown["added"]) == ["(-0.0, 'nan')", "(1.1, -0.0)"]


@pytest.mark.parametrize("life", every(3, ["r12", "r18", "r23"]))
def test_rows_of_row_tracking_tables_are_paired_by_id(
    spark: SparkSession, golden: Callable[[str], Path], tmp_path: Path, life: str
) -> None:
    """Tasks against this process, which tests/golden compares with a model."""
    shutil.copytree(golden("row-tracking-fuzz") / "wh" / "d.db" / life, tmp_path / "d.db" / "t")
    ids = open_table(str(tmp_path), "d.t").snapshot_ids()
    changed = 0
    for at in (ids[2], ids[-3]):
        run(tmp_path, "create_tag", tag=f"at{at}", snapshot=at)
        run(tmp_path, "create_branch", branch=f"b{at}", tag=f"at{at}")
        found = diff(spark, tmp_path, branch=f"b{at}", against="main")
        changed += found["total"]["changed"]
        if found["total"]["changed"]:
            assert "_ROW\\_ID=" in render_markdown(found) or "_ROW_ID=" in render_markdown(found)
    assert changed
