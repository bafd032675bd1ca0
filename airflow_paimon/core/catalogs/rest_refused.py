"""The store of a table that exists and must not be touched: it is listed, and every use of it is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, BinaryIO, NoReturn

from airflow_paimon.core.errors import PaimonError
from airflow_paimon.core.store.base import FileInfo, Store
from airflow_paimon.core.table.paths import SCHEMA_PREFIX, BranchPaths


class RefusedStore(Store):
    """``uri``: what it is, for messages; ``error``: what every use of it raises."""

    __slots__ = ("_uri", "error")
    can_commit = True

    def __init__(self, uri: str, error: PaimonError) -> None:
        self._uri, self.error = uri, error

    def __reduce__(self) -> tuple[Any, ...]:
        return RefusedStore, (self._uri, self.error)

    @property
    def uri(self) -> str:
        return self._uri

    def _refuse(self) -> NoReturn:
        raise self.error

    def child(self, path: str) -> Store:
        return RefusedStore(f"{self._uri}/{path}", self.error)

    def names(self, path: str) -> list[str]:
        """The table exists: it has a schema, which nobody may read."""
        return [f"{SCHEMA_PREFIX}0"] if path == BranchPaths().schema_dir else []

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

    def delete_tree(self, path: str) -> None:
        self._refuse()

    def open_input(self, path: str) -> Any:
        self._refuse()

    def open_output(self, path: str) -> BinaryIO:
        self._refuse()

    def list(self, path: str) -> list[FileInfo]:
        self._refuse()
