"""Several processes of this machine that share out pieces of work.

They are programs of their own, not forks or spawned copies of this one: threads that Arrow and storages have started
don't survive a fork, and a spawned copy runs the caller's script again. Pieces and results go through pipes, so a
process ends when this one does, and nothing of them is left in the file system.
"""

from __future__ import annotations

import pickle
import selectors
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any, TypeVar

from airflow_paimon.core.errors import StorageError

T = TypeVar("T")
R = TypeVar("R")

_START = (
    "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer); "
    "from airflow_paimon.core.parallel.worker import serve; serve()"
)
_WAIT_S = 10


def in_processes(
    number: int, function: Callable[[Sequence[T]], Iterable[R]], pieces: Sequence[Sequence[T]]
) -> Iterator[R]:
    """Yield what a function yields of each piece, in any order, from so many processes.

    The first error is raised, as it was there, and ends all processes; so does whoever stops to take results.

    Raises:
        StorageError: a process could not start, or was killed.
    """
    setting = pickle.dumps(sys.path) + pickle.dumps(function, pickle.HIGHEST_PROTOCOL)
    workers: list[_Worker] = []
    try:
        with selectors.DefaultSelector() as ready:
            waiting = list(reversed(pieces))
            for _ in range(min(number, len(pieces))):
                worker = _Worker()
                workers.append(worker)
                worker.write(setting)
                worker.send(waiting.pop())
                ready.register(worker.output, selectors.EVENT_READ, worker)
            while ready.get_map():
                for key, _ in ready.select():
                    answer = key.data.receive()
                    if answer is not None:
                        yield answer[0]
                    elif waiting:
                        key.data.send(waiting.pop())
                    else:
                        ready.unregister(key.fileobj)
    finally:
        for worker in workers:
            worker.end()


class _Worker:
    def __init__(self) -> None:
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
            )
        except OSError as error:
            raise StorageError(f"A process for a part of the work could not start: {error.strerror}") from error
        assert self._process.stdin is not None and self._process.stdout is not None
        self._input: IO[bytes] = self._process.stdin
        self.output: IO[bytes] = self._process.stdout

    def send(self, piece: Sequence[Any]) -> None:
        """Hand over a piece; the process is waiting for one."""
        self.write(pickle.dumps(piece, pickle.HIGHEST_PROTOCOL))

    def receive(self) -> tuple[Any] | None:
        """Return one result; None: that was all of its piece. Raises what the function raised."""
        size = int.from_bytes(self._read(8), "big")
        kind, value = pickle.loads(self._read(size))
        if kind == "error":
            raise value
        return (value,) if kind == "result" else None

    def end(self) -> None:
        """End the process, whatever it is doing, and wait for its end."""
        self._process.kill()
        self._process.wait()
        self._input.close()
        self.output.close()

    def write(self, data: bytes) -> None:
        """Hand over bytes. Raises ``StorageError`` if the process is gone."""
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[self._input.write(rest) :]
        except BrokenPipeError:
            raise self._killed() from None

    def _read(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            more = self.output.read(min(size - len(found), 1 << 20))
            if not more:
                raise self._killed()
            found += more
        return bytes(found)

    def _killed(self) -> StorageError:
        try:
            status = f"exit code {self._process.wait(_WAIT_S)}"
        except subprocess.TimeoutExpired:
            status = "it closed its output"
        return StorageError(
            f"One of the processes that read manifests and folders ended early ({status}), maybe for lack of memory. "
            "Nothing was changed. Run it again"
        )
