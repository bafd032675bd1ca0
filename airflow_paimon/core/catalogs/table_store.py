"""The folder of a table whose catalog takes part in its commits.

A lock of the catalog is held over the one put of a snapshot or schema and nothing else: planning, data files and
manifests take time, and a lock that is held long is lost. The put itself stays put-if-absent. The lock keeps Paimon's
Java engine, which looks and then renames, from replacing what is put here.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

from airflow_paimon.core.catalogs.options import CatalogOptions
from airflow_paimon.core.errors import (
    OutcomeUnknownError,
    PaimonError,
    StorageError,
    UnsupportedCatalogError,
    UnsupportedError,
)
from airflow_paimon.core.format.schema import TableSchema, parse_schema
from airflow_paimon.core.store import Store
from airflow_paimon.core.store.wrapper import StoreWrapper
from airflow_paimon.core.table.paths import (
    BRANCH_DIR,
    BRANCH_PREFIX,
    SCHEMA_PREFIX,
    SNAPSHOT_PREFIX,
    BranchPaths,
    numbered,
)

T = TypeVar("T")

log = logging.getLogger(__name__)

_SYNC_TRIES = 3
_LOCK_TIMEOUT_MS = 8 * 60_000
_LOCK_SLEEP_MS = 1_000
"""Java's default is 8 s, with which a writer hardly gets the lock beside others that commit all the time."""
_REPLACEABLE = re.compile(r"s3|s3a|s3n|gs|gcs|wasbs?|cosn|emr\w*")
_COMMITTED = re.compile(
    rf"(?:{BRANCH_DIR}/{BRANCH_PREFIX}(?P<branch>[^/]+)/)?"
    rf"(?:snapshot/{SNAPSHOT_PREFIX}|(?P<schema>schema/{SCHEMA_PREFIX}))\d+"
)


@dataclass(frozen=True, slots=True)
class Locking:
    """Whether commits take the catalog's lock; how long to wait for one, and the longest pause between looks."""

    enabled: bool
    timeout_ms: int
    sleep_ms: int


def locking_at(uri: str, options: CatalogOptions) -> Locking:
    """Return how commits to a storage take the catalog's lock: as ``lock.enabled`` says, or where Java needs it.

    Java locks on object stores by default. On HDFS, ``abfs`` and OSS its last step doesn't replace a file that is
    there, so nothing is won by the lock.
    """
    enabled = options.flag("lock.enabled", bool(_REPLACEABLE.fullmatch(uri.partition("://")[0].lower())))
    timeout_ms = options.millis("lock-acquire-timeout", _LOCK_TIMEOUT_MS)
    return Locking(enabled, timeout_ms, options.millis("lock-check-max-sleep", _LOCK_SLEEP_MS))


def dropped_options(files: Store, schema: TableSchema) -> set[str]:
    """Return the options that earlier versions of main's schema had and this one hasn't."""
    folder = BranchPaths().schema_dir
    ids = [i for i in numbered(files.names(folder), SCHEMA_PREFIX) if i < schema.id]
    data = files.read_many([f"{folder}/{SCHEMA_PREFIX}{i}" for i in ids])
    earlier = (parse_schema(d, f"{SCHEMA_PREFIX}{i}") for i, d in zip(ids, data, strict=True))
    return {name for old in earlier for name in old.options} - schema.options.keys()


def properties(schema: TableSchema) -> dict[str, str]:
    """Return what Paimon copies of a schema into the properties of a catalog's table."""
    bucket_key = schema.options.get("bucket-key") or ",".join(schema.trimmed_primary_keys)
    keys = {
        "primary-key": ",".join(schema.primary_keys),
        "partition": ",".join(schema.partition_keys),
        "bucket-key": bucket_key,
    }
    return {**schema.options, **{key: value for key, value in keys.items() if value}}


@contextmanager
def holding_lock(acquire: Callable[[], T], release: Callable[[T], bool], lost: str) -> Iterator[None]:
    """Hold a lock. ``release``: whether it was ours until then; ``lost``: what has happened if not.

    Raises:
        OutcomeUnknownError: it was lost meanwhile.
    """
    lock = acquire()
    try:
        yield
    except BaseException:
        release(lock)
        raise
    if not release(lock):
        raise OutcomeUnknownError(
            f"{lost} while it was held, so another engine may have replaced what was written meanwhile"
        )


class Guard(Protocol):
    """What a catalog does about the commits of one table. It can be pickled."""

    def hold(self, object_name: str) -> AbstractContextManager[None]:
        """Hold the catalog's lock on ``t`` or ``t$branch_b``.

        Raises:
            StorageError: on entering; nothing was written. OutcomeUnknownError: on leaving; the lock was lost
                meanwhile, and another engine may have replaced what was put.
        """
        ...

    def check(self, schema: TableSchema) -> None:
        """Refuse a schema that the catalog can't hold, before it is put."""
        ...

    def schema_changed(self, schema: TableSchema) -> None:
        """Bring main's newest schema to the catalog."""
        ...

    def lag(self, schema: TableSchema) -> list[str]:
        """Say what the catalog shows otherwise than main's newest schema."""
        ...


class CatalogTableStore(StoreWrapper):
    """Puts the snapshots and schemas of ``table`` (its name without the database) under the catalog's guard.

    ``refused``: why this table can't be written here, None if it can.
    """

    __slots__ = ("guard", "refused", "table")

    def __init__(self, inner: Store, table: str, guard: Guard, refused: str | None = None) -> None:
        super().__init__(inner)
        self.table, self.guard, self.refused = table, guard, refused

    @property
    def commits_refused(self) -> UnsupportedError | None:
        return self.inner.commits_refused if self.refused is None else UnsupportedCatalogError(self.refused)

    def names_if_few(self, path: str) -> list[str] | None:
        return self.inner.names_if_few(path)

    def create(self, path: str, data: bytes) -> None:
        found = _COMMITTED.fullmatch(path)
        if found is None:
            self.inner.create(path, data)
            return
        schema = parse_schema(data, path) if found["schema"] and not found["branch"] else None
        if schema is not None:
            self.guard.check(schema)
        self.inner.before_create()
        with self._held(found["branch"]):
            self.inner.create(path, data)
        if schema is not None:
            self._sync(schema)

    def replace(self, path: str, data: bytes) -> None:
        found = _COMMITTED.fullmatch(path)
        if found is None:
            self.inner.replace(path, data)
            return
        with self._held(found["branch"]):
            self.inner.replace(path, data)

    def _held(self, branch: str | None) -> AbstractContextManager[None]:
        return self.guard.hold(f"{self.table}$branch_{branch}" if branch else self.table)

    def _sync(self, schema: TableSchema) -> None:
        """Tell the catalog. The schema file is what counts, so a catalog that lags behind fails nothing."""
        for left in reversed(range(_SYNC_TRIES)):
            try:
                self.guard.schema_changed(schema)
                return
            except PaimonError as error:
                if not isinstance(error, StorageError) or not left:
                    log.warning(
                        "%s: the catalog still shows the columns and options before schema %d (%s); "
                        "repair_table --finding metastore brings them there",
                        self.table, schema.id, error.message,
                    )  # fmt: skip
                    return
