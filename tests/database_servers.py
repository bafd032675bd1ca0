"""PostgreSQL and MariaDB servers on free ports of the loopback, for whoever tests against them.

with postgres_server() as uri:  # jdbc:postgresql://127.0.0.1:port/postgres
    ...
"""

from __future__ import annotations

import glob
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.loopback import START_SECONDS, end, free_port

USER = "paimon"
PASSWORD = "a-password-of-the-database"


def postgres_programs() -> Path | None:
    """The folder of PostgreSQL's programs; None where it is not installed."""
    found = shutil.which("pg_ctl")
    known = [str(Path(found).resolve())] if found else []
    for path in [*known, *sorted(glob.glob("/usr/lib/postgresql/*/bin/pg_ctl"), reverse=True)]:
        if Path(path).with_name("initdb").exists():
            return Path(path).parent
    return None


@contextmanager
def postgres_server() -> Iterator[str]:
    """Run a server with an empty database, and give the URI of that."""
    import pg8000.dbapi

    programs = postgres_programs()
    assert programs is not None
    with _folder() as (folder, user):
        data, secret, port = folder / "data", folder / "init", free_port()
        options = ["-U", USER, "--pwfile", str(secret), "-A", "scram-sha-256", "-N"]
        _run([str(programs / "initdb"), "-D", str(data), *options], user)
        options = ["-h", "127.0.0.1", "-p", str(port), "-k", str(data), "-c", "fsync=off"]
        with _server([str(programs / "postgres"), "-D", str(data), *options], user) as server:
            _wait(server, lambda: pg8000.dbapi.connect(
                user=USER, password=PASSWORD, host="127.0.0.1", port=port, database="postgres"
            ))  # fmt: skip
            yield f"jdbc:postgresql://127.0.0.1:{port}/postgres"


def mariadb_program() -> str | None:
    """MariaDB's server; None where it is not installed."""
    return shutil.which("mariadbd") if shutil.which("mariadb-install-db") else None


@contextmanager
def mariadb_server() -> Iterator[str]:
    """Run a server with an empty database ``paimon``, and give the URI of that."""
    import pymysql

    program = mariadb_program()
    assert program is not None
    with _folder() as (folder, user):
        data, port = folder / "data", free_port()
        _run(
            ["mariadb-install-db", "--no-defaults", f"--datadir={data}", "--auth-root-authentication-method=normal"],
            user,
        )
        (folder / "init").write_text(
            f"CREATE DATABASE paimon;\nCREATE USER '{USER}'@'%' IDENTIFIED BY '{PASSWORD}';\n"
            f"GRANT ALL ON paimon.* TO '{USER}'@'%';\nDROP USER IF EXISTS ''@'localhost';"
        )
        options = [f"--init-file={folder}/init", "--bind-address=127.0.0.1", f"--port={port}", f"--socket={folder}/s"]
        with _server([program, "--no-defaults", f"--datadir={data}", "--skip-name-resolve", *options], user) as server:
            _wait(server, lambda: pymysql.connect(
                user=USER, password=PASSWORD, host="127.0.0.1", port=port, database="paimon"
            ))  # fmt: skip
            yield f"jdbc:mysql://127.0.0.1:{port}/paimon"


@contextmanager
def _folder() -> Iterator[tuple[Path, str | None]]:
    """Give a folder with a file ``init`` (the password), and the user who owns it. No server here runs as root."""
    user = "nobody" if os.geteuid() == 0 else None
    with tempfile.TemporaryDirectory(prefix="database-") as name:
        folder = Path(name)
        (folder / "init").write_text(PASSWORD)
        if user is not None:  # who does not get into pytest's own folders
            for path in (folder, folder / "init"):
                os.chown(path, pwd.getpwnam(user).pw_uid, -1)
        yield folder, user


def _run(command: list[str], user: str | None) -> None:
    done = subprocess.run(command, user=user, cwd="/", capture_output=True, text=True, timeout=START_SECONDS)
    assert done.returncode == 0, done.stderr


@contextmanager
def _server(command: list[str], user: str | None) -> Iterator[subprocess.Popen[bytes]]:
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    server = subprocess.Popen(command, user=user, cwd="/", **quiet)  # type: ignore[call-overload]
    try:
        yield server
    finally:
        end(server, signal.SIGQUIT)


def _wait(server: subprocess.Popen[bytes], connect: Callable[[], Any]) -> None:
    until = time.monotonic() + START_SECONDS
    while True:
        assert server.poll() is None, "the server ended while it started"
        try:
            connect().close()
            return
        except Exception:  # each driver has errors of its own
            assert time.monotonic() < until, "the server didn't start in time"
            time.sleep(0.1)
