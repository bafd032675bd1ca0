"""Objects in the memory of this process, for tests and small experiments."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Sequence
from typing import Any, BinaryIO

from airflow_paimon.core.errors import AlreadyExistsError, NotFoundError
from airflow_paimon.core.store.base import FileInfo, Store, folder_name, inner_folder_name, join, object_name

_lock = threading.RLock()
_Objects = dict[str, tuple[bytes, int]]
# Full key ("name/a/b", the part after memory://) -> (content, milliseconds since the epoch), grouped by the key's first
# part, so that listing one store does not slow down with the content of others.
_volumes: dict[str, _Objects] = {}


def _volume(key: str) -> _Objects:
    return _volumes.setdefault(key.partition("/")[0], {})


def _found(prefix: str) -> list[tuple[str, tuple[bytes, int]]]:
    top = prefix.partition("/")[0]
    volumes = [_volumes.get(top, {})] if top else list(_volumes.values())
    return [(key, held) for volume in volumes for key, held in volume.items() if key.startswith(prefix)]


def _forget(prefix: str) -> None:
    for key, _ in _found(prefix):
        volume = _volume(key)
        del volume[key]
        if not volume:
            del _volumes[key.partition("/")[0]]


class MemoryStore(Store):
    """Objects below one root of this process's memory. Stores of the same or of nested URIs share their content.

    Pickling keeps only the URI: in another process the store has that process's content.
    """

    __slots__ = ("_root",)

    can_commit = True
    shared = False

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
            held = _volumes.get(key.partition("/")[0], {}).get(key)
        if held is None:
            raise NotFoundError(f"memory://{key} does not exist")
        return held[0]

    def exists(self, path: str) -> bool:
        key = self._key(path)
        with _lock:
            return key in _volumes.get(key.partition("/")[0], {})

    def files(self, path: str) -> Sequence[FileInfo]:
        prefix = self._prefix(folder_name(path))
        start = len(self._prefix(""))
        with _lock:
            found = [FileInfo(key[start:], False, len(data), ms) for key, (data, ms) in _found(prefix)]
        return sorted(found, key=lambda info: info.name)

    def list(self, path: str) -> list[FileInfo]:
        prefix = self._prefix(folder_name(path))
        found: dict[str, FileInfo] = {}
        with _lock:
            for key, (data, modified_ms) in _found(prefix):
                name, slash, _ = key[len(prefix) :].partition("/")
                found[name] = FileInfo(name, True, 0) if slash else FileInfo(name, False, len(data), modified_ms)
        return [found[name] for name in sorted(found)]

    def create(self, path: str, data: bytes) -> None:
        key = self._key(path)
        with _lock:
            volume = _volume(key)
            if key in volume:
                raise AlreadyExistsError(f"memory://{key} exists already")
            volume[key] = (bytes(data), _now_ms())

    def replace(self, path: str, data: bytes) -> None:
        key = self._key(path)
        with _lock:
            _volume(key)[key] = (bytes(data), _now_ms())

    def delete(self, path: str) -> None:
        key = self._key(path)
        with _lock:
            _volume(key).pop(key, None)

    def delete_tree(self, path: str) -> None:
        prefix = self._prefix(inner_folder_name(path))
        with _lock:
            _forget(prefix)

    def open_input(self, path: str) -> Any:
        return io.BytesIO(self.read(path))

    def open_output(self, path: str) -> BinaryIO:
        """Open a new object, visible once closed. ``AlreadyExistsError`` if it exists."""
        if self.exists(path):
            raise AlreadyExistsError(f"memory://{self._key(path)} exists already")
        return _Output(self, path)

    def clear(self) -> None:
        """Delete all objects below this root; for the end of a test."""
        prefix = self._prefix("")
        with _lock:
            _forget(prefix)

    def _key(self, path: str) -> str:
        return join(self._root, object_name(path))

    def _prefix(self, folder: str) -> str:
        root = join(self._root, folder)
        return f"{root}/" if root else ""


class _Output(io.BytesIO):
    def __init__(self, store: MemoryStore, path: str) -> None:
        super().__init__()
        self._store = store
        self._path = path

    def close(self) -> None:
        if not self.closed:
            data = self.getvalue()
            super().close()
            self._store.create(self._path, data)

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> None:
        if kind is None:
            self.close()
        else:
            super().close()

    def __del__(self) -> None:
        super().close()  # a file that is never closed is discarded


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
