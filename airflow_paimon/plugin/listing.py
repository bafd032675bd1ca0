"""The lists before a table's page: connections, databases, tables. Only the tables of the shown page are read."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from urllib.parse import quote

from airflow_paimon.core.errors import PaimonError
from airflow_paimon.core.health.table_health import TableReport, read_healths
from airflow_paimon.core.table.table import find_tables
from airflow_paimon.plugin.catalog import Glance, Known, Warehouse, checked_name, glance
from airflow_paimon.plugin.reading import FRESH_SECONDS, PATIENCE_SECONDS, Reader, ScopedReader
from airflow_paimon.plugin.sheet import Cell, Column, Sheet, moment, number, paged, size, text
from airflow_paimon.plugin.tabs.health import SERVES_SECONDS, score_cell

_ROWS = 50
_TABLES = (
    Column("Table"),
    Column("Kind"),
    Column("Partitioned by"),
    Column("Branches", number=True),
    Column("Snapshot", number=True),
    Column("Last commit (UTC)"),
    Column("Stored rows", number=True, help="With earlier versions of rows and deletes; a reader may see fewer"),
    Column("Health", href="?sort=health", help="Sort all tables of the database by their health, the worst first"),
)
_HEALTHS = (
    Column("Table", href="?"),
    Column("Health", number=True, order="ascending", help="A score from 0 to 100"),
    Column("Files", number=True),
    Column("Size", number=True),
    Column("Snapshots", number=True),
    Column("Costs", number=True, help="What the jobs that mend it read and write again at most"),
    Column("Why", roomy=True),
)
_TABLE_BYTES = 3000
"""About what a table's health takes in memory."""


def connections(known: Sequence[Known], q: str, page: int) -> Sheet:
    """List connections."""
    found = [k for k in known if q.lower() in k.conn_id.lower()]
    page, pages, first, last = paged(len(found), page, _ROWS)
    rows = [
        [Cell(k.conn_id, href=f"{quote(k.conn_id, safe='')}"), text(k.description), Cell(k.origin)]
        for k in found[first:last]
    ]
    columns = (Column("Connection"), Column("Description"), Column("Kept in"))
    empty = "There is no connection of type paimon that you may read. Admin > Connections makes one."
    return Sheet(columns=columns, rows=rows, total=len(found), page=page, pages=pages, search=q, empty=empty)


def databases(warehouse: Warehouse, reader: Reader, q: str, page: int) -> Sheet:
    """List the databases of a warehouse.

    Raises:
        StillReadingError: the storage is slow. PaimonError: it can't be reached.
    """
    reader = ScopedReader(reader, warehouse.scope)
    key = ("databases", warehouse.catalog().label)
    names = reader.get(key, warehouse.databases, until=_soon(), fresh=FRESH_SECONDS)
    found = [n for n in names if q.lower() in n.lower()]
    page, pages, first, last = paged(len(found), page, _ROWS)
    link = quote(warehouse.conn_id, safe="")
    rows = [[Cell(n, href=f"{link}/{quote(n, safe='')}")] for n in found[first:last]]
    empty = "No databases" if q else "The warehouse holds no database (no folder named database.db)"
    return Sheet(
        columns=(Column("Database"),), rows=rows, total=len(found), page=page, pages=pages, search=q, empty=empty
    )


