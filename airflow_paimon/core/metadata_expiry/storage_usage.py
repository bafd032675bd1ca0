"""storage_usage: how many bytes each branch, tag and range of snapshots holds, and what its end would free.

The files are listed before the roots are gathered, so that what is committed meanwhile counts as referenced.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from airflow_paimon.core.metadata_expiry.contents import NumberedFiles, read_contents
from airflow_paimon.core.metadata_expiry.contents_plan import FileNumbers, Mask
from airflow_paimon.core.metadata_expiry.expiry import duration_ms
from airflow_paimon.core.metadata_expiry.orphan_plan import (
    CandidateColumns,
    Candidates,
    Stored,
    Sums,
    sort_files,
)
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
    holders_of,
    usages,
)
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import StorageUsage
from airflow_paimon.core.table.name_digests import digests_of
from airflow_paimon.core.table.paths import MAIN, PRIVATE_DIR, BranchPaths
from airflow_paimon.core.table.table import Table

_YOUNG = "1 d"
"""As long as ``remove_orphan_files`` leaves unreferenced files to writers by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """``files``: how many, with their ``bytes``."""

    files: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """The files of a table's folder, all branches together, in parts that don't overlap but for ``young``.

    ``referenced`` and ``unreferenced``: data files and metadata that a root names, or none; ``young``: of the latter
    those younger than a day, which a writer may be about to commit. ``unknown``: files beside them with names that no
    writer gives. ``records``: what this package keeps of its own. ``others``: snapshots, tags, schemas, hints and all
    else. Besides: ``live``, the data files of main's newest snapshot, and ``external``, those outside of the folder.
    """

    total: Counted
    referenced: Counted
    unreferenced: Counted
    young: Counted
    unknown: Counted
    records: Counted
    others: Counted
    live: Counted
    external: Counted


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
    found = read_usage(context.table, context.now_ms)
    holders = found.holders[: request.limit] if request.limit else found.holders
    details = asdict(found.totals) | {
        "holders": [holder_json(usage, found.roots) for usage in holders],
        "holders_left_out": len(found.holders) - len(holders),
        "warnings": list(found.warnings),
    }
    head = context.table.latest_snapshot_id()
    return context.result(None, branch=MAIN, changed=False, before=head, after=head, details=details)


