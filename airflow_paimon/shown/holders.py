"""How logs, commands and the page name what needs files of a table (``details["references"]`` of ``storage_usage``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_paimon.core.table.paths import MAIN

_TEXTS = {
    "branch": "branch {name}",
    "tag": "tag {name}",
    "tags": "all tags set by users",
    "undo": "all undo tags",
    "snapshots": "all snapshots but the newest",
    "changelogs": "all long-lived changelogs",
    "trash": "the trash",
    "holds": "publishes that are running",
}


def holder_text(holder: Mapping[str, Any]) -> str:
    """Name a holder: ``tag month_end``, ``all snapshots but the newest of branch fix``."""
    text = _TEXTS[holder["kind"]].format(name=holder["name"])
    return text if holder["branch"] == MAIN or holder["kind"] == "branch" else f"{text} of branch {holder['branch']}"
