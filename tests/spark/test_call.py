"""CALL in a Spark session: jobs that need Spark run in it, and literals are those of Spark's own parser."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_paimon.core.errors import InvalidInputError, UnsupportedFeatureError
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.sql_text.call import parse_call
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import read_arrow
from airflow_paimon.data.arrow_write import write_arrow
from airflow_paimon.spark import sql
from airflow_paimon.spark.jvm import kind_of, sequence_items
from airflow_paimon.spark.statements.parse import parse_plan
from tests.spark.jobs.operations import correct, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def table(tmp_path: Path) -> Table:
    columns = [("id", "BIGINT NOT NULL"), ("dt", "STRING NOT NULL")]
    table = create_table(str(tmp_path), "d.t", columns, partition_keys=["dt"], options={"bucket": "-1"})
    for number in range(6):
        write_arrow(table, pa.table({"id": [number], "dt": ["2026-01-01"]}))
    return table


def call(spark: SparkSession, table: Table, text: str, **more: Any) -> dict[str, Any]:
    warehouse = table.store.uri.removeprefix("file://").rsplit("/", 2)[0]
    return sql(spark, warehouse, f"CALL {text}", **more)


def test_jobs_run_in_the_session_and_give_their_result(spark: SparkSession, table: Table) -> None:
    text = "sys.compact(table => 'd.t', partitions => 'dt=2026-01-01', options => 'sink.parallelism=2')"
    planned = call(spark, table, text.replace("=> 'd.t'", "=> 'd.t', dry_run => true"))
    assert planned["dry_run"] and planned["changed"] and table.latest_snapshot_id() == 6
    done = call(spark, table, text, operation_id="x")
    assert (done["operation"], done["snapshot_after"], done["details"]["procedure"]) == ("compact", 7, "compact")
    assert len(list(table.store.walk("dt=2026-01-01"))) == 7
    rolled = call(spark, table, "paimon.sys.rollback('paimon.d.t', '2')", operation_id="y")
    assert rolled == call(spark, table, "paimon.sys.rollback('paimon.d.t', '2')", operation_id="y") | {
        "duration_s": rolled["duration_s"],
        "details": rolled["details"],
        "plan_id": rolled["plan_id"],
    }
    assert sorted(read_arrow(table)["id"].to_pylist()) == [0, 1]
    noted = call(spark, table, "sys.remove_orphan_files(table => 'd.t', parallelism => 2)")
    assert noted["details"]["call_notes"] == ["parallelism has no effect: the work is divided by this package"]


def test_a_call_takes_nothing_beside_its_arguments(spark: SparkSession, table: Table) -> None:
    with pytest.raises(InvalidInputError, match="CALL takes no views"):
        call(spark, table, "sys.compact('d.t')", views={"x": "d.t"})
    with pytest.raises(InvalidInputError, match="CALL takes no all_rows"):
        call(spark, table, "sys.compact('d.t')", all_rows=True)
    with pytest.raises(UnsupportedFeatureError, match=r"docs/comparison\.md"):
        call(spark, table, "sys.rewrite_file_index('d.t')")


def test_a_correction_is_no_call(spark: SparkSession, table: Table, tmp_path: Path) -> None:
    """SQL from a form reaches a branch only."""
    run(tmp_path, "create_branch", branch="fix", snapshot=6)
    with pytest.raises(InvalidInputError, match="SQL starts with 'CALL': give one UPDATE"):
        correct(spark, tmp_path, "CALL sys.delete_branch('d.t', 'fix')", partitions=["dt=2026-01-01"])
    assert table.branch_names() == ["fix"]


def test_literals_are_those_of_sparks_parser(spark: SparkSession) -> None:
    if spark.version.startswith("3."):
        pytest.skip("Spark 3.5 has no CALL")
    values = ["'a'", '"a"', "'it''s'", r"'it\'s'", r"'a\\b'", r"r'a\b'", r"'a\tb\101\u0041'", "'a' 'b'", r"'50\%'",
              "'a;--b'", "7", "-7", "7L", "true", "FALSE", "NULL", "'/* x */'", r"'\a'", "'ä'"]  # fmt: skip
    text = f"CALL sys.`p`({', '.join(f'a{at} => {v}' for at, v in enumerate(values))})"
    plan = parse_plan(spark, text)
    assert kind_of(plan) == "Call"
    theirs = [sequence_items(plan.args())[at].value().eval(None) for at in range(len(values))]
    plain = [str(v) if v is not None and not isinstance(v, bool | int) else v for v in theirs]
    assert [given.value for given in parse_call(text).arguments] == plain
