"""Reads with a time limit, each done once: a request waits a moment, the read goes on, the next request finds it."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, TypeVar

from airflow_paimon.core.errors import PaimonError

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
PATIENCE_SECONDS = 0.9
FRESH_SECONDS = 5.0
"""How long what may change is shown without a second look."""
_WORKERS = 8
_MOST_WAITING = 128
_MOST_BYTES = 256 << 20


class StillReadingError(Exception):
    """The read takes longer than the request waits; it goes on, and its result will be kept."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A result, about how many bytes it holds, and until when it serves (``time.monotonic``; None = for good)."""

    value: Any
    weight: int
    expires: float | None


class Reader:
    """Runs reads in threads of its own, never more than ``workers``, and keeps results that can't change.

    A key says all that the result follows from: the place, and the identity of the snapshots that are looked at.
    """

    def __init__(self, workers: int = _WORKERS, most_bytes: int = _MOST_BYTES) -> None:
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="paimon-page")
        self._lock = threading.Lock()
        self._running: dict[Hashable, Future[Any]] = {}
        self._kept: OrderedDict[Hashable, Kept] = OrderedDict()
        self._most_bytes = most_bytes
        self._bytes = 0

    def get(
        self,
        key: Hashable,
        make: Callable[[], T],
        *,
        deadline: float,
        fresh: float | None = None,
        weigh: Callable[[T], int] = lambda value: 1000,
    ) -> T:
        """Return the kept result, or wait for it until a moment of ``time.monotonic``.

        ``fresh``: seconds that the result serves, or as long as it took to read, for what may change; None = for good.

        Raises:
            StillReadingError: it is not there yet. And whatever ``make`` raises, which is not kept.
        """
        found = self._begin(key, make, fresh, weigh)
        if isinstance(found, Kept):
            value: T = found.value
            return value
        try:
            result: T = found.result(timeout=max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            if found.done():
                raise
            raise StillReadingError from None
        return result

    def gather(
        self,
        jobs: Mapping[K, Callable[[], T]],
        *,
        deadline: float,
        fresh: float | None = None,
        weigh: Callable[[T], int] = lambda value: 1000,
    ) -> dict[K, T | PaimonError]:
        """Run several readings at once. An error of the core is returned in place of its result; unfinished ones are
        left out.
        """
        begun = {key: self._begin(key, make, fresh, weigh) for key, make in jobs.items()}
        waiting = [f for f in begun.values() if isinstance(f, Future)]
        wait(waiting, timeout=max(0.0, deadline - time.monotonic()))
        out: dict[K, T | PaimonError] = {}
        for key, found in begun.items():
            if isinstance(found, Kept):
                out[key] = found.value
            elif found.done():
                try:
                    out[key] = found.result()
                except PaimonError as error:
                    out[key] = error
        return out

    def _begin(
        self, key: Hashable, make: Callable[[], T], fresh: float | None, weigh: Callable[[T], int]
    ) -> Kept | Future[Any]:
        began = time.monotonic()
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None and (kept.expires is None or kept.expires > began):
                self._kept.move_to_end(key)
                return kept
            running = self._running.get(key)
            if running is not None and not (running.done() and running.exception()):
                return running
            if len(self._running) >= _MOST_WAITING:
                raise StillReadingError
            future = self._running[key] = self._pool.submit(make)
        future.add_done_callback(lambda done: self._end(key, done, began, fresh, weigh))
        return future

    def _end(
        self, key: Hashable, done: Future[Any], began: float, fresh: float | None, weigh: Callable[[Any], int]
    ) -> None:
        now = time.monotonic()
        with self._lock:
            if self._running.get(key) is done:
                del self._running[key]
            if done.cancelled() or done.exception() is not None:
                return
            expires = None if fresh is None else now + max(fresh, now - began)
            gone = [k for k, v in self._kept.items() if k == key or (v.expires is not None and v.expires <= now)]
            self._bytes -= sum(self._kept.pop(k).weight for k in gone)
            kept = self._kept[key] = Kept(done.result(), max(1, weigh(done.result())), expires)
            self._bytes += kept.weight
            while self._bytes > self._most_bytes and len(self._kept) > 1:
                _, oldest = self._kept.popitem(last=False)
                self._bytes -= oldest.weight


class ScopedReader(Reader):
    """A reader that shares threads and memory with another one, but no results: those of one connection.

    Two connections may name the same bucket on two servers, or with keys that may read less.
    """

    def __init__(self, reader: Reader, scope: Hashable) -> None:
        self._reader, self._scope = reader, scope

    def _begin(
        self, key: Hashable, make: Callable[[], T], fresh: float | None, weigh: Callable[[T], int]
    ) -> Kept | Future[Any]:
        return self._reader._begin((self._scope, key), make, fresh, weigh)
