"""Other engines read the row ids that we wrote, go on with the next one, and compact; we read them.

O3 (Java) reads all ids. O1 (pypaimon) and O2 (pypaimon-rust) read and give out those of appended rows; where a file
stores ids (after UPDATE, MERGE, DELETE, compaction; Paimon's own files as well) O1 gives null and O2 refuses the table.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import open_context
from airflow_paimon.core.requests.requests import Compact
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.data import read_arrow, write_arrow
from airflow_paimon.data.compact import compact
from airflow_paimon.spark import sql
from tests.core.tables import run
from tests.data.row_statements import IDS, statement, with_ids
from tests.oracles.canonical import assert_same_rows
from tests.oracles.drivers import JavaOracle, PypaimonOracle, RustOracle
from tests.oracles.golden import GoldenArchive, golden_index
from tests.oracles.processes import OracleError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.oracle


def insert(view: Table, dt: str, *keys: int) -> None:
    write_arrow(view, pa.table({"k": pa.array(keys, pa.int32()), "v": ["new"] * len(keys), "dt": [dt] * len(keys)}))


def same(java: JavaOracle, table: Table) -> None:
    """Both read the same rows, ids and versions."""
    folder = table.store.uri.removeprefix("file://").rsplit("/", 2)[0]
    theirs = java.read(folder, f"{table.name}$row_tracking")
    assert_same_rows(read_arrow(table, columns=[*table.schema().field_names, *IDS]), theirs)
    assert_same_rows(read_arrow(table), java.read(folder, table.name))


def ids_by(oracle: PypaimonOracle | RustOracle, table: Table) -> dict[int, tuple[int | None, int]]:
    folder = table.store.uri.removeprefix("file://").rsplit("/", 2)[0]
    rows = oracle.read(folder, table.name, columns=["k", *IDS]).to_pylist()
    return {r["k"]: (r["_ROW_ID"], r["_SEQUENCE_NUMBER"]) for r in rows}


def ids(table: Table) -> dict[int, tuple[int, int]]:
    return {row[0]: row[-2:] for row in with_ids(table)}


def test_python_and_rust_read_ids_of_appended_rows_and_go_on(
    pypaimon_oracle: PypaimonOracle, rust_oracle: RustOracle, java_oracle: JavaOracle, tmp_path: Path
) -> None:
    """Also after a publish, which gives the branch's rows other ids in the manifest."""
    columns = [("k", "INT"), ("v", "STRING"), ("dt", "STRING")]
    options = {"bucket": "-1", "row-tracking.enabled": "true"}
    table = create_table(str(tmp_path), "d.t", columns, partition_keys=["dt"], options=options)
    insert(table, "a", 0, 1, 2)
    run(table, "create_branch", branch="fix", snapshot=1)
    insert(table.branch("fix"), "b", 20, 21)
    insert(table, "a", 3)
    assert run(table, "merge_branch", branch="fix").details["renumbered_files"] == 1
    assert ids(table)[20] == (4, 3)
    for key, oracle in ((50, pypaimon_oracle), (51, rust_oracle)):
        assert ids_by(oracle, table) == ids(table)
        following = (table.latest_snapshot() or pytest.fail()).next_row_id
        oracle.write(tmp_path, "d.t", pa.table({"k": pa.array([key], pa.int32()), "v": ["theirs"], "dt": ["a"]}))
        assert ids(table)[key] == (following, table.latest_snapshot_id())
        insert(table, "c", key + 10)
    assert ids_by(pypaimon_oracle, table) == ids_by(rust_oracle, table) == ids(table)
    same(java_oracle, table)
    assert sorted(i for i, _ in ids(table).values()) == list(range(10))


