"""What the pictures of the documentation show of a page: tabs, columns and legends, as of when they were taken."""

from __future__ import annotations

import json
from collections.abc import Sequence

from tests.environment import REPO_ROOT

PATH = REPO_ROOT / "tests" / "plugin" / "pictures.json"
PICTURES = {"page": "history", "page-corrections": "corrections"}
"""The tab of each picture of a table's page."""


def plain(texts: Sequence[str]) -> list[str]:
    return list(filter(None, (" ".join(text.split()) for text in texts)))


def record_picture(name: str, texts: Sequence[str]) -> None:
    """Keep what a new picture shows. ``make screenshots`` does."""
    known = json.loads(PATH.read_text())
    PATH.write_text(json.dumps(known | {name: plain(texts)}, indent=1, ensure_ascii=False) + "\n")
