"""Rows for the libraries that a notebook may have: none of them is a dependency of this package."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from airflow_paimon.core.errors import UnsupportedError

if TYPE_CHECKING:
    import pyarrow as pa


def installed(what: str, package: str) -> Any:
    """Return a package that ``what`` needs.

    Raises:
        UnsupportedError: it isn't installed; the message says how to get it.
    """
    try:
        return import_module(package)
    except ImportError as error:
        raise UnsupportedError(
            f"{what} needs the package {package}, which is not installed here ({error}): pip install {package}; "
            f"to_arrow and to_batches need nothing more"
        ) from error


def copied(connection: Any, name: str, rows: pa.RecordBatchReader) -> Any:
    """Copy a stream into a temporary table of DuckDB, which may be read any number of times, and return that.

    A relation on the stream itself would be empty the second time that it is looked at.
    """
    quoted = '"' + name.replace('"', '""') + '"'
    source = "__airflow_paimon_rows"
    connection.register(source, rows)
    try:
        connection.execute(f"CREATE OR REPLACE TEMP TABLE {quoted} AS SELECT * FROM {source}")
    finally:
        connection.unregister(source)
    return connection.sql(f"FROM {quoted}")
