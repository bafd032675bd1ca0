"""The worked examples of Paimon's tests through Spark, by ``read_table`` and by the data source."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.spark import read_table
from airflow_paimon.spark.datasource import register
from tests.data.chain.examples import DAILY, EXAMPLES, VECTORED, Example, Where, as_sql, with_deletion_vectors
from tests.data.chain.tables import Row, chain_table, on

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SHOWN = tuple(n for n in EXAMPLES if n.startswith("test"))


def frames(
    spark: SparkSession, warehouse: Path, branch: str, where: Where, chain_read: str = "full"
) -> list[DataFrame]:
    """The same query in both ways; of the data source as an option or as Spark's own filter."""
    sql = as_sql(where)
    source = spark.read.format("airflow_paimon").option("warehouse", str(warehouse)).option("chain-read", chain_read)
    named = source.option("table", "d.t" if branch == "main" else f"d.t$branch_{branch}")
    first = read_table(spark, str(warehouse), "d.t", branch=branch, where=sql, chain_read=chain_read)
    if sql is None:
        return [first, named.load()]
    return [first, named.option("where", sql).load() if len(where) == 1 else named.load().where(sql)]


def rows(frame: DataFrame) -> list[Row]:
    return sorted((tuple(r) for r in frame.collect()), key=repr)


@pytest.mark.every(8, first=4)
@pytest.mark.parametrize("example", [EXAMPLES[n] for n in SHOWN], ids=SHOWN)
def test_example(spark: SparkSession, tmp_path: Path, example: Example) -> None:
    register(spark)
    example.made(tmp_path)
    for number in example.through_spark:
        where, expected = example.main[number]
        for frame in frames(spark, tmp_path, "main", where):
            assert rows(frame) == expected, where


def test_incremental_and_hybrid_queries(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    DAILY.made(tmp_path)
    ((day, changes),) = DAILY.delta
    (full,) = (expected for where, expected in DAILY.main if where == day)
    both = sorted([*full, *changes], key=repr)
    for branch, mode, expected in (
        ("delta", "full", changes),
        ("main", "incremental", changes),
        ("main", "hybrid", both),
    ):
        for frame in frames(spark, tmp_path, branch, day, mode):
            assert rows(frame) == expected, (branch, mode)
    with pytest.raises(InvalidInputError, match="main view of a chain table"):
        read_table(spark, str(tmp_path), "d.t", branch="delta", chain_read="hybrid")
    source = spark.read.format("airflow_paimon").option("warehouse", str(tmp_path)).option("chain-read", "hybrid")
    with pytest.raises(PySparkException, match="main view of a chain table"):
        source.option("table", "d.t$branch_delta").load().collect()


def test_deletion_vectors(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    with_deletion_vectors(tmp_path)
    for frame in frames(spark, tmp_path, "main", {"date": "20260224"}):
        assert rows(frame) == VECTORED
    for frame in frames(spark, tmp_path, "snapshot", {"k": 3}):
        assert rows(frame) == []


def test_time_travel_while_main_is_empty(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    table = chain_table(
        tmp_path, [("delta", "20250810", [(1, 1, "a"), (2, 1, "b")]), ("delta", "20250811", [(3, 1, "c")])]
    )
    moment = str(table.branch("delta").snapshot(1).time_millis)
    source = spark.read.format("airflow_paimon").option("warehouse", str(tmp_path)).option("table", "d.t")
    first = source.option("timestamp", moment).option("where", "k = 2").load()
    assert rows(first) == rows(read_table(spark, str(tmp_path), "d.t", timestamp=moment, where="k = 2"))
    assert rows(first) == on("20250810", (2, 1, "b"))
