"""The catalog that is the warehouse itself: a folder ``<database>.db/<table>`` is a table. It takes no locks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from airflow_paimon.core.catalogs.base import Catalog
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.store import Store

_SUFFIX = ".db"


@dataclass(frozen=True, slots=True)
class FilesystemCatalog(Catalog):
    """``warehouse``: the store rooted at the warehouse."""

    warehouse: Store
    keeps_names: ClassVar[bool] = False

    @property
    def label(self) -> str:
        return f"warehouse {self.warehouse.uri}"

    def databases(self) -> list[str]:
        return [e.name.removesuffix(_SUFFIX) for e in self.warehouse.list("") if e.is_dir and e.name.endswith(_SUFFIX)]

    def tables(self, database: str) -> list[str]:
        return [e.name for e in self.warehouse.child(f"{database}{_SUFFIX}").list("") if e.is_dir]

    def locate(self, database: str, tables: Sequence[str]) -> list[Store | None]:
        return [self.place(database, table) for table in tables]

    def place(self, database: str, table: str) -> Store:
        return self.warehouse.child(f"{database}{_SUFFIX}/{table}")

    def warehouse_store(self) -> Store:
        return self.warehouse

    def register(self, database: str, table: str, schema: TableSchema) -> None:
        pass
