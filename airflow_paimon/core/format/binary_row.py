"""Paimon's BinaryRow: the binary form of a row in manifests, statistics and bucket hashes.

Values are: bool, int, float, str, bytes, ``Decimal``, ``date`` for DATE, int milliseconds for TIME, and ``Timestamp``
for TIMESTAMP and TIMESTAMP_LTZ. Columns of ARRAY, MAP, ROW and the like can only be null: their form is not built.

See docs/contributing/format.md, Binary rows.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from datetime import date, datetime, time
from decimal import Context, Decimal, DecimalException
from typing import Any

from airflow_paimon.core.errors import FormatError, InvalidInputError, UnsupportedFeatureError
from airflow_paimon.core.format.timestamp import Timestamp, timestamp_of
from airflow_paimon.core.format.types import AtomicType, DataType

EMPTY_ROW_BYTES = bytes(12)
"""A row of arity 0: big-endian arity prefix and 8 bytes of header."""

EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
_EXACT = Context(prec=80)
_ARITY = struct.Struct(">i")
_SLOT = struct.Struct("<Q")
_MILLIS = struct.Struct("<q")
_NUMBERS = {
    "BOOLEAN": struct.Struct("<?7x"),
    "TINYINT": struct.Struct("<b7x"),
    "SMALLINT": struct.Struct("<h6x"),
    "INT": struct.Struct("<i4x"),
    "BIGINT": struct.Struct("<q"),
    "FLOAT": struct.Struct("<f4x"),
    "DOUBLE": struct.Struct("<d"),
    "DATE": struct.Struct("<i4x"),
    "TIME": struct.Struct("<i4x"),
}
_TEXT = frozenset(("CHAR", "VARCHAR", "STRING"))
_BINARY = frozenset(("BINARY", "VARBINARY", "BYTES"))
_STAMPS = frozenset(("TIMESTAMP", "TIMESTAMP_LTZ"))


COMPACT_DIGITS = 18
"""DECIMALs of up to this precision are stored as a long integer."""


def is_compact(data_type: DataType) -> bool:
    """Return whether a DECIMAL or TIMESTAMP fits the 8-byte slot; others are stored in the variable-length part."""
    return isinstance(data_type, AtomicType) and data_type.args[0] <= (
        COMPACT_DIGITS if data_type.root == "DECIMAL" else 3
    )


def header_bytes(arity: int) -> int:
    """Return the bytes of the header (row kind and null bits): a multiple of 8."""
    return (arity + 71) // 64 * 8


def encode_row(values: Sequence[Any], types: Sequence[DataType]) -> bytes:
    """Encode with the arity prefix, as manifests store it. Bucket hashes are taken over ``[4:]``.

    Also accepts an int for DECIMAL, ``datetime.time`` for TIME and datetimes for timestamps (aware for TIMESTAMP_LTZ).

    Raises:
        InvalidInputError: a value doesn't fit its type.
        UnsupportedFeatureError: a type whose binary form is not built has a value.
    """
    arity = len(types)
    header = header_bytes(arity)
    body = bytearray(header + 8 * arity)
    for i, (value, data_type) in enumerate(zip(values, types, strict=True)):
        slot = header + 8 * i
        if value is None:
            body[(i + 8) >> 3] |= 1 << (i & 7)
            if data_type.root in ("DECIMAL", *_STAMPS) and not is_compact(data_type):
                _SLOT.pack_into(body, slot, len(body) << 32)
                body += bytes(16 if data_type.root == "DECIMAL" else 8)
            continue
        try:
            _encode_value(body, slot, value, data_type)
        except (struct.error, OverflowError, TypeError, ValueError, DecimalException) as e:
            if isinstance(e, InvalidInputError):
                raise
            raise InvalidInputError(f"{value!r} can't be stored as {data_type}: {e}") from None
    return _ARITY.pack(arity) + bytes(body)


def _encode_value(body: bytearray, slot: int, value: Any, data_type: DataType) -> None:
    root = data_type.root
    if number := _NUMBERS.get(root):
        number.pack_into(body, slot, _number_of(value, root))
    elif root in _TEXT:
        _append(body, slot, _expect(value, str).encode())
    elif root in _BINARY:
        _append(body, slot, bytes(_expect(value, bytes, bytearray, memoryview)))
    elif root == "DECIMAL":
        _encode_decimal(body, slot, value, data_type)
    elif root in _STAMPS:
        stamp = timestamp_of(value, local_zone=root == "TIMESTAMP_LTZ")
        if not is_compact(data_type):
            _SLOT.pack_into(body, slot, len(body) << 32 | stamp.nanos_of_milli)
            body += _MILLIS.pack(stamp.millis)
        elif stamp.nanos_of_milli:
            raise ValueError("it is finer than a millisecond")
        else:
            _MILLIS.pack_into(body, slot, stamp.millis)
    else:
        raise UnsupportedFeatureError(f"A value of type {root} can't be part of a key, partition or statistic")


def _expect(value: Any, *types: type) -> Any:
    if not isinstance(value, types):
        raise TypeError(f"it is a {type(value).__name__}")
    return value


def _number_of(value: Any, root: str) -> Any:
    if root == "BOOLEAN":
        return _expect(value, bool)
    if root == "DATE":
        if isinstance(value, datetime):
            raise TypeError("it is a datetime")
        return _expect(value, date).toordinal() - EPOCH_ORDINAL
    if root == "TIME" and isinstance(value, time):
        micros = ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond
        if micros % 1000 or value.tzinfo is not None:
            raise ValueError("it is finer than a millisecond or has a time zone")
        return micros // 1000
    if isinstance(value, bool):
        raise TypeError("it is a bool")
    return value


def unscaled_of(value: Any, data_type: DataType) -> int:
    """Return the unscaled integer of a DECIMAL value.

    Raises:
        ValueError: it has more digits than the type.
    """
    assert isinstance(data_type, AtomicType)
    precision, scale = data_type.args
    if isinstance(value, bool) or not isinstance(value, Decimal | int):
        raise TypeError(f"it is a {type(value).__name__}")
    shifted = Decimal(value).scaleb(scale, _EXACT)
    unscaled = int(shifted)
    if unscaled != shifted or abs(unscaled) >= 10**precision:
        raise ValueError("it has too many digits")
    return unscaled


def _encode_decimal(body: bytearray, slot: int, value: Any, data_type: DataType) -> None:
    unscaled = unscaled_of(value, data_type)
    if is_compact(data_type):
        _MILLIS.pack_into(body, slot, unscaled)
        return
    size = (unscaled.bit_length() if unscaled >= 0 else (~unscaled).bit_length()) // 8 + 1
    _SLOT.pack_into(body, slot, len(body) << 32 | size)
    body += unscaled.to_bytes(size, "big", signed=True).ljust(16, b"\0")


def _append(body: bytearray, slot: int, data: bytes) -> None:
    size = len(data)
    if size <= 7:
        body[slot : slot + size] = data
        body[slot + 7] = 0x80 | size
        return
    _SLOT.pack_into(body, slot, len(body) << 32 | size)
    body += data
    body += bytes(-size % 8)


def decode_row(data: bytes, types: Sequence[DataType]) -> tuple[Any, ...]:
    """Decode a row of ``encode_row`` or of any Paimon release; nulls of both forms (before and after 1.1).

    Raises:
        FormatError: the bytes are not a row of these types.
        UnsupportedFeatureError: a date that Python can't express, or a non-null value of a type that is not built.
    """
    arity = len(types)
    header = header_bytes(arity)
    if len(data) < 4 + header + 8 * arity:
        raise FormatError(f"A binary row of {len(data)} bytes is too short for {arity} columns")
    if (stored := _ARITY.unpack_from(data)[0]) != arity:
        raise FormatError(f"A binary row has {stored} columns, {arity} expected")
    body = data[4:]
    values: list[Any] = []
    for i, data_type in enumerate(types):
        if body[(i + 8) >> 3] >> (i & 7) & 1:
            values.append(None)
            continue
        try:
            values.append(_decode_value(body, header + 8 * i, data_type))
        except (struct.error, UnicodeDecodeError) as e:
            raise FormatError(f"Column {i} ({data_type}) of a binary row is corrupt: {e}") from None
    return tuple(values)


def _decode_value(body: bytes, slot: int, data_type: DataType) -> Any:
    root = data_type.root
    if number := _NUMBERS.get(root):
        value = number.unpack_from(body, slot)[0]
        if root != "DATE":
            return value
        try:
            return date.fromordinal(value + EPOCH_ORDINAL)
        except (ValueError, OverflowError):
            raise UnsupportedFeatureError(
                f"The date {value} days from 1970 lies outside the years 1 to 9999 that Python can express"
            ) from None
    if root in _TEXT:
        return _variable(body, slot).decode()
    if root in _BINARY:
        return _variable(body, slot)
    if root == "DECIMAL":
        assert isinstance(data_type, AtomicType)
        if is_compact(data_type):
            unscaled = _MILLIS.unpack_from(body, slot)[0]
        else:
            unscaled = int.from_bytes(_out_of_line(body, slot), "big", signed=True)
        return Decimal(unscaled).scaleb(-data_type.args[1], _EXACT)
    if root in _STAMPS:
        if is_compact(data_type):
            return Timestamp(_MILLIS.unpack_from(body, slot)[0])
        where = _SLOT.unpack_from(body, slot)[0]
        return Timestamp(_MILLIS.unpack_from(body, where >> 32)[0], where & 0xFFFFFFFF)
    raise UnsupportedFeatureError(f"A value of type {root} can't be read from a key, partition or statistic")


def _variable(body: bytes, slot: int) -> bytes:
    mark = body[slot + 7]
    if not mark & 0x80:
        return _out_of_line(body, slot)
    if mark & 0x7F > 7:
        raise struct.error("its length is out of bounds")
    return body[slot : slot + (mark & 0x7F)]


def _out_of_line(body: bytes, slot: int) -> bytes:
    where = _SLOT.unpack_from(body, slot)[0]
    start, size = where >> 32, where & 0xFFFFFFFF
    if start + size > len(body):
        raise struct.error("it lies beyond the end")
    return body[start : start + size]
