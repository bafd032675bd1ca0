"""The option ``bucket-function.type``: ``mod`` and ``hive`` instead of Paimon's own hash.

See docs/format.md, Buckets.
"""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_paimon.core.format.arrow_values import Column, canonical, to_values
from airflow_paimon.core.format.types import DataType

DEFAULT = "default"

_WHOLE = ("TINYINT", "SMALLINT", "INT")
_EPOCH = dt.date(1970, 1, 1).toordinal()
_MASK = 0xFFFFFFFF


def function_problem(function: str, types: Sequence[DataType]) -> str | None:
    """Say why rows with such a bucket key have no known bucket; None: they have one."""
    if function == "mod" and (len(types) != 1 or types[0].root not in ("INT", "BIGINT")):
        return "bucket-function.type=mod needs a bucket key of one INT or BIGINT column"
    if function == "hive":
        strange = [t.root for t in types if t.root not in _HASHES]
        return f"bucket-function.type=hive has no hash of {strange[0]}" if strange else None
    if function not in (DEFAULT, "mod"):
        return f"bucket-function.type={function} is not supported, only default, mod and hive are"
    return None


def hive_hashes(arrays: Sequence[Column], types: Sequence[DataType]) -> npt.NDArray[np.uint32]:
    """Hash every row as Hive does, null as 0."""
    out = np.zeros(len(arrays[0]), np.uint32)
    with np.errstate(over="ignore"):
        for array, data_type in zip(arrays, types, strict=True):
            out = out * np.uint32(31) + _column(canonical(array, data_type), data_type)
    return out


def hive_hash(values: Sequence[Any], types: Sequence[DataType]) -> int:
    """Hash one row of metadata values."""
    h = 0
    for value, data_type in zip(values, types, strict=True):
        h = (31 * h + _of_value(value, data_type)) & _MASK
    return h


def _column(array: Column, data_type: DataType) -> npt.NDArray[np.uint32]:
    whole = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
    encoded = whole.dictionary_encode(null_encoding="encode")
    each = [_of_value(v, data_type) for v in to_values(encoded.dictionary, data_type)]
    return np.array(each or [0], np.uint32)[np.asarray(encoded.indices.to_numpy(zero_copy_only=False), np.int64)]


def _of_value(value: Any, data_type: DataType) -> int:
    return 0 if value is None else _HASHES[data_type.root](value) & _MASK


def _of_long(value: int) -> int:
    bits = value & 0xFFFFFFFFFFFFFFFF
    return (bits ^ bits >> 32) & _MASK


def _of_float(value: float) -> int:
    return 0x7FC00000 if value != value else int(struct.unpack("<i", struct.pack("<f", value + 0.0))[0])


def _of_double(value: float) -> int:
    return _of_long(0x7FF8 << 48 if value != value else struct.unpack("<q", struct.pack("<d", value + 0.0))[0])


def _of_bytes(value: bytes) -> int:
    h = 0
    for byte in value:
        h = (31 * h + (byte - 256 if byte > 127 else byte)) & _MASK
    return h


def _of_decimal(value: Decimal) -> int:
    """Java's ``BigDecimal.hashCode`` of the value without trailing zeros."""
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    unscaled, scale = int("".join(map(str, digits))), -exponent
    while scale > 0 and unscaled % 10 == 0:
        unscaled, scale = unscaled // 10, scale - 1
    if scale < 0:
        unscaled, scale = unscaled * 10**-scale, 0
    h = 0
    for word in struct.iter_unpack(">I", unscaled.to_bytes(32, "big")):
        h = (31 * h + word[0]) & _MASK
    return 31 * (-h if sign else h) + scale


_HASHES: dict[str, Callable[[Any], int]] = {
    "BOOLEAN": int,
    **dict.fromkeys(_WHOLE, int),
    "DATE": lambda day: day.toordinal() - _EPOCH,
    "BIGINT": _of_long,
    "FLOAT": _of_float,
    "DOUBLE": _of_double,
    **dict.fromkeys(("CHAR", "VARCHAR", "STRING"), lambda text: _of_bytes(text.encode())),
    **dict.fromkeys(("BINARY", "VARBINARY", "BYTES"), _of_bytes),
    "DECIMAL": _of_decimal,
}
