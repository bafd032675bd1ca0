"""The tab Health: the table's score, its reasons with what mends them, and the figures behind it."""

from __future__ import annotations

from functools import partial

from airflow_paimon.cli.health import facts_text, job_of
from airflow_paimon.core.health.gather import read_health
from airflow_paimon.core.health.health_plan import Reason, TableHealth
from airflow_paimon.plugin.panel import PageContext, Panel
from airflow_paimon.plugin.sheet import Cell, Column, Sheet, number, size, text

SERVES_SECONDS = 60.0
"""It reads more than other tabs do, so it is shown for longer."""
GOOD, POOR = 90, 60
_COLUMNS = (
    Column("Reason"),
    Column("Points", number=True, help="What it takes off the score of 100"),
    Column("Figure", number=True),
    Column("Limit", number=True),
    Column("Of"),
    Column("Mended by", help="The job; with none, a setting or a writer"),
    Column("Costs", number=True, help="What that job reads and writes again at most"),
    Column("Why", roomy=True),
)


def show(context: PageContext) -> Panel:
    """Show the reasons that cost the most first."""
    found: TableHealth = context.reader.get(
        (context.uri, "health"),
        partial(read_health, context.main, context.now_ms),
        until=context.until,
        fresh=SERVES_SECONDS,
        weigh=lambda _: 5000,
    )
    rows = [_row(reason) for reason in found.reasons]
    sheet = Sheet(columns=_COLUMNS, rows=rows, total=len(rows), empty="Nothing takes points off: the score is 100")
    return Panel(sheets=[sheet], notes=[f"{facts_text(found)}."])


def _row(reason: Reason) -> list[Cell]:
    return [
        Cell(reason.id, mark="bad" if reason.points >= 100 - POOR else "warn"),
        number(reason.points),
        Cell(f"{reason.figure:,}"),
        Cell(f"{reason.limit:,}"),
        Cell(reason.unit),
        text(job_of(reason)),
        size(reason.cost_bytes or None),
        Cell(reason.text),
    ]


def score_cell(score: int | None, href: str = "") -> Cell:
    """Show a score in its colour; a dash for a table that can't be read."""
    if score is None:
        return Cell("-", mark="bad", href=href)
    return Cell(str(score), mark="good" if score >= GOOD else "warn" if score >= POOR else "bad", href=href)
