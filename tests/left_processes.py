"""Processes that tests started and left behind, found by the environment that they inherited.

So a daemon that changed its parent and its session is found as well.
"""

from __future__ import annotations

import os
import signal
import time
import uuid
from contextlib import suppress
from multiprocessing import resource_tracker
from pathlib import Path

_MARK = "AIRFLOW_PAIMON_TEST_RUN"
GRACE_SECONDS = 120.0
"""How long one that ends may take for it; it is looked for until then, so this is ample."""


def mark_this_run() -> None:
    os.environ[_MARK] = uuid.uuid4().hex


def end_all() -> dict[int, str]:
    """End what is still there when it had time to end, and give the command lines."""
    resource_tracker._resource_tracker._stop()  # of spawned processes: else it stays until Python ends
    deadline = time.monotonic() + GRACE_SECONDS
    while (left := _marked()) and time.monotonic() < deadline:
        time.sleep(0.1)
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return left


def _marked() -> dict[int, str]:
    mark = f"{_MARK}={os.environ[_MARK]}".encode()
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile, or it is another user's
            if int(folder.name) != os.getpid() and mark in (folder / "environ").read_bytes().split(b"\0"):
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
                found[int(folder.name)] = command.decode(errors="replace")
    return found
