"""The footer of a Parquet file as values that can be changed and written again: Thrift's compact protocol.

A struct is a mapping from field ids to values that carry their wire types, so what is read and written again is whole,
with fields that nobody here knows. Field ids are those of ``parquet.thrift``.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from airflow_paimon.core.errors import FormatError

MAGIC = b"PAR1"
_TAIL = 8
TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
_STOP = 0
_LONG_LIST = 15


class ThriftValue(NamedTuple):
    """``value``: bool, int, float, bytes, ``Struct``, ``ThriftList`` or ``ThriftMap``."""

    type: int
    value: Any


Struct = dict[int, ThriftValue]


@dataclass(frozen=True, slots=True)
class ThriftList:
    """A list or set."""

    type: int
    values: Sequence[Any]


@dataclass(frozen=True, slots=True)
class ThriftMap:
    """A map."""

    key_type: int
    value_type: int
    values: Sequence[tuple[Any, Any]]


def i64(value: int) -> ThriftValue:
    return ThriftValue(I64, value)


def structs(value: Sequence[Struct]) -> ThriftValue:
    return ThriftValue(LIST, ThriftList(STRUCT, value))


def footer_of(source: Any, path: str) -> Struct:
    """Read the footer of an open file, a ``FileMetaData``.

    Raises:
        FormatError: it is none, or its columns are encrypted with it.
    """
    source.seek(0, 2)
    size = source.tell()
    source.seek(max(0, size - _TAIL))
    tail = bytes(source.read(_TAIL))
    length = int.from_bytes(tail[:4], "little") if len(tail) == _TAIL else 0
    if tail[4:] != MAGIC or not 0 < length <= size - _TAIL - len(MAGIC):
        raise FormatError(f"Data file {path} has no footer of a Parquet file; run check_table")
    source.seek(size - _TAIL - length)
    return read_struct(bytes(source.read(length)), path)


def encoded_footer(footer: Struct) -> bytes:
    """Return what a file ends with."""
    data = write_struct(footer)
    return data + len(data).to_bytes(4, "little") + MAGIC


def read_struct(data: bytes, path: str) -> Struct:
    """Decode a struct.

    Raises:
        FormatError: it ends too early, or has types that the protocol doesn't.
    """
    try:
        return _ThriftReader(data).struct()
    except (IndexError, struct.error, KeyError, RecursionError) as error:
        raise FormatError(f"Data file {path} has a damaged footer ({error}); run check_table") from None


def write_struct(value: Struct) -> bytes:
    out = bytearray()
    _write_struct(out, value)
    return bytes(out)


class _ThriftReader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def struct(self) -> Struct:
        out: Struct = {}
        field = 0
        while (head := self._byte()) != _STOP:
            field = field + (head >> 4) if head >> 4 else self._signed()
            kind = head & 15
            out[field] = ThriftValue(kind, kind == TRUE if kind in (TRUE, FALSE) else self._value(kind))
        return out

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _take(self, count: int) -> bytes:
        found = self._data[self._at : self._at + count]
        if len(found) != count:
            raise IndexError("it ends too early")
        self._at += count
        return found

    def _unsigned(self) -> int:
        out = shift = 0
        while True:
            byte = self._byte()
            out |= (byte & 127) << shift
            if byte < 128:
                return out
            shift += 7

    def _signed(self) -> int:
        found = self._unsigned()
        return (found >> 1) ^ -(found & 1)

    def _value(self, kind: int) -> Any:
        if kind in (I16, I32, I64):
            return self._signed()
        if kind == BINARY:
            return self._take(self._unsigned())
        if kind == STRUCT:
            return self.struct()
        if kind in (LIST, SET):
            return self._items()
        if kind == BYTE:
            return self._byte()
        if kind == DOUBLE:
            return struct.unpack("<d", self._take(8))[0]
        if kind == MAP:
            return self._pairs()
        raise KeyError(f"type {kind}")

    def _element(self, kind: int) -> Any:
        return self._byte() == TRUE if kind in (TRUE, FALSE) else self._value(kind)

    def _items(self) -> ThriftList:
        head = self._byte()
        count = head >> 4 if head >> 4 != _LONG_LIST else self._unsigned()
        return ThriftList(head & 15, [self._element(head & 15) for _ in range(count)])

    def _pairs(self) -> ThriftMap:
        count = self._unsigned()
        kinds = self._byte() if count else 0
        key, value = kinds >> 4, kinds & 15
        return ThriftMap(key, value, [(self._element(key), self._element(value)) for _ in range(count)])


def _write_struct(out: bytearray, value: Struct) -> None:
    before = 0
    for field, (kind, inside) in sorted(value.items()):
        kind = (TRUE if inside else FALSE) if kind in (TRUE, FALSE) else kind
        if 0 < field - before <= 15:
            out.append((field - before) << 4 | kind)
        else:
            out.append(kind)
            _write_signed(out, field)
        before = field
        if kind not in (TRUE, FALSE):
            _write_value(out, kind, inside)
    out.append(_STOP)


def _write_unsigned(out: bytearray, value: int) -> None:
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)


def _write_signed(out: bytearray, value: int) -> None:
    _write_unsigned(out, value << 1 if value >= 0 else (-value << 1) - 1)


def _write_value(out: bytearray, kind: int, value: Any) -> None:
    if kind in (I16, I32, I64):
        _write_signed(out, value)
    elif kind == BINARY:
        _write_unsigned(out, len(value))
        out += value
    elif kind == STRUCT:
        _write_struct(out, value)
    elif kind in (LIST, SET):
        _write_items(out, value)
    elif kind == BYTE:
        out.append(value)
    elif kind == DOUBLE:
        out += struct.pack("<d", value)
    else:
        _write_pairs(out, value)


def _write_element(out: bytearray, kind: int, value: Any) -> None:
    if kind in (TRUE, FALSE):
        out.append(TRUE if value else FALSE)
    else:
        _write_value(out, kind, value)


def _write_items(out: bytearray, items: ThriftList) -> None:
    count = len(items.values)
    out.append(min(count, _LONG_LIST) << 4 | items.type)
    if count >= _LONG_LIST:
        _write_unsigned(out, count)
    for value in items.values:
        _write_element(out, items.type, value)


def _write_pairs(out: bytearray, pairs: ThriftMap) -> None:
    _write_unsigned(out, len(pairs.values))
    if pairs.values:
        out.append(pairs.key_type << 4 | pairs.value_type)
    for key, value in pairs.values:
        _write_element(out, pairs.key_type, key)
        _write_element(out, pairs.value_type, value)
