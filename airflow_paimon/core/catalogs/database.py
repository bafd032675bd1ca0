"""The relational databases of JDBC catalogs: how each is reached from Python, and what its errors mean."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType
from typing import Any
from urllib.parse import parse_qs, urlsplit

from airflow_paimon.core.errors import (
    InvalidInputError,
    NotFoundError,
    PaimonError,
    StorageError,
    UnsafeOperationError,
    UnsupportedCatalogError,
)

_EXAMPLE = "jdbc:postgresql://host:5432/paimon, jdbc:mysql://host:3306/paimon or jdbc:sqlite:/path/catalog.db"
_WAIT_SECONDS = 30
_PG_REFUSED = frozenset({"28000", "28P01", "42501"})
"""Invalid authorization, invalid password, insufficient privilege."""
_MYSQL_REFUSED = frozenset({1044, 1045, 1142, 1143})

_DRIVERS = {"sqlite": "sqlite3", "postgresql": "pg8000.dbapi", "mysql": "pymysql"}

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Database:
    """``kind``: of ``_DRIVERS``. It holds no connection."""

    kind: str
    place: str
    """The file of SQLite, else ``//host:port/database``."""
    user: str = ""
    password: str = field(default="", repr=False)
    encrypted: bool = False

    @property
    def label(self) -> str:
        return f"jdbc:{self.kind}:{self.place}"

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Connect, run statements in one transaction, commit; roll back after an error."""
        with self._told():
            connection = self._connect()
        with closing(connection), self._told():
            try:
                yield Transaction(self, connection)
                connection.commit()
            except BaseException:
                with suppress(Exception):
                    connection.rollback()
                raise

    def _connect(self) -> Any:
        if self.kind == "sqlite":
            if not os.path.isdir(os.path.dirname(self.place) or "."):
                raise StorageError(f"{self.label}: the folder of the file does not exist")
            return sqlite3.connect(self.place, timeout=_WAIT_SECONDS)
        at = urlsplit(self.place)
        known: dict[str, Any] = {"host": at.hostname, "user": self.user, "password": self.password}
        known["database"] = at.path.lstrip("/")
        if self.kind == "postgresql":
            encrypted = {"ssl_context": True} if self.encrypted else {}
            return self.driver.connect(**known, **encrypted, port=at.port or 5432, timeout=_WAIT_SECONDS)
        ssl: dict[str, Any] = {"ssl": {"check_hostname": False}} if self.encrypted else {}
        timeouts = dict.fromkeys(("connect_timeout", "read_timeout", "write_timeout"), _WAIT_SECONDS)
        return self.driver.connect(**known, **ssl, **timeouts, port=at.port or 3306)

    @property
    def driver(self) -> ModuleType:
        """The DB-API module. ``UnsupportedCatalogError``: it is not installed."""
        name = _DRIVERS[self.kind]
        try:
            return import_module(name)
        except ImportError:
            raise UnsupportedCatalogError(
                f"{self.label}: the package {name.partition('.')[0]} is not installed; "
                f"pip install 'airflow-paimon[jdbc]'"
            ) from None

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Turn the driver's errors into this package's."""
        try:
            yield
        except PaimonError:
            raise
        except (self.driver.Error, OSError) as error:
            raise self.error(error) from error

    def error(self, error: Exception) -> PaimonError:
        """Return this package's error for the driver's."""
        code, text = _code_of(error), _text_of(error)
        if code in ("42P01", 1146) or text.startswith("no such table"):
            return NotFoundError(
                f"{self.label} is not a Paimon catalog: {text}. Check the uri; a new catalog gets its tables when "
                "Flink or Spark opens it first"
            )
        if code in _PG_REFUSED or code in _MYSQL_REFUSED:
            return UnsafeOperationError(f"{self.label} refuses the user {self.user!r}: {text}")
        return StorageError(f"{self.label}: {text}")


@dataclass(frozen=True, slots=True)
class Transaction:
    """Statements of one transaction; ``?`` stands for a parameter."""

    database: Database
    connection: Any

    def rows(self, sql: str, *parameters: Any) -> list[Row]:
        """Run a query."""
        with closing(self._run(sql, parameters)) as cursor:
            return [tuple(row) for row in cursor.fetchall()]

    def run(self, sql: str, *parameters: Any) -> int:
        """Run a statement and return how many rows it changed."""
        with closing(self._run(sql, parameters)) as cursor:
            return int(cursor.rowcount)

    def inserted(self, sql: str, *parameters: Any) -> bool:
        """Insert a row; False if there is one of that key: what the transaction did before is then undone."""
        try:
            return self.run(sql, *parameters) == 1
        except self.database.driver.Error as error:
            if _is_duplicate(error):
                self.connection.rollback()
                return False
            raise

    def _run(self, sql: str, parameters: Sequence[Any]) -> Any:
        cursor = self.connection.cursor()
        takes_question_marks = self.database.driver.paramstyle == "qmark"
        cursor.execute(sql if takes_question_marks else sql.replace("?", "%s"), tuple(parameters))
        return cursor


def parse_jdbc_uri(uri: str, user: str = "", password: str = "") -> Database:
    """Parse the ``uri`` of a JDBC catalog. Parameters of Java's driver other than user, password and SSL are ignored.

    Raises:
        InvalidInputError: not a URI of a database that Paimon's JDBC catalog knows.
    """
    scheme, _, rest = uri.strip().partition(":")
    kind, _, place = rest.partition(":")
    if scheme != "jdbc" or kind not in _DRIVERS or not place:
        raise InvalidInputError(f"The uri of a JDBC catalog is not one of {_EXAMPLE}")
    if kind == "sqlite":
        path = place.removeprefix("file:").partition("?")[0]
        if not path.startswith("/"):
            raise InvalidInputError(f"The uri of a SQLite catalog needs the whole path of its file: {_EXAMPLE}")
        return Database(kind, path)
    at = urlsplit(place)
    parameters = {key: values[-1] for key, values in parse_qs(at.query).items()}
    if not at.hostname or not at.path.strip("/") or at.username or at.password:
        raise InvalidInputError(
            f"The uri of a JDBC catalog names host and database, such as {_EXAMPLE}; user and password are the options "
            f"jdbc.user and jdbc.password"
        )
    ssl = (
        parameters.get("ssl", parameters.get("useSSL", "")).lower() == "true"
        or parameters.get("sslmode", "") in _ENCRYPTED
    )
    place = f"//{at.netloc}/{at.path.strip('/')}"
    return Database(kind, place, user or parameters.get("user", ""), password or parameters.get("password", ""), ssl)


_ENCRYPTED = frozenset({"require", "verify-ca", "verify-full"})


def _code_of(error: Exception) -> str | int | None:
    first = error.args[0] if error.args else None
    return first.get("C") if isinstance(first, dict) else first if isinstance(first, int) else None


def _text_of(error: Exception) -> str:
    first = error.args[0] if error.args else None
    if isinstance(first, dict):
        return str(first.get("M", error))
    if isinstance(first, int) and len(error.args) > 1:
        return str(error.args[1])
    cause = error.__cause__
    return f"{error}" if cause is None else f"{str(error).rstrip('.')}: {cause}"


def _is_duplicate(error: Exception) -> bool:
    return _code_of(error) in ("23505", 1062) or "UNIQUE constraint failed" in str(error)
