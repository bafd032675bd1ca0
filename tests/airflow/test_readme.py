"""The README's file of DAGs. Its statement is run by ``tests/spark/test_doc_snippets.py``."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from airflow.dag_processing.dagbag import BundleDagBag

from tests.environment import REPO_ROOT

pytestmark = pytest.mark.airflow


def test_the_readmes_file_makes_the_dags_that_it_names(tmp_path: Path) -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```", (REPO_ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "corrections.py").write_text(block)
    bag = BundleDagBag(dag_folder=str(tmp_path), bundle_path=tmp_path, bundle_name="readme")
    assert bag.import_errors == {}
    assert set(bag.dags) == {"data_correction", "data_correction_undo"}
