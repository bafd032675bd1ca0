"""Audit records as the rows of a table: its columns, and which rows have to be written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_paimon.core.audit.audit_record import CORRECTION, AuditRecord
from airflow_paimon.core.audit.text import FIGURES

KEY = ("table_name", "branch", "identity")
COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("table_name", "STRING NOT NULL", "db.table"),
    ("branch", "STRING NOT NULL", "the branch that was written"),
    ("identity", "STRING NOT NULL", "of the snapshot, which distinguishes it from another one of the same id"),
    ("committed", "TIMESTAMP_LTZ(3)", "when the snapshot was put"),
    ("kind", "STRING", "publish, undo, rollback, or correction (not published)"),
    ("operation", "STRING", "the job"),
    ("snapshot", "BIGINT", "the snapshot that was put"),
    ("snapshot_before", "BIGINT", "the one before it"),
    ("is_there", "BOOLEAN", "whether the snapshot had not expired at the last export"),
    ("commit_user", "STRING", "of the snapshot"),
    ("operation_id", "STRING", "of the operation"),
    ("from_branch", "STRING", "the branch that was published"),
    ("from_snapshot", "BIGINT", "up to this snapshot of it"),
    ("base_snapshot", "BIGINT", "from this snapshot on"),
    ("only_partitions", "STRING", "JSON: of a publish of some partitions, which"),
    ("target_snapshot", "BIGINT", "what an undo or rollback went back to"),
    ("owner", "STRING", "of the branch"),
    ("reason", "STRING", "why"),
    ("requested_by", "STRING", "who asked for it"),
    ("approved_by", "STRING", "who approved it"),
    ("approved_at", "STRING", "when, ISO with an offset"),
    ("four_eyes", "BOOLEAN", "a second person had to approve it"),
    ("forced", "BOOLEAN", "the branch was protected"),
    ("checks", "STRING", "JSON: the outcome of each rule, by its name"),
    ("checks_forced", "BOOLEAN", "it was published in spite of its checks"),
    ("commits", "BIGINT", "how many commits of the branch it brought"),
    ("changes", "STRING", "JSON: the newest of them, with their statements or functions"),
    ("diff", "STRING", "JSON: the diff that was reviewed"),
    *((name, "BIGINT", "as files count them") for name in FIGURES),
    ("undo_tag", "STRING", "rollback_to with it undoes it"),
    ("undo_retention", "STRING", "how long that tag lives"),
    ("undone_by", "BIGINT", "the snapshot that undid it"),
    ("duration_ms", "BIGINT", "from the operation's beginning until its snapshot was put"),
    ("row_digest", "STRING", "of the other columns; an export writes what differs from it"),
)
"""Name, type and comment of each column."""
_JSON = ("only_partitions", "checks", "changes", "diff")
_RENAMED = {"table_name": "table", "commit_user": "user"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What a row of the table says, as far as an export asks: ``committed_ms`` epoch milliseconds."""

    key: tuple[str, ...]
    kind: str | None
    committed_ms: int
    row_digest: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """``put``: rows that are new or have changed; ``gone``: keys of corrections that were published or dropped."""

    put: Sequence[Mapping[str, Any]]
    gone: Sequence[tuple[str, ...]]


def plan_export(
    records: Sequence[AuditRecord],
    stored: Sequence[Stored],
    tables: Collection[str],
    since_ms: int | None,
    until_ms: int | None,
) -> Export:
    """Choose what to write, so that the table holds each record once, as it is now.

    A correction that waited on its branch when it was exported, and doesn't any more, is in the record of its publish,
    or was dropped. ``tables``: those whose records in the range are given.
    """
    rows = {key_of(row): row for row in map(row_of, records)}
    known = {one.key: one for one in stored}
    put = [row for key, row in rows.items() if key not in known or known[key].row_digest != row["row_digest"]]
    gone = [
        one.key
        for one in stored
        if one.kind == CORRECTION
        and one.key not in rows
        and one.key[0] in tables
        and (since_ms or 0) <= one.committed_ms
        and (until_ms is None or one.committed_ms < until_ms)
    ]
    return Export(put=put, gone=gone)


def key_of(row: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(row[name] for name in KEY)


def row_of(record: AuditRecord) -> dict[str, Any]:
    """Return a record as a row; ``committed`` in epoch milliseconds."""
    values = record.to_json()
    row: dict[str, Any] = {"committed": record.time_ms, **{n: record.statistics.get(n) for n in FIGURES}}
    row |= {n: json.dumps(values[n], ensure_ascii=False) if values[n] else None for n in _JSON}
    for name, _, _ in COLUMNS[:-1]:
        if name not in row:
            row[name] = values[_RENAMED.get(name, name)]
    text = json.dumps(row, sort_keys=True, ensure_ascii=False, default=str)
    return {**row, "row_digest": f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"}
