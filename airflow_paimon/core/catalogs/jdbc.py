"""Paimon's JDBC catalog: names of tables, copies of their options, and locks, in tables of a relational database.

A table's folder follows from its name and its columns from its schema files, as in a filesystem catalog. Statements
and meaning follow ``JdbcCatalog`` and ``JdbcUtils`` of release 2.0.0, but for two things that go wrong there: a lock is
released by its owner only, and one that looks expired is taken only after it was watched for that long (Java compares
clocks of sessions, whose time zones may differ in PostgreSQL).
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

from airflow_paimon.core.catalogs.base import Catalog, no_database
from airflow_paimon.core.catalogs.database import Database, Transaction, parse_jdbc_uri
from airflow_paimon.core.catalogs.filesystem import FilesystemCatalog
from airflow_paimon.core.catalogs.options import CatalogOptions
from airflow_paimon.core.catalogs.table_store import CatalogTableStore, Locking, holding_lock, locking_at, properties
from airflow_paimon.core.errors import AlreadyExistsError, NotFoundError, PaimonError, StorageError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.store import Store, open_store

T = TypeVar("T")

log = logging.getLogger(__name__)

_ONE_TABLE = "catalog_key = ? AND database_name = ? AND table_name = ?"
_FIRST_SLEEP_MS = 25
_TABLES = """CREATE TABLE IF NOT EXISTS paimon_tables (
    catalog_key VARCHAR(255) NOT NULL, database_name VARCHAR(255) NOT NULL, table_name VARCHAR(255) NOT NULL,
    PRIMARY KEY (catalog_key, database_name, table_name))"""
_DATABASE_PROPERTIES = """CREATE TABLE IF NOT EXISTS paimon_database_properties (
    catalog_key VARCHAR(255) NOT NULL, database_name VARCHAR(255) NOT NULL, property_key VARCHAR(255),
    property_value VARCHAR(1000), PRIMARY KEY (catalog_key, database_name, property_key))"""
_TABLE_PROPERTIES = """CREATE TABLE IF NOT EXISTS paimon_table_properties (
    catalog_key VARCHAR(255) NOT NULL, database_name VARCHAR(255) NOT NULL, table_name VARCHAR(255) NOT NULL,
    property_key VARCHAR(255) NOT NULL, property_value VARCHAR(1000),
    PRIMARY KEY (catalog_key, database_name, table_name, property_key))"""
_LOCKS = """CREATE TABLE IF NOT EXISTS paimon_distributed_locks (
    lock_id VARCHAR(255) NOT NULL, acquired_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP NOT NULL,
    expire_time_seconds BIGINT DEFAULT 0 NOT NULL, PRIMARY KEY (lock_id))"""
_DATABASES = (
    "SELECT database_name FROM paimon_tables WHERE catalog_key = ?",
    "SELECT database_name FROM paimon_database_properties WHERE catalog_key = ?",
)


@dataclass(frozen=True, slots=True)
class JdbcCatalog(Catalog):
    """``key``: Paimon's ``catalog-key``, which divides one database among catalogs."""

    database: Database
    key: str
    files: FilesystemCatalog
    locking: Locking
    sync: bool

    @property
    def label(self) -> str:
        return f"catalog {self.database.label}, key {self.key!r}"

    def databases(self) -> list[str]:
        with self.database.transaction() as run:
            return sorted(_databases(run, self.key))

    def create_database(self, name: str) -> None:
        place = f"{self.files.warehouse.uri.rstrip('/')}/{name}.db"

        def insert() -> bool:
            with self.database.transaction() as run:
                if name in _databases(run, self.key):
                    return False
                row = "INSERT INTO paimon_database_properties VALUES (?, ?, ?, ?)"
                said = {"exists": "true", "location": place}  # as Java does
                return all(run.inserted(row, self.key, name, key, value) for key, value in said.items())

        if not _with_tables(self.database, insert, _TABLES, _DATABASE_PROPERTIES):
            raise AlreadyExistsError(f"{self.label} has a database {name!r} already")

    def drop_database(self, name: str) -> None:
        with self.database.transaction() as run:
            if name not in _databases(run, self.key):
                raise NotFoundError(f"{self.label} has no database {name!r}")
            of_it = "catalog_key = ? AND database_name = ?"
            run.run(f"DELETE FROM paimon_database_properties WHERE {of_it}", self.key, name)

    def tables(self, database: str) -> list[str]:
        sql = "SELECT table_name FROM paimon_tables WHERE catalog_key = ? AND database_name = ?"
        with self.database.transaction() as run:
            return sorted(row[0] for row in run.rows(sql, self.key, database))

    def locate(self, database: str, tables: Sequence[str]) -> list[Store | None]:
        sql = f"SELECT table_name FROM paimon_tables WHERE {_ONE_TABLE}"
        with self.database.transaction() as run:
            known = [bool(run.rows(sql, self.key, database, table)) for table in tables]
        return [self._store(database, t) if k else None for t, k in zip(tables, known, strict=True)]

    def place(self, database: str, table: str) -> Store:
        if database not in self.databases():
            raise no_database(self, database)
        return self._store(database, table)

    def warehouse_store(self) -> Store:
        return self.files.warehouse

    def register(self, database: str, table: str, schema: TableSchema) -> None:
        def insert() -> None:
            with self.database.transaction() as run:
                run.inserted("INSERT INTO paimon_tables VALUES (?, ?, ?)", self.key, database, table)

        _with_tables(self.database, insert, _TABLES, _DATABASE_PROPERTIES)
        self._guard(database, table).schema_changed(schema)

    def _store(self, database: str, table: str) -> Store:
        return CatalogTableStore(self.files.place(database, table), table, self._guard(database, table))

    def _guard(self, database: str, table: str) -> JdbcGuard:
        return JdbcGuard(self.database, self.key, database, table, self.locking, self.sync)


