"""Ends a Python driver when the JVM that started it has ended, even during work that needs no JVM."""

from __future__ import annotations

import os
import select
import signal
import stat
import threading

_POLL_MS = 1000


def end_with_parent() -> None:
    """Watch the parent in a daemon thread and kill this process (SIGKILL) when it is gone.

    For a driver that ``spark-submit`` started: its stdin is a pipe that the JVM holds, so even a parent that ended
    before this call is noticed. Nothing is read from it.
    """
    poll = select.poll()
    if stat.S_ISFIFO(os.fstat(0).st_mode):
        poll.register(0, 0)  # POLLHUP comes unasked
    parent = os.getppid()
    threading.Thread(target=_watch, args=(poll, parent), name="parent-watch", daemon=True).start()


def _watch(poll: select.poll, parent: int) -> None:
    while os.getppid() == parent and not poll.poll(_POLL_MS):
        pass
    os.kill(os.getpid(), signal.SIGKILL)
