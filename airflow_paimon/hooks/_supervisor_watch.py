"""A task process whose supervisor was killed is an orphan: Airflow will run the task again, so its job has to end."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_POLL_SECONDS = 1.0


@contextmanager
def supervised(on_orphaned: Callable[[], None]) -> Iterator[None]:
    """Call ``on_orphaned``, in a thread, when the supervisor of this task process dies while the block runs.

    Does nothing in a process that has no supervisor (``dag.test()``): there a parent may end without meaning anything.
    """
    if not _has_supervisor():
        yield
        return
    parent, done = os.getppid(), threading.Event()

    def watch() -> None:
        while not done.wait(_POLL_SECONDS):
            if os.getppid() != parent:
                on_orphaned()
                return

    watcher = threading.Thread(target=watch, name="supervisor-watch", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def _has_supervisor() -> bool:
    from airflow.sdk.execution_time import task_runner

    # dag.test() talks to a supervisor in the same process, without a socket.
    return getattr(getattr(task_runner, "SUPERVISOR_COMMS", None), "socket", None) is not None
