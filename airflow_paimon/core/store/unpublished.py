"""A store whose new metadata stays in memory: commits are made, read and built upon, and nobody else sees them."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any, BinaryIO

from airflow_paimon.core.errors import AlreadyExistsError, NotFoundError
from airflow_paimon.core.store.base import FileInfo, Store, folder_name, object_name
from airflow_paimon.core.store.wrapper import StoreWrapper


class Unpublished(StoreWrapper):
    """Holds what is put into ``folders`` in this process; other files, such as data files, go to ``inner``.

    Nothing of ``folders`` is changed or deleted in ``inner``. Pickled it is ``inner``: tasks read and write data files,
    of which the driver has told them all they need.
    """

    __slots__ = ("_folders", "_held")

    def __init__(self, inner: Store, folders: Sequence[str]) -> None:
        super().__init__(inner)
        self._folders = tuple(f"{folder}/" for folder in folders)
        self._held: dict[str, bytes] = {}

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return _inner, (self.inner,)

    def held(self, folder: str) -> list[str]:
        """Name what was put directly into a folder and is not published."""
        return [info.name for info in self._within(folder) if not info.is_dir]

    def _holds(self, path: str) -> bool:
        return path.startswith(self._folders)

    def read(self, path: str) -> bytes:
        held = self._held.get(object_name(path))
        return self.inner.read(path) if held is None else held

    def read_many(self, paths: Sequence[str]) -> list[bytes]:
        others = [path for path in paths if path not in self._held]
        found = dict(zip(others, self.inner.read_many(others), strict=True)) if others else {}
        return [self._held[path] if path in self._held else found[path] for path in paths]

    def exists(self, path: str) -> bool:
        return object_name(path) in self._held or self.inner.exists(path)

    def names(self, path: str) -> list[str]:
        own = [info.name for info in self._within(path) if not info.is_dir]
        return [*dict.fromkeys([*self.inner.names(path), *own])]

    def walk(self, path: str) -> list[str]:
        return [info.name for info in self.files(path)]

    def files(self, path: str) -> Sequence[FileInfo]:
        prefix = _prefix(path)
        own = [FileInfo(name, False, len(data)) for name, data in self._held.items() if name.startswith(prefix)]
        found = {info.name: info for info in (*self.inner.files(path), *own)}
        return [found[name] for name in sorted(found)]

    def create(self, path: str, data: bytes) -> None:
        if not self._holds(path):
            self.inner.create(path, data)
            return
        if self.exists(path):
            raise AlreadyExistsError(f"{self.uri}/{path} exists already")
        self._held[path] = bytes(data)

    def replace(self, path: str, data: bytes) -> None:
        if self._holds(object_name(path)):
            self._held[path] = bytes(data)
        else:
            self.inner.replace(path, data)

    def delete(self, path: str) -> None:
        if self._holds(object_name(path)):
            self._held.pop(path, None)
        else:
            self.inner.delete(path)

    def delete_same(self, path: str, data: bytes) -> bool | None:
        return Store.delete_same(self, path, data) if self._holds(path) else self.inner.delete_same(path, data)

    def replace_same(self, path: str, data: bytes, expected: bytes) -> bool | None:
        return Store.replace_same(self, path, data, expected)

    def open_input(self, path: str) -> Any:
        held = self._held.get(object_name(path))
        return self.inner.open_input(path) if held is None else io.BytesIO(held)

    def open_output(self, path: str) -> BinaryIO:
        if self._holds(path):
            raise NotFoundError(f"{self.uri}/{path} is metadata, which is put whole")
        return self.inner.open_output(path)

    def _within(self, path: str) -> Sequence[FileInfo]:
        prefix = _prefix(path)
        found: dict[str, FileInfo] = {}
        for name, data in self._held.items():
            if name.startswith(prefix):
                first, slash, _ = name[len(prefix) :].partition("/")
                found[first] = FileInfo(first, True, 0) if slash else FileInfo(first, False, len(data))
        return [*found.values()]

    def list(self, path: str) -> list[FileInfo]:
        found = {info.name: info for info in (*self.inner.list(path), *self._within(path))}
        return [found[name] for name in sorted(found)]


def _inner(store: Store) -> Store:
    return store


def _prefix(path: str) -> str:
    folder = folder_name(path)
    return f"{folder}/" if folder else ""
