"""Calls made at the same time by threads that all callers share."""

from __future__ import annotations

import os
import threading
from contextvars import ContextVar

import pytest

from airflow_paimon.core.store.threads import MOST, map_parallel

_name: ContextVar[str] = ContextVar("name")


def test_calls_inside_of_calls_wait_for_no_free_thread() -> None:
    def outer(number: int) -> list[int]:
        return map_parallel(lambda inner: number * 1000 + inner, range(MOST))

    found = map_parallel(outer, range(2 * MOST))
    assert found == [[n * 1000 + i for i in range(MOST)] for n in range(2 * MOST)]


def test_as_many_run_at_the_same_time_as_were_asked_for_with_the_callers_context() -> None:
    _name.set("mine")
    meet = threading.Barrier(4, timeout=60)
    assert map_parallel(lambda _: (meet.wait() >= 0, _name.get()), range(4), 4) == [(True, "mine")] * 4
    assert map_parallel(lambda _: threading.get_ident(), range(9), 1) == [threading.get_ident()] * 9
    assert map_parallel(str, []) == []


def test_no_call_begins_after_an_error_and_the_first_one_is_raised() -> None:
    begun: list[int] = []
    meet = threading.Barrier(2, timeout=60)

    def call(number: int) -> None:
        begun.append(number)
        if number < 2:
            meet.wait()
            raise ValueError(number)

    with pytest.raises(ValueError, match=r"\A0\Z"):
        map_parallel(call, range(1000), 2)
    assert sorted(begun) == [0, 1]


def test_a_forked_process_has_threads_of_its_own() -> None:
    map_parallel(str, range(MOST))
    child = os.fork()
    if child == 0:
        meet = threading.Barrier(4, timeout=60)
        os._exit(map_parallel(lambda n: n if meet.wait() >= 0 else -1, range(4), 4) != [0, 1, 2, 3])
    assert os.waitpid(child, 0)[1] == 0
