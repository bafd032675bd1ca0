"""An HDFS of one name node and one data node on the loopback, and a proxy before the name node that loses answers.

with hdfs_server(folder) as uri:
    store = open_store(f"{uri}/warehouse")
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from tests.conftest import require
from tests.loopback import server_process
from tests.oracles import layout

_JARS = ("hadoop-client-api", "hadoop-client-runtime", "slf4j-api", "jcl-over-slf4j")


def _class_path() -> list[Path] | None:
    """The mini cluster and what it needs of the project's own PySpark, which brings the same Hadoop."""
    spark = find_spec("pyspark")
    if spark is None or spark.origin is None or not layout.MINICLUSTER_JAR.is_file():
        return None
    jars = Path(spark.origin).parent / "jars"
    found = [sorted(jars.glob(f"{name}-[0-9]*.jar")) for name in _JARS]
    return [layout.MINICLUSTER_JAR, *(some[0] for some in found)] if all(found) else None


@contextmanager
def hdfs_server(folder: Path) -> Iterator[str]:
    """Run a cluster that keeps its files in a folder, and give its URI. It ends when this process does."""
    jars, java = _class_path(), layout.java_executable()
    require(jars and java, "no HDFS cluster to start: run `make oracles`")
    assert jars and java
    source = Path(__file__).with_name("MiniHdfs.java")
    command = [
        java,
        "-Xmx400m",
        "-XX:TieredStopAtLevel=1",
        "-XX:+UseSerialGC",
        *layout.java_program(source, ":".join(map(str, jars))),
        folder,
    ]
    with server_process(command, folder / "errors.txt", "The HDFS cluster") as (said, _):
        yield said[0]


class NameNodeProxy:
    """Passes everything on, but for what ``plan`` says of the next calls that rename.

    ``lost``: the name node does it, the answer gets lost; ``reset``: it never sees it; ``down`` and ``lost-down``: the
    same, and from then on nobody gets through.
    """

    def __init__(self, uri: str) -> None:
        self.plan: list[str] = []
        self._down = False
        at = urlsplit(uri)
        self._target = (at.hostname or "", at.port or 0)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self.uri = f"hdfs://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for each in (self._listener, *self._sockets):
            _cut(each)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:  # ends when the listener is closed
                client, _ = self._listener.accept()
                if self._down:
                    _cut(client)
                    continue
                server = socket.create_connection(self._target)
                self._sockets += [client, server]
                lost = threading.Event()
                for pump in (self._requests, self._answers):
                    threading.Thread(target=pump, args=(client, server, lost), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket, lost: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(2**16):
                fault = self.plan.pop(0) if self.plan and b"rename2" in data else ""
                if fault.startswith("lost"):
                    lost.set()
                self._down = self._down or fault.endswith("down")
                if fault in ("reset", "down"):
                    break
                server.sendall(data)
        _cut(client)
        _cut(server)

    def _answers(self, client: socket.socket, server: socket.socket, lost: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while (data := server.recv(2**16)) and not lost.is_set():
                client.sendall(data)
        _cut(client)
        _cut(server)


def _cut(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()
