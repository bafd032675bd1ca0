"""A web server that keeps what is posted to it, and answers as it is told."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Web:
    """``posted``: path and JSON of each request; ``answers``: status and body of the next ones."""

    url: str
    posted: list[tuple[str, Any]] = field(default_factory=list)
    answers: list[tuple[int, str]] = field(default_factory=list)


@contextmanager
def web_server() -> Iterator[Web]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(200, "{}")

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            web.posted.append((self.path, json.loads(body)))
            self._answer(*(web.answers.pop(0) if web.answers else (200, '{"result": "SUCCESS"}')))

        def _answer(self, status: int, text: str) -> None:
            self.send_response(status)
            if status in (301, 302):
                self.send_header("Location", f"{web.url}/elsewhere")
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    web = Web(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield web
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
