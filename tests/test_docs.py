"""Documentation that code and pages point to is there, and every module says what it is for."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = [
    p for folder in ("airflow_paimon", "dags", "spark_jobs", "benchmarks") for p in (ROOT / folder).rglob("*.py")
]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
_REFERENCE = re.compile(r"(docs/[\w/-]+\.md)(?:, ([A-Z][\w ,']*\w))?")
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)")


def headings_of(page: Path) -> set[str]:
    return {line.lstrip("# ") for line in page.read_text().splitlines() if line.startswith("#")}


def test_modules_say_what_they_are_for_and_point_to_what_is_there() -> None:
    headings = {str(page.relative_to(ROOT)): headings_of(page) for page in PAGES}
    wrong = []
    for path in SOURCES:
        text = path.read_text()
        if text.strip() and not ast.get_docstring(ast.parse(text)):
            wrong.append(f"{path}: no docstring")
        for page, heading in _REFERENCE.findall(" ".join(text.split())):
            if page not in headings or (heading and not any(heading.startswith(known) for known in headings[page])):
                wrong.append(f"{path}: {page}, {heading}")
    assert wrong == []


def test_links_of_pages_lead_somewhere() -> None:
    links = [(page, target) for page in PAGES for target in _LINK.findall(page.read_text())]
    assert [link for link in links if "://" not in link[1] and not (link[0].parent / link[1]).exists()] == []


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
