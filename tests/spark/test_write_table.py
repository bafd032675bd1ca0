"""``write_table``: modes, types, refusals, retries. What was written is read back in Arrow, without Spark."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.snapshot import CommitKind
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import read_arrow
from airflow_paimon.data.arrow_write import write_arrow
from airflow_paimon.data.files.conform import conform_rows
from airflow_paimon.data.write import plan_write, write_rows
from airflow_paimon.spark import compaction, read_table, register, sql, write_table
from airflow_paimon.spark.arrow_frames import collect_arrow
from airflow_paimon.spark.rows_in import temporary_conf
from airflow_paimon.spark.streaming.batch_writer import batch_writer
from airflow_paimon.spark.streaming.sink import QUERY_ID, commit_batch
from tests.oracles.canonical import assert_same_rows
from tests.spark.jobs.operations import in_tasks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = (("k", "BIGINT NOT NULL"), ("v", "STRING"), ("dt", "STRING NOT NULL"))


def make_table(warehouse: Path, *, primary: bool = True, **options: str) -> Table:
    return create_table(
        str(warehouse),
        "d.t",
        COLUMNS,
        partition_keys=["dt"],
        primary_keys=["dt", "k"] if primary else [],
        options={"bucket": "2" if primary else "-1", **options},
    )


def rows_of(table: Table, **options: Any) -> list[tuple[Any, ...]]:
    return sorted(tuple(r.values()) for r in read_arrow(table, **options).to_pylist())


def frame(spark: SparkSession, rows: list[tuple[Any, ...]], schema: str = "k bigint, v string, dt string") -> DataFrame:
    return spark.createDataFrame(rows, schema)


_BUCKETS: dict[str, dict[str, Any]] = {
    "append": {},
    "partitions": {"partition_keys": ["`"]},
    "buckets": {"partition_keys": ["`"], "options": {"bucket": "3", "bucket-key": "a.b"}},
    "keys": {"partition_keys": ["`"], "primary_keys": ["`", "a.b"], "options": {"bucket": "3"}},
    "dynamic": {"partition_keys": ["`"], "primary_keys": ["`", "a.b"], "options": {"bucket": "-1"}},
}


@pytest.mark.every(4)
@pytest.mark.parametrize("kind", _BUCKETS)
def test_columns_whose_names_have_dots_and_backticks(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    """Also where a session takes names in backticks for regular expressions: as one, ``a.b`` matches ``axb``."""
    columns = [("a.b", "INT NOT NULL"), ("axb", "INT"), ("`", "INT NOT NULL"), ("a`b", "STRING")]
    table = create_table(str(tmp_path), "d.t", columns, **_BUCKETS[kind])
    found = [(i, -i, i % 3, f"v{i}") for i in range(60)]
    given = frame(spark, found, "`a.b` int, axb int, ```` int, `a``b` string")
    with temporary_conf(spark, {"spark.sql.parser.quotedRegexColumnNames": "true"}), in_tasks():
        write_table(given, str(tmp_path), "d.t")
        assert rows_of(table) == found
        sql(spark, str(tmp_path), "UPDATE d.t SET `a``b` = 'new' WHERE axb > -10")
        sql(spark, str(tmp_path), "DELETE FROM d.t WHERE axb < -50")
    assert rows_of(table) == [(i, -i, i % 3, "new" if i < 10 else f"v{i}") for i in range(51)]


def test_append_upserts_by_key_and_row_kind_deletes(spark: SparkSession, tmp_path: Path) -> None:
    table = make_table(tmp_path)
    first = spark.range(1000).selectExpr("id as k", "concat('v', id) as v", "if(id < 500, 'a', 'b') as dt")
    result = write_table(first, str(tmp_path), "d.t")
    assert (result["changed"], result["snapshot_before"], result["snapshot_after"]) == (True, None, 1)
    assert (result["details"]["rows"], result["details"]["buckets"]) == (1000, 4)
    changes = frame(
        spark,
        [(1, "new", "a", "+I"), (2, None, "a", "-D"), (2000, "more", "b", "+U")],
        "k bigint, v string, dt string, _row_kind string",
    )
    write_table(changes, str(tmp_path), "d.t")
    expected = {(k, f"v{k}", "a" if k < 500 else "b") for k in range(1000)}
    expected -= {(1, "v1", "a"), (2, "v2", "a")}
    expected |= {(1, "new", "a"), (2000, "more", "b")}
    assert rows_of(table) == sorted(expected)
    assert table.latest_snapshot_id() == 2
    assert {tuple(r) for r in read_table(spark, str(tmp_path), "d.t").collect()} == expected


def test_readers_that_wait_for_a_compaction_get_rows_from_every_writer(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(tmp_path, **{"merge-engine": "first-row"})
    rows = spark.range(4).selectExpr("id as k", "concat('v', id) as v", "if(id < 2, 'a', 'b') as dt")
    write_table(rows, str(tmp_path), "d.t")
    monkeypatch.setattr(compaction, "fits_in_process", lambda files: False)  # in tasks
    write_table(rows.selectExpr("k + 1 as k", "'late' as v", "dt"), str(tmp_path), "d.t")
    expected = {(0, "v0", "a"), (1, "v1", "a"), (2, "late", "a"), (2, "v2", "b"), (3, "v3", "b"), (4, "late", "b")}
    assert set(rows_of(table)) == expected
    register(spark)
    target = {"warehouse": str(tmp_path), "table": "d.t"}
    spark.range(5, 9, 1, 2).selectExpr("id as k", "'x' as v", "'c' as dt").write.format("airflow_paimon").options(
        **target
    ).mode("append").save()
    spark.sparkContext.setLocalProperty(QUERY_ID, "query-1")
    batch_writer(str(tmp_path), "d.t")(frame(spark, [(9, "x", "c")]), 0)
    write = plan_write(table)
    ready = conform_rows(pa.table({"k": [10], "v": ["x"], "dt": ["c"]}), write.schema, table.label)
    commit_batch(table, write, write_rows(write, [ready]), "query-2", 0)
    sql(spark, str(tmp_path), "INSERT INTO d.t VALUES (11, 'x', 'c')")
    expected |= {(k, "x", "c") for k in range(5, 12)}
    assert set(rows_of(table)) == expected
    assert all(f.level > 0 for s in plan_scan(table).splits for f in s.files)


def test_overwrite_replaces_what_it_names(spark: SparkSession, tmp_path: Path) -> None:
    table = make_table(tmp_path)
    warehouse = str(tmp_path)
    write_table(frame(spark, [(1, "x", "a"), (2, "x", "b"), (3, "x", "c")]), warehouse, "d.t")
    write_table(frame(spark, [(9, "y", "a")]), warehouse, "d.t", mode="overwrite", partition={"dt": "a"})
    write_table(frame(spark, [(8, "y", "b")]), warehouse, "d.t", mode="dynamic_overwrite")
    assert rows_of(table) == [(3, "x", "c"), (8, "y", "b"), (9, "y", "a")]
    with pytest.raises(InvalidInputError, match="lie outside the partitions"):
        write_table(frame(spark, [(8, "y", "b")]), warehouse, "d.t", mode="overwrite", partition={"dt": "a"})
    write_table(frame(spark, []), warehouse, "d.t", mode="overwrite", partition={"dt": "c"})
    never = frame(spark, [(8, "y", "b")]).selectExpr("k", "raise_error('read') v", "dt")
    with pytest.raises(InvalidInputError, match=r"^d\.t: 'day' is not a partition column"):
        write_table(never, warehouse, "d.t", mode="overwrite", partition={"day": "a"})
    assert rows_of(table) == [(8, "y", "b"), (9, "y", "a")]
    write_table(frame(spark, [(5, "z", "e")]), warehouse, "d.t", mode="overwrite")
    assert rows_of(table) == [(5, "z", "e")]
    assert [s.commit_kind for s in table.snapshots()] == [CommitKind.APPEND, *[CommitKind.OVERWRITE] * 4]


@pytest.mark.every(2)
@pytest.mark.parametrize("keys", [["dt"], []], ids=["partitioned", "unpartitioned"])
def test_append_table(spark: SparkSession, tmp_path: Path, keys: list[str]) -> None:
    table = create_table(str(tmp_path), "d.t", COLUMNS, partition_keys=keys)
    rows = spark.range(0, 100, 1, 4).selectExpr("id % 7 as k", "null as v", "concat('p', id % 3) as dt")
    with pytest.raises(InvalidInputError, match="'v' is STRING"):
        write_table(rows.withColumn("v", rows.k), str(tmp_path), "d.t")
    for _ in range(2):
        write_table(rows, str(tmp_path), "d.t")
    assert rows_of(table) == sorted([(i % 7, None, f"p{i % 3}") for i in range(100)] * 2)
    assert read_table(spark, str(tmp_path), "d.t").count() == 200


def test_every_type_comes_back(spark: SparkSession, tmp_path: Path) -> None:
    types = {
        "b": "BOOLEAN", "i1": "TINYINT", "i2": "SMALLINT", "i4": "INT", "i8": "BIGINT", "f4": "FLOAT", "f8": "DOUBLE",
        "d1": "DECIMAL(9, 2)", "d2": "DECIMAL(38, 10)", "c": "CHAR(3)", "vc": "VARCHAR(10)", "s": "STRING",
        "bin": "BYTES", "day": "DATE", "t": "TIME(3)", "ts": "TIMESTAMP(6)", "ltz": "TIMESTAMP(6) WITH LOCAL TIME ZONE",
    }  # fmt: skip
    nested = {
        "l": "array<int>", "m": "map<string, bigint>", "r": "struct<x: int, y: array<string>>",
    }  # fmt: skip
    table = create_table(
        str(tmp_path),
        "d.t",
        [("k", "INT NOT NULL"), *types.items(), *_nested()],
        primary_keys=["k"],
        options={"bucket": "2"},
    )
    ddl = (
        "k int, b boolean, i1 tinyint, i2 smallint, i4 int, i8 bigint, f4 float, f8 double, d1 decimal(9,2), "
        "d2 decimal(38,10), c string, vc string, s string, bin binary, day date, t int, ts timestamp_ntz, "
        "ltz timestamp, " + ", ".join(f"{n} {t}" for n, t in nested.items())
    )
    moment = dt.datetime(1969, 12, 31, 23, 59, 59, 123456)
    full = (1, True, -128, -32768, -(2**31), 2**63 - 1, 1.5, float("nan"), Decimal("1234567.89"),
            Decimal("-1234567890123456789012345678.0123456789"), "abc", "äöü", "", b"\x00\xff", dt.date(1500, 2, 3),
            86_399_999, moment, moment, [1, None, 3], {"a": 1, "b": None}, (7, ["x", None]))  # fmt: skip
    rows = [full, (2, *[None] * (len(full) - 1))]
    source = spark.createDataFrame(rows, ddl)
    write_table(source, str(tmp_path), "d.t")
    back = read_arrow(table).to_pylist()
    first = next(r for r in back if r["k"] == 1)
    assert first["d2"] == full[9] and first["day"] == dt.date(1500, 2, 3) and first["t"] == dt.time(23, 59, 59, 999000)
    assert first["ts"] == moment and first["ltz"] == moment.replace(tzinfo=dt.UTC)
    assert first["l"] == [1, None, 3] and first["r"] == {"x": 7, "y": ["x", None]}
    assert set(next(r for r in back if r["k"] == 2).values()) == {2, None}
    for _ in range(2):  # the second time there is something to merge
        assert_same_rows(collect_arrow(read_table(spark, str(tmp_path), "d.t")), collect_arrow(source))
        write_table(source.where("k = 2"), str(tmp_path), "d.t")


def _nested() -> list[tuple[str, Any]]:
    from airflow_paimon.core.format.types import ArrayType, AtomicType, DataField, MapType, RowType

    text, whole, wide = AtomicType("STRING"), AtomicType("INT"), AtomicType("BIGINT")
    row = RowType((DataField(0, "x", whole), DataField(1, "y", ArrayType(text))))
    return [("l", ArrayType(whole)), ("m", MapType(AtomicType("STRING", (), False), wide)), ("r", row)]


def test_rows_that_do_not_fit_are_refused_by_name(spark: SparkSession, tmp_path: Path) -> None:
    table = make_table(tmp_path)
    cases = [
        (frame(spark, [(1, "a")], "k bigint, v string"), "missing columns dt"),
        (frame(spark, [(1, "a", "a", 1)], "k bigint, v string, dt string, w int"), "unknown columns w"),
        (frame(spark, [(1, "a", "a")], "k bigint, v string, dt string").selectExpr("k", "k as v", "dt"), "'v' is"),
        (frame(spark, [(None, "a", "a")]), "'k' is part of the primary key"),
        (frame(spark, [(1, "a", "a", "+X")], "k bigint, v string, dt string, _row_kind string"), "_row_kind must be"),
    ]
    for rows, text in cases:
        with pytest.raises(InvalidInputError, match=text):
            write_table(rows, str(tmp_path), "d.t")
    assert table.latest_snapshot_id() is None
    assert not list(tmp_path.rglob("*.parquet"))


def test_rows_that_are_merged_may_lack_columns(spark: SparkSession, tmp_path: Path) -> None:
    options = {"merge-engine": "partial-update", "bucket": "1"}
    columns = [("k", "BIGINT NOT NULL"), ("a", "STRING"), ("b", "STRING"), ("c", "STRING")]
    table = create_table(str(tmp_path), "d.t", columns, primary_keys=["k"], options=options)
    register(spark)
    write_table(frame(spark, [(1, "a"), (2, "a")], "k bigint, a string"), str(tmp_path), "d.t")
    given = frame(spark, [(2, "b")], "k bigint, b string")
    given.write.format("airflow_paimon").options(warehouse=str(tmp_path), table="d.t").mode("append").save()
    sql(spark, str(tmp_path), "INSERT INTO d.t (c, k) VALUES ('c', 1)")
    assert rows_of(table) == [(1, "a", None, "c"), (2, "a", "b", None)]
    with pytest.raises(InvalidInputError, match="missing columns b, c"):
        write_table(frame(spark, [(1, "a")], "k bigint, a string"), str(tmp_path), "d.t", mode="overwrite")


def test_the_same_operation_id_writes_once(spark: SparkSession, tmp_path: Path) -> None:
    table = make_table(tmp_path)
    rows = frame(spark, [(1, "x", "a")])
    first = write_table(rows, str(tmp_path), "d.t", operation_id="op")
    again = write_table(rows, str(tmp_path), "d.t", operation_id="op")
    assert (again["changed"], again["snapshot_after"]) == (True, first["snapshot_after"])
    assert table.latest_snapshot_id() == 1
    with pytest.raises(InvalidInputError, match="another request"):
        write_table(rows, str(tmp_path), "d.t", mode="overwrite", operation_id="op")


def test_a_refused_write_leaves_its_operation_id_free(spark: SparkSession, tmp_path: Path) -> None:
    make_table(tmp_path)
    too_many = frame(spark, [(1, "x", None)])  # only the tasks see the null
    with pytest.raises(InvalidInputError, match="dt"):
        write_table(too_many, str(tmp_path), "d.t", operation_id="op")
    result = write_table(
        frame(spark, [(1, "x", "a")]), str(tmp_path), "d.t", mode="dynamic_overwrite", operation_id="op"
    )
    assert result["snapshot_after"] == 1


def test_settings_of_the_session_are_put_back(spark: SparkSession, tmp_path: Path) -> None:
    make_table(tmp_path)
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    spark.conf.set(name, "7")
    try:
        write_table(frame(spark, [(i, "x", "a") for i in range(50)]), str(tmp_path), "d.t")
        assert spark.conf.get(name) == "7"
    finally:
        spark.conf.unset(name)


def test_a_writer_in_between_makes_it_write_again_with_higher_numbers(spark: SparkSession, tmp_path: Path) -> None:
    table = make_table(tmp_path, bucket="1")
    write_arrow(table, pa.table({"k": [1], "v": ["old"], "dt": ["a"]}))
    mark = tmp_path / "mark"

    def intrude(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with suppress(FileExistsError):  # one caller only: several tasks may come at once
            mark.touch(exist_ok=False)
            write_arrow(table, pa.table({"k": [1, 2], "v": ["theirs", "theirs"], "dt": ["a", "a"]}))
        yield from batches

    rows = frame(spark, [(1, "ours", "a")]).coalesce(1).mapInArrow(intrude, "k bigint, v string, dt string")
    write_table(rows, str(tmp_path), "d.t")
    assert rows_of(table) == [(1, "ours", "a"), (2, "theirs", "a")]
    assert table.latest_snapshot_id() == 3
    live = {p.name for p in tmp_path.rglob("*.parquet")}
    assert len(live) == 3, "the files of the first try are gone"


def test_the_same_id_with_another_query_is_refused_and_a_retry_is_not(spark: SparkSession, tmp_path: Path) -> None:
    """A read of the table itself is another plan after the write, and still the same query."""
    table = make_table(tmp_path)
    write_table(spark.range(10).selectExpr("id as k", "'v' as v", "'a' as dt"), str(tmp_path), "d.t")

    def corrected(limit: int) -> DataFrame:
        now = read_table(spark, str(tmp_path), "d.t", where="dt = 'a'")
        return now.where(f"k < {limit}").selectExpr("k", f"concat(v, '{limit}', uuid() is null) as v", "dt")

    first = write_table(corrected(5), str(tmp_path), "d.t", mode="dynamic_overwrite", operation_id="op")
    retry = write_table(corrected(5), str(tmp_path), "d.t", mode="dynamic_overwrite", operation_id="op")
    assert first["snapshot_after"] == retry["snapshot_after"] == 2
    with pytest.raises(InvalidInputError, match="another request"):
        write_table(corrected(4), str(tmp_path), "d.t", mode="dynamic_overwrite", operation_id="op")
    assert len(rows_of(table)) == 5
