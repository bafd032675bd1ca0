"""Java's texts of numbers; the expectations are what Double.toString and Float.toString of JDK 19 give."""

from __future__ import annotations

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_paimon.core.table.partition_values import double_text, float_text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0"),
        (-0.0, "-0.0"),
        (1.0, "1.0"),
        (100.0, "100.0"),
        (123456.75, "123456.75"),
        (9999999.0, "9999999.0"),
        (1e7, "1.0E7"),
        (1.5e10, "1.5E10"),
        (12345678.9, "1.23456789E7"),
        (0.001, "0.001"),
        (0.0125, "0.0125"),
        (0.5, "0.5"),
        (0.000999, "9.99E-4"),
        (-1e-5, "-1.0E-5"),
        (1e16, "1.0E16"),
        (1e23, "1.0E23"),
        (5e-324, "4.9E-324"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
        (math.nan, "NaN"),
        (math.inf, "Infinity"),
        (-math.inf, "-Infinity"),
    ],
)
def test_doubles(value: float, text: str) -> None:
    assert double_text(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.1, "0.1"), (1.5, "1.5"), (16777216.0, "1.6777216E7"), (3.4028235e38, "3.4028235E38"), (1e10, "1.0E10"),
     (1.401298464324817e-45, "1.4E-45"), (-0.001, "-0.001"), (0.0, "0.0"), (-0.0, "-0.0"), (math.nan, "NaN"),
     (-math.inf, "-Infinity")],
)  # fmt: skip
def test_floats(value: float, text: str) -> None:
    assert float_text(struct.unpack("<f", struct.pack("<f", value))[0]) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_doubles_read_back(value: float) -> None:
    text = double_text(value)
    assert float(text) == value
    assert ("E" in text) == (value != 0 and not 1e-3 <= abs(value) < 1e7)


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_floats_read_back(value: float) -> None:
    text = float_text(value)
    assert struct.pack("<f", float(text)) == struct.pack("<f", value)
    assert len(text.lstrip("-").partition("E")[0]) <= 12
