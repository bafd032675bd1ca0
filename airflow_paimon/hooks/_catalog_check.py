"""What the button *Test* of a connection checks of a catalog that is a server, and of the tables that it names."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice

from airflow_paimon.core.catalogs import Catalog
from airflow_paimon.core.errors import (
    NotFoundError,
    PaimonError,
    StorageError,
    UnsafeOperationError,
    UnsupportedError,
    first_few,
)
from airflow_paimon.core.store import Store
from airflow_paimon.core.table.table import Table
from airflow_paimon.shown.listing import counted

_MOST_TABLES = 100
"""Tables whose folders are asked for."""
_MOST_DATABASES = 20
_MOST_OPENED = 10
_OPENING_SECONDS = 8.0
"""After which no further table is tried: a storage that isn't there takes its time for each."""
_AT_ONCE = 25
LISTED = 10
"""Names that a message lists."""
_ADDRESS = "Check uri in Catalog options, and that this machine reaches it"
_WAYS_OUT: Mapping[str, tuple[str, str, str]] = {
    "hive": (_ADDRESS, "The user is HADOOP_USER_NAME of this process, or else who it runs as", _ADDRESS),
    "jdbc": (_ADDRESS, "Correct jdbc.user and jdbc.password in Catalog options, or give the user the right", ""),
    "rest": (
        _ADDRESS,
        "Correct token.provider and token (or dlf.*) in Catalog options, or give that user the right",
        f"{_ADDRESS}; Warehouse is the name that the server knows it by",
    ),
}
"""By the kind of catalog: what to do when it can't be reached or fails, when it refuses, when it knows nothing."""

Explain = Callable[[str, PaimonError], str]
"""Gives the message for a storage's error, by the URI that was looked at."""


def check_catalog_access(
    catalog: Catalog, kind: str, warehouse: Callable[[], Store], explain: Explain
) -> tuple[bool, str]:
    """Ask a catalog for its tables, and look whether the first of them are where it says.

    Args:
        kind: One of ``CATALOGS``.
        warehouse: Opens the folder in which a table would lie, for a catalog that has none yet.
    """
    try:
        databases = catalog.databases()
        if not databases:
            return False, f"{catalog.label} answers, but has no database. Check its address and key"
        tables = list(islice(tables_of(catalog, databases), _MOST_TABLES))
    except PaimonError as error:
        failed, refused, unknown = _WAYS_OUT[kind]
        advice = {StorageError: failed, UnsafeOperationError: refused, NotFoundError: unknown}.get(type(error), "")
        return False, f"{error.message.rstrip('.')}. {advice}" if advice else error.message
    if fault := _fault(catalog, tables, explain) if tables else _fault_of(warehouse, kind, explain):
        return False, fault
    return True, f"{described(databases, catalog.label, tables)}{_shared(tables)}"


def described(databases: Sequence[str], place: str, tables: Sequence[Table]) -> str:
    """Say which databases there are, and if there is no table in them."""
    text = f"{counted(len(databases), 'database')} in {place}: {first_few(databases, LISTED)}"
    if tables:
        return text
    if len(databases) <= _MOST_DATABASES:
        return f"{text}; there is no table in them yet"
    return f"{text}; there is no table in the first {_MOST_DATABASES} of them, and only those were checked"


def tables_of(catalog: Catalog, databases: Sequence[str]) -> Iterator[Table]:
    """Open the tables of the first databases; reads nothing of them."""
    for database in databases[:_MOST_DATABASES]:
        names = catalog.tables(database)
        for start in range(0, len(names), _AT_ONCE):
            some = names[start : start + _AT_ONCE]
            stores = catalog.locate(database, some)
            named = zip(some, stores, strict=True)
            yield from (Table(s, f"{database}.{n}", catalog=catalog) for n, s in named if s is not None)


def _fault(catalog: Catalog, tables: Sequence[Table], explain: Explain) -> str:
    """Say what is wrong with the first tables, if none of them can be opened."""
    faults: list[str] = []
    until = time.monotonic() + _OPENING_SECONDS
    for table in tables[:_MOST_OPENED]:
        if faults and time.monotonic() > until:
            break
        try:
            if table.exists():
                return ""
            faults.append(table.missing().message)
        except (UnsafeOperationError, UnsupportedError):  # one that the catalog keeps from this user, or a view
            continue
        except (StorageError, NotFoundError) as error:
            explained = explain(table.store.uri, error)
            faults.append(f"{catalog.label} answers, but its tables can't be read: {explained}")
    return faults[0] if faults else ""


def _fault_of(warehouse: Callable[[], Store], kind: str, explain: Explain) -> str:
    if kind == "rest":  # only the server knows where its tables will lie
        return ""
    store = warehouse()
    try:
        store.list("")
    except (StorageError, NotFoundError) as error:
        return explain(store.uri, error)
    return ""


def _shared(tables: Sequence[Table]) -> str:
    """Warn of tables, of those that were looked at, that lie in one folder: the catalog locks each by its own name."""
    names = defaultdict(list)
    for table in tables:
        names[table.store.uri.rstrip("/")].append(table.name)
    for uri, some in sorted(names.items()):
        if len(some) > 1:
            return (
                f". But {first_few(some, LISTED)} lie in one folder, {uri}: they are one table, and a lock on one name "
                f"doesn't keep out who writes by another. Drop all names but one in the catalog, without the files"
            )
    return ""
