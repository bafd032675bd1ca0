"""The tab Health: the table's score, its reasons with what mends them, and the figures behind it."""

from __future__ import annotations

from functools import partial

from airflow_paimon.core.health.gather import read_health
from airflow_paimon.core.health.health_plan import TableHealth
from airflow_paimon.plugin.panel import PageContext, Panel
from airflow_paimon.shown import lists

SERVES_SECONDS = 60.0
"""It reads more than other tabs do, so it is shown for longer."""
GOOD, POOR = 90, 60


def show(context: PageContext) -> Panel:
    """Show the reasons that cost the most first."""
    found: TableHealth = context.reader.get(
        (context.uri, "health"),
        partial(read_health, context.main, context.now_ms),
        deadline=context.deadline,
        fresh=SERVES_SECONDS,
        weigh=lambda _: 5000,
    )
    listing = lists.reasons(found)
    empty = "Nothing takes points off: the score is 100"
    marks = {"reason": lambda row: "bad" if row["points"] >= 100 - POOR else "warn"}
    return Panel(sheets=[context.sheet(listing, empty=empty, search=False, marks=marks)], notes=[f"{listing.note}."])


def score_mark(score: int | None) -> str:
    """Return the colour of a score; None: the table can't be read."""
    return "bad" if score is None or score < POOR else "good" if score >= GOOD else "warn"
