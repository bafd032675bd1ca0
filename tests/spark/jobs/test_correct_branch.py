"""correct_branch: what a branch holds afterwards, what it refuses, and who wins after the publish."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from datetime import UTC, date, datetime, time
from decimal import Decimal
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airflow_paimon.core.commit.files import commit_append
from airflow_paimon.core.errors import ConflictError, InvalidInputError, UnsupportedFeatureError
from airflow_paimon.core.format.types import parse_type
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.made_by import made_by
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import read_arrow
from airflow_paimon.data.arrow_write import write_arrow
from airflow_paimon.data.files.arrow_types import arrow_schema
from airflow_paimon.data.files.conform import conform_rows
from airflow_paimon.data.write import plan_write, write_rows
from airflow_paimon.spark import write_table
from airflow_paimon.spark.rows_in import temporary_conf
from tests.core.tables import forget_results
from tests.data.test_compact import run as run_compact
from tests.randomness import every
from tests.spark.jobs.operations import correct, in_tasks, make_branch, put, rows_of, run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CHANGED_A = "SELECT k, concat(v, '!') AS v, dt FROM branch WHERE dt = 'a' AND k < 5"


def others(table: Table, *partitions: str) -> set[str]:
    """Names of the live files outside these partitions."""
    plan = plan_scan(table)
    return {f.file_name for s in plan.splits if s.values[0] not in partitions for f in s.files}


@pytest.fixture(params=["in-process", "in-tasks"])
def place(request: pytest.FixtureRequest) -> Iterator[str]:
    """Where a correction of few rows is written: the results must be the same."""
    with nullcontext() if request.param == "in-process" else in_tasks():
        yield request.param


@pytest.mark.every(4)
@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("primary", [True, False], ids=["keyed", "append"])
def test_overwrite_makes_the_partitions_exactly_these_rows(spark: SparkSession, tmp_path: Path, primary: bool) -> None:
    main, fix = make_branch(tmp_path, primary=primary)
    before = rows_of(main)
    result = correct(spark, tmp_path, CHANGED_A, partitions=["dt=a", "dt=b"])
    kept = [r for r in before if r[2] == "c"]
    assert rows_of(fix) == sorted([*((k, f"a{k}!", "a") for k in range(5)), *kept])
    assert rows_of(main) == before
    assert others(fix, "a", "b") == others(main, "a", "b")
    assert (result.changed, result.snapshot_before, result.snapshot_after) == (True, 3, 4)
    assert result.details["partitions"] == {"dt=a": 5}
    run(tmp_path, "merge_branch", branch="fix")
    assert rows_of(main) == rows_of(fix)


@pytest.mark.every(2, first=1)
@pytest.mark.usefixtures("place")
def test_upsert_keeps_the_other_rows_and_deletes_by_row_kind(spark: SparkSession, tmp_path: Path) -> None:
    main, fix = make_branch(tmp_path)
    sql = """
        SELECT k, 'new' AS v, dt, if(k = 3, '-D', '+U') AS _row_kind FROM branch WHERE k IN (3, 4) AND dt <> 'c'
        UNION ALL SELECT 100, 'more', 'd', '+I' -- a partition that was not there
    """
    correct(spark, tmp_path, sql, mode="upsert")
    expected = {(k, f"{dt}{k}", dt) for dt in "abc" for k in range(10)}
    expected -= {(k, f"{dt}{k}", dt) for dt in "ab" for k in (3, 4)}
    expected |= {(4, "new", "a"), (4, "new", "b"), (100, "more", "d")}
    assert rows_of(fix) == sorted(expected)
    assert others(fix, "a", "b", "d") == others(main, "a", "b")


def test_a_writer_that_stays_open_over_the_publish_wins(spark: SparkSession, tmp_path: Path) -> None:
    """It numbers on from what main had at the branch point; a bucket that was empty then starts at 0."""
    main, fix = make_branch(tmp_path)
    limits = {(s.values, s.bucket): max(f.max_sequence_number for f in s.files) for s in plan_scan(main).splits}
    put(fix, [(k, "by another engine", "a") for k in range(10)])
    correct(spark, tmp_path, "SELECT k, 'fixed' AS v, dt FROM branch WHERE dt = 'a'", mode="upsert")
    correct(spark, tmp_path, "SELECT k, 'fixed' AS v, 'z' AS dt FROM branch WHERE dt = 'b'", partitions=["dt=z"])
    for split in plan_scan(fix).splits:
        limit = limits.get((split.values, split.bucket), -1)
        assert max(f.max_sequence_number for f in split.files) <= limit, split
    run(tmp_path, "merge_branch", branch="fix")
    put(main, [(1, "later", "a"), (1, "later", "z")])
    rows = rows_of(main)
    assert (1, "later", "a") in rows and (1, "later", "z") in rows and (2, "fixed", "a") in rows


@pytest.mark.every(2)
@pytest.mark.usefixtures("place")
def test_rows_outside_the_partitions_and_double_keys_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    _, fix = make_branch(tmp_path)
    before, files = rows_of(fix), len(list(tmp_path.rglob("*.parquet")))
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("SELECT * FROM branch WHERE dt <> 'c'", {"partitions": ["dt=a"]}, "partition dt=b, which is not among"),
        ("SELECT * FROM branch WHERE dt = 'a' UNION ALL SELECT 1, 'x', 'a'", {"partitions": ["dt=a"]}, "k = 1"),
        ("SELECT * FROM branch UNION ALL SELECT 1, 'x', 'a'", {"partitions": ["dt=a", "dt=b", "dt=c"]}, "k = 1"),
        ("SELECT * FROM branch", {}, "name the partitions to overwrite"),
        ("SELECT k, v FROM branch", {"partitions": ["dt=a"]}, "missing columns dt"),
        (
            "SELECT nothing FROM branch",
            {"partitions": ["dt=a"]},
            r"\(--sql\): .*nothing.*\(line 1, position 8\)",
        ),
        ("DROP VIEW branch", {"partitions": ["dt=a"]}, "SQL starts with 'DROP'"),
        ("SELECT * FROM branch", {"partitions": ["day=a"]}, "'day' is not a partition column"),
        ("SELECT * FROM branch", {"branch": "main", "partitions": ["dt=a"]}, "writes a branch"),
    ]
    for sql, options, text in cases:
        with pytest.raises(InvalidInputError, match=text):
            if "branch" in options:
                _correct_main(spark, tmp_path, sql)
            else:
                correct(spark, tmp_path, sql, **options)
    assert rows_of(fix) == before
    assert len(list(tmp_path.rglob("*.parquet"))) == files
    assert not any(spark.catalog.tableExists(name) for name in ("branch", "main"))


def _correct_main(spark: SparkSession, warehouse: Path, sql: str) -> None:
    from airflow_paimon.core.requests.arguments import build_request
    from airflow_paimon.spark.jobs import run_spark_operation
    from tests.spark.jobs.operations import values

    file = warehouse / "q.sql"
    file.write_text(sql)
    asked = values(warehouse, branch="main", sql=str(file), partitions=["dt=a"])
    run_spark_operation(spark, build_request("correct_branch", asked))


def test_a_retry_gives_the_first_tries_result(spark: SparkSession, tmp_path: Path) -> None:
    _, fix = make_branch(tmp_path)
    sql = "SELECT k, concat(v, '+') AS v, dt FROM branch WHERE dt = 'a'"
    first = correct(spark, tmp_path, sql, partitions=["dt=a"], operation_id="op")
    put(fix, [(99, "of somebody else", "a")])
    again = correct(spark, tmp_path, sql, partitions=["dt=a"], operation_id="op")
    assert again.to_json() == {**first.to_json(), "details": {**first.details, "replayed": True}}
    forget_results(fix)
    again = correct(spark, tmp_path, sql, partitions=["dt=a"], operation_id="op")
    assert (again.changed, again.snapshot_before, again.snapshot_after) == (True, 3, first.snapshot_after)
    made = {k: v for k, v in first.details.items() if k != "column_sources"}  # of the plan, which a replay doesn't make
    assert dict(again.details) == {**made, "replayed": True}
    assert rows_of(fix)[0] == (0, "a0+", "a")
    with pytest.raises(InvalidInputError, match="another request"):
        correct(spark, tmp_path, sql + " AND k > 1", partitions=["dt=a"], operation_id="op")
    with pytest.raises(InvalidInputError, match="not among"):
        correct(spark, tmp_path, "SELECT * FROM branch", partitions=["dt=a"], operation_id="wrong")
    # what was refused before it committed may be asked again, corrected
    correct(spark, tmp_path, CHANGED_A, partitions=["dt=a"], operation_id="wrong")


def test_a_dry_run_changes_nothing_and_says_what_it_would(spark: SparkSession, tmp_path: Path) -> None:
    _, fix = make_branch(tmp_path)
    files = len(list(tmp_path.rglob("*.parquet")))
    result = correct(spark, tmp_path, CHANGED_A, partitions=["dt=a"], dry_run=True, operation_id="dry")
    assert (result.changed, result.dry_run, result.snapshot_after) == (True, True, 3)
    assert result.details["plan"]["partitions"] == {"dt=a": 5}
    assert fix.latest_snapshot_id() == 3
    assert len(list(tmp_path.rglob("*.parquet"))) == files


@pytest.mark.every(2, first=1)
@pytest.mark.usefixtures("place")
def test_values_of_every_type_come_through_a_query_unchanged(spark: SparkSession, tmp_path: Path) -> None:
    columns: dict[str, Any] = {
        "k": "BIGINT NOT NULL", "f": "FLOAT", "d": "DOUBLE", "m": "DECIMAL(20, 4)", "y": "BYTES", "c": "CHAR(3)",
        "day": "DATE", "at": "TIME", "ts": "TIMESTAMP(6)", "tz": "TIMESTAMP(6) WITH LOCAL TIME ZONE",
        "l": parse_type({"type": "ARRAY", "element": "TIMESTAMP(3)"}),
        "p": parse_type({"type": "MAP", "key": "STRING NOT NULL", "value": "DOUBLE"}),
        "r": parse_type({"type": "ROW", "fields": [{"id": 90, "name": "x", "type": "INT"}]}),
    }  # fmt: skip
    table = create_table(str(tmp_path), "d.t", list(columns.items()), primary_keys=["k"], options={"bucket": "2"})
    before_daylight_saving = datetime(2025, 3, 9, 2, 30, 0, 5)  # in New York there is no such time
    types = arrow_schema(table.schema().fields)
    full = {
        "f": 1.5, "d": -0.0, "m": Decimal("12.5000"), "y": b"\x00\xff", "c": "ab", "day": date(1, 1, 1),
        "at": time(1, 2, 3), "ts": before_daylight_saving, "tz": before_daylight_saving.replace(tzinfo=UTC),
        "l": [before_daylight_saving.replace(microsecond=0), None], "p": [("a", 1.0), ("b", None)], "r": {"x": 1},
    }  # fmt: skip
    rows = [{"k": 1, **full}, {"k": 2, **dict.fromkeys(full)}]
    data = pa.table([pa.array([r[f.name] for r in rows], f.type) for f in types], schema=types)
    write_arrow(table, data)
    run(tmp_path, "create_branch", branch="fix", snapshot=1)
    with temporary_conf(spark, {"spark.sql.session.timeZone": "America/New_York"}):
        result = correct(spark, tmp_path, "SELECT * FROM branch WHERE k < 3 UNION ALL SELECT * FROM main WHERE k > 2")
    assert result.details["rows"] == 2
    assert read_arrow(table.branch("fix")).sort_by("k") == read_arrow(table).sort_by("k")


def fixed(spark: SparkSession, views: dict[str, DataFrame]) -> DataFrame:
    assert sorted(views) == ["branch", "main", "prices"]
    joined = views["branch"].alias("b").join(views["prices"].alias("p"), "k").where("b.dt = 'a'")
    return joined.selectExpr("k", "p.price AS v", "b.dt")


def test_a_function_gives_the_rows_from_further_views(spark: SparkSession, tmp_path: Path) -> None:
    _, fix = make_branch(tmp_path)
    prices = create_table(str(tmp_path), "d.prices", [("k", "BIGINT"), ("price", "STRING")])
    write_arrow(prices, pa.table({"k": [1, 2], "price": ["one", "two"]}))
    here = f"{__name__}:fixed"
    correct(spark, tmp_path, function=here, view=["prices=d.prices"], mode="upsert")
    assert [r for r in rows_of(fix) if r[2] == "a"][:3] == [(0, "a0", "a"), (1, "one", "a"), (2, "two", "a")]
    said = made_by(fix.snapshot(fix.snapshot_ids()[-1]).properties)
    source = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    assert said == {"function": here, "function_version": f"sha256:{source}", "views": '["prices=d.prices"]'}
    for function, text in ((f"{__name__}:nothing", "has no attribute"), ("nomodule_here:f", "No module named")):
        with pytest.raises(InvalidInputError, match=text):
            correct(spark, tmp_path, function=function, mode="upsert")


def intruding(spark: SparkSession, views: dict[str, DataFrame]) -> DataFrame:
    """Somebody else commits to the bucket while the tasks work on it."""
    from airflow_paimon.core.table.table import open_table

    path = spark.conf.get("test.table.path")

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        put(open_table(path=path, branch="fix"), [(1, "theirs", "a")])
        yield from batches

    rows = views["branch"].where("dt = 'a'").coalesce(1)
    return rows.mapInArrow(work, rows.schema)


def test_a_bucket_that_changed_meanwhile_is_a_conflict(spark: SparkSession, tmp_path: Path) -> None:
    _, fix = make_branch(tmp_path, bucket="1")
    spark.conf.set("test.table.path", str(tmp_path / "d.db" / "t"))
    with pytest.raises(ConflictError, match="changed while it was being rewritten"):
        correct(spark, tmp_path, function=f"{__name__}:intruding", partitions=["dt=a"])
    assert (1, "theirs", "a") in rows_of(fix)
    names = {e.file.file_name for t in (fix, fix.branch("main")) for e in live_entries(t, t.latest_snapshot()).values()}
    assert {p.name for p in tmp_path.rglob("*.parquet")} == names, "the rewritten files are gone"


RUN_TIME_FAULTS = {
    "SELECT k, cast(1/(k-k) AS STRING) v, dt FROM branch WHERE dt = 'a'": r"--sql\): \[DIVIDE_BY_ZERO\] Division by",
    "SELECT cast(v AS BIGINT) k, v, dt FROM branch WHERE dt = 'a'": r"--sql\): \[CAST_INVALID_INPUT\] The value 'a\d'",
    "SELECT (SELECT k FROM branch) k, 'x' v, 'a' dt": r"--sql\): \[SCALAR_SUBQUERY_TOO_MANY_ROWS\] More than one row",
    "SELECT k, raise_error('no ' || v) v, dt FROM branch WHERE dt = 'a'": r"--sql\): (\[USER_RAISED_EXCEPTION\] )?no a",
}


@pytest.mark.every(2)
@pytest.mark.usefixtures("place")
def test_a_query_that_fails_as_it_runs_is_the_users_error(spark: SparkSession, tmp_path: Path) -> None:
    _, fix = make_branch(tmp_path)
    asked: dict[str, Any] = {"partitions": ["dt=a"], "operation_id": "op"}
    with temporary_conf(spark, {"spark.sql.ansi.enabled": "true"}):
        for sql, message in RUN_TIME_FAULTS.items():
            with pytest.raises(InvalidInputError, match=message) as refused:
                correct(spark, tmp_path, sql, **asked)
            assert "\n" not in refused.value.message and "java" not in refused.value.message
    assert fix.latest_snapshot_id() == 3
    correct(spark, tmp_path, CHANGED_A, **asked)  # the operation id is free again


def raising(spark: SparkSession, views: dict[str, DataFrame]) -> DataFrame:
    raise KeyError("no such column\nsecond line")


def raising_in_tasks(spark: SparkSession, views: dict[str, DataFrame]) -> DataFrame:
    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        raise ValueError("bad amount in row 7")

    rows = views["branch"].where("dt = 'a'")
    return rows.mapInArrow(work, rows.schema)


def misusing_spark(spark: SparkSession, views: dict[str, DataFrame]) -> DataFrame:
    return views["branch"].select("nothing")


def ending_its_worker(spark: SparkSession, views: dict[str, DataFrame]) -> DataFrame:
    """As the kernel does where memory is short."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        os._exit(137)
        yield from batches

    rows = views["branch"].where("dt = 'a'")
    return rows.mapInArrow(work, rows.schema)


