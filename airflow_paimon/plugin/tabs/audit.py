"""The tab Audit: publishes, undos, erasures and waiting corrections, who asked and who approved; and its documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from airflow_paimon.core.audit.audit_record import AuditRecord
from airflow_paimon.core.audit.records import read_audit
from airflow_paimon.core.audit.text import FORMATS, render
from airflow_paimon.core.errors import PaimonError
from airflow_paimon.core.publish.undo_preview import BY_BUCKET, BY_KEY, BY_ROW, UndoPreview, preview_undo
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.table import Table
from airflow_paimon.plugin.forms import form_card, of_table, visible_dags
from airflow_paimon.plugin.panel import PageContext, Panel
from airflow_paimon.plugin.reading import FRESH_SECONDS, Reader
from airflow_paimon.plugin.sheet import Cell, Column, Sheet, sheet_of, text
from airflow_paimon.runbooks.kinds import Kind
from airflow_paimon.shown import lists
from airflow_paimon.shown.commits import commit_of, commits
from airflow_paimon.shown.markdown import counted

MEDIA_TYPES = {"json": "application/json", "csv": "text/csv", "markdown": "text/markdown"}
ENDINGS = {"json": "json", "csv": "csv", "markdown": "md"}
_ROWS = 50
_MARKS = {"publish": "good", "undo": "warn", "rollback": "warn", "erasure": "warn"}
_UNDO = Column("Undo", help="What an undo would do now")


def read_records(reader: Reader, main: Table, deadline: float) -> list[AuditRecord]:
    """Read the audit of a table. ``deadline``: see ``PageContext``."""
    return reader.get(
        (main.store.uri, "audit"),
        partial(read_audit, main),
        deadline=deadline,
        fresh=FRESH_SECONDS,
        weigh=lambda found: 4000 * (1 + len(found)),
    )


def document(reader: Reader, main: Table, form: str, deadline: float) -> str:
    """Return the whole audit in one of ``FORMATS``."""
    return render(read_records(reader, main, deadline), form)


def show(context: PageContext) -> Panel:
    """Show the records, the newest first."""
    found = read_records(context.reader, context.main, context.deadline)[::-1]
    by_place = {(r.branch, r.snapshot): r for r in found}

    def history(row: Mapping[str, Any]) -> str:
        at = f"{row['on']}:{row['snapshot']}"
        return context.query.href(tab="history", at=at, page=1) if by_place[row["on"], row["snapshot"]].is_there else ""

    sheet = context.sheet(
        lists.records(found[::-1]),
        empty="No publish, undo, erasure or correction",
        size=_ROWS,
        search=False,
        links={"snapshot": history},
        marks={"what": lambda row: _MARKS.get(row["what"], "")},
    )
    shown = found[(sheet.page - 1) * _ROWS :]

    def undo_cell(record: AuditRecord) -> Cell:
        link = f"{context.query.href(at=_at(record))}#undo"
        return Cell("preview", href=link) if _can_be_undone(record) else text(None)

    rows = [[*row, undo_cell(record)] for row, record in zip(sheet.rows, shown, strict=False)]
    sheet = replace(sheet, columns=[*sheet.columns, _UNDO], rows=rows)
    links = [(form, context.query.href(download=form, page=1, at="")) for form in FORMATS]
    undo = _undo(context, [r for r in found if _can_be_undone(r) and context.query.at == _at(r)])
    return Panel(template="audit.html", sheets=[sheet], data={"links": links, "undo": undo})


def _at(record: AuditRecord) -> str:
    return f"{record.branch}:{record.snapshot}"


def _can_be_undone(record: AuditRecord) -> bool:
    return record.branch == MAIN and record.is_there and record.undone_by is None and bool(record.undo_tag)


def _undo(context: PageContext, records: Sequence[AuditRecord]) -> dict[str, Any]:
    """Preview the undo of the record that the address names; nothing if it names none that can be undone."""
    if not records:
        return {}
    record, head = records[0], context.head.id if context.head else 0
    make = partial(_preview, context.cached, record.snapshot)
    preview = context.read("undo preview", record.identity, head, make=make)
    if isinstance(preview, str):
        return {"title": _title(record), "lines": [f"This can't be determined: {preview}"], "forms": [], "later": None,
                "lacks_dag": False}  # fmt: skip
    return {
        "title": _title(record),
        "lines": _lines(preview),
        "forms": _forms(context, preview),
        "later": _later(context, preview),
        "lacks_dag": not any(dag.kind in (Kind.UNDO, Kind.CORRECTION) for dag in visible_dags(context)),
    }


def _preview(main: Table, snapshot: int) -> UndoPreview | str:
    try:
        return preview_undo(main, snapshot)
    except PaimonError as error:  # it has expired meanwhile, for one; the list of records is there all the same
        return error.message


def _title(record: AuditRecord) -> str:
    what = {"publish": "publish", "undo": "undo", "rollback": "rollback"}.get(record.kind, "publish")
    return f"Undo {what} {record.snapshot}" + (f" of branch {record.from_branch}" if record.from_branch else "")


def _lines(preview: UndoPreview) -> list[str]:
    """Say what the undo does, and what it keeps."""
    if preview.way == BY_BUCKET:
        f = preview.figures
        get_back = "gets back what it" if f["partitions"] == 1 else "get back what they"
        later = f" {counted(preview.later_count, 'later commit')} stay{'s' * (preview.later_count == 1)}."
        return [
            f"{counted(f['partitions'], 'partition')} of main {get_back} held before: "
            f"{counted(f['files_deleted'], 'file')} with {counted(f['rows_deleted'], 'stored row')} out, "
            f"{counted(f['files_added'], 'file')} with {counted(f['rows_added'], 'stored row')} in."
            f"{later if preview.later_count else ''}"
        ]
    where = ", ".join(preview.conflicts)
    by_row = (
        "By row: a MERGE restores the values from before the publish, in each row that has not changed since. "
        "A correction runs it on a branch. Its diff counts the rows before the approval, and no later change "
        "is lost."
    )
    if preview.way == BY_KEY:
        return [
            f"By key: {where} changed again after it. The keys that it changed get back what they were, and what came "
            f"later to other keys stays. If one of its keys has changed again, it is refused, and nothing changes.",
            by_row,
        ]
    if preview.way == BY_ROW:
        return [
            f"Not by bucket: {where or 'its buckets'} changed again after it, in what came later (below).",
            by_row,
        ]
    return [f"It can't be undone this way: {preview.why}", *([f"Changed again: {where}"] if where else [])]


def _later(context: PageContext, preview: UndoPreview) -> Sheet:
    listing = commits([(MAIN, commit_of(s)) for s in preview.later], several=False)
    links = {"snapshot": lambda row: context.query.href(tab="history", at=f"{MAIN}:{row['snapshot']}", page=1)}
    title = "What came later, and stays"
    return sheet_of(listing, context.now_ms, title=title, empty="Nothing came later", links=links)


def _forms(context: PageContext, preview: UndoPreview) -> list[dict[str, Any]]:
    """What the fitting trigger form wants to be given."""
    table, dags = of_table(context), visible_dags(context)
    cards: list[dict[str, Any]] = []
    if preview.way in (BY_BUCKET, BY_KEY):
        cards += form_card(context, dags, Kind.UNDO, "Undo", {**table, "tag": preview.tag, "keep_later": True})
    if preview.way in (BY_KEY, BY_ROW) and preview.statement is not None:
        reason = f"take back snapshot {preview.snapshot}"
        conf = {**table, "sql": preview.statement, "views": list(preview.views), "reason": reason}
        cards += form_card(context, dags, Kind.CORRECTION, "Undo row by row", conf)
    return cards
