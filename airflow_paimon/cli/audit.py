"""The look-up ``audit``: who changed a table, why, by what, and who approved it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from airflow_paimon.cli.listing import Listing, limited
from airflow_paimon.core.audit.audit_record import AuditRecord
from airflow_paimon.core.audit.records import read_audit
from airflow_paimon.core.audit.text import as_json, render
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.table.table import Table, parse_timestamp

_SQL = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """``form``: None = a table for people."""

    records: list[AuditRecord]
    form: str | None
    limit: int

    def to_json(self) -> list[dict[str, Any]]:
        return [as_json(r) for r in self.records]

    def to_text(self) -> str:
        if self.form is not None:
            return render(self.records, self.form).rstrip("\n")
        return listing(self.records, self.limit).to_text()


def audit(table: Table, limit: int, since: str | None, until: str | None, form: str | None) -> Audit:
    """Look up the audit. ``since`` and ``until``: ISO times with an offset, or dates (midnight UTC)."""
    first, end = _moment("--from", since), _moment("--to", until)
    if first is not None and end is not None and first >= end:
        raise InvalidInputError(f"{table.name}: --from {since} is not before --to {until}, so no record can be between")
    found = read_audit(table, first, end)
    return Audit(records=found, form=form, limit=limit)


def _moment(flag: str, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        if len(text) == len("2026-11-18"):
            return int(datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC).timestamp() * 1000)
        return parse_timestamp(text)
    except (InvalidInputError, ValueError):
        raise InvalidInputError(
            f"{flag} takes a date or an ISO time with an offset, such as 2026-11-18 or 2026-11-18T06:00Z, not {text!r}"
        ) from None


def listing(records: list[AuditRecord], limit: int) -> Listing:
    """List the records, the newest first."""
    rows = [
        (
            datetime.fromtimestamp(r.time_ms / 1000, UTC).replace(tzinfo=None),
            r.kind,
            r.branch,
            r.snapshot,
            r.from_branch,
            r.requested_by,
            r.approved_by,
            r.reason,
            _made(r),
            f"by {r.undone_by}" if r.undone_by is not None else None,
        )
        for r in reversed(records)
    ]
    shown, left = limited(rows, limit)
    columns = (
        ("committed", "utc"),
        ("what", "text"),
        ("on", "text"),
        ("snapshot", "number"),
        ("branch", "text"),
        ("asked by", "text"),
        ("approved by", "text"),
        ("reason", "text"),
        ("made by", "text"),
        ("undone", "text"),
    )
    return Listing(title="records", columns=columns, rows=shown, left=left)


def _made(record: AuditRecord) -> str | None:
    for change in record.changes:
        text = " ".join(str(change.get("sql") or change.get("function") or "").split())
        if text:
            return text if len(text) <= _SQL else f"{text[:_SQL]}..."
    return None
