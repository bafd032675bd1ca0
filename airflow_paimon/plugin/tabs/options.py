"""The tab Options: those of the branch, beside main's where they differ, with what was meant by a name that no engine
knows. Values that look secret are not shown.
"""

from __future__ import annotations

from airflow_paimon.core.table.masking import shown_option
from airflow_paimon.core.table.option_names import is_known, unknown_text
from airflow_paimon.plugin.panel import PageContext, Panel
from airflow_paimon.plugin.sheet import Cell, Column, Sheet, text


def show(context: PageContext) -> Panel:
    """Show all options."""
    here = context.schema.options
    main = context.main_schema.options
    keys = sorted(here.keys() | main.keys())
    differing = context.view.branch_name != context.main.branch_name
    columns = [Column("Option"), Column("Value"), *([Column("On main")] if differing else [])]
    rows = [
        [_name(key), _value(key, here.get(key)), *([_main(key, here.get(key), main.get(key))] if differing else [])]
        for key in keys
        if context.asked.q.lower() in key.lower()
    ]
    sheet = Sheet(columns=columns, rows=rows, total=len(rows), search=context.asked.q, empty="No options are set")
    return Panel(sheets=[sheet])


def _name(key: str) -> Cell:
    return Cell(key) if is_known(key) else Cell(f"{key} ({unknown_text(key)})", mark="warn")


def _value(key: str, value: str | None) -> Cell:
    return text(None) if value is None else text(shown_option(key, value))


def _main(key: str, here: str | None, main: str | None) -> Cell:
    if here == main:
        return Cell("same", mark="muted")
    return Cell("not set", mark="warn") if main is None else Cell(shown_option(key, main), mark="warn")
