"""The tab History: the picture, the commits of its range as a table, and one commit in full.

The snapshots and tags of the branches are read in parts, each part once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from airflow_paimon.core.errors import FormatError, NotFoundError, PaimonError
from airflow_paimon.core.format.snapshot import Snapshot, Tag
from airflow_paimon.core.table.branch_record import read_branch_record
from airflow_paimon.core.table.paths import MAIN, SNAPSHOT_PREFIX, UNDO_TAG_PREFIX, numbered, protects
from airflow_paimon.core.table.table import Table
from airflow_paimon.plugin.history_plan import LaneInput, Mark, Picture, lay_out
from airflow_paimon.plugin.history_svg import draw
from airflow_paimon.plugin.panel import PageContext, Panel
from airflow_paimon.plugin.reading import FRESH_SECONDS
from airflow_paimon.plugin.sheet import Sheet, moment
from airflow_paimon.shown.commit import UNREADABLE, Commit
from airflow_paimon.shown.commits import commit_of, commits

_PART = 500
_BYTES = 700
"""About what one commit holds in memory."""
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
    lanes, missing = _read_lanes(context, drawn)
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
    found = context.read("one", branch, wanted, make=partial(_find, view, wanted))
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


# -- what is read ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Outline:
    """What a branch holds, by listings: its snapshots as (id, size, modified), its tags, where it came from."""

    files: Sequence[tuple[int, int, int | None]]
    tags: Sequence[Tag]
    parent: str | None
    owner: str
    reason: str


def _outline(main: Table, branch: str) -> _Outline:
    """List a branch. Size and time tell a snapshot from another one that got its id after a rollback elsewhere."""
    view = main.branch(branch)
    found = {e.name: e for e in view.store.list(view.paths.snapshot_dir) if not e.is_dir}
    ids = [i for i in numbered(list(found), SNAPSHOT_PREFIX) if i > 0]
    files = [(i, e.size, e.modified_ms) for i in ids for e in (found[f"{SNAPSHOT_PREFIX}{i}"],)]
    made = None if branch == MAIN else read_branch_record(main, branch)
    parent = None if branch == MAIN else made.from_branch if made else MAIN
    return _Outline(files, view.tags(), parent, (made.owner if made else "") or "", (made.reason if made else "") or "")


def _read_lanes(context: PageContext, branches: Sequence[str]) -> tuple[list[LaneInput], int]:
    """Read the lanes of main and these branches, the newest snapshots first; and how many snapshots are still to come.

    Raises:
        PaimonError: main can't be listed.
    """
    main, reader, uri, deadline = context.main, context.reader, context.uri, context.deadline
    names = [MAIN, *branches]
    outlines = reader.gather(
        {(uri, "outline", n): partial(_outline, main, n) for n in names}, deadline=deadline, fresh=FRESH_SECONDS,
        weigh=lambda found: 200 * len(found.files) + 1500 * len(found.tags),
    )  # fmt: skip
    parts: dict[tuple[object, ...], tuple[Table, list[int]]] = {}
    for name in names:
        found = outlines.get((uri, "outline", name))
        if isinstance(found, PaimonError) and name == MAIN:
            raise found
        if isinstance(found, _Outline):
            view = main.branch(name)
            for chunk in _parts(found.files):
                parts[(uri, "commits", name, tuple(chunk))] = (view, [i for i, _, _ in chunk])
    jobs = {key: partial(_read_commits, view, ids) for key, (view, ids) in parts.items()}
    read = reader.gather(jobs, deadline=deadline, weigh=lambda commits: _BYTES * len(commits))
    missing = sum(len(ids) for key, (_, ids) in parts.items() if key not in read)
    lanes = []
    for name in names:
        about = outlines.get((uri, "outline", name))
        if about is None:
            missing += 1
        if isinstance(about, _Outline):
            commits = [c for key, got in read.items() if key[2] == name and isinstance(got, list) for c in got]
            lanes.append(_lane(name, about, commits))
    return lanes, missing


def _parts(files: Sequence[tuple[int, int, int | None]]) -> list[list[tuple[int, int, int | None]]]:
    """Parts with borders at fixed ids, so that a new snapshot changes only the newest part; the newest part first."""
    out: dict[int, list[tuple[int, int, int | None]]] = {}
    for one in files:
        out.setdefault(one[0] // _PART, []).append(one)
    return [out[number] for number in sorted(out, reverse=True)]


def _read_commits(view: Table, ids: list[int]) -> list[Commit]:
    """Read snapshots; one that expires meanwhile is left out, one that can't be read says so."""
    try:
        return [commit_of(s) for s in view.snapshots(ids)]
    except (FormatError, NotFoundError):
        return [c for i in ids if (c := _one(view, i)) is not None]


def _one(view: Table, snapshot_id: int) -> Commit | None:
    try:
        return commit_of(view.snapshot(snapshot_id))
    except NotFoundError:
        return None
    except FormatError as error:
        return Commit(id=snapshot_id, millis=0, kind=UNREADABLE, operation=error.message)


def _lane(name: str, about: _Outline, commits: Sequence[Commit]) -> LaneInput:
    """Return a lane: tags are flags on commits, a tag whose snapshot has expired is drawn as a commit of its own.

    Tags that only protect a branch are left out.
    """
    by_id = {c.id: c for c in commits}
    listed = {i for i, _, _ in about.files}
    for tag in about.tags:
        if tag.snapshot.id not in listed:
            by_id.setdefault(tag.snapshot.id, replace(commit_of(tag.snapshot), kept_by_tag=True))
        found = by_id.get(tag.snapshot.id)
        if found is None or protects(tag.name) is not None:
            continue
        undo = tag.name.startswith(UNDO_TAG_PREFIX)
        by_id[found.id] = replace(found, tags=(*found.tags, tag.name), undo=found.undo or undo)
    ordered, before = [], 0
    for commit_id in sorted(by_id):
        commit = by_id[commit_id]
        before = commit.millis or before
        ordered.append(commit if commit.millis else replace(commit, millis=before))
    return LaneInput(name=name, commits=ordered, parent=about.parent, owner=about.owner, reason=about.reason)
