"""``sql``: what UPDATE, DELETE, MERGE and INSERT leave in tables with and without primary key, and what they refuse."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_paimon.core.errors import (
    InvalidInputError,
    NotFoundError,
    PaimonError,
    UnsafeOperationError,
    UnsupportedFeatureError,
)
from airflow_paimon.core.format.types import parse_type
from airflow_paimon.core.schema.schema_plan import SetOption
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.data_file_paths import data_file_path
from airflow_paimon.core.table.internal_columns import INTERNAL_PREFIX
from airflow_paimon.core.table.made_by import made_by
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import read_arrow, read_splits
from airflow_paimon.data.arrow_write import write_arrow
from airflow_paimon.spark import sql
from airflow_paimon.spark.rows_in import temporary_conf
from airflow_paimon.spark.statements import tables
from tests.core.tables import alter_table
from tests.data.test_changes import Follower
from tests.spark.jobs.operations import in_tasks, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = (("k", "INT NOT NULL"), ("v", "STRING"), ("n", "INT"), ("dt", "STRING NOT NULL"))
KINDS = {"keyed": {"bucket": "2"}, "append": {"bucket": "-1"}, "tracked": {"row-tracking.enabled": "true"}}


def make(warehouse: Path, kind: str = "append", **options: str) -> Table:
    keyed = kind == "keyed"
    table = create_table(
        str(warehouse),
        "d.t",
        COLUMNS,
        partition_keys=["dt"],
        primary_keys=["dt", "k"] if keyed else [],
        options={**KINDS[kind], **options},
    )
    for dt in "ab":
        rows = [{"k": k, "v": f"{dt}{k}", "n": k if k % 4 else None, "dt": dt} for k in range(10)]
        write_arrow(table, pa.Table.from_pylist(rows, read_arrow(table).schema))
    return table


def rows_of(table: Table) -> list[tuple[Any, ...]]:
    return sorted((tuple(r.values()) for r in read_arrow(table).to_pylist()), key=repr)


def before() -> dict[tuple[str, int], list[Any]]:
    return {(dt, k): [k, f"{dt}{k}", k if k % 4 else None, dt] for dt in "ab" for k in range(10)}


def expected(rows: dict[Any, list[Any]]) -> list[tuple[Any, ...]]:
    return sorted((tuple(r) for r in rows.values()), key=repr)


PLACES = [("keyed", "here"), ("keyed", "in tasks"), ("append", "here"), ("tracked", "in tasks")]


@pytest.fixture(autouse=True)
def _no_views_left(spark: SparkSession) -> Iterator[None]:
    """Other modules' tests name views ``fixes``, too, of the same session."""
    yield
    spark.catalog.dropTempView("fixes")


@pytest.fixture(params=PLACES, ids=" ".join)
def kind(request: pytest.FixtureRequest) -> Iterator[str]:
    """The kind of table, and where the changes of few rows are written: the results must be the same."""
    name, place = request.param
    with nullcontext() if place == "here" else in_tasks():
        yield name


def counts(result: dict[str, Any]) -> tuple[int, int, int]:
    details = result["details"]
    return details["rows_updated"], details["rows_deleted"], details["rows_inserted"]