@dataclass(frozen=True, slots=True)
class _Held:
    """A lock as its row shows it. ``acquired_at`` tells one holder from the next."""

    acquired_at: Any
    expires_after_s: int


@dataclass(frozen=True, slots=True)
class JdbcGuard:
    """Locks and properties of one table. A lock expires after the time that others wait for it at most."""

    database: Database
    key: str
    name: str
    table: str
    locking: Locking
    sync: bool

    def hold(self, object_name: str) -> AbstractContextManager[None]:
        """See ``Guard.hold``."""
        if not self.locking.enabled:
            return nullcontext()
        lock = f"{self.key}.{self.name}.{object_name}"
        lost = f"The lock {lock!r} of {self.database.label} expired"
        return holding_lock(lambda: self._acquire(lock), lambda held: self._release(lock, held), lost)

    def schema_changed(self, schema: TableSchema) -> None:
        """See ``Guard.schema_changed``: Paimon keeps the options and keys of main as rows."""
        if not self.sync:
            return

        def put() -> None:
            with self.database.transaction() as run:
                run.run(f"DELETE FROM paimon_table_properties WHERE {_ONE_TABLE}", self.key, self.name, self.table)
                for key, value in sorted(properties(schema).items()):
                    sql = "INSERT INTO paimon_table_properties VALUES (?, ?, ?, ?, ?)"
                    run.run(sql, self.key, self.name, self.table, key, value)

        _with_tables(self.database, put, _TABLE_PROPERTIES)

    def check(self, schema: TableSchema) -> None:
        """See ``Guard.check``."""

    def lag(self, schema: TableSchema) -> list[str]:
        """See ``Guard.lag``."""
        if not self.sync:
            return []
        try:
            stored = self.stored_properties()
        except NotFoundError:  # no engine has copied properties of any table yet
            stored = {}
        wanted = properties(schema)
        return [f"option {key}" for key in sorted(stored.keys() | wanted.keys()) if stored.get(key) != wanted.get(key)]

    def stored_properties(self) -> dict[str, str]:
        """Return what the catalog holds of the table's options and keys."""
        sql = f"SELECT property_key, property_value FROM paimon_table_properties WHERE {_ONE_TABLE}"
        with self.database.transaction() as run:
            return dict(run.rows(sql, self.key, self.name, self.table))

    def _acquire(self, lock: str) -> _Held:
        seen, until, since, sleep_ms = None, 0.0, 0.0, _FIRST_SLEEP_MS
        while True:
            mine, other = _with_tables(self.database, lambda: self._try(lock), _LOCKS)
            if mine is not None:
                return mine
            now = time.monotonic()
            # From the first look on: who waits as long as the lock of a dead process is to live must outlive it.
            until = until or now + self.locking.timeout_ms / 1000
            if other != seen:
                seen, since = other, now
            elif other is not None and now - since >= other.expires_after_s:
                self._delete(lock, other)
                continue
            if now > until:
                raise StorageError(
                    f"The lock {lock!r} of {self.database.label} was not free for {self.locking.timeout_ms / 1000:g} s"
                    f"{'' if seen is None else f' (held since {seen.acquired_at})'}; nothing was written"
                )
            time.sleep(random.uniform(0.5, 1) * min(sleep_ms, self.locking.sleep_ms) / 1000)
            sleep_ms *= 2

    def _try(self, lock: str) -> tuple[_Held | None, _Held | None]:
        """Insert the lock's row: (mine, None), or (None, the other's)."""
        sql = "INSERT INTO paimon_distributed_locks (lock_id, expire_time_seconds) VALUES (?, ?)"
        with self.database.transaction() as run:
            if run.inserted(sql, lock, self.locking.timeout_ms // 1000):
                return self._row(run, lock), None
        with self.database.transaction() as run:
            return None, self._row(run, lock)

    def _row(self, run: Transaction, lock: str) -> _Held | None:
        sql = "SELECT acquired_at, expire_time_seconds FROM paimon_distributed_locks WHERE lock_id = ?"
        return next((_Held(row[0], int(row[1])) for row in run.rows(sql, lock)), None)

    def _delete(self, lock: str, held: _Held) -> bool:
        sql = "DELETE FROM paimon_distributed_locks WHERE lock_id = ? AND acquired_at = ?"
        with self.database.transaction() as run:
            return run.run(sql, lock, held.acquired_at) > 0

    def _release(self, lock: str, held: _Held) -> bool:
        """Return False if it was not ours any more. A lock that can't be released expires."""
        try:
            return self._delete(lock, held)
        except PaimonError as error:
            log.warning("The lock %r could not be released and expires by itself (%s)", lock, error.message)
            return True


def _databases(run: Transaction, key: str) -> set[str]:
    return {row[0] for sql in _DATABASES for row in run.rows(sql, key)}


def _with_tables(database: Database, action: Callable[[], T], *tables: str) -> T:
    """Run an action, after making the tables that it needs if one is missing, as Java does for the first user.

    They are not made in advance: that needs a right that who only writes may not have, even where they exist.
    """
    try:
        return action()
    except NotFoundError:
        with database.transaction() as run:
            for table in tables:
                run.run(table)
        return action()


def open_jdbc_catalog(warehouse: str, options: CatalogOptions) -> JdbcCatalog:
    """Open a JDBC catalog; it connects with the first call."""
    own: Mapping[str, str] = options.own
    uri = options.required("uri", "jdbc:postgresql://host:5432/paimon")
    files = FilesystemCatalog(open_store(warehouse, options.storage))
    return JdbcCatalog(
        parse_jdbc_uri(uri, own.get("jdbc.user", ""), own.get("jdbc.password", "")),
        own.get("catalog-key", "jdbc"),
        files,
        locking_at(files.warehouse.uri, options),
        options.flag("sync-all-properties", True),
    )
