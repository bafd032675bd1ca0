"""A commit that lost to another writer: counted for results and metrics, and followed by a wait."""

from __future__ import annotations

import random
import time
from contextvars import ContextVar

_FIRST_WAIT_S, _MAX_WAIT_S = 0.005, 1.0
_lost: ContextVar[list[None]] = ContextVar("lost")
"""One for each race. Threads that work for an operation have a copy of its context, and so the same list."""


def count_lost_race() -> None:
    """Note that another writer's snapshot came first."""
    _of_context().append(None)


def wait_after_lost_race(attempt: int) -> None:
    """Wait at random up to 10 ms after the first attempt, 20 ms after the second, and so on up to 1 s.

    The whole time is random (full jitter), so that writers spread out.
    """
    time.sleep(random.uniform(0, min(_MAX_WAIT_S, _FIRST_WAIT_S * 2 ** min(attempt, 20))))


def lost_races() -> int:
    """Return how many there were in this context, since it was asked for first."""
    return len(_of_context())


def _of_context() -> list[None]:
    found = _lost.get(None)
    if found is None:
        _lost.set(found := [])
    return found
