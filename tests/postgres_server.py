"""A PostgreSQL server on a free port of the loopback, for whoever tests against it.

with postgres_server() as uri:  # jdbc:postgresql://127.0.0.1:port/postgres
    ...
"""

from __future__ import annotations

import glob
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

USER = "paimon"
PASSWORD = "a-password-of-postgres"
_START_SECONDS = 60


def programs() -> Path | None:
    """The folder of the server's programs; None where PostgreSQL is not installed."""
    found = shutil.which("pg_ctl")
    known = [str(Path(found).resolve())] if found else []
    for path in [*known, *sorted(glob.glob("/usr/lib/postgresql/*/bin/pg_ctl"), reverse=True)]:
        if Path(path).with_name("initdb").exists():
            return Path(path).parent
    return None


@contextmanager
def postgres_server() -> Iterator[str]:
    """Run a server with an empty database, and give the URI of that."""
    programs_at = programs()
    assert programs_at is not None
    # PostgreSQL refuses to run as root, and another user doesn't get into pytest's folders.
    user = "nobody" if os.geteuid() == 0 else None
    with tempfile.TemporaryDirectory(prefix="postgres-") as folder:
        data, secret = Path(folder) / "data", Path(folder) / "password"
        secret.write_text(PASSWORD)
        if user is not None:
            os.chown(folder, pwd.getpwnam(user).pw_uid, -1)
            os.chown(secret, pwd.getpwnam(user).pw_uid, -1)
        made = subprocess.run(
            [programs_at / "initdb", "-D", data, "-U", USER, "--pwfile", secret, "-A", "scram-sha-256", "-N"],
            user=user, cwd="/", capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert made.returncode == 0, made.stderr
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        server = subprocess.Popen(
            [programs_at / "postgres", "-D", data, "-h", "127.0.0.1", "-p", str(port), "-k", data, "-c", "fsync=off"],
            user=user, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            _wait(server, port)
            yield f"jdbc:postgresql://127.0.0.1:{port}/postgres"
        finally:
            server.send_signal(signal.SIGQUIT)
            server.wait(30)


def _wait(server: subprocess.Popen[bytes], port: int) -> None:
    import pg8000.dbapi

    until = time.monotonic() + _START_SECONDS
    while True:
        assert server.poll() is None, "PostgreSQL ended while it started"
        try:
            pg8000.dbapi.connect(user=USER, password=PASSWORD, host="127.0.0.1", port=port, database="postgres").close()
            return
        except (pg8000.dbapi.Error, OSError):
            assert time.monotonic() < until, "PostgreSQL didn't start in time"
            time.sleep(0.1)
