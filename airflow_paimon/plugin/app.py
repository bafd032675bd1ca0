"""The app behind the page: GET only, rendered on the server, every answer within about a second.

Addresses: ``/`` the connections, ``/<connection>`` its databases, ``/<connection>/<database>`` its tables,
``/<connection>/<database>/<table>`` one table; ``/_docs/<page>`` the documentation.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.core_api.security import get_user
from fastapi import Depends, FastAPI, HTTPException, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, Response
from fastapi.staticfiles import StaticFiles
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.exceptions import HTTPException as AnyHTTPException

from airflow_paimon import __version__
from airflow_paimon.bundled import docs_folder
from airflow_paimon.core.errors import InvalidInputError, NotFoundError, PaimonError
from airflow_paimon.plugin import auth, catalog, documents, listing, table_page
from airflow_paimon.plugin.panel import PageQuery
from airflow_paimon.plugin.reading import Reader, StillReadingError
from airflow_paimon.plugin.tabs.audit import ENDINGS, MEDIA_TYPES
from airflow_paimon.shown.urls import DOCS, TABS, URL_PREFIX

_HERE = Path(__file__).parent
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; frame-ancestors 'self'; base-uri 'none'; form-action 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "private, no-store",
}
User = Annotated[BaseUser, Depends(get_user)]
Search = Annotated[str, Query(max_length=200)]
Sort = Annotated[str, Query(max_length=20)]
Page = Annotated[int, Query(ge=1, le=1_000_000)]


class Pages:
    """The templates of a folder. Everything is escaped, and addresses follow from where Airflow has mounted the app."""

    def __init__(self, folder: Path) -> None:
        self._environment = Environment(
            loader=FileSystemLoader(folder), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
            lstrip_blocks=True
        )  # fmt: skip
        self._environment.filters["segment"] = lambda part: quote(str(part), safe="")

    def render(self, request: Request, template: str, **values: Any) -> str:
        """Render one page."""
        root = str(request.scope.get("root_path", ""))
        more = {"root": root, "airflow": self.airflow_address(request), "version": __version__}
        shown = {"pending": False, "trail": (), **more, **values}
        return self._environment.get_template(template).render(shown)

    @staticmethod
    def airflow_address(request: Request) -> str:
        """Give the path under which Airflow itself is served, without a slash at the end."""
        return str(request.scope.get("root_path", "")).rstrip("/").removesuffix(URL_PREFIX)


def build_app(reader: Reader | None = None) -> FastAPI:
    """Build the app. ``reader``: the one that runs its reads; a new one by default."""
    app = FastAPI(title="Paimon", version=__version__, docs_url=None, redoc_url=None, openapi_url=None)
    pages = Pages(_HERE / "templates")
    app.mount("/_static", StaticFiles(directory=_HERE / "static"), name="static")
    app.mount(f"{DOCS}/_static", StaticFiles(directory=docs_folder() / "_static"), name="docs_static")
    _add_documents(app, pages)
    _add_listings(app, pages, reader := reader or Reader())
    _add_table(app, pages, reader)
    _add_errors(app, pages)
    return app


def _add_documents(app: FastAPI, pages: Pages) -> None:
    """Serve the documentation to whoever is signed in: it says nothing about connections or tables."""

    @app.get(DOCS, dependencies=[auth.signed_in])
    @app.get(f"{DOCS}/{{page:path}}", dependencies=[auth.signed_in])
    def document(request: Request, page: str = "index") -> Response:
        if page.endswith(".ipynb"):
            headers = {**_HEADERS, "Content-Disposition": "attachment"}
            return Response(documents.notebook(page), media_type="application/x-ipynb+json", headers=headers)
        found = documents.render(page or "index", f"{request.scope.get('root_path', '')}{DOCS}")
        return _answer(pages.render(request, "document.html", title=found.title, body=found.body))


def _add_listings(app: FastAPI, pages: Pages, reader: Reader) -> None:
    @app.get("/", dependencies=[auth.signed_in])
    def connections(request: Request, user: User, q: Search = "", page: Page = 1) -> Response:
        auth.require_any_connection(user)
        known = catalog.known_connections()
        allowed = auth.readable_connections(user, [k.conn_id for k in known if k.origin != "database"])
        sheet = listing.connections([k for k in known if k.conn_id in allowed], q, page)
        return _answer(pages.render(request, "listing.html", title="Paimon", sheet=sheet))

    @app.get("/{connection_id}", dependencies=[auth.signed_in, auth.may_read_connection])
    def databases(request: Request, connection_id: str, q: Search = "", page: Page = 1) -> Response:
        warehouse = catalog.Warehouse(connection_id)
        sheet = listing.databases(warehouse, reader, q, page)
        return _answer(pages.render(request, "listing.html", title=connection_id, sheet=sheet, trail=[connection_id]))

    @app.get("/{connection_id}/{database}", dependencies=[auth.signed_in, auth.may_read_connection])
    def tables(
        request: Request, connection_id: str, database: str, q: Search = "", page: Page = 1, sort: Sort = ""
    ) -> Response:
        warehouse = catalog.Warehouse(connection_id)
        if sort == "health":
            sheet, pending = listing.healths(warehouse, reader, database, q, page), False
        else:
            sheet, pending = listing.tables(warehouse, reader, database, q, page)
        trail = [connection_id, database]
        return _answer(
            pages.render(request, "listing.html", title=database, sheet=sheet, trail=trail, pending=pending)
        )  # fmt: skip


def _add_table(app: FastAPI, pages: Pages, reader: Reader) -> None:
    @app.get("/{connection_id}/{database}/{name}", dependencies=[auth.signed_in, auth.may_read_connection])
    def table(
        request: Request,
        user: User,
        connection_id: str,
        database: str,
        name: str,
        query: Annotated[PageQuery, Query()],
    ) -> Response:
        tab, download = query.tab, query.download
        if tab not in TABS:
            raise HTTPException(404, f"There is no tab {tab!r}; there are {', '.join(TABS)}")
        if download and (tab != "audit" or download not in MEDIA_TYPES):
            raise HTTPException(404, f"The tab {tab!r} has no document {download!r}")
        if download:
            body = table_page.audit_document(catalog.Warehouse(connection_id), reader, database, name, download)
            return _document(body, f"{database}.{name}-audit.{ENDINGS[download]}", MEDIA_TYPES[download])
        warehouse = catalog.Warehouse(connection_id)
        shown = table_page.show(
            warehouse, reader, database, name, query, user=user, airflow=pages.airflow_address(request)
        )  # fmt: skip
        return _answer(pages.render(request, "table.html", **shown))


def _answer(body: str, status: int = 200) -> HTMLResponse:
    return HTMLResponse(body, status, headers=_HEADERS)


def _document(body: str, name: str, media_type: str) -> Response:
    """Answer with a file to be saved, never to be shown."""
    headers = {**_HEADERS, "Content-Disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}"}
    return Response(body, headers=headers, media_type=media_type)


def _add_errors(app: FastAPI, pages: Pages) -> None:
    def failed(request: Request, status: int, message: str) -> Response:
        allowed = () if status in (401, 403) else ("connection_id", "database", "name")
        trail = [request.path_params[part] for part in allowed if part in request.path_params]
        if trail:
            message = catalog.without_secrets_of(trail[0], message)
        shown = pages.render(
            request, "error.html", title=str(status), status=status, message=message, trail=trail,
            asked_more=bool(request.query_params)
        )  # fmt: skip
        return _answer(shown, status)

    @app.exception_handler(AnyHTTPException)
    def refused(request: Request, error: Any) -> Response:
        return failed(request, error.status_code, str(error.detail))

    @app.exception_handler(RequestValidationError)
    def invalid(request: Request, error: Any) -> Response:
        fields = sorted({str(e["loc"][-1]) for e in error.errors()})
        return failed(request, 422, f"This address has a parameter that is out of bounds: {', '.join(fields)}")

    @app.exception_handler(StillReadingError)
    def pending(request: Request, error: Any) -> Response:
        return _answer(pages.render(request, "waiting.html", title="Paimon", pending=True))

    @app.exception_handler(PaimonError)
    def unreadable(request: Request, error: Any) -> Response:
        status = 404 if isinstance(error, NotFoundError) else 400 if isinstance(error, InvalidInputError) else 502
        return failed(request, status, error.message)