def test_what_a_function_raises_is_the_users_error_and_a_lost_worker_is_not(
    spark: SparkSession, tmp_path: Path
) -> None:
    make_branch(tmp_path)
    cases = {
        "raising": "KeyError: 'no such column",
        "raising_in_tasks": "ValueError: bad amount in row 7$",
        "misusing_spark": r"\[UNRESOLVED_COLUMN",
    }
    for name, text in cases.items():
        with pytest.raises(InvalidInputError, match=rf"--function\) {__name__}:{name}: {text}") as refused:
            correct(spark, tmp_path, function=f"{__name__}:{name}", partitions=["dt=a"])
        assert "\n" not in refused.value.message
    with pytest.raises(Exception, match="Python worker exited unexpectedly") as lost:
        correct(spark, tmp_path, function=f"{__name__}:ending_its_worker", partitions=["dt=a"])
    assert not isinstance(lost.value, InvalidInputError)


def test_a_data_file_that_cannot_be_read_is_not_the_users_error(spark: SparkSession, tmp_path: Path) -> None:
    make_branch(tmp_path)
    for file in tmp_path.rglob("*.parquet"):
        file.write_bytes(bytes(file.stat().st_size))
    with pytest.raises(Exception, match=r"(?i)read|parquet") as failed:
        correct(spark, tmp_path, CHANGED_A, partitions=["dt=a"])
    assert not isinstance(failed.value, InvalidInputError)