def tables(warehouse: Warehouse, reader: Reader, database: str, q: str, page: int) -> tuple[Sheet, bool]:
    """List a page of the tables of a database; True when some of them are still being read.

    Raises:
        StillReadingError: the storage is slow. PaimonError: it can't be reached, or the name is none.
    """
    until, uri, reader = _soon(), warehouse.catalog().label, ScopedReader(reader, warehouse.scope)
    names = reader.get(
        ("tables", uri, database), partial(warehouse.tables, database), until=until, fresh=FRESH_SECONDS
    )  # fmt: skip
    found = [n for n in names if q.lower() in n.lower()]
    page, pages, first, last = paged(len(found), page, _ROWS)
    shown = found[first:last]
    jobs = {("glance", uri, database, n): partial(glance, warehouse.table(database, n)) for n in shown}
    read = reader.gather(jobs, until=until, fresh=FRESH_SECONDS)
    now_ms = int(time.time() * 1000)
    link = f"{quote(warehouse.conn_id, safe='')}/{quote(database, safe='')}"
    rows = []
    for (*_, name), key in zip(jobs, jobs, strict=True):
        what = read.get(key, ...)
        if what is not None:
            rows.append(_row(warehouse, Cell(name, href=f"{link}/{quote(name, safe='')}"), what, now_ms))
    sheet = Sheet(columns=_TABLES, rows=rows, total=len(found), page=page, pages=pages, search=q, empty="No tables")
    return sheet, len(read) < len(jobs)


def healths(warehouse: Warehouse, reader: Reader, database: str, q: str, page: int) -> Sheet:
    """List the tables of a database by their health, the worst first. All are read, and shown for a minute.

    Raises:
        StillReadingError: they are being read. PaimonError: the storage can't be reached, or the name is none.
    """
    checked_name(f"{database}.t")
    until, catalog, reader = _soon(), warehouse.catalog(), ScopedReader(reader, warehouse.scope)
    reports: list[TableReport] = reader.get(
        ("healths", catalog.label, database),
        lambda: read_healths(find_tables(catalog, database), int(time.time() * 1000)),
        until=until,
        fresh=SERVES_SECONDS,
        weigh=lambda found: _TABLE_BYTES * (1 + len(found)),
    )
    found = [r for r in reports if q.lower() in r.table.lower()]
    page, pages, first, last = paged(len(found), page, _ROWS)
    rows = [_health_row(warehouse, report) for report in found[first:last]]
    return Sheet(columns=_HEALTHS, rows=rows, total=len(found), page=page, pages=pages, search=q, empty="No tables",
                 hidden={"sort": "health"})  # fmt: skip


def _health_row(warehouse: Warehouse, report: TableReport) -> list[Cell]:
    name = report.table.partition(".")[2]
    link = table_link(warehouse, report.table)
    health = report.health
    if health is None:
        assert report.error is not None
        why = Cell(f"unreadable: {warehouse.without_secrets(report.error.message)}", mark="bad")
        return [Cell(name, href=link), score_cell(None), *[Cell("")] * 4, why]
    why = Cell(", ".join(f"{r.id} -{r.points}" for r in health.reasons))
    return [
        Cell(name, href=link),
        score_cell(health.score, href=f"{link}?tab=health"),
        number(health.files.files),
        size(health.files.bytes),
        number(health.held.snapshots),
        size(health.cost_bytes or None),
        why,
    ]


def table_link(warehouse: Warehouse, name: str) -> str:
    """Spell the address of a table's page below the page's root."""
    return "/".join(quote(part, safe="") for part in (warehouse.conn_id, *name.split(".", 1)))


def _row(warehouse: Warehouse, link: Cell, what: object, now_ms: int) -> list[Cell]:
    rest = len(_TABLES) - 2
    if isinstance(what, PaimonError):
        what = Glance(problem=what.message)
    if not isinstance(what, Glance):
        return [link, Cell("…", mark="muted"), *[Cell("", mark="muted")] * rest]
    if what.problem:
        shown = Cell("unreadable", title=warehouse.without_secrets(what.problem), mark="bad")
        return [link, shown, *[Cell("")] * rest]
    return [
        link,
        Cell(what.kind),
        text(", ".join(what.partitioned_by)),
        number(what.branches),
        text(what.newest.id if what.newest else None),
        moment(what.newest.time_millis if what.newest else None, now_ms),
        number(what.rows),
        Cell("see", href=f"{link.href}?tab=health"),
    ]


def _soon() -> float:
    return time.monotonic() + PATIENCE_SECONDS
