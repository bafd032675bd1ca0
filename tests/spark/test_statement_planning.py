"""A statement reads the manifests of the partitions that its condition or source names, and gives the same rows."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.requests import context
from airflow_paimon.core.requests.requests import Request
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.data import read_arrow, read_splits
from airflow_paimon.data.arrow_write import write_arrow
from airflow_paimon.spark import sql
from airflow_paimon.spark.jobs import query_views
from airflow_paimon.spark.statements import tables, target_files
from airflow_paimon.spark.statements.outcome import StatementOutcome
from airflow_paimon.spark.statements.parse import parse_statement
from airflow_paimon.spark.statements.run import compute_changes
from airflow_paimon.spark.statements.tables import NamedTables
from tests.core.table.test_stored_partitions import manifests_read
from tests.core.tables import run
from tests.spark.jobs.operations import correct
from tests.stores import CountingStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = (("k", "INT NOT NULL"), ("v", "STRING"), ("dt", "STRING NOT NULL"))
DAYS = [f"2025-01-{day:02}" for day in range(1, 9)]
KINDS: dict[str, dict[str, str]] = {
    "keyed": {"bucket": "2"},
    "dynamic": {"bucket": "-1"},
    "append": {"bucket": "-1"},
    "bucketed": {"bucket": "2", "bucket-key": "k"},
    "tracked": {"bucket": "-1", "row-tracking.enabled": "true"},
}
NEW = "(SELECT 3 AS k, 'new' AS v, '2025-01-02' AS dt UNION ALL SELECT 77, 'more', '2025-01-09')"
MERGE = f"MERGE INTO d.t USING {NEW} AS s ON t.dt = s.dt AND t.k = s.k "
STATEMENTS = {
    f"UPDATE d.t SET v = 'x' WHERE dt = '{DAYS[3]}' AND k < 2": ((2, 0, 0), 1),
    f"DELETE FROM d.t WHERE dt >= '{DAYS[6]}' AND k = 1": ((0, 2, 0), 2),
    f"DELETE FROM d.t WHERE dt IN ('{DAYS[0]}', '{DAYS[1]}') AND v = 'none'": ((0, 0, 0), 2),
    f"DELETE FROM d.t WHERE dt = '{DAYS[4]}'": ((0, 5, 0), 1),
    MERGE + "WHEN MATCHED THEN UPDATE SET v = s.v": ((1, 0, 0), 1),
    MERGE + "WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT *": ((0, 1, 1), 1),
    f"UPDATE d.t SET v = 'z' WHERE dt = '{DAYS[2]}' OR k = 3": ((12, 0, 0), 8),
    f"UPDATE d.t SET v = 'w' WHERE dt = '{DAYS[2]}' AND k IN (SELECT k FROM d.t WHERE dt = 'x')": ((0, 0, 0), 8),
    f"MERGE INTO d.t USING {NEW} AS s ON t.k = s.k WHEN MATCHED THEN UPDATE SET v = s.dt "
    f"WHEN NOT MATCHED BY SOURCE AND dt = '{DAYS[0]}' THEN DELETE": ((8, 4, 0), 8),
}
"""With the rows that are updated, deleted and inserted, and how many manifests are read to plan it; each day is in one.

