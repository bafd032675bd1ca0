"""Bucket hashes against Java's, and the vectorised form against the one for single rows."""

from __future__ import annotations

import datetime as dt
import struct
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from airflow_paimon.core.errors import InvalidInputError, UnsupportedFeatureError
from airflow_paimon.core.format.arrow_values import to_values
from airflow_paimon.core.format.binary_row import encode_row
from airflow_paimon.core.format.types import AtomicType, DataType, parse_type
from airflow_paimon.core.table.bucket import bucket_of_rows, hash_rows
from tests.core.format.row_cases import VECTORS, arrow_array, typed_values
from tests.randomness import lives

MASK = 0xFFFFFFFF


def hash_row(body: bytes) -> int:
    """Java's hash of the body of a BinaryRow (without the arity prefix), a signed 32-bit number."""
    h = 42
    for (word,) in struct.iter_unpack("<I", body):
        k = word * 0xCC9E2D51 & MASK
        h ^= (k << 15 | k >> 17) * 0x1B873593 & MASK
        h = ((h << 13 | h >> 19) & MASK) * 5 + 0xE6546B64 & MASK
    h ^= len(body)
    h = (h ^ h >> 16) * 0x85EBCA6B & MASK
    h = (h ^ h >> 13) * 0xC2B2AE35 & MASK
    h ^= h >> 16
    return h - (1 << 32) if h >> 31 else h


def bucket_of(row: bytes, num_buckets: int) -> int:
    return abs(hash_row(row[4:])) % num_buckets


@pytest.mark.parametrize(("types", "values", "stored", "hashed", "of_4", "of_7"), VECTORS)
def test_java_vectors(types: str, values: tuple[Any, ...], stored: str, hashed: int, of_4: int, of_7: int) -> None:
    row = bytes.fromhex(stored)
    assert hash_row(row[4:]) == hashed
    assert (bucket_of(row, 4), bucket_of(row, 7)) == (of_4, of_7)
    parsed = [parse_type(t) for t in types.split(";") if t]
    if parsed:
        arrays = [arrow_array([v], t) for v, t in zip(values, parsed, strict=True)]
        assert hash_rows(arrays, parsed).tolist() == [hashed]
        assert bucket_of_rows(arrays, parsed, 4).tolist() == [of_4]
        assert bucket_of_rows(arrays, parsed, 7).tolist() == [of_7]


@st.composite
def _batches(draw: st.DrawFn) -> tuple[list[DataType], list[list[Any]]]:
    columns = draw(st.lists(typed_values(), min_size=1, max_size=4))
    rows = draw(st.integers(0, 40))
    values = [draw(st.lists(st.none() | v, min_size=rows, max_size=rows)) for _, v in columns]
    return [t for t, _ in columns], values


@given(_batches(), st.integers(1, 1000), st.integers(0, 5))
@settings(max_examples=lives(40, 600))
@example(
    ([AtomicType("DECIMAL", (38, 0))], [[Decimal(10**38 - 1), Decimal(1 - 10**38), Decimal(-(2**63)), None]]), 7, 0
)
@example(([AtomicType("DECIMAL", (38, 0))], [[Decimal(s * 2**b + d) for b in range(126) for s in (1, -1) for d in (0, -1)]]), 7, 1)  # fmt: skip # noqa: E501
@example(([AtomicType("STRING"), AtomicType("INT")], [["x" * n for n in range(60)], list(range(60))]), 5, 0)
@example(([AtomicType("STRING")], [["x" * 100, None, "y" * 10_000, "", "z" * 8]]), 5, 2)
def test_vectorised_equals_scalar(batch: tuple[list[DataType], list[list[Any]]], buckets: int, split: int) -> None:
    types, values = batch
    arrays = [_pieces(arrow_array(v, t), split + i) for i, (v, t) in enumerate(zip(values, types, strict=True))]
    rows = [encode_row(row, types) for row in zip(*values, strict=True)]
    columns = [to_values(a, t) for a, t in zip(arrays, types, strict=True)]
    assert [encode_row(row, types) for row in zip(*columns, strict=True)] == rows
    assert hash_rows(arrays, types).tolist() == [hash_row(r[4:]) for r in rows]
    assert bucket_of_rows(arrays, types, buckets).tolist() == [bucket_of(r, buckets) for r in rows]


def _pieces(array: pa.Array, at: int) -> pa.ChunkedArray:
    """The same values in two chunks with offsets, so that nothing relies on buffers that start at 0."""
    padded = pa.concat_arrays([pa.nulls(3, array.type), array, pa.nulls(1, array.type)])
    whole = padded.slice(3, len(array))
    return pa.chunked_array([whole.slice(0, at), whole.slice(at)], array.type)


def test_more_rows_than_a_chunk() -> None:
    keys = np.random.default_rng(1).integers(-(2**62), 2**62, 150_000)
    got = bucket_of_rows([pa.array(keys)], [AtomicType("BIGINT")], 16)
    for i in (0, 65_535, 65_536, 149_999):
        assert got[i] == bucket_of(encode_row([int(keys[i])], [AtomicType("BIGINT")]), 16)
    assert np.bincount(got).min() > 8_000


@pytest.mark.parametrize("arrow_type", [pa.string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())])
def test_other_arrow_types_of_text(arrow_type: pa.DataType) -> None:
    words = ["a", "bb", None, "a long one that is stored out of line", ""]
    expected = hash_rows([pa.array(words, pa.large_string())], [AtomicType("STRING")])
    assert hash_rows([pa.array(words).cast(arrow_type)], [AtomicType("STRING")]).tolist() == expected.tolist()


def test_precision_matters() -> None:
    stamps = pa.array([1704164645678], pa.timestamp("ms"))
    three, six = (hash_rows([stamps], [AtomicType("TIMESTAMP", (p,))]).tolist() for p in (3, 6))
    assert three != six


