"""The quick start's table is corrected as README and quick start say; and the README's file of DAGs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from airflow.dag_processing.dagbag import BundleDagBag

from airflow_paimon import open_table
from airflow_paimon.dags import correction_dag
from airflow_paimon.data import read_arrow
from tests.airflow.conftest import RunDag
from tests.environment import REPO_ROOT

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.usefixtures("java_home")]


WRONG = ("2026-11-16", "2026-11-17", "2026-11-18")


def examples(page: str) -> list[str]:
    """The Python blocks of a page."""
    return re.findall(r"^```python\n(.*?)^```", (REPO_ROOT / page).read_text(), re.MULTILINE | re.DOTALL)


def test_the_statement_of_readme_and_quick_start_corrects_its_table_once(
    warehouse: Path, run_dag: RunDag, capsys: pytest.CaptureFixture[str]
) -> None:
    python, _ = examples("docs/quickstart.md")
    exec(python.replace('"/data/warehouse"', repr(str(warehouse))), {})
    assert "{'id': 2, 'dt': '2026-11-17', 'amount': 200000.0}" in capsys.readouterr().out
    (given,) = re.findall(r"--conf '(\{.*?\})'", (REPO_ROOT / "README.md").read_text(), re.DOTALL)
    form = json.loads(given)
    assert given in (REPO_ROOT / "docs" / "quickstart.md").read_text()
    twice = f"{form['sql']};\n{form['sql']}"
    run = run_dag(correction_dag(), run_conf=form | {"sql": twice, "approval": False})
    assert run.state == "success"
    assert {row["partition"] for row in run.xcom("diff")["details"]["partitions"]} == {f"dt={day}" for day in WRONG}
    orders = open_table(str(warehouse), "sales.orders")
    assert sorted(read_arrow(orders).column("amount").to_pylist()) == [45.0, 125.0, 2000.0, 9900.0]


def test_the_readmes_file_makes_the_dags_that_it_names(tmp_path: Path) -> None:
    (block,) = examples("README.md")
    (tmp_path / "corrections.py").write_text(block)
    bag = BundleDagBag(dag_folder=str(tmp_path), bundle_path=tmp_path, bundle_name="readme")
    assert bag.import_errors == {}
    assert set(bag.dags) == {"data_correction", "data_correction_undo"}
