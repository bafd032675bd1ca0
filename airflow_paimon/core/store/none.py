"""The store of a table that a catalog doesn't know: nothing is there, and nothing can be put there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, NoReturn

from airflow_paimon.core.errors import NotFoundError
from airflow_paimon.core.store.base import FileInfo, Store


@dataclass(frozen=True, slots=True)
class NoStore(Store):
    """``uri``: where nothing is, for messages."""

    uri: str
    can_commit = True

    def _missing(self) -> NoReturn:
        raise NotFoundError(f"{self.uri} has no such table")

    def child(self, path: str) -> Store:
        return self

    def read(self, path: str) -> bytes:
        self._missing()

    def exists(self, path: str) -> bool:
        return False

    def files(self, path: str) -> Sequence[FileInfo]:
        return []

    def create(self, path: str, data: bytes) -> None:
        self._missing()

    def replace(self, path: str, data: bytes) -> None:
        self._missing()

    def delete(self, path: str) -> None:
        self._missing()

    def delete_tree(self, path: str) -> None:
        self._missing()

    def open_input(self, path: str) -> Any:
        self._missing()

    def open_output(self, path: str) -> BinaryIO:
        self._missing()

    def list(self, path: str) -> list[FileInfo]:
        return []
