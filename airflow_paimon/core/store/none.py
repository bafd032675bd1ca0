"""Stores of which nothing can be used: that of a table which a catalog doesn't know, and what it shares with others."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, NoReturn

from airflow_paimon.core.errors import NotFoundError
from airflow_paimon.core.store.base import FileInfo, Store


class RefusingStore(Store):
    """Raises for whatever it is used for. Subclasses say what."""

    __slots__ = ()
    can_commit = True

    @abstractmethod
    def _refuse(self) -> NoReturn: ...

    def read(self, path: str) -> bytes:
        self._refuse()

    def exists(self, path: str) -> bool:
        self._refuse()

    def files(self, path: str) -> Sequence[FileInfo]:
        self._refuse()

    def create(self, path: str, data: bytes) -> None:
        self._refuse()

    def replace(self, path: str, data: bytes) -> None:
        self._refuse()

    def delete(self, path: str) -> None:
        self._refuse()

    def delete_empty(self, path: str) -> None:
        self._refuse()

    def open_input(self, path: str) -> Any:
        self._refuse()

    def open_output(self, path: str) -> BinaryIO:
        self._refuse()

    def list(self, path: str) -> list[FileInfo]:
        self._refuse()


@dataclass(frozen=True, slots=True)
class NoStore(RefusingStore):
    """Nothing is there, and nothing can be put there. ``uri``: where nothing is, for messages."""

    uri: str

    def _refuse(self) -> NoReturn:
        raise NotFoundError(f"{self.uri} has no such table")

    def child(self, path: str) -> Store:
        return self

    def exists(self, path: str) -> bool:
        return False

    def files(self, path: str) -> Sequence[FileInfo]:
        return []

    def list(self, path: str) -> list[FileInfo]:
        return []
