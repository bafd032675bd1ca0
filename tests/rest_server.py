"""Paimon's own server of REST catalogs on the loopback, and a proxy before it that loses answers.

with rest_server(folder) as server:
    table = open_table(server.warehouse, "d.t", storage_options=server.options)
"""

from __future__ import annotations

import http.client
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.conftest import require
from tests.loopback import server_process
from tests.oracles import layout

TOKEN = "a-token-for-tests"


@dataclass
class RestServer:
    uri: str
    process: subprocess.Popen[str]
    warehouse: str = "lake"

    @property
    def options(self) -> dict[str, str]:
        return {"metastore": "rest", "uri": self.uri, "token.provider": "bear", "token": TOKEN}

    def tell(self, command: str) -> None:
        """Give it a command of MiniRest.java."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"


@contextmanager
def rest_server(folder: Path) -> Iterator[RestServer]:
    """Run a server that keeps its tables in a folder. It ends when this process does."""
    missing, java = layout.missing("rest"), layout.java_executable()
    require(missing is None, missing or "")
    folder.mkdir(parents=True, exist_ok=True)
    jars = [*layout.rest_jars(), layout.BUNDLE_JAR, *layout.hadoop_jars()]
    source = Path(__file__).with_name("MiniRest.java")
    command = [str(java), "-Xmx300m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    command += map(str, layout.java_program(source, ":".join(map(str, jars))))
    command += [f"file://{folder}/data", RestServer.warehouse, TOKEN]
    with server_process(command, folder / "errors.txt", "The REST server") as (said, process):
        yield RestServer(said[0].rstrip("/"), process)


@dataclass
class RestProxy:
    """Passes everything on, but for what ``plan`` says of the next requests whose path ends with ``concerns``.

    ``lost``: the server does it, no answer comes; ``503-done``: it does it, and the answer is 503; ``503``, ``500``:
    it never sees it; ``reset``: it never sees it, and no answer comes; ``pass``; ``lost-down``: as ``lost``, and every
    later request gets a 500. ``seen``: method and path of all;
    ``headers``: those of each, their names in small letters.
    """

    target: str
    uri: str = ""
    concerns: str = "/commit"
    plan: list[str] = field(default_factory=list)
    seen: list[tuple[str, str]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    def options(self, server: RestServer) -> dict[str, str]:
        return {**server.options, "uri": self.uri}


@contextmanager
def rest_proxy(server: RestServer) -> Iterator[RestProxy]:
    proxy = RestProxy(server.uri)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def handle_any(self) -> None:
            data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            proxy.seen.append((self.command, self.path))
            proxy.headers.append({k.lower(): v for k, v in self.headers.items()})
            mine = self.path.partition("?")[0].endswith(proxy.concerns)
            fault = proxy.plan.pop(0) if mine and proxy.plan else "pass"
            if fault in ("pass", "lost", "lost-down", "503-done"):
                status, body = self.forward(data)
            if fault == "lost-down":
                proxy.concerns, proxy.plan = "", ["500"] * 100
            if fault in ("lost", "lost-down", "reset"):
                with suppress(OSError):
                    self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True
                return
            if fault != "pass":
                status, body = int(fault.partition("-")[0]), b'{"message": "busy", "code": %d}' % int(fault[:3])
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_DELETE = handle_any

        def forward(self, data: bytes) -> tuple[int, bytes]:
            at = urlsplit(proxy.target)
            connection = http.client.HTTPConnection(at.hostname or "", at.port)
            headers = {k: v for k, v in self.headers.items() if k.lower() not in ("host", "connection")}
            try:
                connection.request(self.command, self.path, data or None, headers)
                answer = connection.getresponse()
                return answer.status, answer.read()
            finally:
                connection.close()

    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    running.daemon_threads = True
    proxy.uri = f"http://127.0.0.1:{running.server_address[1]}"
    thread = threading.Thread(target=running.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        running.shutdown()
        running.server_close()
        thread.join()
