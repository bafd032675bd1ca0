"""The grid of a chain table: groups down, days across, one cell for what a day of a group is. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from airflow_paimon.core.chain.layout import ChainLayout, Values
from airflow_paimon.core.chain.read_plan import GroupReport

MEANINGS = {
    "full": "full partition",
    "both": "full partition, and a delta that is part of it",
    "delta": "delta: a read merges it with what is before it",
    "stale": "stale: the full partition differs from its deltas; rebuild it",
    "hidden": "hidden: the full partition is older than its delta, and readers see only the full partition; rebuild it",
    "main": "only on main: not a part of the chain",
    "gap": "gap: in no branch",
    "none": "outside of the group's range",
}
SIGNS = {"full": "F", "both": "F", "delta": "d", "stale": "!", "hidden": "h", "main": "m", "gap": "·", "none": ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class Day:
    """One cell."""

    state: str
    title: str

    @property
    def sign(self) -> str:
        """A letter, for those who don't see colours."""
        return SIGNS[self.state]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One group. ``trouble``: partitions that no time fits, in words."""

    name: str
    days: tuple[Day, ...]
    trouble: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """``heads``: the days, ascending; page 1 holds the newest."""

    heads: tuple[str, ...]
    lines: tuple[Line, ...]
    page: int
    pages: int


def lay_out_grid(
    layout: ChainLayout,
    groups: Sequence[GroupReport],
    stale: dict[Values, str],
    hidden: set[str],
    *,
    page: int,
    width: int,
) -> Grid:
    """Lay out a page of days for these groups. ``hidden``: partitions by their text."""
    states = [_states(layout, group, stale, hidden) for group in groups]
    moments = sorted({moment for group in states for moment in group})
    pages = max(1, -(-len(moments) // width))
    page = min(max(1, page), pages)
    end = len(moments) - (page - 1) * width
    shown = moments[max(0, end - width) : end]
    lines = tuple(_line(layout, g, s, shown) for g, s in zip(groups, states, strict=True))
    heads = tuple("/".join(layout.clock.texts_at(moment)) for moment in shown)
    return Grid(heads=heads, lines=lines, page=page, pages=pages)


def _states(
    layout: ChainLayout, group: GroupReport, stale: dict[Values, str], hidden: set[str]
) -> dict[datetime, tuple[str, str]]:
    """The state of each day of a group, and what there is to say of it."""
    full, delta, main = set(group.snapshot), set(group.delta), set(group.main)
    out: dict[datetime, tuple[str, str]] = {}
    for values in (*(group.gaps or ()), *group.main, *group.delta, *group.snapshot):
        moment = layout.parsed_time(values)
        if moment is None:
            continue
        text = layout.text_of(values)
        if values in stale:
            out[moment] = ("stale", f"{text}\nstale: {stale[values]}")
        elif text in hidden:
            out[moment] = ("hidden", f"{text}\n{MEANINGS['hidden']}")
        else:
            state = _state(values, full, delta, main)
            out[moment] = (state, f"{text}\n{MEANINGS[state]}")
    return out


def _state(values: Values, full: set[Values], delta: set[Values], main: set[Values]) -> str:
    if values in full:
        return "both" if values in delta else "full"
    if values in delta:
        return "delta"
    return "main" if values in main else "gap"


def _line(
    layout: ChainLayout, group: GroupReport, states: dict[datetime, tuple[str, str]], shown: Sequence[datetime]
) -> Line:
    name = layout.group_text(group.group) or "all"
    empty = ("none", MEANINGS["none"])
    days = tuple(Day(state=s, title=f"{name}: {t}") for s, t in (states.get(m, empty) for m in shown))
    odd = [*group.misspelt, *group.without_time]
    trouble = f"{len(odd)} partitions that no time fits, such as {layout.text_of(odd[0])}" if odd else ""
    trouble = trouble or ("the range is too long to search for gaps" if group.gaps is None else "")
    return Line(name=name, days=days, trouble=trouble)
