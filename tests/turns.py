"""Tests that take turns: of a group that proves much the same, or of the cases of one test, each run has a few."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import pytest

from tests.randomness import chance


def take_turns(items: Iterable[pytest.Item]) -> None:
    """Mark as ``thorough``, which ``make test`` leaves out, the tests whose turn it isn't in this run.

    ``pytest.mark.turn("group")`` names a group, over any files; without a name it is the cases of one test. ``few`` of
    a group run, one if it isn't said, and the seed of the run chooses which: every process chooses the same.
    """
    groups: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if mark := item.get_closest_marker("turn"):
            groups[mark.args[0] if mark.args else item.nodeid.partition("[")[0]].append(item)
    for name, members in groups.items():
        few = min(member.get_closest_marker("turn").kwargs.get("few", 1) for member in members)  # type: ignore[union-attr]
        run = on_turn(name, (member.nodeid for member in members), few)
        for member in members:
            if member.nodeid not in run:
                member.add_marker("thorough")


def on_turn(group: str, names: Iterable[str], few: int) -> set[str]:
    """Choose ``few`` of the names, or all where there are no more."""
    known = sorted(names)
    return set(chance(f"turn of {group}").sample(known, min(few, len(known))))
