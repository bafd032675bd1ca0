"""Find which columns of which views each column of a query is computed from, in the text of Spark's analyzed plan.

The text, since a plan as JSON takes Spark a hundred times as long. In it a column is ``name#id``, and ``expression AS
name#id`` defines one. What this does not understand (a subquery in an expression, a user's function) makes a column
unknown, which is left out: a source is never guessed.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_paimon.spark.plan_text import analyzed_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)

SWITCH = "spark.airflow_paimon.columnSources"
"""The session's setting that leaves the sources of a query's columns out of the result."""
_MOST_COLUMNS, _MOST_SOURCES = 200, 20
_ID = re.compile(r"#(\d+)L?")
_DEFINED = re.compile(r"(.*?) AS (.*)#(\d+)L?", re.DOTALL)
_ATTRIBUTE = re.compile(r".*#(\d+)L?", re.DOTALL)
_GENERATED = re.compile(r"Generate (.*), (?:true|false), .*\[(.*)\]")
_CTE = re.compile(r"CTERelationRef (\d+), .*?\[(.*?)\]")
_CTE_DEFINED = re.compile(r"CTERelationDef (\d+),")
_SAME_COLUMNS = frozenset((
    "SubqueryAlias", "Filter", "Sort", "Distinct", "Deduplicate", "GlobalLimit", "LocalLimit", "Offset",
    "CTERelationDef", "WithCTE", "Union",
))  # fmt: skip
_LEVEL = 3
_UNKNOWN = -1


def column_sources(rows: DataFrame, views: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Return for each column of a query the columns it is computed from, as ``view.column``; those that are known.

    ``views``: the columns of each view, in order. Empty where Spark shows no plan (Spark Connect), where there are very
    many columns, and where the session's setting ``SWITCH`` is false: a cold session takes 30 to 50 ms for it.
    """
    if str(rows.sparkSession.conf.get(SWITCH, "true")).lower() == "false":
        return {}
    names = list(rows.columns)
    text = analyzed_text(rows)
    if text is None or len(names) > _MOST_COLUMNS:
        return {}
    return sources_in(text, names, views)


