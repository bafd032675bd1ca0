"""What the servers of tests have in common: a free port of the loopback, waiting until it answers, and their end."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

START_SECONDS = 500
"""Ample: a server that doesn't start says so by its end, and this only ends the test of one that hangs."""
_STOP_SECONDS = 30
_PORTS_OF_A_WORKER = 1500


def _ports() -> Iterator[int]:
    """Ports that only this worker of the tests gives to servers, each of them once.

    All are below those that Linux gives to clients, which could otherwise take one before its server does.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 8
    ports = list(range(worker * _PORTS_OF_A_WORKER + 10_000, (worker + 1) * _PORTS_OF_A_WORKER + 10_000))
    random.SystemRandom().shuffle(ports)  # another run on this machine has the same ones
    return iter(ports)


_left = _ports()


def free_port(*also: int) -> int:
    """Give a port on which nobody listens, neither on those that are ``also`` above it."""
    for port in _left:
        with ExitStack() as stack, suppress(OSError):
            for each in (port, *(port + more for more in also)):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", each))
            return port
    raise AssertionError("no port is left")


def end(server: subprocess.Popen[Any], signal_number: int = signal.SIGTERM) -> None:
    """End a server: by a signal that it may answer, and if it takes too long, at once."""
    server.send_signal(signal_number)
    try:
        server.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def wait_for(server: subprocess.Popen[bytes], port: int, name: str) -> None:
    """Wait until the server takes connections on its port."""
    until = time.monotonic() + START_SECONDS
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
