"""Points people to the documentation: ``docs/runbook.md`` in a text becomes the page's address inside Airflow."""

from __future__ import annotations

import re

from airflow_paimon._compat import conf
from airflow_paimon.shown.urls import docs_page_url

_PAGE = re.compile(r"docs/([a-z0-9-]+(?:/[a-z0-9-]+)?)\.md")


def with_links(text: str | None) -> str:
    """Make Markdown links of the pages that a text names, for ``doc_md`` of a DAG."""
    return _PAGE.sub(lambda found: f"[{_title(found[1])}]({page_address(found[1])})", text or "")


def page_address(page: str) -> str:
    """Spell the address of a page; complete where ``[api] base_url`` is set, so that Airflow's log makes it a link."""
    return docs_page_url(page, base_url=str(conf.get("api", "base_url", fallback="") or ""))


def _title(page: str) -> str:
    return page.rpartition("/")[2].replace("-", " ").capitalize()
