"""The quick start's table and DAG, run as they are printed, one after the other; and the README's file of DAGs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from airflow.dag_processing.dagbag import BundleDagBag

from airflow_paimon import open_table
from airflow_paimon.data import read_arrow
from tests.airflow.conftest import RunDag
from tests.environment import REPO_ROOT

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.usefixtures("java_home")]


def examples(page: str) -> list[str]:
    """The Python blocks of a page."""
    return re.findall(r"^```python\n(.*?)^```", (REPO_ROOT / page).read_text(), re.MULTILINE | re.DOTALL)


def test_the_quick_start_runs_as_it_is_printed(
    warehouse: Path, run_dag: RunDag, capsys: pytest.CaptureFixture[str]
) -> None:
    python, dag = examples("docs/quickstart.md")
    exec(python.replace('"/data/warehouse"', repr(str(warehouse))), {})
    assert "{'id': 2, 'dt': '2026-11-18', 'amount': 2000.0}" in capsys.readouterr().out
    names: dict[str, Any] = {}
    exec(dag, names)
    run = run_dag(names["publish"].dag)
    assert set(run.tasks.values()) == {("success", 1)}
    orders = open_table(str(warehouse), "sales.orders")
    assert sorted(read_arrow(orders).column("amount").to_pylist()) == [10.0, 20.0]
    undo = run.xcom("publish")["details"]["undo_tag"]
    assert sorted(read_arrow(orders, version=undo).column("amount").to_pylist()) == [10.0, 2000.0]


def test_the_readmes_file_makes_the_dags_that_it_names(tmp_path: Path) -> None:
    (block,) = examples("README.md")
    (tmp_path / "corrections.py").write_text(block)
    bag = BundleDagBag(dag_folder=str(tmp_path), bundle_path=tmp_path, bundle_name="readme")
    assert bag.import_errors == {}
    assert set(bag.dags) == {"data_correction", "data_correction_undo"}
