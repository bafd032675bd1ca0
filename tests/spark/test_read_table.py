"""``read_table``: conditions and what they spare, evolution through Spark's reader, broken files, time travel."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_paimon.core.errors import FormatError, InvalidInputError, NotFoundError, PaimonError
from airflow_paimon.core.format.timestamp import Timestamp
from airflow_paimon.core.format.types import AtomicType
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.schema.schema_plan import AddColumn, DropColumn, RenameColumn, WidenColumn
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.predicate import AllOf, AnyOf, Condition, Predicate
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import read_arrow
from airflow_paimon.data.arrow_write import write_arrow
from airflow_paimon.data.planner import plan_rows
from airflow_paimon.data.read import read_split
from airflow_paimon.data.read_groups import plan_of
from airflow_paimon.data.read_splits import with_positions
from airflow_paimon.spark import native_scan, parquet_scan, read_table, sql
from airflow_paimon.spark.arrow_frames import collect_arrow
from airflow_paimon.spark.filters import parse_where
from airflow_paimon.spark.jobs import run_spark_operation
from airflow_paimon.spark.native_scan import divide
from airflow_paimon.spark.parquet_scan import parquet_relation
from airflow_paimon.spark.read import frame_of
from airflow_paimon.spark.row_positions import ROW_INDEX
from airflow_paimon.spark.rows_in import temporary_conf
from tests.core.tables import alter_table
from tests.data.chain.examples import mark_deleted
from tests.randomness import chance
from tests.spark.jobs.operations import make_branch, put, rows_of, run, values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def rows(spark: SparkSession, warehouse: Path, **options: Any) -> list[tuple[Any, ...]]:
    return sorted(tuple(r) for r in read_table(spark, str(warehouse), "d.t", **options).collect())


def native_and_merged(spark: SparkSession, table: Table) -> tuple[int, int]:
    [(read, splits)] = plan_rows(table).layers
    division = divide(spark, read, splits)
    return sum(map(len, division.native.values())), len(division.merged)


def test_what_needs_no_merge_goes_through_sparks_reader(spark: SparkSession, tmp_path: Path) -> None:
    main, _ = make_branch(tmp_path)
    assert native_and_merged(spark, main) == (6, 0)
    put(main, [(3, "again", "a"), (4, None, "b", "-D")][:1])
    put(main, [(4, None, "b", "-D")])
    assert native_and_merged(spark, main) == (4, 2)
    expected = rows_of(main)
    assert rows(spark, tmp_path) == expected and len(expected) == 29
    assert rows(spark, tmp_path, version=3) == rows_of(main, version=3)
    assert rows(spark, tmp_path, columns=["dt", "k"], where="v = 'again'") == [("a", 3)]
    with pytest.raises(NotFoundError):
        read_table(spark, str(tmp_path), "d.t", version="nothing")
    with pytest.raises(InvalidInputError, match="no column 'x'"):
        read_table(spark, str(tmp_path), "d.t", columns=["x"])
    with pytest.raises(InvalidInputError, match=r"`x`.*\(columns: k, v, dt\)") as refused:
        read_table(spark, str(tmp_path), "d.t", where="x = 1")
    assert "\n" not in refused.value.message


def test_row_ids_versions_and_places_of_rows(spark: SparkSession, tmp_path: Path) -> None:
    """Several files a folder, some of which store their ids."""
    options = {"row-tracking.enabled": "true"}
    columns = [("k", "INT"), ("dt", "STRING"), ("file name", "STRING")]
    table = create_table(str(tmp_path), "d.t", columns, partition_keys=["dt"], options=options)
    for start in (0, 10, 20):
        found = [{"k": start + i, "dt": "ab"[i % 2], "file name": "x" * i} for i in range(10)]
        write_arrow(table, pa.Table.from_pylist(found, read_arrow(table).schema))
    sql(spark, str(tmp_path), "UPDATE d.t SET k = -k WHERE k IN (3, 12, 13)")
    names = ["_SEQUENCE_NUMBER", "k", "dt", "file name", "_ROW_ID"]
    expected = sorted(tuple(r.values()) for r in read_arrow(table, columns=names).to_pylist())
    assert {r[0] for r in expected} == {1, 2, 3, 4} and sorted(r[4] for r in expected) == list(range(30))
    assert rows(spark, tmp_path, columns=names) == expected
    few = rows(spark, tmp_path, columns=names, where="_ROW_ID IN (3, 27) OR _SEQUENCE_NUMBER = 4")
    assert few == [r for r in expected if r[4] in (3, 27) or r[0] == 4] and len(few) > 2
    [(read, splits)] = plan_rows(table).layers
    read = with_positions(read)
    assert not divide(spark, read, splits).merged
    placed = [tuple(r.values()) for split in splits for b in read_split(read, split) for r in b.to_pylist()]
    assert sorted(map(tuple, frame_of(spark, plan_of((read, splits))).collect())) == sorted(placed)


def test_ids_that_files_store_are_read_without_positions(spark: SparkSession, tmp_path: Path) -> None:
    """Of files whose ids no manifest has; the others of the same read need positions."""
    table = create_table(str(tmp_path), "d.t", [("k", "INT")], options={"row-tracking.enabled": "true"})
    for start in (0, 10):
        write_arrow(table, pa.table({"k": pa.array(range(start, start + 10), pa.int32())}))
    assert run_spark_operation(spark, build_request("compact", values(tmp_path, min_files=2))).changed
    names = ["k", "_ROW_ID", "_SEQUENCE_NUMBER"]
    expected = [(k, k, 1 + k // 10) for k in range(20)]
    frame = read_table(spark, str(tmp_path), "d.t", columns=names)
    plan = str(frame._jdf.queryExecution().executedPlan())
    assert "FileScan parquet" in plan and ROW_INDEX.name not in plan and "a row without _ROW_ID" in plan
    assert sorted(map(tuple, frame.collect())) == expected
    assert rows(spark, tmp_path, columns=["k"], where="_ROW_ID IN (3, 12)") == [(3,), (12,)]
    write_arrow(table, pa.table({"k": pa.array([20], pa.int32())}))
    assert rows(spark, tmp_path, columns=names) == [*expected, (20, 20, 4)]


def test_deletion_vectors_of_files_that_spark_reads_itself(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first and last rows of words and files, all rows of a file, files without a vector, files of one size."""
    options = {"deletion-vectors.enabled": "true", "file.format": "parquet"}
    columns = [("k", "INT"), ("v", "STRING"), ("p", "STRING")]
    table = create_table(str(tmp_path), "d.t", columns, partition_keys=["p"], options=options)
    deleted = {"a": [0, 62, 63, 64, 127, 128, 699], "b": list(range(700)), "c": [5], "d": []}
    for p in deleted:
        found = [{"k": i, "v": f"v{i % 7}", "p": p} for i in range(700)]
        write_arrow(table, pa.Table.from_pylist(found, read_arrow(table).schema))
    for p, positions in deleted.items():
        if positions:
            mark_deleted(table, (p,), positions)
    write_arrow(table, pa.Table.from_pylist([{"k": 0, "v": "second", "p": "a"}], read_arrow(table).schema))
    expected = [(i, f"v{i % 7}", p) for p, gone in deleted.items() for i in range(700) if i not in gone]
    expected = sorted([*expected, (0, "second", "a")])
    assert len({f.file_size for s in plan_scan(table).splits for f in s.files}) < 5
    assert native_and_merged(spark, table) == (5, 0)
    assert rows(spark, tmp_path) == expected
    assert rows(spark, tmp_path, where="k > 126 AND v != 'v1'", columns=["k"]) == [
        (k,) for k, v, _ in expected if k > 126 and v != "v1"
    ]
    assert read_table(spark, str(tmp_path), "d.t").count() == len(expected)
    monkeypatch.setattr(native_scan, "MAX_SCAN_ROWS", 700)
    [(read, splits)] = plan_rows(table).layers
    assert sorted(len(files) for files in divide(spark, read, splits).native.values()) == [1, 1, 1, 2]
    assert rows(spark, tmp_path) == expected
    monkeypatch.setattr(native_scan, "MAX_BITMAP_ROWS", 1500)
    assert native_and_merged(spark, table) == (4, 1)
    assert rows(spark, tmp_path) == expected
    next((tmp_path / "d.db" / "t" / "index").glob("index-a")).write_bytes(b"\x01short")
    with pytest.raises(FormatError, match=r"deletion vector of data-.* is corrupt"):
        rows(spark, tmp_path)