@pytest.mark.every(4)
def test_update_changes_rows_whose_condition_is_true(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    table = make(tmp_path, kind)
    text = "UPDATE d.t SET v = concat(t.v, '!'), n = n + 1 WHERE dt = 'a' AND n > 2"
    result = sql(spark, str(tmp_path), text)
    rows = before()
    for (dt, _), row in rows.items():
        if dt == "a" and row[2] is not None and row[2] > 2:
            row[1], row[2] = row[1] + "!", row[2] + 1
    assert rows_of(table) == expected(rows)
    assert counts(result) == (5, 0, 0)
    assert (result["operation"], result["changed"], result["snapshot_before"], result["snapshot_after"]) == (
        "sql", True, 2, 3)  # fmt: skip
    assert result["details"]["statement"] == "UPDATE"
    assert made_by(table.snapshot(3).properties)["sql"] == text


@pytest.mark.every(4, first=1)
def test_delete_keeps_rows_for_which_the_condition_is_null(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    table = make(tmp_path, kind)
    result = sql(spark, str(tmp_path), "DELETE FROM d.t AS x WHERE NOT x.n > 5")
    rows = {key: row for key, row in before().items() if row[2] is None or row[2] > 5}
    assert rows_of(table) == expected(rows)
    assert counts(result) == (0, 8, 0)


@pytest.mark.every(4, first=2)
def test_merge_takes_the_first_clause_that_holds(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    table = make(tmp_path, kind)
    source = [(1, "a", 1), (2, "a", 2), (3, "a", None), (20, "a", 5), (21, "a", -1), (22, "c", 7)]
    spark.createDataFrame(source, "k int, dt string, n int").createOrReplaceTempView("fixes")
    text = """MERGE INTO d.t USING fixes AS s ON t.k = s.k AND t.dt = s.dt
        WHEN MATCHED AND s.n > 1 THEN DELETE
        WHEN MATCHED AND s.n = 1 THEN UPDATE SET v = 'one', n = s.n * 100
        WHEN MATCHED THEN UPDATE SET t.v = concat(t.v, coalesce(string(s.n), 'none'))
        WHEN NOT MATCHED AND n < 0 THEN INSERT (k, dt) VALUES (k, dt)
        WHEN NOT MATCHED THEN INSERT (k, v, n, dt) VALUES (s.k, 'new', s.n, s.dt)
        WHEN NOT MATCHED BY SOURCE AND t.dt = 'b' AND t.k > 7 THEN DELETE
        WHEN NOT MATCHED BY SOURCE AND t.dt = 'b' THEN UPDATE SET n = -1"""
    result = sql(spark, str(tmp_path), text)
    rows = before()
    rows["a", 1][1:3] = ["one", 100]
    del rows["a", 2]
    rows["a", 3][1] = "a3none"
    rows["a", 20], rows["a", 21], rows["c", 22] = [20, "new", 5, "a"], [21, None, None, "a"], [22, "new", 7, "c"]
    for k in range(10):
        rows["b", k][2] = -1
    del rows["b", 8], rows["b", 9]
    assert rows_of(table) == expected(rows)
    assert counts(result) == (10, 3, 3)


@pytest.mark.every(4, first=2)
def test_merge_with_stars(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    table = make(tmp_path, kind)
    spark.createDataFrame(
        [("x", 1, "a", 1, 0), ("y", 2, "c", 30, 0)], "v string, n long, dt string, k int, more int"
    ).createOrReplaceTempView("fixes")
    text = """MERGE INTO d.t x USING fixes ON x.k = fixes.k AND x.dt = fixes.dt
        WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"""
    assert counts(sql(spark, str(tmp_path), text)) == (1, 0, 1)
    rows = before()
    rows["a", 1], rows["c", 30] = [1, "x", 1, "a"], [30, "y", 2, "c"]
    assert rows_of(table) == expected(rows)


def _refusal(spark: SparkSession, warehouse: Path, text: str) -> str:
    with pytest.raises(InvalidInputError) as caught:
        sql(spark, str(warehouse), text)
    return caught.value.message


def test_what_is_wrong_is_named_with_its_position_and_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    table = make(tmp_path, "keyed")
    spark.createDataFrame([(1, "a"), (1, "a")], "k int, dt string").createOrReplaceTempView("twice")
    on = "ON t.k = s.k AND t.dt = s.dt"
    refused = {
        "UPDATE d.t SET v = 'x', nope = 1 WHERE k = 1": r"no column 'nope' \(line 1, position 32\)",
        "UPDATE d.t SET v = nope(v) WHERE k = 1": r"UNRESOLVED_ROUTINE.*nope.*\(line 1, position 20\)",
        "UPDATE d.t SET v = 'x'\nWHERE nope = 1": r"UNRESOLVED_COLUMN.*\(line 2, position 7\)",
        "UPDATE d.t SET v = 'x', v = 'y' WHERE k = 1": "assigned twice",
        "UPDATE d.t SET k = 2 WHERE k = 1": r"column 'k' \(line 1, position 20\) belongs to the primary key",
        "UPDATE d.t SET n = 'many' WHERE k = 1": "CAST_INVALID_INPUT|cannot be cast|INCOMPATIBLE",
        "UPDATE d.t SET n = 1 / (k - 1) WHERE true AND k = 1": "CAST_OVERFLOW_IN_TABLE_INSERT.*division by zero",
        "UPDATE d.t SET n = (SELECT k FROM twice) WHERE k = 1": "SCALAR_SUBQUERY_TOO_MANY_ROWS",
        "UPDATE d.t SET v = explode(array('x')) WHERE k = 1": "generator functions can't be assigned",
        "UPDATE d.t SET n = row_number() OVER (ORDER BY n) WHERE k = 1": "window and generator functions can't be",
        "DELETE FROM d.t WHERE v": "FILTER_NOT_BOOLEAN.*SQLSTATE: 42K09$",
        "UPDATE d.t SET v = 'x'": "no WHERE.*all_rows=True",
        "DELETE FROM d.t": "no WHERE.*all_rows=True",
        "DELETE FROM d.t WHERE rand() > 0.5": "deterministic",
        "INSERT OVERWRITE d.t VALUES (1, 'x', 1, 'a')": "replaces every row.*all_rows=True",
        "DELETE FROM d.t WHERE k = 1; DELETE FROM d.t WHERE k = 2": r"PARSE_SYNTAX_ERROR.*\(line 1, position 30\)",
        "UPDATE d.t SET WHERE k = 1": "can't parse",
        "-- nothing": "can't parse",
        "TRUNCATE TABLE d.t": "takes one SELECT",
        "DROP TABLE d.t": "confirm with all_rows=True",
        "FROM twice INSERT INTO d.t SELECT 1, 'x', 1, dt INSERT INTO d.u SELECT 1, 'x', 1, dt": "more than one target",
        "UPDATE t SET v = 'x' WHERE k = 1": "not a table of this warehouse",
        f"MERGE INTO d.t USING twice s {on} WHEN MATCHED THEN UPDATE SET v = 'x'": "more than once",
        "MERGE INTO d.t USING twice s ON t.k = s.k WHEN MATCHED AND t.dt = 'b' THEN UPDATE SET *": "UNRESOLVED_COLUMN",
        "MERGE INTO d.t USING (SELECT 1 k, 'b' dt) s ON t.k = s.k WHEN MATCHED THEN UPDATE SET dt = s.dt": "the key",
        "MERGE INTO d.t USING twice s ON t.k = (SELECT 1) WHEN MATCHED THEN DELETE": "can't have a subquery",
        "INSERT INTO d.t (k, dt) SELECT 1": "INSERT_COLUMN_ARITY_MISMATCH.*columns:.*`k`, `dt`.*columns: `1`.*SQLSTATE",
        "INSERT INTO d.t PARTITION (v = 'x') SELECT 1, 1, 'a'": "not a partition column",
    }
    said = {text: _refusal(spark, tmp_path, text) for text in refused}
    assert {t: said[t] for t, message in refused.items() if not re.search(message, said[t])} == {}
    with pytest.raises(NotFoundError):
        sql(spark, str(tmp_path), "DELETE FROM d.missing WHERE k = 1")
    with pytest.raises(InvalidInputError, match=r"'old' has to be a table such as db\.t, or a DataFrame, not 3"):
        sql(spark, str(tmp_path), "DELETE FROM d.t WHERE k = 1", views={"old": 3})
    with pytest.raises(InvalidInputError, match="views is a dict of names and tables"):
        sql(spark, str(tmp_path), "DELETE FROM d.t WHERE k = 1", views="old")  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="would hide the target"):
        sql(spark, str(tmp_path), "DELETE FROM d.t WHERE k = 1", views={"t": "d.t"})
    with pytest.raises(UnsupportedFeatureError):
        sql(spark, str(tmp_path), "UPDATE IDENTIFIER('d.' || 't') SET v = 1 WHERE k = 1")
    assert table.latest_snapshot_id() == 2
    assert rows_of(table) == expected(before())


@pytest.mark.parametrize(
    "text",
    [
        "INSERT INTO d.t REPLACE WHERE k = 1 SELECT * FROM d.t",
        "INSERT INTO d.t REPLACE USING (k) SELECT * FROM d.t WHERE k = 1",
        "INSERT INTO d.t AS t REPLACE ON t.k = s.k (SELECT * FROM d.t WHERE k = 1) AS s",
        "INSERT WITH SCHEMA EVOLUTION INTO d.t SELECT * FROM d.t",
    ],
)
def test_an_insert_that_replaces_some_rows_or_adds_columns_is_not_taken_for_another(
    spark: SparkSession, tmp_path: Path, text: str
) -> None:
    """Versions of Spark parse it as an INSERT OVERWRITE of all rows or a plain INSERT with something more."""
    table = make(tmp_path, "keyed")
    before = table.latest_snapshot_id()
    with pytest.raises((UnsupportedFeatureError, InvalidInputError), match=r"is not executed|can't parse"):
        sql(spark, str(tmp_path), text, all_rows=True)
    assert table.latest_snapshot_id() == before


@pytest.mark.every(2)
@pytest.mark.parametrize("place", ["here", "in tasks"])
def test_append_refuses_a_row_matched_twice_even_if_one_match_does_nothing(
    spark: SparkSession, tmp_path: Path, place: str
) -> None:
    table = make(tmp_path, "tracked")
    spark.createDataFrame([(1, 1), (1, 2)], "k int, n int").createOrReplaceTempView("twice")
    with nullcontext() if place == "here" else in_tasks():
        with pytest.raises(InvalidInputError, match="MERGE_CARDINALITY_VIOLATION"):
            text = "MERGE INTO d.t USING twice s ON t.k = s.k WHEN MATCHED AND s.n = 1 THEN UPDATE SET v = 'x'"
            sql(spark, str(tmp_path), text)
        assert table.latest_snapshot_id() == 2
        gone = sql(spark, str(tmp_path), "MERGE INTO d.t USING twice s ON t.k = s.k WHEN MATCHED THEN DELETE")
    assert counts(gone) == (0, 2, 0)
    assert rows_of(table) == expected({key: row for key, row in before().items() if key[1] != 1})


def test_only_files_that_can_hold_such_rows_are_read_and_only_touched_ones_are_written(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = make(tmp_path)
    files = {s.values[0]: s.files[0] for s in plan_scan(table).splits}
    rows = [{"k": k, "v": "late", "n": k, "dt": "a"} for k in range(100, 110)]
    write_arrow(table, pa.Table.from_pylist(rows, read_arrow(table).schema))
    internal_column = tmp_path / "d.db/t/dt=a/bucket-0" / files["a"].file_name
    kept = internal_column.read_bytes()
    internal_column.unlink()  # reading it would fail
    result = sql(spark, str(tmp_path), "UPDATE d.t SET v = 'x' WHERE dt = 'a' AND k BETWEEN 103 AND 104")
    internal_column.write_bytes(kept)
    details = result["details"]
    assert counts(result) == (2, 0, 0)
    assert (details["files_rewritten"], details["files_added"], details["files_kept"]) == (1, 1, 1)  # of dt=a
    assert details["bytes_kept"] == files["a"].file_size
    live = {f.file_name for s in plan_scan(table).splits for f in s.files}
    assert {files["a"].file_name, files["b"].file_name} < live
    late = [r for r in rows_of(table) if r[0] >= 100]
    assert [r[1] for r in late] == ["x" if r[0] in (103, 104) else "late" for r in late]
    nothing = sql(spark, str(tmp_path), "UPDATE d.t SET v = 'x' WHERE k = 5000")
    assert (nothing["changed"], counts(nothing), nothing["snapshot_after"]) == (False, (0, 0, 0), 4)
    why = "no row has k = 5000; the table has 2 partitions, dt=a to dt=b"
    assert nothing["details"]["notes"] == [f"UPDATE on d.t changed nothing: {why}"]
    nothing = sql(spark, str(tmp_path), "INSERT INTO d.t SELECT 1, 'x', 1, 'a' WHERE false")
    assert (nothing["changed"], nothing["details"]["notes"]) == (False, ["INSERT on d.t: its query returned no rows"])
    for name in ("nope", "t.nope"):
        said = _refusal(spark, tmp_path, f"UPDATE d.t SET v = 'x' WHERE {name} = 1")
        assert "`dt`" in said and INTERNAL_PREFIX not in said, "columns of ours are not suggested"


@contextmanager
def internal_column(*files: Path) -> Iterator[None]:
    """Take files away: reading them would fail."""
    kept = {file: file.read_bytes() for file in files}
    for file in files:
        file.unlink()
    try:
        yield
    finally:
        for file, content in kept.items():
            file.write_bytes(content)


def files_of(table: Table, dt: str) -> list[Path]:
    root = Path(table.store.uri.removeprefix("file://"))
    plan = plan_scan(table)
    of_dt = [s for s in plan.splits if s.values[0] == dt]
    return [root / data_file_path(plan.schema, s.values, s.bucket, f) for s in of_dt for f in s.files]


def test_merge_evaluates_its_source_once_and_reads_only_files_that_can_hold_its_keys(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = make(tmp_path, "tracked")
    rows = [{"k": k, "v": "late", "n": k, "dt": "a"} for k in range(100, 110)]
    write_arrow(table, pa.Table.from_pylist(rows, read_arrow(table).schema))
    calls = tmp_path / "calls"

    def counted(k: int) -> int:
        with calls.open("a") as file:
            file.write("x")
        return k

    spark.udf.register("counted", counted, "int")
    source = "(SELECT counted(CAST(id AS INT)) AS k, 'a' AS dt FROM range(105, 113))"
    text = f"""MERGE INTO d.t USING {source} AS s ON t.k = s.k AND s.dt = t.dt
        WHEN MATCHED AND s.k < 107 THEN UPDATE SET v = 'x' WHEN NOT MATCHED THEN INSERT (k, dt) VALUES (s.k, s.dt)"""
    first, _ = sorted(files_of(table, "a"), key=lambda f: f.stat().st_mtime_ns)
    with in_tasks(), internal_column(first, *files_of(table, "b")):
        result = sql(spark, str(tmp_path), text)["details"]
    assert calls.read_text() == "x" * 8
    assert (result["rows_updated"], result["rows_inserted"], result["files_rewritten"]) == (2, 3, 1)
    late = {r[0]: r[1] for r in rows_of(table) if r[0] >= 100}
    assert late == dict.fromkeys(range(100, 110), "late") | {105: "x", 106: "x", 110: None, 111: None, 112: None}


@pytest.mark.every(2, first=1)
@pytest.mark.parametrize("vectors", [False, True])
def test_merge_in_tasks_changes_rows_and_inserts_those_that_no_row_matches(
    spark: SparkSession, tmp_path: Path, vectors: bool
) -> None:
    table = make(tmp_path, "tracked", **({"deletion-vectors.enabled": "true"} if vectors else {}))
    merge = "MERGE INTO d.t USING (SELECT * FROM VALUES {} AS s(k, n)) AS s ON t.k = s.k {} "
    insert = "WHEN NOT MATCHED THEN INSERT (k, n, dt) VALUES (s.k, s.n, 'c')"
    with in_tasks():
        clauses = "WHEN MATCHED AND t.dt = 'a' THEN UPDATE SET n = t.n + s.n WHEN MATCHED THEN DELETE"
        text = merge.format("(1, 10), (21, 5)", f"AND t.v > 'a' {clauses} {insert}")
        assert counts(sql(spark, str(tmp_path), text)) == (1, 1, 1)
        assert counts(sql(spark, str(tmp_path), merge.format("(2, 10), (22, 5)", insert))) == (0, 0, 1)
    rows = before()
    rows["a", 1][2] = 11
    del rows["b", 1]
    rows["c", 21], rows["c", 22] = [21, None, 5, "c"], [22, None, 5, "c"]
    assert rows_of(table) == expected(rows)


def test_few_changes_of_large_files_are_evaluated_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make(tmp_path, "tracked")
    monkeypatch.setattr(read_splits, "LIMIT_ROWS", -1)  # the files are written again in tasks
    calls = tmp_path / "calls"

    def counted(k: int) -> int:
        with calls.open("a") as file:
            file.write("x")
        return k + 100

    spark.udf.register("counted", counted, "int")
    assert counts(sql(spark, str(tmp_path), "UPDATE d.t SET n = counted(k) WHERE k IN (1, 4)")) == (4, 0, 0)
    assert calls.read_text() == "x" * 4
    rows = before()
    for dt, k in (("a", 1), ("a", 4), ("b", 1), ("b", 4)):
        rows[dt, k][2] = k + 100
    assert rows_of(table) == expected(rows)


@pytest.mark.every(4)
def test_delete_of_whole_partitions_reads_no_file(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    table = make(tmp_path, kind)
    spark.createDataFrame([("a", 3), ("c", 4)], "dt string, k int").createOrReplaceTempView("gone")
    with internal_column(*files_of(table, "a"), *files_of(table, "b")):
        nothing = sql(spark, str(tmp_path), "DELETE FROM d.t WHERE dt = 'c' OR dt IS NULL")
        result = sql(spark, str(tmp_path), "DELETE FROM d.t WHERE t.dt IN (SELECT dt FROM gone) AND upper(dt) < 'B'")
    assert (nothing["changed"], counts(nothing)) == (False, (0, 0, 0))
    assert counts(result) == (0, 10, 0)
    assert "rows_deleted_at_most" not in result["details"]
    assert rows_of(table) == expected({key: row for key, row in before().items() if key[0] == "b"})
    # a condition that looks like it, but compares other columns in its subquery
    spark.createDataFrame([("b", 3)], "dt string, k int").createOrReplaceTempView("gone")
    text = "DELETE FROM d.t WHERE dt = 'b' AND EXISTS (SELECT 1 FROM gone g WHERE g.k = t.k)"
    assert counts(sql(spark, str(tmp_path), text)) == (0, 1, 0)
    assert counts(sql(spark, str(tmp_path), "DELETE FROM d.t", all_rows=True)) == (0, 9, 0)
    assert rows_of(table) == []


@pytest.mark.every(2)
@pytest.mark.parametrize("producer", ["input", "full-compaction"])
def test_streaming_readers_get_what_statements_change(spark: SparkSession, tmp_path: Path, producer: str) -> None:
    """On main, each change once; with full-compaction also the rows that no compaction has told, in the same bucket."""
    table = make(tmp_path, "keyed", **{"bucket": "1", "write-only": "true"})
    alter_table(table, [SetOption(key="changelog-producer", value=producer)])
    stream = Follower(table, row_kind=True)
    state = {(dt, k): (k, v, n, dt) for k, v, n, dt, _ in stream.all()}
    assert len(state) == (20 if producer == "input" else 0)
    merge = "MERGE INTO d.t USING (SELECT 3 k, 'a' dt) s ON t.k = s.k AND t.dt = s.dt WHEN MATCHED THEN DELETE"
    for text, changes in (
        ("UPDATE d.t SET v = 'new' WHERE k = 1", ["+U", "+U", "-U", "-U"]),
        ("UPDATE d.t SET v = v WHERE k = 2", []),  # no row changes: the stream goes on all the same
        (merge, ["-D"]),
        ("DELETE FROM d.t WHERE dt = 'b'", ["-D"] * 10),
    ):
        result = sql(spark, str(tmp_path), text)
        told = stream.all()
        if producer == "input":
            assert sorted(kind for *_, kind in told) == changes
            assert result["details"]["changelog_rows"] == len(changes)
        for k, v, n, dt, kind in told:
            assert state.get((dt, k)) == ((k, v, n, dt) if kind in ("-U", "-D") else None)
            state.pop((dt, k), None)
            if kind in ("+I", "+U"):
                state[dt, k] = (k, v, n, dt)
        assert sorted(state.values(), key=repr) == rows_of(table)


def test_delete_of_whole_partitions_says_when_its_count_is_of_stored_rows(spark: SparkSession, tmp_path: Path) -> None:
    table = make(tmp_path, "keyed")
    newer = [{"k": 1, "v": "newer", "n": 1, "dt": "a"}]
    write_arrow(table, pa.Table.from_pylist(newer, read_arrow(table).schema))
    details = sql(spark, str(tmp_path), "DELETE FROM d.t WHERE dt = 'a'")["details"]
    assert (details["rows_deleted"], details["rows_deleted_at_most"]) == (11, True)
    assert {r[3] for r in rows_of(table)} == {"b"}


def test_subqueries_views_and_with_see_other_tables_and_versions(spark: SparkSession, tmp_path: Path) -> None:
    table = make(tmp_path, "tracked")
    warehouse = str(tmp_path)
    ids = dict(zip(*(read_arrow(table, columns=["v", "_ROW_ID"]).columns), strict=True))
    ids = {v.as_py(): i.as_py() for v, i in ids.items()}
    views = {"first": "d.t@1", "now": "d.t"}
    text = """WITH small AS (SELECT k FROM first WHERE k < 3)
        UPDATE d.t AS x SET n = (SELECT max(k) FROM first), v = concat(v, '!')
        WHERE x.k IN (SELECT k FROM small) AND EXISTS (SELECT 1 FROM now WHERE now.k = x.k AND now.dt = 'b')"""
    assert counts(sql(spark, warehouse, text, views=views)) == (6, 0, 0)
    rows = before()
    for (dt, k), row in rows.items():
        if k < 3:
            row[1:3] = [f"{dt}{k}!", 9]
    assert rows_of(table) == expected(rows)
    after = read_arrow(table, columns=["v", "_ROW_ID", "_SEQUENCE_NUMBER"]).to_pylist()
    assert {r["v"].rstrip("!"): r["_ROW_ID"] for r in after} == ids
    assert {r["_SEQUENCE_NUMBER"] for r in after if r["v"].endswith("!")} == {3}
    assert not spark.catalog.tableExists("first")
    moved = sql(spark, warehouse, "UPDATE d.t SET dt = 'z' WHERE k = 4 AND _ROW_ID >= 0")
    assert counts(moved) == (2, 0, 0)
    after = read_arrow(table, columns=["v", "_ROW_ID", "dt"]).to_pylist()
    assert {r["v"].rstrip("!"): r["_ROW_ID"] for r in after} == ids
    assert {r["v"] for r in after if r["dt"] == "z"} == {"a4", "b4"}


@pytest.mark.every(4, first=1)
def test_other_tables_branches_and_versions_are_named_in_the_statement(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    table = make(tmp_path, kind)
    warehouse = str(tmp_path)
    other = create_table(warehouse, "e.fixes", [("k", "INT"), ("v", "STRING")], options={"bucket": "-1"})
    write_arrow(other, pa.table({"k": pa.array([1, 2], pa.int32()), "v": ["one", "two"]}))
    run(tmp_path, "create_branch", branch="b", snapshot=1)
    write_arrow(other, pa.table({"k": pa.array([3], pa.int32()), "v": ["three"]}))
    spark.createDataFrame([(1,)], "k int").createOrReplaceTempView("fixes")  # has the name, but not of a table in e
    text = """WITH old AS (SELECT * FROM e.fixes VERSION AS OF 1)
        UPDATE d.t SET v = (SELECT max(v) FROM old WHERE old.k = t.k), n = (SELECT count(*) FROM d.t)
        WHERE dt = 'a' AND k IN (SELECT e.fixes.k FROM e.fixes JOIN fixes USING (k) UNION ALL SELECT 2 LIMIT 2)
          AND EXISTS (SELECT 1 FROM d.`t$branch_b` WHERE dt = 'a')
          AND NOT EXISTS (SELECT 1 FROM d.`t$branch_b` VERSION AS OF 1 WHERE dt = 'b')"""
    assert counts(sql(spark, warehouse, text)) == (2, 0, 0)
    rows = before()
    rows["a", 1][1:3], rows["a", 2][1:3] = ["one", 20], ["two", 20]
    assert rows_of(table) == expected(rows)
    merge = """MERGE INTO d.t USING e.fixes ON t.k = fixes.k AND t.dt = 'b'
        WHEN MATCHED THEN UPDATE SET v = e.fixes.v WHEN NOT MATCHED THEN INSERT (k, dt) VALUES (fixes.k, 'z')"""
    assert counts(sql(spark, warehouse, merge)) == (3, 0, 0)
    for k, word in enumerate(["one", "two", "three"], 1):
        rows["b", k][1] = word
    moment = f"timestamp_millis({table.snapshot(2).time_millis})"
    then = f"SELECT k, v, (SELECT count(*) FROM d.t), 'c' FROM d.t TIMESTAMP AS OF {moment} WHERE k = 1 AND dt = 'b'"
    assert counts(sql(spark, warehouse, f"INSERT INTO d.t WITH z AS ({then}) SELECT * FROM z")) == (0, 0, 1)
    rows["c", 1] = [1, "b1", 20, "c"]
    twice = "INSERT OVERWRITE d.t PARTITION (dt = 'c') SELECT k, concat(v, v), n FROM d.t WHERE dt = 'c'"
    assert counts(sql(spark, warehouse, twice)) == (0, 1, 1)
    rows["c", 1] = [1, "b1b1", 20, "c"]
    assert rows_of(table) == expected(rows)
    wrong = {
        "UPDATE d.t SET v = (SELECT max(v) FROM e.none) WHERE k = 1": "TABLE_OR_VIEW_NOT_FOUND.*position 40",
        "DELETE FROM d.t WHERE k IN (SELECT k FROM d.`t$branch_none`)": r"branch 'none'.*\(line 1, position 43\)",
        "DELETE FROM d.t WHERE k IN (SELECT k FROM d.t VERSION AS OF 'none')": r"none.*\(line 1, position 43\)",
        "DELETE FROM d.t WHERE k IN (SELECT k FROM d.`t$files`)": r"system table.*\(line 1, position 43\)",
    }
    for refused, message in wrong.items():
        with pytest.raises(PaimonError, match=message):
            sql(spark, warehouse, refused)
    assert rows_of(table) == expected(rows)


@pytest.mark.every(4)
def test_values_that_differ_at_each_call_are_assigned(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    table = make(tmp_path, kind)
    assert counts(sql(spark, str(tmp_path), "UPDATE d.t SET v = uuid(), n = 5 + 1000 * rand() WHERE dt = 'a'")) == (
        10,
        0,
        0,
    )
    ids = {r[1] for r in rows_of(table) if r[3] == "a"}
    assert len(ids) == 10 and all(re.fullmatch("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", i) for i in ids)
    assert len({r[2] for r in rows_of(table) if r[3] == "a"} - {None}) > 1
    merge = """MERGE INTO d.t USING (SELECT id AS k, 'b' AS dt FROM range(8, 12)) s ON t.k = s.k AND t.dt = s.dt
        WHEN MATCHED THEN UPDATE SET v = concat('new-', uuid())
        WHEN NOT MATCHED THEN INSERT (k, v, dt) VALUES (s.k, concat('new-', uuid()), s.dt)"""
    assert counts(sql(spark, str(tmp_path), merge)) == (2, 0, 2)
    assert [r[0] for r in rows_of(table) if r[1].startswith("new-")] == [10, 11, 8, 9]
    assert len({r[1] for r in rows_of(table)}) == 22


@pytest.mark.every(4, first=2)
@pytest.mark.parametrize("option", ["scan.fallback-branch", "scan.primary-branch"])
@pytest.mark.parametrize("kind_of_table", ["keyed", "append"])
def test_statements_on_a_table_that_is_read_with_another_branch(
    spark: SparkSession, tmp_path: Path, kind_of_table: str, option: str
) -> None:
    """Main has the partitions a and b, the other branch b and c."""
    main = make(tmp_path, kind_of_table)
    other = main.branch("other")
    other.store.create(other.paths.schema(0), main.store.read(main.paths.schema(0)))
    for dt in "bc":
        rows = [{"k": k, "v": "other", "n": 1, "dt": dt} for k in range(2)]
        write_arrow(other, pa.Table.from_pylist(rows, read_arrow(main).schema))
    alter_table(main, [SetOption(key=option, value="other")])
    seen = rows_of(main)
    shown = "c" if option == "scan.fallback-branch" else "b"
    for text in (
        "UPDATE d.t SET v = 'x' WHERE k = 1",
        f"UPDATE d.t SET v = 'x' WHERE dt = '{shown}'",
        "DELETE FROM d.t WHERE n < 99",
        "MERGE INTO d.t USING (SELECT id FROM range(2)) s ON t.k = s.id WHEN MATCHED THEN DELETE",
    ):
        with pytest.raises(UnsafeOperationError, match=rf"rows of branch 'other'.*partition .*dt={shown}"):
            sql(spark, str(tmp_path), text)
    emptied = {"scan.fallback-branch": ("DELETE FROM d.t WHERE dt = 'b'", "DELETE FROM d.t WHERE dt = 'b' AND k < 99")}
    for text in emptied.get(option, ("UPDATE d.t SET v = 'x' WHERE dt = 'b' AND k = 9",)):
        with pytest.raises(UnsafeOperationError, match=r"after the statement readers would see .* in partition dt=b"):
            sql(spark, str(tmp_path), text)
    assert (rows_of(main), main.latest_snapshot_id()) == (seen, 2)
    # what readers see is what the statement's subqueries see
    known = len(seen)
    changed = "a" if option == "scan.primary-branch" else "b"
    text = f"UPDATE d.t SET n = (SELECT count(*) FROM d.t) WHERE dt = '{changed}' AND k < 2"
    assert counts(sql(spark, str(tmp_path), text)) == (2, 0, 0)
    assert counts(sql(spark, str(tmp_path), "DELETE FROM d.t WHERE dt = 'a' AND k > 2")) == (0, 7, 0)
    expected_rows = [(k, v, known if dt == changed and k < 2 else n, dt) for k, v, n, dt in seen]
    assert rows_of(main) == sorted((r for r in expected_rows if r[3] != "a" or r[0] <= 2), key=repr)


def test_fields_inside_columns_are_assigned(spark: SparkSession, tmp_path: Path) -> None:
    inner = {
        "type": "ROW",
        "fields": [{"id": 12, "name": "y", "type": "INT"}, {"id": 13, "name": "z", "type": "STRING"}],
    }
    outer = {"type": "ROW", "fields": [{"id": 10, "name": "x", "type": inner}, {"id": 11, "name": "w", "type": "INT"}]}
    columns = [("k", "INT"), ("c", parse_type(outer))]
    table = create_table(str(tmp_path), "d.t", columns, options={"row-tracking.enabled": "true"})
    old = {"x": {"y": 1, "z": "one"}, "w": 7}
    rows = [{"k": 1, "c": old}, {"k": 2, "c": old}, {"k": 3, "c": None}]
    write_arrow(table, pa.Table.from_pylist(rows, read_arrow(table).schema))
    assert counts(sql(spark, str(tmp_path), "UPDATE d.t SET t.c.X.y = c.x.y + k, c.w = 8L WHERE k > 1")) == (2, 0, 0)
    merge = """MERGE INTO d.t AS a USING (SELECT 1 AS k, 'two' AS z) s ON a.k = s.k
        WHEN MATCHED THEN UPDATE SET a.c.x.z = s.z"""
    assert counts(sql(spark, str(tmp_path), merge)) == (1, 0, 0)
    assert rows_of(table) == [
        (1, {"x": {"y": 1, "z": "two"}, "w": 7}),
        (2, {"x": {"y": 3, "z": "one"}, "w": 8}),
        (3, {"x": {"y": None, "z": None}, "w": 8}),
    ]
    for text, message in {
        "UPDATE d.t SET c.x = c.x, c.x.y = 1 WHERE k = 1": "'c.x.y' is assigned twice",
        "UPDATE d.t SET c.nope = 1 WHERE k = 1": r"'c' has no field 'nope' \(line 1, position 25\) \(fields: x, w\)",
        "UPDATE d.t SET k.y = 1 WHERE k = 1": "'k' has no field 'y'.*it is a",
    }.items():
        assert re.search(message, _refusal(spark, tmp_path, text)), text


@pytest.mark.every(2)
@pytest.mark.parametrize("name", ["d.t", "x"])
def test_an_overwrite_of_what_it_reads_loses_no_commit(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """Another writer commits while the rows are computed from the table's own: they are computed again."""
    table = make(tmp_path)
    marker = tmp_path / "met"

    def meddle(n: int) -> int:
        with suppress(FileExistsError):  # one caller only: several tasks may come at once
            marker.touch(exist_ok=False)
            from airflow_paimon.core.table.table import open_table

            late = {"k": pa.array([70], pa.int32()), "v": ["late"], "n": pa.array([1], pa.int32()), "dt": ["a"]}
            write_arrow(open_table(str(tmp_path), "d.t"), pa.table(late))
        return n + 1

    spark.udf.register("meddle", meddle, "int")
    text = f"INSERT OVERWRITE d.t PARTITION (dt = 'a') SELECT k, v, meddle(k) FROM {name} WHERE dt = 'a'"
    sql(spark, str(tmp_path), text, views={"x": "d.t"})
    rows = before() | {("a", 70): [70, "late", 1, "a"]}
    for (dt, k), row in rows.items():
        row[2] = k + 1 if dt == "a" else row[2]
    assert rows_of(table) == expected(rows)


def test_insert_by_position_by_name_and_into_partitions(spark: SparkSession, tmp_path: Path) -> None:
    table = make(tmp_path, "keyed")
    warehouse = str(tmp_path)
    rows = before()
    assert counts(sql(spark, warehouse, "INSERT INTO d.t VALUES (50, 'x', 5L, 'a'), (51, NULL, 6L, 'c')")) == (0, 0, 2)
    rows["a", 50], rows["c", 51] = [50, "x", 5, "a"], [51, None, 6, "c"]
    sql(spark, warehouse, "INSERT INTO d.t (dt, k) SELECT 'c', 52")
    sql(spark, warehouse, "INSERT INTO d.t BY NAME SELECT 'c' AS dt, 53 AS k")
    sql(spark, warehouse, "INSERT INTO d.t PARTITION (dt = 'c') SELECT 54, 'y', 4")
    rows["c", 52], rows["c", 53], rows["c", 54] = [52, None, None, "c"], [53, None, None, "c"], [54, "y", 4, "c"]
    assert rows_of(table) == expected(rows)
    result = sql(spark, warehouse, "INSERT OVERWRITE d.t PARTITION (dt = 'a') SELECT 1, 'only', 1")
    rows = {key: row for key, row in rows.items() if key[0] != "a"} | {("a", 1): [1, "only", 1, "a"]}
    assert rows_of(table) == expected(rows)
    assert counts(result)[2] == 1
    with temporary_conf(spark, {"spark.sql.sources.partitionOverwriteMode": "dynamic"}):
        sql(spark, warehouse, "INSERT OVERWRITE d.t SELECT 2, 'c only', 2, 'c'")
    rows = {key: row for key, row in rows.items() if key[0] != "c"} | {("c", 2): [2, "c only", 2, "c"]}
    assert rows_of(table) == expected(rows)
    sql(spark, warehouse, "INSERT OVERWRITE d.t VALUES (1, 'all', 1, 'd')", all_rows=True)
    assert rows_of(table) == [(1, "all", 1, "d")]
    sql(spark, warehouse, "DELETE FROM d.t WHERE n < 99", all_rows=True)
    assert rows_of(table) == []


def test_a_statement_means_what_it_says_whatever_the_options_decide_between_versions(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = make(tmp_path, "keyed", **{"sequence.field": "n", "ignore-delete": "true", "bucket": "1"})
    sql(spark, str(tmp_path), "UPDATE d.t SET n = NULL, v = 'older' WHERE k = 3")
    sql(spark, str(tmp_path), "UPDATE d.t SET n = -5 WHERE k = 5")
    sql(spark, str(tmp_path), "DELETE FROM d.t WHERE k = 9")
    rows = {key: row for key, row in before().items() if key[1] != 9}
    for dt in "ab":
        rows[dt, 3], rows[dt, 5] = [3, "older", None, dt], [5, f"{dt}5", -5, dt]
    assert rows_of(table) == expected(rows)


def test_an_operation_id_makes_a_statement_run_once(spark: SparkSession, tmp_path: Path) -> None:
    table = make(tmp_path, "append")
    text = "UPDATE d.t SET n = n + 1 WHERE k = 1"
    first = sql(spark, str(tmp_path), text, operation_id="fix-1")
    again = sql(spark, str(tmp_path), text, operation_id="fix-1")
    assert again["details"].pop("replayed") is True
    assert {**again, "duration_s": 0} == {**first, "duration_s": 0}
    assert sorted(r[2] for r in rows_of(table) if r[0] == 1) == [2, 2]
    insert = "INSERT OVERWRITE d.t PARTITION (dt = 'b') SELECT 1, 'only', 2"
    first = sql(spark, str(tmp_path), insert, operation_id="fix-2")
    again = sql(spark, str(tmp_path), insert, operation_id="fix-2")
    assert again["details"].pop("replayed") is True
    assert {**again, "duration_s": 0} == {**first, "duration_s": 0}
    assert counts(again) == (0, 10, 1)
    with pytest.raises(InvalidInputError, match="another request"):
        sql(spark, str(tmp_path), text.replace("k = 1", "k = 2"), operation_id="fix-1")
    assert table.latest_snapshot_id() == 4


@pytest.mark.parametrize("name", ["keyed", "append"])
def test_a_commit_in_between_is_not_lost(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """The statement's own function commits to the same rows while it is evaluated for the first time."""
    table = make(tmp_path, name)
    marker = tmp_path / "met"

    def meddle(n: int) -> int:
        with suppress(FileExistsError):  # one caller only: several tasks may come at once
            marker.touch(exist_ok=False)
            from airflow_paimon.core.table.table import open_table

            rows = pa.table(
                {"k": pa.array([1], pa.int32()), "v": ["late"], "n": pa.array([70], pa.int32()), "dt": ["a"]}
            )
            table = open_table(str(tmp_path), "d.t")
            if name == "keyed":
                write_arrow(table, rows)
            else:
                write_arrow(table, rows, mode="overwrite", partition={"dt": "a"})
        return n + 1

    spark.udf.register("meddle", meddle, "int")
    sql(spark, str(tmp_path), "UPDATE d.t SET n = meddle(n) WHERE k = 1 AND n IS NOT NULL")
    assert marker.exists()
    assert table.latest_snapshot_id() == 4
    assert [r for r in rows_of(table) if r[0] == 1] == [(1, "b1", 2, "b"), (1, "late", 71, "a")]


def test_the_views_of_a_statement_read_one_version_of_a_table_set(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another version is made after the first view was opened, before the second one is."""
    target = make(tmp_path)
    sources = [create_table(str(tmp_path), name, [("n", "INT")]) for name in ("d.one", "d.two")]

    def publish(number: int) -> None:
        for table in sources:
            write_arrow(table, pa.table({"n": pa.array([number], pa.int32())}), mode="overwrite")
        run(tmp_path, "create_table_set", table="d.one", table_set="pair", member=["d.two"])

    publish(1)
    opened, original = [], tables.pin

    def pin(*arguments: Any) -> Any:
        found = original(*arguments)
        opened.append(arguments)
        publish(1 + len(opened))
        return found

    monkeypatch.setattr(tables, "pin", pin)
    statement = "INSERT INTO d.t SELECT one.n, 'new', two.n, 'c' FROM one CROSS JOIN two"
    views = {"one": "d.one@set:pair", "two": "d.two@set:pair"}
    sql(spark, str(tmp_path), statement, views=views)
    assert len(opened) == 2
    assert [row for row in rows_of(target) if row[3] == "c"] == [(1, "new", 1, "c")]


def test_marks_rows_by_vectors_in_tasks(spark: SparkSession, tmp_path: Path) -> None:
    """Spark's own reader leaves out what is deleted, and tells where the other rows lie."""
    table = make(tmp_path, "tracked", **{"deletion-vectors.enabled": "true"})
    files = {f.file_name for s in plan_scan(table).splits for f in s.files}
    ids = {(r["k"], r["dt"]): r["_ROW_ID"] for r in read_arrow(table, columns=["k", "dt", "_ROW_ID"]).to_pylist()}
    left = rows_of(table)
    with in_tasks():
        for condition, is_gone in (
            ("k = 1", lambda row: row[0] == 1),
            ("k < 3 AND n IS NOT NULL", lambda row: row[0] < 3 and row[2] is not None),
            (f"_ROW_ID = {ids[7, 'b']}", lambda row: (row[0], row[3]) == (7, "b")),
        ):
            gone = [row for row in left if is_gone(row)]
            result = sql(spark, str(tmp_path), f"DELETE FROM d.t WHERE {condition}")
            assert counts(result) == (0, len(gone), 0) and result["details"]["files_with_deletions"] >= 1
            left = [row for row in left if row not in gone]
            assert rows_of(table) == left
        assert {f.file_name for s in plan_scan(table).splits for f in s.files} == files
        result = sql(spark, str(tmp_path), f"UPDATE d.t SET v = 'x' WHERE _ROW_ID = {ids[8, 'b']}")
        assert counts(result) == (1, 0, 0)
        assert rows_of(table) == [(k, "x" if (k, dt) == (8, "b") else v, n, dt) for k, v, n, dt in left]
        source = "(SELECT * FROM VALUES (8, 'b', 'y'), (99, 'c', 'new') AS s(k, dt, v)) AS s"
        merge = f"MERGE INTO d.t USING {source} ON t.k = s.k AND t.dt = s.dt WHEN MATCHED THEN UPDATE SET v = s.v "
        result = sql(spark, str(tmp_path), f"{merge} WHEN NOT MATCHED THEN INSERT (k, dt, v) VALUES (s.k, s.dt, s.v)")
        assert counts(result) == (1, 0, 1) and result["details"]["files_rewritten"] == 1, "of the row alone"
        with pytest.raises(InvalidInputError, match="MERGE_CARDINALITY_VIOLATION"):
            sql(spark, str(tmp_path), merge.replace("t.k = s.k AND t.dt = s.dt", "t.k < s.k"))
    after = {(k, dt): (v, i) for k, v, dt, i in with_keys(table)}
    assert after[8, "b"] == ("y", ids[8, "b"]) and after[99, "c"][0] == "new"
    assert {key: i for key, (_, i) in after.items() if key in ids} == {key: ids[key] for key in after if key in ids}
    live = {f.file_name for s in plan_scan(table).splits for f in s.files}
    assert files < live and len(live - files) == 2, "the old files stay"


def with_keys(table: Table) -> list[tuple[Any, ...]]:
    read = read_arrow(table, columns=["k", "v", "dt", "_ROW_ID"])
    return [tuple(row.values()) for row in read.to_pylist()]
