"""Timestamps finer than microseconds: what Spark would write without its last digits is refused, all else is exact."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_paimon.core.errors import UnsupportedFeatureError
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import read_arrow, write_arrow
from airflow_paimon.spark import read_table, sql, write_table
from airflow_paimon.spark.datasource import register
from airflow_paimon.spark.statements.views import registered
from airflow_paimon.spark.truncated_times import truncated_columns

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NANOS = 1_700_000_000_123_456_789
COLUMNS = [("k", "INT NOT NULL"), ("v", "STRING"), ("t", "TIMESTAMP(9) NOT NULL"), ("r", "ROW<a INT, t TIMESTAMP(7)>"),
           ("m", "TIMESTAMP(6)")]  # fmt: skip


def make(warehouse: Path, name: str = "t", keys: tuple[str, ...] = (), **options: str) -> Table:
    bucket = {"bucket": "1"} if keys else {}
    table = create_table(str(warehouse), f"d.{name}", COLUMNS, primary_keys=keys, options={**bucket, **options})
    schema = read_arrow(table).schema
    rows = [{"k": k, "v": "a", "t": NANOS + k, "r": {"a": k, "t": NANOS + k}, "m": NANOS // 1000} for k in (1, 2)]
    write_arrow(table, pa.Table.from_pylist(rows, schema=schema))
    return table


def rows_of(table: Table) -> list[tuple[Any, ...]]:
    rows = read_arrow(table).sort_by("k")
    nanos = [c.cast(pa.int64()).to_pylist() for c in (rows["t"], rows["r"].combine_chunks().field("t"))]
    return list(zip(rows["k"].to_pylist(), rows["v"].to_pylist(), *nanos, strict=True))


BEFORE = [(1, "a", NANOS + 1, NANOS + 1), (2, "a", NANOS + 2, NANOS + 2)]
UPDATE, DELETE = "UPDATE d.t SET v = 'x' WHERE k = 1", "DELETE FROM d.t WHERE k = 2"
MERGE = ("MERGE INTO d.t USING (SELECT 1 AS k) s ON t.k = s.k WHEN MATCHED THEN UPDATE SET v = 'x' "
         "WHEN NOT MATCHED THEN INSERT (k, v, t) VALUES (s.k, 'n', TIMESTAMP_NTZ '2026-01-01 00:00:00')")  # fmt: skip
KEYED: dict[str, Any] = {"keys": ("k",)}
REFUSED = [
    (KEYED, UPDATE, "t"), (KEYED, MERGE, "t"), (KEYED, "UPDATE d.t SET t = TIMESTAMP_NTZ '2026-01-01 00:00:00'", "r"),
    ({"keys": ("k", "t")}, DELETE, "t"), ({"keys": ("k",), "sequence.field": "t"}, DELETE, "t"),
    ({"deletion-vectors.enabled": "true"}, UPDATE, "t"), ({}, "UPDATE d.t SET r.a = 7 WHERE k = 1", "r"),
    ({}, "INSERT INTO d.t SELECT k + 10, v, t, NULL, m FROM d.t", "t"), ({}, "CREATE TABLE d.c AS TABLE d.t", "t"),
    (KEYED, "INSERT OVERWRITE d.t SELECT k, v, m, r, m FROM d.t", "r"),
]  # fmt: skip


@pytest.mark.parametrize(("made", "statement", "column"), REFUSED, ids=[f"{m} {s}"[:60] for m, s, _ in REFUSED])
def test_a_statement_that_would_cut_off_digits_changes_nothing(
    spark: SparkSession, tmp_path: Path, made: dict[str, Any], statement: str, column: str
) -> None:
    table = make(tmp_path, **made)
    with pytest.raises(UnsupportedFeatureError, match=f"column '{column}' is finer than microseconds.*write_arrow"):
        sql(spark, str(tmp_path), statement, all_rows=True)
    assert rows_of(table) == BEFORE and not (tmp_path / "d.db" / "c").exists()


WHOLE = "TIMESTAMP_NTZ '2023-11-14 22:13:20.123456'"
INEXACT = [
    f"DELETE FROM d.t WHERE t = {WHOLE}", f"DELETE FROM d.t WHERE k > 0 AND NOT t > {WHOLE}",
    f"UPDATE d.t SET v = 'x' WHERE t BETWEEN {WHOLE} AND m", f"DELETE FROM d.t WHERE r.t IN ({WHOLE})",
    f"DELETE FROM d.t WHERE {WHOLE} >= t", "DELETE FROM d.t WHERE t IN (SELECT m FROM d.t)",
    "MERGE INTO d.t a USING (SELECT max(t) AS u FROM d.t) s ON a.m = s.u WHEN MATCHED THEN DELETE",
    "MERGE INTO d.t a USING (SELECT 1 AS k) s ON a.k = s.k WHEN MATCHED AND a.t <= a.m THEN DELETE",
]  # fmt: skip


def test_conditions_that_could_hold_for_other_rows_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Both rows are of the microsecond of ``WHOLE``, and after it."""
    table = make(tmp_path)
    for statement in INEXACT:
        with pytest.raises(UnsupportedFeatureError, match=r"column '[tru]' is finer than microseconds.*>= and < alone"):
            sql(spark, str(tmp_path), statement)
    assert rows_of(table) == BEFORE
    exact = f"DELETE FROM d.t WHERE (t < {WHOLE} OR {WHOLE} <= t) AND year(t) = 2023 AND t IS NOT NULL AND k = 1"
    assert sql(spark, str(tmp_path), exact)["details"]["rows_deleted"] == 1


