"""One table's page: what is read of it before any tab, then the tab. A broken table shows what check_table says."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from airflow_paimon.core.errors import NotFoundError, PaimonError
from airflow_paimon.core.publish.main_state import main_state_text
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.table import Table
from airflow_paimon.plugin.catalog import Warehouse
from airflow_paimon.plugin.panel import Basics, PageContext, PageQuery, Panel
from airflow_paimon.plugin.reading import FRESH_SECONDS, PATIENCE_SECONDS, Reader, ScopedReader, StillReadingError
from airflow_paimon.plugin.sheet import moment, number
from airflow_paimon.plugin.tabs import audit, branches, corrections, grid, history, lists, partitions, plan, schemas

_SHOW: Mapping[str, Callable[[PageContext], Panel]] = {
    "history": history.show,
    "branches": branches.show,
    "tags": lists.tags,
    "schemas": schemas.show,
    "partitions": partitions.show,
    "files": partitions.show_files,
    "options": lists.options,
    "storage": lists.storage,
    "health": lists.health,
    "plan": plan.show,
    "grid": grid.show,
    "corrections": corrections.show,
    "audit": audit.show,
    "check": lists.check,
}
_BRANCH_TABS = ("history", "tags", "schemas", "partitions", "files", "options")
"""Tabs that show one branch, which can be chosen."""
_MOST_BRANCHES = 500


def read_basics(main: Table, branch: str) -> Basics:
    """Read the branches, the schemas and newest snapshots of main and the branch, and what main is the state of.

    Raises:
        NotFoundError: there is no such table or branch.
    """
    names = main.require().branch_names()
    if branch != MAIN and branch not in names:
        shown = ", ".join(names[:10]) or "none"
        raise NotFoundError(f"{main.name} has no branch {branch!r} (its branches: {shown})")
    view, schema, head = main.branch(branch), main.schema(), main.latest_snapshot()
    state = main_state_text(main)
    own = (schema, head) if branch == MAIN else (view.schema(), view.latest_snapshot())
    return Basics(branches=names, schema=own[0], main_schema=schema, head=head, view_head=own[1], state=state)


def show(
    warehouse: Warehouse, reader: Reader, database: str, name: str, query: PageQuery, *, user: Any, airflow: str
) -> dict[str, Any]:
    """Give the values of the page.

    Raises:
        NotFoundError: there is no such table or branch. InvalidInputError: the name is none.
    """
    deadline, now_ms = time.monotonic() + PATIENCE_SECONDS, int(time.time() * 1000)
    reader = ScopedReader(reader, warehouse.scope)
    main = warehouse.table(database, name)
    shown: dict[str, Any] = {
        "title": main.name,
        "trail": [warehouse.conn_id, database, name],
        "query": query,
        "tabs": [],
        "branches": [],
        "facts": [],
        "problem": "",
        "panel": Panel(),
    }
    try:
        basics = _basics(reader, main, query.branch, deadline)
        reach = {"warehouse": warehouse.hook.warehouse, "storage_options": warehouse.hook.storage_options}
        context = PageContext(
            **vars(basics), conn_id=warehouse.conn_id, main=main, cached=warehouse.hook.keeping_manifests(main),
            view=main if query.branch == MAIN else main.branch(query.branch), query=query, reader=reader, now_ms=now_ms,
            deadline=deadline, user=user, airflow=airflow, reach=reach,
        )  # fmt: skip
        shown |= _frame(context)
        shown["panel"] = _panel(context)
    except StillReadingError:
        shown["panel"] = Panel(template="pending.html", pending=True)
    except _BrokenError as broken:
        shown |= _broken(warehouse, reader, main, broken.error, now_ms, deadline)
    shown["pending"] = shown["panel"].pending
    return shown


def audit_document(warehouse: Warehouse, reader: Reader, database: str, name: str, form: str) -> str:
    """Return the audit of a table as a document, see ``core.audit.text``.

    Raises:
        NotFoundError: there is no such table. StillReadingError: it isn't read yet.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    return audit.document(ScopedReader(reader, warehouse.scope), warehouse.table(database, name), form, deadline)


class _BrokenError(Exception):
    """The table is there, and something of it can't be read."""

    def __init__(self, error: PaimonError) -> None:
        super().__init__(error.message)
        self.error = error


def _basics(reader: Reader, main: Table, branch: str, deadline: float) -> Basics:
    try:
        key = (main.store.uri, "basics", branch)
        return reader.get(key, partial(read_basics, main, branch), deadline=deadline, fresh=FRESH_SECONDS)
    except NotFoundError:
        raise
    except PaimonError as error:
        raise _BrokenError(error) from None


def _panel(context: PageContext) -> Panel:
    try:
        return _SHOW[context.query.tab](context)
    except PaimonError as error:
        raise _BrokenError(error) from None


def _frame(context: PageContext) -> dict[str, Any]:
    """What stands around the tab."""
    head, schema = context.head, context.schema
    chain = TableOptions(context.main_schema.options).chain_table
    kind = "chain table" if chain else "primary-key table" if schema.primary_keys else "append table"
    facts: list[tuple[str, Any]] = [("", kind)]
    if schema.partition_keys:
        facts.append(("partitioned by", ", ".join(schema.partition_keys)))
    if head is not None:
        facts += [("snapshot", head.id), ("committed", moment(head.time_millis, context.now_ms))]
        facts.append(("stored rows", number(head.total_record_count)))
    if context.state is not None:
        facts.append(("main is", context.state))
    if schema.comment:
        facts.append(("comment", schema.comment))
    names = [t for t in _SHOW if t != "grid" or chain]
    choices = [MAIN, *context.branches[:_MOST_BRANCHES]]
    return {
        "facts": facts,
        "tabs": names,
        "branches": choices if context.query.tab in _BRANCH_TABS and len(choices) > 1 else [],
    }


def _broken(
    warehouse: Warehouse, reader: Reader, main: Table, error: PaimonError, now_ms: int, deadline: float
) -> dict[str, Any]:
    """The message, and below it what check_table says."""
    shown: dict[str, Any] = {"problem": warehouse.without_secrets(error.message), "tabs": list(_SHOW)}
    try:
        found = reader.get(
            (main.store.uri, "check"), partial(lists.findings_of, main, now_ms), deadline=deadline, fresh=FRESH_SECONDS
        )  # fmt: skip
        shown["panel"] = Panel(sheets=[lists.findings_sheet(found)], notes=["check_table found:"])
    except StillReadingError:
        shown["panel"] = Panel(template="pending.html", pending=True)
    except PaimonError as again:
        shown["panel"] = Panel(notes=[f"check_table can't read it either: {warehouse.without_secrets(again.message)}"])
    return shown
