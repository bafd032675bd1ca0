"""Statistics: modes, truncation, dense store, and bounds of Arrow columns that hold for every value."""

from __future__ import annotations

import math
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.arrow_values import column_stats
from airflow_paimon.core.format.binary_row import EMPTY_ROW_BYTES, decode_row
from airflow_paimon.core.format.manifest import EMPTY_STATS
from airflow_paimon.core.format.stats import (
    ColumnStats,
    StatsMode,
    bounds,
    encode_stats,
    encode_value_stats,
    order_key,
    parse_stats_mode,
    stats_modes,
    truncate_max,
    truncate_min,
)
from airflow_paimon.core.format.timestamp import Timestamp
from airflow_paimon.core.format.types import AtomicType, DataType, parse_type
from tests.core.format.row_cases import arrow_array, typed_values

LAST = chr(0x10FFFF)
FULL, TRUNCATE_3 = StatsMode("full"), StatsMode("truncate", 3)


def test_modes() -> None:
    assert parse_stats_mode("NONE") == StatsMode("none")
    assert parse_stats_mode(" counts ") == StatsMode("counts")
    assert parse_stats_mode("full") == FULL
    assert parse_stats_mode("truncate(16)") == StatsMode("truncate", 16)
    for text in ("", "truncate", "truncate(0)", "truncate(-1)", "some"):
        with pytest.raises(InvalidInputError, match="truncate"):
            parse_stats_mode(text)


def test_a_number_of_columns_that_is_none_is_named() -> None:
    with pytest.raises(InvalidInputError, match="columns should be a whole number"):
        stats_modes(["a"], {"metadata.stats-keep-first-n-columns": "some"})


def test_modes_of_columns() -> None:
    columns = ["a", "b", "c"]
    assert stats_modes(columns, {}) == [StatsMode("truncate", 16)] * 3
    options = {"metadata.stats-mode": "full", "fields.b.stats-mode": "none"}
    assert stats_modes(columns, options) == [FULL, StatsMode("none"), FULL]
    options = {"metadata.stats-keep-first-n-columns": "1", "fields.c.stats-mode": "counts"}
    assert stats_modes(columns, options) == [StatsMode("truncate", 16), StatsMode("none"), StatsMode("counts")]


@pytest.mark.parametrize(
    ("value", "low", "high"),
    [
        ("ab", "ab", "ab"),
        ("abc", "abc", "abc"),
        ("abcd", "abc", "abd"),
        ("é中😀x", "é中😀", "é中😁"),
        (f"a{LAST}{LAST}x", f"a{LAST}{LAST}", "b"),
        (f"{LAST}{LAST}{LAST}{LAST}", f"{LAST}{LAST}{LAST}", None),
        ("ab\ud7ffx", "ab\ud7ff", "ab\ue000"),
        (b"abcd", b"abc", b"abd"),
        (b"a\xff\xffx", b"a\xff\xff", b"b"),
        (b"\xff\xff\xff\xff", b"\xff\xff\xff", None),
        (12345, 12345, 12345),
        (None, None, None),
    ],
)
def test_truncation(value: Any, low: Any, high: Any) -> None:
    assert truncate_min(value, 3) == low
    assert truncate_max(value, 3) == high


@given(st.text(min_size=4) | st.binary(min_size=4), st.integers(1, 5))
def test_truncated_bounds_hold(value: Any, length: int) -> None:
    assert truncate_min(value, length) <= value
    high = truncate_max(value, length)
    assert high is None or (high >= value and len(high) <= max(length, len(value) if len(value) <= length else 0))


def test_mode_without_upper_bound_loses_both() -> None:
    assert TRUNCATE_3.apply(ColumnStats("a", LAST * 4, 2)) == ColumnStats(None, None, 2)
    assert TRUNCATE_3.apply(ColumnStats("abcd", "bbbb", 0)) == ColumnStats("abc", "bbc", 0)
    assert TRUNCATE_3.apply(ColumnStats(None, None, 5)) == ColumnStats(None, None, 5)


def test_java_order() -> None:
    values = [math.nan, 1.0, 0.0, -math.inf, -0.0, math.inf]
    assert [str(v) for v in sorted(values, key=order_key)] == ["-inf", "-0.0", "0.0", "1.0", "inf", "nan"]
    assert bounds([None, 3, 1, None]) == (1, 3)
    assert bounds([None]) == (None, None)


def test_encoding() -> None:
    types = [AtomicType("INT"), AtomicType("STRING")]
    stats = encode_stats([1, None], [2, None], [0, 3], types)
    assert decode_row(stats.min_values, types) == (1, None)
    assert decode_row(stats.max_values, types) == (2, None)
    assert stats.null_counts == (0, 3)
    assert encode_stats([], [], [], []).min_values == EMPTY_ROW_BYTES


