"""Rows of every type for the tests of binary rows and buckets. The vectors were made by Java."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from airflow_paimon.core.format.timestamp import Timestamp
from airflow_paimon.core.format.types import AtomicType, DataType

_ONE = "00000001 0000000000000000 "
_NULL = "00000001 0001000000000000 "
_STAMP = Timestamp(1704164645678, 901000)

# types (";"-separated), values, serialized hex, murmur hash, bucket of 4, bucket of 7
VECTORS: list[tuple[str, tuple[Any, ...], str, int, int, int]] = [
    ("INT", (1,), _ONE + "0100000000000000", 1465514398, 2, 5),
    ("INT", (-7,), _ONE + "f9ffffff00000000", 1485184587, 3, 5),
    ("INT", (None,), _NULL + "0000000000000000", -1748325344, 0, 3),
    ("BIGINT", (123456789012,), _ONE + "141a99be1c000000", -290760731, 3, 2),
    ("SMALLINT", (-2,), _ONE + "feff000000000000", 557672611, 3, 6),
    ("TINYINT", (-2,), _ONE + "fe00000000000000", 1831745471, 3, 3),
    ("BOOLEAN", (True,), _ONE + "0100000000000000", 1465514398, 2, 5),
    ("FLOAT", (1.5,), _ONE + "0000c03f00000000", -173842779, 3, 5),
    ("DOUBLE", (1.5,), _ONE + "000000000000f83f", 1860889473, 1, 2),
    ("DATE", (date(2024, 1, 2),), _ONE + "0c4d000000000000", 1827046836, 0, 6),
    ("STRING", ("",), _ONE + "0000000000000080", 302122119, 3, 5),
    ("STRING", ("abcdefg",), _ONE + "6162636465666787", -1431907323, 3, 0),
    ("STRING", ("abcdefgh",), _ONE + "0800000010000000 6162636465666768", -843760178, 2, 2),
    ("STRING", ("abcdefghi",), _ONE + "0900000010000000 6162636465666768 6900000000000000", 890550442, 2, 5),
    ("STRING", ("é中",), _ONE + "c3a9e4b8ad000085", -1523287501, 1, 1),
    ("BYTES", (b"\x01\xff",), _ONE + "01ff000000000082", -919418502, 2, 2),
    ("DECIMAL(10, 2)", (Decimal("1.25"),), _ONE + "7d00000000000000", 500483854, 2, 3),
    ("DECIMAL(10, 2)", (None,), _NULL + "0000000000000000", -1748325344, 0, 3),
    ("DECIMAL(20, 2)", (Decimal("1.25"),), _ONE + "0100000010000000 7d" + "00" * 15, 1146913853, 1, 1),
    ("DECIMAL(20, 2)", (Decimal("-1.25"),), _ONE + "0100000010000000 83" + "00" * 15, 1715008836, 0, 2),
    ("DECIMAL(20, 2)", (None,), _NULL + "0000000010000000" + "00" * 16, -1380280760, 0, 5),
    ("TIMESTAMP(3)", (Timestamp(1704164645678),), _ONE + "2edb20c88c010000", 1606355323, 3, 6),
    ("TIMESTAMP(6)", (_STAMP,), _ONE + "88bf0d0010000000 2edb20c88c010000", 828821739, 3, 4),
    ("TIMESTAMP(6)", (None,), _NULL + "0000000010000000" + "00" * 8, -340882661, 1, 0),
    (
        "INT;STRING;BIGINT",
        (1, "hello world", None),
        "00000003 0004000000000000 0100000000000000 0b00000020000000 000000000000000068656c6c6f20776f726c640000000000",
        1575627695,
        3,
        5,
    ),
    ("", (), "00000000 0000000000000000", -1670924195, 3, 3),
]

_WORDS = st.one_of(st.text(max_size=4), st.text("ab\u00e9\u4e2d\U0001f600", min_size=5, max_size=40))
_STAMPS = st.integers(-(10**13), 10**13)


def _decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    top = 10**precision - 1
    return st.integers(-top, top).map(lambda u: Decimal((int(u < 0), tuple(map(int, str(abs(u)))), -scale)))


def _bits(size: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (size - 1)), 2 ** (size - 1) - 1)


@st.composite
def typed_values(draw: st.DrawFn, nans: bool = True) -> tuple[DataType, st.SearchStrategy[Any]]:
    """A type that can be a key, and a strategy for its values (never null)."""
    decimal_precision = draw(st.integers(1, 38))
    decimal_scale = draw(st.integers(0, decimal_precision))
    choices: dict[str, tuple[tuple[int, ...], st.SearchStrategy[Any]]] = {
        "BOOLEAN": ((), st.booleans()),
        "TINYINT": ((), _bits(8)),
        "SMALLINT": ((), _bits(16)),
        "INT": ((), _bits(32)),
        "BIGINT": ((), _bits(64)),
        "FLOAT": ((), st.floats(width=32, allow_nan=nans)),
        "DOUBLE": ((), st.floats(allow_nan=nans)),
        "STRING": ((), _WORDS),
        "BYTES": ((), st.binary(max_size=40)),
        "DATE": ((), st.dates()),
        "TIME": ((3,), st.integers(0, 86_399_999)),
        "DECIMAL": ((decimal_precision, decimal_scale), _decimals(decimal_precision, decimal_scale)),
    }
    for root in ("TIMESTAMP", "TIMESTAMP_LTZ"):
        choices[root] = ((3,), _STAMPS.map(Timestamp))
        choices[root + "/6"] = ((6,), st.builds(Timestamp, _STAMPS, st.integers(0, 999).map(lambda n: n * 1000)))
        choices[root + "/9"] = ((9,), st.builds(Timestamp, _STAMPS.map(lambda n: n // 4), st.integers(0, 999_999)))
    name = draw(st.sampled_from(sorted(choices)))
    args, values = choices[name]
    return AtomicType(name.partition("/")[0], args), values


@st.composite
def rows(draw: st.DrawFn) -> tuple[list[DataType], list[Any]]:
    columns = draw(st.lists(typed_values(), max_size=6))
    return [t for t, _ in columns], [draw(st.none() | values) for _, values in columns]


def arrow_array(values: list[Any], data_type: DataType) -> pa.Array:
    """Internal values as an Arrow array of the natural type."""
    assert isinstance(data_type, AtomicType)
    plain = {"BOOLEAN": pa.bool_(), "TINYINT": pa.int8(), "SMALLINT": pa.int16(), "INT": pa.int32(),
             "BIGINT": pa.int64(), "FLOAT": pa.float32(), "DOUBLE": pa.float64(), "STRING": pa.string(),
             "BYTES": pa.binary(), "DATE": pa.date32()}  # fmt: skip
    if data_type.root in plain:
        return pa.array(values, plain[data_type.root])
    if data_type.root == "DECIMAL":
        return pa.array(values, pa.decimal128(*data_type.args))
    if data_type.root == "TIME":
        return pa.array(values, pa.int32()).cast(pa.time32("ms"))
    unit, nanos = {3: ("ms", 1_000_000), 6: ("us", 1000), 9: ("ns", 1)}[data_type.args[0]]
    numbers = [None if v is None else v.to_nanos() // nanos for v in values]
    return pa.array(numbers, pa.timestamp(unit, "UTC" if data_type.root == "TIMESTAMP_LTZ" else None))
