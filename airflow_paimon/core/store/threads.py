"""Calls that wait for a server, made at the same time, by threads that all callers of a process share."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, TypeVar

K = TypeVar("K")
T = TypeVar("T")

AT_ONCE = 64
"""How many calls are made, or small files are read, at the same time."""
MOST = 2 * AT_ONCE
"""Threads of a process: for calls inside of calls, too. A call that finds none free is made by its caller."""
_pool = ThreadPoolExecutor(MOST, thread_name_prefix="paimon")


def map_parallel(call: Callable[[K], T], values: Iterable[K], at_once: int = AT_ONCE) -> list[T]:
    """Make a call for each value, up to ``at_once`` at the same time; return what they return, in order.

    The calling thread makes calls as well, so that calls inside of calls never wait for a free thread. After an error
    no other call begins; the first one is raised when those that have begun have ended.
    """
    work = list(values)
    found: list[Any] = [None] * len(work)
    errors: dict[int, BaseException] = {}
    places, lock = iter(range(len(work))), threading.Lock()

    def take() -> None:
        while not errors:
            with lock:
                at = next(places, None)
            if at is None:
                return
            try:
                found[at] = call(work[at])
            except BaseException as error:
                errors[at] = error

    others = [_pool.submit(copy_context().run, take) for _ in range(min(at_once, len(work)) - 1)]
    take()
    for other in others:
        if not other.cancel():
            other.result()
    if errors:
        raise errors[min(errors)]
    return found


def _after_fork() -> None:
    """A forked process has none of the threads."""
    global _pool
    _pool = ThreadPoolExecutor(MOST, thread_name_prefix="paimon")


os.register_at_fork(after_in_child=_after_fork)