def test_a_sum_that_has_more_digits_than_its_type() -> None:
    kind = parse_type("DECIMAL(5, 2)")
    value = Decimal("1999.98")
    stats, columns = encode_value_stats(["v"], [ColumnStats(value, value, 0)], [kind])
    assert columns is None
    assert decode_row(stats.min_values, [kind]) == decode_row(stats.max_values, [kind]) == (value,)


def test_dense_store() -> None:
    types: list[DataType] = [AtomicType("INT"), parse_type({"type": "ARRAY", "element": "INT"}), AtomicType("INT")]
    collected = [ColumnStats(1, 2, 0), ColumnStats(), ColumnStats(None, None, 7)]
    stats, columns = encode_value_stats(["a", "b", "c"], collected, types)
    assert columns == ("a", "c")
    assert decode_row(stats.min_values, [types[0], types[2]]) == (1, None)
    assert stats.null_counts == (0, 7)
    stats, columns = encode_value_stats(["a", "b", "c"], collected, types, dense=False)
    assert columns is None
    assert decode_row(stats.max_values, types) == (2, None, None)
    assert stats.null_counts == (0, None, 7)
    assert encode_value_stats(["a"], collected[:1], types[:1])[1] is None
    assert encode_value_stats(["a"], [ColumnStats()], types[:1]) == (EMPTY_STATS, ())


@st.composite
def _columns(draw: st.DrawFn) -> tuple[DataType, list[Any]]:
    data_type, values = draw(typed_values())
    return data_type, draw(st.lists(st.none() | values, max_size=15))


@given(_columns(), st.sampled_from([FULL, TRUNCATE_3]))
def test_bounds_of_columns_hold(column: tuple[DataType, list[Any]], mode: StatsMode) -> None:
    data_type, values = column
    stats = mode.apply(column_stats(pa.chunked_array([arrow_array(values, data_type)]), data_type))
    assert stats.null_count == values.count(None)
    present = [v for v in values if v is not None]
    has_nan = any(isinstance(v, float) and math.isnan(v) for v in present)
    if not present or has_nan:
        assert stats[:2] == (None, None)
    elif stats.minimum is None:
        assert mode is TRUNCATE_3 and stats.maximum is None
    else:
        assert order_key(stats.minimum) <= min(map(order_key, present))
        assert order_key(stats.maximum) >= max(map(order_key, present))
        if mode is FULL:
            assert (stats.minimum, stats.maximum) == (min(present), max(present))
        encode_stats([stats.minimum], [stats.maximum], [stats.null_count], [data_type])


@pytest.mark.parametrize(
    ("array", "type_text", "expected"),
    [
        (pa.array([3, None, 1]), "BIGINT", (1, 3, 1)),
        (pa.array([3, 1]), "TINYINT", (1, 3, 0)),
        (pa.array([True, False]), "BOOLEAN", (False, True, 0)),
        (pa.array(["b", None, "a"]), "STRING", ("a", "b", 1)),
        (pa.array(["b", "a", "b"]).dictionary_encode(), "STRING", ("a", "b", 0)),
        (pa.array([date(2025, 1, 1)]), "DATE", (date(2025, 1, 1), date(2025, 1, 1), 0)),
        (pa.array([Decimal("1.50")]), "DECIMAL(10, 2)", (Decimal("1.50"), Decimal("1.50"), 0)),
        (pa.array([1, 1_000_001], pa.timestamp("us")), "TIMESTAMP(6)", (Timestamp(0, 1000), Timestamp(1000, 1000), 0)),
        (pa.array([None, None], pa.int64()), "BIGINT", (None, None, 2)),
        (pa.array([], pa.int64()), "BIGINT", (None, None, 0)),
        (pa.nulls(2), "BIGINT", (None, None, 2)),
        (pa.array([b"x"]), "BLOB", (None, None, 0)),
    ],
)
def test_columns(array: pa.Array, type_text: str, expected: tuple[Any, ...]) -> None:
    assert column_stats(array, parse_type(type_text)) == expected


def test_modes_that_collect_less() -> None:
    stats = column_stats(pa.array([1, None]), AtomicType("BIGINT"))
    assert StatsMode("none").apply(stats) == ColumnStats()
    assert StatsMode("counts").apply(stats) == ColumnStats(None, None, 1)
    nested = pa.array([[1]])
    assert column_stats(nested, parse_type({"type": "ARRAY", "element": "INT"})) == ColumnStats()


def test_zeros_are_widened() -> None:
    for zeros in ([0.0], [-0.0]):
        stats = column_stats(pa.array(zeros), AtomicType("DOUBLE"))
        assert (str(stats.minimum), str(stats.maximum)) == ("-0.0", "0.0")
