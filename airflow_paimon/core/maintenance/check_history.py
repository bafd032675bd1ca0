"""Findings about snapshot ids, hints, schemas and journals of one branch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise

from airflow_paimon.core.errors import NotFoundError
from airflow_paimon.core.plan import Delete, Replace
from airflow_paimon.core.requests.findings import ERROR, INFO, WARNING, Finding
from airflow_paimon.core.table.paths import PRIVATE_DIR
from airflow_paimon.core.table.table import Table

_JOURNAL_AGE_MS = 30 * 24 * 3600 * 1000


def history_findings(view: Table) -> Iterator[Finding]:
    """Id gaps, wrong hints, schemas that the head names but that are not there."""
    ids = view.snapshot_ids()
    if ids:
        yield from _gaps(view, ids)
        yield from _schema(view, ids[-1])
    yield from _hints(view, ids)


def _gaps(view: Table, ids: list[int]) -> Iterator[Finding]:
    gaps = [a + 1 for a, b in pairwise(ids) if b != a + 1]
    if gaps:
        yield Finding(
            kind="snapshot-gap",
            subject=f"{view.branch_name}/{gaps[0]}",
            severity=WARNING,
            message=f"{view.label}: snapshot {gaps[0]} is missing between {ids[0]} and {ids[-1]} ({len(gaps)} gaps)",
            at_risk="streaming readers stop there, and a hint before the gap hides the newer snapshots from Paimon",
        )


def _schema(view: Table, head: int) -> Iterator[Finding]:
    snapshot = view.snapshot(head)
    if snapshot.schema_id not in view.schema_ids():
        yield Finding(
            kind="missing-schema",
            subject=f"{view.branch_name}/{snapshot.schema_id}",
            severity=ERROR,
            message=f"{view.label}: snapshot {head} was committed with schema {snapshot.schema_id}, which is missing",
            at_risk="time travel to it fails or reads with wrong columns",
        )


def _hints(view: Table, ids: list[int]) -> Iterator[Finding]:
    hints = (
        (view.paths.latest_hint, ids[-1] if ids else None),
        (view.paths.earliest_hint, ids[0] if ids else None),
    )
    for path, right in hints:
        name = path.rsplit("/", 1)[-1]
        try:
            text = view.store.read(path).decode("utf-8", "replace").strip()
        except NotFoundError:
            continue
        if right is None or text == str(right):
            continue
        stale = text.isdigit() and int(text) in ids
        which = "newest" if name == "LATEST" else "oldest"
        yield Finding(
            kind="wrong-hint",
            subject=f"{view.branch_name}/{name}",
            severity=INFO if stale else WARNING,
            message=f"{view.label}: hint {name} says {text!r}, the {which} snapshot is {right}",
            at_risk="Paimon may read a snapshot that is not there, or miss newer ones; we list instead",
            repair=f"write {right}",
            actions=(Replace(path=path, data=str(right).encode(), reason=f"the snapshots say {right}"),),
        )


def journal_findings(table: Table, now_ms: int) -> Iterator[Finding]:
    """Journals of operations older than 30 days, and unreadable ones."""
    folder = f"{PRIVATE_DIR}/operations"
    for info in table.store.list(folder):
        if info.is_dir:
            continue
        path = f"{folder}/{info.name}"
        try:
            entry = json.loads(table.store.read(path))
            what = str(entry["operation_id"])
        except (ValueError, KeyError, TypeError):
            yield _journal(
                path,
                info.name,
                WARNING,
                f"Journal {path} is unreadable: the run that wrote it was cut off",
                "a retry of that operation can't tell whether it landed",
            )
            continue
        except NotFoundError:
            continue
        if info.modified_ms is not None and now_ms - info.modified_ms > _JOURNAL_AGE_MS:
            yield _journal(path, info.name, INFO, f"Journal of operation {what!r} is older than 30 days", "nothing")


def _journal(path: str, name: str, severity: str, message: str, at_risk: str) -> Finding:
    return Finding(
        kind="journal",
        subject=name,
        severity=severity,
        message=message,
        at_risk=at_risk,
        repair="delete the journal",
        actions=(Delete(path=path, reason="old or unreadable journal"),),
    )
