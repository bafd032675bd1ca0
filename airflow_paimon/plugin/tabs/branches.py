"""The tab Branches: whose each is, where it came from, how far it is from main, and whether it can be published."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from airflow_paimon.core.checks.results import FAILED, PASSED, SKIPPED, WARNED
from airflow_paimon.core.errors import PaimonError
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.publish.required_checks import MISSING, outcomes_of
from airflow_paimon.core.table.history import Difference, branch_point, difference
from airflow_paimon.core.table.lineage import READY as TAKES_COMMITS
from airflow_paimon.core.table.lineage import Lineage, read_lineage, verified_lineage
from airflow_paimon.core.table.paths import MAIN, protects
from airflow_paimon.core.table.table import Table
from airflow_paimon.plugin.panel import PageContext, Panel
from airflow_paimon.plugin.reading import FRESH_SECONDS
from airflow_paimon.plugin.sheet import Cell, Column, Sheet, moment, moment_text, shortened, signed, text, without_empty
from airflow_paimon.plugin.tabs.publishable import (
    CHECKS_FAILED,
    CONFLICT,
    NOTHING_NEW,
    READY,
    Publishable,
    publishable,
)

_ROWS = 50
_PLAN_SECONDS = 60.0
"""How long a plan serves for the same two snapshots: checks, options and tags may change meanwhile."""
_COLUMNS = (
    Column("Branch"),
    Column("State", help="Whether merge_branch would publish it onto main as both are now"),
    Column(
        "Main quiet since (UTC)",
        help="Since when running jobs have left main's buckets alone that a publish of it replaces",
        optional=True,
    ),
    Column("Checks", help="What checks of its newest snapshot said; hover for the rules", optional=True),
    Column("Owner", optional=True),
    Column("Reason", optional=True),
    Column("Made from", help="The branch, the snapshot and the tag that it was made from"),
    Column("Created (UTC)"),
    Column("Last commit (UTC)"),
    Column("Snapshot", number=True),
    Column("Ahead of main", help="Buckets that it changed since they parted, and stored rows more"),
    Column("Behind main", help="Buckets that main changed since then, and stored rows more"),
    Column(
        "Expires (UTC)",
        help="When expire_branches may delete it: its retention, counted from its creation",
        optional=True,
    ),
    Column("Protected by", help="Who protects it: to delete, rename, replace or publish it needs force", optional=True),
    Column("Files kept", help="Whether a tag on main keeps the files that the branch shares with main"),
)


@dataclass(frozen=True, slots=True)
class Side:
    """What one side changed since the two parted. Rows as files count them, before any merge."""

    buckets: int
    rows: int


@dataclass(frozen=True, slots=True)
class Distance:
    """None where the two share no snapshot."""

    ahead: Side | None
    behind: Side | None


def distance(main: Table, view: Table, head: Snapshot | None, theirs: Snapshot | None) -> Distance:
    """Compare a branch with main, by files: reads only the manifests that they don't share."""
    base = branch_point(main, view)
    if base is None or head is None or theirs is None:
        return Distance(None, None)
    return Distance(_side(difference(view, base, theirs)), _side(difference(main, base, head)))


def _side(changed: Difference) -> Side:
    added, removed = (
        sum(e.file.row_count for files in part.values() for e in files.values())
        for part in (changed.added, changed.removed)
    )
    return Side(len(changed.buckets), added - removed)


@dataclass(frozen=True, slots=True)
class BranchFacts:
    """What a few small reads of a branch say."""

    head: Snapshot | None
    lineage: Lineage | None
    verified: bool
    checks: Mapping[str, str]


def branch_facts(main: Table, name: str) -> BranchFacts:
    """Read a branch's newest snapshot and its record."""
    sure, branch = verified_lineage(main, name), main.branch(name)
    head = branch.hinted_snapshot()
    checks = {} if head is None else outcomes_of(main, branch, head)
    return BranchFacts(head, sure or read_lineage(main, name), sure is not None, checks)


def show(context: PageContext) -> Panel:
    """Show a page of the branches."""
    wanted = [n for n in context.branches if context.asked.q.lower() in n.lower()]
    page, pages, first, last = context.page_of(len(wanted), _ROWS)
    shown = wanted[first:last]
    found, pending = _gather(context, shown)
    tags = context.reader.get(
        (context.uri, "tag names"), context.main.tag_names, until=context.until, fresh=FRESH_SECONDS
    )  # fmt: skip
    guarded = {branch for tag in tags if (branch := protects(tag)) is not None}
    rows = [_row(context, n, found.facts.get(n), found.far.get(n), found.states.get(n), n in guarded) for n in shown]
    sheet = Sheet(**without_empty(_COLUMNS, rows), total=len(wanted), page=page, pages=pages, search=context.asked.q,
                  empty="There is no branch but main")  # fmt: skip
    return Panel(sheets=[sheet], pending=pending)


@dataclass(frozen=True, slots=True)
class _Gathered:
    """What was read in time, by branch."""

    facts: Mapping[str, BranchFacts | PaimonError]
    far: Mapping[str, Distance | PaimonError]
    states: Mapping[str, Publishable | PaimonError]


