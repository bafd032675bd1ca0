"""The tab History: the picture, the commits of its range as a table, and one commit in full."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.table import Table
from airflow_paimon.plugin.history import read_lanes
from airflow_paimon.plugin.history_plan import LaneInput, Mark, Picture, lay_out
from airflow_paimon.plugin.history_svg import draw
from airflow_paimon.plugin.panel import PageContext, Panel
from airflow_paimon.plugin.reading import FRESH_SECONDS
from airflow_paimon.plugin.sheet import Sheet, moment
from airflow_paimon.shown.commit import Commit
from airflow_paimon.shown.commits import commits

_LANES = 24
_ROWS = 50
_DAY = 86_400_000
_RANGES = ((_DAY, "24 hours"), (7 * _DAY, "7 days"), (30 * _DAY, "30 days"), (365 * _DAY, "1 year"))


def show(context: PageContext) -> Panel:
    """Show the history of main and the first branches, the chosen one among them."""
    query, chosen = context.query, context.view.branch_name
    drawn = list(context.branches[: _LANES - 1])
    if chosen != MAIN and chosen not in drawn:
        drawn[-1:] = [chosen]
    lanes, missing = read_lanes(context.reader, context.main, drawn, context.deadline)
    picture = lay_out(lanes, query.since, query.until)
    notes = []
    if missing:
        notes.append(f"{missing:,} more snapshots are being read.")
    if len(drawn) < len(context.branches):
        notes.append(f"{len(context.branches) - len(drawn):,} more branches are not drawn; choose one to see it.")
    sheet = _commits(context, lanes)
    data = {
        "svg": draw(picture, lambda branch, mark: _link(context, branch, mark)),
        "lanes": [(lane, query.href(branch=lane.name, page=1, at=""), lane.name == chosen) for lane in picture.lanes],
        "ranges": _ranges(context, picture),
        "summary": _summary(picture),
        "detail": _detail(context, notes) if query.at else None,
    }
    return Panel(template="history.html", sheets=[sheet], notes=notes, data=data, pending=missing > 0)


def _link(context: PageContext, branch: str, mark: Mark) -> str:
    if len(mark.commits) > 1 and mark.since is not None:
        return context.query.href(since=mark.since, until=mark.until, page=1, at="")
    return context.query.href(at=f"{branch}:{mark.commits[-1].id}")


def _summary(picture: Picture) -> str:
    folded = ": neighbours are folded, open a pill to zoom in" if picture.folded else ""
    return f"{picture.total:,} commit{'' if picture.total == 1 else 's'}{folded}"


def _ranges(context: PageContext, picture: Picture) -> list[dict[str, object]]:
    """The ranges to choose from, and the neighbours of the one that is shown."""
    query, out = context.query, []
    everything = query.since is None and query.until is None
    out.append({"name": "All", "href": query.href(since=None, until=None, page=1), "now": everything})
    for length, name in _RANGES:
        out.append({"name": name, "href": query.href(since=context.now_ms - length, until=None, page=1), "now": False})
    if query.since is not None:
        end = query.until if query.until is not None else context.now_ms
        span = max(end - query.since, 1000)
        earlier = query.href(since=max(0, query.since - span), until=query.since, page=1)
        out.append({"name": "← Earlier", "href": earlier, "now": False})
        wider = query.href(since=max(0, query.since - span), until=end + span, page=1)
        out.append({"name": "Zoom out", "href": wider, "now": False})
        if query.until is not None:
            out.append({"name": "Later →", "href": query.href(since=end, until=end + span, page=1), "now": False})
    return out


def _commits(context: PageContext, lanes: Sequence[LaneInput]) -> Sheet:
    """The commits of the range on the chosen branch, on all of them when that is main; the newest first."""
    query, chosen = context.query, context.view.branch_name
    found = [
        (lane.name, c)
        for lane in lanes
        if chosen in (MAIN, lane.name)
        for c in lane.commits
        if (query.since is None or c.millis >= query.since) and (query.until is None or c.millis <= query.until)
    ]
    if chosen == MAIN:
        found = _once(found)
    found.sort(key=lambda one: (one[1].millis, one[1].id), reverse=True)

    def detail(row: Mapping[str, Any]) -> str:
        return query.href(at=f"{row['branch']}:{row['snapshot']}")

    listing = commits(found, several=True)
    whole = query.since is None and query.until is None
    empty = "No commits yet: nothing was written" if whole else "No commits in this range; All shows the others"
    sheet = context.sheet(listing, empty=empty, size=_ROWS, search=False,
                          links={"snapshot": detail})  # fmt: skip
    return replace(sheet, title="Commits")


def _once(found: list[tuple[str, Commit]]) -> list[tuple[str, Commit]]:
    """A commit that branches share is listed once, with the first lane that has it."""
    seen: dict[tuple[int, str], tuple[str, Commit]] = {}
    for branch, commit in found:
        seen.setdefault((commit.id, commit.identity or branch), (branch, commit))
    return list(seen.values())


def _find(view: Table, wanted: int) -> Snapshot | None:
    return view.find_snapshot(wanted) or next((t.snapshot for t in view.tags() if t.snapshot.id == wanted), None)


def _detail(context: PageContext, notes: list[str]) -> dict[str, object] | None:
    """One snapshot in full, of a branch that is there. A snapshot that has expired may live on in a tag."""
    branch, _, given = context.query.at.rpartition(":")
    if branch not in (MAIN, *context.branches) or not given.isascii() or not given.isdigit() or len(given) > 18:
        notes.append(f"{context.main.name} has no snapshot {context.query.at!r}")
        return None
    view, wanted = context.main.branch(branch), int(given)
    found = context.reader.get(
        (context.uri, "one", branch, wanted),
        partial(_find, view, wanted),
        deadline=context.deadline,
        fresh=FRESH_SECONDS,
    )
    if found is None:
        notes.append(f"{view.label} has no snapshot {wanted}: it expired, or never was")
        return None
    shown = {k: v for k, v in found.to_json().items() if k != "properties"}
    return {
        "title": f"Snapshot {wanted} of {branch}",
        "rows": [(k, str(v)) for k, v in [*sorted(found.properties.items()), *shown.items()]],
        "when": moment(found.time_millis, context.now_ms),
        "close": context.query.href(at=""),
    }
