"""Opens the catalog that a warehouse's options name, and the place of a file that a person names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from airflow_paimon.core.catalogs import hive, jdbc, rest
from airflow_paimon.core.catalogs.base import Catalog
from airflow_paimon.core.catalogs.filesystem import FilesystemCatalog
from airflow_paimon.core.catalogs.options import CatalogOptions, catalog_options
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.store import Store, open_store

_OPENERS: Mapping[str, Callable[[str, CatalogOptions], Catalog]] = {
    "filesystem": lambda warehouse, options: FilesystemCatalog(open_store(warehouse, options.storage)),
    "hive": hive.open_hive_catalog,
    "jdbc": jdbc.open_jdbc_catalog,
    "rest": rest.open_rest_catalog,
}


def open_catalog(warehouse: str, options: Mapping[str, Any] | None = None) -> Catalog:
    """Open the catalog of a warehouse. Nothing is read yet.

    ``options``: those of the storage, and among them the catalog's by Paimon's names: ``metastore`` (``filesystem``,
    the default, ``hive``, ``jdbc`` or ``rest``), ``uri`` and what belongs to that kind of catalog.

    Raises:
        InvalidInputError: an option is missing or wrong. UnsupportedCatalogError: this catalog can't be asked.
    """
    divided = catalog_options(options)
    return _OPENERS[divided.kind](warehouse, divided)


def storage_only(options: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return the options without the catalog's, for what is opened by its path."""
    return None if options is None else catalog_options(options).storage


def file_place(uri: str, storage_options: Mapping[str, Any] | None, flag: str) -> tuple[Store, str]:
    """Return the store of a file's folder, and the file's name in it; ``replace`` puts it whole or not at all.

    Raises:
        InvalidInputError: it names a folder.
    """
    folder, slash, name = uri.rpartition("/")
    if not name:
        raise InvalidInputError(f"{flag} {uri!r} names a folder; it must name the file to write")
    is_local = "://" not in uri or uri.startswith("file:")
    return open_store(folder + slash or ".", None if is_local else storage_only(storage_options)), name
