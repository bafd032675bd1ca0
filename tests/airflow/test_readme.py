"""The README's Python example and its DAG, run as they are printed, one after the other on a fresh warehouse."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from airflow_paimon import open_table
from airflow_paimon.data import read_arrow
from tests.airflow.conftest import RunDag
from tests.conftest import REPO_ROOT

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.usefixtures("java_home")]


def examples(warehouse: Path) -> list[str]:
    """The Python blocks of the README, on this warehouse instead of theirs."""
    text = (REPO_ROOT / "README.md").read_text().replace('"/tmp/lake"', repr(str(warehouse)))
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def test_the_examples_run_as_they_are_printed(
    warehouse: Path, run_dag: RunDag, capsys: pytest.CaptureFixture[str]
) -> None:
    python, dag = examples(warehouse)
    exec(python, {})
    assert "'amount': 1999.0" in capsys.readouterr().out
    names: dict[str, Any] = {}
    exec(dag, names)
    run = run_dag(names["publish"].dag)
    assert set(run.tasks.values()) == {("success", 1)}
    orders = open_table(str(warehouse), "sales.orders")
    assert sorted(read_arrow(orders).column("amount").to_pylist()) == [5.0, 19.99]
    assert sorted(read_arrow(orders, version="before_fix").column("amount").to_pylist()) == [500.0, 1999.0]
    assert orders.branch_names() == []
    assert run.xcom("publish")["details"]["undo_tag"] in orders.tag_names()
