"""Turns of this machine's processes at one name, so that they don't meet: a lock that nothing depends on.

What a turn guards must be safe without it: other machines, other users and other engines take no turns. The kernel ends
the turn of a process that dies. Who has a turn and does nothing for ``WAIT_S`` is not waited for any longer.

The file of a name lies in the folder for temporary files, in a folder that only this user may read and write. It holds
a note that who had the turn left for the next one. Who ends its turn before it is done announces that: a file beside,
locked until it is done, which the next one waits for.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

try:
    import fcntl
except ImportError:  # not on this system: nobody waits
    fcntl = None  # type: ignore[assignment]

WAIT_S = 10.0
_BEAT_S = 0.5
_PAUSE_S, _PARTS = (0.0005, 0.005), 4
"""The shortest and the longest pause between two looks at a lock, and which part of the wait so far it is."""
_LOOK_AT_S = 0.2
_UNUSED_S = 7 * 24 * 3600
_LOOK_S = 24 * 3600
_DIGEST, _START = 32, 36
"""Where a note's length begins, and the note."""
_DONE = b"done"
_mine = threading.local()


class Turn:
    """A turn at a name. ``waited``: another process had it before."""

    def __init__(self, path: str, descriptor: int, waited: bool) -> None:
        self._path = path
        self._descriptor = descriptor
        self._ended = False
        self.waited = waited

    def note(self) -> bytes:
        """Read the note that the last one left; empty if there is none, if it died while writing it, or unreadable."""
        with contextlib.suppress(OSError):
            return _note(self._descriptor)
        return b""

    def leave(self, note: bytes) -> None:
        """Leave a note for the next one, over the one that is there: to give its space back takes longer than that."""
        with contextlib.suppress(OSError):
            start = hashlib.sha256(note).digest() + len(note).to_bytes(_START - _DIGEST)
            os.pwrite(self._descriptor, start + note, 0)

    def announce(self) -> Announced | None:
        """Announce something that will be done after the turn; None: not possible here."""
        path = f"{self._path}-{secrets.token_hex(8)}"
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return None
        return Announced(path, descriptor)

    def announced(self, name: str) -> Awaited:
        """Open what the one before has announced."""
        return _announced(self._path, name)

    def beat(self) -> None:
        """Show that who has the turn goes on."""
        if not self._ended:
            _touch(self._descriptor)

    def end(self) -> None:
        """End it, perhaps before the block does."""
        if not self._ended:
            self._ended = True
            _end(self._descriptor)


class Announced:
    """What this process will do; until it ends, others wait for it. Its file stays if it was not done."""

    def __init__(self, path: str, descriptor: int) -> None:
        self.name = path.rpartition("-")[2]
        self._path = path
        self._descriptor: int | None = descriptor

    def beat(self) -> None:
        """Show that it goes on."""
        if self._descriptor is not None:
            _touch(self._descriptor)

    def end(self, *, done: bool) -> None:
        """Say whether it was done; only the first call counts."""
        if self._descriptor is None:
            return
        if done:
            with contextlib.suppress(OSError):
                os.pwrite(self._descriptor, _DONE, 0)
                os.unlink(self._path)
        _end(self._descriptor)
        self._descriptor = None


class Awaited:
    """What another process has announced. ``descriptor`` None: its file is gone, as it was done."""

    def __init__(self, path: str, descriptor: int | None) -> None:
        self._path = path
        self._descriptor = descriptor
        self._done: bool | None = True if descriptor is None else None

    def is_pending(self) -> bool:
        """Whether it has not ended yet; it has if that process died."""
        if self._done is None:
            self._look()
        return self._done is None

    def wait(self, beat: Callable[[], None]) -> bool:
        """Wait for its end, and return whether it was done. ``beat`` is called now and then meanwhile."""
        if self._done is None and self._descriptor is not None:
            try:
                ended = _wait(self._descriptor, fcntl.LOCK_SH, beat)
            except OSError:  # a file system without locks, or one that fails
                ended = False
            self._done = None if ended else False
        if self._done is None:
            self._look()
        return self._done is True

    def _look(self) -> None:
        if self._descriptor is None:
            return
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            self._done = os.pread(self._descriptor, len(_DONE), 0) == _DONE
        except BlockingIOError:
            return
        except OSError:
            self._done = False

    def remove(self) -> None:
        """Delete its file: nobody is told of it any more."""
        with contextlib.suppress(OSError):
            os.unlink(self._path)

    def close(self) -> None:
        """Forget it."""
        if self._descriptor is not None:
            _end(self._descriptor)
            self._descriptor, self._done = None, self._done is True


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
        turn.end()


def peek(name: str) -> tuple[bytes, Callable[[str], Awaited]]:
    """Read the note at a name without a turn, and give what opens an announcement; empty also while one is left."""
    path = None if fcntl is None else _path(name)
    if path is None:
        return b"", partial(Awaited, descriptor=None)
    note = b""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            note = _note(descriptor)
        finally:
            os.close(descriptor)
    return note, partial(_announced, path)


def _note(descriptor: int) -> bytes:
    data = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    size = int.from_bytes(data[_DIGEST:_START])
    note = data[_START : _START + size]
    return note if len(note) == size and hashlib.sha256(note).digest() == data[:_DIGEST] else b""


def _announced(of: str, name: str) -> Awaited:
    path = f"{of}-{name}"
    try:
        return Awaited(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW))
    except OSError:
        return Awaited(path, None)


def _take(name: str) -> Turn | None:
    path = None if fcntl is None else _path(name)
    descriptor = None if path is None else _open(path)
    if path is None or descriptor is None:
        return None
    waited = False
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waited = True
            if not _wait(descriptor, fcntl.LOCK_EX):
                os.close(descriptor)
                return None
        os.utime(descriptor)
    except OSError:  # a file system without locks
        with contextlib.suppress(OSError):
            os.close(descriptor)
        return None
    return Turn(path, descriptor, waited)


def _wait(descriptor: int, kind: int, beat: Callable[[], None] | None = None) -> bool:
    """Wait for a lock; False: who has it has not shown for ``WAIT_S`` that it goes on."""
    shortest, longest = _PAUSE_S
    began = beaten = time.monotonic()
    looked = 0.0
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            now = time.monotonic()
        if now - looked > _LOOK_AT_S:
            looked = now
            if abs(time.time() - os.fstat(descriptor).st_mtime) > WAIT_S:  # in the future: the clock was set back
                return False
        if beat is not None and now - beaten > _BEAT_S:
            beaten = now
            beat()
        time.sleep(min(max((now - began) / _PARTS, shortest), longest))


def _touch(descriptor: int) -> None:
    with contextlib.suppress(OSError):
        os.utime(descriptor)


def _end(descriptor: int) -> None:
    """A process that was forked meanwhile has the descriptor too: closing it alone would not end the turn."""
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def _path(name: str) -> str | None:
    """Return the path of a name's file; None: there is no folder for it that only this user may use."""
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
        return path
    except OSError:
        return None


def _open(path: str) -> int | None:
    try:
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
