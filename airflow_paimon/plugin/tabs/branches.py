"""The tab Branches: whose each is, where it came from, how far it is from main, and whether it can be published."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from airflow_paimon.core.errors import PaimonError
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.paths import protects
from airflow_paimon.plugin.panel import PageContext, Panel
from airflow_paimon.plugin.reading import FRESH_SECONDS
from airflow_paimon.plugin.sheet import paged, sheet_of
from airflow_paimon.shown.branches import BranchFacts, Compared, branch_facts, branches, distance, roles_of
from airflow_paimon.shown.publishable import publishable

_ROWS = 50
_PLAN_SECONDS = 60.0
"""How long a plan serves for the same two snapshots: checks, options and tags may change meanwhile."""


def show(context: PageContext) -> Panel:
    """Show a page of the branches; only those of the page are read."""
    query = context.query
    wanted = [n for n in context.branches if query.q.lower() in n.lower()]
    page, pages, first, last = paged(len(wanted), query.page, _ROWS)
    shown = wanted[first:last]
    facts = _facts(context, shown)
    compared, pending = _compared(context, facts)
    roles = roles_of(TableOptions(context.main_schema.options))
    sheet = sheet_of(
        branches([(n, facts.get(n)) for n in shown], roles, compared),
        context.now_ms, size=_ROWS,
        empty="No branch has this in its name" if query.q else "There is no branch but main: a correction makes one",
        links={"branch": lambda row: query.href(tab="history", branch=row["branch"], page=1, q="")},
    )  # fmt: skip
    sheet = replace(sheet, total=len(wanted), page=page, pages=pages, search=query.q)
    return Panel(sheets=[sheet], pending=pending or len(facts) < len(shown))


def _facts(context: PageContext, names: Sequence[str]) -> Mapping[str, BranchFacts | PaimonError]:
    """Return what was read of each branch in time."""
    reads = {(context.uri, "branch", n): partial(branch_facts, context.cached, n) for n in names}
    read = context.reader.gather(reads, deadline=context.deadline, fresh=FRESH_SECONDS)
    return {name: one for (_, _, name), one in read.items()}


def _compared(context: PageContext, facts: Mapping[str, BranchFacts | PaimonError]) -> tuple[Compared, bool]:
    """Return how branches compare with main, and whether some of it is still being read."""
    main, head, uri = context.cached, context.head, context.uri
    heads = {n: one.head for n, one in facts.items() if isinstance(one, BranchFacts) and one.head}
    far = {
        (uri, "distance", n, head.identity, theirs.identity): partial(distance, main, main.branch(n), head, theirs)
        for n, theirs in heads.items()
        if head
    }
    plans = {
        (uri, "publishable", n, head.identity if head else "", theirs.identity): partial(
            publishable, main, n, context.now_ms
        )
        for n, theirs in heads.items()
    }
    done = context.reader.gather(far, deadline=context.deadline)
    planned = context.reader.gather(plans, deadline=context.deadline, fresh=_PLAN_SECONDS)
    tags = context.read("tag names", make=context.main.tag_names)
    compared = Compared(
        far={key[2]: one for key, one in done.items()},
        states={key[2]: one for key, one in planned.items()},
        guarded=frozenset(branch for tag in tags if (branch := protects(tag)) is not None),
        now_ms=context.now_ms,
    )
    return compared, len(done) < len(far) or len(planned) < len(plans)
