"""The documentation inside Airflow: every page opens, every link leads somewhere, DAGs and messages point to it."""

import re
from pathlib import Path
from typing import Any

import pytest

from airflow_paimon.bundled import docs_folder
from airflow_paimon.core.errors import NotFoundError
from airflow_paimon.plugin.documents import render
from airflow_paimon.runbooks.pages import page_address, with_links
from tests.dags.conftest import load_dag

ROOT = "/airflow/paimon/_docs"
PAGES = sorted(path.relative_to(docs_folder()).with_suffix("").as_posix() for path in docs_folder().rglob("*.md"))
_LINKS = re.compile(r'(?:href|src)="([^"]*)"')


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.every(3)
def test_links_and_pictures_of_a_page_lead_to_what_is_served(name: str) -> None:
    for link in _LINKS.findall(render(name, ROOT).body):
        if link.startswith(("https://", "http://")):
            continue
        target, _, place = link.partition("#")
        assert not target or target.startswith(f"{ROOT}/"), link
        page = target.removeprefix(f"{ROOT}/") or name
        if page.startswith("_static/") or page.endswith(".ipynb"):
            assert (docs_folder() / page).is_file(), link
        else:
            body = render(page, ROOT).body
            assert not place or f'id="{place}"' in body, link


def test_what_only_sphinx_understands_is_not_shown() -> None:
    bodies = {name: render(name, ROOT).body for name in PAGES}
    assert not [name for name, body in bodies.items() if "{eval-rst}" in body or "autoclass::" in body]
    assert "python -m pydoc airflow_paimon.operators.branch.MergeBranchOperator" in bodies["operators/branches"]
    assert f'href="{ROOT}/operators/branches"' in bodies["operators/index"]
    assert "<table>" in bodies["runbook"]
    assert "contributing/" not in bodies["index"]


def test_html_of_a_page_is_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "page.md").write_text("# A\n\n<script>alert(1)</script> [x](javascript:alert(1))\n")
    monkeypatch.setattr("airflow_paimon.plugin.documents.docs_folder", lambda: tmp_path)
    body = render("page", ROOT).body
    assert "<script" not in body
    assert "href" not in body


@pytest.mark.parametrize("name", ["../README", "conf", "_ext/x", "runbook.md", "a/b/c", "nothing"])
def test_there_is_no_other_page(name: str) -> None:
    with pytest.raises(NotFoundError, match="no page"):
        render(name, ROOT)


def test_it_is_served_to_who_is_signed_in(server: Any) -> None:
    from fastapi.testclient import TestClient

    from tests.plugin.conftest import token

    client = TestClient(server.app, base_url="http://localhost", root_path="/airflow")
    assert client.get(f"{ROOT}/runbook").status_code == 401
    page = client.get(f"{ROOT}/runbook", headers=token("viewer"))
    assert page.status_code == 200
    assert "<title>On call: start here - Paimon</title>" in page.text
    assert f'href="{ROOT}/howto/flink-tables#open-writers"' in page.text
    assert client.get(ROOT, headers=token("viewer")).status_code == 200
    picture = client.get(f"{ROOT}/_static/branches.svg", headers=token("viewer"))
    assert picture.headers["content-type"].startswith("image/svg+xml")
    notebook = client.get(f"{ROOT}/tutorials/notebook.ipynb", headers=token("viewer"))
    assert notebook.json()["nbformat"] == 4 and notebook.headers["content-disposition"] == "attachment"
    assert client.get(f"{ROOT}/tutorials/notebook.ipynb").status_code == 401
    for wrong in (
        "nothing",
        "tutorials/none.ipynb",
        "tutorials/..%2f..%2fx.ipynb",
        "..%2f..%2fpyproject",
        "conf.py",
        "_static/../conf.py",
    ):
        assert client.get(f"{ROOT}/{wrong}", headers=token("viewer")).status_code == 404


def test_dags_point_to_pages_inside_airflow(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = {
        "data_correction": "runbook",
        "nightly_chain_maintenance": "howto/chain-maintenance",
        "table_maintenance": "howto/nightly-maintenance",
    }
    for dag, page in pages.items():
        documentation = str(load_dag(dag).doc_md)
        assert f"](/paimon/_docs/{page})" in documentation
        assert "docs/" not in documentation.replace("_docs/", "")
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example/data/")
    assert page_address("limits") == "https://airflow.example/data/paimon/_docs/limits"
    assert with_links("see docs/howto/sql.md.") == "see [Sql](https://airflow.example/data/paimon/_docs/howto/sql)."


def test_each_picture_is_there_for_both_themes() -> None:
    names = {path.stem for path in (docs_folder() / "_static").glob("*.png")}
    assert {name.removesuffix("-dark") for name in names if name.endswith("-dark")} == {
        name for name in names if not name.endswith("-dark")
    }
    assert f'src="{ROOT}/_static/page-dark.png"' in render("page", ROOT).body
