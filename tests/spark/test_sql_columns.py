"""What the check of columns lets through because it runs, Spark runs; what it refuses, Spark refuses."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from tests.core.sql_text.test_columns import FITTING, MISFITS, REFUSED, RUNS, TABLE

COLUMNS = (
    "'a' AS dt, 1L AS id, 2.0D AS amount, 'n' AS note, timestamp'2026-01-01' AS ts, named_struct('code', 1) AS item"
)


@pytest.fixture
def views(spark: SparkSession) -> Iterator[SparkSession]:
    for name in ("branch", "main"):
        spark.sql(f"SELECT {COLUMNS}, array('x') AS tags").createOrReplaceTempView(name)
    spark.sql("SELECT 'EUR' AS currency, 1.5D AS rate").createOrReplaceTempView("rates")
    yield spark
    for name in ("branch", "main", "rates"):
        spark.catalog.dropTempView(name)


def test_spark_agrees(views: SparkSession) -> None:
    for sql in RUNS:
        assert views.sql(sql).columns, sql
    queries = [sql for sql in REFUSED if sql.startswith("SELECT")]
    assert len(queries) == 4
    for sql in queries:
        with pytest.raises(AnalysisException, match="UNRESOLVED_COLUMN"):
            views.sql(sql)
    for sql in REFUSED:
        _, where, condition = sql.partition(" WHERE ")
        if where and "SELECT" not in sql:
            first = "amuont" if "amuont /" in sql or "SET amuont" in sql else 1
            with pytest.raises(AnalysisException, match="UNRESOLVED_COLUMN"):
                views.sql(f"SELECT {first} FROM branch WHERE {condition}")


def test_spark_runs_what_is_let_through_and_refuses_or_misnames_the_rest(spark: SparkSession) -> None:
    spark.sql("SELECT 'a' AS dt, 1 AS id, 2.0 AS amount, 'n' AS note").createOrReplaceTempView("branch")
    spark.table("branch").createOrReplaceTempView("main")
    try:
        for sql in FITTING:
            spark.sql(f"SELECT * FROM (\n{sql.rstrip(';')}\n)").collect()
        for sql in MISFITS:
            assert _columns(spark, sql) != TABLE
    finally:
        spark.catalog.dropTempView("branch")
        spark.catalog.dropTempView("main")


def _columns(spark: SparkSession, sql: str) -> list[str] | None:
    from pyspark.errors import AnalysisException, ParseException

    try:
        return spark.sql(f"SELECT * FROM (\n{sql}\n)").columns
    except (AnalysisException, ParseException):
        return None
