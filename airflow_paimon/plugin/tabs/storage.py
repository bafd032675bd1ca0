"""The tab Storage: who holds how many bytes, of all branches, and what each one's end would free."""

from __future__ import annotations

from airflow_paimon.core.metadata_expiry.storage_usage import TableUsage, read_usage
from airflow_paimon.plugin.panel import PageContext, Panel
from airflow_paimon.shown import lists

_SERVES_SECONDS = 60.0
"""It reads all metadata of all branches, so it is shown for longer than other tabs."""


def show(context: PageContext) -> Panel:
    """Show what frees the most first."""
    found: TableUsage = context.reader.get(
        (context.uri, "storage"),
        lambda: read_usage(context.main, context.now_ms),
        deadline=context.deadline,
        fresh=_SERVES_SECONDS,
        weigh=lambda usage: 2000 * (1 + len(usage.roots) + len(usage.usages)),
    )
    listing = lists.holders(found)
    sheet = context.sheet(listing, empty="Only main's newest snapshot references files")
    return Panel(sheets=[sheet], notes=[f"{listing.note}.", *found.warnings])
