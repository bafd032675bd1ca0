"""The bytes of manifests, manifest lists and index manifests that were read, so that none is read twice: by an
operation, or by a process that lives long and only shows them.

They never change under their names, which hold a uuid. Snapshots, tags, schemas, holds and listings say whether they
are still needed, or whether somebody took them away meanwhile: those are read again wherever an operation has to know.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from airflow_paimon.core.store.base import Store
from airflow_paimon.core.store.wrapper import StoreWrapper
from airflow_paimon.core.table.paths import MANIFEST_DIR

MOST_BYTES: Final = 32 << 20
"""What an operation keeps: four manifests of the size that a table's options ask for by default, or thousands of small
ones."""

_PATIENCE_S: Final = 30
"""How long to wait for another thread that reads the same file, before reading it as well."""
_Key = tuple[Hashable, str]
"""Where a file lies, and its path there."""
_Read = Callable[[Sequence[str]], Sequence[bytes]]


class FileCache:
    """What was read, up to ``most_bytes``; what was not asked for the longest goes first. Thread-safe."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.bytes = 0
        self._found: OrderedDict[_Key, bytes] = OrderedDict()
        self._reading: dict[_Key, tuple[int, threading.Event]] = {}
        """Which thread reads what just now."""
        self._lock = threading.Lock()

    def read(self, where: Hashable, paths: Sequence[str], read: _Read) -> list[bytes]:
        """Return files; ``read`` gives those that are not kept, once for all threads."""
        keys = [(where, path) for path in paths]
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

    def _find(self, keys: Sequence[_Key]) -> dict[_Key, bytes]:
        found = {key: self._found[key] for key in keys if key in self._found}
        for key in found:
            self._found.move_to_end(key)
        return found

    def _read(self, keys: Sequence[_Key], read: _Read) -> Mapping[_Key, bytes]:
        new = dict(zip(keys, read([path for _, path in keys]), strict=True)) if keys else {}
        with self._lock:
            for key, data in new.items():
                if len(data) * 2 <= self.most_bytes and key not in self._found:
                    self._found[key] = data
                    self.bytes += len(data)
            while self.bytes > self.most_bytes:
                _, oldest = self._found.popitem(last=False)
                self.bytes -= len(oldest)
        return new


_KEPT: ContextVar[FileCache | None] = ContextVar("kept", default=None)


@contextmanager
def cached_reads(*, anew: bool = False) -> Iterator[None]:
    """Keep what ``read_files`` reads within the block; if nested, within the outermost. ``anew``: an operation of its
    own begins.
    """
    token = _KEPT.set(FileCache(MOST_BYTES)) if anew or _KEPT.get() is None else None
    try:
        yield
    finally:
        if token is not None:
            _KEPT.reset(token)


def read_files(store: Store, paths: Sequence[str]) -> list[bytes]:
    """Read files that never change under their names, as ``Store.read_many`` does."""
    kept = _KEPT.get()
    if kept is not None:
        return kept.read(store.uri, paths, store.read_many)
    return store.read_many(paths) if paths else []


class CachingStore(StoreWrapper):
    """Keeps what it reads of such files, and so may show some that are deleted by now: for what only shows.

    ``scope``: a connection with its present credentials. Nothing is shared across scopes: another connection may name
    the same bucket on another server, or may not be allowed to read it.
    """

    __slots__ = ("_kept", "_where")

    def __init__(self, inner: Store, kept: FileCache, scope: Hashable) -> None:
        super().__init__(inner)
        self._kept, self._where = kept, (scope, inner.uri)

    def read_many(self, paths: Sequence[str]) -> list[bytes]:
        if all(path.startswith(f"{MANIFEST_DIR}/") for path in paths):
            return self._kept.read(self._where, paths, self.inner.read_many)
        return self.inner.read_many(paths)

    def names_if_few(self, path: str) -> list[str] | None:
        return self.inner.names_if_few(path)