def test_mod() -> None:
    keys = [17, -3, 5, 0, None, 2**31 - 1, -(2**31)]
    for root, arrow_type in (("INT", pa.int32()), ("BIGINT", pa.int64())):
        got = bucket_of_rows([pa.array(keys, arrow_type)], [AtomicType(root)], 5, "mod")
        assert got.tolist() == [2, 2, 0, 0, 0, (2**31 - 1) % 5, -(2**31) % 5]
        assert got.dtype == np.int32
    with pytest.raises(UnsupportedFeatureError, match="INT or BIGINT"):
        bucket_of_rows([pa.array(["x"])], [AtomicType("STRING")], 5, "mod")


HIVE: list[tuple[str, pa.DataType, list[Any], list[int]]] = [
    ("INT", pa.int32(), [7, -1, None], [7, 2**32 - 1, 0]),
    ("STRING", pa.string(), ["hello", "", None], [99162322, 0, 0]),
    ("BYTES", pa.binary(), [bytes([1, 2, 3]), b"\xff", None], [1026, 2**32 - 1, 0]),
    ("DECIMAL(4, 2)", pa.decimal128(4, 2), [Decimal("12.34"), Decimal("-0.50"), Decimal(0)], [38256, 2**32 - 154, 0]),
    ("DECIMAL(38, 0)", pa.decimal128(38, 0), [Decimal(2**64), Decimal(10), None], [31 * 961, 310, 0]),
    ("BIGINT", pa.int64(), [2**32 + 5, -1, None], [4, 0, 0]),
    ("DOUBLE", pa.float64(), [-0.0, 1.0, None], [0, 0x3FF00000, 0]),
    ("FLOAT", pa.float32(), [-0.0, 1.0, float("nan")], [0, 0x3F800000, 0x7FC00000]),
    ("BOOLEAN", pa.bool_(), [True, False, None], [1, 0, 0]),
    ("DATE", pa.date32(), [dt.date(1970, 1, 3), dt.date(1969, 12, 31), None], [2, 2**32 - 1, 0]),
]


def test_hive() -> None:
    """Hashes by Java's rules of String, BigDecimal, Double; the last column changes fastest."""
    columns, types = [], []
    hashed = [0, 0, 0]
    for text, arrow_type, values, each in HIVE:
        columns.append(pa.array(values, arrow_type))
        types.append(parse_type(text))
        hashed = [(31 * h + c) % 2**32 for h, c in zip(hashed, each, strict=True)]
        for total in (1, 5, 97):
            expected = [(h & 0x7FFFFFFF) % total for h in hashed]
            assert bucket_of_rows(columns, types, total, "hive").tolist() == expected, text
    sample = (31 * (31 * (31 * 7 + 99162322) + 1026) + 38256) & 0x7FFFFFFF  # (7, "hello", 0x010203, 12.34)
    first = [c.slice(0, 1) for c in columns[:4]]
    assert bucket_of_rows(first, types[:4], 2**31 - 1, "hive").tolist() == [sample % (2**31 - 1)]
    with pytest.raises(UnsupportedFeatureError, match="no hash of TIMESTAMP"):
        bucket_of_rows([pa.array([1], pa.timestamp("ms"))], [AtomicType("TIMESTAMP", (3,))], 5, "hive")


@pytest.mark.parametrize("function", ["default", "hive"])
def test_a_date_is_its_number_of_days_also_beyond_the_years_of_python(function: str) -> None:
    days = pa.array([4_000_000, -800_000, 10, None], pa.int32())
    buckets = bucket_of_rows([days.cast(pa.date32())], [AtomicType("DATE")], 1000, function)
    assert buckets.tolist() == bucket_of_rows([days], [AtomicType("INT")], 1000, function).tolist()


@pytest.mark.parametrize("function", ["default", "mod", "hive"])
def test_one_row_and_many(function: str) -> None:
    keys = [17, -3, 0, 2**31 - 1, -(2**31)]
    many = bucket_of_rows([pa.array(keys, pa.int32())], [AtomicType("INT")], 5, function).tolist()
    one_by_one = [bucket_of_rows([pa.array([k], pa.int32())], [AtomicType("INT")], 5, function)[0] for k in keys]
    assert many == one_by_one


@pytest.mark.parametrize(
    ("array", "type_text"),
    [
        (pa.array(["1"]), "INT"),
        (pa.array([2**40]), "INT"),
        (pa.array([1], pa.timestamp("us")), "TIMESTAMP(3)"),
        (pa.array([1], pa.timestamp("us")), "TIMESTAMP(6) WITH LOCAL TIME ZONE"),
        (pa.array([1], pa.timestamp("us", "UTC")), "TIMESTAMP(6)"),
        (pa.array([Decimal("1.234")]), "DECIMAL(10, 2)"),
    ],
)
def test_columns_of_another_type(array: pa.Array, type_text: str) -> None:
    with pytest.raises(InvalidInputError, match=r"can't be stored|too fine"):
        hash_rows([array], [parse_type(type_text)])


def test_bad_arguments() -> None:
    one = pa.array([1])
    with pytest.raises(InvalidInputError, match="number of buckets is -1"):
        bucket_of_rows([one], [AtomicType("BIGINT")], -1)
    with pytest.raises(InvalidInputError, match="different lengths"):
        hash_rows([one, pa.array([1, 2])], [AtomicType("BIGINT")] * 2)
    with pytest.raises(InvalidInputError, match="at least one column"):
        hash_rows([], [])
    with pytest.raises(UnsupportedFeatureError, match="ARRAY"):
        hash_rows([pa.array([[1]])], [parse_type({"type": "ARRAY", "element": "INT"})])