def sources_in(text: str, names: Sequence[str], views: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Do that for the text of a plan whose columns are ``names``."""
    if any(_ID.search(name) for columns in (names, *views.values()) for name in columns):
        return {}
    try:
        plan = _ColumnPlan(_nodes(text), views)
        top = plan.output(0)
        if top is None or len(top) != len(names):
            return {}
        found = {name: plan.sources(number, frozenset()) for name, number in zip(names, top, strict=True)}
    except (ValueError, IndexError, RecursionError) as error:  # a plan of another form: the correction is what counts
        log.debug("No column lineage: %r", error)
        return {}
    return {n: sorted(s) for n, s in found.items() if s and len(s) <= _MOST_SOURCES}


@dataclass(frozen=True, slots=True)
class _Node:
    depth: int
    text: str

    @property
    def name(self) -> str:
        return self.text.partition(" ")[0]


def _nodes(text: str) -> list[_Node]:
    found = [_Node(len(line) - len(line.lstrip(" :+-")), line.lstrip(" :+-")) for line in text.splitlines() if line]
    if any(node.depth == 0 or node.depth % _LEVEL for node in found[1:]):
        raise ValueError("a literal of several lines")
    return found


@dataclass
class _ColumnPlan:
    nodes: list[_Node]
    views: Mapping[str, Sequence[str]]
    columns: dict[int, str] = field(default_factory=dict)
    defined: dict[int, set[int]] = field(default_factory=dict)
    joined: dict[int, set[int]] = field(default_factory=dict)
    """What the other sides of a union add to a column of its first side."""

    def __post_init__(self) -> None:
        below: int | None = None
        for at, node in enumerate(self.nodes):
            if below is not None and node.depth > below:
                continue  # how a view is read
            below = node.depth if self._view(node) else None
            self._define(at, node)

    def _view(self, node: _Node) -> bool:
        if node.name != "View":
            return False
        for view, names in self.views.items():
            listed = ", ?".join(re.escape(name) + r"#(\d+)L?" for name in names)
            match = re.fullmatch(rf"View \(`{re.escape(view)}`, \[{listed}\]\)", node.text)
            if match:
                self.columns |= {int(n): f"{view}.{name}" for n, name in zip(match.groups(), names, strict=True)}
                return True
        return False

    def _define(self, at: int, node: _Node) -> None:
        if node.name in ("Project", "Aggregate", "Window"):
            for item in (i for part in _lists(node.text) for i in _split(part)):
                match = _DEFINED.fullmatch(item)
                if match and not _ID.search(match[2]):
                    self.defined[int(match[3])] = set(_ids(match[1]))
        elif node.name == "Union":
            self._join([self.output(child) for child in self._children(at)])
        elif node.name == "CTERelationRef" and (match := _CTE.match(node.text)):
            here = [*_ids(match[2])]
            pairs = zip(here, _as_many(here, self._common_table(match[1])), strict=True)
            self.defined |= {number: {other} for number, other in pairs if number != other}
        elif node.name == "Generate" and (match := _GENERATED.fullmatch(node.text)):
            self.defined |= {number: set(_ids(match[1])) for number in _ids(match[2])}

    def _join(self, sides: Sequence[list[int] | None]) -> None:
        first = sides[0] or []
        for other in sides[1:]:
            for number, more in zip(first, _as_many(first, other), strict=True):
                self.joined.setdefault(number, set()).add(more)

    def _common_table(self, number: str) -> list[int] | None:
        for at, node in enumerate(self.nodes):
            if (match := _CTE_DEFINED.match(node.text)) and match[1] == number:
                return self.output(at)
        return None

    def _children(self, at: int) -> list[int]:
        depth, found = self.nodes[at].depth, []
        for i in range(at + 1, len(self.nodes)):
            if self.nodes[i].depth <= depth:
                break
            if self.nodes[i].depth == depth + _LEVEL:
                found.append(i)
        return found

    def output(self, at: int) -> list[int] | None:
        """Return the ids of a node's columns, in order; None if they are not known."""
        node = self.nodes[at]
        if node.name in ("Project", "Aggregate"):
            return [int(m[1]) if (m := _ATTRIBUTE.fullmatch(i)) else _UNKNOWN for i in _split(_lists(node.text)[-1])]
        if node.name == "View":
            return [*_ids(node.text)]
        if node.name == "CTERelationRef" and (match := _CTE.match(node.text)):
            return [*_ids(match[2])]
        children = self._children(at)
        if node.name not in _SAME_COLUMNS or not children:
            return None
        return self.output(children[0 if node.name != "WithCTE" else -1])

    def sources(self, number: int, seen: frozenset[int]) -> frozenset[str] | None:
        """Return the view columns that a column comes from; None if one of them is not known."""
        if number in seen:
            return frozenset()
        own = self.columns.get(number)
        if own is None and number not in self.defined:
            return None
        found = frozenset((own,)) if own is not None else frozenset()
        for other in self.joined.get(number, set()) | (self.defined[number] if own is None else set()):
            part = self.sources(other, seen | {number})
            if part is None:
                return None
            found |= part
        return found


def _as_many(columns: list[int], others: list[int] | None) -> list[int]:
    return others if others is not None and len(others) == len(columns) else [_UNKNOWN] * len(columns)


def _ids(text: str) -> Iterator[int]:
    return (int(n) for n in _ID.findall(text))


def _lists(text: str) -> list[str]:
    """Return the contents of a node's lists, ``[...]``."""
    return [part[1:-1] for part in _split(text.partition(" ")[2]) if part.startswith("[") and part.endswith("]")]


def _split(text: str) -> list[str]:
    """Split at commas outside of all brackets."""
    depth, start, parts = 0, 0, []
    for at, letter in enumerate(text):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0 and text[at + 1 : at + 2] == " ":
            parts.append(text[start:at])
            start = at + 2
    if depth:
        raise ValueError("a literal with brackets")
    return [*parts, text[start:]] if text else []
