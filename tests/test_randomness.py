"""Which cases a run draws: every value of every parameter, the same in each process, others for another seed."""

from __future__ import annotations

import itertools

import pytest

from tests.randomness import VARIABLE, moments, some

AXES = ("abcd", (1, 2, 3), (True, False))


@pytest.fixture(autouse=True)
def _draws(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AIRFLOW_PAIMON_SOAK", "AIRFLOW_PAIMON_THOROUGH"):
        monkeypatch.delenv(name, raising=False)


def drawn(monkeypatch: pytest.MonkeyPatch, seed: int) -> list[tuple[object, ...]]:
    monkeypatch.setenv(VARIABLE, str(seed))
    return some(itertools.product(*AXES))


def test_every_value_comes_up_in_few_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(20):
        found = drawn(monkeypatch, seed)
        assert [set(values) for values in zip(*found, strict=True)] == [set(axis) for axis in AXES]
        assert len(found) == 4
        assert found == drawn(monkeypatch, seed)
    assert {case for seed in range(60) for case in drawn(monkeypatch, seed)} == set(itertools.product(*AXES))


def test_at_least_so_many() -> None:
    assert [len(some("abc", few)) for few in range(5)] == [0, 1, 2, 3, 3]
    pairs = [{"a": 1, "b": 1}, {"a": 1, "b": 2}, {"a": 2, "b": 1}]
    assert [pair for pair in some(pairs) if 2 in pair.values()] == pairs[1:]
    assert len(some(pairs, by=lambda pair: (pair["a"],))) == 2
    with pytest.raises(AssertionError):
        some([object()], 1)


@pytest.mark.parametrize("name", ["AIRFLOW_PAIMON_SOAK", "AIRFLOW_PAIMON_THOROUGH"])
def test_all_where_all_are_asked_for(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "1")
    assert some("abc", 1) == ["a", "b", "c"]


@pytest.mark.parametrize("every", [1, 3, 4, 10])
def test_one_moment_of_each_few(monkeypatch: pytest.MonkeyPatch, every: int) -> None:
    met = set()
    for seed in range(200):
        monkeypatch.setenv(VARIABLE, str(seed))
        found = list(moments(11, every))
        assert [(at - 1) // every for at in found] == list(range(-(-10 // every)))
        met |= set(found)
    assert met == set(range(1, 11))
    assert list(moments(1)) == []


def test_loops_of_a_test_have_moments_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    for test in ("one", "one", "two", "other"):
        monkeypatch.setenv("PYTEST_CURRENT_TEST", f"{test} of this test's")
        drawn.append(tuple(moments(300)))
    assert len(set(drawn)) == 4


@pytest.mark.parametrize("name", ["AIRFLOW_PAIMON_SOAK", "AIRFLOW_PAIMON_THOROUGH"])
def test_all_moments_where_all_are_asked_for(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "1")
    assert list(moments(5)) == [1, 2, 3, 4]
