"""The layout of a table's history: commits of every branch on lanes, folded until they fit. Pure.

Every commit has the same width, whatever the time between two: a night with forty commits is as readable as a month
with four. When there are more commits than columns, neighbours share one; publishes, rollbacks and the points where
branches part keep one of their own as long as there is room.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from airflow_paimon.shown.commit import PUBLISH, ROLLBACK, Commit

_COLUMNS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneInput:
    """All commits of a branch, ascending, those included that it shares with its ``parent``."""

    name: str
    commits: Sequence[Commit]
    parent: str | None = None
    owner: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One commit or several neighbours of a lane. ``since`` and ``until`` zoom into them; None: nothing to unfold."""

    lane: int
    column: int
    commits: tuple[Commit, ...]
    since: int | None = None
    until: int | None = None

    @property
    def role(self) -> str:
        """What it is drawn as: the most telling role among its commits."""
        roles = Counter(c.role for c in self.commits)
        return next((r for r in (PUBLISH, ROLLBACK, "unreadable") if r in roles), roles.most_common(1)[0][0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """``kind``: fork, publish or rollback. A column of -1 is what lies before the picture."""

    kind: str
    start: tuple[int, int]
    end: tuple[int, int]
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """A branch's line. ``first`` and ``last``: the columns that it spans."""

    name: str
    title: str
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """``times``: of each column's first commit. ``total``: commits in range, ``folded`` when some share a column."""

    lanes: tuple[Lane, ...] = ()
    marks: tuple[Mark, ...] = ()
    edges: tuple[Edge, ...] = ()
    times: tuple[int, ...] = ()
    total: int = 0
    folded: bool = False


@dataclass(frozen=True, slots=True)
class _Placed:
    """A commit of a lane, in the order of time."""

    millis: int
    lane: int
    commit: Commit


@dataclass(slots=True)
class _Own:
    """What a branch has of its own, and where it parted from its parent: ``fork`` is the last shared snapshot's id."""

    commits: list[Commit]
    parent: int | None = None
    fork: int | None = None
    columns: dict[int, int] = field(default_factory=dict)


def lay_out(
    lanes: Sequence[LaneInput], since: int | None = None, until: int | None = None, columns: int = _COLUMNS
) -> Picture:
    """Lay out the commits with ``since`` <= time <= ``until``. The first lane is main's."""
    own = _own_commits(lanes)
    placed = sorted(
        (_Placed(c.millis, i, c) for i, o in enumerate(own) for c in o.commits
         if (since is None or c.millis >= since) and (until is None or c.millis <= until)),
        key=lambda p: (p.millis, p.lane, p.commit.id),
    )  # fmt: skip
    forks = {(o.parent, o.fork) for o in own if o.parent is not None}
    special = [
        p.commit.role in (PUBLISH, ROLLBACK, "unreadable") or p.commit.undo or (p.lane, p.commit.id) in forks
        for p in placed
    ]
    slots = _fold(special, columns)
    marks: list[Mark] = []
    times = []
    for column, (first, last) in enumerate(slots):
        times.append(placed[first].millis)
        marks += _marks(placed[first:last], column, own)
    return Picture(
        lanes=tuple(_lane(given, i, own) for i, given in enumerate(lanes)),
        marks=tuple(marks),
        edges=tuple(_edges(lanes, own)),
        times=tuple(times),
        total=len(placed),
        folded=len(slots) < len(placed),
    )


def _own_commits(lanes: Sequence[LaneInput]) -> list[_Own]:
    at = {lane.name: i for i, lane in enumerate(lanes)}
    known: dict[int, Mapping[int, str]] = {}
    out = []
    for lane in lanes:
        parent = at.get(lane.parent) if lane.parent is not None else None
        if parent is None:
            out.append(_Own(list(lane.commits)))
            continue
        theirs = known.setdefault(parent, {c.id: c.identity for c in lanes[parent].commits})
        shared = [c.id for c in lane.commits if theirs.get(c.id) == c.identity]
        fork = max(shared, default=None)
        out.append(_Own([c for c in lane.commits if fork is None or c.id > fork], parent, fork))
    return out


def _fold(special: Sequence[bool], columns: int) -> list[tuple[int, int]]:
    """Cut the sequence into at most ``columns`` slots, as (first, behind the last)."""
    count = len(special)
    if count <= columns:
        return [(i, i + 1) for i in range(count)]
    alone = [i for i, s in enumerate(special) if s]
    if 2 * len(alone) + 1 > columns:
        return [(i * count // columns, (i + 1) * count // columns) for i in range(columns)]
    ends = [*alone, count]
    stretches = [(a, b) for a, b in zip([0, *(i + 1 for i in alone)], ends, strict=True) if b > a]
    shares = _shares([b - a for a, b in stretches], columns - len(alone))
    slots = [(i, i + 1) for i in alone]
    for (first, last), share in zip(stretches, shares, strict=True):
        width = last - first
        slots += [(first + k * width // share, first + (k + 1) * width // share) for k in range(share)]
    return sorted(slots)


def _shares(sizes: Sequence[int], places: int) -> list[int]:
    """Give each stretch at least one place and at most its size, the rest by size. There are places for all."""
    total = sum(sizes)
    shares = [max(1, min(size, size * places // total)) for size in sizes]
    for i in sorted(range(len(sizes)), key=lambda i: -shares[i]):
        over = sum(shares) - places
        if over <= 0:
            break
        shares[i] -= min(over, shares[i] - 1)
    return shares


def _marks(some: Sequence[_Placed], column: int, own: list[_Own]) -> Iterable[Mark]:
    by_lane: dict[int, list[Commit]] = {}
    for placed in some:
        by_lane.setdefault(placed.lane, []).append(placed.commit)
        own[placed.lane].columns[placed.commit.id] = column
    since, until = some[0].millis, some[-1].millis
    unfolds = len(some) > 1 and since < until
    for lane, commits in by_lane.items():
        zoom = {"since": since, "until": until} if unfolds else {}
        yield Mark(lane=lane, column=column, commits=tuple(commits), **zoom)


def _lane(given: LaneInput, number: int, own: Sequence[_Own]) -> Lane:
    mine = own[number]
    columns = list(mine.columns.values())
    start = own[mine.parent].columns.get(mine.fork, -1) if mine.parent is not None and mine.fork is not None else -1
    facts = [f"branch {given.name}"]
    facts += [f"owner: {given.owner}"] if given.owner else []
    facts += [f"reason: {given.reason}"] if given.reason else []
    first = (
        start
        if start >= 0
        else -1
        if mine.commits and mine.commits[0].id not in mine.columns
        else min(columns, default=-1)
    )
    return Lane(name=given.name, title="\n".join(facts), first=first, last=max([*columns, start]))


def _edges(lanes: Sequence[LaneInput], own: Sequence[_Own]) -> Iterable[Edge]:
    at = {lane.name: i for i, lane in enumerate(lanes)}
    for number, mine in enumerate(own):
        fork = own[mine.parent].columns.get(mine.fork) if mine.parent is not None and mine.fork is not None else None
        if fork is not None and mine.parent is not None:
            first = min(mine.columns.values(), default=fork)
            title = f"{lanes[number].name} parted from {lanes[mine.parent].name} at snapshot {mine.fork}"
            yield Edge(kind="fork", start=(mine.parent, fork), end=(number, first), title=title)
        commits = {c.id: c for c in mine.commits}
        for commit_id, column in mine.columns.items():
            yield from _joins(commits[commit_id], (number, column), at, own)


def _joins(commit: Commit, place: tuple[int, int], at: Mapping[str, int], own: Sequence[_Own]) -> Iterable[Edge]:
    lane = place[0]
    if commit.role == PUBLISH and commit.source in at and commit.source_id is not None:
        source = at[commit.source]
        column = own[source].columns.get(commit.source_id)
        if column is not None and source != lane:
            title = f"{commit.what}, snapshot {commit.source_id}, as snapshot {commit.id}"
            yield Edge(kind=PUBLISH, start=(source, column), end=place, title=title)
    if commit.role == ROLLBACK and commit.target is not None:
        column = own[lane].columns.get(commit.target)
        if column is not None and column != place[1]:
            title = f"{commit.what}, as snapshot {commit.id}"
            yield Edge(kind=ROLLBACK, start=(lane, column), end=place, title=title)
