"""The audit of several tables, read side by side, and the moments by which a range of it is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from airflow_paimon.core.audit.audit_record import AuditRecord
from airflow_paimon.core.audit.records import read_audit
from airflow_paimon.core.errors import InvalidInputError, PaimonError
from airflow_paimon.core.store.threads import map_parallel
from airflow_paimon.core.table.table import Table, parse_timestamp

AT_ONCE = 8
"""Tables that are read at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableAudit:
    """A table's records, or the error why they can't be told."""

    table: str
    records: Sequence[AuditRecord] = ()
    error: PaimonError | None = None


def read_audits(tables: Sequence[Table], since_ms: int | None, until_ms: int | None) -> list[TableAudit]:
    """Read the audit of each table, as ``read_audit`` does; in the order of the tables."""
    return map_parallel(partial(_audit, since_ms=since_ms, until_ms=until_ms), tables, AT_ONCE)


def records_of(audits: Sequence[TableAudit]) -> list[AuditRecord]:
    """Return all records, the oldest first.

    Raises:
        PaimonError: that of the first table that can't be read; an audit that lacks a table's records says so nowhere.
    """
    failed = [one for one in audits if one.error is not None]
    if failed and (error := failed[0].error) is not None:
        raise error
    return sorted((r for one in audits for r in one.records), key=lambda r: (r.time_ms, r.table, r.snapshot))


def moments(since: tuple[str, str | None], until: tuple[str, str | None], where: str) -> tuple[int | None, int | None]:
    """Return a range of time in epoch milliseconds. ``since``, ``until``: the flag, and its text: an ISO time with an
    offset, or a date (midnight UTC).

    Raises:
        InvalidInputError: a text is neither, or nothing can be between the two.
    """
    first, end = _moment(*since), _moment(*until)
    if first is not None and end is not None and first >= end:
        raise InvalidInputError(
            f"{where}: {since[0]} {since[1]} is not before {until[0]} {until[1]}, so no record can be between"
        )
    return first, end


def _moment(flag: str, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        if len(text) == len("2026-11-18"):
            return int(datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC).timestamp() * 1000)
        if text.isdigit():  # 2026 or 20261118 would be epoch milliseconds, a day of 1970
            raise ValueError
        return parse_timestamp(text)
    except (InvalidInputError, ValueError):
        raise InvalidInputError(
            f"{flag} takes a date or an ISO time with an offset, such as 2026-11-18 or 2026-11-18T06:00Z, not {text!r}"
        ) from None


def _audit(table: Table, since_ms: int | None, until_ms: int | None) -> TableAudit:
    try:
        return TableAudit(table=table.name, records=read_audit(table, since_ms, until_ms))
    except PaimonError as error:
        return TableAudit(table=table.name, error=error)
