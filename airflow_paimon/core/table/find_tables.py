"""Finds the databases and tables of a filesystem warehouse, whichever catalog made them."""

from __future__ import annotations

from collections.abc import Callable

from airflow_paimon.core.errors import NotFoundError
from airflow_paimon.core.store import Store
from airflow_paimon.core.table.table import Table

_SUFFIX = ".db"


def find_databases(warehouse: Store) -> list[str]:
    """Name the databases; one listing.

    Raises:
        NotFoundError: there is no database folder (``name.db``).
    """
    found = [e.name.removesuffix(_SUFFIX) for e in warehouse.list("") if e.is_dir and e.name.endswith(_SUFFIX)]
    if not found:
        raise NotFoundError(f"There is no warehouse at {warehouse.uri}: it has no folder db_name.db")
    return found


def find_tables(warehouse: Store, database: str, wanted: Callable[[str], bool] = lambda _: True) -> list[Table]:
    """Return the tables of a database whose ``db.table`` is wanted: one listing, and one for each of these."""
    folder = f"{database}{_SUFFIX}"
    names = [e.name for e in warehouse.list(folder) if e.is_dir and wanted(f"{database}.{e.name}")]
    views = [Table(warehouse.child(f"{folder}/{name}"), f"{database}.{name}") for name in names]
    return [view for view in views if view.exists()]
