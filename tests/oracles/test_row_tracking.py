"""O3, Paimon's Java engine, reads the row ids that we wrote, goes on with the next one, and compacts; we read them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from airflow_paimon.core.requests.build import build_request
from airflow_paimon.core.requests.context import open_context
from airflow_paimon.core.requests.requests import Compact
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.scan import live_entries
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import read_arrow, write_arrow
from airflow_paimon.data.compact import compact
from tests.core.tables import run
from tests.data.row_statements import IDS, statement, with_ids
from tests.oracles.canonical import assert_same_rows
from tests.oracles.drivers import JavaOracle

pytestmark = pytest.mark.oracle


def insert(view: Table, dt: str, *keys: int) -> None:
    write_arrow(view, pa.table({"k": pa.array(keys, pa.int32()), "v": ["new"] * len(keys), "dt": [dt] * len(keys)}))


def same(java: JavaOracle, table: Table) -> None:
    """Both read the same rows, ids and versions."""
    folder = table.store.uri.removeprefix("file://").rsplit("/", 2)[0]
    theirs = java.read(folder, f"{table.name}$row_tracking")
    assert_same_rows(read_arrow(table, columns=[*table.schema().field_names, *IDS]), theirs)
    assert_same_rows(read_arrow(table), java.read(folder, table.name))


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
