"""The picture of a history as SVG. Colours come from the style sheet; every text is escaped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from markupsafe import Markup, escape

from airflow_paimon.core.errors import first_few
from airflow_paimon.plugin.history_plan import Edge, Lane, Mark, Picture
from airflow_paimon.plugin.sheet import exact_text, signed, tick_texts
from airflow_paimon.shown.commit import PUBLISH, ROLLBACK, Commit

_LEFT, _TOP, _ROW, _RIGHT = 10, 30, 46, 40
"""Pixels; the style sheet gives the names of the lanes the same heights."""
_NARROWEST, _WIDEST, _PICTURE = 16, 44, 1056
_NAMED = 5
_DIGIT = 6
_TICK_WIDTH = 124

MarkLink = Callable[[str, Mark], str]


def draw(picture: Picture, link: MarkLink) -> Markup:
    """Draw a picture, without the names of its lanes. ``link`` gives the address behind a mark of a branch."""
    return _Drawing(picture).draw(link)


def describe(commit: Commit, branch: str) -> str:
    """Say all that there is to say of one commit, in lines."""
    what = f" ({commit.what})" if commit.what else ""
    lines = [f"{branch} {commit.id}: {commit.kind}{what}", exact_text(commit.millis)]
    if commit.total is not None or commit.rows is not None:
        total = "?" if commit.total is None else f"{commit.total:,}"
        lines.append(f"stored rows: {total} ({signed(commit.rows)})")
    lines += [f"rows: {commit.changed}"] if commit.changed else []
    lines += [f"user: {commit.user}"] if commit.user else []
    lines += [f"approved by: {commit.approved_by}"] if commit.approved_by else []
    lines += [f"tags: {_some(commit.tags)}"] if commit.tags else []
    lines += ["undo tag"] if commit.undo else []
    lines += ["expired: only a tag keeps it"] if commit.kept_by_tag else []
    return "\n".join(lines)


def describe_all(mark: Mark, branch: str) -> str:
    """Say what a mark stands for."""
    if len(mark.commits) == 1:
        return describe(mark.commits[0], branch)
    first, last = mark.commits[0], mark.commits[-1]
    kinds = Counter(c.kind for c in mark.commits)
    users = Counter(c.user for c in mark.commits)
    lines = [
        f"{branch}: {len(mark.commits):,} commits, {first.id} to {last.id}",
        f"{exact_text(first.millis)} to {exact_text(last.millis)}",
        ", ".join(f"{number:,} {kind}" for kind, number in kinds.most_common()),
        f"stored rows: {signed(sum(c.rows or 0 for c in mark.commits))}",
        f"users: {_some([user for user, _ in users.most_common()])}",
    ]
    roles = Counter(c.role for c in mark.commits)
    lines += [f"{roles[role]:,} {role}" for role in (PUBLISH, ROLLBACK) if roles[role]]
    tags = [tag for c in mark.commits for tag in c.tags]
    lines += [f"tags: {_some(tags)}"] if tags else []
    return "\n".join([*lines, "Open to zoom in"] if mark.since is not None else lines)


def _some(names: list[str] | tuple[str, ...]) -> str:
    return first_few(names, _NAMED)


class _Drawing:
    """The picture's measures: pixels of a column follow from their number."""

    def __init__(self, picture: Picture) -> None:
        self.picture = picture
        self.columns = max(1, len(picture.times))
        self.step = min(_WIDEST, max(_NARROWEST, _PICTURE // self.columns))
        self.width = _LEFT + self.columns * self.step + _RIGHT
        self.height = _TOP + len(picture.lanes) * _ROW + 8

    def draw(self, link: MarkLink) -> Markup:
        lanes = self.picture.lanes
        ticks = list(self._ticks())
        texts = tick_texts([self.picture.times[column] for column in ticks])
        parts = [self._tick(column, when) for column, when in zip(ticks, texts, strict=True)]
        parts += [self._lane(number, lane) for number, lane in enumerate(lanes)]
        parts += [self._edge(edge) for edge in self.picture.edges]
        parts += [self._mark(mark, lanes[mark.lane].name, link) for mark in self.picture.marks]
        return _element(
            "svg", *parts, viewBox=f"0 0 {self.width} {self.height}", width=self.width, height=self.height,
            role="group", aria_label=f"History of {len(lanes)} branches, {self.picture.total} commits",
            class_="history",
        )  # fmt: skip

    def _x(self, column: float) -> float:
        return _LEFT + (column + 0.5) * self.step

    def _ticks(self) -> range:
        fitting = max(1, self.columns - (_TICK_WIDTH - _RIGHT) // self.step)
        return range(0, min(fitting, len(self.picture.times)), max(1, -(-_TICK_WIDTH // self.step)))

    def _tick(self, column: int, when: str) -> Markup:
        x = self._x(column)
        line = _element("line", x1=x, x2=x, y1=_TOP - 8, y2=self.height, class_="tick")
        return Markup("").join([line, _element("text", when, x=x - 4, y=_TOP - 14, class_="time")])

    def _lane(self, number: int, lane: Lane) -> Markup:
        y = _y(number)
        fork = any(e.kind == "fork" and e.end[0] == number for e in self.picture.edges)
        first = _LEFT - 8 if lane.first < 0 else self._x(lane.first) + (self.step if fork else 0)
        last = max(self._x(max(lane.last, 0)), first)
        return _element("line", x1=first, x2=last, y1=y, y2=y, class_="line")

    def _edge(self, edge: Edge) -> Markup:
        (lane_1, column_1), (lane_2, column_2) = edge.start, edge.end
        x_1, y_1, x_2, y_2 = self._x(column_1), _y(lane_1), self._x(column_2), _y(lane_2)
        if edge.kind == ROLLBACK:
            path = f"M{x_1} {y_1} C{x_1} {y_1 - 26} {x_2} {y_2 - 26} {x_2} {y_2}"
        elif edge.kind == PUBLISH:
            path = f"M{x_1} {y_1} C{x_2} {y_1} {x_2} {y_1} {x_2} {y_2}"
        else:
            path = f"M{x_1} {y_1} C{x_1} {y_2} {x_1} {y_2} {x_1 + self.step} {y_2}"
        return _element("path", _element("title", edge.title), d=path, class_=f"edge {edge.kind}")

    def _mark(self, mark: Mark, branch: str, link: MarkLink) -> Markup:
        x, y, title = self._x(mark.column), _y(mark.lane), describe_all(mark, branch)
        shape = _single(mark.role, x, y) if len(mark.commits) == 1 else _pill(mark, x, y, self.step)
        undo = any(c.undo for c in mark.commits)
        flag = _flag(x, y, undo) if undo or any(c.tags for c in mark.commits) else Markup("")
        return _element("a", _element("title", title), shape, flag, href=link(branch, mark), aria_label=title)


def _y(lane: int) -> float:
    return _TOP + (lane + 0.5) * _ROW


def _pill(mark: Mark, x: float, y: float, room: int) -> Markup:
    many = len(mark.commits)
    count = f"{many}" if many < 1000 else f"{many // 1000}k"
    box = _element("rect", x=x - 7, y=y - 11, width=14, height=22, rx=5, class_=f"pill {mark.role}")
    if len(count) * _DIGIT > room:
        return box
    return Markup("").join([box, _element("text", count, x=x, y=y + 21, class_="count")])


def _single(role: str, x: float, y: float) -> Markup:
    if role == PUBLISH:
        return _element("path", d=f"M{x} {y - 8} L{x + 8} {y} L{x} {y + 8} L{x - 8} {y} Z", class_=f"dot {role}")
    if role == ROLLBACK:
        return _element("path", d=f"M{x - 7} {y} L{x + 6} {y - 7} L{x + 6} {y + 7} Z", class_=f"dot {role}")
    return _element("circle", cx=x, cy=y, r=4 if role == "compact" else 5.5, class_=f"dot {role}")


def _flag(x: float, y: float, undo: bool) -> Markup:
    path = f"M{x} {y - 10} V{y - 20} L{x + 8} {y - 17} L{x} {y - 14}"
    return _element("path", d=path, class_="flag undo" if undo else "flag")


def _element(name: str, *children: Markup | str, **attributes: str | float) -> Markup:
    """One element; names of attributes spell ``_`` for ``-``, texts are escaped."""
    shown = "".join(f' {k.rstrip("_").replace("_", "-")}="{escape(v)}"' for k, v in attributes.items())
    inner = "".join(str(escape(child)) for child in children)
    return Markup(f"<{name}{shown}>{inner}</{name}>")
