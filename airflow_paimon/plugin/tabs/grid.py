"""The tab Grid of a chain table: days by group, at one glance, and what check_chain_table says."""

from __future__ import annotations

from functools import partial

from airflow_paimon.core.chain.check import ChainCheck, check_chain_table
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.plugin.panel import PageContext, Panel
from airflow_paimon.plugin.reading import FRESH_SECONDS
from airflow_paimon.plugin.tabs.check import findings_sheet
from airflow_paimon.plugin.tabs.grid_plan import MEANINGS, SIGNS, group_name, lay_out_grid

_DAYS = 62
_GROUPS = 200


def show(context: PageContext) -> Panel:
    """Show the newest days of the groups."""
    main = context.main
    if not TableOptions(main.schema().options).chain_table:
        return Panel(notes=[f"{main.name} is not a chain table (option chain-table.enabled)."])
    check: ChainCheck = context.reader.get(
        (context.uri, "chain"), partial(check_chain_table, main), until=context.until, fresh=2 * FRESH_SECONDS
    )
    findings = findings_sheet(list(check.findings))
    if check.state is None:
        return Panel(notes=["The branches don't make a chain; nothing can be laid out."], sheets=[findings])
    layout, asked = check.state.layout, context.asked
    groups = [g for g in check.groups if asked.q.lower() in group_name(layout, g.group).lower()]
    stale = {s.values: s.reason for s in check.stale}
    hidden = {f.subject for f in check.findings if f.kind == "hidden-delta"}
    grid = lay_out_grid(layout, groups[:_GROUPS], stale, hidden, page=asked.page, width=_DAYS)
    notes = [f"{len(groups) - _GROUPS:,} more groups: search for one."] if len(groups) > _GROUPS else []
    meanings = [(state, SIGNS[state], text) for state, text in MEANINGS.items() if state != "none"]
    data = {"grid": grid, "meanings": meanings, "groups": len(groups), "step": layout.clock.step.name.lower()}
    return Panel(template="grid.html", sheets=[findings], notes=notes, data=data)
