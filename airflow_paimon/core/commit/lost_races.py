"""How often commits lost to other writers and were planned again, for results and metrics."""

from __future__ import annotations

from contextvars import ContextVar

_lost: ContextVar[list[None]] = ContextVar("lost")
"""One for each race. Threads that work for an operation have a copy of its context, and so the same list."""


def count_lost_race() -> None:
    """Note that another writer's snapshot came first."""
    _of_context().append(None)


def lost_races() -> int:
    """Return how many there were in this context, since it was asked for first."""
    return len(_of_context())


def _of_context() -> list[None]:
    found = _lost.get(None)
    if found is None:
        _lost.set(found := [])
    return found
