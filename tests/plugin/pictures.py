"""What the pictures of the documentation show of a page: tabs, columns and legends, as of when they were taken."""

from __future__ import annotations

import json
from collections.abc import Sequence

from tests.environment import REPO_ROOT

PATH = REPO_ROOT / "tests" / "plugin" / "pictures.json"
PICTURES = {
    "page": "flights?tab=history",
    "page-corrections": "flights?tab=corrections",
    "page-health": "flights?tab=health",
    "page-storage": "flights?tab=storage",
    "page-grid": "last_flights?tab=grid",
}
"""The table and tab of each picture of a table's page."""
SELECTOR = "nav.tabs a, main table:not(.grid) th, .legend, .meanings li"
"""What a picture shows of a page, whatever the table: tabs, columns, legends."""


def plain(texts: Sequence[str]) -> list[str]:
    return list(filter(None, (" ".join(text.split()) for text in texts)))


def record_picture(name: str, texts: Sequence[str]) -> None:
    """Keep what a new picture shows. ``make screenshots`` does."""
    known = json.loads(PATH.read_text())
    PATH.write_text(json.dumps(known | {name: plain(texts)}, indent=1, ensure_ascii=False) + "\n")
