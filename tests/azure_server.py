"""An Azure Blob Storage server (Azurite) on a free port of the loopback, for whoever tests against it.

with azure_server() as endpoint:
    store = open_store(f"{make_container(endpoint)}/warehouse", storage_options(endpoint))
"""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from airflow_paimon.core.store import azure_client
from tests.conftest import require
from tests.loopback import end, free_port, wait_for
from tests.oracles import layout

ACCOUNT = "lake"
KEY = base64.b64encode(b"the account's key, very secret").decode()
HOST = f"{ACCOUNT}.dfs.core.windows.net"


def storage_options(endpoint: str) -> dict[str, Any]:
    """Give the options with which a store reaches the server."""
    return {"endpoint_url": endpoint, "account_key": KEY}


def require_azure_server() -> None:
    """Skip the test where the server can't be had: without npm. With npm it must be there in CI."""
    if not shutil.which("npm") and not layout.AZURITE_PROGRAM.is_file():
        pytest.skip("no Azure server to start, and no npm to get it with")
    require(layout.AZURITE_PROGRAM.is_file() and shutil.which("node"), "no Azure server to start: run `make oracles`")


@contextmanager
def azure_server() -> Iterator[str]:
    """Run a server that keeps everything in memory, and give its endpoint URL."""
    require_azure_server()
    port = free_port()
    process = subprocess.Popen(
        [shutil.which("node") or "node", layout.AZURITE_PROGRAM, "--silent", "--inMemoryPersistence",
         "--disableTelemetry", "--blobHost", "127.0.0.1", "--blobPort", str(port)],
        env={**os.environ, "AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}"},
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_for(process, port, "Azurite")
        yield f"http://127.0.0.1:{port}/{ACCOUNT}"
    finally:
        end(process)


def make_container(endpoint: str) -> str:
    """Make a container on the server and give its URI."""
    container = f"container-{uuid.uuid4().hex[:12]}"
    client = azure_client.AzureClient({"account_name": ACCOUNT, **storage_options(endpoint)}, HOST)
    client.send("PUT", f"{endpoint}/{container}", {"restype": "container"})
    return f"abfss://{container}@{HOST}"
