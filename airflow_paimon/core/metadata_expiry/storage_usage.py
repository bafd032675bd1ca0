"""storage_usage: how many bytes each branch, tag and range of snapshots holds, and what its end would free.

The files are listed before the roots are gathered, so that what is committed meanwhile counts as referenced.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from airflow_paimon.core.metadata_expiry.ages import duration_ms
from airflow_paimon.core.metadata_expiry.file_index import StoredIndex, store_index
from airflow_paimon.core.metadata_expiry.file_index_plan import Mask, Sums
from airflow_paimon.core.metadata_expiry.listed_files import ListedFiles, list_files
from airflow_paimon.core.metadata_expiry.orphan_plan import CandidateColumns, Stored
from airflow_paimon.core.metadata_expiry.remove_orphan_files import file_prefixes
from airflow_paimon.core.metadata_expiry.root_values import SNAPSHOT, TAG, Root
from airflow_paimon.core.metadata_expiry.roots import RootReader, unfinished_warnings
from airflow_paimon.core.metadata_expiry.storage_usage_plan import (
    BRANCH,
    CHANGELOGS,
    SNAPSHOTS,
    TAGS,
    TRASHED,
    UNDO,
    Holder,
    Usage,
    added,
    holders_of,
    usages,
)
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import StorageUsage
from airflow_paimon.core.table.name_digests import Digests, digests_of
from airflow_paimon.core.table.paths import MAIN, PRIVATE_DIR, BranchPaths
from airflow_paimon.core.table.sorted_runs import MEMORY_BYTES, SortedRuns, cuts_for, pieces_between
from airflow_paimon.core.table.table import Table

_ROW_BYTES = 150
"""Of a file that is listed, or named by a manifest, while it is counted."""
_NO_FILES = Sums()
_YOUNG = "1 d"
"""As long as ``remove_orphan_files`` leaves unreferenced files to writers by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """The files of a table's folder, all branches together, in parts that don't overlap but for ``young``.

    ``referenced`` and ``unreferenced``: data files and metadata that a root names, or none; ``young``: of the latter
    those younger than a day, which a writer may be about to commit. ``unknown``: files beside them with names that no
    writer gives. ``records``: what this package keeps of its own. ``others``: snapshots, tags, schemas, hints and all
    else. Besides: ``live``, the data files of main's newest snapshot, and ``external``, those outside of the folder.
    """

    total: Sums = _NO_FILES
    referenced: Sums = _NO_FILES
    unreferenced: Sums = _NO_FILES
    young: Sums = _NO_FILES
    unknown: Sums = _NO_FILES
    records: Sums = _NO_FILES
    others: Sums = _NO_FILES
    live: Sums = _NO_FILES
    external: Sums = _NO_FILES

    def __add__(self, other: Totals) -> Totals:
        return Totals(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})

    def to_json(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name).to_json() for f in fields(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableUsage:
    """``holders``: those whose end frees the most come first; their roots are positions in ``roots``."""

    totals: Totals
    holders: tuple[Usage, ...]
    roots: Sequence[Root]
    warnings: tuple[str, ...]


def storage_usage(context: Context, request: StorageUsage) -> OperationResult:
    """Count the bytes of a table by who holds them. Changes nothing.

    Raises:
        FormatError: something that names files is unreadable; names it.
    """
    found = read_usage(context.table, context.now_ms, request.memory_mb << 20)
    holders = found.holders[: request.limit] if request.limit else found.holders
    details = found.totals.to_json() | {
        "references": [holder_json(usage, found.roots) for usage in holders],
        "references_left_out": len(found.holders) - len(holders),
        "warnings": list(found.warnings),
    }
    head = context.table.latest_snapshot_id()
    return context.result(None, branch=MAIN, changed=False, before=head, after=head, details=details)


def read_usage(table: Table, now_ms: int, memory_bytes: int = MEMORY_BYTES) -> TableUsage:
    """Count the bytes of a table, of all its branches. ``now_ms``: epoch milliseconds, for the age of files.

    Raises:
        FormatError: something that names files is unreadable; names it.
    """
    main = table.branch(MAIN)
    files = list_files(main, file_prefixes(main), ListedFiles(SortedRuns(memory_bytes // 4), is_whole=True))
    reader, runs = RootReader(main), SortedRuns(memory_bytes // 4)
    roots = reader.gather()
    living, index = reader.of_living(roots.keeping, lambda some: (some, store_index(main, some, runs, follows=True)))
    count = _Count(files, _Rest.of(files.rest, roots.branches), living, roots.branches, index, now_ms)
    totals, found = count.all(memory_bytes // 2)
    return TableUsage(
        totals=_of_rest(files) + totals,
        holders=tuple(sorted(found, key=_most_first)),
        roots=living,
        warnings=tuple(unfinished_warnings(roots)),
    )


@dataclass(frozen=True, slots=True)
class _Rest:
    """Files that are no candidates: digests of their paths, sorted, and their sizes. ``own``: sorted digests of those
    in the folder of each branch.
    """

    paths: Digests
    sizes: npt.NDArray[np.int64]
    own: Mapping[str, Digests]

    @classmethod
    def of(cls, rest: Sequence[Stored], branches: Collection[str]) -> _Rest:
        digests, sizes = digests_of([f.path for f in rest]), np.array([f.size for f in rest], np.int64)
        order = np.argsort(digests, kind="stable")
        own = {name: np.sort(digests_of(paths)) for name, paths in _own_files(rest, branches).items()}
        return cls(digests[order], sizes[order], own)


@dataclass(frozen=True, slots=True)
class _Count:
    """Counts one range of names after the other."""

    files: ListedFiles
    rest: _Rest
    living: Sequence[Root]
    branches: Sequence[str]
    index: StoredIndex
    now_ms: int

    def all(self, memory_bytes: int) -> tuple[Totals, list[Usage]]:
        cuts = cuts_for(self.files.rows + len(self.rest.paths) + self.index.rows, _ROW_BYTES, memory_bytes)
        rest, ranges = pieces_between(self.rest.paths, cuts), self.index.by_ranges(cuts)
        own = {name: pieces_between(digests, cuts) for name, digests in self.rest.own.items()}
        head, totals, found = _newest(self.living), Totals(), list[Usage]()
        for at, (c, _) in enumerate(self.files.by_ranges(cuts)):
            beside = slice(rest[at], rest[at + 1])
            index = ranges.at(
                at,
                np.concatenate([c.names, self.rest.paths[beside]]),
                np.concatenate([c.sizes, self.rest.sizes[beside]]),
            )
            mine = {
                name: index.numbers(self.rest.own[name][edges[at] : edges[at + 1]]) for name, edges in own.items()
            }  # fmt: skip
            times = index.times()
            found = added(found, usages(index, times, holders_of(self.living, self.branches, mine)))
            live = index.live(head) if head is not None else np.zeros(len(index), bool)
            totals += replace(
                _of_candidates(c, times[index.numbers(c.names)] > 0, self.now_ms),
                live=index.sums(live),
                external=index.sums(index.outside),
            )
        return totals, found


def _of_candidates(c: CandidateColumns, used: Mask, now_ms: int) -> Totals:
    before_ms = now_ms - duration_ms(_YOUNG, "age")
    return Totals(
        total=c.sums(np.ones(len(used), bool)),
        referenced=c.sums(used),
        unreferenced=c.sums(~used),
        young=c.sums(~used & ~c.older(before_ms)),
    )


def _of_rest(files: ListedFiles) -> Totals:
    records = [f for f in files.rest if f.path.startswith(f"{PRIVATE_DIR}/")]
    apart = {f.path for f in (*files.unknown_files, *records)}
    return Totals(
        total=_count(files.rest),
        unknown=_count(files.unknown_files),
        records=_count(records),
        others=_count(f for f in files.rest if f.path not in apart),
    )


def _count(files: Iterable[Stored]) -> Sums:
    sizes = [f.size for f in files]
    return Sums(len(sizes), sum(sizes))


def _newest(roots: Sequence[Root]) -> int | None:
    ids = {r.snapshot.id: at for at, r in enumerate(roots) if r.kind == SNAPSHOT and r.branch == MAIN}
    return ids[max(ids)] if ids else None


def _own_files(rest: Sequence[Stored], branches: Collection[str]) -> Mapping[str, list[str]]:
    """Return the files in the folder of each branch: its snapshots, tags and schemas."""
    folders = {BranchPaths(name).root: name for name in branches}
    found: dict[str, list[str]] = {}
    for file in rest:
        parts = file.path.split("/", 2)
        branch = folders.get("/".join(parts[:2]) + "/") if len(parts) == 3 else None
        if branch is not None:
            found.setdefault(branch, []).append(file.path)
    return found


def _most_first(usage: Usage) -> tuple[int, int, str, str, str]:
    holder = usage.holder
    return -usage.frees.bytes, -usage.names.bytes, holder.kind, holder.branch, holder.name


def holder_json(usage: Usage, roots: Sequence[Root]) -> dict[str, Any]:
    """Return a holder as JSON values. ``roots``: how many snapshots, tags and changelogs it stands for."""
    holder = usage.holder
    ids = [roots[at].snapshot.id for at in holder.roots]
    return {
        "kind": holder.kind,
        "branch": holder.branch,
        "name": holder.name or None,
        "first_snapshot": min(ids, default=None),
        "last_snapshot": max(ids, default=None),
        "roots": len(ids),
        **usage.names.to_json(),
        "frees_files": usage.frees.files,
        "frees_bytes": usage.frees.bytes,
        "way": way_to_free(holder),
    }


def way_to_free(holder: Holder) -> str:
    """Say what ends a holder, so that its files can go."""
    on = "" if holder.branch == MAIN else f" --branch {holder.branch}"
    clean = ", then remove_orphan_files"
    ways = {
        BRANCH: f"delete_branch --branch {holder.name}{clean}",
        TAG: f"delete_tag --tag {holder.name}{on}{clean}",
        TAGS: f"expire_tags --include-unlimited --older-than AGE{on}",
        UNDO: "their own retention; until then these publishes can be undone",
        SNAPSHOTS: f"expire_snapshots --retain-min 1 --retain-max 1{on}",
        CHANGELOGS: f"expire_changelogs --delete-all{on}",
        TRASHED: "any expiry, once the grace time is over",
    }
    return ways.get(holder.kind, "the end of the publishes that are running")
