"""Calls made at the same time by threads that all callers share."""

from __future__ import annotations

import os
import threading
from contextvars import ContextVar

import pytest

from airflow_paimon.core.store.threads import MOST, in_threads

_name: ContextVar[str] = ContextVar("name")


def test_calls_inside_of_calls_wait_for_no_free_thread() -> None:
    def outer(number: int) -> list[int]:
        return in_threads(lambda inner: number * 1000 + inner, range(MOST))

    found = in_threads(outer, range(2 * MOST))
    assert found == [[n * 1000 + i for i in range(MOST)] for n in range(2 * MOST)]


def test_as_many_run_at_the_same_time_as_were_asked_for_with_the_callers_context() -> None:
    _name.set("mine")
    meet = threading.Barrier(4, timeout=60)
    assert in_threads(lambda _: (meet.wait() >= 0, _name.get()), range(4), 4) == [(True, "mine")] * 4
    assert in_threads(lambda _: threading.get_ident(), range(9), 1) == [threading.get_ident()] * 9
    assert in_threads(str, []) == []


def test_no_call_begins_after_an_error_and_the_first_one_is_raised() -> None:
    begun: list[int] = []
    meet = threading.Barrier(2, timeout=60)

    def call(number: int) -> None:
        begun.append(number)
        if number < 2:
            meet.wait()
            raise ValueError(number)

    with pytest.raises(ValueError, match=r"\A0\Z"):
        in_threads(call, range(1000), 2)
    assert sorted(begun) == [0, 1]


def test_a_forked_process_has_threads_of_its_own() -> None:
    in_threads(str, range(MOST))
    child = os.fork()
    if child == 0:
        meet = threading.Barrier(4, timeout=60)
        os._exit(in_threads(lambda n: n if meet.wait() >= 0 else -1, range(4), 4) != [0, 1, 2, 3])
    assert os.waitpid(child, 0)[1] == 0
