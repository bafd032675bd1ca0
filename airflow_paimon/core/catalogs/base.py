"""The protocol between this package and a catalog."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Protocol, runtime_checkable

from airflow_paimon.core.errors import NotFoundError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.store import Store


@runtime_checkable
class Catalog(Protocol):
    """Knows the tables of a warehouse by name.

    Errors: ``StorageError`` when the catalog's server can't be reached or fails, ``UnsafeOperationError`` when it
    refuses the credentials, ``UnsupportedCatalogError`` for a table that this package can't open safely.
    A catalog can be pickled and holds no connection: each call makes its own.
    """

    __slots__ = ()

    keeps_names: ClassVar[bool] = True
    """Whether it knows a table of which no file is left. One that doesn't computes folders from names."""

    @property
    def label(self) -> str:
        """The catalog in messages, such as ``warehouse s3://lake`` or ``catalog jdbc:postgresql://db/paimon``."""
        ...

    def databases(self) -> list[str]:
        """Name the databases; empty if there are none."""
        ...

    def create_database(self, name: str) -> None:
        """Make an empty database. ``AlreadyExistsError``: there is one. ``InvalidInputError``: it can't be a name."""
        ...

    def drop_database(self, name: str) -> None:
        """Delete a database in which ``tables`` names none.

        Raises:
            NotFoundError: there is none. UnsafeOperationError: something is in it after all.
        """
        ...

    def tables(self, database: str) -> list[str]:
        """Name the tables of a database. A name may turn out to be no Paimon table when it is opened."""
        ...

    def locate(self, database: str, tables: Sequence[str]) -> list[Store | None]:
        """Return the store of each table's folder, which puts there what its catalog wants; None = no such table.

        A catalog that only computes folders returns one without looking whether there is a table.
        """
        ...

    def place(self, database: str, table: str) -> Store:
        """Return the store of the folder for a new table. ``NotFoundError``: there is no such database."""
        ...

    def warehouse_store(self) -> Store:
        """Return the store of the warehouse's folder, where this package keeps what concerns several tables.

        Raises:
            UnsupportedCatalogError: the catalog's server keeps the warehouse.
        """
        ...

    def register(self, database: str, table: str, schema: TableSchema) -> None:
        """Make a table known whose first schema lies in its folder. Nothing happens to one that is known."""
        ...


def no_database(catalog: Catalog, name: str) -> NotFoundError:
    """Return the error of a new table in a database that there isn't."""
    return NotFoundError(
        f"{catalog.label} has no database {name!r} (it has {', '.join(catalog.databases()) or 'none'}); CREATE "
        f"DATABASE in SQL, or create_database in Python, makes it"
    )


@runtime_checkable
class PartitionCatalog(Protocol):
    """A catalog whose server keeps partitions, for tables with the option ``metastore.partitioned-table``.

    ``spec``: partition column to the text in the folder's name.
    """

    def mark_done(self, database: str, table: str, spec: Mapping[str, str]) -> None:
        """Tell the server that a partition is complete. A server that has no such call is not an error, as in Java."""
        ...

    def add_partition(self, database: str, table: str, spec: Mapping[str, str]) -> None:
        """Add a partition; one that is there stays."""
        ...
