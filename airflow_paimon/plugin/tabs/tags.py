"""The tab Tags of one branch, the newest snapshot first: what each is for and how long it lives."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from airflow_paimon.core.format.snapshot import Tag
from airflow_paimon.core.table.paths import UNDO_TAG_PREFIX
from airflow_paimon.plugin.panel import PageContext, Panel
from airflow_paimon.plugin.reading import FRESH_SECONDS
from airflow_paimon.shown import lists


def show(context: PageContext) -> Panel:
    """Show a page of the branch's tags."""
    found: list[Tag] = context.reader.get(
        (context.uri, "tags", context.view.branch_name),
        context.view.tags,
        deadline=context.deadline,
        fresh=FRESH_SECONDS,
        weigh=lambda tags: 1500 * (1 + len(tags)),
    )

    def undo(row: Mapping[str, Any]) -> str:
        is_undo = row["tag"].startswith(UNDO_TAG_PREFIX)
        return context.query.href(tab="corrections", q=row["tag"], page=1) if is_undo else ""

    def history(row: Mapping[str, Any]) -> str:
        at = f"{context.view.branch_name}:{row['snapshot']}"
        return context.query.href(tab="history", at=at, q="", page=1)

    def late(row: Mapping[str, Any]) -> str:
        # The writer's local time, which is taken for this machine's.
        return "warn" if row["expires"] and row["expires"] < datetime.fromtimestamp(context.now_ms / 1000) else ""

    links = {"what for": undo, "snapshot": history}
    return Panel(sheets=[context.sheet(lists.tags(found), empty="No tags", links=links, marks={"expires": late})])
