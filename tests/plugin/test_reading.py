"""Reads with a time limit: nobody waits for a slow storage, nobody reads twice, and memory has a bound."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from airflow_paimon.core.errors import NotFoundError
from airflow_paimon.core.store import Store
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.plugin import table_page
from airflow_paimon.plugin.catalog import Warehouse
from airflow_paimon.plugin.panel import PageQuery
from airflow_paimon.plugin.reading import Reader, StillReadingError
from airflow_paimon.shown.urls import TABS
from tests.stores import _Wrapper as Wrapper

T = TypeVar("T")

LONG = 400.0


def soon() -> float:
    return time.monotonic()


def later() -> float:
    return time.monotonic() + LONG


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    opened = threading.Event()
    yield opened
    opened.set()


def test_a_slow_read_goes_on_and_is_found_by_the_next_request(gate: threading.Event) -> None:
    reader, calls = Reader(), []

    def read() -> str:
        calls.append(1)
        assert gate.wait(LONG)
        return "rows"

    for _ in range(3):
        with pytest.raises(StillReadingError):
            reader.get("key", read, deadline=soon())
    gate.set()
    assert reader.get("key", read, deadline=later()) == "rows"
    assert reader.get("key", read, deadline=soon()) == "rows"
    assert len(calls) == 1


def test_what_may_change_is_read_again_but_serves_as_long_as_it_took() -> None:
    reader, calls = Reader(), []

    def read() -> int:
        calls.append(1)
        return len(calls)

    assert reader.get("key", read, deadline=later(), fresh=LONG) == 1
    assert reader.get("key", read, deadline=later(), fresh=LONG) == 1
    assert reader.get("other", read, deadline=later(), fresh=0.0) == 2
    ended = time.monotonic() + LONG
    while reader.get("other", read, deadline=later(), fresh=0.0) == 2:
        assert time.monotonic() < ended


def test_an_error_is_reported_and_not_kept() -> None:
    reader, fails = Reader(), [True]

    def read() -> str:
        if fails.pop() if fails else False:
            raise NotFoundError("gone")
        return "back"

    with pytest.raises(NotFoundError, match="gone"):
        reader.get("key", read, deadline=later())
    assert reader.get("key", read, deadline=later()) == "back"


def test_a_timeout_of_the_storage_is_not_taken_for_ours() -> None:
    def read() -> str:
        raise TimeoutError("the storage's own")

    with pytest.raises(TimeoutError, match="the storage's own"):
        Reader().get("key", read, deadline=later())


def test_several_reads_at_once_give_what_is_there(gate: threading.Event) -> None:
    def slow() -> str:
        assert gate.wait(LONG)
        return "slow"

    def broken() -> str:
        raise NotFoundError("gone")

    reader = Reader()
    for key, make in (("fast", lambda: "fast"), ("broken", broken)):
        reader.gather({key: make}, deadline=later())
    found = reader.gather({"fast": lambda: "never", "slow": slow, "broken": broken}, deadline=time.monotonic() + 0.05)
    assert found["fast"] == "fast"
    assert "slow" not in found
    gate.set()
    again = reader.gather({"slow": slow, "broken": broken}, deadline=later())
    assert again["slow"] == "slow"
    assert isinstance(again["broken"], NotFoundError)


def test_memory_has_a_bound_and_the_oldest_goes_first() -> None:
    reader, calls = Reader(most_bytes=250), []

    def read(name: str) -> str:
        def make() -> str:
            calls.append(name)
            return name

        return reader.get(name, make, deadline=later(), weigh=lambda value: 100)

    for name in ("a", "b", "a", "c", "a", "b"):
        assert read(name) == name
    assert calls == ["a", "b", "c", "b"]


def test_requests_beyond_the_bound_are_put_off(gate: threading.Event) -> None:
    reader = Reader(workers=1)
    for number in range(200):
        with pytest.raises(StillReadingError):
            reader.get(number, gate.wait, deadline=soon())
    assert len(reader._running) <= 128


class GatedStore(Wrapper):
    """A storage that doesn't answer while its gate is closed."""

    def __init__(self, inner: Store, gate: threading.Event) -> None:
        super().__init__(inner)
        self.gate = gate

    def _call(self, method: str, path: str, action: Callable[[], T]) -> T:
        assert self.gate.wait(LONG / 4), f"somebody waited for {method} {path} without a limit"
        return action()


@pytest.mark.parametrize("tab", [t for t in TABS if t not in ("corrections", "plan")])
@pytest.mark.every(3)
def test_no_tab_waits_for_the_storage_itself(lake: Path, server: object, tab: str) -> None:
    """The basics are known, then the storage hangs: every tab answers that it is being read, or needs no storage."""
    opened = threading.Event()
    real = open_table(str(lake), "d.c")
    table = Table(GatedStore(real.store, opened), real.name)
    warehouse, reader = Warehouse("lake"), Reader()
    warehouse.table = lambda database, name: table  # type: ignore[method-assign]
    opened.set()
    query = PageQuery(tab=tab, branch="delta" if tab not in ("grid", "branches", "check") else "main", at="main:1")

    def ask() -> dict[str, object]:
        return table_page.show(warehouse, reader, "d", "c", query, user=None, airflow="")

    basics = query.model_copy(update={"tab": "options"})
    ended = time.monotonic() + LONG
    while table_page.show(warehouse, reader, "d", "c", basics, user=None, airflow="")["pending"]:
        assert time.monotonic() < ended
    opened.clear()
    assert ask()["pending"] is (tab != "options")
    opened.set()
    while ask()["pending"]:
        assert time.monotonic() < ended
