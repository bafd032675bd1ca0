"""Plans the drop of a table: hide it from every engine, look again, remove its files (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from airflow_paimon.core.format.records import Record
from airflow_paimon.core.plan import Delete, FileAction, PutNew, Replace
from airflow_paimon.core.table.paths import BRANCH_DIR, PRIVATE_DIR, BranchPaths
from airflow_paimon.core.table.record_kinds import DROPPING

_METADATA = {PRIVATE_DIR, BRANCH_DIR, "schema", "snapshot", "tag", "changelog", "consumer"}
RECORD = DROPPING.path("dropping")
"""Lies in a table while it is being dropped: what brings it back, and tells a later try what is left to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropping(Record):
    """The table as it was when the drop began. ``schemas``: their files by id; ``snapshot``: its newest, None without.

    Valid as long as the newest snapshot is this one. ``removing``: files are gone, so it can't be undone any more.
    """

    schemas: Mapping[int, str]
    snapshot: str | None
    removing: bool = False
    KIND = DROPPING


@dataclass(frozen=True, slots=True, kw_only=True)
class DropPlan:
    """Actions in the table's folder. ``mark``: no way back from it."""

    hide: tuple[FileAction, ...]
    undo: tuple[FileAction, ...]
    mark: Replace


def plan_drop(dropping: Dropping) -> DropPlan:
    """Plan the drop of a table that was so.

    The newest schema goes last, so that no engine takes an older one for it, and comes back first.
    """
    paths = BranchPaths()
    numbers = sorted(dropping.schemas)
    reason = "no engine sees the table without"
    hide = [Delete(path=paths.schema(n), expected=dropping.schemas[n].encode(), reason=reason) for n in numbers]
    record = dropping.to_bytes()
    undo = [
        PutNew(path=paths.schema(n), data=dropping.schemas[n].encode(), reason="as it was", same_ok=True)
        for n in reversed(numbers)
    ]
    return DropPlan(
        hide=(PutNew(path=RECORD, data=record, reason="what brings it back", same_ok=True), *hide),
        undo=(*undo, Delete(path=RECORD, expected=record, reason="the table stays")),
        mark=Replace(
            path=RECORD,
            data=replace(dropping, removing=True).to_bytes(),
            expected=record,
            reason="its files go from here on",
        ),
    )


def division(files: Iterable[str]) -> tuple[list[str], list[str]]:
    """Divide the files of a table that is dropped: snapshots and all else whose names may come again, and those whose
    names are used once.

    Snapshots come first: a table that is created in the same place while files are left must not show them.
    """
    snapshots = f"{BranchPaths().snapshot_dir}/"
    again: list[str] = []
    once: list[str] = []
    for file in files:
        if file != RECORD:
            (again if "/" not in file or file.partition("/")[0] in _METADATA else once).append(file)
    return sorted(again, key=lambda f: (not f.startswith(snapshots), f)), once
