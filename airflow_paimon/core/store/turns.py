"""Turns of this machine's processes at one name, so that they don't meet: a lock that nothing depends on.

What a turn guards must be safe without it: other machines, other users and other engines take no turns. The kernel ends
the turn of a process that dies. Who waits for a process that hangs goes on without a turn after ``WAIT_S``, and the
others then don't wait at all.

The file of a name lies in the folder for temporary files, in a folder that only this user may read and write. It holds
a note that who had the turn left for the next one.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

try:
    import fcntl
except ImportError:  # not on this system: nobody waits
    fcntl = None  # type: ignore[assignment]

WAIT_S = 2.0
_UNUSED_S = 7 * 24 * 3600
_LOOK_S = 24 * 3600
_DIGEST = 32
_mine = threading.local()


class Turn:
    """A turn at a name. ``waited``: another process had it before."""

    def __init__(self, descriptor: int, waited: bool) -> None:
        self._descriptor = descriptor
        self.waited = waited

    def note(self) -> bytes:
        """Read the note that the last one left; empty if there is none, or if it died while writing it."""
        data = os.pread(self._descriptor, os.fstat(self._descriptor).st_size, 0)
        return data[_DIGEST:] if hashlib.sha256(data[_DIGEST:]).digest() == data[:_DIGEST] else b""

    def leave(self, note: bytes) -> None:
        """Leave a note for the next one, in place of the one that is there."""
        with contextlib.suppress(OSError):
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, hashlib.sha256(note).digest() + note, 0)


@contextmanager
def turn_at(name: str) -> Iterator[Turn | None]:
    """Wait for a turn at a name, and end it with the block. None: go on without one.

    A thread that has the turn gets no second one: whoever it calls must not wait for it.
    """
    held: set[str] = _mine.__dict__.setdefault("held", set())
    turn = None if name in held else _take(name)
    if turn is None:
        yield None
        return
    held.add(name)
    try:
        yield turn
    finally:
        held.discard(name)
        _end(turn._descriptor)


def _take(name: str) -> Turn | None:
    if fcntl is None:
        return None
    descriptor = _open(name)
    if descriptor is None:
        return None
    waited = False
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waited = True
            if time.time() - os.fstat(descriptor).st_mtime > WAIT_S:  # who has the turn hangs: others have waited
                os.close(descriptor)
                return None
            if not _Waiting(descriptor).has_come():
                return None
        os.utime(descriptor)
    except (OSError, RuntimeError):  # a file system without locks, or no more threads
        with contextlib.suppress(OSError):
            os.close(descriptor)
        return None
    return Turn(descriptor, waited)


class _Waiting(threading.Thread):
    """Waits for a lock, which Python can't do with a time limit; it gives it back if it comes too late."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(daemon=True, name="airflow-paimon-turn")
        self._descriptor = descriptor
        self._change = threading.Lock()
        self._came = threading.Event()
        self._late = False

    def has_come(self) -> bool:
        """Wait for the lock; False: it is not ours, and the descriptor will be closed."""
        self.start()
        self._came.wait(WAIT_S)
        with self._change:
            self._late = not self._came.is_set()
        return not self._late

    def run(self) -> None:
        with contextlib.suppress(OSError):
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        with self._change:
            if self._late:
                _end(self._descriptor)
            else:
                self._came.set()


def _end(descriptor: int) -> None:
    """A process that was forked meanwhile has the descriptor too: closing it alone would not end the turn."""
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def _open(name: str) -> int | None:
    try:
        folder = os.path.join(tempfile.gettempdir(), f"airflow-paimon-{os.getuid()}")
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        status = os.lstat(folder)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
            return None
        path = os.path.join(folder, hashlib.sha256(name.encode()).hexdigest()[:32])
        if not os.path.exists(path):
            _delete_old(folder)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError:
        return None


def _delete_old(folder: str) -> None:
    """Delete the files of names that nobody has used for long, such as those of deleted branches.

    Once a day: who works on thousands of tables has thousands of files there, and a new name must not read them all.
    """
    looked = os.path.join(folder, "looked")
    with contextlib.suppress(FileNotFoundError):
        if time.time() - os.lstat(looked).st_mtime < _LOOK_S:
            return
    os.close(os.open(looked, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600))
    os.utime(looked)
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                if time.time() - entry.stat(follow_symlinks=False).st_mtime > _UNUSED_S:
                    os.unlink(entry.path)
