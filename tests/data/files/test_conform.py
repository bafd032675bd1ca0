"""Rows to write either fit the table exactly or are refused with the column's name."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.types import DataField, parse_type
from airflow_paimon.data.files.arrow_types import arrow_type
from airflow_paimon.data.files.conform import conform_rows


def schema_of(kind: Any, default: str | None = None, keys: tuple[str, ...] = ()) -> TableSchema:
    fields = (DataField(0, "c", parse_type(kind), None, default),)
    return TableSchema(id=0, fields=fields, highest_field_id=9, primary_keys=keys)


def conformed(kind: Any, values: pa.Array, **more: Any) -> list[Any]:
    batch = conform_rows(pa.table({"c": values}), schema_of(kind, **more), "d.t")
    assert batch.schema.names == ["c", "_VALUE_KIND"]
    assert batch.column(0).type == arrow_type(parse_type(kind))
    return list(batch.column(0).to_pylist())


FITTING: list[tuple[Any, pa.Array, list[Any]]] = [
    ("TINYINT", pa.array([-128, 127, None], pa.int64()), [-128, 127, None]),
    ("BIGINT", pa.array([1], pa.uint8()), [1]),
    ("INT", pa.array([None, None]), [None, None]),
    ("FLOAT", pa.array([0.5, float("inf")], pa.float64()), [0.5, float("inf")]),
    ("DOUBLE", pa.array([1, 2**53], pa.int64()), [1.0, 2.0**53]),
    ("DECIMAL(10, 2)", pa.array([5], pa.int32()), [Decimal("5.00")]),
    ("DECIMAL(10, 2)", pa.array([Decimal("1.5")], pa.decimal128(38, 1)), [Decimal("1.50")]),
    ("STRING", pa.array(["a"], pa.large_string()), ["a"]),
    ("STRING", pa.array(["a", "b", "a"]).dictionary_encode(), ["a", "b", "a"]),
    ("VARCHAR(2)", pa.array(["é𝄞", "ab  ", "a ", None]), ["é𝄞", "ab", "a ", None]),
    ("CHAR(3)", pa.array(["ab", "é𝄞", "abc  ", "", None]), ["ab ", "é𝄞 ", "abc", "   ", None]),
    ({"type": "ARRAY", "element": "CHAR(2)"}, pa.array([["a", None], None, []]), [["a ", None], None, []]),
    ({"type": "MAP", "key": "CHAR(2) NOT NULL", "value": {"type": "ROW", "fields": [
        {"id": 1, "name": "x", "type": "VARCHAR(1)"}]}},
     pa.array([[("a", {"x": "b "})], None], pa.map_(pa.string(), pa.struct([("x", pa.string())]))),
     [[("a ", {"x": "b"})], None]),
    ("BYTES", pa.array([b"ab"], pa.binary(2)), [b"ab"]),
    ("DATE", pa.array([dt.date(2025, 1, 1)], pa.date64()), [dt.date(2025, 1, 1)]),
    ("TIME(3)", pa.array([dt.time(1, 2, 3, 4000)], pa.time64("us")), [dt.time(1, 2, 3, 4000)]),
    ("TIMESTAMP(3)", pa.array([1_000_000], pa.timestamp("ns")), [dt.datetime(1970, 1, 1, 0, 0, 0, 1000)]),
    ({"type": "ARRAY", "element": "BIGINT"}, pa.array([[1], None]), [[1], None]),
    ({"type": "MAP", "key": "STRING NOT NULL", "value": "DOUBLE"},
     pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int32())), [[("a", 1.0)]]),
]  # fmt: skip


@pytest.mark.parametrize("kind, values, expected", FITTING, ids=[f"{k}-{v.type}" for k, v, _ in FITTING])
def test_what_fits_is_taken(kind: Any, values: pa.Array, expected: list[Any]) -> None:
    assert conformed(kind, values) == expected


REFUSED: list[tuple[Any, pa.Array, str]] = [
    ("TINYINT", pa.array([128]), "a value does not fit"),
    ("INT", pa.array([1.0]), r"of Arrow type double does not fit\. In SQL: CAST\(\.\.\. AS INT\)"),
    ("INT", pa.array(["1"]), "of Arrow type string does not fit"),
    ("INT", pa.array([True]), "of Arrow type bool does not fit"),
    ("STRING", pa.array([1]), "of Arrow type int64 does not fit"),
    ("STRING", pa.array([b"a"]), "of Arrow type binary does not fit"),
    ("FLOAT", pa.array([0.1, None], pa.float64()), "would lose digits"),
    ("FLOAT", pa.array([1e300], pa.float64()), "would lose digits"),
    ("DOUBLE", pa.array([2**53 + 1]), "a value does not fit"),
    ("DECIMAL(4, 1)", pa.array([Decimal("1.25")]), r"after the point.*CAST\(\.\.\. AS DECIMAL\(4, 1\)\) rounds"),
    ("DECIMAL(4, 1)", pa.array([Decimal("1000.5")]), "a value does not fit"),
    ("CHAR(2)", pa.array(["abc "]), "length of 3"),
    ("VARCHAR(1)", pa.array([" b"]), "length of 2"),
    ({"type": "ARRAY", "element": "VARCHAR(1)"}, pa.array([["ab"]]), "length of 2"),
    ("VARBINARY(2)", pa.array([b"abc"]), "length of 3"),
    ("TIMESTAMP(3)", pa.array([1_500], pa.timestamp("us")), "a value does not fit"),
    ("TIMESTAMP(6)", pa.array([1], pa.timestamp("us", "UTC")), "does not fit"),
    ("TIMESTAMP(6) WITH LOCAL TIME ZONE", pa.array([1], pa.timestamp("us")), "does not fit"),
    ("INT NOT NULL", pa.array([1, None], pa.int32()), "is NOT NULL"),
    ({"type": "ARRAY", "element": "INT NOT NULL"}, pa.array([[1, None]]), "element is NOT NULL"),
    ({"type": "MAP", "key": "STRING NOT NULL", "value": "INT NOT NULL"},
     pa.array([None, [("a", None)]], pa.map_(pa.string(), pa.int32())), "value is NOT NULL"),
    ({"type": "ROW", "fields": [{"id": 1, "name": "x", "type": "INT NOT NULL"}]},
     pa.array([{"x": 1}, {"x": None}]), r"x is NOT NULL"),
    ({"type": "ROW", "fields": [{"id": 1, "name": "x", "type": "INT"}]}, pa.array([{"y": 1}]), "does not fit"),
]  # fmt: skip


@pytest.mark.parametrize("kind, values, message", REFUSED, ids=[f"{k}-{v.type}" for k, v, _ in REFUSED])
def test_what_does_not_fit_is_refused_by_name(kind: Any, values: pa.Array, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message) as refused:
        conformed(kind, values)
    assert refused.value.message.startswith("d.t: column 'c")


def test_a_null_row_has_no_fields_to_be_null() -> None:
    kind = {"type": "ROW", "fields": [{"id": 1, "name": "x", "type": "INT NOT NULL"}]}
    assert conformed(kind, pa.array([None, {"x": 1}])) == [None, {"x": 1}]
    listed = {"type": "ARRAY", "element": kind}
    assert conformed(listed, pa.array([None, [], [{"x": 1}, None]])) == [None, [], [{"x": 1}, None]]


def test_nan_is_not_a_lost_digit() -> None:
    assert np.isnan(conformed("FLOAT", pa.array([float("nan")]))[0])


def test_nulls_and_missing_columns_take_the_default() -> None:
    assert conformed("INT", pa.array([1, None], pa.int32()), default="7") == [1, 7]
    filled = conform_rows(pa.table({"c": [1, 2]}).select([]), schema_of("INT", default="7"), "d.t")
    assert filled.column("c").to_pylist() == [7, 7]
    with pytest.raises(InvalidInputError, match="default value 'x'"):
        conformed("INT", pa.array([None], pa.int32()), default="x")


def test_rows_that_are_merged_may_lack_columns() -> None:
    """But none that the key, the partition or NOT NULL asks for."""
    fields = {"k": "INT NOT NULL", "p": "STRING", "a": "INT", "b": "BIGINT NOT NULL", "c": "STRING"}
    made = tuple(
        DataField(i, n, parse_type(t), None, "7" if n == "a" else None) for i, (n, t) in enumerate(fields.items())
    )
    schema = TableSchema(id=0, fields=made, highest_field_id=9, primary_keys=("k",), partition_keys=("p",), options={})
    rows = pa.table({"k": pa.array([1], pa.int32()), "b": [2], "p": ["x"]})
    found = conform_rows(rows, schema, "d.t", partial=True).to_pylist()
    assert found == [{"k": 1, "p": "x", "a": 7, "b": 2, "c": None, "_VALUE_KIND": 0}]
    with pytest.raises(InvalidInputError, match="missing columns c;"):
        conform_rows(rows, schema, "d.t")
    for name in ("k", "p", "b"):
        with pytest.raises(InvalidInputError, match=f"missing columns {name};"):
            conform_rows(rows.drop_columns([name]), schema, "d.t", partial=True)


def test_columns_must_be_the_tables() -> None:
    with pytest.raises(InvalidInputError, match=r"unknown columns x, y and missing columns c"):
        conform_rows(pa.table({"x": [1], "y": [1]}), schema_of("INT"), "d.t")
    with pytest.raises(InvalidInputError, match="two columns of the same name"):
        conform_rows(pa.Table.from_arrays([pa.array([1])] * 2, names=["c", "c"]), schema_of("INT"), "d.t")


def test_a_primary_key_is_never_null() -> None:
    with pytest.raises(InvalidInputError, match="part of the primary key"):
        conformed("INT", pa.array([None], pa.int32()), keys=("c",))


def test_row_kinds() -> None:
    kinds = ["+I", "-U", "+U", "-D"]
    rows = pa.table({"c": [1, 2, 3, 4], "_row_kind": pa.array(kinds).dictionary_encode()})
    assert conform_rows(rows, schema_of("INT", keys=("c",)), "d.t").column("_VALUE_KIND").to_pylist() == [0, 1, 2, 3]
    with pytest.raises(InvalidInputError, match="no primary key"):
        conform_rows(rows, schema_of("INT"), "d.t")
    for strange in ("i", None):
        wrong = pa.table({"c": [1], "_row_kind": pa.array([strange], pa.string())})
        with pytest.raises(InvalidInputError, match=r"_row_kind must be one of \+I -U \+U -D"):
            conform_rows(wrong, schema_of("INT"), "d.t")