def _gather(context: PageContext, names: Sequence[str]) -> tuple[_Gathered, bool]:
    main, uri, head = context.cached, context.uri, context.head
    reads = {(uri, "branch", n): partial(branch_facts, main, n) for n in names}
    read = context.reader.gather(reads, until=context.until, fresh=FRESH_SECONDS)
    facts = {n: read[key] for n in names if (key := (uri, "branch", n)) in read}
    jobs = {
        n: (
            (uri, "distance", n, head.identity, one.head.identity),
            partial(distance, main, main.branch(n), head, one.head),
        )
        for n, one in facts.items()
        if head and not isinstance(one, PaimonError) and one.head
    }
    done = context.reader.gather(dict(jobs.values()), until=context.until)
    far = {n: done[key] for n, (key, _) in jobs.items() if key in done}
    plans = {
        n: (
            (uri, "publishable", n, head.identity if head else "", one.head.identity),
            partial(publishable, main, n, context.now_ms),
        )
        for n, one in facts.items()
        if not isinstance(one, PaimonError) and one.head
    }
    planned = context.reader.gather(dict(plans.values()), until=context.until, fresh=_PLAN_SECONDS)
    states = {n: planned[key] for n, (key, _) in plans.items() if key in planned}
    unread = len(facts) < len(names) or len(far) < len(jobs) or len(states) < len(plans)
    return _Gathered(facts, far, states), unread


def _row(
    context: PageContext,
    name: str,
    facts: BranchFacts | PaimonError | None,
    far: Distance | PaimonError | None,
    state: Publishable | PaimonError | None,
    guarded: bool,
) -> list[Cell]:
    link = Cell(
        name, title=f"History of branch {name}", href=context.asked.href(tab="history", branch=name, page=1, q="")
    )
    if isinstance(facts, PaimonError):
        return [link, Cell("unreadable", title=facts.message, mark="bad"), *[text(None)] * (len(_COLUMNS) - 2)]
    if facts is None:
        return [link, *[Cell("…", mark="muted")] * (len(_COLUMNS) - 1)]
    made, head = facts.lineage, facts.head
    return [
        link,
        _state(made, head, state),
        _quiet(state),
        _checks_cell(facts.checks),
        shortened(made.owner if made else None, 18),
        text(made.reason if made else None),
        _origin(made, facts.verified),
        moment(made.created_ms if made else None, context.now_ms),
        moment(head.time_millis if head else None, context.now_ms),
        text(head.id if head else None),
        _side_cell(far, "ahead"),
        _side_cell(far, "behind"),
        _expires(made, context.now_ms),
        text((made.protected_by or "unknown") if made and made.protected else None),
        Cell("yes", mark="good") if guarded else Cell("no", mark="warn", title=_UNGUARDED) if made else text(None),
    ]


_UNGUARDED = "No tag on main keeps its files; see the tab Check"


def _origin(made: Lineage | None, verified: bool) -> Cell:
    if made is None:
        return Cell("unknown", mark="muted", title="Made by another engine: it keeps no record of where from")
    where = [] if made.from_branch == MAIN else [made.from_branch]
    where += [] if made.snapshot_id is None else [f"snapshot {made.snapshot_id}"]
    title = ", ".join([*where, f"tag {made.from_tag}"]) if made.from_tag else ""
    where += [f"tag {shortened(made.from_tag, 20, 8).text}"] if made.from_tag else []
    title = title if verified else "The record does not fit the branch that is there now"
    return Cell(", ".join(where) or "empty", title=title, mark="" if verified else "warn")


def _expires(made: Lineage | None, now_ms: int) -> Cell:
    end = made.expires_ms if made else None
    if made is None or end is None:
        return Cell("never", mark="muted")
    shown = moment(end, now_ms)
    late = end < now_ms and not made.protected
    return Cell(shown.text, title=f"{made.retention} after its creation", mark="warn" if late else "")


def _side_cell(far: Distance | PaimonError | None, which: str) -> Cell:
    if isinstance(far, PaimonError):
        return Cell("unreadable", title=far.message, mark="bad")
    side: Side | None = getattr(far, which, None)
    if side is None:
        return Cell("…" if far is None else "-", mark="muted", title="" if far is None else "They share no snapshot")
    if not side.buckets:
        return Cell("0", title="No bucket differs")
    noun = "bucket" if side.buckets == 1 else "buckets"
    if not side.rows:
        return Cell(f"{side.buckets:,} {noun}", title="As many stored rows as before: rows were changed")
    return Cell(f"{side.buckets:,} {noun}, {signed(side.rows)} stored rows")


def _state(made: Lineage | None, head: Snapshot | None, state: Publishable | PaimonError | None) -> Cell:
    if made is not None and made.state != TAKES_COMMITS:
        return Cell(made.state, mark="warn", title="It takes no commits; see the tab Check")
    if head is None:
        return Cell("empty", mark="muted", title="It has no snapshot to publish")
    if isinstance(state, PaimonError):
        return Cell("unreadable", title=state.message, mark="bad")
    if state is None:
        return Cell("…", mark="muted")
    return Cell(state.state, title=state.why, mark=_MARKS.get(state.state, "warn"))


def _quiet(state: Publishable | PaimonError | None) -> Cell:
    writers = state.writers if isinstance(state, Publishable) else {}
    if writers.get("effect"):
        return Cell("open now", title=writers["note"], mark="bad" if writers["effect"] == "refused" else "warn")
    since = _millis(writers["quiet_since"]) if writers.get("quiet_since") else None
    return text(None) if since is None else Cell(moment_text(since), title=writers["note"], whole_words=True)


_MARKS = {READY: "good", CONFLICT: "bad", CHECKS_FAILED: "bad", NOTHING_NEW: "muted"}


def _checks_cell(outcomes: Mapping[str, str]) -> Cell:
    if not outcomes:
        return text(None)
    counts = Counter(outcomes.values())
    shown = ", ".join(f"{counts[one]} {one}" for one in (FAILED, MISSING, WARNED, SKIPPED, PASSED) if counts[one])
    mark = "bad" if counts[FAILED] else "warn" if counts[MISSING] or counts[WARNED] else "good"
    return Cell(shown, title="; ".join(f"{name}: {outcome}" for name, outcome in outcomes.items()), mark=mark)


def _millis(iso: str) -> int:
    return round(datetime.fromisoformat(iso).timestamp() * 1000)
