"""Forms of Flink's and Paimon's SQL: a chain table set up as Paimon's documents do, USE, OPTIONS, SET and RESET."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_paimon.core.errors import InvalidInputError, NotFoundError, PaimonError, UnsupportedFeatureError
from airflow_paimon.core.table.table import open_table
from airflow_paimon.spark import sql
from airflow_paimon.spark.statements.dialect import spark_text
from airflow_paimon.spark.statements.sql_request import DATABASE_SETTING
from tests.spark.jobs.operations import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHAIN = """CREATE TABLE d.t (t1 STRING, t2 STRING, t3 STRING) PARTITIONED BY (`date` STRING) TBLPROPERTIES (
    'chain-table.enabled' = 'true', 'primary-key' = 'date,t1', 'sequence.field' = 't2', 'bucket-key' = 't1',
    'bucket' = '2', 'partition.timestamp-pattern' = '$date', 'partition.timestamp-formatter' = 'yyyyMMdd')"""
NAMES = "('scan.fallback-snapshot-branch' = 'snapshot', 'scan.fallback-delta-branch' = 'delta')"


def rows(spark: SparkSession, warehouse: Path, text: str, **more: Any) -> list[tuple[Any, ...]]:
    return sorted(tuple(r) for r in sql(spark, str(warehouse), text, **more).collect())


@pytest.fixture
def without_database(spark: SparkSession) -> Iterator[None]:
    yield
    spark.conf.unset(DATABASE_SETTING)


@pytest.mark.every(2)
@pytest.mark.parametrize("order", [("", "snapshot", "delta"), ("delta", "snapshot", "")])
def test_a_chain_table_is_set_up_in_the_order_of_paimons_documents(
    spark: SparkSession, tmp_path: Path, order: tuple[str, ...]
) -> None:
    warehouse = str(tmp_path)
    if spark.version.startswith("3."):
        pytest.skip("CREATE TABLE needs Spark 4")
    steps = [CHAIN, "CALL sys.create_branch('d.t', 'snapshot')", "CALL sys.create_branch('d.t', 'delta')"]
    alter = "ALTER TABLE d.`t{}` SET TBLPROPERTIES " + NAMES
    steps += [alter.format(f"$branch_{name}" if name else "") for name in order]
    for number, step in enumerate(steps):
        if number:
            with pytest.raises(PaimonError, match=r"set-up is not finished|make them equal"):
                sql(spark, warehouse, "SELECT * FROM d.t")
        assert sql(spark, warehouse, step)["changed"], step
    assert run(tmp_path, "check_chain_table").details["ok"]
    assert rows(spark, tmp_path, "SELECT * FROM d.t") == []
    sql(spark, warehouse, "INSERT OVERWRITE d.`t$branch_delta` PARTITION (`date` = '20250810') VALUES ('1', '1', '1')")
    sql(spark, warehouse, "INSERT INTO d.`t$branch_delta` PARTITION (`date` = '20250811') VALUES ('2', '1', '1')")
    day = "SELECT t1 FROM d.t WHERE `date` = '20250811'"
    assert rows(spark, tmp_path, day) == [("1",), ("2",)]
    sql(spark, warehouse, "CALL sys.compact_chain_table(table => 'd.t', partition => 'date=\"20250811\"')")
    assert rows(spark, tmp_path, day.replace("d.t", "d.`t$branch_snapshot`")) == [("1",), ("2",)]


def test_a_set_up_can_be_finished_and_not_be_undone(spark: SparkSession, tmp_path: Path) -> None:
    if spark.version.startswith("3."):
        pytest.skip("CREATE TABLE needs Spark 4")
    warehouse = str(tmp_path)
    sql(spark, warehouse, CHAIN)
    with pytest.raises(UnsupportedFeatureError, match=r"does not write a chain table whose set-up is not finished"):
        sql(spark, warehouse, "INSERT INTO d.t VALUES ('1', '1', '1', '20250810')")
    with pytest.raises(InvalidInputError, match="branch 'snapshot' does not exist"):
        sql(spark, warehouse, f"ALTER TABLE d.t SET TBLPROPERTIES {NAMES}")
    assert run(tmp_path, "create_chain_table").changed
    assert rows(spark, tmp_path, "SELECT * FROM d.t") == []
    for name in ("t", "t$branch_delta"):
        with pytest.raises(InvalidInputError, match="would no longer form one chain table"):
            sql(spark, warehouse, f"ALTER TABLE d.`{name}` UNSET TBLPROPERTIES ('scan.fallback-delta-branch')")


def test_names_of_one_part_are_of_the_database_of_use(
    spark: SparkSession, tmp_path: Path, without_database: None
) -> None:
    warehouse = str(tmp_path)
    if spark.version.startswith("3."):
        pytest.skip("CREATE TABLE needs Spark 4")
    sql(spark, warehouse, "CREATE TABLE d.t (a INT, b STRING)")
    for text in ("SELECT * FROM t", "INSERT INTO t VALUES (1, 'x')", "DESCRIBE t", "CALL sys.create_tag('t', 'x')"):
        with pytest.raises((NotFoundError, InvalidInputError)):
            sql(spark, warehouse, text)
    with pytest.raises(NotFoundError, match=r"has no database 'e' \(it has d\)"):
        sql(spark, warehouse, "USE e")
    for text in ("USE paimon", "USE d", "USE DATABASE d", "USE paimon.d"):
        sql(spark, warehouse, text)
    assert rows(spark, tmp_path, "SHOW CURRENT DATABASE") == [("paimon", "d")]
    sql(spark, warehouse, "INSERT INTO t VALUES (1, 'x'), (2, 'y')")
    sql(spark, warehouse, "CALL sys.create_tag('t', 'first')")
    sql(spark, warehouse, "CREATE TABLE u AS SELECT a FROM t")
    sql(spark, warehouse, "UPDATE t SET b = 'z' WHERE t.a IN (SELECT a FROM u WHERE a = 2)")
    sql(spark, warehouse, "MERGE INTO t USING u ON t.a = u.a AND u.a = 1 WHEN MATCHED THEN DELETE")
    assert rows(spark, tmp_path, "SELECT t.*, d.t.a FROM t") == [(2, "z", 2)]
    assert rows(spark, tmp_path, "SELECT b FROM t VERSION AS OF first") == [("x",), ("y",)]
    # what the statement or the session names itself comes first
    assert rows(spark, tmp_path, "WITH t AS (SELECT 7 AS a) SELECT a FROM t") == [(7,)]
    assert rows(spark, tmp_path, "SELECT a FROM (WITH t AS (SELECT 7 AS a) SELECT a FROM t) JOIN t USING (a)") == []
    shown = spark.createDataFrame([(9,)], "a INT")
    assert rows(spark, tmp_path, "SELECT a FROM t", views={"t": shown}) == [(9,)]
    assert [name for _, name, _ in rows(spark, tmp_path, "SHOW TABLES")] == ["t", "u"]
    sql(spark, warehouse, "DROP TABLE u", all_rows=True)
    assert open_table(warehouse, "d.t").tag_names() == ["first"]


def test_databases_are_made_used_and_dropped(spark: SparkSession, tmp_path: Path, without_database: None) -> None:
    warehouse = str(tmp_path)
    for text, changed in (
        ("CREATE DATABASE d", True), ("CREATE SCHEMA IF NOT EXISTS d", False), ("CREATE DATABASE paimon.e", True),
        ("DROP DATABASE e", True), ("DROP DATABASE IF EXISTS e RESTRICT", False),
    ):  # fmt: skip
        assert sql(spark, warehouse, text)["changed"] is changed, text
    assert rows(spark, tmp_path, "SHOW DATABASES") == [("d",)]
    sql(spark, warehouse, "USE d")
    for text, error in (
        ("CREATE DATABASE d", "already"), ("DROP DATABASE e", "no database 'e'"),
        ("DROP DATABASE d CASCADE", "DROP TABLE"),
        ("CREATE DATABASE f LOCATION '/tmp/f'", "location is not kept here"), ("DROP DATABASE a.b", "one part"),
    ):  # fmt: skip
        with pytest.raises(PaimonError, match=error):
            sql(spark, warehouse, text)
    sql(spark, warehouse, "DROP DATABASE d")
    assert rows(spark, tmp_path, "SHOW CURRENT DATABASE") == [("paimon", "")]


def test_tables_about_rows_and_tables(spark: SparkSession, tmp_path: Path) -> None:
    warehouse = str(tmp_path)
    if spark.version.startswith("3."):
        pytest.skip("CREATE TABLE needs Spark 4")
    assert rows(spark, tmp_path, "SELECT * FROM sys.tables") == []
    sql(spark, warehouse, "CREATE TABLE d.t (a INT) TBLPROPERTIES ('row-tracking.enabled' = 'true')")
    sql(spark, warehouse, "CREATE TABLE d.u (a INT NOT NULL) TBLPROPERTIES ('primary-key' = 'a', 'bucket' = '1')")
    sql(spark, warehouse, "INSERT INTO d.t VALUES (5), (6)")
    tracked = "FROM d.`t$row_tracking`"
    assert rows(spark, tmp_path, f"SELECT * {tracked}") == [(5, 0, 1), (6, 1, 1)]
    assert rows(spark, tmp_path, f"SELECT * {tracked} WHERE _ROW_ID = 1") == [(6, 1, 1)]
    assert rows(spark, tmp_path, "SELECT bucket, record_count FROM d.`t$buckets`") == [(0, 2)]
    columns = "table_name, partitioned, primary_key, record_count"
    expected = [("t", False, False, 2), ("u", False, True, 0)]
    assert rows(spark, tmp_path, f"SELECT {columns} FROM sys.tables WHERE database_name = 'd'") == expected
    options = rows(spark, tmp_path, "SELECT table_name, value FROM sys.all_table_options WHERE key = 'bucket'")
    assert options == [("u", "1")]
    with pytest.raises(NotFoundError):
        sql(spark, warehouse, "SELECT * FROM sys.nothing")


def test_options_name_a_branch_and_a_state(spark: SparkSession, tmp_path: Path) -> None:
    warehouse = str(tmp_path)
    if spark.version.startswith("3."):
        pytest.skip("CREATE TABLE needs Spark 4")
    sql(spark, warehouse, "CREATE TABLE d.t (a INT, b STRING)")
    sql(spark, warehouse, "INSERT INTO d.t VALUES (1, 'x')")
    sql(spark, warehouse, "CALL sys.create_tag('d.t', 'x')")
    sql(spark, warehouse, "CALL sys.create_branch('d.t', 'fix', 'x')")
    sql(spark, warehouse, "INSERT INTO d.t /*+ OPTIONS('branch'='fix') */ VALUES (2, 'y')")
    sql(spark, warehouse, "CALL sys.create_tag('d.t$branch_fix', 'done')")
    sql(spark, warehouse, "UPDATE d.t /*+ OPTIONS('scan.branch' = 'fix') */ SET a = 3 WHERE a = 2")
    for text, found in (
        ("d.t", [1]),
        ("d.t /*+ OPTIONS('scan.branch' = 'fix') */", [1, 3]),
        ("d.t /*+ OPTIONS('scan.branch'='fix', 'scan.tag-name'='done') */ AS q", [1, 2]),
        ("d.t /*+ options('scan.snapshot-id' = '1') */", [1]),
        ("d.t VERSION AS OF fix.done", [1, 2]),
        ("d.t FOR SYSTEM_VERSION AS OF fix.2 WHERE a > 1", [2]),
        ("d.t VERSION AS OF x", [1]),
    ):
        assert [a for (a,) in rows(spark, tmp_path, f"SELECT a FROM {text}")] == found, text
    for text, says in (
        ("SELECT /*+ OPTIONS('scan.branch' = 'fix') */ * FROM d.t", "must follow the name of a table"),
        ("SELECT * FROM d.t AS q /*+ OPTIONS('scan.branch' = 'fix') */", "must follow the name of a table"),
        ("SELECT * FROM d.t q /*+ OPTIONS('scan.branch' = 'fix') */", "must follow the name of a table"),
        ("SELECT * FROM d.t /*+ OPTIONS('scan.mode' = 'full') */", "'scan.mode'.*has no meaning here"),
        ("SELECT * FROM d.t /*+ OPTIONS('branch') */", "not of the form"),
        ("SELECT * FROM d.t /*+ OPTIONS('branch' = 'a`b') */", "is not the name"),
        ("SELECT * FROM d.t WITH ('branch' = 'fix')", r"name a branch as db\.`t\$branch_b`"),
        ("INSERT INTO d.t WITH ('branch' = 'fix') VALUES (5, 'v')", r"name a branch as db\.`t\$branch_b`"),
    ):
        with pytest.raises(InvalidInputError, match=says):
            sql(spark, warehouse, text)
    for text, left in (
        ("ALTER TABLE d.t SET ('target-file-size' = '1mb', 'snapshot.num-retained.min' = '3')", 2),
        ("alter table `d`.`t$branch_fix` set ('target-file-size' = '1mb');", None),
        ("ALTER TABLE d.t RESET ('target-file-size')", 1),
    ):
        assert sql(spark, warehouse, text)["changed"]
        assert left is None or len(open_table(warehouse, "d.t").schema().options) == left
    assert "target-file-size" in open_table(warehouse, "d.t$branch_fix").schema().options


@pytest.mark.parametrize(
    "text",
    [
        r"SELECT r'\' AS a, 'b VERSION AS OF x'",
        "SELECT 'VERSION AS OF x', \"/*+ OPTIONS('a'='b') */\" FROM t /* VERSION AS OF y */ -- ALTER TABLE t SET (",
        "SELECT * FROM t VERSION AS OF 3", "SELECT * FROM t VERSION AS OF 'a.b'", "SELECT version AS of FROM t",
        "ALTER TABLE d.t SET TBLPROPERTIES ('a' = 'b')", "ALTER TABLE t RENAME TO u", "ALTER TABLE t", "ALTER", "",
        "SELECT /*+ BROADCAST(t) */ 1", "UPDATE t SET (a) = (1)", "/* a /* nested */ VERSION AS OF x */ SELECT 1",
    ],
)  # fmt: skip
def test_other_text_stays_as_it_is(text: str) -> None:
    assert spark_text(text) == text
