"""Table sets: named versions of several tables of a warehouse that belong together, and how readers find them.

A set lies in the warehouse, ``_airflow_paimon/sets/<name>/``, beside the databases. Of each version it has these files,
each put if absent: ``claim-<N>.json`` takes the number before anything is done, and ``version-<N>.json`` ends it: it
lists the snapshots, which are all tagged by then, or says that the version was given up. That one put makes the
version visible, so that a reader finds either all of it or the one before. ``pins-<N>.json`` lists the snapshots where
they were not known yet when the number was claimed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_paimon.core.errors import InvalidInputError, NotFoundError, UnsupportedCatalogError
from airflow_paimon.core.format.snapshot import Snapshot, Tag
from airflow_paimon.core.store import Store
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.record_kinds import SETS
from airflow_paimon.core.table.table_set import (
    VERSION_PREFIX,
    TableSet,
    check_set_name,
    is_set_name,
    parse_set_tag,
    version_file,
)

if TYPE_CHECKING:
    from airflow_paimon.core.catalogs import Catalog
    from airflow_paimon.core.table.table import Table

_FILE = re.compile(r"(claim|version)-([1-9]\d{0,17})\.json")
_PINNED: ContextVar[dict[str, TableSet] | None] = ContextVar("airflow_paimon_table_sets", default=None)


@dataclass(frozen=True, slots=True)
class SetFolder:
    """The files of one set; nothing is kept between two calls."""

    store: Store
    name: str

    def numbers(self) -> tuple[list[int], list[int]]:
        """List the numbers that are claimed and those that have ended, each ascending: one listing."""
        found: dict[str, list[int]] = {"claim": [], "version": []}
        for name in self.store.names(""):
            if match := _FILE.fullmatch(name):
                found[match[1]].append(int(match[2]))
        return sorted(found["claim"]), sorted(found["version"])

    def ended(self, number: int) -> TableSet | None:
        """Read how a number ended; None = it hasn't, or has expired."""
        return TableSet.find(self.store, version_file(number), f"Table set {self.name!r}")

    def latest(self, ended: list[int] | None = None) -> TableSet | None:
        """Read the newest version; None = there is none yet. ``ended``: the numbers, if they are known."""
        for number in reversed(self.numbers()[1] if ended is None else ended):
            found = self.ended(number)
            if found is not None and found.abandoned is None:
                return found
        return None

    def versions(self) -> list[TableSet]:
        """Read all numbers that have ended, those given up as well, ascending."""
        return [found for number in self.numbers()[1] if (found := self.ended(number)) is not None]


def set_folder(catalog: Catalog, name: str) -> SetFolder:
    """Open the folder of a set in the warehouse of a catalog. Nothing is read yet.

    Raises:
        UnsupportedCatalogError: the catalog's server keeps the warehouse.
    """
    return SetFolder(catalog.warehouse_store().child(f"{SETS.folder}/{check_set_name(name)}"), name)


def set_names(catalog: Catalog) -> list[str]:
    """List the sets of a warehouse."""
    found = catalog.warehouse_store().list(SETS.folder)
    return sorted(info.name for info in found if info.is_dir and is_set_name(info.name))


def find_set(catalog: Catalog, name: str, number: int | None = None) -> TableSet:
    """Read a version of a set, the newest without a number.

    Raises:
        NotFoundError: no such set or version; the message says which there are.
    """
    folder = set_folder(catalog, name)
    found = folder.latest() if number is None else folder.ended(number)
    if found is not None and found.abandoned is None:
        return found
    ended = [one.number for one in folder.versions() if one.abandoned is None]
    if ended and number is not None:
        raise NotFoundError(
            f"Table set {name!r} of {catalog.label} has no version {number}: it has {ended[0]} to {ended[-1]}, and "
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
    named = parse_set_tag(tag.name)
    if named is None or view.catalog is None or view.branch_name != MAIN:
        return None
    try:
        found = set_folder(view.catalog, named[0]).ended(named[1])
    except UnsupportedCatalogError:
        return None
    pin = None if found is None or found.abandoned is not None else found.tables.get(view.name)
    return found if pin is not None and pin.identity == tag.snapshot.identity else None
