"""New versions of one or several sets around the publish, or the undo, of their tables."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from airflow_paimon.core.catalogs import Catalog
from airflow_paimon.core.errors import FormatError, UnsupportedCatalogError
from airflow_paimon.core.requests.requests import SET_KEEP, SET_RETENTION
from airflow_paimon.core.table.table_sets import set_folder, set_names
from airflow_paimon.core.table_sets.publish import (
    Sets,
    begin,
    check_retention,
    complete,
    expire,
    give_up_own,
    open_sets,
    pin_of,
    version_of,
)


@dataclass(frozen=True, slots=True)
class SeveralSets:
    """``names``: the sets. ``operation_id`` publishes; ``earlier``: operations that it stands for, before Clear."""

    warehouse: str
    storage_options: Mapping[str, Any] | None = field(repr=False)
    names: tuple[str, ...]
    operation_id: str
    earlier: tuple[str, ...] = ()

    def begin(self, tables: Sequence[str]) -> None:
        """Claim a version of each set, unless this operation has made it already.

        Raises:
            ConflictError: another operation is publishing tables of a set. UnsupportedError: a table can't be in a set,
                or the catalog has none. NotFoundError: a snapshot that the version would have is gone.
        """
        for sets in self._open():
            for table in tables:
                sets.member(table)
            if version_of(sets, self.operation_id, _now()) is None:
                begin(sets, self.operation_id, self.earlier, _now())

    def complete(self, published: Mapping[str, int | None]) -> list[dict[str, Any]]:
        """Make the versions; returns what each has. ``published``: the snapshot of each table, None = its newest."""
        out = []
        for sets in self._open():
            if (made := version_of(sets, self.operation_id, _now())) is not None:
                out.append(made.to_json())
                continue
            pins = {name: pin_of(sets.table(name), at) for name, at in published.items()}
            made = complete(sets, begin(sets, self.operation_id, self.earlier, _now()), pins, _now())
            expired = expire(sets, SET_KEEP, check_retention(SET_KEEP, SET_RETENTION), _now())
            out.append({**made.to_json(), "expired": expired})
        return out

    def give_up(self, reason: str) -> None:
        """Let others make versions again: this operation publishes nothing more."""
        for sets in self._open():
            give_up_own(sets, (self.operation_id, *self.earlier), reason, _now())

    def _open(self) -> list[Sets]:
        return [open_sets(self.warehouse, name, self.storage_options) for name in self.names]


def sets_made_by(catalog: Catalog, operations: Collection[str]) -> list[str]:
    """Return the sets of which one of these operations has made a version; none where the catalog has no sets."""
    try:
        names = set_names(catalog)
    except UnsupportedCatalogError:
        return []
    found = []
    for name in names:
        with suppress(FormatError):  # a damaged record is no reason to undo nothing
            versions = set_folder(catalog, name).versions()
            if any(one.operation_id in operations and one.abandoned is None for one in versions):
                found.append(name)
    return found


def _now() -> int:
    return int(time.time() * 1000)