For a note on what changed nothing, all of them are read once more.
"""


def make(warehouse: Path, kind: str) -> Table:
    keyed = kind in ("keyed", "dynamic")
    options = {**KINDS[kind], "manifest.merge-min-count": "100"}
    keys = ["dt", "k"] if keyed else []
    table = create_table(str(warehouse), "d.t", COLUMNS, partition_keys=["dt"], primary_keys=keys, options=options)
    for day in DAYS:
        rows = [{"k": k, "v": f"{day}-{k}", "dt": day} for k in range(5)]
        write_arrow(table, pa.Table.from_pylist(rows, read_arrow(table).schema))
    return table


def planned(spark: SparkSession, warehouse: Path, table: Table, text: str) -> StatementOutcome:
    statement = parse_statement(spark, text)
    assert statement is not None
    request = Request(warehouse=str(warehouse))
    return compute_changes(spark, statement, table, NamedTables(spark, request, text, table), dry_run=True)


@pytest.mark.every(2)
@pytest.mark.parametrize("kind", ["keyed", "append"])
def test_manifests_of_other_partitions_are_not_read(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(target_files, "FEW_FILES", 0)  # the table counts as one with many
    table = make(tmp_path, kind)
    for text, (counts, manifests) in STATEMENTS.items():
        counting = CountingStore(table.store)
        found = planned(spark, tmp_path, Table(counting, "d.t"), text)
        assert (found.updated, found.deleted, found.inserted) == counts, text
        note = 0 if found.rows else len(DAYS)
        assert manifests_read(counting) == manifests + note, text


@pytest.mark.every(3)
@pytest.mark.parametrize("kind", ["dynamic", "bucketed", "tracked"])
def test_a_merge_of_known_partitions(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(target_files, "FEW_FILES", 0)
    table = make(tmp_path, kind)
    before = {(r["k"], r["dt"]): r["v"] for r in read_arrow(table).to_pylist()}
    sql(spark, str(tmp_path), MERGE + "WHEN MATCHED THEN UPDATE SET v = s.v WHEN NOT MATCHED THEN INSERT *")
    after = {(r["k"], r["dt"]): r["v"] for r in read_arrow(table).to_pylist()}
    assert after == before | {(3, "2025-01-02"): "new", (77, "2025-01-09"): "more"}


@pytest.mark.every(2)
@pytest.mark.parametrize("day", ["0001-01-01", "1500-02-28"])
def test_a_merge_by_days_of_long_ago(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, day: str
) -> None:
    monkeypatch.setattr(target_files, "FEW_FILES", 0)
    table = create_table(str(tmp_path), "d.t", [("k", "INT"), ("day", "DATE"), ("dt", "STRING")], partition_keys=["dt"])
    rows = [{"k": k, "day": date.fromisoformat(text), "dt": "a"} for k, text in enumerate((day, "2025-01-01"))]
    write_arrow(table, pa.Table.from_pylist(rows, read_arrow(table).schema))
    source = f"(SELECT DATE '{day}' AS day)"
    sql(spark, str(tmp_path), f"MERGE INTO d.t USING {source} AS s ON t.day = s.day WHEN MATCHED THEN UPDATE SET k = 9")
    assert sorted(read_arrow(table).column("k").to_pylist()) == [1, 9]


@pytest.mark.every(2, first=1)
@pytest.mark.parametrize("kind", ["keyed", "append"])
def test_a_key_that_fails_for_a_row_which_on_leaves_out(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(target_files, "FEW_FILES", 0)
    table = make(tmp_path, kind)
    source = "(SELECT 'number' AS kind, '1' AS text UNION ALL SELECT 'word', 'one')"
    on = "s.kind = 'number' AND t.k = CAST(s.text AS INT)"
    sql(spark, str(tmp_path), f"MERGE INTO d.t USING {source} AS s ON {on} WHEN MATCHED THEN UPDATE SET v = s.text")
    assert sum(r["v"] == "1" for r in read_arrow(table).to_pylist()) == len(DAYS)


def test_partitions_of_both_zeros_lose_their_rows_to_one_delete(spark: SparkSession, tmp_path: Path) -> None:
    columns = [("k", "INT NOT NULL"), ("p", "DOUBLE NOT NULL")]
    table = create_table(str(tmp_path), "d.t", columns, partition_keys=["p"], primary_keys=["p", "k"],
                         options={"bucket": "1"})  # fmt: skip
    write_arrow(table, pa.table({"k": pa.array([1, 1, 2], pa.int32()), "p": [0.0, -0.0, 0.0]}))
    source = "(SELECT 1 AS k, 0.0D AS p)"
    sql(spark, str(tmp_path), f"MERGE INTO d.t USING {source} AS s ON t.p = s.p AND t.k = s.k WHEN MATCHED THEN DELETE")
    assert read_arrow(table).column("k").to_pylist() == [2]


def test_a_note_names_partitions_that_were_not_planned(spark: SparkSession, tmp_path: Path) -> None:
    make(tmp_path, "append")
    result = sql(spark, str(tmp_path), "DELETE FROM d.t WHERE dt = '2026-01-01' AND k = 1")
    assert result["details"]["notes"][0].endswith(f"the table has 8 partitions, dt={DAYS[0]} to dt={DAYS[-1]}")


QUERIES = {
    f"SELECT k, concat(v, '!') AS v, dt FROM {{}} WHERE dt = '{DAYS[3]}' AND k < 2": 1,
    f"SELECT k, v, dt FROM {{}} AS b WHERE b.dt IN ('{DAYS[0]}', '{DAYS[1]}') OR dt >= '{DAYS[7]}'": 3,
    f"SELECT a.k, b.v, a.dt FROM {{0}} AS a JOIN {{0}} AS b ON a.k = b.k AND b.dt = '{DAYS[5]}' "
    f"WHERE a.dt = '{DAYS[2]}'": 2,
    f"SELECT k, v, '{DAYS[4]}' AS dt FROM (SELECT * FROM {{}} WHERE dt >= '{DAYS[7]}' LIMIT 100)": 1,
}
"""With how many manifests it reads; each day is in one."""


@pytest.mark.every(2)
@pytest.mark.parametrize("kind", ["keyed", "append"])
def test_a_select_reads_the_manifests_of_its_partitions(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    table, counting = make(tmp_path, kind), list[CountingStore]()

    def opened(*where: str, **options: object) -> Table:
        found = open_table(*where, **options)  # type: ignore[arg-type]
        counting.append(CountingStore(found.store))
        return replace(found, store=counting[-1])

    monkeypatch.setattr(tables, "open_table", opened)
    for text, manifests in QUERIES.items():
        query = text.format("d.t")
        expected = sorted(map(tuple, sql(spark, str(tmp_path), query).collect()))
        counting.clear()
        with monkeypatch.context() as patch:
            patch.setattr(tables, "FEW_FILES", -1)
            found = sorted(map(tuple, sql(spark, str(tmp_path), query).collect()))
        assert found == expected and found, query
        assert sum(map(manifests_read, counting)) == manifests, query
    assert table.latest_snapshot_id() == len(DAYS)


@pytest.mark.every(2, first=1)
@pytest.mark.parametrize("name", ["branch", "d.`t$branch_fix`"])
def test_a_correction_by_select_reads_the_manifests_of_its_partitions(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    table = make(tmp_path, "keyed")
    for text, manifests in QUERIES.items():
        rows = []
        for many in (False, True):
            run(table, "create_branch", branch="fix", snapshot=len(DAYS))
            counting = CountingStore(table.store)
            with monkeypatch.context() as patch:
                patch.setattr(context, "open_table", lambda *_, c=counting, **__: replace(table, store=c))
                if many:
                    patch.setattr(query_views, "LARGE", -1)
                done = correct(spark, tmp_path, text.format(name), mode="upsert")
            assert done.changed
            rows.append(sorted(tuple(r.values()) for r in read_arrow(table.branch("fix")).to_pylist()))
            assert manifests_read(counting) == (manifests + text.startswith("SELECT k, v, '") if many else len(DAYS))
            run(table, "delete_branch", branch="fix", force=True)
        assert rows[0] == rows[1], text


def test_a_correction_by_select_writes_the_rows_by_which_it_was_planned(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make(tmp_path, "keyed")
    run(table, "create_branch", branch="fix", snapshot=len(DAYS))
    monkeypatch.setattr(query_views, "LARGE", -1)
    monkeypatch.setattr(read_splits, "LIMIT_BYTES", 0)  # the rows are few, those that they replace are written in tasks
    query = f"SELECT 1 AS k, 'x' AS v, '{DAYS[0]}' AS dt UNION ALL SELECT 2, 'y', 'at ' || current_timestamp()"
    before = read_arrow(table).to_pylist()
    assert correct(spark, tmp_path, query, mode="upsert").changed  # current_timestamp() is another one in each run
    after = read_arrow(table.branch("fix")).to_pylist()
    assert len(after) == len(before) + 1
    assert sorted((r["k"], r["v"], r["dt"][:3]) for r in after if r not in before) == [(1, "x", "202"), (2, "y", "at ")]


def test_a_constant_that_has_no_value_is_the_fault_of_the_query(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make(tmp_path, "keyed")
    run(table, "create_branch", branch="fix", snapshot=len(DAYS))
    monkeypatch.setattr(query_views, "LARGE", -1)
    query = f"SELECT k, CAST(1 / 0 AS STRING) AS v, dt FROM branch WHERE dt = '{DAYS[0]}'"
    with pytest.raises(InvalidInputError, match=r"--sql\): .*DIVIDE_BY_ZERO"):
        correct(spark, tmp_path, query, mode="upsert")
