"""The tab Tags of one branch, the newest snapshot first: what each is for and how long it lives."""

from __future__ import annotations

from datetime import datetime

from airflow_paimon.core.format.snapshot import Tag
from airflow_paimon.core.table.paths import HOLD_TAG_PREFIX, KEEP_TAG_PREFIX, UNDO_TAG_PREFIX, protects
from airflow_paimon.plugin.panel import PageContext, Panel
from airflow_paimon.plugin.reading import FRESH_SECONDS
from airflow_paimon.plugin.sheet import Cell, Column, Sheet, ago, exact_text, moment, number, text
from airflow_paimon.runbooks.leftovers import is_run_tag

_ROWS = 100
_COLUMNS = (
    Column("Tag"),
    Column("What for"),
    Column("Snapshot", number=True),
    Column("Committed (UTC)"),
    Column("Stored rows", number=True, help="With earlier versions of rows and deletes; a reader may see fewer"),
    Column("Expires (UTC)"),
)


def purpose(name: str) -> str:
    """Say what a tag is for, by its name; empty for one that somebody made."""
    if name.startswith(UNDO_TAG_PREFIX):
        return "undo point"
    if (branch := protects(name)) is not None:
        return f"protects branch {branch}"
    if name.startswith(KEEP_TAG_PREFIX):
        return "keeps files that came back"
    if name.startswith(HOLD_TAG_PREFIX):
        return "held by a publish until it is done"
    return "start of a correction" if is_run_tag(name) else ""


def show(context: PageContext) -> Panel:
    """Show a page of the branch's tags."""
    found: list[Tag] = context.reader.get(
        (context.uri, "tags", context.view.branch_name),
        context.view.tags,
        until=context.until,
        fresh=FRESH_SECONDS,
        weigh=lambda tags: 1500 * (1 + len(tags)),
    )
    wanted = [t for t in reversed(found) if context.asked.q.lower() in t.name.lower()]
    page, pages, first, last = context.page_of(len(wanted), _ROWS)
    sheet = Sheet(columns=_COLUMNS, rows=[_row(context, t) for t in wanted[first:last]], total=len(wanted), page=page,
                  pages=pages, search=context.asked.q, empty="No tags")  # fmt: skip
    return Panel(sheets=[sheet])


def _row(context: PageContext, tag: Tag) -> list[Cell]:
    held = "" if tag.hold is None else f"legal hold: {tag.hold}"
    what, undo = held or purpose(tag.name), tag.name.startswith(UNDO_TAG_PREFIX)
    link = context.asked.href(tab="corrections", q=tag.name, page=1) if undo else ""
    at = context.asked.href(tab="history", at=f"{context.view.branch_name}:{tag.snapshot.id}", q="", page=1)
    return [
        Cell(tag.name),
        Cell(what, href=link, title="How to undo this publish") if link else text(what),
        Cell(str(tag.snapshot.id), href=at),
        moment(tag.snapshot.time_millis, context.now_ms),
        number(tag.snapshot.total_record_count),
        _expires(tag.expires_at(), context.now_ms),
    ]


def _expires(end: datetime | None, now_ms: int) -> Cell:
    """``end`` is the writer's local time, which is taken for this machine's."""
    if end is None:
        return Cell("never")
    try:
        millis = round(end.timestamp() * 1000)
    except (OverflowError, OSError, ValueError):
        return Cell(str(end))
    past = millis < now_ms
    return Cell(exact_text(millis)[:16], title=ago(millis, now_ms), mark="warn" if past else "")
