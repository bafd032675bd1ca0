"""Which cases and tests a run leaves out: all but so many, the same in each process, and each runs in some run."""

from __future__ import annotations

import pytest

from tests.parts import drawn, leave_out
from tests.randomness import VARIABLE

NAMES = ["a.py::one", "a.py::two", "b.py::three", "b.py::four[x]"]
MODULE = """
import pytest

@pytest.mark.part(every=3)
@pytest.mark.parametrize("n", range(7))
def test_cases(n): pass

@pytest.mark.part(few=1, group="all")
def test_one(): pass

@pytest.mark.part(few=1, group="all")
def test_other(): pass

@pytest.mark.part(every=2, together=True)
class TestTogether:
    def test_a(self): pass
    def test_b(self): pass
    def test_c(self): pass

def test_always(): pass
"""


@pytest.mark.parametrize("number", [0, 1, 2, 4, 9])
def test_each_comes_up(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    seen: set[str] = set()
    for seed in range(60):
        monkeypatch.setenv(VARIABLE, str(seed))
        found = drawn("group", NAMES, number)
        assert len(found) == max(1, min(number, len(NAMES)))
        assert found == drawn("group", NAMES[::-1], number)
        seen |= found
    assert seen == set(NAMES)


def test_groups_choose_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(60):
        monkeypatch.setenv(VARIABLE, str(seed))
        if drawn("one", NAMES, 1) != drawn("other", NAMES, 1):
            return
    raise AssertionError("always the same")


@pytest.mark.parametrize(("asked", "left"), [("", [4, 1, 1]), ("AIRFLOW_PAIMON_THOROUGH", [0, 0, 0])])
def test_a_mark_is_for_its_cases_its_class_or_its_group(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, asked: str, left: list[int]
) -> None:
    for name in ("AIRFLOW_PAIMON_SOAK", "AIRFLOW_PAIMON_THOROUGH"):
        monkeypatch.delenv(name, raising=False)
    if asked:
        monkeypatch.setenv(asked, "1")
    items = _items(request)
    leave_out(items)
    out = [item.nodeid for item in items if item.get_closest_marker("thorough")]
    groups = (("test_cases",), ("test_one", "test_other"), ("TestTogether",))
    assert [sum(any(g in name for g in group) for name in out) for group in groups] == left
    assert sum(left) == len(out)


def _items(request: pytest.FixtureRequest) -> list[pytest.Item]:
    """Collect the tests of ``MODULE``."""
    space: dict[str, object] = {}
    exec(MODULE, space)
    found: list[pytest.Item] = []
    module = pytest.Module.from_parent(request.session, path=request.path)
    module.obj = type("module", (), {"__name__": "module", **space})
    for node in module.collect():
        found += node.collect() if isinstance(node, pytest.Class) else [node]  # type: ignore[arg-type, list-item]
    return [item for item in found if isinstance(item, pytest.Item)]
