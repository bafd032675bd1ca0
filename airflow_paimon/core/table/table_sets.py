"""Table sets: named versions of several tables of a warehouse that belong together, and how readers find them.

A set lies in the warehouse, ``_airflow_paimon/sets/<name>/``, beside the databases: ``version-<N>.json`` lists the
snapshots of a version and the tag that each of them has by then. That one put makes the version visible, so that a
reader finds either all of it or the one before.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_paimon.core.errors import InvalidInputError, NotFoundError, UnsupportedCatalogError
from airflow_paimon.core.format.records import Record
from airflow_paimon.core.format.snapshot import Snapshot, Tag
from airflow_paimon.core.store import Store
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.record_kinds import SETS

if TYPE_CHECKING:
    from airflow_paimon.core.catalogs import Catalog
    from airflow_paimon.core.table.table import Table

VERSION_PREFIX = "set:"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,99}")
_FILE = re.compile(r"version-([1-9]\d{0,17})\.json")
_TAG = re.compile(rf"set-({_NAME.pattern})-([1-9]\d{{0,17}})-([0-9a-f]{{4}})[0-9a-f]{{8}}")
"""Set, number, digest of the set's folder: a table may be in sets of this name in several warehouses."""
_PINNED: ContextVar[dict[str, TableSet] | None] = ContextVar("airflow_paimon_table_sets", default=None)


def check_set_name(name: str) -> str:
    """Return the name of a set.

    Raises:
        InvalidInputError: it can't be one.
    """
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise InvalidInputError(
            f"Table set {name!r}: a name has letters, digits, '_' and '-', does not begin with '-', and has at most "
            f"100 characters"
        )
    return name


def parse_set_version(text: str) -> tuple[str, int | None] | None:
    """Divide ``set:nightly@7`` into name and number, None for another text; without ``@`` it is the newest version.

    Raises:
        InvalidInputError: it begins with ``set:`` and is not of that form.
    """
    if not text.startswith(VERSION_PREFIX):
        return None
    name, at, number = text.removeprefix(VERSION_PREFIX).partition("@")
    if at and not (number.isascii() and number.isdigit()):
        raise InvalidInputError(f"The version {text!r} is not of the form set:NAME or set:NAME@NUMBER")
    return check_set_name(name), int(number) if at else None


@dataclass(frozen=True, slots=True)
class SetMember:
    """The snapshot of a table's main that belongs to a version; ``identity``: ``Snapshot.identity``."""

    snapshot_id: int
    identity: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSet(Record):
    """One version of a set, in ``version-<N>.json``. ``tables``: by ``db.table``; ``tag``: the tag that the snapshot of
    each has; ``created_ms``: epoch milliseconds by the maker's clock; ``previous``: ``digest`` of the version before.
    """

    name: str
    number: int
    tables: Mapping[str, SetMember]
    tag: str
    created_ms: int
    operation_id: str | None = None
    previous: str | None = None
    KIND = SETS

    @property
    def version(self) -> str:
        """What a read takes as ``version``: ``set:nightly@7``."""
        return f"{VERSION_PREFIX}{self.name}@{self.number}"

    @property
    def digest(self) -> str:
        return _digest(self.to_bytes().decode(), 16)

    def pin(self, table: str) -> SetMember:
        """Return the snapshot of a table.

        Raises:
            NotFoundError: the version doesn't have the table; it names those that it has.
        """
        if table not in self.tables:
            raise NotFoundError(
                f"Version {self.number} of table set {self.name!r} has no table {table} (it has "
                f"{', '.join(sorted(self.tables))})"
            )
        return self.tables[table]

    def to_json(self) -> dict[str, Any]:
        """Return what results, sensors and look-ups say about it."""
        return {"table_set": self.name, "number": self.number, "version": self.version, "tag": self.tag,
                "created": self.created_ms, "operation_id": self.operation_id,
                "tables": {name: pin.snapshot_id for name, pin in self.tables.items()}}  # fmt: skip


def version_file(number: int) -> str:
    return f"version-{number}.json"


