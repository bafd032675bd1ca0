"""The bytes of manifests, manifest lists and index manifests that one operation has read, so that it reads none twice.

They never change under their names, which hold a uuid. Snapshots, tags, schemas, holds and listings say whether they
are still needed, or whether somebody took them away meanwhile: those are read again wherever an operation has to know.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from airflow_paimon.core.store.base import Part, Store

MOST_BYTES: Final = 32 << 20
"""What an operation keeps: four manifests of the size that a table's options ask for by default, or thousands of small
ones."""

_PATIENCE_S: Final = 30
"""How long to wait for another thread that reads the same file, before reading it as well."""
_Key = tuple[str, Part]
"""A store's address, and some bytes of a file; all of them: up to -1."""
_Found = tuple[bytes, int]
"""These bytes, and the size of the whole file."""


class _Kept:
    """What was read; what was not asked for the longest goes first. ``_reading``: which thread reads what just now."""

    def __init__(self) -> None:
        self._found: OrderedDict[_Key, _Found] = OrderedDict()
        self._reading: dict[_Key, tuple[int, threading.Event]] = {}
        self._bytes = 0
        self._lock = threading.Lock()

    def read(self, keys: Sequence[_Key], read: Callable[[Sequence[_Key]], Sequence[_Found]]) -> list[_Found]:
        """Return what is kept of these; ``read`` gives the others, once for all threads."""
        thread, done = threading.get_ident(), threading.Event()
        with self._lock:
            found = self._find(keys)
            missing = [key for key in dict.fromkeys(keys) if key not in found]
            others = {k: self._reading[k][1] for k in missing if self._reading.get(k, (thread,))[0] != thread}
            own = [key for key in missing if key not in others]
            self._reading |= dict.fromkeys(own, (thread, done))
        try:
            found |= self._read(own, read)
        finally:
            with self._lock:
                for key in own:
                    self._reading.pop(key, None)
            done.set()
        for event in others.values():
            event.wait(_PATIENCE_S)
        with self._lock:
            found |= self._find(list(others))
        found |= self._read([key for key in others if key not in found], read)
        return [found[key] for key in keys]

    def _find(self, keys: Sequence[_Key]) -> dict[_Key, _Found]:
        found = {key: self._found[key] for key in keys if key in self._found}
        for key in found:
            self._found.move_to_end(key)
        return found

    def _read(self, keys: Sequence[_Key], read: Callable[[Sequence[_Key]], Sequence[_Found]]) -> Mapping[_Key, _Found]:
        new = dict(zip(keys, read(keys), strict=True)) if keys else {}
        with self._lock:
            for key, one in new.items():
                if len(one[0]) * 2 <= MOST_BYTES and key not in self._found:
                    self._found[key] = one
                    self._bytes += len(one[0])
            while self._bytes > MOST_BYTES:
                _, (oldest, _) = self._found.popitem(last=False)
                self._bytes -= len(oldest)
        return new


_KEPT: ContextVar[_Kept | None] = ContextVar("kept", default=None)


@contextmanager
def reading_once(*, anew: bool = False) -> Iterator[None]:
    """Keep what ``read_files`` and ``read_parts`` read within the block; if nested, within the outermost. ``anew``: an
    operation of its own begins.
    """
    token = _KEPT.set(_Kept()) if anew or _KEPT.get() is None else None
    try:
        yield
    finally:
        if token is not None:
            _KEPT.reset(token)


def read_files(store: Store, paths: Sequence[str]) -> list[bytes]:
    """Read files that never change under their names, as ``Store.read_many`` does."""
    kept = _KEPT.get()
    if kept is None:
        return store.read_many(paths) if paths else []

    def read(keys: Sequence[_Key]) -> list[_Found]:
        return [(data, len(data)) for data in store.read_many([part.path for _, part in keys])]

    uri = store.uri
    return [data for data, _ in kept.read([(uri, Part(path, 0, -1)) for path in paths], read)]


def read_parts(store: Store, parts: Sequence[Part]) -> list[tuple[bytes, int]]:
    """Read parts of such files, as ``Store.read_parts`` does."""
    kept = _KEPT.get()
    if kept is None:
        return store.read_parts(parts) if parts else []
    uri = store.uri
    return kept.read([(uri, part) for part in parts], lambda keys: store.read_parts([part for _, part in keys]))
