"""Objects in the memory of this process, for tests and small experiments."""

from __future__ import annotations

import io
import threading
import time
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

from airflow_paimon.core.errors import AlreadyExistsError, NotFoundError
from airflow_paimon.core.store.base import FileInfo, Store, folder_name, inner_folder_name, join, object_name

_lock = threading.RLock()
_Objects = dict[str, tuple[bytes, int]]


class _Volume:
    """The objects whose keys have the same first part. ``order``: their keys, so that a listing looks at its own.

    A prefix is "" or ends with a slash, and what follows a slash in order is "0".
    """

    __slots__ = ("objects", "order")

    def __init__(self) -> None:
        self.objects: _Objects = {}
        self.order: list[str] = []

    def put(self, key: str, data: bytes) -> None:
        if key not in self.objects:
            insort(self.order, key)
        self.objects[key] = (bytes(data), _now_ms())

    def drop(self, key: str) -> None:
        if self.objects.pop(key, None) is not None:
            del self.order[bisect_left(self.order, key)]

    def below(self, prefix: str) -> list[str]:
        return self.order[slice(*self._range(prefix))]

    def entries(self, prefix: str) -> Iterator[FileInfo]:
        """Give the files and folders right below a prefix, each folder once."""
        at, end = self._range(prefix)
        while at < end:
            key = self.order[at]
            name, slash, _ = key[len(prefix) :].partition("/")
            if slash:
                yield FileInfo(name, True, 0)
                at = bisect_left(self.order, f"{prefix}{name}0", at, end)
            else:
                data, modified_ms = self.objects[key]
                yield FileInfo(name, False, len(data), modified_ms)
                at += 1

    def _range(self, prefix: str) -> tuple[int, int]:
        if not prefix:
            return 0, len(self.order)
        return bisect_left(self.order, prefix), bisect_left(self.order, f"{prefix[:-1]}0")


# By the first part of the full key ("name/a/b", the part after memory://), so that a store does not slow down with the
# content of others. Each object has its content and the milliseconds since the epoch at which it was put.
_volumes: dict[str, _Volume] = {}


def _volume(key: str) -> _Volume:
    return _volumes.setdefault(key.partition("/")[0], _Volume())


def _at(prefix: str) -> list[_Volume]:
    top = prefix.partition("/")[0]
    return [_volumes[top]] if top in _volumes else [] if top else list(_volumes.values())


def _held(key: str) -> tuple[bytes, int] | None:
    volume = _volumes.get(key.partition("/")[0])
    return None if volume is None else volume.objects.get(key)


def _forget(prefix: str) -> None:
    for key in [key for volume in _at(prefix) for key in volume.below(prefix)]:
        _volume(key).drop(key)
        if not _volume(key).objects:
            del _volumes[key.partition("/")[0]]


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
            held = _held(key)
        if held is None:
            raise NotFoundError(f"memory://{key} does not exist")
        return held[0]

    def exists(self, path: str) -> bool:
        key = self._key(path)
        with _lock:
            return _held(key) is not None

    def files(self, path: str) -> Sequence[FileInfo]:
        prefix = self._prefix(folder_name(path))
        start = len(self._prefix(""))
        with _lock:
            found = [
                FileInfo(key[start:], False, len(data), ms)
                for volume in _at(prefix)
                for key in volume.below(prefix)
                for data, ms in (volume.objects[key],)
            ]
        return sorted(found, key=lambda info: info.name)

    def list(self, path: str) -> list[FileInfo]:
        prefix = self._prefix(folder_name(path))
        with _lock:
            found = {info.name: info for volume in _at(prefix) for info in volume.entries(prefix)}
        return [found[name] for name in sorted(found)]

    def create(self, path: str, data: bytes) -> None:
        key = self._key(path)
        with _lock:
            volume = _volume(key)
            if key in volume.objects:
                raise AlreadyExistsError(f"memory://{key} exists already")
            volume.put(key, data)

    def replace(self, path: str, data: bytes) -> None:
        key = self._key(path)
        with _lock:
            _volume(key).put(key, data)

    def delete(self, path: str) -> None:
        key = self._key(path)
        with _lock:
            _volume(key).drop(key)

    def delete_same(self, path: str, data: bytes) -> bool | None:
        key = self._key(path)
        with _lock:
            held = _held(key)
            if held is None:
                return None
            if held[0] == data:
                _volume(key).drop(key)
            return held[0] == data

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
