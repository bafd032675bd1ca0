"""The tab Check: what check_table and check_chain_table say, without a look for every data file."""

from __future__ import annotations

from airflow_paimon.core.chain.check import check_chain_table
from airflow_paimon.core.check.check import find_all
from airflow_paimon.core.errors import PaimonError
from airflow_paimon.core.requests.findings import Finding
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.table import Table
from airflow_paimon.plugin.panel import PageContext, Panel
from airflow_paimon.plugin.reading import FRESH_SECONDS
from airflow_paimon.plugin.sheet import Sheet, sheet_of
from airflow_paimon.shown import lists

_MARKS = {"error": "bad", "warning": "warn", "info": "muted"}
_MOST = 500


def findings_of(main: Table, now_ms: int) -> list[Finding]:
    """Look through a table, without asking for every data file."""
    found = find_all(main, now_ms, verify_files=False)
    try:
        if TableOptions(main.schema().options).chain_table:
            found += check_chain_table(main).findings
    except PaimonError:
        pass  # what can't be read is among the findings already
    order = {"error": 0, "warning": 1, "info": 2}
    return sorted(found, key=lambda f: (order[f.severity], f.id))


def findings_sheet(findings: list[Finding]) -> Sheet:
    """Show findings, the worst first."""
    empty = "Nothing is wrong with this table's metadata"
    marks = {"severity": lambda row: _MARKS[row["severity"]]}
    return sheet_of(lists.findings(findings), 0, size=_MOST, empty=empty, marks=marks)


def show(context: PageContext) -> Panel:
    """Show the findings."""
    found = context.reader.get(
        (context.uri, "check"),
        lambda: findings_of(context.main, context.now_ms),
        deadline=context.deadline,
        fresh=FRESH_SECONDS,
    )
    note = "The metadata was checked, not the data files. The job check_table also checks that each data file exists."
    return Panel(sheets=[findings_sheet(found)], notes=[note])
