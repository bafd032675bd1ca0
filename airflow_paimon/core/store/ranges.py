"""Random reads from an object of which a storage gives any range of bytes."""

from __future__ import annotations

from typing import Protocol

from airflow_paimon.core.errors import StorageError
from airflow_paimon.core.store.base import join
from airflow_paimon.core.store.failures import RandomReads

_TAIL = 256 * 2**10


class RangeSource(Protocol):
    """A store that reads ranges. Both raise as ``Store.read`` does."""

    @property
    def uri(self) -> str: ...

    def read_tail(self, path: str, size: int) -> tuple[bytes, int]:
        """Read the last ``size`` bytes of an object, or all if there are fewer, and give them with its whole size."""
        ...

    def read_range(self, path: str, start: int, end: int) -> bytes:
        """Read the bytes from ``start`` up to, without, ``end``; fewer if the object has become shorter."""
        ...


class RangeInput(RandomReads):
    """Random reads from one object. Keeps its last 256 KiB, where Parquet and ORC have their footers, and one block."""

    def __init__(self, store: RangeSource, path: str) -> None:
        super().__init__()
        self._store = store
        self._path = path
        self._tail, self._size = store.read_tail(path, _TAIL)
        self._block: tuple[int, bytes] = (0, b"")
        self._position = 0

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = 0) -> int:
        self._position = max(0, offset + (0, self._position, self._size)[whence])
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        start = self._position
        end = self._size if size is None or size < 0 else min(start + size, self._size)
        if start >= end:
            return b""
        data = self._range(start, end)
        self._position = start + len(data)
        return data

    def _range(self, start: int, end: int) -> bytes:
        tail_start = self._size - len(self._tail)
        if start >= tail_start:
            return self._tail[start - tail_start : end - tail_start]
        block_start, block = self._block
        if not block_start <= start <= end <= block_start + len(block):
            # Consecutive small reads share one block; larger ones, such as whole column chunks, are read exactly.
            block_end = min(max(end, start + _TAIL), self._size)
            block_start, block = start, self._store.read_range(self._path, start, block_end)
            self._block = (block_start, block)
        if len(block) < end - block_start:
            raise StorageError(
                f"{join(self._store.uri, self._path)} broke off at byte {block_start + len(block)}; retry"
            )
        return block[start - block_start : end - block_start]
