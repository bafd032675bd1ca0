"""O3, Paimon's Java engine, reads what we write, goes on writing and compacting it, and we read the result."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_paimon.core.commit.files import commit_buckets
from airflow_paimon.core.errors import UnsupportedFeatureError
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.data import read_arrow, write_arrow
from airflow_paimon.data.files.conform import conform_rows
from airflow_paimon.data.read import read_split
from airflow_paimon.data.read_splits import plan_read
from airflow_paimon.data.rewrite import NEW_BUCKET, live_bucket, rewrite_bucket
from airflow_paimon.data.write import plan_write
from tests.data.tables import ALL_TYPES, FINE_TYPES, any_row, make_table, rows_of, sorted_changes, without_ids
from tests.oracles.canonical import assert_same_rows
from tests.oracles.drivers import JavaOracle

pytestmark = pytest.mark.oracle
KV = {"k": "INT NOT NULL", "v": "STRING"}

LAYOUTS: dict[str, dict[str, Any]] = {
    "append": {},
    "append-fixed-bucket": {"bucket": "3", "bucket_key": "k"},
    "append-orc-table": {"file__format": "orc"},
    "primary-key": {"primary_keys": ["k"], "bucket": "3"},
    "primary-key-orc-table": {"primary_keys": ["k"], "bucket": "2", "file__format": "orc"},
}


def same(java: JavaOracle, table: Table, folder: Path) -> pa.Table:
    """Assert that both see the same rows; give them."""
    theirs = java.read(folder, table.name)
    assert_same_rows(read_arrow(table), theirs)
    return theirs


def _without_far_years(row: dict[str, Any]) -> dict[str, Any]:
    """Java compacts an ORC table into ORC files, whose timestamps Arrow holds between 1677 and 2262 only."""
    return row | {"t6": dt.datetime(2000, 1, 1, 1, 1, 1, row["k"])}


@pytest.mark.parametrize("columns", [ALL_TYPES, FINE_TYPES], ids=["all-types", "nanoseconds"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.every(2)
def test_java_reads_and_compacts_what_we_write(
    java_oracle: JavaOracle, tmp_path: Path, layout: str, columns: dict[str, Any]
) -> None:
    table = make_table(tmp_path, columns, **LAYOUTS[layout])
    rows = [any_row(i) for i in range(40)]
    if "orc" in layout:
        rows = [_without_far_years(r) for r in rows]
    if "t9" in columns:
        rows = [r | {"t9": dt.datetime(1950, 1, 1, 1, 1, 1, 7)} for r in rows]
    data = rows_of(columns, rows)
    write_arrow(table, data)
    assert_same_rows(java_oracle.read(tmp_path, table.name), data)
    write_arrow(table, rows_of(columns, [r | {"text": "again"} for r in rows[::3]]))
    same(java_oracle, table, tmp_path)
    java_oracle.write(tmp_path, table.name, [{"k": 7, "text": "java"}, {"k": 777}])
    same(java_oracle, table, tmp_path)
    java_oracle.request("compact", warehouse=str(tmp_path), table=table.name)
    same(java_oracle, table, tmp_path)
    write_arrow(table, rows_of(columns, [{"k": 7, "text": "ours"}]))
    same(java_oracle, table, tmp_path)


PARTITION_VALUES: dict[str, list[Any]] = {
    "STRING": ["a", "", " ", "a/b=%: é", None],
    "INT": [-1, 0, 2**31 - 1, None],
    "BOOLEAN": [True, False, None],
    "DATE": [dt.date(1969, 12, 31), dt.date(2025, 2, 28), None],
    "DECIMAL(9, 2)": [Decimal("1.50"), Decimal("-0.01"), None],
    "DECIMAL(30, 3)": [Decimal("10000000000000000000000.125"), None],
    "DOUBLE": [1.5, -0.001, 1e10, 0.0, -0.0, float("nan"), None],
    "TIMESTAMP(3)": [dt.datetime(2025, 1, 2, 3, 4), dt.datetime(2025, 1, 2, 3, 4, 5, 120000), None],
    "TIMESTAMP(6)": [dt.datetime(2025, 1, 2, 3, 4, 5, 123456), None],
}


@pytest.mark.parametrize("legacy", ["true", "false"])
@pytest.mark.parametrize("kind", PARTITION_VALUES)
def test_partitions_of_every_type_go_both_ways(java_oracle: JavaOracle, tmp_path: Path, kind: str, legacy: str) -> None:
    columns = {"p": kind, **KV}
    table = make_table(tmp_path, columns, partition_keys=["p"], partition__legacy_name=legacy)
    rows = [{"p": p, "k": i, "v": "ours"} for i, p in enumerate(PARTITION_VALUES[kind])]
    write_arrow(table, rows_of(columns, rows))
    assert_same_rows(java_oracle.read(tmp_path, table.name), rows_of(columns, rows))
    java_oracle.write(tmp_path, table.name, [r | {"v": "theirs"} for r in rows])
    assert same(java_oracle, table, tmp_path).num_rows == 2 * len(rows)
    folders = {p.parent.parent for p in tmp_path.rglob("*.parquet")}
    assert len(list(tmp_path.rglob("*.parquet"))) >= len(rows) and len(folders) <= len(rows)


KEYS: dict[str, list[Any]] = {
    "TINYINT": [-128, 0, 127],
    "BIGINT": [-(2**63), 0, 2**63 - 1],
    "STRING": ["", "a", "ab", "é", "x" * 40],
    "DATE": [dt.date(1900, 1, 1), dt.date(2100, 1, 1)],
    "DECIMAL(12, 3)": [Decimal("-1.5"), Decimal("0"), Decimal("99999.125")],
    "DECIMAL(30, 3)": [Decimal("-10000000000000000000000.125"), Decimal("0.125"), Decimal("3")],
    "TIMESTAMP(3)": [dt.datetime(1960, 1, 1), dt.datetime(2025, 1, 1, 1, 1, 1, 123000)],
    "TIMESTAMP(6)": [dt.datetime(1960, 1, 1), dt.datetime(2025, 1, 1, 1, 1, 1, 123456)],
    "BOOLEAN": [False, True],
    "DOUBLE": [-1.5, 0.0, 1e300, float("inf")],
    "BYTES": [b"", b"\0", b"\xff", b"abc"],
}


@pytest.mark.parametrize("kind", KEYS)
def test_keys_of_every_type_land_in_the_buckets_that_java_looks_in(
    java_oracle: JavaOracle, tmp_path: Path, kind: str
) -> None:
    columns = {"k": f"{kind} NOT NULL", "j": "INT NOT NULL", "v": "STRING"}
    table = make_table(tmp_path, columns, primary_keys=["k", "j"], bucket="3")
    rows = [{"k": k, "j": j, "v": "old"} for k in KEYS[kind] for j in range(2)]
    java_oracle.write(tmp_path, table.name, rows)
    write_arrow(table, rows_of(columns, [r | {"v": "new"} for r in rows if r["j"]]))
    assert same(java_oracle, table, tmp_path).num_rows == len(rows)
    java_oracle.request("compact", warehouse=str(tmp_path), table=table.name)
    assert same(java_oracle, table, tmp_path).num_rows == len(rows)
    deleted = rows_of(columns, rows[:2]).append_column("_row_kind", pa.array(["-D", "-D"]))
    write_arrow(table, deleted)
    assert same(java_oracle, table, tmp_path).num_rows == len(rows) - 2


def test_zero_keys_are_one_key_as_in_java(java_oracle: JavaOracle, tmp_path: Path) -> None:
    columns = {"k": "DOUBLE NOT NULL", "v": "STRING"}
    table = make_table(tmp_path, columns, primary_keys=["k"], bucket="1")
    write_arrow(table, rows_of(columns, [{"k": 0.0, "v": "a"}, {"k": 1.0, "v": "a"}]))
    write_arrow(table, rows_of(columns, [{"k": -0.0, "v": "b"}]))
    assert same(java_oracle, table, tmp_path).num_rows == 2


def test_a_writer_that_stays_open_keeps_winning_over_a_rewritten_bucket(
    java_oracle: JavaOracle, tmp_path: Path
) -> None:
    """A running writer keeps winning, on the bucket itself: it counts on from what it saw before the rewrite."""
    table = make_table(tmp_path, KV, primary_keys=["k"], bucket="1")
    java_oracle.write(tmp_path, table.name, [{"k": k, "v": "old"} for k in range(4)])
    writer = java_oracle.open_stream_writer(tmp_path, table.name)
    writer.write([{"k": 0, "v": "open"}])
    writer.commit(writer.prepare())
    highest = max(f.max_sequence_number for f in plan_scan(table).splits[0].files)
    _correct(table, [{"k": 0, "v": "fixed"}, {"k": 1, "v": "fixed"}], highest)
    same(java_oracle, table, tmp_path)
    writer.write([{"k": 1, "v": "newer"}])
    writer.commit(writer.prepare())
    writer.close()
    expected = rows_of(KV, [{"k": k, "v": v} for k, v in enumerate(["fixed", "newer", "old", "old"])])
    assert_same_rows(same(java_oracle, table, tmp_path), expected)
    java_oracle.request("compact", warehouse=str(tmp_path), table=table.name)
    assert_same_rows(same(java_oracle, table, tmp_path), expected)


def test_the_first_java_write_wins_over_a_bucket_that_we_made(java_oracle: JavaOracle, tmp_path: Path) -> None:
    """A new bucket gets -1, because a writer that starts on an empty bucket starts at 0."""
    table = make_table(tmp_path, KV, primary_keys=["k"], bucket="1")
    write_arrow(table, rows_of(KV, [{"k": 0, "v": "x"}]))
    _correct(table, [{"k": k, "v": "ours"} for k in range(3)], NEW_BUCKET)
    same(java_oracle, table, tmp_path)
    java_oracle.write(tmp_path, table.name, [{"k": 1, "v": "java"}])
    expected = rows_of(KV, [{"k": k, "v": v} for k, v in enumerate(["ours", "java", "ours"])])
    assert_same_rows(same(java_oracle, table, tmp_path), expected)
    java_oracle.request("compact", warehouse=str(tmp_path), table=table.name)
    assert_same_rows(same(java_oracle, table, tmp_path), expected)
    assert min(f.min_sequence_number for f in plan_scan(table).splits[0].files) == -1


def _correct(table: Table, rows: list[dict[str, Any]], limit: int) -> None:
    write, plan = plan_write(table), plan_scan(table)
    batch = conform_rows(rows_of(KV, rows), write.schema, table.label)
    (split,) = plan.splits
    changes = sorted_changes(batch, write.schema)
    commit_buckets(table, [rewrite_bucket(write, split, live_bucket(plan, split), changes, limit)])


@pytest.mark.parametrize("file_format", ["parquet", "orc", "avro"])
def test_we_read_every_type_that_java_writes(java_oracle: JavaOracle, tmp_path: Path, file_format: str) -> None:
    columns = ALL_TYPES if file_format == "avro" else FINE_TYPES
    java_oracle.create_table(tmp_path, "d.t", without_ids(columns), options={"file.format": file_format})
    rows = [any_row(i) for i in range(30)]
    rows = [_without_far_years(r) for r in rows] if file_format == "orc" else rows
    if "t9" in columns:
        rows = [r | {"t9": dt.datetime(2024, 2, 29, 1, 1, 1, 7)} for r in rows]
    data = rows_of(columns, rows)
    java_oracle.write(tmp_path, "d.t", data)
    assert_same_rows(read_arrow(open_table(str(tmp_path), "d.t")), data)


@pytest.mark.parametrize("file_format", ["parquet", "orc"])
def test_type_changes_that_java_allows_are_read_as_java_reads_them(
    java_oracle: JavaOracle, tmp_path: Path, file_format: str
) -> None:
    changes = {
        "a": ("TINYINT", "BIGINT", [-128, 127]),
        "b": ("INT", "SMALLINT", [40000, -1]),
        "c": ("BIGINT", "DOUBLE", [2**53 + 1, -5]),
        "d": ("FLOAT", "DOUBLE", [0.1, float("nan")]),
        "e": ("DOUBLE", "INT", [1e12, -1.9]),
        "f": ("DOUBLE", "FLOAT", [1e300, 0.1]),
        "g": ("DECIMAL(8, 2)", "DECIMAL(12, 3)", [Decimal("-1.25"), Decimal("999999.99")]),
        "h": ("INT", "DECIMAL(6, 2)", [1234, 123456]),
        "i": ("VARCHAR(5)", "STRING", ["abcde", "é"]),
        "j": ("DOUBLE", "BIGINT", [float("nan"), 1e19]),
        "k": ("TIMESTAMP(3)", "TIMESTAMP(6)", [dt.datetime(1960, 1, 1, 1, 1, 1, 123000), None]),
        "l": ("DOUBLE", "TINYINT", [300.7, -1e10]),
    }
    columns = {name: old for name, (old, _, _) in changes.items()}
    java_oracle.create_table(tmp_path, "d.t", columns, options={"file.format": file_format})
    rows = [{n: values[i] for n, (_, _, values) in changes.items()} for i in range(2)] + [dict.fromkeys(columns)]
    java_oracle.write(tmp_path, "d.t", rows)
    alter = [{"change": "update_column_type", "name": n, "type": new} for n, (_, new, _) in changes.items()]
    java_oracle.alter_table(tmp_path, "d.t", alter)
    same(java_oracle, open_table(str(tmp_path), "d.t"), tmp_path)


@pytest.fixture(scope="module")
def new_york(java_oracle: JavaOracle, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaOracle]:
    """The same engine, as it runs on machines in another time zone."""
    with JavaOracle(tmp_path_factory.mktemp("new-york"), ("-Duser.timezone=America/New_York",)) as oracle:
        yield oracle


@pytest.mark.parametrize("legacy", ["true", "false"])
@pytest.mark.parametrize("file_format", ["parquet", "orc", "avro"])
@pytest.mark.every(2)
def test_what_a_writer_in_another_time_zone_wrote(
    new_york: JavaOracle, tmp_path: Path, file_format: str, legacy: str
) -> None:
    """By default Paimon shifts TIMESTAMP_LTZ in ORC files by the writer's zone; Java in UTC reads other instants."""
    columns = {"k": "INT", "t": "TIMESTAMP(6)", "l": "TIMESTAMP(6) WITH LOCAL TIME ZONE", "d": "DATE"}
    summer, winter = dt.datetime(2024, 7, 1, 2, 3, 4, 5), dt.datetime(1950, 12, 31, 23, 59, 59, 999999)
    rows = [{"k": i, "t": t, "l": t.replace(tzinfo=dt.UTC), "d": t.date()} for i, t in enumerate((summer, winter))]
    data = rows_of(columns, [*rows, {"k": 9}])
    options = {"file.format": file_format, "orc.timestamp-ltz.legacy.type": legacy}
    new_york.create_table(tmp_path, "d.t", columns, options=options)
    new_york.write(tmp_path, "d.t", data)
    assert_same_rows(new_york.read(tmp_path, "d.t"), data)
    assert_same_rows(read_arrow(open_table(str(tmp_path), "d.t")), data)