def test_python_and_rust_know_no_stored_ids(
    pypaimon_oracle: PypaimonOracle, rust_oracle: RustOracle, golden: Callable[[str], GoldenArchive], tmp_path: Path
) -> None:
    options = {"bucket": "-1", "row-tracking.enabled": "true"}
    ours = create_table(str(tmp_path), "d.t", [("k", "INT"), ("v", "STRING")], options=options)
    write_arrow(ours, pa.table({"k": pa.array([0, 1], pa.int32()), "v": ["a", "b"]}))
    statement(ours, lambda row: {**row, "v": "changed"} if row["k"] == 1 else row)
    write_arrow(ours, pa.table({"k": pa.array([2], pa.int32()), "v": ["c"]}))
    folder = golden("row-tracking-fuzz").root / "wh"
    lives = [
        e
        for e in golden_index("row-tracking-fuzz")
        if not any("vectors" in o or "evolution" in o for o in e["options"])
    ]
    theirs = next(t for e in lives if only_stored(t := open_table(str(folder), e["table"])))
    for table in (ours, theirs):
        where = table.store.uri.removeprefix("file://").rsplit("/", 2)[0]
        assert_same_rows(read_arrow(table), pypaimon_oracle.read(where, table.name))
        with pytest.raises(OracleError, match="missing first_row_id"):
            rust_oracle.read(where, table.name)
    assert ids_by(pypaimon_oracle, ours) == {0: (None, 1), 1: (None, 2), 2: (2, 3)}
    assert ids(ours) == {0: (0, 1), 1: (1, 2), 2: (2, 3)}


def only_stored(table: Table) -> bool:
    files = [e.file for e in live_entries(table, table.latest_snapshot()).values()]
    return bool(files) and all(f.file_name.endswith(".parquet") and f.first_row_id is None for f in files)


def test_java_and_python_read_what_statements_left(
    spark: SparkSession, java_oracle: JavaOracle, pypaimon_oracle: PypaimonOracle, tmp_path: Path
) -> None:
    """UPDATE, MERGE, DELETE and INSERT by Spark, on main and on a branch that is published, then compacted."""
    columns = [("k", "INT"), ("v", "STRING"), ("dt", "STRING")]
    options = {"row-tracking.enabled": "true"}
    table = create_table(str(tmp_path), "d.t", columns, partition_keys=["dt"], options=options)

    def do(text: str) -> None:
        assert sql(spark, str(tmp_path), text)["changed"]
        same(java_oracle, table)
        assert_same_rows(read_arrow(table), pypaimon_oracle.read(tmp_path, "d.t"))

    do("INSERT INTO d.t SELECT CAST(id AS INT), 'new', IF(id % 2 = 0, 'a', 'b') FROM range(20)")
    do("UPDATE d.t SET v = v || '+' WHERE k BETWEEN 3 AND 6")
    do(
        "MERGE INTO d.t USING (SELECT * FROM range(15, 25)) AS s ON t.k = s.id WHEN MATCHED THEN UPDATE "
        "SET v = 'merged' WHEN NOT MATCHED THEN INSERT (k, v, dt) VALUES (s.id, 'inserted', 'a')"
    )
    run(table, "create_branch", branch="fix", snapshot=table.latest_snapshot_id())
    sql(spark, str(tmp_path), "DELETE FROM d.`t$branch_fix` WHERE dt = 'b' AND k > 10")
    sql(spark, str(tmp_path), "INSERT INTO d.`t$branch_fix` VALUES (30, 'fix', 'c'), (31, 'fix', 'c')")
    sql(spark, str(tmp_path), "UPDATE d.`t$branch_fix` SET v = 'fixed' WHERE k IN (1, 30)")
    do("UPDATE d.t SET dt = 'd' WHERE _ROW_ID = 0")
    do("INSERT INTO d.t VALUES (40, 'main', 'd')")
    assert run(table, "merge_branch", branch="fix").details["rewritten_files"]
    same(java_oracle, table)
    next_row_id = (table.latest_snapshot() or pytest.fail()).next_row_id
    java_oracle.write(tmp_path, "d.t", pa.table({"k": pa.array([50], pa.int32()), "v": ["java"], "dt": ["a"]}))
    assert ids(table)[50][0] == next_row_id
    before = ids(table)
    java_oracle.request("compact", warehouse=str(tmp_path), table="d.t")
    assert ids(table) == before
    do("DELETE FROM d.t WHERE _ROW_ID % 4 = 1")
    request = build_request("compact", {"warehouse": str(tmp_path), "table": "d.t", "min_files": 2})
    assert isinstance(request, Compact)
    compact(open_context(request), request)
    same(java_oracle, table)
    assert ids(table) == {k: i for k, i in before.items() if i[0] % 4 != 1}


