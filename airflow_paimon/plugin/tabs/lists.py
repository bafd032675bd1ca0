"""The tabs that are one list each: Tags, Options, Storage, Health and Check."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import Any

from airflow_paimon.core.chain.check import find_chain_problems
from airflow_paimon.core.check.check import find_all
from airflow_paimon.core.errors import PaimonError
from airflow_paimon.core.health.gather import read_health
from airflow_paimon.core.metadata_expiry.storage_usage import read_usage
from airflow_paimon.core.requests.findings import Finding
from airflow_paimon.core.table.known_options import is_known
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.paths import UNDO_TAG_PREFIX
from airflow_paimon.core.table.table import Table
from airflow_paimon.plugin.panel import PageContext, Panel
from airflow_paimon.plugin.sheet import Sheet, sheet_of
from airflow_paimon.shown import lists

SERVES_SECONDS = 60.0
"""Storage and health read more than other tabs do, so they are shown for longer."""
_SEVERITIES = {"error": "bad", "warning": "warn", "info": "muted"}
"""Severities of findings, the worst first, and how they are coloured."""
_MOST_FINDINGS = 500
_GOOD, _POOR = 90, 60


def tags(context: PageContext) -> Panel:
    """Show a page of the branch's tags, the newest snapshot first: what each is for and how long it lives."""
    branch = context.view.branch_name
    found = context.read("tags", branch, make=context.view.tags, weigh=lambda tags: 1500 * (1 + len(tags)))

    def undo(row: Mapping[str, Any]) -> str:
        is_undo = row["tag"].startswith(UNDO_TAG_PREFIX)
        return context.query.href(tab="corrections", q=row["tag"], page=1) if is_undo else ""

    def history(row: Mapping[str, Any]) -> str:
        return context.query.href(tab="history", at=f"{branch}:{row['snapshot']}", q="", page=1)

    def late(row: Mapping[str, Any]) -> str:
        # The writer's local time, which is taken for this machine's.
        return "warn" if row["expires"] and row["expires"] < datetime.fromtimestamp(context.now_ms / 1000) else ""

    links = {"what for": undo, "snapshot": history}
    return Panel(sheets=[context.sheet(lists.tags(found), empty="No tags", links=links, marks={"expires": late})])


def options(context: PageContext) -> Panel:
    """Show the branch's options, beside main's where they differ, with what was meant by a name that no engine knows.
    Values that look secret are not shown.
    """
    on_branch = context.view.branch_name != context.main.branch_name
    listing = lists.options(context.schema.options, context.main_schema.options if on_branch else None)
    marks = {
        "option": lambda row: "" if is_known(row["option"]) else "warn",
        "on main": lambda row: "muted" if row["on main"] == "the same" else "warn",
    }
    return Panel(sheets=[context.sheet(listing, empty="No options are set", size=max(1, len(listing)), marks=marks)])


def storage(context: PageContext) -> Panel:
    """Show who holds how many bytes, of all branches, and what each one's end would free, the most first."""
    found = context.read(
        "storage", make=partial(read_usage, context.main, context.now_ms), fresh=SERVES_SECONDS,
        weigh=lambda usage: 2000 * (1 + len(usage.roots) + len(usage.usages)),
    )  # fmt: skip
    listing = lists.holders(found)
    sheet = context.sheet(listing, empty="Only main's newest snapshot references files")
    return Panel(sheets=[sheet], notes=[f"{listing.note}.", *found.warnings])


def health(context: PageContext) -> Panel:
    """Show the table's score, and its reasons with what mends them, those that cost the most first."""
    make = partial(read_health, context.main, context.now_ms)
    listing = lists.reasons(context.read("health", make=make, fresh=SERVES_SECONDS, weigh=lambda _: 5000))
    empty = "Nothing takes points off: the score is 100"
    marks = {"reason": lambda row: "bad" if row["points"] >= 100 - _POOR else "warn"}
    return Panel(sheets=[context.sheet(listing, empty=empty, search=False, marks=marks)], notes=[f"{listing.note}."])


def score_mark(score: int | None) -> str:
    """Return the colour of a score; None: the table can't be read."""
    return "bad" if score is None or score < _POOR else "good" if score >= _GOOD else "warn"


def check(context: PageContext) -> Panel:
    """Show what check_table and check_chain_table say, without a look for every data file."""
    found = context.read("check", make=partial(findings_of, context.main, context.now_ms))
    note = "The metadata was checked, not the data files. The job check_table also checks that each data file exists."
    return Panel(sheets=[findings_sheet(found)], notes=[note])


def findings_of(main: Table, now_ms: int) -> list[Finding]:
    """Look through a table, without asking for every data file."""
    found = find_all(main, now_ms, verify_files=False)
    try:
        if TableOptions(main.schema().options).chain_table:
            found += find_chain_problems(main).findings
    except PaimonError:
        pass  # what can't be read is among the findings already
    order = list(_SEVERITIES)
    return sorted(found, key=lambda f: (order.index(f.severity), f.id))


def findings_sheet(findings: list[Finding]) -> Sheet:
    """Show findings, the worst first."""
    empty = "Nothing is wrong with this table's metadata"
    marks = {"severity": lambda row: _SEVERITIES[row["severity"]]}
    return sheet_of(lists.findings(findings), 0, size=_MOST_FINDINGS, empty=empty, marks=marks)
