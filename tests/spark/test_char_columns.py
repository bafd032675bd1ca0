"""CHAR(n) and VARCHAR(n): stored as Spark and Paimon's connector do, found with blanks at the end or without."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airflow_paimon.core.errors import InvalidInputError, PaimonError
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import read_arrow, write_arrow
from airflow_paimon.data.arrow_read import count_rows
from airflow_paimon.data.drop import drop_partitions
from airflow_paimon.data.where import where_argument
from airflow_paimon.spark import read_table, register, sql, write_table
from tests.core.tables import run
from tests.spark.jobs.checks import outcome
from tests.spark.jobs.operations import correct

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = (("k", "CHAR(3) NOT NULL"), ("c", "CHAR(4)"), ("v", "VARCHAR(2)"), ("p", "CHAR(2) NOT NULL"), ("n", "INT"))
KEYED: dict[str, Any] = {"partition_keys": ["p"], "primary_keys": ["p", "k"], "options": {"bucket": "2"}}
APPEND: dict[str, Any] = {"partition_keys": ["p"]}


def rows_of(rows: Iterable[tuple[Any, ...]]) -> pa.Table:
    names = [name for name, _ in COLUMNS]
    return pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows],
                                pa.schema([*((n, pa.string()) for n in names[:-1]), ("n", pa.int32())]))  # fmt: skip


def write_unfilled(monkeypatch: pytest.MonkeyPatch, table: Table, rows: pa.Table) -> None:
    """Write rows as engines do that store what they get."""
    with monkeypatch.context() as patch:
        patch.setattr("airflow_paimon.data.files.conform.for_storage", lambda column, kind, where: column)
        write_arrow(table, rows)


def shown(table: Table, **more: Any) -> list[tuple[Any, ...]]:
    return sorted((tuple(r.values()) for r in read_arrow(table, **more).to_pylist()), key=repr)


STORED = [("ab", "x", "q", "e", 1), ("abc", None, None, "e", 2), ("a", "é𝄞", "q ", "f ", 3)]
SEEN = [("a  ", "é𝄞  ", "q ", "f ", 3), ("ab ", "x   ", "q", "e ", 1), ("abc", None, None, "e ", 2)]


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [KEYED, APPEND], ids=["keyed", "append"])
def test_rows_are_found_with_blanks_or_without(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: dict[str, Any]
) -> None:
    register(spark)
    warehouse = str(tmp_path)
    table = create_table(warehouse, "d.t", COLUMNS, **kind)
    write_unfilled(monkeypatch, table, rows_of(STORED[:2]))
    write_table(spark.createDataFrame(STORED[2:], "k string, c string, v string, p string, n int"), warehouse, "d.t")
    assert shown(table) == SEEN
    for where in ("k = 'ab' AND p = 'e'", "k = 'ab '", "c IN ('x ', 'nope')", "c >= 'x' AND c < 'x!'"):
        expression = where_argument(table, where)
        assert shown(table, where=expression) == SEEN[1:2], where
        assert count_rows(table, where=expression) == 1
        frames = [
            read_table(spark, warehouse, "d.t", where=where),
            read_table(spark, warehouse, "d.t").where(where),
            sql(spark, warehouse, f"SELECT * FROM d.t WHERE {where}"),
            spark.read.format("airflow_paimon")
            .option("warehouse", warehouse)
            .option("table", "d.t")
            .load()
            .where(where),
        ]
        for number, frame in enumerate(frames):
            assert [tuple(row) for row in frame.collect()] == SEEN[1:2], (where, number)
    assert shown(table, where=(pc.field("k") == "ab") & pc.field("p").isin(["e", "x"])) == SEEN[1:2]
    assert shown(table, where=pc.field("k") != "ab") == [SEEN[0], SEEN[2]]
    assert sql(spark, warehouse, "SELECT a.n FROM d.t a JOIN d.t b ON a.k = b.k AND length(a.k) = 3").count() == 3
    for statement, changed in (
        ("UPDATE d.t SET n = 10 WHERE k = 'ab'", "rows_updated"),
        ("UPDATE d.t SET n = 11, c = 'y' WHERE c = 'x'", "rows_updated"),
        ("MERGE INTO d.t t USING (SELECT 'ab ' AS k, 'e ' AS p) s ON t.k = s.k AND t.p = s.p "
         "WHEN MATCHED THEN UPDATE SET v = 'z'", "rows_updated"),
        ("DELETE FROM d.t WHERE k = 'a'", "rows_deleted"),
    ):  # fmt: skip
        assert sql(spark, warehouse, statement)["details"][changed] == 1, statement
    assert shown(table) == [("ab ", "y   ", "z", "e ", 11), SEEN[2]]
    run(table, "create_branch", branch="fix", snapshot=table.latest_snapshot().id)  # type: ignore[union-attr]
    write_unfilled(monkeypatch, table.branch("fix"), rows_of([("qq", "q", None, "e", 20), ("q", "q", None, "e", 21)]))
    for statement in ("UPDATE branch SET n = 12 WHERE n = 11", "UPDATE branch SET v = 'r' WHERE n = 20",
                      "DELETE FROM branch WHERE n = 21"):  # fmt: skip
        assert correct(spark, tmp_path, statement).changed
    assert outcome(spark, tmp_path, {"accepted_values": {"column": "c", "values": ["y", "q"]}}) == ("passed", 0)
    assert outcome(spark, tmp_path, {"sql": "SELECT * FROM diff WHERE k = 'qq'"}) == ("failed", 1)
    correct(spark, tmp_path, "DELETE FROM branch WHERE k = 'qq' AND c = 'q'")
    correct(spark, tmp_path, "DELETE FROM branch WHERE k IN ('abc')")
    assert shown(table.branch("fix")) == [("ab ", "y   ", "z", "e ", 12)]
    sql(spark, warehouse, "INSERT INTO d.t VALUES ('ab', 'x', 'q', 'g', 5)")
    assert sql(spark, warehouse, "DELETE FROM d.t WHERE p = 'g'")["details"]["rows_deleted"] == 1
    assert len(shown(table)) == 2
    drop_partitions(table, "p=e")
    assert shown(table) == []


def test_every_way_into_a_table_fills_up_or_refuses(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    warehouse = str(tmp_path)
    table = create_table(warehouse, "d.t", COLUMNS, **KEYED)
    create_table(warehouse, "d.source", [("k", "STRING"), ("p", "STRING")])
    sql(spark, warehouse, "INSERT INTO d.t VALUES ('a', 'x', 'q   ', 'e', 1)")
    sql(spark, warehouse, "INSERT INTO d.t PARTITION (p = 'e') SELECT 'b', 'é𝄞', 'rs ', 2")
    sql(spark, warehouse, "INSERT INTO d.source VALUES ('c', 'f'), ('a', 'e')")
    sql(spark, warehouse, "MERGE INTO d.t USING (SELECT rpad(k, 3, ' ') k, rpad(p, 2, ' ') p FROM d.source) s "
        "ON t.k = s.k AND t.p = s.p WHEN MATCHED THEN UPDATE SET c = s.p "
        "WHEN NOT MATCHED THEN INSERT (k, c, v, p, n) VALUES (trim(s.k), s.p, 'w', trim(s.p), 3)")  # fmt: skip
    frame = spark.createDataFrame([("d", "x", "q", "f", 4)], "k string, c string, v string, p string, n int")
    frame.write.format("airflow_paimon").options(warehouse=warehouse, table="d.t").mode("append").save()
    write_arrow(table, rows_of([("a", "again", "qq", "e", 10)]).set_column(1, "c", pa.array(["more  "])))
    expected = [
        ("a  ", "more", "qq", "e ", 10), ("b  ", "é𝄞  ", "rs", "e ", 2), ("c  ", "f   ", "w", "f ", 3),
        ("d  ", "x   ", "q", "f ", 4),
    ]  # fmt: skip
    assert shown(table) == expected
    run(table, "create_branch", branch="fix", snapshot=table.latest_snapshot().id)  # type: ignore[union-attr]
    fix = table.branch("fix")
    correct(spark, tmp_path, "INSERT INTO branch VALUES ('e', 'x', 'q', 'f', 5)")
    correct(spark, tmp_path, "SELECT 'd' AS k, 'y' AS c, v, 'f' AS p, n FROM branch WHERE k = 'd'", mode="upsert")
    correct(spark, tmp_path, "SELECT * FROM branch WHERE k = 'a'", partitions=["p=e"])
    correct(spark, tmp_path, "UPDATE branch SET c = 'z' WHERE p = 'f' AND k IN ('c', 'nope')")
    assert shown(fix) == [
        expected[0], ("c  ", "z   ", "w", "f ", 3), ("d  ", "y   ", "q", "f ", 4), ("e  ", "x   ", "q", "f ", 5)
    ]  # fmt: skip
    for statement in (
        "INSERT INTO d.t VALUES ('abcd', 'x', 'q', 'e', 1)", "INSERT INTO d.t VALUES ('a', 'x', 'qrs', 'e', 1)",
        "UPDATE d.t SET c = 'abcde' WHERE k = 'a'", "UPDATE d.t SET v = 'q r' WHERE k = 'a'",
        "MERGE INTO d.t USING d.source s ON false WHEN NOT MATCHED THEN INSERT (k, c, v, p, n) "
        "VALUES (concat(s.k, 'xyz'), NULL, NULL, s.p, 1)",
    ):  # fmt: skip
        with pytest.raises(PaimonError, match=r"is (VAR)?CHAR\("):
            sql(spark, warehouse, statement)
    with pytest.raises(InvalidInputError, match="'xyz' is not a value of partition column p"):
        drop_partitions(table, "p=xyz")
    assert shown(table) == expected
