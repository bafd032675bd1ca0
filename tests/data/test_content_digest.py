"""The digest of an Arrow table's rows: every value counts, how they lie in memory does not."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from airflow_paimon.data.content_digest import content_digest

NESTED = pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))])
COLUMNS: list[tuple[pa.DataType, list[Any], Any]] = [
    (pa.int8(), [1, None, 3], 4),
    (pa.int64(), [1, None, 3], 4),
    (pa.bool_(), [False, None, False], True),
    (pa.float64(), [1.5, None, float("nan")], 0.0),
    (pa.decimal128(20, 2), [Decimal("1.00"), None, Decimal("3.10")], Decimal("3.11")),
    (pa.date32(), [dt.date(2026, 1, 1), None, dt.date(2026, 1, 3)], dt.date(2026, 1, 4)),
    (pa.timestamp("us"), [dt.datetime(2026, 1, 1), None, dt.datetime(2026, 1, 3)], dt.datetime(2026, 1, 4)),
    (pa.string(), ["a", None, "bc"], "b"),
    (pa.large_string(), ["a", None, "bc"], "b"),
    (pa.binary(), [b"a", None, b"bc"], b""),
    (pa.binary(2), [b"ab", None, b"bc"], b"cc"),
    (pa.string_view(), ["a", None, "bc"], "b"),
    (pa.dictionary(pa.int8(), pa.string()), ["a", None, "bc"], "b"),
    (pa.list_(pa.int32()), [[1], None, [2, None]], [2, 3]),
    (pa.list_(pa.int32(), 2), [[1, 1], None, [2, None]], [2, 3]),
    (pa.map_(pa.string(), pa.int32()), [{"x": 1}.items(), None, {"y": 2, "z": None}.items()], {"y": 3}.items()),
    (NESTED, [{"a": 1, "b": ["x"]}, None, {"a": None, "b": [None]}], {"a": None, "b": []}),
]


def _table(kind: pa.DataType, values: list[Any]) -> pa.Table:
    return pa.table({"c": pa.array([list(v) if isinstance(v, type({}.items())) else v for v in values], kind)})


@pytest.mark.parametrize(("kind", "values", "other"), COLUMNS, ids=lambda v: str(v)[:30])
def test_every_value_counts_and_chunks_do_not(kind: pa.DataType, values: list[Any], other: Any) -> None:
    whole = _table(kind, values)
    digest = content_digest(whole)
    assert content_digest(pa.concat_tables([whole.slice(0, 1), whole.slice(1, 0), whole.slice(1, 2)])) == digest
    assert content_digest(_table(kind, [other, *values, other]).slice(1, 3)) == digest, "a slice of a longer one"
    changed = [[other, *values[1:]], [values[0], other, values[2]], [*values[:2], other], [*values[:2], None]]
    changed += [values[:2], [values[1], values[0], values[2]]]
    digests = {content_digest(_table(kind, c)) for c in changed}
    assert len(digests) == len(changed)
    assert digest not in digests


def test_what_a_null_slot_holds_does_not_count() -> None:
    valid = pa.py_buffer(bytes([0b101]))
    first = pa.Array.from_buffers(pa.int32(), 3, [valid, pa.py_buffer(b"\1\0\0\0\2\0\0\0\3\0\0\0")])
    second = pa.Array.from_buffers(pa.int32(), 3, [valid, pa.py_buffer(b"\1\0\0\0\7\7\7\7\3\0\0\0")])
    assert content_digest(pa.table({"c": first})) == content_digest(pa.table({"c": second}))


def test_text_that_moves_between_rows_or_columns_counts() -> None:
    tables = [
        pa.table({"a": ["xy", "z"], "b": ["", "w"]}),
        pa.table({"a": ["x", "yz"], "b": ["", "w"]}),
        pa.table({"a": ["x", "yzw"], "b": ["", ""]}),
        pa.table({"b": ["", "w"], "a": ["xy", "z"]}),
        pa.table({"a": ["xy", "z"], "c": ["", "w"]}),
    ]
    assert len({content_digest(t) for t in tables}) == len(tables)
    assert content_digest(tables[0].to_batches()[0]) == content_digest(tables[0])
