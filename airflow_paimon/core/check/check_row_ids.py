"""Row ids of a row-tracking table, of the head of a branch: missing, on two rows, or not given out yet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from airflow_paimon.core.check.row_checks import FindDuplicateRowIds
from airflow_paimon.core.format.manifest import DataFile
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.requests.findings import ERROR, INFO, WARNING, Finding
from airflow_paimon.core.row_tracking.row_ids_plan import beyond, has_row_ids, overlapping, ranged, torn_groups
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.table import Table

_NAMED = 3


def row_id_findings(view: Table, find_duplicates: FindDuplicateRowIds | None) -> Iterator[Finding]:
    """Check the head of a branch. ``find_duplicates`` None: only what the manifests tell."""
    schema, head = view.schema(), view.latest_snapshot()
    options = TableOptions(schema.options)
    if head is None or not options.row_tracking:
        return
    files = [e.file for e in live_entries(view, head).values()]
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
