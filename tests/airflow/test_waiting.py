"""Everything that waits takes its default from the deployment, which knows whether a triggerer runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.airflow

SEVERAL_TABLES = {"PublishTablesOperator", "ReplayTablesOperator", "UndoTablesOperator"}
"""They do one table after the other, and stay in their worker."""
_CODE = """
    import importlib, inspect, json
    from airflow.sdk import BaseSensorOperator
    from airflow_paimon.get_provider_info import get_provider_info
    from airflow_paimon.operators._base import PaimonOperator

    info, found = get_provider_info(), {}
    for name in (n for kind in ("operators", "sensors") for group in info[kind] for n in group["python-modules"]):
        module = importlib.import_module(name)
        for made in (getattr(module, n) for n in module.__all__):
            if not (inspect.isclass(made) and issubclass(made, PaimonOperator | BaseSensorOperator)):
                continue
            bases = [base for base in made.__mro__ if base.__module__.startswith("airflow_paimon.")]
            taken = [p for base in bases for p in inspect.signature(base.__init__).parameters.values()]
            named = [p for p in taken if p.kind == p.KEYWORD_ONLY]
            asked = {p.name: "d.x" for p in named if p.default is p.empty or p.name == "sql"}
            found[made.__name__] = made(task_id="t", **asked).deferrable
    print(json.dumps(found))
"""


@pytest.mark.every(2)
@pytest.mark.parametrize("default", [True, False])
def test_operators_and_sensors_wait_in_the_triggerer_where_the_deployment_says_so(
    airflow_home: Path, default: bool
) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(_CODE)],
        env={**os.environ, "AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE": str(default)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) > 30 and found.keys() >= SEVERAL_TABLES
    assert found == {name: default and name not in SEVERAL_TABLES for name in found}