def test_what_spark_would_cut_off_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    table = create_table(
        str(tmp_path),
        "d.t",
        [("k", "INT NOT NULL"), ("at", "TIMESTAMP(9)")],
        primary_keys=["k"],
        options={"bucket": "1"},
    )
    write_arrow(table, pa.table({"k": [1], "at": pa.array([1], pa.timestamp("ns"))}))
    run(tmp_path, "create_branch", branch="fix", snapshot=1)
    with pytest.raises(UnsupportedFeatureError, match="'at' is finer than microseconds"):
        correct(spark, tmp_path, "SELECT * FROM branch", mode="upsert")


COLUMN_SOURCES: dict[str, tuple[str, dict[str, list[str]]]] = {
    "one view": (CHANGED_A, {"k": ["branch.k"], "v": ["branch.v"], "dt": ["branch.dt"]}),
    "main": ("SELECT * FROM main WHERE dt = 'a'", {"k": ["main.k"], "v": ["main.v"], "dt": ["main.dt"]}),
    "join and union": (
        "WITH o AS (SELECT k, max(v) AS v FROM other GROUP BY k) "
        "SELECT b.k, concat(b.v, o.v) AS v, 'a' AS dt FROM branch b JOIN o ON b.k = o.k WHERE b.dt = 'a' "
        "UNION ALL SELECT k + 100, dt, 'a' FROM main WHERE dt = 'a'",
        {"k": ["branch.k", "main.k"], "v": ["branch.v", "main.dt", "other.v"]},
    ),
    "subquery": (
        "SELECT k, (SELECT max(v) FROM main) AS v, dt FROM branch WHERE dt = 'a'",
        {"k": ["branch.k"], "dt": ["branch.dt"]},
    ),
    "common table read twice": (
        "WITH o AS (SELECT k AS i, v AS f FROM other WHERE dt = 'a'), w AS (SELECT 7 AS c) "
        "SELECT a.i AS k, concat(a.f, b.f, c) AS v, dt FROM branch JOIN o a ON a.i = k JOIN o b ON b.i = k, w "
        "WHERE dt = 'a'",
        {"k": ["other.k"], "v": ["other.v"], "dt": ["branch.dt"]},
    ),
    "window and generator": (
        "SELECT CAST(row_number() OVER (PARTITION BY v ORDER BY k) AS BIGINT) AS k, x AS v, dt FROM branch "
        "LATERAL VIEW explode(split(concat(v, '(, '), ';')) e AS x WHERE dt = 'a' AND k = 1",
        {"k": ["branch.k", "branch.v"], "v": ["branch.v"], "dt": ["branch.dt"]},
    ),
    "a table that is no view": ("SELECT k, v, dt FROM d.t WHERE dt = 'a'", {}),
    "no view": ("SELECT CAST(1 AS BIGINT) AS k, 'x' AS v, 'a' AS dt", {}),
}


