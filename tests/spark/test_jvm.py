"""Each use of what is not Spark's public API: with ``make spark-versions``, what fails names what a version breaks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from pyspark.sql import functions as sf

from airflow_paimon.spark import jvm
from airflow_paimon.spark.arrow_frames import collect_arrow, frame_of_arrow
from airflow_paimon.spark.rows_in import rebalanced

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INNER = "org.apache.spark.sql.catalyst.plans.logical.LogicalPlan"


def test_a_parsed_plan_is_read_changed_and_run(spark: SparkSession) -> None:
    plan = jvm.parser(spark).parsePlan("SELECT id FROM range(3) WHERE id IN (SELECT 1)")
    assert (jvm.has_jvm(spark), jvm.kind_of(plan), jvm.holds_query(plan)) == (True, "Project", True)
    assert jvm.is_instance(plan, INNER) and jvm.is_catalyst(plan, "plans.logical.LogicalPlan")
    assert not jvm.is_instance(plan, "scala.collection.Seq") and not jvm.is_instance("text", INNER)
    assert jvm.is_instance(jvm.scala_sequence([plan]), "scala.collection.Seq")
    assert jvm.kind_of(jvm.copied(plan, jvm.elements_of(plan))) == "Project"
    assert jvm.planned_frame(spark, plan.withNewChildren(jvm.scala_sequence([plan.child()]))).collect() == [(1,)]
    assert jvm.option_of(jvm.some(7)) == 7
    assert jvm.elements_of(jvm.scala_tuple(["a", "b"])) == ["a", "b"]
    assert len(jvm.elements_of(jvm.scala_tuple(["a", "b", "c"]))) == 3
    created = jvm.parser(spark).parsePlan("CREATE TABLE t (a INT) TBLPROPERTIES ('x' = 'y')")
    assert jvm.mapping_of(created.tableSpec().properties()) == {"x": "y"}
    assert jvm.type_of_json('"integer"').simpleString() == "int"


def test_columns_have_a_name_and_some_are_hidden(spark: SparkSession) -> None:
    frame = spark.sql("SELECT 1 AS a, 2 AS b")
    named = jvm.planned_frame(spark, jvm.under_alias(jvm.analyzed(frame), jvm.alias_of_parts(["d", "t"])))
    assert named.select("d.t.a").collect() == [(1,)]
    hiding = jvm.planned_frame(spark, jvm.hiding(jvm.analyzed(frame), ["b"]))
    assert (hiding.columns, hiding.select("b").collect()) == (["a"], [(2,)])


def test_a_resolved_condition(spark: SparkSession) -> None:
    frame = spark.range(3).where("id > 1")
    condition = jvm.analyzed(frame).condition()
    assert [a.name() for a in jvm.references(condition)] == ["id"]
    assert {*map(jvm.id_of, jvm.references(condition))} == jvm.ids_of(jvm.analyzed(frame).output())
    assert frame.where(jvm.column_of_node(spark, condition)).collect() == [(2,)]
    assert jvm.asks_for_the_time(spark.sql("SELECT current_date()")) and not jvm.asks_for_the_time(frame)


def test_values_are_stored_by_sparks_rules(spark: SparkSession) -> None:
    frame = spark.sql("SELECT 1L AS a, 'x' AS b")
    expected = spark.createDataFrame([], "a TINYINT, b STRING")
    plan = jvm.stored_plan(spark, "d.t", expected, frame, by_name=False)
    stored = jvm.planned_frame(spark, plan)
    assert (stored.dtypes, stored.collect()) == ([("a", "tinyint"), ("b", "string")], [(1, "x")])
    base = spark.range(1)
    values = jvm.values_over(base, jvm.stored_plan(spark, "d.t", expected, base.selectExpr("id", "'x'"), by_name=False))
    assert base.select(*(jvm.column_of_node(spark, v) for v in values)).collect() == [(0, "x")]
    with pytest.raises(Exception, match="Cannot safely cast"):
        jvm.stored_plan(spark, "d.t", expected, spark.sql("SELECT 'x', 'y'"), by_name=False)


def test_what_a_session_knows(spark: SparkSession) -> None:
    spark.range(1).createOrReplaceTempView("known_here")
    assert jvm.is_temporary_view(spark, "known_here") and not jvm.is_temporary_view(spark, "not_known_here")
    spark.catalog.dropTempView("known_here")
    assert jvm.builtin_classes(["abs", "no_such_function"]) == {"org.apache.spark.sql.catalyst.expressions.Abs"}
    assert ZoneInfo(jvm.time_zone())
    kept = spark.range(1000).localCheckpoint()
    rdd = jvm.analyzed(kept).rdd()
    assert jvm.kept_bytes(spark, rdd.id()) > 0
    rdd.unpersist(False)
    assert jvm.estimated_bytes(spark.range(1000)) >= 8000
    assert jvm.kind_of(jvm.physical(spark.range(1))) == "RangeExec"
    assert jvm.kind_of(jvm.optimized(spark.range(1))) == "Range"
    assert jvm.status_store(spark).executionsList().size() > 0


def test_what_pyspark_lacks(spark: SparkSession) -> None:
    rows = pa.table({"a": [1, 2], "b": ["x", None]})
    frame = frame_of_arrow(spark, rows)
    assert collect_arrow(frame).to_pylist() == rows.to_pylist()
    assert jvm.nullable_schema(spark.range(1))["id"].nullable
    assert rebalanced(frame, ["a"]).count() == 2

    def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    mapped = jvm.mapped_in_arrow(frame, [sf.col("a"), sf.col("b")], same, "a long, b string")
    assert sorted(mapped.collect()) == [(1, "x"), (2, None)]
