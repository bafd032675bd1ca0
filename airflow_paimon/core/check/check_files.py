"""Whether the data and index files of a branch's head and tags exist, and whether its deletion vectors can be read."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_paimon.core.check.live_states import LiveStates
from airflow_paimon.core.errors import FormatError
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.requests.findings import ERROR, Finding
from airflow_paimon.core.table.manifest_entries import read_index_entries
from airflow_paimon.core.table.paths import INDEX_DIR
from airflow_paimon.core.table.reachability import missing_index_files, unreadable_vectors
from airflow_paimon.core.table.table import Table


def file_findings(view: Table, known: LiveStates) -> Iterator[Finding]:
    """Missing data files, of the head and the tags of one branch. ``known``: what was read of the table before."""
    head = view.latest_snapshot()
    wanted: list[tuple[str, Snapshot]] = [("head", head)] if head is not None else []
    wanted += [(f"tag {t.name}", t.snapshot) for t in view.tags()]
    schema = view.schema()
    for what, snapshot in wanted:
        subject = f"{view.branch_name}/{what.replace(' ', '-')}"
        try:
            lost = known.missing(view, schema, snapshot)
            lost += missing_index_files(view, schema, read_index_entries(view, snapshot))
        except FormatError as error:
            lost, message = ["?"], error.message
        else:
            message = f"{view.label}: {len(lost)} data files of snapshot {snapshot.id} ({what}) are missing"
            message += f", e.g. {lost[0]}" if lost else ""
        if lost:
            yield Finding(
                kind="missing-files",
                subject=subject,
                severity=ERROR,
                message=message,
                at_risk="reads of this state fail; deleting or expiring anything now could make it worse",
            )


def vector_findings(view: Table) -> Iterator[Finding]:
    """Deletion vectors of the head that can't be read; missing files are findings of their own."""
    schema, entries = view.schema(), read_index_entries(view, view.latest_snapshot())
    gone = set(missing_index_files(view, schema, entries))
    there = [e for e in entries if f"{INDEX_DIR}/{e.file_name}" not in gone]
    wrong = list(unreadable_vectors(view, schema, there))
    if wrong:
        yield Finding(
            kind="deletion-vectors",
            subject=view.branch_name,
            severity=ERROR,
            message=f"{view.label}: {len(wrong)} files with deletion vectors can't be read, e.g.: {wrong[0]}",
            at_risk="reads of their partitions fail; to ignore them would bring deleted rows back",
        )
