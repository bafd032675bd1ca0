"""Tests that need two moments to differ: a table's times are whole milliseconds, and a commit may take less."""

from __future__ import annotations

import time

_MOST_SECONDS = 60


def next_millisecond() -> None:
    """Wait until what is written has a later time than everything that was written before."""
    begun, end = _millis(), time.monotonic() + _MOST_SECONDS
    while _millis() <= begun:
        assert time.monotonic() < end, "the clock stands still, or was set back"
        time.sleep(0.0005)


def _millis() -> int:
    return int(time.time() * 1000)  # as commits do
