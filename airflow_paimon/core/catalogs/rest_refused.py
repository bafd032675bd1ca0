"""The store of a table that exists and must not be touched: it is listed, and every use of it is refused."""

from __future__ import annotations

from typing import Any, NoReturn

from airflow_paimon.core.errors import PaimonError
from airflow_paimon.core.store.base import Store
from airflow_paimon.core.store.none import RefusingStore
from airflow_paimon.core.table.paths import SCHEMA_PREFIX, BranchPaths


class RefusedStore(RefusingStore):
    """``uri``: what it is, for messages; ``error``: what every use of it raises."""

    __slots__ = ("_uri", "error")

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