def test_fractions_around_1970_from_another_time_zone_are_refused(tmp_path: Path, new_york: JavaOracle) -> None:
    columns = {"k": "INT", "t": "TIMESTAMP(3)"}
    new_york.create_table(tmp_path, "d.t", columns, options={"file.format": "orc"})
    new_york.write(tmp_path, "d.t", [{"k": 1, "t": dt.datetime(1969, 12, 31, 23, 0, 0, 500000)}])
    with pytest.raises(UnsupportedFeatureError, match=r"America/New_York.*misreads"):
        read_arrow(open_table(str(tmp_path), "d.t"))
    assert read_arrow(open_table(str(tmp_path), "d.t"), columns=["k"]).num_rows == 1


@pytest.mark.parametrize("bitmap64", ["false", "true"])
def test_deletion_vectors_that_java_wrote(java_oracle: JavaOracle, tmp_path: Path, bitmap64: str) -> None:
    options = {"bucket": "2", "deletion-vectors.enabled": "true", "deletion-vectors.bitmap64": bitmap64,
               "num-sorted-run.compaction-trigger": "10"}  # fmt: skip
    java_oracle.create_table(tmp_path, "d.t", KV, primary_keys=["k"], options=options)
    java_oracle.write(tmp_path, "d.t", rows_of(KV, [{"k": k, "v": "old"} for k in range(2000)]))
    java_oracle.request("compact", warehouse=str(tmp_path), table="d.t")
    changed = rows_of(KV, [{"k": k, "v": "new"} for k in range(0, 2000, 7)])
    kinds = ["-D" if k % 2 else "+U" for k in changed.column("k").to_pylist()]
    java_oracle.write(tmp_path, "d.t", changed.append_column("_row_kind", pa.array(kinds)))
    table = open_table(str(tmp_path), "d.t")
    same(java_oracle, table, tmp_path)  # what is not compacted yet is invisible to both
    java_oracle.request("compact", warehouse=str(tmp_path), table="d.t", full=False)
    theirs = same(java_oracle, table, tmp_path)
    assert theirs.num_rows == 2000 - kinds.count("-D")
    read, splits = plan_read(plan_scan(table))
    read = replace(read, batch_rows=97)
    assert all(split.deletions and not split.is_raw for split in splits)
    pieces = [b for s in splits for one in s.divided() for b in read_split(read, one)]
    assert max(b.num_rows for b in pieces) <= 97
    assert_same_rows(pa.Table.from_batches(pieces), theirs)
