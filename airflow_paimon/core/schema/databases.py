"""create_database and drop_database, in any catalog."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_paimon.core.catalogs import open_catalog
from airflow_paimon.core.errors import (
    AlreadyExistsError,
    InvalidInputError,
    NotFoundError,
    UnsafeOperationError,
    first_few,
)
from airflow_paimon.core.table.paths import parse_identifier

_SYSTEM = "sys"
"""Paimon's database of system tables."""
_SHOWN = 10


def create_database(
    warehouse: str, name: str, *, if_exists: str = "fail", storage_options: Mapping[str, Any] | None = None
) -> bool:
    """Create an empty database in the catalog of a warehouse. False: it exists, and ``if_exists`` is ``skip``.

    Raises:
        AlreadyExistsError: it exists. InvalidInputError: the name can't be one, or ``if_exists`` is neither fail nor
            skip.
    """
    _check_choice("create_database", "if_exists", if_exists)
    if name.lower() == _SYSTEM or parse_identifier(f"{name}.t").database != name:
        raise InvalidInputError(f"{name!r} can't be the name of a database")
    try:
        open_catalog(warehouse, storage_options).create_database(name)
    except AlreadyExistsError:
        if if_exists == "skip":
            return False
        raise
    return True


def drop_database(
    warehouse: str, name: str, *, if_missing: str = "fail", storage_options: Mapping[str, Any] | None = None
) -> bool:
    """Drop an empty database. False: there is none, and ``if_missing`` is ``skip``.

    Raises:
        NotFoundError: there is none. UnsafeOperationError: it has tables; the message names them.
    """
    _check_choice("drop_database", "if_missing", if_missing)
    parse_identifier(f"{name}.t")
    catalog = open_catalog(warehouse, storage_options)
    if name not in (known := catalog.databases()):
        if if_missing == "skip":
            return False
        raise NotFoundError(f"{catalog.label} has no database {name!r} (it has {', '.join(sorted(known)) or 'none'})")
    if tables := catalog.tables(name):
        raise UnsafeOperationError(
            f"Database {name!r} of {catalog.label} has tables ({first_few(sorted(tables), _SHOWN)}), so it was not "
            f"dropped: drop them first",
            details={"tables": sorted(tables)},
        )
    catalog.drop_database(name)
    return True


def _check_choice(operation: str, argument: str, value: str) -> None:
    if value not in ("fail", "skip"):
        raise InvalidInputError(f"{operation}: {argument} must be 'fail' or 'skip', got {value!r}")
