"""The look-up ``audit``: who changed a table, why, by what, and who approved it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_paimon.core.audit.audit_record import AuditRecord
from airflow_paimon.core.audit.records import moments, read_audits, records_of
from airflow_paimon.core.audit.text import as_json, render
from airflow_paimon.core.catalogs import open_catalog
from airflow_paimon.core.table.paths import is_pattern
from airflow_paimon.core.table.table import named_tables, open_table
from airflow_paimon.shown import lists


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
        return lists.records(self.records).first(self.limit).to_text()


def audit(
    warehouse: str,
    storage_options: Mapping[str, Any] | None,
    name: str,
    limit: int,
    since: str | None,
    until: str | None,
    form: str | None,
) -> Audit:
    """Look up the audit of a table, or of several, see ``named_tables``.

    ``since`` and ``until``: ISO times with an offset, or dates (midnight UTC).
    """
    first, end = moments(("--from", since), ("--to", until), name)
    if is_pattern(name):
        tables = named_tables(open_catalog(warehouse, storage_options), name)
    else:
        tables = [open_table(warehouse, name, storage_options=storage_options).require()]
    return Audit(records=records_of(read_audits(tables, first, end)), form=form, limit=limit)
