"""Paimon's Hive catalog: a Hive metastore knows where tables lie, copies their columns and options, and gives locks.

The schema that counts is the newest schema file in the table's folder, as in a filesystem catalog. What is written to
the metastore, and when, follows ``HiveCatalog`` and ``HiveCatalogLock`` of release 2.0.0.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field

from airflow_paimon.core.catalogs import hive_tables
from airflow_paimon.core.catalogs.base import Catalog, no_database
from airflow_paimon.core.catalogs.hive_client import EXAMPLE, HiveServer, Lock, Session, parse_uris
from airflow_paimon.core.catalogs.hive_tables import Copying
from airflow_paimon.core.catalogs.options import CatalogOptions
from airflow_paimon.core.catalogs.table_store import (
    CatalogTableStore,
    Locking,
    dropped_options,
    holding_lock,
    locking_at,
)
from airflow_paimon.core.catalogs.thrift import Struct
from airflow_paimon.core.errors import (
    AlreadyExistsError,
    InvalidInputError,
    NotPaimonError,
    PaimonError,
    StorageError,
    UnsafeOperationError,
    UnsupportedCatalogError,
    first_few,
)
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.store import Store, open_store

log = logging.getLogger(__name__)

_BATCH = 300
_NAME = re.compile(r"[a-z0-9_]+")
_FIRST_SLEEP_MS = 50
_TIMEOUT = "hive.metastore.client.socket.timeout"
_TIMEOUT_SECONDS = 120.0
_NOT_SPOKEN = {
    "hive.metastore.sasl.enabled": ("true", "Kerberos"),
    "hive.metastore.use.SSL": ("true", "TLS"),
    "hive.metastore.thrift.framed.transport.enabled": ("true", "framed messages"),
    "hive.metastore.thrift.compact.protocol.enabled": ("true", "the compact protocol"),
    "hive.metastore.client.thrift.transport.mode": ("http", "HTTP"),
    "hive.metastore.client.auth.mode": ("plain", "a password"),
}


_PARTITIONED = (
    "its partitions are to be in the metastore too (metastore.partitioned-table, metastore.tag-to-partition), and this "
    "package doesn't put them there. It can be read; write it with Paimon's own engines"
)


@dataclass(frozen=True, slots=True)
class HiveCatalog(Catalog):
    """``warehouse``: where the folders of a database are that the metastore gives no place."""

    server: HiveServer
    warehouse: str
    options: CatalogOptions
    copying: Copying

    @property
    def label(self) -> str:
        return f"catalog {self.server.label}"

    def databases(self) -> list[str]:
        with self.server.session() as metastore:
            return metastore.databases()

    def create_database(self, name: str) -> None:
        _check_name(name)
        with self.server.session() as metastore:
            metastore.create_database(name, f"{self.warehouse.rstrip('/')}/{name}.db")

    def drop_database(self, name: str) -> None:
        with self.server.session() as metastore:
            if others := metastore.tables(name):
                raise UnsafeOperationError(
                    f"Database {name!r} of {self.label} has tables that are not Paimon's, so it was not dropped: "
                    f"{first_few(others, 10)}"
                )
            metastore.drop_database(name)

    def tables(self, database: str) -> list[str]:
        with self.server.session() as metastore:
            names = metastore.tables(database)
            found = _tables(metastore, database, names)
        return sorted(hive_tables.name(table) for table in found if hive_tables.is_paimon(table))

    def locate(self, database: str, tables: Sequence[str]) -> list[Store | None]:
        with self.server.session() as metastore:
            if len(tables) == 1:
                return [self._opened(database, tables[0], metastore.table(database, tables[0]))]
            found = {hive_tables.name(t): t for t in _tables(metastore, database, tables) if hive_tables.is_paimon(t)}
        return [self._opened(database, name, found.get(name.lower())) for name in tables]

    def warehouse_store(self) -> Store:
        return open_store(self.warehouse, self.options.storage)

    def place(self, database: str, table: str) -> Store:
        with self.server.session() as metastore:
            return self._store(database, table, self._folder(metastore, database, table))

    def register(self, database: str, table: str, schema: TableSchema) -> None:
        with self.server.session() as metastore:
            if metastore.table(database, table) is not None:
                return
            folder = self._folder(metastore, database, table)
            now_s = int(time.time())
            new = hive_tables.new_table(database, table, schema, folder, self.copying, metastore.user, now_s)
            with suppress(AlreadyExistsError):  # by another that creates the same table now
                metastore.create_table(database, table, new)

    def _folder(self, metastore: Session, database: str, table: str) -> str:
        """Return where a new table lies."""
        for name in (database, table):
            _check_name(name)
        found = metastore.database(database)
        if found is None:
            raise no_database(self, database)
        base = hive_tables.database_location(found) or f"{self.warehouse.rstrip('/')}/{database}.db"
        return f"{base.rstrip('/')}/{table}"

    def _opened(self, database: str, table: str, found: Struct | None) -> Store | None:
        if found is None:
            return None
        if not hive_tables.is_paimon(found):
            raise NotPaimonError(
                f"{database}.{table} in {self.label} is not a Paimon table: it is a {hive_tables.described(found)}"
            )
        folder = hive_tables.location(found)
        if not folder:
            raise UnsupportedCatalogError(f"{database}.{table} in {self.label} has no location")
        return self._store(database, table, folder, _PARTITIONED if hive_tables.is_partitioned(found) else None)

    def _store(self, database: str, table: str, folder: str, refused: str | None = None) -> Store:
        files = open_store(folder, self.options.storage)
        locking = locking_at(files.uri, self.options)
        cascade = self.options.flag("alter-table-cascade", True)
        skip_stats = self.options.flag("hive.skip-update-stats", False)
        guard = HiveGuard(self.server, database, table, files, locking, self.copying, cascade, skip_stats)
        return CatalogTableStore(files, table, guard, refused)


@dataclass(frozen=True, slots=True)
class HiveGuard:
    """Locks of one table, and what the metastore shows of it."""

    server: HiveServer
    name: str
    table: str
    files: Store = field(repr=False)
    locking: Locking
    copying: Copying
    cascade: bool
    skip_stats: bool

    def hold(self, object_name: str) -> AbstractContextManager[None]:
        """See ``Guard.hold``."""
        if not self.locking.enabled:
            return nullcontext()
        lost = f"The Hive metastore {self.server.label} forgot the lock on {self.name}.{object_name} (hive.txn.timeout)"
        return holding_lock(lambda: self._acquire(object_name), self._release, lost)

    def check(self, schema: TableSchema) -> None:
        """See ``Guard.check``."""
        options = schema.options
        in_metastore = schema.partition_keys and options.get("metastore.partitioned-table", "").lower() == "true"
        if in_metastore or "metastore.tag-to-partition" in options:
            raise UnsupportedCatalogError(f"{self.name}.{self.table}: {_PARTITIONED}")

    def schema_changed(self, schema: TableSchema) -> None:
        """See ``Guard.schema_changed``. A table that the metastore doesn't know yet gets everything when registered."""
        with self.server.session() as metastore:
            found = metastore.table(self.name, self.table)
            if found is None:
                return
            wanted = hive_tables.altered(found, schema, self.copying, dropped_options(self.files, schema))
            stored = hive_tables.parameters(found).get("DO_NOT_UPDATE_STATS", "").lower() == "true"
            environment = {"DO_NOT_UPDATE_STATS": str(stored or self.skip_stats).lower()}
            if self.cascade:
                environment["CASCADE"] = "true"
            metastore.alter_table(self.name, self.table, wanted, environment)

    def lag(self, schema: TableSchema) -> list[str]:
        """See ``Guard.lag``."""
        with self.server.session() as metastore:
            found = metastore.table(self.name, self.table)
        if found is None:
            return []
        return hive_tables.lag(found, schema, self.copying, dropped_options(self.files, schema))

    def _acquire(self, object_name: str) -> int:
        """Wait for the lock, looking after 50 ms and then after pauses twice as long each."""
        until = time.monotonic() + self.locking.timeout_ms / 1000
        with self.server.session() as metastore:
            lock: Lock | None = metastore.lock(self.name, object_name)
            assert lock is not None
            lock_id, sleep_ms = lock.id, _FIRST_SLEEP_MS
            try:
                while lock is not None and not lock.held and time.monotonic() < until:
                    time.sleep(min(sleep_ms, self.locking.sleep_ms) / 1000)
                    sleep_ms *= 2
                    lock = metastore.check_lock(lock_id)
            except BaseException:
                self._release(lock_id)
                raise
        if lock is not None and lock.held:
            return lock_id
        self._release(lock_id)
        why = "it was forgotten" if lock is None else f"another has held it for {self.locking.timeout_ms / 1000:g} s"
        raise StorageError(
            f"The Hive metastore {self.server.label} did not give the lock on {self.name}.{object_name}: {why}; "
            f"nothing was written"
        )

    def _release(self, lock_id: int) -> bool:
        """Return False if the lock was lost before, which Hive 2's ``unlock`` doesn't say. One that stays is forgotten
        later.
        """
        try:
            with self.server.session() as metastore:
                still = metastore.check_lock(lock_id)
                metastore.unlock(lock_id)
                return still is not None
        except PaimonError as error:
            log.warning("The lock %d could not be released; the metastore forgets it (%s)", lock_id, error.message)
            return True


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise InvalidInputError(f"{name!r} can't be a name in a Hive metastore: use small letters, digits and _")


def _tables(metastore: Session, database: str, names: Sequence[str]) -> list[Struct]:
    batches = (names[i : i + _BATCH] for i in range(0, len(names), _BATCH))
    return [table for batch in batches for table in metastore.tables_named(database, batch)]


def open_hive_catalog(warehouse: str, options: CatalogOptions) -> HiveCatalog:
    """Open a Hive catalog; it connects with the first call."""
    own: Mapping[str, str] = options.own
    for name, (value, what) in _NOT_SPOKEN.items():
        if own.get(name, "").strip().lower() == value:
            raise UnsupportedCatalogError(
                f"{name}={own[name]}: a Hive metastore behind {what} can't be asked. Open its tables by their folders "
                f"to read them: open_table(path=...)"
            )
    kind = own.get("table.type", "managed").strip().lower()
    if kind not in ("managed", "external"):
        raise InvalidInputError(f"table.type must be managed or external; it is {own['table.type']!r}")
    copying = Copying(
        options.flag("sync-all-properties", True), options.flag("location-in-properties", False), kind == "external"
    )
    server = parse_uris(options.required("uri", EXAMPLE), options.seconds(_TIMEOUT, _TIMEOUT_SECONDS))
    return HiveCatalog(server, warehouse, options, copying)
