"""Processes that begin at once: each says ``ready`` on its stdout, and then waits for a line on its stdin."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable


def wait_until_ready(processes: Iterable[subprocess.Popen[str]]) -> None:
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"


def set_off(processes: Iterable[subprocess.Popen[str]]) -> None:
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