@pytest.mark.every(3)
@pytest.mark.parametrize(("case", "stored"), every(3, product(COLUMN_SOURCES, ["as written", "to merge"])))
def test_the_result_says_which_columns_each_one_comes_from(
    spark: SparkSession, tmp_path: Path, case: str, stored: str
) -> None:
    sql, expected = COLUMN_SOURCES[case]
    main, _ = make_branch(tmp_path)
    if stored == "to merge":
        put(main, [(1, "later", "a")])
    asked: dict[str, Any] = {"partitions": ["dt=a"], "view": ["other=d.t"], "dry_run": True}
    with in_tasks():
        assert correct(spark, tmp_path, sql, **asked).details.get("column_sources", {}) == expected


@pytest.mark.every(2, first=1)
@pytest.mark.usefixtures("place")
def test_views_have_row_ids_where_the_query_names_them(spark: SparkSession, tmp_path: Path) -> None:
    options = {"bucket": "-1", "row-tracking.enabled": "true"}
    columns = [("k", "BIGINT"), ("v", "STRING"), ("dt", "STRING")]
    main = create_table(str(tmp_path), "d.t", columns, partition_keys=["dt"], options=options)
    put(main, [(k, f"a{k}", "a") for k in range(4)])
    run(tmp_path, "create_branch", branch="fix", snapshot=1)
    gone = read_arrow(main, columns=["k", "_ROW_ID"], where=pc.field("k") == 2).column("_ROW_ID")[0].as_py()
    correct(spark, tmp_path, f"SELECT * FROM branch WHERE _row_id <> {gone}", partitions=["dt=a"])
    assert [r[0] for r in rows_of(main.branch("fix"))] == [0, 1, 3]
    sql = "SELECT m.k, concat(m.v, m._SEQUENCE_NUMBER) AS v, m.dt FROM main m"
    correct(spark, tmp_path, sql, partitions=["dt=a"])
    assert rows_of(main.branch("fix")) == [(k, f"a{k}1", "a") for k in range(4)]
    named = (
        "SELECT t.k, d.t.v, t.dt FROM d.t WHERE _ROW_ID >= 0 AND EXISTS (SELECT 1 FROM d.`t$branch_fix` WHERE k = 2)"
    )
    correct(spark, tmp_path, named, partitions=["dt=a"])
    assert rows_of(main.branch("fix")) == rows_of(main)


