"""Stores without anything to wrap: of a table that a catalog doesn't know, and of one that must not be touched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_paimon.core.errors import NotFoundError, PaimonError
from airflow_paimon.core.store.base import FileInfo, Store
from airflow_paimon.core.store.wrapper import StoreWrapper


class RefusedStore(StoreWrapper):
    """Raises ``error`` for whatever it is used for. ``uri``: what it is, for messages."""

    __slots__ = ("_uri", "error")

    commits_refused = None
    keeper = None
    remote = False

    def __init__(self, uri: str, error: PaimonError) -> None:
        self._uri, self.error = uri, error

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._uri, self.error)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and isinstance(other, RefusedStore) and other.uri == self.uri

    def __hash__(self) -> int:
        return hash(self._uri)

    @property
    def inner(self) -> Store:  # type: ignore[override]
        raise self.error

    @property
    def uri(self) -> str:
        return self._uri

    def child(self, path: str) -> Store:
        return type(self)(f"{self._uri}/{path}", self.error)


class NoStore(RefusedStore):
    """Nothing is there, and nothing can be put there. ``uri``: where nothing is, for messages."""

    __slots__ = ()

    def __init__(self, uri: str) -> None:
        super().__init__(uri, NotFoundError(f"{uri} has no such table"))

    def __reduce__(self) -> tuple[Any, ...]:
        return NoStore, (self._uri,)

    def child(self, path: str) -> Store:
        return self

    def exists(self, path: str) -> bool:
        return False

    def files(self, path: str) -> Sequence[FileInfo]:
        return []

    def list(self, path: str) -> list[FileInfo]:
        return []

    names, read_many, walk = Store.names, Store.read_many, Store.walk
