"""A digest of an Arrow table's rows: the same values in the same order give the same digest, for any chunking.

Null slots, padding and offsets of slices are not part of it. 100 MB take about a third of a second of CPU time.
"""

from __future__ import annotations

import hashlib
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


def content_digest(data: pa.Table | pa.RecordBatch) -> str:
    """Digest names and values of all columns, in their order."""
    total = hashlib.blake2b(f"{data.num_rows}".encode(), digest_size=32)
    for name, column in zip(data.schema.names, data.columns, strict=True):
        hashed = _ColumnDigest()
        for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
            hashed.add("", chunk)
        total.update(f"\0{name}\0".encode() + hashed.digest())
    return total.hexdigest()


class _ColumnDigest:
    """Hashes each kind of buffer of a column separately, so that chunk boundaries have no effect."""

    def __init__(self) -> None:
        self._parts: dict[str, Any] = {}
        self._rows: dict[str, int] = {}

    def digest(self) -> bytes:
        parts = "".join(f"{name}={part.hexdigest()};" for name, part in sorted(self._parts.items()))
        parts += "".join(f"{name}={rows};" for name, rows in sorted(self._rows.items()))
        return hashlib.blake2b(parts.encode()).digest()

    def add(self, path: str, array: pa.Array) -> None:
        """Hash an array; ``path``: its position in a nested column."""
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        if pa.types.is_string_view(array.type) or pa.types.is_binary_view(array.type):
            array = array.cast(pa.large_binary())
        if isinstance(array, pa.ExtensionArray):
            array = array.storage
        start = self._rows.get(path, 0)
        self._rows[path] = start + len(array)
        if array.null_count:
            nulls = pc.indices_nonzero(array.is_null())
            self._feed(f"{path}/null", pc.add(nulls.cast(pa.int64()), start))
            array = array.drop_null()
        if pa.types.is_nested(array.type):
            self._add_nested(path, array)
        else:
            self._add_flat(path, array)

    def _add_nested(self, path: str, array: pa.Array) -> None:
        kind = array.type
        if pa.types.is_struct(kind):
            for number, child in enumerate(array.flatten()):
                self.add(f"{path}/{kind.field(number).name}", child)
        elif pa.types.is_map(kind):
            self._add_map(path, array)
        elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
            self._feed(f"{path}/length", pc.list_value_length(array))
            self.add(f"{path}/item", array.flatten())
        else:  # unions, runs, list views: slower
            self._feed_texts(path, array)

    def _add_flat(self, path: str, array: pa.Array) -> None:
        kind = array.type
        if _is_text(kind):
            self._feed(f"{path}/length", pc.binary_length(array))
            self._feed_text(path, array)
        elif pa.types.is_boolean(kind):
            self._feed(path, pc.cast(array, pa.uint8()))
        elif not pa.types.is_null(kind):
            self._feed(path, array)

    def _add_map(self, path: str, array: pa.MapArray) -> None:
        offsets = array.offsets
        first, count = offsets[0].as_py(), offsets[-1].as_py() - offsets[0].as_py()
        self._feed(f"{path}/length", pc.subtract(offsets[1:], offsets[:-1]).cast(pa.int64()))
        self.add(f"{path}/key", array.keys.slice(first, count))
        self.add(f"{path}/value", array.items.slice(first, count))

    def _feed(self, path: str, array: pa.Array) -> None:
        """Hash the values of a type of fixed width."""
        size = array.type.bit_width // 8
        values = array.buffers()[1]
        if values is not None and len(array):
            self._hasher(path).update(values.slice(array.offset * size, len(array) * size))

    def _feed_texts(self, path: str, array: pa.Array) -> None:
        self._hasher(path).update("".join(f"{value!r}\0" for value in array.to_pylist()).encode())

    def _feed_text(self, path: str, array: pa.Array) -> None:
        _, offsets, values = array.buffers()
        if not len(array) or values is None:
            return
        large = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
        kind, size = (pa.int64(), 8) if large else (pa.int32(), 4)
        at = pa.Array.from_buffers(kind, len(array) + 1, [None, offsets.slice(array.offset * size)])
        first, end = at[0].as_py(), at[-1].as_py()
        self._hasher(path).update(values.slice(first, end - first))

    def _hasher(self, path: str) -> Any:
        return self._parts.setdefault(path, hashlib.blake2b())


def _is_text(kind: pa.DataType) -> bool:
    return any(
        check(kind)
        for check in (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    )
