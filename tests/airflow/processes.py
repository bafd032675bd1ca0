"""Finding the processes of a job by a text in their command line, as `ps` would, and waiting for them."""

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def running(text: str) -> dict[int, str]:
    """Give pid -> command line of every process but this one whose command line holds the text."""
    found: dict[int, str] = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in command:
            found[int(folder.name)] = command
    return found


def wait_until(probe: Callable[[], T], what: str, seconds: float, pause: float = 0.05) -> T:
    """Probe until it gives something true. A probe that costs something pauses longer: nine times that at least.

    ``seconds`` is ample on a machine that does nothing else; it fails after ten times that, as others are busy.
    """
    deadline = time.monotonic() + 10 * seconds
    while True:
        started = time.thread_time()
        if found := probe():
            return found
        assert time.monotonic() < deadline, f"{what}: not within {10 * seconds} s"
        time.sleep(max(pause, 9 * (time.thread_time() - started)))


def writing_end(pipe: Path) -> int | None:
    """Open the pipe for writing, which works as soon as somebody reads it; the reader then waits for what we write."""
    try:
        return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return None


@contextmanager
def later(seconds: float, action: Callable[[], object]) -> Iterator[None]:
    """Do something in a thread while the block runs; the block waits for it."""
    timer = threading.Timer(seconds, action)
    timer.start()
    try:
        yield
    finally:
        timer.join()
