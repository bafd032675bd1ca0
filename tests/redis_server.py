"""A Redis on a free port of the loopback, which keeps nothing.

with redis_server(folder) as uri:  # redis://127.0.0.1:port
    ...
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.conftest import require
from tests.loopback import free_port, wait_for

_STOP_SECONDS = 15


@contextmanager
def redis_server(folder: Path) -> Iterator[str]:
    """Run a server with an empty database, and give its URI."""
    program = shutil.which("redis-server")
    require(program is not None, "Redis is not installed (Debian: apt-get install redis-server)")
    assert program is not None
    port = free_port()
    options = ["--bind", "127.0.0.1", "--port", str(port), "--dir", str(folder), "--save", "", "--appendonly", "no"]
    with (folder / "redis.log").open("w") as log, subprocess.Popen([program, *options], stdout=log) as process:
        try:
            wait_for(process, port, "Redis")
            yield f"redis://127.0.0.1:{port}"
        finally:
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
