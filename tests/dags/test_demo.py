"""`make demo`, the project's main job, as a user runs it: real flights, a real DAG run, real Spark."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_paimon import open_table
from tests.environment import REPO_ROOT

pytestmark = [pytest.mark.airflow, pytest.mark.slow]


def test_the_demo_corrects_three_days_and_proves_it(tmp_path: Path, java_home: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(REPO_ROOT / "dags" / "demo_flights.py")],
        env={**os.environ, "AIRFLOW_PAIMON_DEMO": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "All 336,776 rows are again what the source says." in done.stdout
    assert done.stdout.rstrip().splitlines()[-1].startswith("Done in ")
    table = open_table(str(tmp_path / "flights" / "warehouse"), "demo.flights")
    head = table.latest_snapshot()
    assert head is not None and head.properties["airflow-paimon.operation"] == "merge_branch"
    assert table.branch_names() == []