EXACT = [
    ({}, UPDATE, [(1, "x", *BEFORE[0][2:]), BEFORE[1]]), ({}, MERGE, [(1, "x", *BEFORE[0][2:]), BEFORE[1]]),
    (KEYED, DELETE, BEFORE[:1]), ({"deletion-vectors.enabled": "true"}, DELETE, BEFORE[:1]),
    (KEYED, "INSERT INTO d.t SELECT k, 'x', CAST(CAST(t AS STRING) AS TIMESTAMP_NTZ), NULL, m FROM d.t WHERE k = 1",
     [(1, "x", NANOS // 1000 * 1000, None), BEFORE[1]]),
]  # fmt: skip


@pytest.mark.parametrize(("made", "statement", "after"), EXACT, ids=[f"{m} {s}"[:60] for m, s, _ in EXACT])
def test_other_digits_stay(
    spark: SparkSession, tmp_path: Path, made: dict[str, Any], statement: str, after: list[tuple[Any, ...]]
) -> None:
    table = make(tmp_path, **made)
    sql(spark, str(tmp_path), statement)
    assert rows_of(table) == after


QUERIES = {
    "SELECT greatest(t, m) AS t FROM x": True,
    "SELECT transform(array(t), e -> e)[0] AS t FROM x": True,
    "SELECT lag(t) OVER (ORDER BY k) AS t FROM x": True,
    "SELECT (SELECT max(t) FROM x) AS t FROM x": True,
    "SELECT m AS t FROM x UNION ALL SELECT t FROM x": True,
    "WITH w AS (SELECT k, max(r.t) AS u FROM x GROUP BY k) SELECT a.u AS t FROM w a JOIN w b USING (k)": True,
    "SELECT u AS t FROM x LATERAL VIEW explode(array(t)) AS u": True,
    "SELECT date_trunc('DAY', t) AS t FROM x": True,
    "SELECT m AS t FROM (SELECT m, row_number() OVER (PARTITION BY k ORDER BY t) AS n FROM x) WHERE n = 1": False,
    "SELECT CASE WHEN hour(t) > 3 THEN m END AS t FROM x WHERE t IS NOT NULL": False,
    "SELECT (SELECT max(m) FROM x) AS t FROM x JOIN x AS y USING (t)": False,
    "SELECT CAST(CAST(t AS STRING) AS TIMESTAMP) AS t FROM x": False,
    "SELECT timestamp_micros(unix_micros(CAST(t AS TIMESTAMP))) AS t FROM x": False,
    "SELECT current_timestamp() AS t FROM x": False,
}


def test_values_are_followed_through_queries(spark: SparkSession, tmp_path: Path) -> None:
    table = make(tmp_path)
    frame = read_table(spark, str(tmp_path), "d.t")
    with registered(spark, {"x": frame}):
        found = {text: bool(truncated_columns(spark.sql(text), ["t"])) for text in QUERIES}
    assert found == QUERIES
    assert truncated_columns(frame.mapInArrow(lambda rows: rows, "t timestamp_ntz"), ["t"]) == ["t"]
    assert truncated_columns(frame.cache(), frame.columns) == ["t", "r"]
    with pytest.raises(UnsupportedFeatureError, match="'t' is finer"):
        write_table(frame.selectExpr("k", "v", "coalesce(t, m) AS t", "NULL AS r", "m"), str(tmp_path), "d.t")
    own = frame.selectExpr("k", "v", "m AS t", "CAST(NULL AS STRUCT<a: INT, t: TIMESTAMP_NTZ>) AS r", "m")
    write_table(own, str(tmp_path), "d.t")
    assert len(rows_of(table)) == 4


def test_the_data_source_refuses_what_it_knows_to_be_cut_off(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    table, named = make(tmp_path), {"warehouse": str(tmp_path), "table": "d.t"}
    frame = spark.read.format("airflow_paimon").options(**named).load()
    own = frame.selectExpr("k", "v", "m AS t", "CAST(NULL AS STRUCT<a: INT, t: TIMESTAMP_NTZ>) AS r", "m")
    with pytest.raises(Exception, match=r"'t' is finer than microseconds[^$]*write_table, which checks"):
        frame.write.format("airflow_paimon").options(**named).mode("append").save()
    own.write.format("airflow_paimon").options(**named).mode("append").save()
    assert len(rows_of(table)) == 4


def test_partition_values_are_marked_as_well(spark: SparkSession, tmp_path: Path) -> None:
    columns = [("k", "INT"), ("t", "TIMESTAMP(9)")]
    table = create_table(str(tmp_path), "d.p", columns, partition_keys=["t"])
    write_arrow(table, pa.table({"k": pa.array([1], pa.int32()), "t": pa.array([NANOS], pa.timestamp("ns"))}))
    with pytest.raises(UnsupportedFeatureError, match="'t' is finer"):
        write_table(read_table(spark, str(tmp_path), "d.p"), str(tmp_path), "d.p")