@dataclass(frozen=True, slots=True)
class SetFolder:
    """The files of one set; nothing is kept between two calls."""

    store: Store
    name: str

    def tag(self, number: int, tables: Mapping[str, SetMember]) -> str:
        """Return the name of the tag that each table of a version gets. It depends on the snapshots, so that no
        operation that makes another version of this number finds, replaces or deletes it.
        """
        pins = "\n".join(f"{table}@{pin.snapshot_id}:{pin.identity}" for table, pin in sorted(tables.items()))
        return f"set-{self.name}-{number}-{_digest(self.store.uri, 4)}{_digest(pins, 8)}"

    def left_over_tags(self, view: Table, versions: Sequence[TableSet]) -> list[str]:
        """Return the names of a table's tags that belong to no version of this set, and won't: the version of that
        number is another one, or has expired. ``versions``: all, ascending.
        """
        known, home = {version.tag for version in versions}, _digest(self.store.uri, 4)
        tags = [match for tag in view.tag_names() if (match := _TAG.fullmatch(tag)) and tag not in known]
        ours = [match for match in tags if match[1] == self.name and match[3] == home]
        return [match[0] for match in ours if versions and int(match[2]) <= versions[-1].number]

    def numbers(self) -> list[int]:
        """List the numbers of the versions, ascending."""
        return sorted(int(match[1]) for name in self.store.names("") if (match := _FILE.fullmatch(name)))

    def find(self, number: int) -> TableSet | None:
        """Read a version; None = there is none, or it has expired."""
        return TableSet.find(self.store, version_file(number), f"Table set {self.name!r}")

    def following(self, number: int) -> TableSet | None:
        """Read the oldest version after a number; None = there is none."""
        later = (found for at in self.numbers() if at > number and (found := self.find(at)) is not None)
        return next(later, None)

    def latest(self) -> TableSet | None:
        """Read the newest version; None = there is none yet."""
        return next((found for number in reversed(self.numbers()) if (found := self.find(number)) is not None), None)

    def versions(self) -> list[TableSet]:
        """Read all versions, ascending."""
        return [found for number in self.numbers() if (found := self.find(number)) is not None]


def set_folder(catalog: Catalog, name: str) -> SetFolder:
    """Open the folder of a set in the warehouse of a catalog. Nothing is read yet.

    Raises:
        UnsupportedCatalogError: the catalog's server keeps the warehouse.
    """
    return SetFolder(catalog.warehouse_store().child(f"{SETS.folder}/{check_set_name(name)}"), name)


def set_names(catalog: Catalog) -> list[str]:
    """List the sets of a warehouse."""
    found = catalog.warehouse_store().list(SETS.folder)
    return sorted(info.name for info in found if info.is_dir and _NAME.fullmatch(info.name))


def find_set(catalog: Catalog, name: str, number: int | None = None) -> TableSet:
    """Read a version of a set, the newest without a number.

    Raises:
        NotFoundError: no such set or version; the message says which there are.
    """
    folder = set_folder(catalog, name)
    found = folder.latest() if number is None else folder.find(number)
    if found is not None:
        return found
    numbers = folder.numbers()
    if numbers and number is not None:
        raise NotFoundError(
            f"Table set {name!r} of {catalog.label} has no version {number}: it has {numbers[0]} to {numbers[-1]}, and "
            f"older ones have expired"
        )
    known = ", ".join(set_names(catalog)) or "none"
    raise NotFoundError(f"{catalog.label} has no table set {name!r} with a version (its sets: {known})")


@contextmanager
def same_versions() -> Iterator[None]:
    """Read one version of each set inside the context, also where several reads name the set without a number."""
    token = _PINNED.set({}) if _PINNED.get() is None else None
    try:
        yield
    finally:
        if token is not None:
            _PINNED.reset(token)


def snapshot_in_set(table: Table, name: str, number: int | None) -> Snapshot:
    """Return the snapshot that a version of a set has of a table.

    Raises:
        NotFoundError: no such version, the table is not in it, or the snapshot has expired. InvalidInputError: the view
            is of another branch than main, or was opened by its path.
    """
    if table.catalog is None:
        raise InvalidInputError(f"{table.label} was opened by its path: open it by warehouse and name to read a set")
    if table.branch_name != MAIN:
        raise InvalidInputError(f"{table.label}: table sets have snapshots of main; name no branch")
    known, key = _PINNED.get(), f"{table.catalog.label}\0{name}"
    found = known.get(key) if known is not None and number is None else None
    if found is None:
        found = find_set(table.catalog, name, number)
    if known is not None and number is None:
        known[key] = found
    pin = found.pin(table.name)
    tag = table.find_tag(found.tag)
    if tag is not None and tag.snapshot.identity == pin.identity:
        return tag.snapshot
    snapshot = table.find_snapshot(pin.snapshot_id)
    if snapshot is not None and snapshot.identity == pin.identity:
        return snapshot
    raise NotFoundError(
        f"{table.name}: snapshot {pin.snapshot_id} of version {found.number} of table set {name!r} and its tag "
        f"{found.tag!r} don't exist: the version has expired, or the tag was deleted. Read the newest version, "
        f"{VERSION_PREFIX}{name}"
    )


def version_of_tag(view: Table, tag: Tag) -> TableSet | None:
    """Return the version of a set that a tag of main belongs to; None for other tags, and where there are no sets."""
    named = _TAG.fullmatch(tag.name)
    if named is None or view.catalog is None or view.branch_name != MAIN:
        return None
    try:
        found = set_folder(view.catalog, named[1]).find(int(named[2]))
    except UnsupportedCatalogError:
        return None
    pin = None if found is None or found.tag != tag.name else found.tables.get(view.name)
    return found if pin is not None and pin.identity == tag.snapshot.identity else None


def _digest(text: str, digits: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:digits]
