"""The look-up of table sets: what each has, or the versions of one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_paimon.core.catalogs import open_catalog
from airflow_paimon.core.table.table import find_databases
from airflow_paimon.core.table.table_set import TableSet
from airflow_paimon.core.table.table_sets import find_set, set_folder, set_names
from airflow_paimon.shown.listing import Listing, heads, limited, utc_time


def sets(warehouse: str, storage_options: Mapping[str, Any] | None, limit: int, name: str | None = None) -> Listing:
    """List the sets of a warehouse with their newest versions, or the versions of one set, newest first.

    Raises:
        NotFoundError: no set of that name has a version, or there is no such warehouse. UnsupportedCatalogError: the
            catalog has no sets.
    """
    catalog = open_catalog(warehouse, storage_options)
    if name is None:
        newest = (set_folder(catalog, one).latest() for one in set_names(catalog))
        found = [one for one in newest if one is not None]
        if not found:
            find_databases(catalog)
    else:
        find_set(catalog, name)
        found = [one for one in set_folder(catalog, name).versions() if one.abandoned is None][::-1]
    shown, left = limited(found, limit)
    columns = heads("table set | number: number | created: utc | tag | tables")
    return Listing(title="table sets" if name is None else "versions", columns=columns,
                   rows=[_row(one) for one in shown], left=left)  # fmt: skip


def _row(one: TableSet) -> list[Any]:
    tables = [f"{name}@{pin.snapshot_id}" for name, pin in one.tables.items()]
    return [one.name, one.number, utc_time(one.created_ms), one.tag, tables]
