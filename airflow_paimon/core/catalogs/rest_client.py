"""Requests to the server of a REST catalog: paths, headers, paging, retries, and what its answers mean.

Requests that change nothing, and deletions, are sent again when no answer comes. Others are sent once: what a lost
answer means is the caller's to find out (``OutcomeUnknownError``).
"""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, quote_plus, urlencode, urlsplit

from airflow_paimon.core.catalogs.rest_auth import Auth, Request
from airflow_paimon.core.errors import (
    AlreadyExistsError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    PaimonError,
    StorageError,
    UnsafeOperationError,
    UnsupportedCatalogError,
)

_TIMEOUT_S = 180.0
_CONNECT_S = 10.0
_TRIES = 5
_FIRST_WAIT_S = 0.2
_LONGEST_MESSAGE = 500
_BUSY = frozenset({429, 502, 503, 504})
"""Answers after which the request may be sent again, if it may be repeated."""
RESOURCE = "resource"
"""Of a ``NotFoundError``'s details: what is missing (``DATABASE``, ``TABLE``, ``SNAPSHOT``, ``TAG``, ``BRANCH``)."""


class NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would send credentials, or what is reported, to another server."""

    def redirect_request(self, *_: Any) -> None:
        return None


class _NotConnectedError(OSError):
    """There was no connection, so the server has not seen the request. Any other failure may come after it was sent."""


class _Connection(http.client.HTTPConnection):
    """Connecting has a short timeout, the answer a long one."""

    def connect(self) -> None:
        for_answer, self.timeout = self.timeout, _CONNECT_S
        try:
            super().connect()
        except TimeoutError:
            raise _NotConnectedError(f"no connection in {_CONNECT_S:g} s") from None
        except OSError as error:
            raise _NotConnectedError(_reason(error)) from error
        self.timeout = for_answer
        self.sock.settimeout(for_answer)


class _TlsConnection(_Connection, http.client.HTTPSConnection):
    """The same with TLS, whose beginning belongs to connecting."""


class _Http(urllib.request.HTTPHandler):
    def http_open(self, request: urllib.request.Request) -> Any:
        return self.do_open(_Connection, request)


class _Https(urllib.request.HTTPSHandler):
    def https_open(self, request: urllib.request.Request) -> Any:
        return self.do_open(_TlsConnection, request)


_OPENER = urllib.request.build_opener(NoRedirects, _Http, _Https)


@dataclass(frozen=True, slots=True)
class _Failed(Exception):
    """``status`` 0: no answer; ``sent``: the server may have seen the request; ``late``: no answer came in time."""

    status: int
    text: str
    resource: str = ""
    sent: bool = True
    late: bool = False


@dataclass(frozen=True, slots=True)
class RestClient:
    """``prefix``: what the server wants in each path. It holds no connection."""

    uri: str
    auth: Auth
    label: str
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    prefix: str = ""

    def get(self, path: Sequence[str], query: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Ask for a resource. ``path``: its parts below ``/v1/<prefix>``, not encoded.

        Raises:
            NotFoundError: there is none; details say what is missing. UnsafeOperationError: the server refuses it.
        """
        return self._send("GET", path, query or {}, None, repeat=True)

    def pages(self, path: Sequence[str], key: str) -> list[Any]:
        """Ask for all pages of a list."""
        found: list[Any] = []
        query: dict[str, str] = {}
        while True:
            page = self.get(path, query)
            found += page.get(key) or []
            token = page.get("nextPageToken")
            if not token or not page.get(key):
                return found
            query = {"pageToken": str(token)}

    def post(self, path: Sequence[str], body: Mapping[str, Any]) -> dict[str, Any]:
        """Send a change once.

        Raises:
            OutcomeUnknownError: no answer, or one that doesn't tell whether it was made.
        """
        return self._send("POST", path, {}, json.dumps(body, ensure_ascii=False), repeat=False)

    def delete(self, path: Sequence[str]) -> None:
        """Delete a resource; a missing one is not an error."""
        try:
            self._send("DELETE", path, {}, None, repeat=True)
        except NotFoundError:
            return

    def _send(
        self, method: str, path: Sequence[str], query: Mapping[str, str], body: str | None, *, repeat: bool
    ) -> dict[str, Any]:
        below = ["v1", *([] if path == ("config",) or not self.prefix else [self.prefix]), *path]
        request = Request(method, "/" + "/".join(_encoded(part) for part in below), query, body)
        for left in reversed(range(_TRIES if repeat else 1)):
            try:
                return self._once(request)
            except _Failed as error:
                if not left or error.late or not (error.status in _BUSY or error.status == 0):
                    raise self._error(request, path, error) from None
            time.sleep(_FIRST_WAIT_S * 2 ** (_TRIES - 1 - left))
        raise AssertionError("the last attempt returns or raises")

    def _once(self, request: Request) -> dict[str, Any]:
        url = f"{self.uri}{request.path}" + (f"?{urlencode(request.query, quote_via=quote)}" * bool(request.query))
        data = None if request.body is None else request.body.encode()
        # DLF signs the type of a body, so a request without one must not name any
        kind = {} if data is None else {"Content-Type": "application/json"}
        headers = {**kind, **dict(self.headers), **self.auth.headers(request)}
        http_request = urllib.request.Request(url, data=data, headers=headers, method=request.method)
        try:
            with _OPENER.open(http_request, timeout=_TIMEOUT_S) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            raise _refusal(error) from None
        except urllib.error.URLError as error:
            raise _Failed(0, _reason(error.reason), sent=not isinstance(error.reason, _NotConnectedError)) from None
        except TimeoutError:
            raise _Failed(0, f"no answer in {_TIMEOUT_S:g} s", late=True) from None
        except (OSError, http.client.HTTPException) as error:
            raise _Failed(0, _reason(error)) from None
        try:
            found = json.loads(text) if text.strip() else {}
        except ValueError:
            raise _Failed(0, "its answer is not JSON") from None
        return found if isinstance(found, dict) else {}

    def _error(self, request: Request, path: Sequence[str], failed: _Failed) -> PaimonError:
        what = f"{request.method} {'/'.join(path)}"
        text = self._masked(failed.text)
        answer = f"{failed.status}: {text}" if failed.status else text
        if failed.status in (401, 403):
            return UnsafeOperationError(f"{self.label} refuses {self.auth.label} for {what} ({answer})")
        if failed.status == 404:
            return NotFoundError(f"{self.label}: {what} ({answer})", details={RESOURCE: failed.resource})
        if failed.status == 409:
            return AlreadyExistsError(f"{self.label}: {what} ({answer})")
        if failed.status == 400:
            return InvalidInputError(f"{self.label} does not take {what} ({answer})")
        if failed.status in (405, 406, 501):
            return UnsupportedCatalogError(f"{self.label} does not offer {what} ({answer})")
        if request.method == "POST" and failed.sent:
            return OutcomeUnknownError(f"{self.label}: cannot determine whether {what} was made ({answer})")
        return StorageError(f"{self.label}: {what} failed ({answer})")

    def _masked(self, text: str) -> str:
        for secret in self.auth.secrets:
            text = text.replace(secret, "***")
        return text[:_LONGEST_MESSAGE]


