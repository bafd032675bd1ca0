"""Documentation that code and pages point to is there, and every module says what it is for."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = [
    p for folder in ("airflow_paimon", "dags", "spark_jobs", "benchmarks") for p in (ROOT / folder).rglob("*.py")
]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
_REFERENCE = re.compile(r"(docs/[\w/-]+\.md)(?:, ([A-Z][\w ,']*\w))?")
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)")


def headings(page: Path) -> set[str]:
    return {line.lstrip("# ") for line in page.read_text().splitlines() if line.startswith("#")}


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_module_says_what_it_is_for_and_points_to_what_is_there(path: Path) -> None:
    text = path.read_text()
    assert not text.strip() or ast.get_docstring(ast.parse(text)), "no docstring"
    for page, heading in _REFERENCE.findall(" ".join(text.split())):
        assert (ROOT / page).is_file(), page
        assert not heading or any(heading.startswith(known) for known in headings(ROOT / page)), (page, heading)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_of_pages_lead_somewhere(page: Path) -> None:
    for target in _LINK.findall(page.read_text()):
        assert "://" in target or (page.parent / target).exists(), target


def test_every_page_of_the_site_is_in_its_navigation() -> None:
    docs = ROOT / "docs"
    listed = [
        docs / page for page in re.findall(r"^- \[.*\]\((.+\.md)\)$", (docs / "index.md").read_text(), re.MULTILINE)
    ]
    operators = (docs / "operators" / "index.md").read_text()
    (entries,) = re.findall(r"```{toctree}\n:hidden:\n\n(.*?)```", operators, re.DOTALL)
    assert [e for e in entries.split() if f"({e}.md" not in operators] == []
    listed += [docs / "operators" / f"{entry}.md" for entry in entries.split()]
    pages = {page for page in docs.rglob("*.md") if "contributing" not in page.parts} - {docs / "index.md"}
    assert sorted(listed) == sorted(pages)