def read_usage(table: Table, now_ms: int) -> TableUsage:
    """Count the bytes of a table, of all its branches. ``now_ms``: epoch milliseconds, for the age of files.

    Raises:
        FormatError: something that names files is unreadable; names it.
    """
    main = table.branch(MAIN)
    folder = _list_folder(main)
    numbered = NumberedFiles(
        np.concatenate([folder.candidates.names, digests_of([f.path for f in folder.rest])]),
        np.concatenate([folder.candidates.sizes, np.array([f.size for f in folder.rest], np.int64)]),
    )
    reader = RootReader(main)
    roots = reader.gather()
    living, contents = reader.of_living(
        roots.keeping, lambda some: (some, read_contents(main, some, numbered, follows=True))
    )
    own = _own_files(folder.rest, roots.branches, numbered)
    contents, sizes = replace(contents, files=len(numbered)), numbered.sizes
    times = contents.times()
    found = usages(contents, sizes, times, holders_of(living, roots.branches, own))
    head = _newest(living)
    live = contents.live(head) if head is not None else np.zeros(len(sizes), bool)
    return TableUsage(
        totals=replace(
            _totals(folder, numbered, times > 0, now_ms),
            live=Counted(files=int(live.sum()), bytes=int(sizes[live].sum())),
            external=Counted(files=len(numbered.external), bytes=int(sizes[numbered.external].sum())),
        ),
        holders=tuple(sorted(found, key=_most_first)),
        roots=living,
        warnings=tuple(unfinished_warnings(roots)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Folder:
    """``candidates``: what roots name by its name; ``unknown`` is a part of ``rest``, and so are ``records``."""

    candidates: CandidateColumns
    unknown: Sequence[Stored]
    records: Sequence[Stored]
    rest: Sequence[Stored]


def _list_folder(main: Table) -> _Folder:
    prefixes, found = file_prefixes(main), Candidates()
    unknown: list[Stored] = []
    records: list[Stored] = []
    rest: list[Stored] = []
    for infos in main.store.files_in_parts(""):
        stored = [Stored(i.name, i.size, i.modified_ms) for i in infos]
        own = [f for f in stored if f.path.startswith(f"{PRIVATE_DIR}/")]
        part = sort_files((f for f in stored if not f.path.startswith(f"{PRIVATE_DIR}/")), prefixes)
        known = {c.file.path for c in part.candidates}
        records += own
        unknown += part.unknown
        rest += [f for f in stored if f.path not in known]
        found.add(part)
    return _Folder(candidates=found.columns(), unknown=unknown, records=records, rest=rest)


def _totals(folder: _Folder, numbered: NumberedFiles, referenced: Mask, now_ms: int) -> Totals:
    candidates = folder.candidates
    used = referenced[np.searchsorted(numbered.listed, candidates.names)]
    before_ms = now_ms - duration_ms(_YOUNG, "age")
    apart = {f.path for f in (*folder.unknown, *folder.records)}
    every, rest = _counted(candidates.sums(np.ones(len(used), bool))), _count(folder.rest)
    return Totals(
        total=Counted(files=every.files + rest.files, bytes=every.bytes + rest.bytes),
        referenced=_counted(candidates.sums(used)),
        unreferenced=_counted(candidates.sums(~used)),
        young=_counted(candidates.sums(~used & ~candidates.older(before_ms))),
        unknown=_count(folder.unknown),
        records=_count(folder.records),
        others=_count(f for f in folder.rest if f.path not in apart),
        live=Counted(),
        external=Counted(),
    )


def _counted(sums: Sums) -> Counted:
    return Counted(files=sums.files, bytes=sums.bytes)


def _count(files: Iterable[Stored]) -> Counted:
    sizes = [f.size for f in files]
    return Counted(files=len(sizes), bytes=sum(sizes))


def _newest(roots: Sequence[Root]) -> int | None:
    ids = {r.snapshot.id: at for at, r in enumerate(roots) if r.kind == SNAPSHOT and r.branch == MAIN}
    return ids[max(ids)] if ids else None


def _own_files(rest: Sequence[Stored], branches: Collection[str], numbered: NumberedFiles) -> Mapping[str, FileNumbers]:
    """Return the files in the folder of each branch: its snapshots, tags and schemas."""
    folders = {BranchPaths(name).root: name for name in branches}
    found: dict[str, list[str]] = {}
    for file in rest:
        parts = file.path.split("/", 2)
        branch = folders.get("/".join(parts[:2]) + "/") if len(parts) == 3 else None
        if branch is not None:
            found.setdefault(branch, []).append(file.path)
    return {name: numbered.array(some) for name, some in found.items()}


def _most_first(usage: Usage) -> tuple[int, int, str, str, str]:
    holder = usage.holder
    return -usage.frees_bytes, -usage.bytes, holder.kind, holder.branch, holder.name


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
        "files": usage.files,
        "bytes": usage.bytes,
        "frees_files": usage.frees_files,
        "frees_bytes": usage.frees_bytes,
        "way": way_to_free(holder),
    }


def way_to_free(holder: Holder) -> str:
    """Say what ends a holder, so that its files can go."""
    on = "" if holder.branch == MAIN else f" --branch {holder.branch}"
    clean = ", then remove_orphan_files"
    ways = {
        BRANCH: f"delete_branch --branch {holder.name}{clean}",
        TAG: f"delete_tag --tag {holder.name}{on}{clean}",
        TAGS: f'expire_tags --include-unlimited --older-than "0 s"{on}',
        UNDO: "their own retention; until then these publishes can be undone",
        SNAPSHOTS: f"expire_snapshots --retain-min 1 --retain-max 1{on}",
        CHANGELOGS: "Paimon's own expiry, by the option changelog.time-retained",
        TRASHED: "any expiry, once the grace time is over",
    }
    return ways.get(holder.kind, "the end of the publishes that are running")
