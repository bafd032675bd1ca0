"""The tab Storage: who holds how many bytes, of all branches, and what each one's end would free."""

from __future__ import annotations

from airflow_paimon.cli.lookups import totals_text
from airflow_paimon.core.metadata_expiry.storage_usage import TableUsage, holder_json, read_usage
from airflow_paimon.plugin.panel import PageContext, Panel
from airflow_paimon.plugin.sheet import Cell, Column, Sheet, number, size, text
from airflow_paimon.shown.holders import holder_text

_ROWS = 100
_SERVES_SECONDS = 60.0
"""It reads all metadata of all branches, so it is shown for longer than other tabs."""
_COLUMNS = (
    Column("Held by"),
    Column("Snapshots", number=True, help="Snapshots, tags and changelogs that it stands for"),
    Column("Size", number=True, help="All that it refers to, shared files included"),
    Column("Frees", number=True, help="What nothing else refers to"),
    Column("Files", number=True, help="How many files these are"),
    Column("By", roomy=True),
)


def show(context: PageContext) -> Panel:
    """Show what frees the most first."""
    found: TableUsage = context.reader.get(
        (context.uri, "storage"),
        lambda: read_usage(context.main, context.now_ms),
        until=context.until,
        fresh=_SERVES_SECONDS,
        weigh=lambda usage: 2000 * (1 + len(usage.roots) + len(usage.holders)),
    )
    holders = [holder_json(usage, found.roots) for usage in found.holders]
    wanted = [h for h in holders if context.asked.q.lower() in holder_text(h).lower()]
    page, pages, first, last = context.page_of(len(wanted), _ROWS)
    rows = [
        [Cell(holder_text(h)), number(h["roots"]), size(h["bytes"]), size(h["frees_bytes"]), number(h["frees_files"]),
         text(h["way"])]
        for h in wanted[first:last]
    ]  # fmt: skip
    sheet = Sheet(columns=_COLUMNS, rows=rows, total=len(wanted), page=page, pages=pages, search=context.asked.q,
                  empty="Nothing but main's newest snapshot holds files")  # fmt: skip
    return Panel(sheets=[sheet], notes=[f"{totals_text(found.totals)}.", *found.warnings])
