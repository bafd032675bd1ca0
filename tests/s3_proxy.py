"""A proxy on the loopback in front of an S3 server that loses answers, refuses and lies as it is told."""

from __future__ import annotations

import http.client
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

Answer = tuple[int, dict[str, str], bytes]
_DELAY = 0.05
_HTTP_TIME = "%a, %d %b %Y %H:%M:%S"
_HOP_HEADERS = {"connection", "transfer-encoding", "content-length", "expect"}


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]

    @property
    def is_create(self) -> bool:
        return self.method == "PUT" and self.headers.get("if-none-match") == "*"

    @property
    def is_listing(self) -> bool:
        return self.method == "GET" and "list-type=2" in self.path

    @property
    def is_next_page(self) -> bool:
        return self.is_listing and "continuation-token" in self.path


@dataclass
class Proxy:
    """What happens to the next requests that ``concerns`` picks, one after the other; the others pass.

    - ``apply-reset``, ``apply-500``: the server does it, the answer gets lost, or says 500
    - ``reset``, ``429``, ``500``, ``503`` (too many requests), ``403``, ``409``, ``501``: the server never sees it
    - ``foreign-500``: another writer's put comes first, the answer says 500
    - ``refused``: as ``refusal`` says; the server never sees it
    - ``unconditional``: the server never sees the condition
    - ``check-then-put``: the proxy looks whether the object is there, and puts it a little later without the condition
    - ``half``: half of the answer's body arrives
    - ``stale``: the answer that this listing got while ``remembers`` was set, if it was made then
    - ``down``: this request and all that follow, whatever they are, break off; ``apply-down`` applies this one

    ``clock_hours``: by how much the server's clock is wrong, as its listings tell the times of files.
    """

    target: str
    endpoint: str = ""
    plan: list[str] = field(default_factory=list)
    always: str = ""
    refusal: Answer = (403, {"content-type": "application/xml"}, b"")
    concerns: Callable[[Request], bool] = field(default=lambda request: request.is_create)
    requests: list[Request] = field(default_factory=list)
    down: bool = False
    remembers: bool = False
    listings: dict[str, Answer] = field(default_factory=dict)
    clock_hours: int = 0

    def reset(self) -> None:
        """Let everything pass again and forget what was asked for."""
        self.plan, self.always, self.down, self.clock_hours = [], "", False, 0
        self.concerns = lambda request: request.is_create
        self.requests = []
        self.remembers, self.listings = False, {}

    def next_fault(self, request: Request) -> str:
        self.requests.append(request)
        if self.down:
            return "reset"
        if request.is_next_page and request.path in self.listings:
            return "stale"  # of a first page that was
        if not self.concerns(request):
            return ""
        return self.plan.pop(0) if self.plan else self.always

    def answer(self, fault: str, method: str, path: str, headers: dict[str, str], body: bytes) -> Answer | None:
        if fault == "foreign-500":
            self.forward("PUT", path, {"host": headers["host"]}, b"another writer's")
        if fault == "check-then-put":
            if self.forward("HEAD", path, {"host": headers["host"]}, b"")[0] == 200:
                return 412, {}, _error_body("PreconditionFailed")
            time.sleep(_DELAY)
            fault = "unconditional"
        if fault == "unconditional":
            del headers["if-none-match"]
        if fault in ("down", "apply-down"):
            self.down = True
        if said := {"refused": self.refusal, "stale": self.listings.get(path)}.get(fault):
            return said
        answer = None
        if fault in ("", "unconditional", "half", "stale") or fault.startswith("apply-"):
            answer = self.forward(method, path, headers, body)
        if fault.endswith(("reset", "down")):
            return None
        if self.remembers and answer is not None and Request(method, path, headers).is_listing:
            self.listings[path] = answer
        status = int(fault[-3:]) if fault[-3:].isdigit() else 0
        return (status, {"content-type": "application/xml"}, _error_body(_CODES[status])) if status else answer

    def forward(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        connection = http.client.HTTPConnection(urlsplit(self.target).netloc, timeout=30)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), _at_another_time(answer.read(), self.clock_hours)
        finally:
            connection.close()


def _at_another_time(body: bytes, hours: int) -> bytes:
    """Move the times of files in a listing, as each kind of storage spells them."""

    def by_name(found: re.Match[bytes]) -> bytes:
        later = datetime.strptime(found[0].decode(), _HTTP_TIME) + timedelta(hours=hours)
        return later.strftime(_HTTP_TIME).encode()

    def by_number(found: re.Match[bytes]) -> bytes:
        return (datetime.fromisoformat(found[0].decode()) + timedelta(hours=hours)).strftime("%Y-%m-%dT%H").encode()

    def by_count(found: re.Match[bytes]) -> bytes:
        return found[1] + str(int(found[2]) + hours * 3_600_000).encode()

    if not hours:
        return body
    body = re.sub(rb"\w{3}, \d\d \w{3} \d{4} [\d:]{8}", by_name, body)
    body = re.sub(rb"\b20\d\d-\d\d-\d\dT\d\d(?=:)", by_number, body)
    return re.sub(rb'("modificationTime":)(\d+)', by_count, body)


def _error_body(code: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>As planned</Message></Error>".encode()


_CODES = {
    302: "Found",
    429: "TooManyRequests",
    500: "InternalError",
    503: "SlowDown",
    403: "AccessDenied",
    409: "ConditionalRequestConflict",
    501: "NotImplemented",
}


def _handler(proxy: Proxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer_request(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            fault = proxy.next_fault(Request(self.command, self.path, headers))
            kept = {k: v for k, v in headers.items() if k not in _HOP_HEADERS}
            answer = proxy.answer(fault, self.command, self.path, kept, body)
            if answer is None:
                self.close_connection = True
            else:
                self.reply(*answer, cut=fault == "half")

        def reply(self, status: int, headers: dict[str, str], content: bytes, cut: bool) -> None:
            self.send_response_only(status)
            for name, value in headers.items():
                if name.lower() not in _HOP_HEADERS:
                    self.send_header(name, value)
            length = headers.get("Content-Length", "0") if self.command == "HEAD" else str(len(content))
            self.send_header("Content-Length", length)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content[: len(content) // 2] if cut else content)
            self.close_connection = cut

        def log_message(self, *_: Any) -> None: ...

        do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = answer_request

    return Handler


@contextmanager
def s3_proxy(target: str) -> Iterator[Proxy]:
    """Run a proxy to ``target`` (an endpoint URL) in a thread; ``endpoint`` is its own URL."""
    proxy = Proxy(target)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(proxy))
    server.daemon_threads = True
    proxy.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class OldListings:
    """Picks the first pages of listings that are to be answered as they were: by how often each was asked for."""

    def __init__(self, is_old: Callable[[int], bool]) -> None:
        self._is_old, self._asked = is_old, Counter[str]()
        self.given: set[str] = set()

    def __call__(self, request: Request) -> bool:
        if not request.is_listing or request.is_next_page:
            return False
        self._asked[request.path] += 1
        old = self._is_old(self._asked[request.path])
        self.given |= {request.path} if old else set()
        return old
