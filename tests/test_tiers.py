"""Which cases and tests are left to which run."""

from __future__ import annotations

import pytest

from tests.environment import REPO_ROOT
from tests.randomness import every, moments
from tests.tiers import LANDING, mark

MODULE = """
import pytest

@pytest.mark.every(3)
@pytest.mark.parametrize("n", range(7))
def test_cases(n): pass

@pytest.mark.every(2, first=1)
@pytest.mark.parametrize("n", range(4))
def test_others(n): pass

@pytest.mark.every(2)
class TestTogether:
    def test_a(self): pass
    def test_b(self): pass
    def test_c(self): pass

def test_always(): pass
"""


@pytest.fixture(params=["", "AIRFLOW_PAIMON_SOAK", "AIRFLOW_PAIMON_THOROUGH"])
def asked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    for name in ("AIRFLOW_PAIMON_SOAK", "AIRFLOW_PAIMON_THOROUGH"):
        monkeypatch.delenv(name, raising=False)
    if request.param:
        monkeypatch.setenv(request.param, "1")
    return str(request.param)


def test_every_nth_of_cases_and_moments_or_all(asked: str) -> None:
    assert every(3, "abcdefg", first=1) == list("abcdefg" if asked else "be")
    assert list(moments(10, 4)) == list(range(1, 10) if asked else (1, 5, 9))
    assert list(moments(1)) == []


def test_a_mark_is_for_the_cases_of_a_test_or_for_a_class(request: pytest.FixtureRequest, asked: str) -> None:
    items = _items(request)
    mark(items)
    kept = [item.name for item in items if not item.get_closest_marker("thorough")]
    wanted = ["test_cases[0]", "test_cases[3]", "test_cases[6]", "test_others[1]", "test_others[3]", "test_a", "test_c"]
    assert kept == [item.name for item in items] if asked else kept == [*wanted, "test_always"]


def test_what_is_left_to_landings_is_there() -> None:
    assert all((REPO_ROOT / place).exists() for place in LANDING)


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
