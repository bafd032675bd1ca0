"""``sql`` with SELECT: the rows of the readers, row ids, time travel, branches and system tables, each in one state."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_paimon.core.errors import InvalidInputError, NotFoundError
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.inspect import inspect
from airflow_paimon.core.table.predicate import AllOf, Condition
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import read_arrow, read_system_table
from airflow_paimon.data.arrow_write import write_arrow
from airflow_paimon.spark import sql
from airflow_paimon.spark.rows_in import temporary_conf
from airflow_paimon.spark.statements.pruning import Needed, needed_of, placeholder, united
from tests.core.tables import run
from tests.randomness import every
from tests.spark.jobs.operations import in_tasks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = (("k", "INT NOT NULL"), ("v", "STRING"), ("dt", "STRING NOT NULL"))


def make(warehouse: Path, name: str = "d.t", *, keyed: bool = False) -> Table:
    """A table with two snapshots, tag ``one`` on the first, and a branch ``b`` of that with a snapshot more."""
    options = {"bucket": "1"} if keyed else {"row-tracking.enabled": "true"}
    keys = ["dt", "k"] if keyed else []
    table = create_table(str(warehouse), name, COLUMNS, partition_keys=["dt"], primary_keys=keys, options=options)
    write(table, (1, "one", "a"), (2, "two", "a"))
    run(table, "create_tag", tag="one")
    run(table, "create_branch", branch="b", tag="one")
    write(table, (3, "three", "b"))
    write(table.branch("b"), (4, "four", "a"))
    return table


def write(table: Table, *rows: tuple[int, str, str]) -> None:
    columns = dict(zip(("k", "v", "dt"), zip(*rows, strict=True), strict=True))
    write_arrow(table, pa.table(columns).cast(read_arrow(table).schema))


def rows_of(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, frame.collect()), key=repr)


def arrow_rows(found: pa.Table) -> list[tuple[Any, ...]]:
    return sorted((tuple(r.values()) for r in found.to_pylist()), key=repr)


@pytest.mark.every(2)
@pytest.mark.parametrize("keyed", [False, True])
def test_every_state_of_a_table_is_the_readers(spark: SparkSession, tmp_path: Path, keyed: bool) -> None:
    table, warehouse = make(tmp_path, keyed=keyed), str(tmp_path)
    branch = table.branch("b")
    moment = table.snapshot(1).time_millis
    clock = datetime.fromtimestamp(moment / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
    for named, expected in {
        "d.t": read_arrow(table),
        "d.`t$branch_b`": read_arrow(branch),
        "d.t VERSION AS OF 1": read_arrow(table, 1),
        "d.t VERSION AS OF 'one'": read_arrow(table, "one"),
        "d.t FOR SYSTEM_VERSION AS OF 'b.2'": read_arrow(branch, 2),
        "d.`t@one`": read_arrow(table, "one"),
        f"d.t TIMESTAMP AS OF '{clock}'": read_arrow(table, 1),
        "d.`t$branch_b` VERSION AS OF 1": read_arrow(branch, 1),
    }.items():
        with temporary_conf(spark, {"spark.sql.session.timeZone": "UTC"}):
            found = sql(spark, warehouse, f"SELECT * FROM {named};")
        assert found.columns == ["k", "v", "dt"]
        assert rows_of(found) == arrow_rows(expected), named
    joined = sql(
        spark,
        warehouse,
        "WITH new AS (SELECT * FROM d.`t$branch_b`) SELECT k FROM new WHERE k NOT IN (SELECT k FROM d.t) "
        "UNION ALL SELECT count(*) FROM d.t VERSION AS OF 1",
    )
    assert rows_of(joined) == [(2,), (4,)]


def test_a_tag_whose_name_is_a_number_comes_before_the_snapshot(spark: SparkSession, tmp_path: Path) -> None:
    table = make(tmp_path)
    table.store.create(table.paths.tag("1"), table.store.read(table.paths.snapshot(2)))  # as Paimon's engines can
    assert sql(spark, str(tmp_path), "SELECT * FROM d.t VERSION AS OF 1").count() == 3


@pytest.mark.every(2)
@pytest.mark.parametrize("keyed", [False, True])
def test_system_tables_of_every_branch(spark: SparkSession, tmp_path: Path, keyed: bool) -> None:
    table, warehouse = make(tmp_path, keyed=keyed), str(tmp_path)
    for view, prefix in ((table, "t"), (table.branch("b"), "t$branch_b")):
        for system in ("snapshots", "tags", "branches", "options", "schemas", "consumers", "statistics",
                       "files", "manifests", "partitions"):  # fmt: skip
            found = sql(spark, warehouse, f"SELECT * FROM d.`{prefix}${system}`")
            expected = inspect(view, system)
            assert found.columns == expected.column_names
            assert rows_of(found) == arrow_rows(expected), system
        for system in ("audit_log", "ro"):
            found = sql(spark, warehouse, f"SELECT * FROM d.`{prefix}${system}`")
            assert rows_of(found) == arrow_rows(read_system_table(view, system))
    files = sql(spark, warehouse, "SELECT count(*) FROM d.`t$files` VERSION AS OF 1")
    assert rows_of(files) == [(inspect(table, "files", 1).num_rows,)]
    with pytest.raises(InvalidInputError, match=r"\$tags takes no version"):
        sql(spark, warehouse, "SELECT * FROM d.`t$tags` VERSION AS OF 1")
    with pytest.raises(InvalidInputError, match="there is no system table 'nothing'"):
        sql(spark, warehouse, "SELECT * FROM d.`t$nothing`")


def test_row_ids_are_read_by_name_and_are_no_part_of_a_star(spark: SparkSession, tmp_path: Path) -> None:
    table, warehouse = make(tmp_path), str(tmp_path)
    sql(spark, warehouse, "UPDATE d.t SET v = 'changed' WHERE k = 1")
    ids = arrow_rows(read_arrow(table, columns=["k", "v", "dt", "_ROW_ID", "_SEQUENCE_NUMBER"]))
    found = sql(spark, warehouse, "SELECT *, _ROW_ID, _SEQUENCE_NUMBER FROM d.t")
    assert found.columns == ["k", "v", "dt", "_ROW_ID", "_SEQUENCE_NUMBER"]
    assert rows_of(found) == ids
    pairs = sql(spark, warehouse, "SELECT a.*, o.v FROM d.t a JOIN d.t VERSION AS OF 2 AS o ON a._row_id = o._row_id")
    assert rows_of(pairs) == [(1, "changed", "a", "one"), (2, "two", "a", "two"), (3, "three", "b", "three")]
    twice = sql(spark, warehouse, "SELECT t.k FROM d.t JOIN d.t b ON t._ROW_ID = b._ROW_ID ORDER BY b._ROW_ID DESC")
    assert [row.k for row in twice.collect()] == [k for _, k in sorted(((r[3], r[0]) for r in ids), reverse=True)]
    with pytest.raises(InvalidInputError, match=r"_ROW_ID.*line 1, position 8"):
        sql(spark, warehouse, "SELECT _ROW_ID FROM (SELECT * FROM d.t)")


def test_one_statement_sees_one_state(spark: SparkSession, tmp_path: Path) -> None:
    table, warehouse = make(tmp_path), str(tmp_path)
    found = sql(
        spark,
        warehouse,
        "SELECT (SELECT count(*) FROM d.t), (SELECT count(*) FROM again), (SELECT sum(record_count) FROM d.`t$files`)",
        {"again": "d.t"},
    )
    write(table, (9, "later", "c"))
    assert rows_of(found) == [(3, 3, 3)]
    assert not spark.catalog.tableExists("again")


def test_bad_and_hostile_queries(spark: SparkSession, tmp_path: Path) -> None:
    warehouse = str(tmp_path)
    make(tmp_path)
    before = sorted(p for p in tmp_path.rglob("*") if p.is_file())
    for text, error, said in (
        ("SELECT * FROM d.nope", NotFoundError, r"`d`\.`nope` cannot be found.*line 1, position 15.*SHOW TABLES"),
        ("SELECT * FROM c.d.t", InvalidInputError, "named db.table, and SHOW TABLES lists them"),
        ("SELECT * FROM d.`nope$snapshots`", NotFoundError, "cannot be found"),
        ("SELECT * FROM d.`t$branch_c`", NotFoundError, "no branch 'c'"),
        ("SELECT * FROM d.t VERSION AS OF 'x'", NotFoundError, r"no tag 'x' \(its tags: .*one\).*line 1"),
        ("SELECT * FROM d.t VERSION AS OF 99", NotFoundError, "no snapshot 99"),
        ("SELECT * FROM d.t TIMESTAMP AS OF '1999-01-01'", NotFoundError, "no snapshot as early"),
        ("SELECT * FROM d.t WITH ('scan.snapshot-id' = '1')", InvalidInputError, r"WITH \(\.\.\.\) after.*position 15"),
        ("SELECT * FROM STREAM d.t", InvalidInputError, "STREAM has no meaning"),
        ("SELECT nope FROM d.t", InvalidInputError, r"`nope`.*line 1, position 8"),
        ("SELECT 1; SELECT 2", InvalidInputError, "Syntax error.*line 1, position 11"),
        ("SELECT * FROM d.t; DROP TABLE d.t", InvalidInputError, "Syntax error"),
        ("SELECT * FROM d.`..$snapshots`", InvalidInputError, "not of the form db.table"),
        ("SELECT * FROM `../d`.`t$files`", InvalidInputError, "not of the form db.table"),
        ("SELECT * FROM `..`.`d.db`", InvalidInputError, "Syntax error in the attribute name"),
        ('SELECT * FROM d.`t"; DROP TABLE d.t`', NotFoundError, "cannot be found"),
        ("SELECT * FROM d.`t``$snapshots`", NotFoundError, "cannot be found"),
        ("SELECT * FROM d.` t`", NotFoundError, "cannot be found"),
        (
            f"INSERT OVERWRITE DIRECTORY '{tmp_path}/out' USING parquet SELECT * FROM d.t",
            InvalidInputError,
            "sql doesn't run",
        ),
        (
            f"WITH x AS (SELECT 1) INSERT OVERWRITE DIRECTORY '{tmp_path}/o' SELECT 1",
            InvalidInputError,
            "sql doesn't run",
        ),
        ("SET spark.sql.ansi.enabled = false", InvalidInputError, "sql doesn't run"),
        ("CACHE TABLE d.t", InvalidInputError, "sql doesn't run"),
        ("", InvalidInputError, "can't parse"),
    ):
        with pytest.raises(error, match=said):
            sql(spark, warehouse, text)
    assert sorted(p for p in tmp_path.rglob("*") if p.is_file()) == before
    with pytest.raises(NotFoundError, match=r"no table d\.nope"):
        sql(spark, warehouse, "SELECT * FROM v", {"v": "d.nope"})
    with pytest.raises(InvalidInputError, match="plain name"):
        sql(spark, warehouse, "SELECT 1", {"a b": "d.t"})


QUERIES = (
    "SELECT v FROM d.t WHERE dt = 'a' AND k > 1",
    "SELECT count(*) FROM d.t",
    "SELECT a.v, b.dt FROM d.t a LEFT JOIN d.t b ON a.k = b.k AND b.dt = 'b' WHERE a.k < 9",
    "WITH x AS (SELECT * FROM d.t) SELECT k FROM x WHERE dt = 'a' UNION ALL SELECT k FROM x WHERE dt = 'b'",
    "SELECT k FROM d.t WHERE v = (SELECT max(v) FROM d.t WHERE dt = 'a') OR k IN (SELECT k FROM d.t VERSION AS OF 1)",
    "SELECT dt, count(*), max(v) FROM d.t GROUP BY dt HAVING count(*) > 1",
    "SELECT k, row_number() OVER (PARTITION BY dt ORDER BY k) FROM d.t WHERE v <> 'two'",
    "SELECT t.k, o.v FROM d.t FULL JOIN d.`t$branch_b` o ON t.k = o.k WHERE o.k IS NULL OR t.k IS NULL",
    "SELECT * FROM d.t WHERE NOT (dt = 'a' AND v IS NOT NULL)",
    "SELECT dt AS k, k AS dt FROM (SELECT k, upper(dt) AS dt FROM d.t) WHERE dt = 'A'",
    "SELECT again.v FROM again WHERE dt = 'b'",
)


@pytest.mark.every(2)
@pytest.mark.parametrize("keyed", [False, True])
def test_a_large_table_gives_the_same_rows_as_a_small_one(spark: SparkSession, tmp_path: Path, keyed: bool) -> None:
    make(tmp_path, keyed=keyed)
    for text in every(2, QUERIES if keyed else (*QUERIES, "SELECT _ROW_ID, k FROM d.t WHERE _ROW_ID > 0 AND dt = 'a'")):
        few = sql(spark, str(tmp_path), text, {"again": "d.t"})
        with in_tasks():
            many = sql(spark, str(tmp_path), text, {"again": "d.t"})
            assert (many.columns, rows_of(many)) == (few.columns, rows_of(few)), text
        assert few.schema == many.schema


def test_of_a_large_table_only_what_the_query_needs_is_read(spark: SparkSession, tmp_path: Path) -> None:
    make(tmp_path, keyed=True)
    for file in (tmp_path / "d.db/t/dt=b").rglob("data-*"):
        file.unlink()
    with in_tasks():
        assert rows_of(sql(spark, str(tmp_path), "SELECT v FROM d.t WHERE dt = 'a'")) == [("one",), ("two",)]
        found = sql(spark, str(tmp_path), "SELECT k, v FROM d.t WHERE dt = 'a' AND k = 1 UNION ALL SELECT 1, 'x'")
        assert rows_of(found) == [(1, "one"), (1, "x")]
        with pytest.raises(Exception, match="data-"):
            sql(spark, str(tmp_path), "SELECT v FROM d.t").collect()


def test_what_is_pruned_by(spark: SparkSession, tmp_path: Path) -> None:
    schema = make(tmp_path).schema()
    frame, number = placeholder(spark, schema)
    found = needed_of(frame.where("dt < 'x' AND k + 1 > 2").select("v"), {number: schema})[number]
    (needed,) = found
    not_null = AllOf((Condition("dt", "is not null"), Condition("k", "is not null")))
    assert needed == Needed(AllOf((not_null, Condition("dt", "<", "x"))), frozenset({"dt", "k", "v"}))
    later = needed_of(frame.where("dt < string(current_date())"), {number: schema})[number]
    assert later[0].predicate is None
    assert united([*found, *later]) == Needed(None, None)
    assert united([]) == Needed(None, None)
