"""A Hive metastore on the loopback, made of PySpark's own jars, and a gate before it that can be shut.

with hive_server(folder) as server:
    open_catalog(warehouse, {"metastore": "hive", "uri": server.uri})
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from airflow_paimon.core.catalogs.thrift import Struct, Value, call_bytes, read_reply
from tests.conftest import require
from tests.loopback import server_process
from tests.oracles import layout

_FORGETS_AFTER_S = 15
"""Seconds after which the metastore forgets a silent holder's lock: longer than a commit takes on a busy machine."""


@dataclass(frozen=True)
class Metastore:
    host: str
    port: int

    @property
    def uri(self) -> str:
        return f"thrift://{self.host}:{self.port}"

    def call(self, name: str, *arguments: Value) -> Struct:
        """One call as any client makes it; what it answers, exceptions included."""
        with socket.create_connection((self.host, self.port), 30) as connection, connection.makefile("rb") as answers:
            connection.sendall(call_bytes(name, dict(enumerate(arguments, 1))))
            return read_reply(answers)


def _jars() -> Path | None:
    spark = find_spec("pyspark")
    return None if spark is None or spark.origin is None else Path(spark.origin).parent / "jars"


@contextmanager
def hive_server(folder: Path) -> Iterator[Metastore]:
    """Run a metastore that keeps nothing. It ends when this process does."""
    jars, java = _jars(), layout.java_executable()
    require(jars and java, "no Hive metastore to start: it needs Java and PySpark")
    assert jars and java
    source = Path(__file__).with_name("MiniHive.java")
    command = [
        java,
        "-Xmx400m",
        "-XX:TieredStopAtLevel=1",
        "-XX:+UseSerialGC",
        *layout.java_program(source, f"{jars}/*"),
        folder,
        str(_FORGETS_AFTER_S),
    ]
    with server_process(command, folder / "errors.txt", "The metastore") as (said, _):
        yield Metastore("127.0.0.1", int(said[0]))


class Gate:
    """Passes everything on to a metastore until ``shuts`` says of a request that from now on nobody gets through.

    ``after``: the metastore still gets that request, and its answer is lost.
    """

    def __init__(self, server: Metastore) -> None:
        self._target = (server.host, server.port)
        self.shuts: Callable[[bytes], bool] = lambda _: False
        self.after = False
        self._shut = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self.server = Metastore("127.0.0.1", self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def shut(self) -> None:
        self._shut = True
        for each in self._sockets:
            _cut(each)

    def open(self) -> None:
        self._shut, self.shuts = False, lambda _: False

    def close(self) -> None:
        self.shut()
        _cut(self._listener)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:  # ends when the listener is closed
                client, _ = self._listener.accept()
                if self._shut:
                    _cut(client)
                    continue
                server = socket.create_connection(self._target)
                self._sockets += [client, server]
                for pump, ends in ((self._requests, (client, server)), (self._answers, (server, client))):
                    threading.Thread(target=pump, args=ends, daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(2**16):
                if self.shuts(data):
                    self._shut = True
                    if self.after:
                        server.sendall(data)
                        _wait_for_answer(server)
                    break
                server.sendall(data)
        _cut(client)
        _cut(server)

    def _answers(self, server: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while (data := server.recv(2**16)) and not self._shut:
                client.sendall(data)
        _cut(client)
        _cut(server)


def _wait_for_answer(server: socket.socket) -> None:
    with contextlib.suppress(OSError):
        server.recv(1, socket.MSG_PEEK)


def _cut(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()
