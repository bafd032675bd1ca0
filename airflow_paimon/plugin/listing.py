"""The lists before a table's page: connections, databases, tables. Only the tables of the shown page are read."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from urllib.parse import quote

from airflow_paimon.core.errors import PaimonError
from airflow_paimon.plugin.catalog import Glance, Known, Warehouse, glance
from airflow_paimon.plugin.reading import FRESH_SECONDS, PATIENCE_SECONDS, Reader, ScopedReader
from airflow_paimon.plugin.sheet import Cell, Column, Sheet, moment, number, paged, text

_ROWS = 50
_TABLES = (
    Column("Table"),
    Column("Kind"),
    Column("Partitioned by"),
    Column("Branches", number=True),
    Column("Snapshot", number=True),
    Column("Last commit (UTC)"),
    Column("Rows", number=True, help="As files count them, before any merge"),
)


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
    ]


def _soon() -> float:
    return time.monotonic() + PATIENCE_SECONDS
