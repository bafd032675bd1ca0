"""DAG versions: Airflow makes one when a DAG's serialized form changes, which reading a file again must not do."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.dags.test_imports import DAGS
from tests.environment import REPO_ROOT

pytestmark = pytest.mark.airflow

_CODE = """
    import json, sys
    from pathlib import Path
    from airflow.dag_processing.dagbag import BundleDagBag
    from airflow.models.serialized_dag import SerializedDagModel
    from airflow.serialization.serialized_objects import DagSerialization

    checkouts = []
    for folder in map(Path, sys.argv[1:]):
        bag = BundleDagBag(dag_folder=str(folder), bundle_path=folder, bundle_name="checkout")
        assert bag.import_errors == {}, bag.import_errors
        found = {}
        for dag_id, dag in bag.dags.items():
            data = DagSerialization.to_dict(dag)
            assert str(folder) not in json.dumps({k: v for k, v in data["dag"].items() if k != "fileloc"}), dag_id
            found[dag_id] = [SerializedDagModel.hash(data), str(Path(dag.fileloc).relative_to(folder))]
        checkouts.append(found)
    print(json.dumps(checkouts))
"""


def read(*checkouts: Path, seed: int = 1) -> list[dict[str, list[str]]]:
    """Read the files of checkouts in a process of its own: dag id -> hash of its serialized form, its file."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(_CODE), *map(str, checkouts)],
        env={**os.environ, "PYTHONHASHSEED": str(seed)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.thorough
def test_reading_the_files_again_from_another_checkout_makes_no_new_version(airflow_home: Path, tmp_path: Path) -> None:
    """A Git bundle has each version in a folder of its own, and the DAG processor reads files in new processes."""
    pytest.importorskip("airflow.dag_processing.dagbag", reason="Airflow 3.1 has another one")
    hidden = shutil.ignore_patterns("__pycache__")
    for name in ("one", "two"):
        shutil.copytree(REPO_ROOT / "dags", tmp_path / name, ignore=hidden)
    (first,), (second,) = (read(tmp_path / name, seed=seed) for name, seed in (("one", 1), ("two", 2)))
    assert first == second
    assert set(first) == DAGS
    assert {file for _, file in first.values()} <= {path.name for path in (REPO_ROOT / "dags").glob("*.py")}


@pytest.mark.landing
def test_what_changes_a_dag_makes_a_new_version_of_it_and_of_no_other(airflow_home: Path, tmp_path: Path) -> None:
    pytest.importorskip("airflow.dag_processing.dagbag", reason="Airflow 3.1 has another one")
    texts = {"changed": '{"reason": "b"}', "same": '{"reason": "a"}'}
    for folder in ("before", "after"):
        (tmp_path / folder).mkdir()
        for name, defaults in texts.items():
            chosen = '{"reason": "a"}' if folder == "before" else defaults
            (tmp_path / folder / f"{name}.py").write_text(
                f"from airflow_paimon.dags import correction_dag\n\ndag = correction_dag({name!r}, defaults={chosen})\n"
            )
    before, after = read(tmp_path / "before", tmp_path / "after")
    assert {name for name in texts if before[name] != after[name]} == {"changed"}
