"""A connection of Python's DB-API whose statements are SELECTs over Paimon tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from tempfile import TemporaryDirectory
from typing import Any, Self, TypeVar

import pyarrow as pa

from airflow_paimon.core.errors import InvalidInputError, PaimonError, UnsupportedError
from airflow_paimon.core.table.inspect import inspect
from airflow_paimon.core.table.paths import Identifier
from airflow_paimon.core.table.table import open_table
from airflow_paimon.data.arrow_read import PinnedRows, pin_rows
from airflow_paimon.data.system_tables import WITH_ROWS
from airflow_paimon.sql.rows import PinnedDataset
from airflow_paimon.sql.statement import Mention, tables_of

T = TypeVar("T")

INSTALL = "pip install 'airflow-paimon[sql]'"
# SQL may come from a form: it sees the tables that are registered, and nothing else of the machine or the process.
_CLOSED = {
    "enable_external_access": False,
    "python_enable_replacements": False,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "allow_persistent_secrets": False,
}
_UNNAMED = "__airflow_paimon"
"""DuckDB's schema of tables that are named without a database. Its own, ``main``, may be a database's name as well."""


class Connection:
    """Reads the tables of a warehouse by SQL, in DuckDB's dialect; nothing is connected before a statement runs.

    Tables are ``db.t``, ``db.t$branch_b`` and, quoted, ``db."t@VERSION"`` (a tag, a snapshot id, ``branch.tag`` or
    ``branch.snapshot``); the system tables that ``inspect`` knows are ``db.t$snapshots`` and so on. A table is read in
    the state that it has when the first statement names it, until ``commit`` or ``rollback``; they end nothing else, as
    nothing is ever written. Times without a zone stay so; the session's time zone is UTC.

    Args:
        warehouse: As for ``open_table``.
        storage_options: As for ``open_table``.
        database: Of tables that are named without one.
        memory_limit: How much DuckDB may take before it uses the folder for temporary files, such as ``2GB``; by
            default four fifths of the machine's.
        threads: How many it uses; by default as many as there are cores.
    """

    def __init__(
        self,
        warehouse: str,
        storage_options: Mapping[str, Any] | None = None,
        *,
        database: str | None = None,
        memory_limit: str | None = None,
        threads: int | None = None,
    ) -> None:
        self._warehouse, self._storage_options, self._database = warehouse, storage_options, database
        limits = {"memory_limit": memory_limit, "threads": threads}
        self._limits = {name: value for name, value in limits.items() if value not in (None, "")}
        self._sources: dict[tuple[Identifier, int | str | None], PinnedRows | pa.Table] = {}

    def cursor(self) -> Cursor:
        """Return a cursor, which has a database in memory of its own.

        Raises:
            UnsupportedError: DuckDB is not installed. InvalidInputError: a limit that DuckDB refuses.
        """
        return Cursor(self, self._limits)

    def commit(self) -> None:
        """Let the next statement read the tables as they are then."""
        self._sources.clear()

    rollback = commit

    def close(self) -> None:
        """Forget the tables."""
        self._sources.clear()

    def source(self, mention: Mention) -> PinnedRows | pa.Table:
        """Return the rows of a table, in one state however often it is asked for.

        Raises:
            PaimonError: there is no such table, or it can't be read.
        """
        identifier, version = mention.identifier(self._database)
        key = (identifier, version)
        if key not in self._sources:
            self._sources[key] = self._opened(identifier, version)
        return self._sources[key]

    def _opened(self, identifier: Identifier, version: int | str | None) -> PinnedRows | pa.Table:
        name = str(replace(identifier, system_table=None))
        view = open_table(self._warehouse, name, storage_options=self._storage_options)
        if identifier.system_table is None:
            return pin_rows(view, version)
        if identifier.system_table in WITH_ROWS:
            raise InvalidInputError(f"SQL: {identifier} is not read by SQL; read_system_table reads it in Python")
        return inspect(view, identifier.system_table, version)


class Cursor:
    """Runs one SELECT after the other, and gives the rows of the last one."""

    arraysize = 1
    rowcount = -1

    def __init__(self, connection: Connection, limits: Mapping[str, Any]) -> None:
        self._connection = connection
        self._engine = _duckdb()
        self._limits = limits
        self._session = self._opened()
        self._scans: dict[str, PinnedDataset] = {}

    def _opened(self) -> Any:
        # DuckDB writes rows there when memory is not enough, into files that every user could read.
        self._spill = TemporaryDirectory(prefix="airflow-paimon-sql-", ignore_cleanup_errors=True)
        where = {"temp_directory": self._spill.name}
        try:
            session = self._engine.connect(":memory:", config={**_CLOSED, **where, **self._limits})
        except self._engine.Error as error:
            self._spill.cleanup()
            raise InvalidInputError(f"SQL: DuckDB refuses the settings {dict(self._limits)}: {error}") from None
        session.execute("SET TimeZone = 'UTC'")
        session.execute(f"CREATE SCHEMA {_UNNAMED}")
        session.execute(f"SET schema = '{_UNNAMED}'")
        session.execute("SET lock_configuration = true")
        return session

    @property
    def description(self) -> Sequence[Sequence[Any]] | None:
        """Name and type of each column of the result, as the DB-API wants it."""
        found: Sequence[Sequence[Any]] | None = self._session.description
        return found

    def execute(self, statement: str, parameters: Sequence[Any] | Mapping[str, Any] | None = None) -> Self:
        """Run a SELECT. ``parameters``: for its ``?``, or a mapping for its ``$name``.

        Raises:
            InvalidInputError: it is no SELECT over tables, or DuckDB refuses it. PaimonError: a table can't be read.
            UnsupportedError: it takes more memory than there is.
        """
        given = self._ready(statement, parameters)
        self._asked(lambda: self._session.execute(statement, *([given] if given else [])))
        return self

    def fetchone(self) -> tuple[Any, ...] | None:
        """Return the next row, None after the last one. Raises as ``execute`` does."""
        found: tuple[Any, ...] | None = self._asked(self._session.fetchone)
        return found

    def fetchmany(self, size: int | None = None) -> list[tuple[Any, ...]]:
        """Return the next rows. Raises as ``execute`` does."""
        return self._asked(lambda: self._session.fetchmany(size or self.arraysize))

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Return the rows that are left. Raises as ``execute`` does."""
        return self._asked(self._session.fetchall)

    def arrow(self, statement: str, parameters: Sequence[Any] | Mapping[str, Any] | None = None) -> pa.Table:
        """Run a SELECT, and return all its rows as an Arrow table. Raises as ``execute`` does."""
        relation = self._relation(statement, parameters)
        return self._asked(relation.to_arrow_table)

    def batches(
        self, statement: str, rows: int, parameters: Sequence[Any] | Mapping[str, Any] | None = None
    ) -> Iterator[pa.Table]:
        """Run a SELECT, and yield its rows as Arrow tables of at most so many rows. Raises as ``execute`` does."""
        relation = self._relation(statement, parameters)
        reader = self._asked(lambda: relation.to_arrow_reader(rows))
        while (batch := self._asked(lambda: next(reader, None))) is not None:
            yield pa.Table.from_batches([batch])

    def close(self) -> None:
        """End the session, and delete its temporary files."""
        self._session.close()
        self._spill.cleanup()

    def _relation(self, statement: str, parameters: Sequence[Any] | Mapping[str, Any] | None) -> Any:
        given = self._ready(statement, parameters)
        return self._asked(lambda: self._session.sql(statement, **({"params": given} if given else {})))

    def _ready(
        self, statement: str, parameters: Sequence[Any] | Mapping[str, Any] | None
    ) -> list[Any] | Mapping[str, Any] | None:
        """Open what a statement reads, and return its parameters as DuckDB takes them."""
        if isinstance(parameters, str | bytes):
            raise InvalidInputError("SQL: parameters are a list, or a mapping for $name; put a single one into a list")
        self._session.abort()  # it takes no statement before all rows of the last one are fetched
        self._register(tables_of(self._session, self._engine, statement))
        return parameters if isinstance(parameters, Mapping) or parameters is None else list(parameters)

    def _register(self, mentions: Sequence[Mention]) -> None:
        """Give DuckDB a view of each table, under the name that the statement has for it.

        Raises:
            InvalidInputError: two of them differ only in upper and lower case, which DuckDB doesn't tell apart.
        """
        self._scans = {}
        names: dict[tuple[str, str], Mention] = {}
        for mention in mentions:
            other = names.setdefault((mention.database.lower(), mention.name.lower()), mention)
            if other != mention:
                raise InvalidInputError(
                    f"SQL: {other} and {mention} differ only in upper and lower case, which DuckDB doesn't "
                    "distinguish; write the table's name the same way each time"
                )
        for at, mention in enumerate(mentions):
            found = self._connection.source(mention)
            source = f"__airflow_paimon_{at}"
            if isinstance(found, PinnedRows):
                found = self._scans[source] = PinnedDataset(found)
            self._session.register(source, found)
            schema = _quoted(mention.database or _UNNAMED)
            self._session.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
            self._session.execute(f"CREATE OR REPLACE VIEW {schema}.{_quoted(mention.name)} AS FROM {source}")

    def _asked(self, question: Callable[[], T]) -> T:
        try:
            return question()
        except (self._engine.Error, pa.ArrowException, PaimonError) as error:
            reasons = (scan.failure for scan in self._scans.values() if scan.failure is not None)
            if (reason := next(reasons, None)) is not None:
                raise reason from None
            if isinstance(error, self._engine.OutOfMemoryException):
                raise UnsupportedError(
                    f"SQL: the statement takes more memory than this process may use ({error}); raise memory_limit, "
                    f"read less, or run it in Spark"
                ) from None
            raise error if isinstance(error, PaimonError) else InvalidInputError(f"SQL: {error}") from None


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _duckdb() -> Any:
    try:
        found = import_module("duckdb")
    except ImportError as error:
        raise UnsupportedError(
            f"SQL of a Paimon connection needs DuckDB, which is not installed here ({error}): {INSTALL}"
        ) from None
    if int(found.__version__.partition(".")[0]) < 2:  # 1.2 passes on = 'nan' as a comparison that is never true
        raise UnsupportedError(
            f"SQL of a Paimon connection needs DuckDB 2.0, and here is {found.__version__}: {INSTALL}"
        )
    return found
