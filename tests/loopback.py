"""What the servers of tests have in common: a free port of the loopback, waiting until it answers, and their end."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

_START_SECONDS = 60
_STOP_SECONDS = 30


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def wait_for(server: subprocess.Popen[bytes], port: int, name: str) -> None:
    """Wait until the server takes connections on its port."""
    until = time.monotonic() + _START_SECONDS
    while True:
        assert server.poll() is None, f"{name} ended while it started"
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert time.monotonic() < until, f"{name} didn't start in time"
        time.sleep(0.05)


@contextmanager
def server_process(
    command: Sequence[str | Path], log: Path, name: str, environment: Mapping[str, str] | None = None
) -> Iterator[tuple[list[str], subprocess.Popen[str]]]:
    """Run a server that says on stdout when it is ready, and where, and that ends when its stdin does."""
    with (
        log.open("w") as errors,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
        ) as process,
    ):
        assert process.stdin and process.stdout
        try:
            ready, *said = process.stdout.readline().split() or [""]
            if ready != "ready":
                raise RuntimeError(f"{name} did not start: {log.read_text()[-2000:]}")
            yield said, process
        finally:
            process.stdin.close()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
