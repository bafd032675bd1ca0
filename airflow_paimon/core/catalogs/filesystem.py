"""The catalog that is the warehouse itself: a folder ``<database>.db/<table>`` is a table. It takes no locks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from airflow_paimon.core.catalogs.base import Catalog
from airflow_paimon.core.errors import AlreadyExistsError, NotFoundError, UnsafeOperationError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.store import Store

_SUFFIX = ".db"
_MARK = "_airflow_paimon_database"
"""A file by which a storage of objects has the folder of an empty database."""


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

    def create_database(self, name: str) -> None:
        """Put a file into the folder: storages of objects have no empty ones."""
        if name in self.databases():
            raise AlreadyExistsError(f"{self.label} has a database {name!r} already")
        self.warehouse.create(f"{name}{_SUFFIX}/{_MARK}", b"made by CREATE DATABASE\n")

    def drop_database(self, name: str) -> None:
        folder = f"{name}{_SUFFIX}"
        if name not in self.databases():
            raise NotFoundError(f"{self.label} has no database {name!r}")
        left = [path for path in self.warehouse.walk(folder) if path != f"{folder}/{_MARK}"]
        if left:
            raise UnsafeOperationError(
                f"Database {name!r} of {self.label} contains {len(left)} files, such as {left[0]}, so it was not "
                "dropped: check them, and delete them first"
            )
        self.warehouse.delete(f"{folder}/{_MARK}")
        self.warehouse.delete_empty(folder)

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
