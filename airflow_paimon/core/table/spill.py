"""Arrays that are sorted by digests of names: in memory up to a limit, beyond it in a file without a name, which is
gone when the process ends, however it ends. They are read by ranges of digests, so that a part of each is in memory.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from airflow_paimon.core.errors import StorageError

Array = npt.NDArray[Any]
Columns = tuple[Array, ...]
_DIGESTS = 1 << 64
MEMORY_BYTES = 256 << 20
"""What whoever looks at all files of a table keeps of them in memory, if nothing else is asked for: half of it for what
is known of all, half for what is compared at a time."""


class SpillBuffer:
    """Keeps runs, and other bytes. ``memory_bytes``: how much of them stays in memory."""

    def __init__(self, memory_bytes: int) -> None:
        self._left = memory_bytes
        self._file: _File | None = None
        self._end = 0

    def add(self, columns: Sequence[Array]) -> SortedColumns:
        """Keep columns of one length, sorted by the first; rows with one digest stay in order.

        Raises:
            StorageError: the disk of temporary files is full.
        """
        order = np.argsort(columns[0], kind="stable")
        sorted_columns = tuple(column[order] for column in columns)
        kept = [self.keep(column) for column in sorted_columns]
        return SortedColumns(rows=len(order), columns=tuple(kept), types=tuple(c.dtype for c in sorted_columns))

    def keep(self, data: bytes | Array) -> SpilledBytes:
        """Keep some bytes; raises as ``add``."""
        size = len(data) if isinstance(data, bytes) else data.nbytes
        if size <= self._left:
            self._left -= size
            return SpilledBytes(size, memory=data if isinstance(data, bytes) else data.view(np.uint8).data)
        try:
            if self._file is None:
                self._file = _File()
            at, rest = self._end, memoryview(data if isinstance(data, bytes) else data.data).cast("B")
            while rest:
                written = os.pwrite(self._file.number, rest, self._end)
                self._end += written
                rest = rest[written:]
        except OSError as error:
            raise StorageError(
                f"The list of a table's files can't be written to a temporary file{_in_folder()}: {error.strerror}. "
                "Name a folder with more space by the environment variable TMPDIR, or raise memory_mb (--memory-mb) "
                "where the job has it"
            ) from error
        return SpilledBytes(size, file=self._file, start=at)


def _in_folder() -> str:
    try:
        return f" in {tempfile.gettempdir()}"
    except OSError:  # no folder can be written to, which the first error says
        return ""


class _File:
    """A file without a name, for as long as anything refers to this. ``number``: its descriptor."""

    def __init__(self) -> None:
        with tempfile.TemporaryFile(buffering=0) as file:
            self.number = os.dup(file.fileno())
        weakref.finalize(self, os.close, self.number)


@dataclass(frozen=True, slots=True)
class SpilledBytes:
    """Bytes in memory or in the file."""

    size: int
    memory: bytes | memoryview | None = None
    file: _File | None = None
    start: int = 0

    def read(self, start: int = 0, end: int | None = None) -> bytes | memoryview:
        """Return the bytes from ``start`` up to, without, ``end``."""
        end = self.size if end is None else end
        if self.memory is not None or self.file is None:
            return (self.memory or b"")[start:end]
        found = bytearray()
        while len(found) < end - start:
            more = os.pread(self.file.number, end - start - len(found), self.start + start + len(found))
            if not more:
                raise StorageError("A temporary file with the list of a table's files was truncated; run it again")
            found += more
        return bytes(found)


@dataclass(frozen=True, slots=True)
class SortedColumns:
    """Columns that are sorted by the first of them, digests."""

    rows: int
    columns: tuple[SpilledBytes, ...]
    types: tuple[np.dtype[Any], ...]

    def read(self, start: int = 0, end: int | None = None) -> Columns:
        """Return rows from ``start`` up to, without, ``end``. Change none."""
        end = self.rows if end is None else end
        return tuple(self._column(at, start, end) for at in range(len(self.columns)))

    def _column(self, at: int, start: int, end: int) -> Array:
        wide = self.types[at].itemsize
        return np.frombuffer(self.columns[at].read(start * wide, end * wide), self.types[at])

    def edges(self, cuts: npt.NDArray[np.uint64]) -> list[int]:
        """Return where the ranges between cuts begin and end."""
        if not len(cuts):
            return [0, self.rows]
        return [0, *np.searchsorted(self._column(0, 0, self.rows), cuts).tolist(), self.rows]


def cuts_for(rows: int, bytes_each: int, memory_bytes: int) -> npt.NDArray[np.uint64]:
    """Return where to cut the range of digests, so that each part of so many rows fits in memory."""
    parts = max(1, -(-rows * bytes_each // max(memory_bytes, 1)))
    return np.array([number * _DIGESTS // parts for number in range(1, parts)], np.uint64)


def range_bounds(digests: npt.NDArray[np.uint64], cuts: npt.NDArray[np.uint64]) -> list[int]:
    """Return where the ranges begin and end in sorted digests."""
    return [0, *np.searchsorted(digests, cuts).tolist(), len(digests)]


@dataclass(slots=True)
class DigestRanges:
    """Some runs with the same columns, by ranges of digests."""

    runs: Sequence[SortedColumns]
    cuts: npt.NDArray[np.uint64]
    _edges: list[list[int]] = field(init=False)

    def __post_init__(self) -> None:
        self._edges = [run.edges(self.cuts) for run in self.runs]

    def __len__(self) -> int:
        return len(self.cuts) + 1

    def parts(self, at: int) -> list[Columns]:
        """Return what each run has in a range."""
        return [run.read(edges[at], edges[at + 1]) for run, edges in zip(self.runs, self._edges, strict=True)]


def concat_columns(parts: Iterable[Columns], types: Sequence[type]) -> Columns:
    """Put the rows of parts one after the other. ``types``: of the columns, for no parts at all."""
    columns = list(zip(*parts, strict=True)) or [(np.zeros(0, kind),) for kind in types]
    return tuple(some[0] if len(some) == 1 else np.concatenate(some) for some in columns)
