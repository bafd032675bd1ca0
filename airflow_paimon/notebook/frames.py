"""Rows for the libraries that a notebook may have: none of them is a dependency of this package."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from airflow_paimon.core.errors import UnsupportedError

if TYPE_CHECKING:
    import duckdb
    import pandas
    import polars
    import pyarrow as pa
    import pyarrow.compute as pc


class RowReads:
    """Reads what ``to_batches`` streams in the forms of other libraries. ``name``: of the table, ``db.table``."""

    def to_arrow(
        self: Any, columns: Sequence[str] | None = None, where: str | pc.Expression | None = None, **more: Any
    ) -> pa.Table:
        """Read as an Arrow table. ``more``: the further arguments of ``to_batches``."""
        import pyarrow as pa

        reader = self.to_batches(columns, where, **more)
        return pa.Table.from_batches(reader, reader.schema)

    def to_pandas(
        self: Any, columns: Sequence[str] | None = None, where: str | pc.Expression | None = None, **more: Any
    ) -> pandas.DataFrame:
        """Read as a data frame of pandas, if that is installed. ``more``: as for ``to_batches``."""
        installed("to_pandas", "pandas")
        frame: pandas.DataFrame = self.to_arrow(columns, where, **more).to_pandas()
        return frame

    def to_polars(
        self: Any, columns: Sequence[str] | None = None, where: str | pc.Expression | None = None, **more: Any
    ) -> polars.DataFrame:
        """Read as a data frame of Polars, if that is installed. ``more``: as for ``to_batches``."""
        frames = installed("to_polars", "polars")
        frame: polars.DataFrame = frames.from_arrow(self.to_arrow(columns, where, **more))
        return frame

    def to_duckdb(
        self: Any,
        columns: Sequence[str] | None = None,
        where: str | pc.Expression | None = None,
        *,
        name: str | None = None,
        connection: duckdb.DuckDBPyConnection | None = None,
        **more: Any,
    ) -> duckdb.DuckDBPyRelation:
        """Copy the rows, batch by batch, into a temporary table of DuckDB, if that is installed, and return it.

        ``name``: of the temporary table, by default the table's name without the database; one of that name is
        replaced. ``connection``: where to make it, by default a new database in memory. ``more``: as for
        ``to_batches``.
        """
        engine = installed("to_duckdb", "duckdb")
        rows = self.to_batches(columns, where, **more)
        made = engine.connect() if connection is None else connection
        relation: duckdb.DuckDBPyRelation = copied(made, name or self.name.rpartition(".")[2], rows)
        return relation


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
