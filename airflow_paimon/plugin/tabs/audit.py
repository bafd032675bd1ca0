"""The tab Audit: publishes, undos, erasures and waiting corrections, who asked and who approved; and its documents."""

from __future__ import annotations

from functools import partial

from airflow_paimon.core.audit.audit_record import ERASURE, AuditRecord
from airflow_paimon.core.audit.records import read_audit
from airflow_paimon.core.audit.text import FORMATS, render
from airflow_paimon.core.table.table import Table
from airflow_paimon.plugin.panel import PageContext, Panel
from airflow_paimon.plugin.reading import FRESH_SECONDS, Reader
from airflow_paimon.plugin.sheet import Cell, Column, Sheet, moment, number, size, text

MEDIA_TYPES = {"json": "application/json", "csv": "text/csv", "markdown": "text/markdown"}
ENDINGS = {"json": "json", "csv": "csv", "markdown": "md"}
_ROWS = 50
_TEXT = 300
_COLUMNS = (
    Column("Snapshot", number=True),
    Column("What"),
    Column("On"),
    Column("Committed (UTC)"),
    Column("Branch"),
    Column("Asked by"),
    Column("Approved by"),
    Column("Reason"),
    Column("Made by", roomy=True, help="The newest statement or function that it brought"),
    Column("Files", number=True, help="Put in"),
    Column("Size", number=True, help="Put in"),
    Column("Undone by", number=True, help="The snapshot that took it back"),
)


def read_records(reader: Reader, main: Table, until: float) -> list[AuditRecord]:
    """Read the audit of a table. ``until``: see ``PageContext``."""
    return reader.get(
        (main.store.uri, "audit"),
        partial(read_audit, main),
        until=until,
        fresh=FRESH_SECONDS,
        weigh=lambda found: 4000 * (1 + len(found)),
    )


def document(reader: Reader, main: Table, form: str, until: float) -> str:
    """Return the whole audit in one of ``FORMATS``."""
    return render(read_records(reader, main, until), form)


def show(context: PageContext) -> Panel:
    """Show the records, the newest first."""
    found = read_records(context.reader, context.main, context.until)[::-1]
    page, pages, first, last = context.page_of(len(found), _ROWS)
    sheet = Sheet(columns=_COLUMNS, rows=[_row(context, r) for r in found[first:last]], total=len(found), page=page,
                  pages=pages, empty="No publish, undo, erasure or correction")  # fmt: skip
    links = [(form, context.asked.href(download=form, page=1)) for form in FORMATS]
    return Panel(template="audit.html", sheets=[sheet], data={"links": links})


def _row(context: PageContext, record: AuditRecord) -> list[Cell]:
    link = context.asked.href(tab="history", at=f"{record.branch}:{record.snapshot}", page=1) if record.is_there else ""
    mark = {"publish": "good", "undo": "warn", "rollback": "warn", "erasure": "warn"}.get(record.kind, "")
    return [
        Cell(str(record.snapshot), href=link),
        Cell(record.kind, mark=mark),
        Cell(record.branch),
        moment(record.time_ms, context.now_ms),
        text(record.from_branch),
        text(record.requested_by),
        text(record.approved_by),
        text(record.reason),
        text(_made(record)),
        number(record.figures.get("files_added")),
        size(record.figures.get("bytes_added")),
        number(record.undone_by),
    ]


def _made(record: AuditRecord) -> str:
    made = next((str(c.get("sql") or c["function"]) for c in record.changes if "sql" in c or "function" in c), "")
    if not made and record.kind == ERASURE:
        return f"Condition with SHA-256 {record.changes[0]['condition_sha256']}"
    return made if len(made) <= _TEXT else f"{made[:_TEXT]}..."
