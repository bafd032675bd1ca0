"""What the servers of tests have in common: a free port of the loopback, and waiting until it answers."""

from __future__ import annotations

import socket
import subprocess
import time

_START_SECONDS = 60


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
