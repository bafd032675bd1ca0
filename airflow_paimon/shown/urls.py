"""The addresses of the page *Paimon*. Pure and light: links and DAG files import it."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote, urlencode

from airflow_paimon.core.table.paths import MAIN, parse_identifier

URL_PREFIX = "/paimon"
"""Where Airflow's API server mounts the page, below its base URL."""
DOCS = "/_docs"
"""Where the documentation is, below the page's own prefix; a connection of that name could not be opened."""
TABS = (
    "history", "branches", "tags", "schemas", "partitions", "files", "options",
    "storage", "health", "plan", "grid", "corrections", "audit", "check",
)  # fmt: skip
"""``grid`` is of chain tables; of an ordinary table it says so."""


def table_page_url(
    paimon_conn_id: str, table: str, *, tab: str | None = None, branch: str = MAIN, base_url: str = ""
) -> str:
    """Spell the address of a table's page: ``/paimon/<connection id>/<database>/<table>?tab=…&branch=…``.

    ``table``: ``db.t`` or ``db.t$branch_b``. ``base_url``: Airflow's ``[api] base_url``; without it the address starts
    at the API server's root. Without ``tab`` the page opens on its history.

    Raises:
        InvalidInputError: ``table`` is not of that form. ValueError: there is no such tab.
    """
    identifier = parse_identifier(table)
    if tab is not None and tab not in TABS:
        raise ValueError(f"The page of a table has no tab {tab!r}; it has: {', '.join(TABS)}")
    chosen = branch if branch != MAIN else identifier.branch
    values = {"tab": tab, "branch": None if chosen == MAIN else chosen}
    query = urlencode({name: value for name, value in values.items() if value})
    path = "/".join(quote(part, safe="") for part in (paimon_conn_id, identifier.database, identifier.table))
    return f"{base_url.rstrip('/')}{URL_PREFIX}/{path}{'?' + query if query else ''}"


def plan_page_url(paimon_conn_id: str, table: str, values: Mapping[str, str], *, base_url: str = "") -> str:
    """Spell the address of a table's plan. ``values``: ``sql``, ``partitions`` (one a line) and ``mode`` of its form.

    Raises:
        InvalidInputError: ``table`` is not of the form ``db.t``.
    """
    query = urlencode({name: value for name, value in values.items() if value})
    url = table_page_url(paimon_conn_id, table, tab="plan", base_url=base_url)
    return f"{url}&{query}" if query else url


def docs_page_url(page: str, *, base_url: str = "") -> str:
    """Spell the address of a page of the documentation inside Airflow, such as ``runbook`` or ``howto/sql``."""
    return f"{base_url.rstrip('/')}{URL_PREFIX}{DOCS}/{page}"
