"""Row ids of a row-tracking table, of the head of a branch: those that are missing, on two rows, or not given out yet.
Only the files that are concerned are read as values; the others are known by numbers only, about 60 bytes each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from airflow_paimon.core.check.live_states import live_entries_of
from airflow_paimon.core.check.row_checks import FindDuplicateRowIds
from airflow_paimon.core.format.manifest import DataFile, FileKind, ManifestEntry
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.requests.findings import ERROR, INFO, WARNING, Finding
from airflow_paimon.core.row_tracking.row_ids_plan import (
    beyond,
    has_row_ids,
    ids_of,
    overlapping,
    ranged,
    stored_ids,
    torn_groups,
)
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.manifest_entries import each_entries
from airflow_paimon.core.table.manifest_lists import all_manifests
from airflow_paimon.core.table.name_digests import ANY_NAME, Digests, digests_of_bytes
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.table import Table

_Longs = npt.NDArray[np.int64]
_Mask = npt.NDArray[np.bool_]
_NO_IDS = (0, -1)
"""The range of a file without ids, or without rows."""
_ANY = -2
"""The last id of a file with any of those that were given out."""


class _RowIdRanges(NamedTuple):
    """``files``: digests of what identifies them. ``without``: files without ids. ``last``: may be ``_ANY``."""

    files: Digests
    added: _Mask
    without: _Mask
    first: _Longs
    last: _Longs


_NAMED = 3


def row_id_findings(view: Table, find_duplicates: FindDuplicateRowIds | None) -> Iterator[Finding]:
    """Check the head of a branch. ``find_duplicates`` None: only what the manifests tell."""
    schema, head = view.schema(), view.latest_snapshot()
    options = TableOptions(schema.options)
    if head is None or not options.row_tracking:
        return
    files = files_to_check(view, head)
    next_row_id = head.next_row_id or 0
    known = ranged(files, next_row_id)
    without = [f.file_name for f in files if not has_row_ids(f)]
    if without:
        yield _finding(
            view, "missing-row-ids", WARNING,
            f"{len(without)} files have no row ids ({_listed(without)}): written before row tracking, or by an engine "
            f"that ignores it",
            "reads of _ROW_ID fail, and UPDATE, MERGE and compaction of other engines; INSERT OVERWRITE of their rows "
            "gives them ids",
        )  # fmt: skip
    ahead = beyond(known, next_row_id)
    if ahead:
        yield _finding(
            view, "row-ids-ahead", ERROR,
            f"{len(ahead)} files hold row ids from nextRowId ({next_row_id}) on ({_listed(ahead)}): another engine "
            f"lowered it, or copied files",
            "the next INSERT gives these ids to other rows",
        )  # fmt: skip
    if options.flag("data-evolution.enabled"):
        torn = torn_groups(known)
        if torn:
            yield _finding(
                view, "torn-row-ids", ERROR,
                f"{len(torn)} files share only some of their row ids with others ({_listed(torn)})",
                "every reader refuses their rows",
            )  # fmt: skip
    elif find_duplicates is not None:
        suspects = [r.file for group in overlapping(known) for r in group]
        yield from _duplicates(view, head, suspects, find_duplicates) if suspects else ()


def _duplicates(
    view: Table, head: Snapshot, suspects: Sequence[DataFile], find_duplicates: FindDuplicateRowIds
) -> Iterator[Finding]:
    found = find_duplicates(view, head, suspects)
    if found is None:
        rows = sum(f.row_count for f in suspects)
        yield _finding(
            view, "row-ids-not-compared", INFO,
            f"{len(suspects)} files with {rows:,} rows have ranges of row ids that overlap, too many to compare",
            "nothing, if no engine has given one id to two rows",
        )  # fmt: skip
    elif found:
        row_id, names = next(iter(found.items()))
        yield _finding(
            view, "duplicate-row-ids", ERROR,
            f"{len(found)} row ids are on two rows, e.g. {row_id} in {_listed(names)}: a publish, rollback or copy by "
            f"another engine",
            "UPDATE, MERGE and diffs by row id take these rows for one; INSERT OVERWRITE of them gives them new ids",
        )  # fmt: skip


def _finding(view: Table, kind: str, severity: str, message: str, at_risk: str) -> Finding:
    return Finding(
        kind=kind,
        subject=view.branch_name,
        severity=severity,
        message=f"{view.label}: {message}",
        at_risk=at_risk,
    )


def _listed(names: Sequence[str]) -> str:
    more = ", ..." if len(names) > _NAMED else ""
    return f"{', '.join(sorted(names)[:_NAMED])}{more}"


def files_to_check(view: Table, head: Snapshot) -> list[DataFile]:
    """Return the live files without ids, with ids that were not given out yet, and those that have ids in the range of
    another one; all files where manifests contradict each other.

    Raises:
        FormatError: as ``live_entries`` does.
    """
    next_row_id = head.next_row_id or 0
    parts = [_ranges_of(entries) for entries in _blocks(view, head)] or [_ranges_of([])]
    known = _RowIdRanges(*map(np.concatenate, zip(*parts, strict=True)))
    live = live_entries_of(known.files, known.added)
    if live is None:
        return [e.file for e in live_entries(view, head).values()]
    last = np.where(known.last == _ANY, max(0, next_row_id - 1), known.last)
    wanted = known.files[live & (known.without | (last >= next_row_id))]
    ranged = live & (last >= known.first)
    shared = known.files[ranged][sharing(known.first[ranged], last[ranged])]
    names = set(np.concatenate([wanted, shared]).tolist())
    found: dict[int, DataFile] = {}
    for entries in _blocks(view, head) if names else ():
        for digest, entry in zip(_digests(entries).tolist(), entries, strict=True):
            if digest in names and entry.kind == FileKind.ADD:
                found[digest] = entry.file
    return list(found.values())


def sharing(first: _Longs, last: _Longs) -> _Mask:
    """Return which ranges overlap another one, directly or by way of others (``row_ids_plan.overlapping``)."""
    order = np.argsort(first, kind="stable")
    begins = np.ones(len(order), bool)
    begins[1:] = first[order][1:] > np.maximum.accumulate(last[order])[:-1]
    group = np.cumsum(begins) - 1
    found = np.zeros(len(order), bool)
    found[order] = np.bincount(group)[group] > 1 if len(order) else False
    return found


def _blocks(view: Table, head: Snapshot) -> Iterator[list[ManifestEntry]]:
    return (entries for _, entries in each_entries(view, all_manifests(view, head)))


def _ranges_of(entries: Sequence[ManifestEntry]) -> _RowIdRanges:
    files = [e.file for e in entries]
    ranges = [
        _NO_IDS
        if not has_row_ids(f) or not f.row_count
        else ids_of(f, 0)
        if f.first_row_id is not None
        else stored_ids(f) or (0, _ANY)
        for f in files
    ]
    return _RowIdRanges(
        files=_digests(entries),
        added=np.array([e.kind == FileKind.ADD for e in entries], bool),
        without=np.array([not has_row_ids(f) for f in files], bool),
        first=np.array([low for low, _ in ranges], np.int64),
        last=np.array([high for _, high in ranges], np.int64),
    )


def _digests(entries: Sequence[ManifestEntry]) -> Digests:
    return digests_of_bytes([repr(e.identifier).encode(errors=ANY_NAME) for e in entries])
