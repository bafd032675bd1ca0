"""The tab Options: those of the branch, beside main's where they differ, with what was meant by a name that no engine
knows. Values that look secret are not shown.
"""

from __future__ import annotations

from airflow_paimon.core.table.known_options import is_known
from airflow_paimon.plugin.panel import PageContext, Panel
from airflow_paimon.shown import lists


def show(context: PageContext) -> Panel:
    """Show all options."""
    on_branch = context.view.branch_name != context.main.branch_name
    listing = lists.options(context.schema.options, context.main_schema.options if on_branch else None)
    marks = {
        "option": lambda row: "" if is_known(row["option"]) else "warn",
        "on main": lambda row: "muted" if row["on main"] == "the same" else "warn",
    }
    sheet = context.sheet(listing, empty="No options are set", size=max(1, len(listing)), marks=marks)
    return Panel(sheets=[sheet])