@pytest.mark.every(2, first=1)
@pytest.mark.parametrize("primary", [True, False], ids=["keyed", "append"])
def test_statements_change_the_branch_and_are_published(spark: SparkSession, tmp_path: Path, primary: bool) -> None:
    main, fix = make_branch(tmp_path, primary=primary)
    before = rows_of(main)
    planned = correct(spark, tmp_path, "UPDATE branch SET v = 'x' WHERE dt = 'a' AND k < 2", dry_run=True)
    assert (planned.changed, planned.details["rows_updated"], rows_of(fix)) == (True, 2, before)
    result = correct(spark, tmp_path, "UPDATE branch SET v = concat(branch.v, '!') WHERE dt = 'a' AND k < 2;")
    assert (result.details["statement"], result.details["rows_updated"]) == ("UPDATE", 2)
    assert (result.changed, result.snapshot_before, result.snapshot_after) == (True, 3, 4)
    assert result.details["changed_partitions"] == ["dt=a"]
    assert others(fix, "a") == others(main, "a")
    correct(spark, tmp_path, "DELETE FROM branch WHERE dt = 'a' AND k IN (SELECT k + 1 FROM main WHERE k = 8)")
    correct(spark, tmp_path, "DELETE FROM branch WHERE k > (SELECT max(k) FROM d.t VERSION AS OF 'fix.3')")
    known = "(SELECT count(*) FROM branch) + (SELECT count(*) FROM d.`t$branch_fix`)"
    counted = f"UPDATE branch SET v = concat(v, {known}) WHERE dt = 'a' AND k = 0"
    correct(spark, tmp_path, counted)
    merge = """MERGE INTO branch USING (SELECT k, v, dt FROM old WHERE dt = 'b' AND k < 2) s
        ON branch.k = s.k AND branch.dt = s.dt WHEN MATCHED THEN UPDATE SET v = upper(s.v)
        WHEN NOT MATCHED BY SOURCE AND branch.dt = 'b' AND branch.k = 7 THEN DELETE"""
    correct(spark, tmp_path, merge, view=["old=d.t@base"])
    correct(spark, tmp_path, "INSERT INTO branch SELECT 90, 'new', 'b'")
    assert fix.latest_snapshot().operation == "WRITE"
    insert = "INSERT OVERWRITE branch PARTITION (dt = 'c') SELECT k, 'c' FROM old WHERE k = 1 AND dt = 'c'"
    correct(spark, tmp_path, insert, view=["old=d.t@fix.3"])
    rows = {(r[2], r[0]): r for r in before if r[2] != "c" and (r[2], r[0]) not in {("a", 9), ("b", 7)}}
    rows |= {("a", k): (k, f"a{k}!", "a") for k in range(2)} | {("b", k): (k, f"B{k}", "b") for k in range(2)}
    rows["a", 0] = (0, "a0!58", "a")
    rows |= {("b", 90): (90, "new", "b"), ("c", 1): (1, "c", "c")}
    assert rows_of(fix) == sorted(rows.values())
    assert rows_of(main) == before
    put(main, [(50, "meanwhile", "d")])
    run(tmp_path, "merge_branch", branch="fix")
    assert rows_of(main) == sorted([*rows.values(), (50, "meanwhile", "d")])


