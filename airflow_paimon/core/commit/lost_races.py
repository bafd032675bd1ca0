"""How often commits of this process lost to other writers and were planned again, for results and metrics."""

from __future__ import annotations

import threading

_lock = threading.Lock()
_lost = 0


def count_lost_race() -> None:
    """Note that another writer's snapshot came first."""
    global _lost
    with _lock:
        _lost += 1


def lost_races() -> int:
    """Return how many there were since the process began."""
    return _lost
