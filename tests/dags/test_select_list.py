"""A SELECT's columns, read without Spark: faults are named, and nothing that Spark runs is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_paimon.core.correction.checks import check_is_query
from airflow_paimon.core.correction.sql_words import statement_kind
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.runbooks.select_list import check_select, check_statement

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = ["dt", "id", "amount", "note"]

FITTING = [
    "SELECT * FROM branch",
    "SELECT dt, id, amount / 100 AS amount, note FROM branch WHERE dt IN ('a', 'b')",
    "SELECT * EXCEPT (amount), amount / 100 AS amount FROM branch;",
    "SELECT DISTINCT dt, id, NULL AS note, 1.5 amount FROM branch",
    "SELECT b.dt, b.id, m.amount, b.note FROM branch b JOIN main m ON b.id = m.id",
    "SELECT dt, id, note AS amount, amount AS note FROM (SELECT 1 AS id, 'a' AS dt, 2 AS amount, ';' AS note)",
    "SELECT dt, id, amount, trim(both 'x' from note) AS note FROM branch -- a; comment",
    "SELECT dt, id, sum(amount) AS amount, max(note) AS `note` FROM branch GROUP BY dt, id",
    "SELECT dt, id, amount, note FROM branch UNION ALL SELECT 'a', 1, 2, 'from'",
    "WITH one AS (SELECT * FROM branch) SELECT * FROM one",
    "(SELECT * FROM branch) UNION ALL (SELECT * FROM main)",
    "FROM branch SELECT dt, id, amount, note",
    "VALUES ('a', 1, 2, 'n') AS t(dt, id, amount, note)",
    "SELECT dt, id, amount, note /* a /* nested */ comment, with another */ FROM branch",
    "SELECT dt, id, count(*) OVER (PARTITION BY dt ORDER BY id) AS amount, note FROM branch WINDOW w AS (ORDER BY id)",
    "SELECT inline(array(struct(dt AS dt, id AS id))), amount, note FROM branch",
    "SELECT dt, id, amount, CASE WHEN id > 1 THEN 'a' ELSE note END note, '+I' AS _row_kind FROM branch",
    "SELECT DT, Id, AMOUNT amount, note FROM main WHERE `id` > 0",
    "SELECT dt, id, current_date AS note, id * 2 AS amount FROM branch",
]

REFUSED = {
    "": "no statement",
    "-- nothing": "no statement",
    "DELETE FROM branch": "starts with 'DELETE'",
    "SELECT * FROM branch; SELECT 1": "several statements",
    "SELECT dt, id, amuont AS amount, note FROM branch": "no column amuont (did you mean amount?)",
    "SELECT dt, id, amount, nope FROM main WHERE id > 1": "no column nope",
    "SELECT dt, id, amount FROM branch": "missing: note",
    "SELECT dt, id, id, amount, note FROM branch": "id is there twice",
    "SELECT *, 1 AS extra FROM branch": "no column extra",
    "SELECT b.dt, b.id, b.amount, b.note AS notes FROM branch b": "no column notes (did you mean note?)",
}


@pytest.mark.parametrize("sql", FITTING)
def test_casts_that_fit_or_are_undecided_are_left_to_spark(sql: str) -> None:
    check_select(sql, COLUMNS, [], "d.t")


@pytest.mark.parametrize("sql", REFUSED)
def test_what_does_not_fit_is_named(sql: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        check_select(sql, COLUMNS, [], "d.t")
    assert REFUSED[sql] in caught.value.message


def test_a_column_with_a_default_may_be_missing() -> None:
    check_select("SELECT dt, id, amount FROM branch", COLUMNS, ["note"], "d.t")


def test_spark_runs_what_is_let_through_and_refuses_or_misnames_the_rest(spark: SparkSession) -> None:
    spark.sql("SELECT 'a' AS dt, 1 AS id, 2.0 AS amount, 'n' AS note").createOrReplaceTempView("branch")
    spark.table("branch").createOrReplaceTempView("main")
    try:
        for sql in FITTING:
            spark.sql(f"SELECT * FROM (\n{sql.rstrip(';')}\n)").collect()
        for sql in REFUSED:
            assert _columns(spark, sql) != COLUMNS
    finally:
        spark.catalog.dropTempView("branch")
        spark.catalog.dropTempView("main")


def _columns(spark: SparkSession, sql: str) -> list[str] | None:
    from pyspark.errors import AnalysisException, ParseException

    try:
        return spark.sql(f"SELECT * FROM (\n{sql}\n)").columns
    except (AnalysisException, ParseException):
        return None


def test_statements_are_distinguished_from_queries_by_words_outside_parentheses() -> None:
    kinds = {
        "UPDATE branch SET amount = 1": "UPDATE",
        "-- why\n/* a /* nested */ one */ delete FROM branch WHERE id IN (SELECT id FROM main)": "DELETE",
        "MERGE INTO branch USING fixes ON true WHEN MATCHED THEN DELETE": "MERGE",
        "WITH a AS (SELECT 1 AS id), b AS (SELECT 2 AS id) INSERT INTO branch SELECT * FROM a": "INSERT",
        "WITH `update` AS (SELECT 1 AS id) SELECT * FROM `update`": None,
        "SELECT * FROM branch WHERE note = 'UPDATE'": None,
        "(SELECT * FROM branch)": None,
        "": None,
    }
    assert {sql: statement_kind(sql) for sql in kinds} == kinds


SOUND = [
    "UPDATE branch SET amount = amount / 100 WHERE dt = 'a'",
    "UPDATE branch AS b SET b.amount = 1, note = concat('a', ',', b.note) WHERE b.id IN (SELECT id FROM main);",
    "UPDATE branch SET Amount = (SELECT max(amount) FROM main WHERE true), `note` = NULL WHERE EXISTS (SELECT 1)",
    "WITH a AS (SELECT 1 AS id) DELETE FROM branch WHERE id IN (SELECT id FROM a)",
    "MERGE INTO branch USING main ON branch.id = main.id WHEN MATCHED THEN UPDATE SET nope = 1",
    "INSERT INTO branch SELECT * FROM main",
    "UPDATE branch SET note.field = 1 WHERE id = 1 -- ; a field, or a mistake: Spark knows",
]
UNSOUND = {
    "UPDATE branch SET amount = 1": "has no WHERE, so it takes every row of d.t",
    "DELETE FROM branch": "has no WHERE",
    "DELETE FROM branch /* WHERE id = 1 */": "has no WHERE",
    "UPDATE branch SET amount = (SELECT 1 WHERE true)": "has no WHERE",
    "UPDATE branch SET amuont = 1 WHERE id = 1": "no column amuont (did you mean amount?)",
    "UPDATE branch b SET amount = 1, b.nope = 2 WHERE id = 1": "no column nope",
    "DELETE FROM branch WHERE id = 1; DELETE FROM branch WHERE id = 2": "several statements",
}


@pytest.mark.parametrize("sql", [*SOUND, *UNSOUND])
def test_what_is_wrong_with_a_statement_is_said_before_anything_is_made(sql: str) -> None:
    kind = statement_kind(sql)
    assert kind is not None
    if sql in SOUND:
        check_statement(sql, kind, COLUMNS, "d.t", all_rows=False)
        return
    with pytest.raises(InvalidInputError) as caught:
        check_statement(sql, kind, COLUMNS, "d.t", all_rows=False)
    assert UNSOUND[sql] in caught.value.message
    if "no WHERE" in caught.value.message:
        check_statement(sql, kind, COLUMNS, "d.t", all_rows=True)
    if "no column" in caught.value.message:
        check_statement(sql, kind, None, "d.t", all_rows=False)


@pytest.mark.parametrize("sql", ["DROP TABLE branch", "/* a /* b */ */ TRUNCATE TABLE branch", "CALL sys.compact()"])
def test_other_statements_are_named(sql: str) -> None:
    assert statement_kind(sql) is None
    with pytest.raises(InvalidInputError, match=r"starts with '[A-Z]+': give one UPDATE"):
        check_is_query(sql)


def test_queries_are_queries() -> None:
    for sql in FITTING:
        check_is_query(sql)
