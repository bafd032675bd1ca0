"""The tab Grid of a chain table: days by group, at one glance, and what check_chain_table says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from airflow_paimon.core.chain.check import find_chain_problems
from airflow_paimon.core.chain.layout import ChainLayout, Values
from airflow_paimon.core.chain.read_plan import GroupReport
from airflow_paimon.core.requests.findings import Finding
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.table import Table
from airflow_paimon.plugin.panel import PageContext, Panel
from airflow_paimon.plugin.tabs.grid_plan import MEANINGS, SIGNS, lay_out_grid
from airflow_paimon.plugin.tabs.lists import findings_sheet

_DAYS = 62
_GROUPS = 200


@dataclass(frozen=True, slots=True)
class ChainGlance:
    """What the grid needs of a check: values of partitions, none of their files."""

    layout: ChainLayout | None
    groups: Sequence[GroupReport]
    stale: dict[Values, str]
    findings: list[Finding]

    def weigh(self) -> int:
        """About how many bytes it holds."""
        held = sum(len(g.main) + len(g.snapshot) + len(g.delta) + len(g.gaps or ()) for g in self.groups)
        return 200 * held + 1000 * (1 + len(self.findings))


def chain_summary(main: Table) -> ChainGlance:
    """Check the chain, and keep what the grid needs."""
    check = find_chain_problems(main)
    layout = check.state.layout if check.state is not None else None
    return ChainGlance(layout, check.groups, {s.values: s.reason for s in check.stale}, list(check.findings))


def show(context: PageContext) -> Panel:
    """Show the newest days of the groups."""
    main = context.main
    if not TableOptions(context.main_schema.options).chain_table:
        return Panel(notes=[f"{main.name} is not a chain table (option chain-table.enabled)."])
    check = context.read("chain", make=partial(chain_summary, main), weigh=ChainGlance.weigh)
    findings = findings_sheet(check.findings)
    if check.layout is None:
        return Panel(notes=["The branches don't make a chain; nothing can be laid out."], sheets=[findings])
    layout, query = check.layout, context.query
    groups = [g for g in check.groups if query.q.lower() in (layout.group_text(g.group) or "all").lower()]
    hidden = {f.subject for f in check.findings if f.kind == "hidden-delta"}
    grid = lay_out_grid(layout, groups[:_GROUPS], check.stale, hidden, page=query.page, width=_DAYS)
    notes = [f"{len(groups) - _GROUPS:,} more groups: search for one."] if len(groups) > _GROUPS else []
    meanings = [(state, SIGNS[state], text) for state, text in MEANINGS.items() if state != "none"]
    data = {"grid": grid, "meanings": meanings, "groups": len(groups), "step": layout.clock.step.name.lower()}
    return Panel(template="grid.html", sheets=[findings], notes=notes, data=data)
