"""The mark ``part``: of cases and tests that prove much the same, ``make test`` runs some, the same in each run.

``part(every=3)`` runs one in three of the cases of a test, ``part(few=2)`` two of them. ``together=True`` draws from
all tests of the class or module instead, ``group="streams"`` from all tests that name the group, whatever their files.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import pytest

from tests.randomness import chance, thorough


def leave_out(items: Iterable[pytest.Item]) -> None:
    """Mark as ``thorough``, which ``make test`` leaves out, what isn't drawn in this run.

    The seed of the run decides, so that every process of it draws the same.
    """
    if thorough():
        return
    groups: dict[str, list[tuple[pytest.Item, pytest.Mark]]] = {}
    for item in items:
        if mark := item.get_closest_marker("part"):
            groups.setdefault(_group(item, mark), []).append((item, mark))
    for name, members in groups.items():
        fewest = min(_number(mark, len(members)) for _, mark in members)
        chosen = drawn(name, [item.nodeid for item, _ in members], fewest)
        for item, _ in members:
            if item.nodeid not in chosen:
                item.add_marker("thorough")


def _group(item: pytest.Item, mark: pytest.Mark) -> str:
    if "group" in mark.kwargs:
        return str(mark.kwargs["group"])
    home = item.nodeid.removesuffix(f"::{item.name}")
    return home if mark.kwargs.get("together") else f"{home}::{getattr(item, 'originalname', item.name)}"


def _number(mark: pytest.Mark, cases: int) -> int:
    """How many of the cases run. A mark without ``every`` and ``few`` is a mistake."""
    return -(-cases // mark.kwargs["every"]) if "every" in mark.kwargs else int(mark.kwargs["few"])


def drawn(group: str, names: Collection[str], number: int) -> set[str]:
    """Choose ``number`` of the names, at least one, or all where there are no more."""
    return set(chance(f"part of {group}").sample(sorted(names), min(max(number, 1), len(names))))
