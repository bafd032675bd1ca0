"""The examples of README and docs/: their commands are taken, and what their Python imports is there."""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_paimon.cli.main import parse
from airflow_paimon.core.requests.arguments import parse_arguments
from airflow_paimon.core.requests.operations import OPERATIONS
from airflow_paimon.execution import run_operation
from tests.dags.conftest import load_dag
from tests.environment import REPO_ROOT

CHAINS = ("chain-tables.md", "chain-maintenance.md")
_FOUND = (REPO_ROOT / "README.md", *sorted((REPO_ROOT / "docs").rglob("*.md")))
PAGES = {page.name: page for page in _FOUND if page.parent.name != "howto" or page.name in CHAINS}
_COMMAND = re.compile(r"^(?:    |\$ )?(python3? (?:.*\\\n)*.*)", re.MULTILINE)


def commands(page: str) -> list[list[str]]:
    """Every command of a page as words, continued lines joined, comments dropped."""
    found = _COMMAND.findall(PAGES[page].read_text())
    return [shlex.split(text.replace("\\\n", " "), comments=True) for text in found]


def parsed(words: list[str]) -> Any:
    """Parse a command as the program would; None for a program that isn't ours."""
    program, rest = words[1], words[2:]
    if "--help" in words:
        return None
    if program.startswith("spark_jobs/"):
        assert (REPO_ROOT / program).is_file()
        return parse_arguments(Path(program).stem, rest)
    if words[1:4] == ["-m", "airflow_paimon", "job"]:
        return parse_arguments(words[4], words[5:])
    if words[1:3] == ["-m", "airflow_paimon"]:
        return parse(words[3:])
    return None


def test_the_commands_are_found_and_taken() -> None:
    ours = [words for page in PAGES for words in commands(page) if parsed(words)]
    assert {"quickstart.md", "chain-tables.md", "runbook.md"} <= {p for p in PAGES if any(map(parsed, commands(p)))}
    assert len(ours) >= 12


def test_the_commands_for_chain_tables_run_one_after_the_other(tmp_path: Path) -> None:
    ran = []
    for words in (words for page in CHAINS for words in commands(page)):
        where = [w.replace("s3://bucket/warehouse", str(tmp_path)) for w in words]
        found = parsed(where)
        if hasattr(found, "request") and not OPERATIONS[found.request.operation].needs_spark:
            ran.append(found.request.operation)
            result = run_operation(found.request).to_json()
            assert result["changed"] is (ran[-1] in ("create_chain_table", "alter_chain_table")), json.dumps(result)
    assert ran == ["create_chain_table", "alter_chain_table", "expire_partitions"]


def test_the_python_is_python() -> None:
    for page, path in PAGES.items():
        for block in re.findall(r"^```python\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL):
            for node in ast.parse(block).body:
                if isinstance(node, ast.ImportFrom) and str(node.module).startswith("airflow_paimon"):
                    exec(compile(ast.Module([node], []), page, "exec"))  # the names are there


def test_the_readme_is_short() -> None:
    assert len(PAGES["README.md"].read_text().splitlines()) <= 120


_CODE = re.compile(r'code="([a-z-]+)"|Cause\.\w+: "([a-z-]+-[a-z-]+)"')


def test_each_code_of_an_error_has_its_section_with_messages_of_the_code() -> None:
    page = PAGES["troubleshooting.md"].read_text()
    sources = [path.read_text() for path in (REPO_ROOT / "airflow_paimon").rglob("*.py")]
    codes = {next(filter(None, found)) for source in sources for found in _CODE.findall(source)}
    assert codes == set(re.findall(r"^### ([a-z-]+)$", page, re.MULTILINE))
    quoted = [" ".join(q.split()) for q in re.findall(r"^### [a-z-]+\n\n\*([^*]+)\*", page, re.MULTILINE)]
    texts = "\n".join(literals())
    assert len(quoted) > 20
    assert [q for q in quoted if not all(part in texts for part in re.split(r"\s*\.\.\.\s*", q))] == []


def literals() -> Iterator[str]:
    """Every string of the package; what a formatted one inserts is left out, where it stands."""
    for path in (REPO_ROOT / "airflow_paimon").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                yield "\0".join(v.value for v in node.values if isinstance(v, ast.Constant))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


_TRIGGER = re.compile(r"airflow dags trigger (\w+) --conf '(\{.*?\})'", re.DOTALL)
_JSON = re.compile(r"`(data_correction\w*)`[^`]*(?:\n\n|\*[^`]*)```json\n(.*?)```", re.DOTALL)


def test_what_pages_give_to_the_forms_is_in_the_forms() -> None:
    pages = [REPO_ROOT / "README.md", *(REPO_ROOT / "docs").rglob("*.md")]
    found = [given for page in pages for kind in (_TRIGGER, _JSON) for given in kind.findall(page.read_text())]
    assert {dag for dag, _ in found} >= {"data_correction", "data_correction_cleanup", "nightly_chain_maintenance"}
    for dag, conf in found:
        assert set(json.loads(conf)) <= set(load_dag(dag).params), (dag, conf)


def test_the_page_names_the_fields_of_the_form() -> None:
    page = (REPO_ROOT / "docs" / "howto" / "correct-data.md").read_text()
    section = page.partition("## The form\n")[2].partition("\n## ")[0]
    found = re.findall(r"^\| \*([^*]+)\* \| `(\w+)` \|", section, re.MULTILINE)
    params = load_dag("data_correction").params
    form = {name: params.get_param(name) for name in params}
    assert len(found) > 8 and [(form[name].schema["title"], name) for _, name in found] == found
    assert [name for name in form if f"`{name}`" not in section] == []


def test_results_of_dbt_and_soda_are_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (REPO_ROOT / "docs" / "howto" / "check-tools.md").read_text()
    (source,) = (block for block in re.findall(r"^```python\n(.*?)^```", page, re.M | re.S) if "def dbt_tests" in block)
    names: dict[str, Any] = {}
    exec(source.replace("s3://lake/checks/fix", str(tmp_path)), names)

    def broken(function: str, file: str, content: Any) -> Any:
        (tmp_path / file).write_text(json.dumps(content))
        return names[function](None, {})

    def dbt(*results: tuple[str, int | None]) -> Any:
        found = [{"unique_id": f"test.{s}", "status": s, "failures": n} for s, n in results]
        return broken("dbt_tests", "run_results.json", {"results": found})

    assert dbt(("pass", 0), ("success", None), ("warn", 2)) == []
    assert [row["rows"] for row in dbt(("fail", 3), ("error", None), ("skipped", None))] == [3, 0, 0]
    assert dbt() == [{"test": "none ran"}]
    outcomes = [{"name": "rows", "outcome": "pass"}, {"name": "nulls", "outcome": "fail"}]
    scan = broken("soda_scan", "scan.json", {"hasErrors": False, "checks": outcomes})
    assert scan == [{"check": "nulls", "outcome": "fail"}]
    assert broken("soda_scan", "scan.json", {"hasErrors": True, "checks": outcomes[:1]})
    (tmp_path / "scan.json").unlink()
    with pytest.raises(FileNotFoundError):
        names["soda_scan"](None, {})
