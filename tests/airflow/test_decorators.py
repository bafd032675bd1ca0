"""Tasks made of functions: what they refuse when the DAG is parsed, and a run of both with Spark."""

from __future__ import annotations

import functools
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from airflow.sdk import DAG, task

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.data import read_arrow, write_arrow
from airflow_paimon.operators.branch import CreateBranchOperator
from tests.airflow.conftest import RunDag
from tests.core.tables import make_table

pytestmark = pytest.mark.airflow
CENTS = 100
WHERE: dict[str, Any] = {"table": "d.t", "branch": "fix"}


@pytest.fixture
def dag(airflow_home: Path) -> DAG:
    return DAG("test_decorated", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC))


@pytest.mark.slow
def test_rows_are_corrected_by_the_sql_and_the_rows_that_functions_give(
    dag: DAG, warehouse: Path, run_dag: RunDag, capfd: pytest.CaptureFixture[str]
) -> None:
    main = make_table(warehouse)
    write_arrow(main, pa.table({"k": pa.array([1, 2, 3], pa.int64()), "v": ["a", "b", "c"], "dt": ["1", "1", "2"]}))

    @task.paimon_sql(**WHERE)
    def by_statement(keys: list[int], ds_nodash: str | None = None) -> str:
        """What it returns is no template."""
        assert ds_nodash is None or ds_nodash.isdigit()
        return f"UPDATE branch SET v = '{{{{ x }}}}' WHERE k IN ({', '.join(map(str, keys))})"

    @task.paimon_correct(partitions=["dt=1"], view=["other=d.t"], **WHERE)
    def by_rows(
        branch: Any,
        other: Any,
        suffix: str,
        times: int = 1,
    ) -> Any:
        # Its own imports: the driver has no Airflow.
        from pyspark.sql import functions

        end = functions.lit(suffix * times if other.count() == 3 else "?")
        return branch.where("dt = '1'").withColumn("v", functions.concat("v", end))

    @task.paimon_sql(retries=2, **WHERE)
    def nothing() -> str:
        return " "

    with dag:
        new = CreateBranchOperator(task_id="new", snapshot=1, **WHERE)
        changed = by_statement([1, 3])
        new >> changed >> by_rows(suffix="!", times=2) >> nothing()
    run = run_dag(dag)
    assert run.tasks == {
        "new": ("success", 1),
        "by_statement": ("success", 1),
        "by_rows": ("success", 1),
        "nothing": ("failed", 1),
    }
    rows = read_arrow(main.branch("fix")).sort_by("k").to_pylist()
    assert [row["v"] for row in rows] == ["{{ x }}!!", "b!!", "{{ x }}"]
    assert run.xcom("by_rows")["snapshot_after"] == 3
    submitted = [line for line in "".join(capfd.readouterr()).splitlines() if "Spark-Submit cmd" in line]
    assert ["--function=" in line for line in submitted] == [False, True], "a statement, then a function"
    assert run.xcom("nothing", "paimon_error")["kind"] == "invalid-input"
    properties = main.branch("fix").latest_snapshot().properties
    assert any("by_rows_" in text for text in properties.values()), "the function and its version"


def test_a_function_for_spark_uses_nothing_of_the_dags_file(dag: DAG) -> None:
    def cents(branch: Any) -> Any:
        return branch.where(f"v > {CENTS}")

    def nested(branch: Any) -> Any:
        return [row for row in branch if row is WHERE]

    def in_a_class(branch: Any) -> Any:
        class Rule:
            cents = CENTS
            dearer = cents

        return branch, Rule

    def by_default(branch: Any, cents: int = CENTS) -> Any:
        return branch, cents

    def own(branch: Any, cents: int = len("100")) -> Any:
        import json

        class Rule:
            text = str(branch)

            def read(self) -> Any:
                return json.loads(self.text), super().__init__(), own

        return [Rule for rule in range(cents) if rule]

    with dag:
        with pytest.raises(InvalidInputError, match=r"cents runs in Spark's driver and uses CENTS of the DAG's file"):
            task.paimon_correct(**WHERE)(cents)()
        with pytest.raises(InvalidInputError, match="uses WHERE"):
            task.paimon_correct(**WHERE)(nested)()
        for wrong in (in_a_class, by_default):
            with pytest.raises(InvalidInputError, match="uses CENTS of"):
                task.paimon_correct(**WHERE)(wrong)()
        with pytest.raises(InvalidInputError, match="uses dag"):
            task.paimon_correct(**WHERE)(_closure(dag))()
        with pytest.raises(InvalidInputError, match="made by def"):
            task.paimon_correct(task_id="anonymous", **WHERE)(lambda branch: branch)()
        with pytest.raises(InvalidInputError, match="own has another decorator"):
            task.paimon_correct(**WHERE)(functools.wraps(own)(lambda branch: own(branch)))()
        with pytest.raises(InvalidInputError, match="rows has no name"):
            task.paimon_correct(**WHERE)(_all_of)()
        with pytest.raises(InvalidInputError, match="takes neither sql nor function"):
            task.paimon_sql(sql="SELECT 1", **WHERE)(own)()
        with pytest.raises(TypeError, match="missing a required argument: 'other'"):
            task.paimon_correct(**WHERE)(_with_other)()
        task.paimon_correct(view=["other=d.o"], **WHERE)(_with_other)()
        task.paimon_correct(**WHERE)(own)()
    assert sorted(dag.task_ids) == ["_with_other", "own"]


def _closure(dag: Any) -> Any:
    def captured(branch: Any) -> Any:
        return dag

    return captured


def _all_of(*rows: Any) -> Any:
    return rows


def _with_other(branch: Any, other: Any) -> Any:
    return other
