"""The lists before a table's page: connections, databases, tables. Only the tables of the shown page are read."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from urllib.parse import quote

from airflow_paimon.core.errors import NotFoundError, PaimonError
from airflow_paimon.core.health.table_health import TableReport, read_healths
from airflow_paimon.core.table.table import find_tables
from airflow_paimon.plugin.catalog import Known, Warehouse, checked_name
from airflow_paimon.plugin.reading import FRESH_SECONDS, PATIENCE_SECONDS, Reader, ScopedReader
from airflow_paimon.plugin.sheet import Cell, Column, Sheet, paged, sheet_of
from airflow_paimon.plugin.tabs.lists import SERVES_SECONDS, score_mark
from airflow_paimon.shown import glance as glances
from airflow_paimon.shown import lists
from airflow_paimon.shown.glance import Glance, glance
from airflow_paimon.shown.listing import Listing, heads

_ROWS = 50
_TABLE_BYTES = 3000
"""About what a table's health takes in memory."""


def connections(known: Sequence[Known], q: str, page: int) -> Sheet:
    """List connections."""
    rows = [(k.conn_id, k.description or None, k.origin) for k in known]
    found = Listing(title="connections", columns=heads("connection | description | kept in"), rows=rows)
    empty = "There is no connection of type paimon that you may read. Admin > Connections makes one."
    links = {"connection": lambda row: quote(row["connection"], safe="")}
    return sheet_of(found, 0, q=q, page=page, size=_ROWS, empty=empty, links=links)


def databases(warehouse: Warehouse, reader: Reader, q: str, page: int) -> Sheet:
    """List the databases of a warehouse.

    Raises:
        StillReadingError: the storage is slow. PaimonError: it can't be reached.
    """
    reader = ScopedReader(reader, warehouse.scope)
    key = ("databases", warehouse.catalog().label)
    names = reader.get(key, warehouse.databases, deadline=_page_deadline(), fresh=FRESH_SECONDS)
    link = quote(warehouse.conn_id, safe="")
    found = Listing(title="databases", columns=heads("database"), rows=[(name,) for name in names])
    where = warehouse.without_secrets(warehouse.catalog().label)
    empty = "No database has this in its name" if q else (
        f"{where[:1].upper()}{where[1:]} has no database. If it should have one, test the connection "
        f"(Admin, Connections, {warehouse.conn_id}, button Test)."
    )  # fmt: skip
    links = {"database": lambda row: f"{link}/{quote(row['database'], safe='')}"}
    return sheet_of(found, 0, q=q, page=page, size=_ROWS, empty=empty, links=links)


def tables(warehouse: Warehouse, reader: Reader, database: str, q: str, page: int) -> tuple[Sheet, bool]:
    """List a page of the tables of a database; True when some of them are still being read.

    Raises:
        StillReadingError: the storage is slow. NotFoundError: there is no such database. PaimonError: it can't be
            reached, or the name is none.
    """
    deadline, uri, reader = _page_deadline(), warehouse.catalog().label, ScopedReader(reader, warehouse.scope)
    names = reader.get(
        ("tables", uri, database), partial(warehouse.tables, database), deadline=deadline, fresh=FRESH_SECONDS
    )  # fmt: skip
    if not names:
        _refuse_missing(warehouse, reader, database, deadline)
    found = [n for n in names if q.lower() in n.lower()]
    page, pages, first, last = paged(len(found), page, _ROWS)
    shown = found[first:last]
    jobs = {("glance", uri, database, n): partial(glance, warehouse.table(database, n)) for n in shown}
    read = reader.gather(jobs, deadline=deadline, fresh=FRESH_SECONDS)
    seen = [(name, _glance(read.get(key))) for (*_, name), key in zip(jobs, jobs, strict=True)
            if read.get(key, ...) is not None]  # fmt: skip
    link = f"{quote(warehouse.conn_id, safe='')}/{quote(database, safe='')}"
    sheet = sheet_of(
        glances.tables(seen, warehouse.without_secrets), int(time.time() * 1000),
        q=q, page=1, size=_ROWS,
        empty="No table has this in its name" if q else "This database has no table yet",
        links={"table": lambda row: f"{link}/{quote(row['table'], safe='')}"},
        marks={"kind": lambda row: "bad" if row["kind"].startswith("unreadable") else ""},
    )  # fmt: skip
    by_health = Column("Health", href="?sort=health", help="List all tables by their health, the worst first")
    see = [[*row, Cell("health", href=f"{row[0].href}?tab=health")] for row in sheet.rows]
    sheet = replace(sheet, columns=[*sheet.columns, by_health], rows=see, total=len(found), page=page, pages=pages)
    return sheet, len(read) < len(jobs)


def _refuse_missing(warehouse: Warehouse, reader: ScopedReader, database: str, deadline: float) -> None:
    uri = warehouse.catalog().label
    if database not in reader.get(("databases", uri), warehouse.databases, deadline=deadline, fresh=FRESH_SECONDS):
        raise NotFoundError(f"{uri[:1].upper()}{uri[1:]} has no database {database!r}")


def _glance(read: object) -> Glance | None:
    return read if isinstance(read, Glance) else Glance(problem=read.message) if isinstance(read, PaimonError) else None


def healths(warehouse: Warehouse, reader: Reader, database: str, q: str, page: int) -> Sheet:
    """List the tables of a database by their health, the worst first. All are read, and shown for a minute.

    Raises:
        StillReadingError: they are being read. NotFoundError: there is no such database. PaimonError: the storage can't
            be reached, or the name is none.
    """
    checked_name(f"{database}.t")
    deadline, catalog, reader = _page_deadline(), warehouse.catalog(), ScopedReader(reader, warehouse.scope)
    reports: list[TableReport] = reader.get(
        ("healths", catalog.label, database),
        lambda: read_healths(find_tables(catalog, database), int(time.time() * 1000)),
        deadline=deadline,
        fresh=SERVES_SECONDS,
        weigh=lambda found: _TABLE_BYTES * (1 + len(found)),
    )
    if not reports:
        _refuse_missing(warehouse, reader, database, deadline)
    sheet = sheet_of(
        lists.healths([replace(r, table=r.table.partition(".")[2]) for r in reports], warehouse.without_secrets),
        0, q=q, page=page, size=_ROWS, empty="No tables",
        links={
            "table": lambda row: table_link(warehouse, f"{database}.{row['table']}"),
            "score": lambda row: table_link(warehouse, f"{database}.{row['table']}") + "?tab=health",
        },
        marks={"score": lambda row: score_mark(row["score"])},
    )  # fmt: skip
    first, score, *others = sheet.columns
    ordered = [replace(first, href="?"), replace(score, order="ascending"), *others]
    return replace(sheet, columns=ordered, hidden={"sort": "health"})


def table_link(warehouse: Warehouse, name: str) -> str:
    """Spell the address of a table's page below the page's root."""
    return "/".join(quote(part, safe="") for part in (warehouse.conn_id, *name.split(".", 1)))


def _page_deadline() -> float:
    return time.monotonic() + PATIENCE_SECONDS
