"""Where work on all files of a table is done: in this process, in processes of this machine, or in Spark's tasks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

from airflow_paimon.core.parallel.processes import in_processes

T = TypeVar("T")
R = TypeVar("R")

WORTH_IT = 500_000
"""Files from which on starting processes, or a Spark session, is worth it: about 3 s of work."""
_PIECES = 4
"""For each process, so that all end at about the same time."""
_MOST_FILES = 100_000
"""Of a piece, so that what it makes fits in a task's memory; a larger manifest or folder is a piece by itself."""
_MOST_PROCESSES, _PROCESS_MB = 16, 64
_MOST_ITEMS = 2000


class Piece(NamedTuple):
    """Some items, manifests or folders, which are about so many files."""

    items: Sequence[Any]
    files: int


class RunPieces(Protocol):
    """Calls a function for each piece, elsewhere, and yields all that it yields, in any order. ``memory_bytes``: the
    most that lies around here of what hasn't been taken yet, about. Raises what the function raises.
    """

    def __call__(
        self, function: Callable[[Sequence[Any]], Iterable[R]], pieces: Sequence[Piece], memory_bytes: int
    ) -> Iterator[R]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """Who does the work. ``memory_bytes``: what this process keeps of files, about; the rest lies in a temporary file.

    ``processes``: how many of this machine; 1: this one. ``in_tasks``: takes the work instead of them, if there is
    enough of it. ``worth_it``: files from which on there is.
    """

    memory_bytes: int = 256 << 20
    processes: int = 1
    in_tasks: RunPieces | None = None
    worth_it: int = WORTH_IT

    @property
    def several(self) -> bool:
        """Whether large work is divided."""
        return self.processes > 1 or self.in_tasks is not None

    @property
    def runs_bytes(self) -> int:
        """The part of the memory for what is known of all files."""
        return self.memory_bytes // 2

    @property
    def range_bytes(self) -> int:
        """The part of the memory for what is compared at a time."""
        return self.memory_bytes // 2

    def each(
        self, function: Callable[[Sequence[T]], Iterable[R]], items: Sequence[T], files: Sequence[int]
    ) -> Iterator[R]:
        """Yield what a function yields of all items, in any order. ``files``: about how many files each item is about.

        Raises what the function raises; nothing of it is left running.

        Raises:
            StorageError: a process was killed.
        """
        if not self.several or sum(files) < self.worth_it or len(items) < 2:
            yield from function(items)
            return
        pieces = _pieces(items, files, max(1, min(_MOST_FILES, sum(files) // (_PIECES * self.processes))))
        if self.in_tasks is not None:
            yield from self.in_tasks(function, pieces, self.range_bytes)
        else:
            yield from in_processes(min(self.processes, len(pieces)), function, [p.items for p in pieces])


def processes_for(memory_mb: int) -> int:
    """How many processes to use at once: one for each core, as far as the memory allows that, each its own part."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, _MOST_PROCESSES, memory_mb // _PROCESS_MB))


def _pieces(items: Sequence[T], files: Sequence[int], most: int) -> list[Piece]:
    pieces: list[Piece] = []
    some: list[T] = []
    filled = 0
    for item, number in zip(items, files, strict=True):
        if some and (filled + number > most or len(some) == _MOST_ITEMS):
            pieces.append(Piece(some, filled))
            some, filled = [], 0
        some.append(item)
        filled += number
    return [*pieces, Piece(some, filled)] if some else pieces