def test_a_statement_that_is_computed_again_reads_the_branch_anew(spark: SparkSession, tmp_path: Path) -> None:
    _, fix = make_branch(tmp_path, bucket="1")
    marker, warehouse = tmp_path / "met", str(tmp_path)

    def meddle(v: str) -> str:
        with suppress(FileExistsError):  # one caller only: several tasks may come at once
            marker.touch(exist_ok=False)
            from airflow_paimon.core.table.table import open_table

            write_arrow(open_table(warehouse, "d.t$branch_fix"), pa.table({"k": [60], "v": ["late"], "dt": ["a"]}))
        return v

    spark.udf.register("meddle", meddle, "string")
    text = """UPDATE branch SET v = concat(meddle(v), ' ', (SELECT count(*) FROM branch), ' ', (SELECT count(*) FROM B))
        WHERE dt = 'a' AND k = 1"""
    correct(spark, tmp_path, text, view=["b=d.t$branch_fix"])
    assert [r for r in rows_of(fix) if r[2] == "a" and r[0] in (1, 60)] == [(1, "a1 31 31", "a"), (60, "late", "a")]


def test_statements_that_are_no_correction_of_the_branch_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    _, fix = make_branch(tmp_path)
    update = "UPDATE branch SET v = 'x' WHERE k = 1"
    refused: dict[str, dict[str, Any]] = {
        "UPDATE main SET v = 'x' WHERE k = 1": {},
        "DELETE FROM branch": {},
        update: {"partitions": ["dt=a"]},
        f"{update} AND v = 'a1'": {"mode": "upsert"},
        "UPDATE branch SET nope = 'x' WHERE k = 1": {},
        "INSERT OVERWRITE branch SELECT 1, 'x', 'a'": {},
        "DROP TABLE branch": {},
    }
    messages = [
        "name it branch",
        "--all-rows",
        "are for a SELECT",
        "are for a SELECT",
        "no column 'nope'",
        "--all-rows",
        "SQL starts with 'DROP': give one UPDATE",
    ]
    for (text, options), message in zip(refused.items(), messages, strict=True):
        with pytest.raises(InvalidInputError, match=message):
            correct(spark, tmp_path, text, **options)
    nothing = correct(spark, tmp_path, "DELETE FROM branch WHERE dt = 'x' AND\n k < 5")
    note = "DELETE on branch changed nothing: no row has dt = 'x' AND k < 5; the table has 3 partitions, dt=a to dt=c"
    assert (nothing.changed, nothing.details["notes"]) == (False, [note])
    with pytest.raises(InvalidInputError, match=r"sql \(--sql\): .*\(line 1, position 8\)"):
        correct(spark, tmp_path, "SELECT nope FROM branch", partitions=["dt=a"])
    for text, message in {
        "SHOW TABLES": "SQL starts with 'SHOW'",
        "DROP TABLE x": "SQL starts with 'DROP'",
    }.items():
        with pytest.raises(InvalidInputError, match=message):
            correct(spark, tmp_path, text, partitions=["dt=a"])
    assert fix.latest_snapshot_id() == 3
    result = correct(spark, tmp_path, "DELETE FROM branch", all_rows=True, operation_id="all")
    again = correct(spark, tmp_path, "DELETE FROM branch", all_rows=True, operation_id="all")
    assert (result.details["rows_deleted"], rows_of(fix)) == (30, [])
    assert again.details == {**result.details, "replayed": True}


