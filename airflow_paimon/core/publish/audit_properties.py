"""What a publish leaves for audits: the commits that it brought and its figures, as properties of its snapshot, and a
copy of that snapshot that stays when it expires.

The branch is usually deleted afterwards, and snapshots expire, so nothing else could tell it later.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from airflow_paimon.core.commit.put import put_new
from airflow_paimon.core.errors import AlreadyExistsError, FormatError, PaimonError
from airflow_paimon.core.format.snapshot import Snapshot, json_object, parse_snapshot
from airflow_paimon.core.publish.bucket_merge_plan import BucketChange, summarize
from airflow_paimon.core.store.base import read_existing
from airflow_paimon.core.table.made_by import made_by, stored_bytes, truncated
from airflow_paimon.core.table.properties import (
    CHANGES_PROPERTY,
    DETAILS_PROPERTY,
    FIGURES_PROPERTY,
    MODE_PROPERTY,
    OPERATION_PROPERTY,
)
from airflow_paimon.core.table.record_kinds import AUDIT
from airflow_paimon.core.table.table import Table

log = logging.getLogger(__name__)

MAX_CHANGES = 20
"""How many commits of a branch a publish describes at most, the newest ones."""
MAX_CHANGES_BYTES = 32_000
"""Of what describes them, as the snapshot's file has it; as many of the newest commits as fit."""
_MAX_TEXT = 1000
_MAX_NAME = 200
_FIGURES = ("rows", "rows_updated", "rows_deleted", "rows_inserted", "bytes", "bytes_added", "bytes_rewritten")


def changes_property(branch: Table, base: Snapshot, head: Snapshot) -> dict[str, str]:
    """Describe the commits of a branch after ``base``, up to ``head``: reads at most ``MAX_CHANGES`` of them."""
    ids = [i for i in branch.snapshot_ids() if base.id < i <= head.id]
    kept: list[dict[str, Any]] = []
    for snapshot in reversed(readable_snapshots(branch, ids[-MAX_CHANGES:])):
        more = [*kept, change_of(snapshot)]
        if stored_bytes(_changes(ids, more)) > MAX_CHANGES_BYTES:
            break
        kept = more
    return {CHANGES_PROPERTY: _changes(ids, kept)}


def _changes(ids: Sequence[int], commits: Sequence[Mapping[str, Any]]) -> str:
    return json.dumps({"count": len(ids), "commits": commits}, ensure_ascii=False)


def readable_snapshots(view: Table, ids: Sequence[int]) -> list[Snapshot]:
    """Read snapshots, without those that have expired meanwhile or that can't be read: no publish fails for them."""
    found, damaged = _parsed(view, [view.paths.snapshot(i) for i in ids])
    for error in damaged.values():
        log.warning("%s; the audit does not contain this commit", error.message)
    return found


def _parsed(view: Table, paths: Sequence[str]) -> tuple[list[Snapshot], dict[str, FormatError]]:
    """Read the files of snapshots that exist, by id, and the errors of those that are damaged, by path."""
    found: list[Snapshot] = []
    damaged: dict[str, FormatError] = {}
    for path, content in read_existing(view.store, paths).items():
        try:
            found.append(parse_snapshot(content, f"{view.label}: {path}"))
        except FormatError as error:
            damaged[path] = error
    return sorted(found, key=lambda s: s.id), damaged


def change_of(snapshot: Snapshot, most: int = _MAX_TEXT) -> dict[str, Any]:
    """Describe a commit: when, by whom, by which operation, from what. Texts are cut to ``most`` bytes."""
    said = snapshot.properties
    out: dict[str, Any] = {
        "snapshot": snapshot.id,
        "time_ms": snapshot.time_millis,
        "user": truncated(snapshot.commit_user, _MAX_NAME),
        "kind": snapshot.commit_kind.value,
        "operation": truncated(said.get(OPERATION_PROPERTY) or snapshot.operation or "", _MAX_NAME),
        **{name: truncated(text, most) for name, text in made_by(said).items()},
    }
    if MODE_PROPERTY in said:
        out["mode"] = truncated(said[MODE_PROPERTY], _MAX_NAME)
    details = json_object(said.get(DETAILS_PROPERTY))
    return out | {name: details[name] for name in _FIGURES if isinstance(details.get(name), int)}


def figures_property(changes: Sequence[BucketChange]) -> dict[str, str]:
    """Count what a publish takes out and puts in."""
    figures = summarize(changes) | {
        "bytes_added": sum(e.file.file_size for c in changes for e in c.add),
        "bytes_deleted": sum(e.file.file_size for c in changes for e in c.delete),
    }
    return {FIGURES_PROPERTY: json.dumps(figures)}


def keep_record(view: Table, committed: Snapshot | int) -> None:
    """Keep a copy of a publish's or erasure's snapshot (or its id) for audits; again after a retry is the same.

    A failure is only logged, as the commit stands: what is missing is put before an expiry of the snapshot, and by
    ``repair_table``.
    """
    try:
        snapshot = view.snapshot(committed) if isinstance(committed, int) else committed
        with suppress(AlreadyExistsError):
            put_new(view, record_path(view.branch_name, snapshot), snapshot.to_bytes())
    except PaimonError as error:
        number = committed if isinstance(committed, int) else committed.id
        log.warning("%s: the audit has no copy of snapshot %d yet (%s)", view.label, number, error.message)


def recorded_between(view: Table, after: int, up_to: int) -> tuple[list[Snapshot], dict[int, FormatError]]:
    """Read the copies of publishes and rollbacks with ``after`` < id <= ``up_to``, by id, whether or not they expired.

    Also returns the errors of those that are damaged, by the id that the file's name has.
    """
    folder = f"{AUDIT.folder}/{view.branch_name}"
    names = [n for n in view.store.names(folder) if n.endswith(".json") and n.partition("-")[0].isdigit()]
    wanted = sorted(n for n in names if after < int(n.partition("-")[0]) <= up_to)
    found, damaged = _parsed(view, [f"{folder}/{n}" for n in wanted])
    return found, {int(path.rpartition("/")[2].partition("-")[0]): error for path, error in damaged.items()}


def record_path(branch: str, snapshot: Snapshot) -> str:
    """Return where the copy lies. The UUID tells snapshots of the same id, where a rollback of another engine gave an
    id again.
    """
    mark = "".join(c if c.isalnum() or c in "-_." else "-" for c in snapshot.identity)
    return AUDIT.path(f"{branch}/{snapshot.id}-{mark}")
