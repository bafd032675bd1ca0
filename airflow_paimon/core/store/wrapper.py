"""A store over another store, for what changes a few of its methods."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO

from airflow_paimon.core.errors import UnsupportedError
from airflow_paimon.core.store.base import FileInfo, Store


class StoreWrapper(Store):
    """Passes everything on to ``inner``. Subclasses change what differs; ``child`` leads out of them."""

    __slots__ = ("inner",)

    def __init__(self, inner: Store) -> None:
        self.inner = inner

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and isinstance(other, StoreWrapper) and other.inner == self.inner

    def __hash__(self) -> int:
        return hash(self.inner)

    @property
    def uri(self) -> str:
        return self.inner.uri

    @property
    def commits_refused(self) -> UnsupportedError | None:
        return self.inner.commits_refused

    @property
    def keeper(self) -> str | None:
        return self.inner.keeper

    @property
    def remote(self) -> bool:
        return self.inner.remote

    def before_create(self) -> None:
        self.inner.before_create()

    def child(self, path: str) -> Store:
        return self.inner.child(path)

    def read(self, path: str) -> bytes:
        return self.inner.read(path)

    def read_many(self, paths: Sequence[str]) -> list[bytes]:
        return self.inner.read_many(paths)

    def exists(self, path: str) -> bool:
        return self.inner.exists(path)

    def names(self, path: str) -> list[str]:
        return self.inner.names(path)

    def walk(self, path: str) -> list[str]:
        return self.inner.walk(path)

    def files(self, path: str) -> Sequence[FileInfo]:
        return self.inner.files(path)

    def files_in_parts(self, path: str) -> Iterator[Sequence[FileInfo]]:
        changed = type(self).files is not StoreWrapper.files
        yield from super().files_in_parts(path) if changed else self.inner.files_in_parts(path)

    def divided(self, path: str) -> tuple[Sequence[str], Sequence[FileInfo]]:
        changed = type(self).list is not StoreWrapper.list
        return super().divided(path) if changed else self.inner.divided(path)

    def create(self, path: str, data: bytes) -> None:
        self.inner.create(path, data)

    def replace(self, path: str, data: bytes) -> None:
        self.inner.replace(path, data)

    def delete(self, path: str) -> None:
        self.inner.delete(path)

    def delete_same(self, path: str, data: bytes) -> bool | None:
        return self.inner.delete_same(path, data)

    def replace_same(self, path: str, data: bytes, expected: bytes) -> bool | None:
        return self.inner.replace_same(path, data, expected)

    def check_reach(self, paths: Iterable[str]) -> None:
        self.inner.check_reach(paths)

    def delete_empty(self, path: str) -> None:
        self.inner.delete_empty(path)

    def open_input(self, path: str) -> Any:
        return self.inner.open_input(path)

    def open_output(self, path: str) -> BinaryIO:
        return self.inner.open_output(path)

    def list(self, path: str) -> list[FileInfo]:
        return self.inner.list(path)
