"""Thrift's binary protocol: values and calls, without generated classes.

A struct is a mapping from field ids to values that carry their wire types, so one that is read and sent back is whole,
with the fields of later releases that nobody here knows.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from airflow_paimon.core.errors import FormatError

BOOL, BYTE, DOUBLE, I16, I32, I64, STRING, STRUCT, MAP, SET, LIST = 2, 3, 4, 6, 8, 10, 11, 12, 13, 14, 15
_STOP = 0
_FIXED = {BOOL: "?", BYTE: "b", DOUBLE: ">d", I16: ">h", I32: ">i", I64: ">q"}
_VERSION = 0x80010000
_CALL, _REPLY, _EXCEPTION = 1, 2, 3
_UNKNOWN_METHOD = 1
_LONGEST = 2**28
"""Bytes of a string, or values in a list: what is longer is no answer of this protocol."""


@dataclass(frozen=True, slots=True)
class Value:
    """``value``: bool, int, float, str, ``Struct``, ``Items`` or ``Pairs``."""

    type: int
    value: Any


Struct = Mapping[int, Value]


@dataclass(frozen=True, slots=True)
class Items:
    """A list or set."""

    type: int
    values: Sequence[Any] = ()


@dataclass(frozen=True, slots=True)
class Pairs:
    """A map."""

    key_type: int
    value_type: int
    values: Mapping[Any, Any]


def text(value: str) -> Value:
    return Value(STRING, value)


def i32(value: int) -> Value:
    return Value(I32, value)


def i64(value: int) -> Value:
    return Value(I64, value)


def flag(value: bool) -> Value:
    return Value(BOOL, value)


def structure(fields: Struct) -> Value:
    return Value(STRUCT, fields)


def structures(values: Sequence[Struct]) -> Value:
    return Value(LIST, Items(STRUCT, values))


def texts(values: Sequence[str]) -> Value:
    return Value(LIST, Items(STRING, values))


def text_map(values: Mapping[str, str]) -> Value:
    return Value(MAP, Pairs(STRING, STRING, values))


class ApplicationError(Exception):
    """The server can't carry out the call itself. ``is_unknown``: it doesn't know such a call."""

    def __init__(self, message: str, *, is_unknown: bool) -> None:
        super().__init__(message)
        self.is_unknown = is_unknown


def call_bytes(name: str, arguments: Struct) -> bytes:
    """Encode one call."""
    out = bytearray(struct.pack(">I", _VERSION | _CALL))
    _write(out, STRING, name)
    out += bytes(4)  # a sequence id: there is one call at a time
    _write(out, STRUCT, arguments)
    return bytes(out)


def read_reply(stream: BinaryIO) -> Struct:
    """Read the answer to a call: what was returned under id 0, else a declared exception under its id.

    Raises:
        ApplicationError: the server could not carry it out. FormatError: this is no Thrift. EOFError: the stream ended.
    """
    (word,) = struct.unpack(">I", _exactly(stream, 4))
    kind = word & 0xFF
    if word & 0xFFFF0000 != _VERSION or kind not in (_REPLY, _EXCEPTION):
        raise FormatError(f"The answer is not of Thrift's binary protocol (it begins with {struct.pack('>I', word)!r})")
    _read(stream, STRING)
    _exactly(stream, 4)
    fields: Struct = _read(stream, STRUCT)
    if kind == _EXCEPTION:
        reason, code = fields.get(1, text("no reason given")), fields.get(2, i32(0))
        raise ApplicationError(reason.value, is_unknown=code.value == _UNKNOWN_METHOD)
    return fields


def _write(out: bytearray, kind: int, value: Any) -> None:
    if kind in _FIXED:
        out += struct.pack(_FIXED[kind], value)
    elif kind == STRING:
        data = value.encode(errors="surrogateescape")
        out += struct.pack(">i", len(data)) + data
    elif kind == STRUCT:
        for number, each in value.items():
            out += struct.pack(">bh", each.type, number)
            _write(out, each.type, each.value)
        out.append(_STOP)
    elif kind == MAP:
        out += struct.pack(">bbi", value.key_type, value.value_type, len(value.values))
        for key, each in value.values.items():
            _write(out, value.key_type, key)
            _write(out, value.value_type, each)
    else:
        out += struct.pack(">bi", value.type, len(value.values))
        for each in value.values:
            _write(out, value.type, each)


def _read(stream: BinaryIO, kind: int) -> Any:
    if kind in _FIXED:
        form = _FIXED[kind]
        return struct.unpack(form, _exactly(stream, struct.calcsize(form)))[0]
    if kind == STRING:
        return _exactly(stream, _size(stream)).decode(errors="surrogateescape")
    if kind == STRUCT:
        return _read_struct(stream)
    if kind == MAP:
        key_type, value_type = _exactly(stream, 2)
        return Pairs(key_type, value_type, {
            _read(stream, key_type): _read(stream, value_type) for _ in range(_size(stream))
        })  # fmt: skip
    if kind in (LIST, SET):
        (item_type,) = _exactly(stream, 1)
        return Items(item_type, tuple(_read(stream, item_type) for _ in range(_size(stream))))
    raise FormatError(f"The answer is not of Thrift's binary protocol: it has a value of type {kind}")


def _read_struct(stream: BinaryIO) -> dict[int, Value]:
    fields = {}
    while (kind := _exactly(stream, 1)[0]) != _STOP:
        (number,) = struct.unpack(">h", _exactly(stream, 2))
        fields[number] = Value(kind, _read(stream, kind))
    return fields


def _size(stream: BinaryIO) -> int:
    (size,) = struct.unpack(">i", _exactly(stream, 4))
    if not 0 <= size <= _LONGEST:
        raise FormatError(f"The answer is not of Thrift's binary protocol: a length of {size}")
    return int(size)


def _exactly(stream: BinaryIO, size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return data