def test_a_running_writer_of_main_wins_over_an_update(spark: SparkSession, tmp_path: Path) -> None:
    """A writer of main that goes on counting from the branch point is newer than the published correction."""
    main, fix = make_branch(tmp_path)
    correct(spark, tmp_path, "UPDATE branch SET v = 'fixed' WHERE dt = 'a'")
    at_base = {f.max_sequence_number for s in plan_scan(main).splits if s.values[0] == "a" for f in s.files}
    assert {f.max_sequence_number for s in plan_scan(fix).splits if s.values[0] == "a" for f in s.files} <= at_base
    run(tmp_path, "merge_branch", branch="fix")
    put(main, [(1, "newer", "a")])
    assert [r[1] for r in rows_of(main) if r[2] == "a"][:3] == ["fixed", "newer", "fixed"]


def wait_for_compaction(table: Table, *rows: tuple[int, str, str]) -> None:
    """Append rows as Paimon's write-only writers do: readers of deletion vectors see them after a compaction."""
    write = plan_write(table, by_buckets=True)
    columns = dict(zip(["k", "v", "dt"], map(list, zip(*rows, strict=True)), strict=True))
    messages = write_rows(write, [conform_rows(pa.table(columns), write.schema, table.label)])
    commit_append(table, messages, planned_on=write.planned_on)


