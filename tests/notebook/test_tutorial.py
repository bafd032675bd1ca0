"""The tutorial notebook runs, cell by cell, and what its cells show is what a notebook can show."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from airflow_paimon.notebook.shown import Diff
from tests.environment import REPO_ROOT

NOTEBOOK = REPO_ROOT / "docs" / "tutorials" / "notebook.ipynb"


def run_cell(source: str, names: dict[str, Any]) -> Any:
    """Run a cell; gives the value of its last expression, which a notebook shows, None without one."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    return None if last is None else eval(compile(ast.Expression(last.value), "cell", "eval"), names)


def test_the_cells_run_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    names: dict[str, Any] = {"__name__": "__main__"}
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    shown = [run_cell("".join(cell["source"]), names) for cell in cells if cell["cell_type"] == "code"]
    values = [value for value in shown if value is not None]
    pages = [value._repr_html_() for value in values if hasattr(value, "_repr_html_")]
    assert len(pages) == 5 and all("<table>" in page for page in pages)
    assert "ann" not in " ".join(pages), "customers are masked"
    assert [value.total["changed"] for value in values if isinstance(value, Diff)] == [3]
    counts = [value for value in values if isinstance(value, tuple | int)]
    assert counts == [(9, 9), (2, 0), 2], "all rows; too large amounts on main and branch; the same after the undo"


def test_it_is_a_clean_notebook() -> None:
    """Of format 4.5, with cells that are unique, and without outputs, which would change with each run."""
    notebook = json.loads(NOTEBOOK.read_text())
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(set(ids)) == len(ids) > 10
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