@pytest.mark.parametrize("target", ["128 mb", "3 kb"])
def test_java_reads_fixed_buckets_in_order_after_compaction(
    java_oracle: JavaOracle, tmp_path: Path, target: str
) -> None:
    """And goes on behind the last row: Java puts a bucket's files in the order of their sequence numbers."""
    options = {"bucket": "1", "bucket-key": "k", "target-file-size": target}
    table = create_table(str(tmp_path), "d.t", [("k", "INT"), ("v", "STRING")], options=options)
    for first in range(0, 1200, 100):
        keys = range(first, first + (100 if first % 400 else 90))
        write_arrow(table, pa.table({"k": pa.array(keys, pa.int32()), "v": [f"v{k}" for k in keys]}))
    before = java_oracle.read(tmp_path, "d.t")
    assert before.column("k").to_pylist() == sorted(read_arrow(table).column("k").to_pylist())
    request = build_request("compact", {"warehouse": str(tmp_path), "table": "d.t"})
    assert isinstance(request, Compact)
    assert compact(open_context(request), request).changed
    assert java_oracle.read(tmp_path, "d.t").equals(before)
    java_oracle.write(tmp_path, "d.t", pa.table({"k": pa.array([9000], pa.int32()), "v": ["java"]}))
    write_arrow(table, pa.table({"k": pa.array([9001], pa.int32()), "v": ["ours"]}))
    compact(open_context(request), request)
    assert java_oracle.read(tmp_path, "d.t").column("k").to_pylist() == [*before.column("k").to_pylist(), 9000, 9001]


@pytest.mark.parametrize("partitioned", [False, True], ids=["plain", "partitioned"])
def test_java_goes_on_with_what_we_wrote(java_oracle: JavaOracle, tmp_path: Path, partitioned: bool) -> None:
    columns = [("k", "INT"), ("v", "STRING"), ("dt", "STRING")]
    options = {"bucket": "-1", "row-tracking.enabled": "true", "compaction.min.file-num": "2"}
    keys = ["dt"] if partitioned else []
    table = create_table(str(tmp_path), "d.t", columns, partition_keys=keys, options=options)
    insert(table, "a", 0, 1, 2)
    insert(table, "a", 3)
    statement(table, lambda row: {**row, "v": "changed"} if row["k"] in (1, 3) else row)
    statement(table, lambda row: None if row["k"] == 2 else row, [{"k": 4, "v": "merged", "dt": "b"}])
    same(java_oracle, table)
    run(table, "create_branch", branch="fix", snapshot=table.latest_snapshot_id())
    fix = table.branch("fix")
    insert(fix, "c", 20, 21)
    statement(fix, lambda row: {**row, "v": "fixed"} if row["k"] == 20 else row)
    if partitioned:  # else both sides would change the same bucket
        insert(table, "d", 10)
    result = run(table, "merge_branch", branch="fix")
    assert result.details["rewritten_files"] == 1  # it stores a version of the branch, and may store ids of main
    same(java_oracle, table)
    before = {row[0]: row[-2] for row in with_ids(table)}
    following = (table.latest_snapshot() or fix.latest_snapshot()).next_row_id  # type: ignore[union-attr]
    java_oracle.write(tmp_path, "d.t", pa.table({"k": pa.array([50], pa.int32()), "v": ["java"], "dt": ["a"]}))
    assert {row[0]: row[-2] for row in with_ids(table)} == before | {50: following}
    same(java_oracle, table)
    java_oracle.request("compact", warehouse=str(tmp_path), table="d.t")
    assert {row[0]: row[-2] for row in with_ids(table)} == before | {50: following}
    same(java_oracle, table)
    for key in (60, 61):
        insert(table, "a", key)
    statement(table, lambda row: {**row, "v": "last"} if row["k"] in (50, 0, 61) else row)
    same(java_oracle, table)
    request = build_request("compact", {"warehouse": str(tmp_path), "table": "d.t", "min_files": 2})
    assert isinstance(request, Compact)
    assert compact(open_context(request), request).changed
    same(java_oracle, table)
    java_oracle.write(tmp_path, "d.t", pa.table({"k": pa.array([70], pa.int32()), "v": ["java"], "dt": ["b"]}))
    same(java_oracle, table)
    assert len({row[-2] for row in with_ids(table)}) == len(with_ids(table))
    assert all(e.file.file_source is not None for e in live_entries(table, table.latest_snapshot()).values())