def test_rows_of_random_files_as_our_reader_has_them(spark: SparkSession, tmp_path: Path) -> None:
    """Files of one size and of different ones, of two schemas, deleted rows at random, row ids and versions."""
    draw = chance("files and deleted rows")
    options = {"deletion-vectors.enabled": "true", "row-tracking.enabled": "true"}
    columns = [("k", "INT"), ("constant vector", "STRING"), ("p", "STRING")]
    table = create_table(str(tmp_path), "d.t", columns, partition_keys=["p"], options=options)
    partitions = ["", None, *"abcd"]  # the first two share a folder
    draw.shuffle(partitions)
    of_one_size = draw.sample(range(6), 3)
    for number, p in enumerate(partitions):
        if number == 4:
            alter_table(table, [AddColumn(name="new", type="BIGINT")])
        count = 300 if number in of_one_size else draw.randint(1, 400)
        text = ["x" if number in of_one_size else str(draw.random()) * (number + 1) for _ in range(count)]
        found = [{"k": i, "constant vector": t, "p": p, "new": i} for i, t in enumerate(text)]
        write_arrow(table, pa.Table.from_pylist(found, read_arrow(table).schema))
        gone = sorted(draw.sample(range(count), draw.choice((0, 1, count // 2, count))))
        if gone and p is not None:
            mark_deleted(table, (p,), gone)
    names = ["_ROW_ID", "k", "new", "constant vector", "p", "_SEQUENCE_NUMBER"]
    expected = sorted((tuple(r.values()) for r in read_arrow(table, columns=names).to_pylist()), key=lambda r: r[0])
    assert native_and_merged(spark, table) == (6, 0)
    frame = read_table(spark, str(tmp_path), "d.t", columns=names)
    assert sorted(map(tuple, frame.collect()), key=lambda r: r[0]) == expected
    read = [(frame.where(text), keep) for text, keep in _CONDITIONS.items()]
    for found_rows, keep in read:
        assert sorted(r[0] for r in found_rows.collect()) == [r[0] for r in expected if keep(r)]


_CONDITIONS: dict[str, Callable[[tuple[Any, ...]], bool]] = {
    "_ROW_ID % 3 = 0 AND _SEQUENCE_NUMBER > 2": lambda r: r[0] % 3 == 0 and r[5] > 2,
    "p = '' OR _SEQUENCE_NUMBER = 4": lambda r: r[4] == "" or r[5] == 4,
}


def test_a_read_stays_right_when_spark_lists_its_files_anew(spark: SparkSession, tmp_path: Path) -> None:
    options = {"deletion-vectors.enabled": "true", "row-tracking.enabled": "true"}
    table = create_table(str(tmp_path), "d.t", [("k", "INT"), ("p", "STRING")], partition_keys=["p"], options=options)
    for p in "aab":
        write_arrow(table, pa.table({"k": pa.array(range(9), pa.int32()), "p": [p] * 9}))
    mark_deleted(table, ("b",), [0, 8])
    names = ["_ROW_ID", "k", "p", "_SEQUENCE_NUMBER"]
    expected = sorted(tuple(r.values()) for r in read_arrow(table, columns=names).to_pylist())
    frame = read_table(spark, str(tmp_path), "d.t", columns=names)
    frame.createOrReplaceTempView("read_anew")
    spark.catalog.refreshTable("read_anew")
    assert sorted(map(tuple, spark.table("read_anew").collect())) == expected
    assert [r[0] for r in expected] == [*range(18), *range(19, 26)]
    next((tmp_path / "d.db" / "t" / "p=a").rglob("*.parquet")).unlink()
    spark.catalog.refreshTable("read_anew")
    with pytest.raises(Exception, match=r"p=a/bucket-0/data-.* is missing"):
        spark.table("read_anew").collect()
    spark.catalog.dropTempView("read_anew")


def test_reads_of_the_same_files_at_two_versions_in_one_query(spark: SparkSession, tmp_path: Path) -> None:
    """Spark runs equal scans once: those of the same files with other deleted rows are not equal."""
    table = create_table(str(tmp_path), "d.t", [("k", "INT")], options={"deletion-vectors.enabled": "true"})
    write_arrow(table, pa.table({"k": pa.array(range(20), pa.int32())}))
    for gone in (3, 4):
        sql(spark, str(tmp_path), f"DELETE FROM d.t WHERE k = {gone}")
    assert native_and_merged(spark, table) == (1, 0)
    older, newer = (read_table(spark, str(tmp_path), "d.t", version=v).groupBy().sum("k") for v in (2, 3))
    assert [tuple(r) for r in older.crossJoin(newer).collect()] == [(190 - 3, 190 - 3 - 4)]


def test_an_index_of_files_is_equal_to_one_with_the_same_values(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql.types import LongType, StructType

    paths = []
    for name in "ab":
        spark.range(3).coalesce(1).write.parquet(f"file:{tmp_path}/{name}")
        [found] = (tmp_path / name).glob("*.parquet")
        paths.append(f"file:{found}")

    def index(numbers: list[int], files: Sequence[str] = paths) -> Any:
        values = StructType().add("n", LongType())
        schema = StructType().add("id", LongType())
        return parquet_relation(spark, files, schema, {}, pa.table({"n": numbers}), values).location()

    assert index([1, 2]) == index([1, 2])
    assert index([1, 2]) != index([2, 1])
    assert index([1, 2]) != index([1], paths[:1])


_OTHER_SPARKS = {
    "without a class": ("datasources.NoopCache", "datasources.NoCache", "NoCache"),
    "that finds no files by their values": ("leafDirToChildrenFiles()", "filesOfFolders()", "found 0 of 6 files"),
    "that fails": ("paths.length; i++", "paths.length; i += spec.hashCode()", "NullPointerException"),
}


@pytest.mark.parametrize("other", _OTHER_SPARKS)
def test_a_spark_that_can_not_make_the_index_reads_in_tasks(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, other: str
) -> None:
    before, after, reason = _OTHER_SPARKS[other]
    main, _ = make_branch(tmp_path)
    monkeypatch.setattr(parquet_scan, "_SOURCE", parquet_scan._SOURCE.replace(before, after))
    monkeypatch.setattr(parquet_scan, "_generated", lru_cache(parquet_scan._generated.__wrapped__))
    # py4j keeps methods by the names of their classes in each thread, and all that Spark compiles has one name
    with ThreadPoolExecutor(1) as thread:
        frame = thread.submit(read_table, spark, str(tmp_path), "d.t").result()
    assert not frame.inputFiles()
    assert sorted(map(tuple, frame.collect())) == rows_of(main)
    [warning] = [r.getMessage() for r in caplog.records if r.name == parquet_scan.__name__]
    assert reason in warning


def test_a_condition_spares_partitions_and_files_and_is_applied(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql import functions as sf

    main, _ = make_branch(tmp_path, bucket="1")
    put(main, [(1, "new", "a"), (500, "far", "b")])
    expected = rows_of(main)
    for split in plan_scan(main).splits:
        for file in split.files:
            if split.values[0] == "c" or (file.row_count == 1 and split.values[0] == "b"):
                (tmp_path / "d.db" / "t" / f"dt={split.values[0]}" / "bucket-0" / file.file_name).unlink()
    assert rows(spark, tmp_path, where="dt IN ('a', 'b') AND k < 100") == [
        r for r in expected if r[0] < 100 and r[2] != "c"
    ]
    assert rows(spark, tmp_path, where=(sf.col("dt") == "a") & (sf.upper("v") == "NEW")) == [(1, "new", "a")]
    assert rows(spark, tmp_path, where="dt = 'nowhere'") == []
    with pytest.raises(FormatError, match=r"data file data-.* is missing"):
        read_table(spark, str(tmp_path), "d.t", where="dt = 'c'")


def test_a_file_that_is_a_link_is_not_read(spark: SparkSession, tmp_path: Path) -> None:
    make_branch(tmp_path)
    file = next((tmp_path / "d.db" / "t" / "dt=a").rglob("*.parquet"))
    file.rename(tmp_path / "elsewhere.parquet")
    file.symlink_to(tmp_path / "elsewhere.parquet")
    with pytest.raises(PaimonError, match="link"):
        read_table(spark, str(tmp_path), "d.t")


def test_a_truncated_file_is_noticed_before_anything_is_read(spark: SparkSession, tmp_path: Path) -> None:
    make_branch(tmp_path)
    file = next((tmp_path / "d.db" / "t" / "dt=a").rglob("*.parquet"))
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(FormatError, match="bytes instead of"):
        read_table(spark, str(tmp_path), "d.t")


def test_columns_follow_their_ids_in_sparks_reader_too(spark: SparkSession, tmp_path: Path) -> None:
    table = create_table(str(tmp_path), "d.t", [("k", "BIGINT"), ("a", "INT"), ("b", "STRING")])
    write_arrow(table, pa.table({"k": [1], "a": pa.array([10], pa.int32()), "b": ["x"]}))
    alter_table(table, [RenameColumn(name="a", to_name="c"), DropColumn(name="b")])
    alter_table(table, [AddColumn(name="b", type="INT"), AddColumn(name="a", type="STRING")])
    alter_table(table, [WidenColumn(name="c", type="BIGINT")])
    write_arrow(table, pa.table({"k": [2], "c": [2**40], "b": pa.array([5], pa.int32()), "a": ["new"]}))
    assert native_and_merged(spark, table) == (2, 0)
    assert rows(spark, tmp_path, columns=["k", "c", "b", "a"]) == [(1, 10, None, None), (2, 2**40, 5, "new")]
    assert rows(spark, tmp_path, version=1) == [(1, 10, "x")]


def test_null_and_empty_partitions_share_a_folder_and_stay_apart(spark: SparkSession, tmp_path: Path) -> None:
    table = create_table(str(tmp_path), "d.t", [("k", "INT"), ("p", "STRING")], partition_keys=["p"])
    values = [None, "", "a b", "x=1%/ü"]
    write_arrow(table, pa.table({"k": pa.array(range(4), pa.int32()), "p": values}))
    found = read_table(spark, str(tmp_path), "d.t").collect()
    assert {r.k: r.p for r in found} == dict(enumerate(values))
    assert {r.k for r in read_table(spark, str(tmp_path), "d.t", where="p IS NULL").collect()} == {0}
    assert {r.k for r in read_table(spark, str(tmp_path), "d.t", where="p = ''").collect()} == {1}


def test_many_partitions_are_one_scan(spark: SparkSession, tmp_path: Path) -> None:
    table = create_table(
        str(tmp_path), "d.t", [("k", "INT"), ("day", "DATE"), ("h", "INT")], partition_keys=["day", "h"]
    )
    days = [dt.date(2025, 1, 1) + dt.timedelta(days=i // 2) for i in range(60)]
    hours = pa.array([i % 2 for i in range(60)], pa.int32())
    write_arrow(table, pa.table({"k": pa.array(range(60), pa.int32()), "day": days, "h": hours}))
    frame = read_table(spark, str(tmp_path), "d.t")
    assert len(frame.inputFiles()) == 60
    assert str(frame._jdf.queryExecution().executedPlan()).count("FileScan parquet") == 1
    assert sorted((r.k, r.day, r.h) for r in frame.collect()) == [(i, days[i], i % 2) for i in range(60)]
    assert len(read_table(spark, str(tmp_path), "d.t", where="day < '2025-01-03' AND h = 1").inputFiles()) == 2


@pytest.mark.parametrize("most", ["0", "48MB"])
def test_values_of_files_that_are_no_part_of_a_plan(spark: SparkSession, tmp_path: Path, most: str) -> None:
    """``most``: bytes of rows that Spark puts into a plan, as it does not those of very many files. Columns that
    come as they are have names that are to be quoted.
    """
    names = ["a.b", "p", "`q` "]
    table = create_table(str(tmp_path), "d.t", [(n, "STRING") for n in names], partition_keys=["p"])
    found = [("x", "first", "y"), (None, None, "z"), ("x", "", None)]
    write_arrow(table, pa.Table.from_pylist([dict(zip(names, r, strict=True)) for r in found]))
    with temporary_conf(spark, {"spark.sql.execution.arrow.localRelationThreshold": most}):
        frame = read_table(spark, str(tmp_path), "d.t")
    assert "FileScan parquet" in str(frame._jdf.queryExecution().executedPlan()) and frame.columns == names
    assert sorted(map(tuple, frame.collect()), key=repr) == sorted(found, key=repr)


def test_a_branch_reads_the_same_after_main_went_on(spark: SparkSession, tmp_path: Path) -> None:
    main, fix = make_branch(tmp_path)
    frame = read_table(spark, str(tmp_path), "d.t", branch="fix")
    put(main, [(1, "main", "a")])
    put(fix, [(1, "fix", "a")])
    assert sorted(tuple(r) for r in frame.collect()) == rows_of(main, version=3), "the snapshot is pinned"
    assert (1, "fix", "a") in rows(spark, tmp_path, branch="fix")
    run(tmp_path, "create_tag", tag="t")
    assert (1, "main", "a") in rows(spark, tmp_path, version="t")


TYPES = [("i", "INT"), ("s", "STRING"), ("d", "DECIMAL(9, 2)"), ("day", "DATE"), ("at", "TIMESTAMP(6)"),
         ("fine", "TIMESTAMP(9)"), ("b", "BOOLEAN")]  # fmt: skip
PARSED: list[tuple[str, Predicate | None]] = [
    ("i = 1", Condition("i", "=", 1)),
    ("1 < i", Condition("i", ">", 1)),
    ("NOT (i < 1 OR s = 'x')", AllOf((Condition("i", ">=", 1), Condition("s", "!=", "x")))),
    ("i IN (1, 2) OR i IS NULL", AnyOf((Condition("i", "in", (1, 2)), Condition("i", "is null")))),
    ("i BETWEEN 1 AND 3", AllOf((Condition("i", ">=", 1), Condition("i", "<=", 3)))),
    ("day = '2025-01-02'", Condition("day", "=", dt.date(2025, 1, 2))),
    ("at >= TIMESTAMP_NTZ '1970-01-01 00:00:01.5'", Condition("at", ">=", Timestamp(1500))),
    ("d = 1.5", Condition("d", "=", Decimal("1.50"))),
    ("startswith(s, 'ab') AND rand() < 2", Condition("s", "starts with", "ab")),
    ("i <=> 3", Condition("i", "=", 3)),
    ("NOT i <=> 3", None),
    ("i NOT IN (1, 2)", Condition("i", "not in", (1, 2))),
    ("i = 1 OR upper(s) = 'X'", None),
    ("i + 1 = 2", None),
    ("day <= current_date()", None),
    ("fine = TIMESTAMP_NTZ '1970-01-01'", None),
    ("i = NULL", None),
]


@pytest.mark.parametrize(("text", "expected"), PARSED, ids=[t for t, _ in PARSED])
def test_what_a_condition_says_for_sure(
    spark: SparkSession, tmp_path: Path, text: str, expected: Predicate | None
) -> None:
    schema = create_table(str(tmp_path), "d.t", TYPES).schema()
    assert parse_where(spark, text, schema).predicate == expected


def test_partitions_of_zero_and_minus_zero_are_read_apart(spark: SparkSession, tmp_path: Path) -> None:
    table = create_table(str(tmp_path), "d.t", [("p", "DOUBLE"), ("k", "INT")], partition_keys=["p"])
    values = [0.0, -0.0, float("nan"), None]
    write_arrow(table, pa.table({"p": values, "k": pa.array(range(4), pa.int32())}))
    assert native_and_merged(spark, table) == (4, 0)
    found = read_table(spark, str(tmp_path), "d.t").collect()
    assert sorted((r.k, repr(r.p)) for r in found) == [(k, repr(p)) for k, p in enumerate(values)]


def test_nan_is_the_greatest_value_also_where_bounds_leave_it_out(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in files that Arrow wrote before; -0.0 is 0.0, which dictionaries tell apart."""
    writer = pq.ParquetWriter
    monkeypatch.setattr(pq, "ParquetWriter", lambda *given, **more: writer(*given, **more | {"write_statistics": True}))
    columns = [("k", "INT"), ("d", "DOUBLE"), ("f", "FLOAT"), ("r", "ROW<x DOUBLE>"), ("z", "DOUBLE")]
    table = create_table(str(tmp_path), "d.t", columns, options={"bucket": "-1"})
    kinds, nan = read_arrow(table).schema, float("nan")
    made = [{"k": k, "d": v, "f": v, "r": {"x": v}, "z": -0.0} for k, v in enumerate([1.0, nan] * 4)]
    write_arrow(table, pa.Table.from_pylist(made, kinds))
    assert native_and_merged(spark, table) == (1, 0)
    nans = ("d > 5", "d = double('NaN')", "f >= 2", "f IN (float('NaN'), 7)", "r.x > 5", "d != 1", "NOT d <= 5",
            "d BETWEEN 2 AND double('NaN')", "d <=> double('NaN')", "k > 0 AND r.x = double('NaN')")  # fmt: skip
    for text in nans:
        assert read_table(spark, str(tmp_path), "d.t").where(text).count() == 4, text
        assert read_table(spark, str(tmp_path), "d.t", where=text).count() == 4, text
    assert read_table(spark, str(tmp_path), "d.t", where="z = 0.0").count() == 8
    assert sql(spark, str(tmp_path), "UPDATE d.t SET k = -1 WHERE d = double('NaN')")["details"]["rows_updated"] == 4
    merge = "MERGE INTO d.t t USING (SELECT double('NaN') d) s ON t.d = s.d AND t.d > 5 WHEN MATCHED THEN DELETE"
    assert sql(spark, str(tmp_path), merge)["details"]["rows_deleted"] == 4
    assert sorted(read_arrow(table).column("d").to_pylist()) == [1.0] * 4


def test_partition_values_of_all_types_are_those_of_our_reader(spark: SparkSession, tmp_path: Path) -> None:
    """In a session whose zone is not UTC, and another one than Python's."""
    draw = chance("partition values")
    kinds = ["BOOLEAN", "TINYINT", "SMALLINT", "BIGINT", "FLOAT", "DECIMAL(20, 3)", "DATE", "STRING", "TIMESTAMP(3)",
             "TIMESTAMP(6)", "TIMESTAMP(6) WITH LOCAL TIME ZONE"]  # fmt: skip
    keys = [f"p{i}" for i in range(len(kinds))]
    table = create_table(str(tmp_path), "d.t", [("k", "INT"), *zip(keys, kinds, strict=True)], partition_keys=keys)
    schema = read_arrow(table).schema

    def value(kind: str) -> Any:
        at = dt.datetime(1969, 12, 31) + dt.timedelta(milliseconds=draw.randint(0, 2**40))
        made = {"BOOLEAN": at.day < 9, "FLOAT": draw.randint(-9, 9) / 4, "DECIMAL(20, 3)": Decimal(draw.randint(-9, 9)),
                "DATE": at.date(), "STRING": draw.choice(["", "a b", "x=1%/ü"])}  # fmt: skip
        found = at if kind.startswith("TIMESTAMP") else made.get(kind, draw.randint(-99, 99))
        return None if draw.random() < 0.2 else found

    made = [{"k": k, **{n: value(t) for n, t in zip(keys, kinds, strict=True)}} for k in range(6)]
    write_arrow(table, pa.Table.from_pylist(made, schema))
    assert native_and_merged(spark, table)[1] == 0
    ours = read_arrow(table).sort_by("k")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        found = collect_arrow(read_table(spark, str(tmp_path), "d.t").orderBy("k"))
    finally:
        spark.conf.unset("spark.sql.session.timeZone")
    assert [c.cast(o.type).to_pylist() for c, o in zip(found.columns, ours.columns, strict=True)] == [
        c.to_pylist() for c in ours.columns
    ]


def test_partitions_of_nanoseconds_and_a_session_without_a_limit_of_batches(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The end of time, which other engines write, is none for Arrow's nanoseconds."""
    times = [dt.datetime(9999, 12, 31), dt.datetime(1, 1, 1, 0, 0, 0, 1), dt.datetime(1969, 12, 31, 23, 59, 59, 999999)]
    table = create_table(str(tmp_path), "d.t", [("k", "INT"), ("`p", "TIMESTAMP(6)")], partition_keys=["`p"])
    write_arrow(table, pa.table({"k": pa.array(range(3), pa.int32()), "`p": pa.array(times, pa.timestamp("us"))}))
    schema = table.schema()
    key, finer = schema.fields[1], AtomicType("TIMESTAMP", (9,), True)
    later = replace(schema, id=1, fields=(schema.fields[0], replace(key, type=finer)))
    table.store.create(table.paths.schema(1), later.to_bytes())
    limit = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(limit)
    spark.conf.set(limit, "0")
    try:
        assert rows(spark, tmp_path) == list(enumerate(times))
        assert spark.conf.get(limit) == "0"
    finally:
        spark.conf.set(limit, str(before))


def test_a_column_named_as_the_numbers_of_files_were(spark: SparkSession, tmp_path: Path) -> None:
    """Beside deletion vectors, by which a row's file needs a number. The value of a partition, and a stored one."""
    name = "__airflow_paimon_number"
    for other, partition_keys in (("part", [name]), ("own", [])):
        warehouse = tmp_path / other
        options = {"deletion-vectors.enabled": "true"}
        columns = [("k", "INT"), (name, "INT")]
        table = create_table(str(warehouse), "d.t", columns, partition_keys=partition_keys, options=options)
        for number in (7, None):
            found = [{"k": k, name: number} for k in range(3)]
            write_arrow(table, pa.Table.from_pylist(found, read_arrow(table).schema))
        sql(spark, str(warehouse), "DELETE FROM d.t WHERE k = 1")
        assert native_and_merged(spark, table) == (2, 0)
        found_rows = read_table(spark, str(warehouse), "d.t").collect()
        assert sorted(map(tuple, found_rows), key=repr) == [(0, 7), (0, None), (2, 7), (2, None)]


@pytest.mark.every(2)
@pytest.mark.parametrize("name", ["_row_id", "_Sequence_Number"])
def test_a_column_named_as_one_of_row_tracking_in_other_case(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """Spark's reader does not tell it from the one of row tracking, which the second half of the files stores."""
    columns, options = [("k", "INT"), (name, "INT")], {"row-tracking.enabled": "true"}
    table = create_table(str(tmp_path), "d.t", columns, options=options)
    for stored in (False, True):
        for start in (0, 2) if not stored else ():
            write_arrow(table, pa.table({c: pa.array([start, start + 1], pa.int32()) for c in ("k", name)}))
        if stored:
            assert run_spark_operation(spark, build_request("compact", values(tmp_path, min_files=2))).changed
        ids = [c for c in ("_ROW_ID", "_SEQUENCE_NUMBER") if c != name.upper()]
        for names in (["k", name], [name, *ids], ["_SEQUENCE_NUMBER", "_ROW_ID"], ["_ROW_ID", "k", name]):
            expected = sorted(tuple(r.values()) for r in read_arrow(table, columns=names).to_pylist())
            assert rows(spark, tmp_path, columns=names) == expected and len(expected) == 4


def test_a_condition_and_columns_whose_names_have_backticks(spark: SparkSession, tmp_path: Path) -> None:
    table = create_table(str(tmp_path), "d.t", [("k", "INT"), ("`q` ", "INT"), ("`", "INT")])
    write_arrow(table, pa.table({n: pa.array([1, 2, 3], pa.int32()) for n in ("k", "`q` ", "`")}))
    assert rows(spark, tmp_path, columns=["`", "`q` "], where="k > 1") == [(2, 2), (3, 3)]
    changes = read_table(spark, str(tmp_path), "d.t$audit_log", columns=["rowkind", "`"], where="k = 3")
    assert [tuple(r) for r in changes.collect()] == [("+I", 3)]


def test_row_ids_of_a_table_whose_column_has_the_name_of_sparks_own(spark: SparkSession, tmp_path: Path) -> None:
    columns = [("_metadata", "STRING"), ("_tmp_metadata_row_index", "INT")]
    table = create_table(str(tmp_path), "d.t", columns, options={"row-tracking.enabled": "true"})
    found = {"_metadata": ["a", "b"], "_tmp_metadata_row_index": pa.array([7, 7], pa.int32())}
    write_arrow(table, pa.table(found))
    assert rows(spark, tmp_path, columns=["_ROW_ID", *found]) == [(0, "a", 7), (1, "b", 7)]
