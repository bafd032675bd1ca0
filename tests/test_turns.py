"""Which tests of a group run: so many, the same in each process, and each of them in some run."""

from __future__ import annotations

import pytest

from tests.randomness import VARIABLE
from tests.turns import on_turn

NAMES = ["a.py::one", "a.py::two", "b.py::three", "b.py::four[x]"]


@pytest.mark.parametrize("few", [1, 2, 4, 9])
def test_each_has_its_turn(monkeypatch: pytest.MonkeyPatch, few: int) -> None:
    seen: set[str] = set()
    for seed in range(60):
        monkeypatch.setenv(VARIABLE, str(seed))
        found = on_turn("group", NAMES, few)
        assert len(found) == min(few, len(NAMES))
        assert found == on_turn("group", reversed(NAMES), few)
        seen |= found
    assert seen == set(NAMES)


def test_groups_choose_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(60):
        monkeypatch.setenv(VARIABLE, str(seed))
        if on_turn("one", NAMES, 1) != on_turn("other", NAMES, 1):
            return
    raise AssertionError("always the same")
