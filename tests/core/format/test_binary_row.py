"""BinaryRow against what Paimon's Java core wrote, and against itself."""

from __future__ import annotations

import contextlib
import math
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_paimon.core.errors import FormatError, InvalidInputError, UnsupportedFeatureError
from airflow_paimon.core.format.binary_row import EMPTY_ROW_BYTES, decode_row, encode_row
from airflow_paimon.core.format.timestamp import Timestamp
from airflow_paimon.core.format.types import ArrayType, AtomicType, DataType, parse_type
from tests.core.format.row_cases import VECTORS, rows


@pytest.mark.parametrize(("types", "values", "stored"), [v[:3] for v in VECTORS])
def test_java_vectors(types: str, values: tuple[Any, ...], stored: str) -> None:
    parsed = [parse_type(t) for t in types.split(";") if t]
    data = bytes.fromhex(stored)
    assert encode_row(values, parsed) == data
    assert decode_row(data, parsed) == values


def test_empty_row() -> None:
    assert encode_row((), ()) == EMPTY_ROW_BYTES


@given(rows())
def test_round_trip(row: tuple[list[DataType], list[Any]]) -> None:
    types, values = row
    data = encode_row(values, types)
    assert len(data) % 8 == 4
    decoded = decode_row(data, types)
    for got, value, data_type in zip(decoded, values, types, strict=True):
        assert type(got) is type(value)
        assert got == value or (math.isnan(got) and math.isnan(value)), data_type


def test_many_columns_widen_the_header() -> None:
    types = [parse_type("INT")] * 60
    assert len(encode_row([None] * 60, types)) == 4 + 16 + 60 * 8
    assert len(encode_row([None] * 56, types[:56])) == 4 + 8 + 56 * 8
    assert decode_row(encode_row([*range(59), None], types), types) == (*range(59), None)


@pytest.mark.parametrize("type_text", ["DECIMAL(20, 2)", "TIMESTAMP(6)", "TIMESTAMP(9) WITH LOCAL TIME ZONE"])
def test_null_of_before_1_1(type_text: str) -> None:
    old_form = bytes.fromhex("00000001 0001000000000000 0000000000000000")
    assert decode_row(old_form, [parse_type(type_text)]) == (None,)


def test_datetimes() -> None:
    plain, zoned = parse_type("TIMESTAMP(6)"), parse_type("TIMESTAMP(6) WITH LOCAL TIME ZONE")
    local = datetime(2024, 1, 2, 3, 0, 45, 678901)
    expected = Timestamp(1704164445678, 901000)
    assert decode_row(encode_row([local], [plain]), [plain]) == (expected,)
    tokyo = local.replace(tzinfo=UTC).astimezone(timezone(timedelta(hours=9)))
    assert decode_row(encode_row([tokyo], [zoned]), [zoned]) == (expected,)
    with pytest.raises(InvalidInputError, match="without a time zone"):
        encode_row([tokyo], [plain])
    with pytest.raises(InvalidInputError, match="with a time zone"):
        encode_row([local], [zoned])


def test_time_of_day() -> None:
    t = parse_type("TIME(3)")
    assert decode_row(encode_row([time(1, 2, 3, 4000)], [t]), [t]) == (3723004,)


@pytest.mark.parametrize(
    ("type_text", "value"),
    [
        ("TINYINT", 128),
        ("INT", 2**31),
        ("INT", True),
        ("INT", 1.5),
        ("INT", "1"),
        ("BIGINT", -(2**63) - 1),
        ("FLOAT", 1e39),
        ("BOOLEAN", 1),
        ("STRING", b"x"),
        ("STRING", "\ud800"),
        ("BYTES", "x"),
        ("DATE", datetime(2025, 1, 1)),
        ("DATE", 5),
        ("TIME(3)", time(0, 0, 0, 1)),
        ("DECIMAL(3, 1)", Decimal("1.23")),
        ("DECIMAL(3, 1)", Decimal("100")),
        ("DECIMAL(3, 1)", Decimal("NaN")),
        ("DECIMAL(3, 1)", 1.5),
        ("TIMESTAMP(3)", Timestamp(1, 1)),
        ("TIMESTAMP(3)", 1),
    ],
)
def test_values_that_do_not_fit(type_text: str, value: Any) -> None:
    with pytest.raises(InvalidInputError):
        encode_row([value], [parse_type(type_text)])


def test_nested_types_only_null() -> None:
    types = [ArrayType(AtomicType("INT"))]
    assert decode_row(encode_row([None], types), types) == (None,)
    with pytest.raises(UnsupportedFeatureError, match="ARRAY"):
        encode_row([[1]], types)


@pytest.mark.parametrize(
    "stored",
    [
        "",
        "00000001",
        "00000001 0000000000000000 01000000000000",
        "00000002 0000000000000000 0100000000000000",
        "00000001 0000000000000000 0900000010000000",
        "00000001 0000000000000000 61000000000000ff",
        "00000001 0000000000000000 ff00000000000081",
        "ffffffff 0000000000000000 0100000000000000",
    ],
)
def test_corrupt_rows(stored: str) -> None:
    with pytest.raises(FormatError):
        decode_row(bytes.fromhex(stored), [parse_type("STRING")])


@given(st.binary(max_size=60), rows())
def test_random_bytes_raise_only_our_errors(data: bytes, row: tuple[list[DataType], list[Any]]) -> None:
    types, values = row
    stored = encode_row(values, types)
    for candidate in (data, stored[:4] + data, stored[: len(data)], stored[:12] + data):
        with contextlib.suppress(FormatError, UnsupportedFeatureError):
            decode_row(candidate, types)


def test_dates_that_python_lacks() -> None:
    with pytest.raises(UnsupportedFeatureError, match="9999"):
        decode_row(encode_row([2**31 - 1], [parse_type("INT")]), [parse_type("DATE")])
    assert decode_row(encode_row([date(9999, 12, 31)], [parse_type("DATE")]), [parse_type("DATE")]) == (
        date(9999, 12, 31),
    )
