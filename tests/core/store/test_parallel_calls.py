"""Calls of a remote store that don't depend on each other."""

import threading
from contextvars import ContextVar
from typing import cast

import pytest

from airflow_paimon.core.store import Store
from airflow_paimon.core.store.base import run_parallel


class Remote:
    remote = True


REMOTE = cast(Store, Remote())
asked: ContextVar[str] = ContextVar("asked")


@pytest.mark.parametrize("many", [2, 9])
def test_calls_run_at_once_also_those_that_calls_make(many: int) -> None:
    meet = threading.Barrier(many * many, timeout=500)
    asked.set("of the caller")

    def call(first: int, second: int) -> tuple[int, int, str]:
        meet.wait()  # ends when all of them have begun
        return first, second, asked.get()

    def several(first: int) -> list[tuple[int, int, str]]:
        return run_parallel(REMOTE, [lambda n=n: call(first, n) for n in range(many)])  # type: ignore[misc]

    for _ in range(3):
        found = run_parallel(REMOTE, [lambda n=n: several(n) for n in range(many)])  # type: ignore[misc]
        assert found == [[(first, second, "of the caller") for second in range(many)] for first in range(many)]