def _reason(error: object) -> str:
    return f"{error}" or type(error).__name__


def _refusal(error: urllib.error.HTTPError) -> _Failed:
    try:
        raw = json.loads(error.read())
    except (OSError, ValueError, http.client.HTTPException):
        raw = None
    if not isinstance(raw, dict):
        return _Failed(error.code, "the answer has no message")
    code = raw.get("code")
    status = code if isinstance(code, int) and 400 <= code < 600 else error.code
    return _Failed(status, str(raw.get("message") or "no message"), str(raw.get("resourceType") or ""))


def _encoded(part: str) -> str:
    """Encode a part of a path as Java's ``URLEncoder`` does, which the signature covers."""
    return quote_plus(part, safe="*").replace("~", "%7E")


def checked_uri(uri: str) -> str:
    """Check the address of a server; one without a scheme is http.

    Raises:
        InvalidInputError: it is none, or holds credentials.
    """
    full = uri if "://" in uri else f"http://{uri}"
    at = urlsplit(full)
    if at.scheme not in ("http", "https") or not at.hostname or at.username or at.password or at.query:
        raise InvalidInputError(
            "The uri of a rest catalog is the address of its server, such as https://host:8080; credentials are the "
            "options token or dlf.*"
        )
    return full.rstrip("/")
