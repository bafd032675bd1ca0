"""The digest of a write's rows: the same for the same rows in any order and division, another for other rows."""

from __future__ import annotations

import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from airflow_paimon.data.rows_digest import RowsDigest, rows_digest, total_of
from tests.randomness import chance as seeded

KINDS: dict[str, tuple[pa.DataType, Callable[[random.Random], Any]]] = {
    "int": (pa.int32(), lambda c: c.randrange(5)),
    "byte": (pa.int8(), lambda c: c.randrange(5)),
    "bool": (pa.bool_(), lambda c: c.random() < 0.5),
    "double": (pa.float64(), lambda c: c.random()),
    "decimal": (pa.decimal128(20, 2), lambda c: Decimal(c.randrange(1000)) / 100),
    "time": (pa.timestamp("us"), lambda c: c.randrange(10**9)),
    "text": (pa.string(), lambda c: "ab" * c.randrange(4)),
    "bytes": (pa.binary(), lambda c: b"\0" * c.randrange(3)),
    "fixed": (pa.binary(3), lambda c: bytes([c.randrange(3)] * 3)),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), lambda c: c.choice("xyz")),
    "list": (pa.list_(pa.int32()), lambda c: [c.choice([1, 2, None]) for _ in range(c.randrange(3))]),
    "pair": (pa.list_(pa.int32(), 2), lambda c: [c.choice([1, 2, None]), 1]),
    "view": (pa.string_view(), lambda c: "ab" * c.randrange(9)),
    "map": (pa.map_(pa.string(), pa.int32()), lambda c: [(k, c.choice([1, None])) for k in "pq"[: c.randrange(3)]]),
    "struct": (
        pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))]),
        lambda c: {"a": c.choice([1, None]), "b": c.choice([None, [], ["x"]])},
    ),
}
SCHEMA = pa.schema([(name, kind) for name, (kind, _) in KINDS.items()])


def any_rows(chance: random.Random, number: int) -> list[dict[str, Any]]:
    return [
        {name: None if chance.random() < 0.2 else make(chance) for name, (_, make) in KINDS.items()}
        for _ in range(number)
    ]


def batch(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


@pytest.mark.random
def test_order_and_division_do_not_matter() -> None:
    chance = seeded("digest")
    rows = any_rows(chance, 200)
    wanted = rows_digest(batch(rows))
    assert wanted.rows == 200
    chance.shuffle(rows)
    whole, parts, at = batch(rows), [], 0
    while at < len(rows):
        parts.append(whole.slice(at, size := chance.randrange(1, 40)))
        at += size
    assert total_of([rows_digest(p) for p in parts]) == wanted
    assert rows_digest(whole.select(sorted(SCHEMA.names))) == wanted, "the order of the columns"


@pytest.mark.parametrize("name", KINDS)
def test_another_value_is_another_digest(name: str) -> None:
    kind = KINDS[name][0]
    values: dict[str, list[Any]] = {
        "bool": [True, False, None],
        "decimal": [Decimal(0), Decimal(1), Decimal(10**15), None],
        "text": ["", "a", "b", "ab", "ba", "aa", None],
        "bytes": [b"", b"\0", b"\0\0", b"\1", None],
        "fixed": [b"abc", b"abd", None],
        "dictionary": ["x", "y", None],
        "pair": [[1, 1], [1, 2], [2, 1], [1, None], None],
        "view": ["", "a", "b", None],
        "list": [[], [1], [None], [1, 2], [2, 1], [1, None], None],
        "map": [[], [("p", 1)], [("p", None)], [("q", 1)], [("p", 1), ("q", 1)], None],
        "struct": [{"a": 1, "b": None}, {"a": None, "b": None}, {"a": 1, "b": []}, {"a": 1, "b": ["x"]}, None],
    }
    found = values.get(name, [0, 1, 2, None])
    digests = [rows_digest(pa.record_batch({"c": pa.array([v], kind)})).text for v in found]
    assert len(set(digests)) == len(digests)


def test_values_do_not_change_places() -> None:
    """Neither between rows nor between columns."""

    def digest(*rows: tuple[int, int]) -> RowsDigest:
        return rows_digest(pa.record_batch({"a": pa.array([a for a, _ in rows]), "b": pa.array([b for _, b in rows])}))

    assert digest((1, 2), (3, 4)) != digest((1, 4), (3, 2))
    assert digest((1, 2)) != digest((2, 1))
    assert digest((1, 1), (1, 1)) != digest((2, 2), (2, 2))


def test_what_a_null_slot_holds_does_not_count() -> None:
    valid = pa.py_buffer(bytes([0b101]))
    one, other = (pa.Array.from_buffers(pa.int8(), 3, [valid, pa.py_buffer(data)]) for data in (b"\1\2\3", b"\1\7\3"))
    assert rows_digest(pa.record_batch({"c": one})) == rows_digest(pa.record_batch({"c": other}))


def test_a_column_of_nulls_changes_nothing() -> None:
    rows = pa.record_batch({"a": pa.array([1, 2])})
    assert rows_digest(rows.append_column("new", pa.nulls(2, pa.string()))) == rows_digest(rows)
    assert total_of([]) == rows_digest(rows.slice(0, 0)) == RowsDigest()
