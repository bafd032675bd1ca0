"""What the check of columns lets through because it runs, Spark runs; what it refuses, Spark refuses."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from tests.core.sql_text.test_columns import REFUSED, RUNS

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
    assert len(queries) == 2
    for sql in queries:
        with pytest.raises(AnalysisException, match="UNRESOLVED_COLUMN"):
            views.sql(sql)
    for sql in REFUSED:
        _, where, condition = sql.partition(" WHERE ")
        if where and "SELECT" not in sql:
            first = "amuont" if "SET amuont" in sql else 1
            with pytest.raises(AnalysisException, match="UNRESOLVED_COLUMN"):
                views.sql(f"SELECT {first} FROM branch WHERE {condition}")
