"""export_audit: the audit of one table, several or a whole warehouse, as a document, and as rows of a Paimon table."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_paimon.core.audit.audit_record import AuditRecord
from airflow_paimon.core.audit.records import TableAudit, moments, read_audits, records_of
from airflow_paimon.core.audit.rows import COLUMNS, KEY, Export, Stored, plan_export
from airflow_paimon.core.audit.text import FORMATS, render
from airflow_paimon.core.catalogs.opening import file_place
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.requests.context import Context, OperationResult, tables_of
from airflow_paimon.core.requests.requests import ExportAudit
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.table import Table, open_or_place
from airflow_paimon.data.arrow_read import read_arrow
from airflow_paimon.data.arrow_write import write_arrow

log = logging.getLogger(__name__)

_ENDINGS = {"csv": "csv", "md": "markdown", "markdown": "markdown"}
_ROW_KIND = "_row_kind"
_COMMENT = "Who changed which table, why, and who approved it; written by export_audit"


def export_audit(context: Context, request: ExportAudit) -> OperationResult:
    """Write the records of the asked tables. Again with the same ones changes nothing in a table.

    Raises:
        InvalidInputError: there is nowhere to write to, the range is empty, or the table to write has other columns.
        NotFoundError: no such table. FormatError: the audit of a table is unreadable, and is not to be left out.
    """
    if request.uri is None and request.to_table is None:
        raise InvalidInputError(
            f"{request.table}: export_audit writes a file, uri (--uri), a table, to_table (--to-table), or both"
        )
    since, until = moments(("--from", request.from_), ("--to", request.to), request.table)
    place = None if request.uri is None else file_place(request.uri, request.storage_options, "--uri")
    form = _form(request)
    target = None if request.to_table is None else _target(request, request.to_table)
    tables = [t for t in tables_of(context) if target is None or t.name != target.name]
    audits = read_audits(tables, since, until)
    unreadable = [one for one in audits if one.error is not None] if request.skip_unreadable else []
    read = [one for one in audits if one not in unreadable]
    records = records_of(read)
    details = _details(request, read, records, unreadable)
    changed = place is not None
    if place is not None and not request.dry_run:
        store, name = place
        store.replace(name, render(records, form).encode())
    if target is not None:
        export = plan_export(records, _stored(target, [one.table for one in read]), {t.table for t in read}, since,
                             until)  # fmt: skip
        details |= {"to_table": target.name, "rows_written": len(export.put), "rows_deleted": len(export.gone)}
        changed = changed or bool(export.put or export.gone) or not target.exists()
        if not request.dry_run:
            details["to_snapshot"] = _write(request, target, export)
    return context.result(None, branch=MAIN, changed=changed, details=details)


def _form(request: ExportAudit) -> str:
    """Return the format of the file: the one asked for, else by the ending of its name, else JSON."""
    if request.format is not None:
        return request.format
    ending = (request.uri or "").rpartition("/")[2].rpartition(".")[2].lower()
    return _ENDINGS.get(ending, FORMATS[0])


def _target(request: ExportAudit, name: str) -> Table:
    """Return the table to write, which need not exist.

    Raises:
        InvalidInputError: it exists with other columns or another key.
    """
    table = open_or_place(request.warehouse, name, request.storage_options)
    if table.branch_name != MAIN:
        raise InvalidInputError(f"{name}: export_audit writes main of a table, not a branch")
    if not table.exists():
        return table
    schema = table.schema()
    there = set(schema.field_names)
    missing = [f"add column {n} {t}" for n, t, _ in COLUMNS if n not in there]
    more = sorted(there - {n for n, _, _ in COLUMNS})
    if missing or more or set(schema.primary_keys) != set(KEY):
        helps = f"alter_table --change {missing[0]!r}" if missing and not more else "name another table"
        lacks, besides = ", ".join(m.split()[2] for m in missing), ", ".join(more)
        raise InvalidInputError(
            f"{name} is not a table of export_audit: missing columns: {lacks or 'none'}; other columns: "
            f"{besides or 'none'}; its primary key is {', '.join(schema.primary_keys) or 'none'} (expected: "
            f"{', '.join(KEY)}). Way out: {helps}"
        )
    return table


def _details(
    request: ExportAudit, read: Sequence[TableAudit], records: Sequence[AuditRecord], unreadable: Sequence[TableAudit]
) -> dict[str, Any]:
    errors = {one.table: one.error.message for one in unreadable if one.error is not None}
    for table, message in errors.items():
        log.warning("%s is left out: %s", table, message)
    return {
        "tables": len(read),
        "records": len(records),
        "kinds": dict(sorted(Counter(r.kind for r in records).items())),
        "uri": request.uri,
        "unreadable": errors,
    }


def _stored(target: Table, tables: Sequence[str]) -> list[Stored]:
    """Read what the table says of the exported tables: its keys and digests, not its texts."""
    if not target.exists() or target.latest_snapshot_id() is None:
        return []
    names = [*KEY, "kind", "committed", "row_digest"]
    found = read_arrow(target, columns=names, where=pc.field("table_name").isin(list(tables)))
    times = pc.cast(pc.cast(found["committed"], pa.timestamp("ms", tz="UTC")), pa.int64())
    return [
        Stored(key=tuple(r[n] for n in KEY), kind=r["kind"], committed_ms=ms or 0, row_digest=r["row_digest"])
        for r, ms in zip(found.to_pylist(), times.to_pylist(), strict=True)
    ]


def _write(request: ExportAudit, target: Table, export: Export) -> int | None:
    """Create the table where it is missing, and put what differs with one commit; returns its newest snapshot."""
    if not target.exists():
        target = create_table(
            request.warehouse,
            target.name,
            [(name, kind) for name, kind, _ in COLUMNS],
            primary_keys=KEY,
            options={"bucket": "1"},
            comment=_COMMENT,
            comments={name: text for name, _, text in COLUMNS},
            if_exists="skip",
            storage_options=request.storage_options,
        )
    rows = [{**row, _ROW_KIND: "+I"} for row in export.put]
    rows += [{**dict(zip(KEY, key, strict=True)), _ROW_KIND: "-D"} for key in export.gone]
    if rows:
        write_arrow(target, pa.Table.from_pylist(rows, schema=_arrow_schema()))
    return target.latest_snapshot_id()


def _arrow_schema() -> pa.Schema:
    types = {"STRING": pa.string(), "BIGINT": pa.int64(), "BOOLEAN": pa.bool_()}
    types["TIMESTAMP_LTZ(3)"] = pa.timestamp("ms", tz="UTC")
    fields = [(name, types[kind.removesuffix(" NOT NULL")]) for name, kind, _ in COLUMNS]
    return pa.schema([*fields, (_ROW_KIND, pa.string())])
