"""Objects in the memory of this process, for tests and small experiments."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Sequence
from typing import Any, BinaryIO

from airflow_paimon.core.errors import AlreadyExistsError, NotFoundError, StorageError
from airflow_paimon.core.store.base import FileInfo, Store, folder_name, inner_folder_name, join, object_name
from airflow_paimon.core.store.failures import Output

_lock = threading.RLock()
_volumes: dict[str, dict[str, tuple[bytes, int]]] = {}
"""Objects by the first part of the full key ("name/a/b", the part after memory://), so that a store does not slow down
with the content of others, and by the key. Each has its content and the milliseconds since the epoch at which it was
put.
"""


def _volume(key: str) -> dict[str, tuple[bytes, int]]:
    return _volumes.setdefault(key.partition("/")[0], {})


def _below(prefix: str) -> list[tuple[str, bytes, int]]:
    """Return the objects whose keys begin so, by what follows."""
    top, slash, _ = prefix.partition("/")
    with _lock:
        volumes = [_volumes.get(top, {})] if slash else list(_volumes.values())
        return [(key[len(prefix) :], *held) for v in volumes for key, held in v.items() if key.startswith(prefix)]


class MemoryStore(Store):
    """Objects below one root of this process's memory. Stores of the same or of nested URIs share their content.

    Pickling keeps only the URI: in another process the store has that process's content.
    """

    __slots__ = ("_root",)

    def __init__(self, root: str) -> None:
        self._root = root.strip("/")

    def __reduce__(self) -> tuple[Any, ...]:
        return MemoryStore, (self._root,)

    @property
    def uri(self) -> str:
        return f"memory://{self._root}"

    def child(self, path: str) -> MemoryStore:
        return MemoryStore(join(self._root, folder_name(path)))

    def read(self, path: str) -> bytes:
        key = self._key(path)
        with _lock:
            held = _volume(key).get(key)
        if held is None:
            raise NotFoundError(f"memory://{key} does not exist")
        return held[0]

    def exists(self, path: str) -> bool:
        key = self._key(path)
        with _lock:
            return key in _volume(key)

    def files(self, path: str) -> Sequence[FileInfo]:
        folder = folder_name(path)
        found = (FileInfo(join(folder, n), False, len(data), ms) for n, data, ms in _below(self._prefix(folder)))
        return sorted(found, key=lambda info: info.name)

    def list(self, path: str) -> list[FileInfo]:
        found: dict[str, FileInfo] = {}
        for below, data, ms in _below(self._prefix(folder_name(path))):
            name, slash, _ = below.partition("/")
            found[name] = FileInfo(name, True, 0) if slash else FileInfo(name, False, len(data), ms)
        return [found[name] for name in sorted(found)]

    def create(self, path: str, data: bytes) -> None:
        key = self._key(path)
        with _lock:
            if key in _volume(key):
                raise AlreadyExistsError(f"memory://{key} exists already")
            _volume(key)[key] = bytes(data), _now_ms()

    def replace(self, path: str, data: bytes) -> None:
        key = self._key(path)
        with _lock:
            _volume(key)[key] = bytes(data), _now_ms()

    def delete(self, path: str) -> None:
        key = self._key(path)
        with _lock:
            _volume(key).pop(key, None)

    def delete_same(self, path: str, data: bytes) -> bool | None:
        key = self._key(path)
        with _lock:
            held = _volume(key).get(key)
            if held is None or held[0] != data:
                return None if held is None else False
            del _volume(key)[key]
            return True

    def replace_same(self, path: str, data: bytes, expected: bytes) -> bool | None:
        with _lock:
            return super().replace_same(path, data, expected)

    def delete_empty(self, path: str) -> None:
        inner_folder_name(path)  # there are no folders

    def open_input(self, path: str) -> Any:
        return io.BytesIO(self.read(path))

    def open_output(self, path: str) -> BinaryIO:
        """Open a new object, visible once closed. ``AlreadyExistsError`` if it exists."""
        if self.exists(path):
            raise AlreadyExistsError(f"memory://{self._key(path)} exists already")
        buffer = io.BytesIO()
        return Output(  # type: ignore[return-value]
            buffer,
            fail=lambda error: StorageError(str(error)),
            finish=lambda: self.create(path, buffer.getvalue()),
            discard=buffer.close,
        )

    def clear(self) -> None:
        """Delete all objects below this root; for the end of a test."""
        with _lock:
            for path in self.walk(""):
                self.delete(path)

    def _key(self, path: str) -> str:
        return join(self._root, object_name(path))

    def _prefix(self, folder: str) -> str:
        root = join(self._root, folder)
        return f"{root}/" if root else ""


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
