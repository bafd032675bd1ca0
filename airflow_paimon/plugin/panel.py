"""What a tab is asked, and what it gives: values for a template, never markup."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlencode

from pydantic import BaseModel, ConfigDict, Field

from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.table import Table
from airflow_paimon.plugin.reading import FRESH_SECONDS, Reader
from airflow_paimon.plugin.sheet import ByColumn, Sheet, sheet_of
from airflow_paimon.shown.listing import AnnotatedValue, Listing
from airflow_paimon.shown.urls import TABS

T = TypeVar("T")


class PageQuery(BaseModel):
    """The query of a table's page. ``since`` and ``until``: epoch milliseconds; ``at``: a snapshot as ``branch:7``;
    ``download``: the format of a document instead of the page. ``sql``, ``partitions`` (one a line) and ``mode``: a
    correction to be planned.
    """

    model_config = ConfigDict(frozen=True)

    tab: str = Field(TABS[0], max_length=20)
    branch: str = Field(MAIN, max_length=200)
    q: str = Field("", max_length=200)
    page: int = Field(1, ge=1, le=1_000_000)
    sort: str = Field("", max_length=20)
    since: int | None = Field(None, ge=0, le=1 << 53)
    until: int | None = Field(None, ge=0, le=1 << 53)
    at: str = Field("", max_length=250)
    download: str = Field("", max_length=20)
    sql: str = Field("", max_length=10_000)
    partitions: str = Field("", max_length=5000)
    mode: str = Field("", pattern="^(overwrite|upsert)?$")

    def href(self, **changes: Any) -> str:
        """Spell the address of this page with other parameters, relative to the page."""
        values = self.model_dump() | changes
        kept = {
            n: v for n, v in values.items() if v not in ("", None) and (n, v) not in (("page", 1), ("branch", MAIN))
        }
        return f"?{urlencode(kept)}"


@dataclass(frozen=True, kw_only=True)
class Basics:
    """What every tab needs of a table: a few small reads. ``schema`` and ``view_head`` are the chosen branch's,
    ``main_schema`` and ``head`` main's; ``state``: what main is the state of.
    """

    branches: Sequence[str]
    schema: TableSchema
    main_schema: TableSchema
    head: Snapshot | None
    view_head: Snapshot | None
    state: str | None = None


@dataclass(frozen=True, kw_only=True)
class PageContext(Basics):
    """A table that is looked at.

    Tabs read storage through ``reader`` alone, which minds the time. ``cached``: main for what only shows files, see
    ``PaimonHook.keeping_manifests``. ``deadline``: when the answer must go out, a moment of ``time.monotonic``.
    ``airflow``: Airflow's own address, without a slash at the end. ``reach``: ``warehouse`` and ``storage_options``.
    """

    conn_id: str
    main: Table
    cached: Table
    view: Table
    query: PageQuery
    reader: Reader
    now_ms: int
    deadline: float
    user: Any = None
    airflow: str = ""
    reach: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def options(self) -> TableOptions:
        return TableOptions(self.schema.options)

    @property
    def uri(self) -> str:
        """Where the table lies: what keys of results begin with."""
        return self.main.store.uri

    def read(
        self,
        *key: Hashable,
        make: Callable[[], T],
        fresh: float | None = FRESH_SECONDS,
        weigh: Callable[[T], int] = lambda value: 1000,
    ) -> T:
        """Read something of the table in the time that the answer has, see ``Reader.get``.

        ``key``: what the result follows from besides the table's place.
        """
        return self.reader.get((self.uri, *key), make, deadline=self.deadline, fresh=fresh, weigh=weigh)

    def sheet(
        self,
        listing: Listing,
        *,
        empty: str,
        size: int = 100,
        search: bool = True,
        links: ByColumn | None = None,
        marks: ByColumn | None = None,
    ) -> Sheet:
        """Show a page of a list, see ``sheet_of``."""
        q, page = self.query.q if search else None, self.query.page
        return sheet_of(listing, self.now_ms, q=q, page=page, size=size, empty=empty, links=links, marks=marks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """``notes``: sentences above, ``AnnotatedValue`` ones with a link (``short``) into the documentation.

    ``template`` gets ``data``; ``pending``: something is still being read, the page asks again by itself."""

    template: str = "sheets.html"
    sheets: Sequence[Sheet] = ()
    notes: Sequence[str | AnnotatedValue] = ()
    data: Mapping[str, Any] = field(default_factory=dict)
    pending: bool = False
