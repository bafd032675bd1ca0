"""The DAG files as Airflow's DAG processor meets them."""

import ast
import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.dags.conftest import load_dag
from tests.environment import REPO_ROOT
from tests.test_doc_style import wrong_words

pytestmark = pytest.mark.airflow

DAGS = {
    "data_correction",
    "data_correction_cleanup",
    "data_correction_undo",
    "nightly_chain_maintenance",
    "on_new_snapshot",
    "pipeline_correction",
    "pipeline_correction_undo",
    "row_erasure",
    "table_maintenance",
}

FIELDS = {"Param", "choice", "number", "switch", "text", "texts"}


def test_the_folder_holds_these_dags_and_no_import_error(airflow_home: Path) -> None:
    folder = REPO_ROOT / "dags"
    try:
        from airflow.dag_processing.dagbag import BundleDagBag
    except ImportError:  # Airflow 3.1
        from airflow.models.dagbag import DagBag

        bag = DagBag(dag_folder=str(folder), bundle_path=folder, include_examples=False)
    else:
        bag = BundleDagBag(dag_folder=str(folder), bundle_path=folder, bundle_name="dags-folder")
    assert bag.import_errors == {}
    assert set(bag.dags) == DAGS


@pytest.mark.parametrize("name", sorted(DAGS))
def test_every_parameter_says_what_it_is_and_the_first_ones_are_open(name: str) -> None:
    params = load_dag(name).params
    for key in params:
        param = params.get_param(key)
        assert param.description, key
        assert param.schema.get("title"), key
        assert wrong_words(f"{param.schema['title']}: {param.description}") == []
    closed = [key for key in params if params.get_param(key).schema.get("section")]
    assert list(params)[: len(params) - len(closed)] == [key for key in params if key not in closed]
    assert "table" not in closed


def test_reading_the_files_does_nothing_but_import(airflow_home: Path) -> None:
    pytest.importorskip("airflow.dag_processing.dagbag", reason="Airflow 3.1 itself reads files of all providers here")
    code = """
        import json, runpy, sys
        import airflow.sdk, airflow.providers.standard.operators.hitl, airflow.providers.apache.spark.hooks.spark_submit
        airflow.sdk.DAG("loads_what_airflow_loads_late", schedule=None)
        found, before = [], set(sys.modules)

        def hook(event, args):
            if event in ("socket.connect", "subprocess.Popen", "sqlite3.connect"):
                found.append(f"{event} {args[0]!r}")
            elif event == "open" and isinstance(args[0], str) and not args[0].endswith((".py", ".pyc")):
                found.append(f"{event} {args[0]}")

        sys.addaudithook(hook)
        for path in sys.argv[1:]:
            runpy.run_path(path)
        heavy = [m for m in ("pyspark", "pyarrow", "fsspec", "fastavro") if m in set(sys.modules) - before]
        print(json.dumps({"did": found, "heavy": heavy}))
    """
    files = [str(REPO_ROOT / "dags" / f"{name}.py") for name in sorted(DAGS)]
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *files], capture_output=True, text=True, check=True
    )
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen == {"did": [], "heavy": []}


def test_no_text_of_a_form_is_written_in_two_files() -> None:
    """A field that several forms have is made by ``runbooks/fields.py``."""
    found: dict[str, set[str]] = {}
    for path in [*(REPO_ROOT / "airflow_paimon/dags").glob("*.py"), REPO_ROOT / "airflow_paimon/runbooks/fields.py"]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in FIELDS:
                texts = (one.value for one in ast.walk(node) if isinstance(one, ast.Constant))
                for text in (t for t in texts if isinstance(t, str) and len(t) > 40):
                    found.setdefault(text, set()).add(path.name)
    assert len(found) > 50
    assert {text: files for text, files in found.items() if len(files) > 1} == {}
