"""storage_usage: how many bytes each branch, tag and range of snapshots holds, and what its end would free.

The files are listed before the roots are gathered, so that what is committed meanwhile counts as referenced.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from airflow_paimon.core.metadata_expiry.ages import duration_ms
from airflow_paimon.core.metadata_expiry.listed_files import ListedFiles, list_in_parts
from airflow_paimon.core.metadata_expiry.orphan_plan import CandidateColumns
from airflow_paimon.core.metadata_expiry.referenced_files import StoredReferences, read_referenced_files
from airflow_paimon.core.metadata_expiry.referenced_files_plan import Mask, Sums
from airflow_paimon.core.metadata_expiry.remove_orphan_files import file_prefixes
from airflow_paimon.core.metadata_expiry.root_values import SNAPSHOT, Root
from airflow_paimon.core.metadata_expiry.roots import RootReader, unfinished_warnings
from airflow_paimon.core.metadata_expiry.storage_usage_plan import (
    BRANCH,
    Usage,
    added,
    group_roots,
    usages,
    way_to_free,
)
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import StorageUsage
from airflow_paimon.core.store.base import FileInfo
from airflow_paimon.core.table.name_digests import digests_of
from airflow_paimon.core.table.paths import MAIN, PRIVATE_DIR, BranchPaths
from airflow_paimon.core.table.spill import MEMORY_BYTES, DigestRanges, SpillBuffer, cuts_for
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
    """``usages``: those whose end frees the most come first; their roots are positions in ``roots``."""

    totals: Totals
    usages: tuple[Usage, ...]
    roots: Sequence[Root]
    warnings: tuple[str, ...]


def storage_usage(context: Context, request: StorageUsage) -> OperationResult:
    """Count the bytes of a table by who holds them. Changes nothing.

    Raises:
        FormatError: something that names files is unreadable; names it.
    """
    found = read_usage(context.table, context.now_ms, request.memory_mb << 20)
    usages = found.usages[: request.limit] if request.limit else found.usages
    details = found.totals.to_json() | {
        "references": [usage_json(usage, found.roots) for usage in usages],
        "references_left_out": len(found.usages) - len(usages),
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
    files = ListedFiles(SpillBuffer(memory_bytes // 4), file_prefixes(main), lists_other_files=True)
    list_in_parts(main, files.add)
    reader, runs = RootReader(main), SpillBuffer(memory_bytes // 4)
    roots = reader.gather()
    living, index = reader.without_vanished(roots.living, lambda some: (some, read_referenced_files(main, some, runs)))
    totals, found = _count_all(files, living, roots.branches, index, now_ms, memory_bytes // 2)
    return TableUsage(
        totals=totals,
        usages=tuple(sorted(found, key=_most_first)),
        roots=living,
        warnings=tuple(unfinished_warnings(roots)),
    )


def _count_all(
    files: ListedFiles,
    living: Sequence[Root],
    branches: Sequence[str],
    stored: StoredReferences,
    now_ms: int,
    memory_bytes: int,
) -> tuple[Totals, list[Usage]]:
    """Count one range of names after the other."""
    other_files = files.other_files
    cuts = cuts_for(files.rows + len(other_files) + stored.rows, _ROW_BYTES, memory_bytes)
    sizes = np.array([f.size for f in other_files], np.int64)
    others = DigestRanges([files.runs.add((digests_of([f.name for f in other_files]), sizes))], cuts)
    ranges, groups, head = stored.by_ranges(cuts), group_roots(living, branches), _newest(living)
    totals, found = _totals_of_other_files(files), list[Usage]()
    for at, (c, _) in enumerate(files.by_ranges(cuts)):
        listed = zip((c.names, c.sizes), others.parts(at)[0], strict=True)
        index = ranges.at(at, *map(np.concatenate, listed))
        times = index.times()
        found = added(found, usages(index, times, groups))
        live = index.live(head) if head is not None else np.zeros(len(index), bool)
        totals += replace(
            _of_candidates(c, times[index.numbers(c.names)] > 0, now_ms),
            live=index.sums(live),
            external=index.sums(index.external),
        )
    return totals, _with_own_files(found, other_files, living)


def _with_own_files(found: Iterable[Usage], other_files: Iterable[FileInfo], living: Iterable[Root]) -> list[Usage]:
    """Add to what a branch names the files of its folder that are no roots, such as its schemas."""
    roots = {r.path for r in living}
    files = [f for f in other_files if f.name not in roots]

    def with_own(usage: Usage) -> Usage:
        folder = BranchPaths(usage.group.name).root
        own = _count(f for f in files if f.name.startswith(folder))
        return replace(usage, names=usage.names + own, frees=usage.frees + own)

    return [with_own(usage) if usage.group.kind == BRANCH else usage for usage in found]


def _of_candidates(c: CandidateColumns, used: Mask, now_ms: int) -> Totals:
    before_ms = now_ms - duration_ms(_YOUNG, "age")
    return Totals(
        total=c.sums(np.ones(len(used), bool)),
        referenced=c.sums(used),
        unreferenced=c.sums(~used),
        young=c.sums(~used & ~c.older(before_ms)),
    )


def _totals_of_other_files(files: ListedFiles) -> Totals:
    total, unknown = _count(files.other_files), files.unknown
    records = _count(f for f in files.other_files if f.name.startswith(f"{PRIVATE_DIR}/"))
    others = Sums(total.files - unknown.files - records.files, total.bytes - unknown.bytes - records.bytes)
    return Totals(total=total, unknown=unknown, records=records, others=others)


def _count(files: Iterable[FileInfo]) -> Sums:
    sizes = [f.size for f in files]
    return Sums(len(sizes), sum(sizes))


def _newest(roots: Sequence[Root]) -> int | None:
    ids = {r.snapshot.id: at for at, r in enumerate(roots) if r.kind == SNAPSHOT and r.branch == MAIN}
    return ids[max(ids)] if ids else None


def _most_first(usage: Usage) -> tuple[int, int, str, str, str]:
    group = usage.group
    return -usage.frees.bytes, -usage.names.bytes, group.kind, group.branch, group.name


def usage_json(usage: Usage, roots: Sequence[Root]) -> dict[str, Any]:
    """Return a usage as JSON values. ``roots``: how many snapshots, tags and changelogs it stands for."""
    group = usage.group
    ids = [roots[at].snapshot.id for at in group.roots]
    return {
        "kind": group.kind,
        "branch": group.branch,
        "name": group.name or None,
        "first_snapshot": min(ids, default=None),
        "last_snapshot": max(ids, default=None),
        "roots": len(ids),
        **usage.names.to_json(),
        "frees_files": usage.frees.files,
        "frees_bytes": usage.frees.bytes,
        "way": way_to_free(group.kind, group.branch, group.name),
    }
