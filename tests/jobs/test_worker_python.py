"""Which Python the tasks of a job run in that was started by plain ``python``."""

from __future__ import annotations

import sys

import pytest

from airflow_paimon.spark.launch import default_python


@pytest.mark.parametrize(
    ("environment", "master", "chosen"),
    [
        ({}, "local[*]", ["PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"]),
        ({}, "local", ["PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"]),
        ({"PYSPARK_DRIVER_PYTHON": "other"}, "local[2]", ["PYSPARK_PYTHON"]),
        ({"PYSPARK_PYTHON": "python3.12"}, "local[*]", []),
        ({}, "spark://master:7077", []),
        ({}, "yarn", []),
    ],
)
def test_tasks_of_a_local_master_run_in_the_jobs_python(
    environment: dict[str, str], master: str, chosen: list[str]
) -> None:
    assert default_python(environment, master) == dict.fromkeys(chosen, sys.executable)