@pytest.mark.every(2)
@pytest.mark.usefixtures("place")
def test_tables_with_deletion_vectors(spark: SparkSession, tmp_path: Path) -> None:
    """A correction sees the rows that wait for a compaction, and keeps them; all readers see what it has written."""
    columns = [("k", "BIGINT NOT NULL"), ("v", "STRING"), ("dt", "STRING NOT NULL")]
    options = {"bucket": "1", "deletion-vectors.enabled": "true"}
    main = create_table(str(tmp_path), "d.t", columns, partition_keys=["dt"], primary_keys=["dt", "k"], options=options)
    wait_for_compaction(main, *((k, f"{dt}{k}", dt) for dt in "ab" for k in range(3)))
    run_compact(main)
    wait_for_compaction(main, (0, "waits", "a"), (8, "waits", "a"), (9, "waits", "b"))
    run(tmp_path, "create_tag", tag="base")
    run(tmp_path, "create_branch", branch="fix", tag="base")
    fix = main.branch("fix")
    assert [r[0] for r in rows_of(fix)] == [0, 0, 1, 1, 2, 2]
    correct(spark, tmp_path, "SELECT 1 AS k, 'new' AS v, 'a' AS dt", mode="upsert")
    in_a = [(0, "waits", "a"), (1, "new", "a"), (2, "a2", "a"), (8, "waits", "a")]
    assert [r for r in rows_of(fix) if r[2] == "a"] == in_a
    correct(spark, tmp_path, "UPDATE branch SET v = concat(v, '!') WHERE k IN (2, 9)")
    in_b = [(0, "b0", "b"), (1, "b1", "b"), (2, "b2!", "b"), (9, "waits!", "b")]
    assert [r for r in rows_of(fix) if r[2] == "b"] == in_b
    wait_for_compaction(fix, (7, "waits", "a"), (8, "later", "a"))
    correct(spark, tmp_path, "SELECT k, concat(v, '?') AS v, dt FROM branch WHERE dt = 'a'", partitions=["dt=a"])
    in_a = [(0, "waits?", "a"), (1, "new?", "a"), (2, "a2!?", "a"), (7, "waits?", "a"), (8, "later?", "a")]
    assert rows_of(fix) == sorted([*in_a, *in_b])
    assert all(f.level > 0 for s in plan_scan(fix).splits for f in s.files)
    run(tmp_path, "merge_branch", branch="fix")
    assert rows_of(main) == rows_of(fix)
    result = write_table(spark.createDataFrame([(1, "x", "a")], "k BIGINT, v STRING, dt STRING"), str(tmp_path), "d.t")
    assert (1, "x", "a") in rows_of(main)  # compacted at once, so that readers see them
    assert result["snapshot_after"] == result["snapshot_before"] + 2


@pytest.mark.every(2)
@pytest.mark.usefixtures("place")
def test_tables_whose_rows_are_aggregated(spark: SparkSession, tmp_path: Path) -> None:
    """Statements and SELECTs see sums, and what they set is the sum; rows of an upsert or INSERT are added to it."""
    columns = [("k", "BIGINT NOT NULL"), ("v", "STRING"), ("dt", "STRING NOT NULL")]
    options = {"bucket": "1", "merge-engine": "aggregation", "fields.v.aggregate-function": "listagg"}
    main = create_table(str(tmp_path), "d.t", columns, partition_keys=["dt"], primary_keys=["dt", "k"], options=options)
    for text in "xy":
        wait_for_compaction(main, *((k, text, dt) for dt in "ab" for k in range(3)))
    run(tmp_path, "create_tag", tag="base")
    run(tmp_path, "create_branch", branch="fix", tag="base")
    fix = main.branch("fix")
    correct(spark, tmp_path, "SELECT 0 AS k, 'upsert' AS v, 'a' AS dt", mode="upsert")
    correct(spark, tmp_path, "INSERT INTO branch VALUES (0, 'insert', 'a')")
    assert (0, "x,y,upsert,insert", "a") in rows_of(fix)
    correct(spark, tmp_path, "UPDATE branch SET v = 'x,y' WHERE k = 0 AND dt = 'a'")
    correct(spark, tmp_path, "UPDATE branch SET v = concat(v, '!') WHERE k = 1 AND v = 'x,y'")
    correct(spark, tmp_path, "DELETE FROM branch WHERE k = 2 AND dt = 'a'")
    assert rows_of(fix) == [(0, "x,y", "a"), (0, "x,y", "b"), (1, "x,y!", "a"), (1, "x,y!", "b"), (2, "x,y", "b")]
    correct(spark, tmp_path, "SELECT k, upper(v) AS v, dt FROM branch WHERE dt = 'a'", partitions=["dt=a"])
    wait_for_compaction(fix, (1, "later", "a"))
    assert rows_of(fix)[:3] == [(0, "X,Y", "a"), (0, "x,y", "b"), (1, "X,Y!,later", "a")]
    run(tmp_path, "merge_branch", branch="fix", writers_stopped=True)
    assert rows_of(main) == rows_of(fix)
