"""Rows whose nested values are null above fields that can't be: as Spark and Parquet readers give them, and back."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.data import read_arrow, write_arrow

INNER = "ROW<a INT NOT NULL, s STRING NOT NULL, b BOOLEAN NOT NULL>"
COLUMNS = [
    ("id", "INT NOT NULL"),
    (
        "r",
        f"ROW<x {INNER} NOT NULL, l ARRAY<INT NOT NULL> NOT NULL, m MAP<STRING, {INNER} NOT NULL> NOT NULL, n BIGINT>",
    ),
    ("l", f"ARRAY<{INNER}>"),
]


def nullable_struct(draw: random.Random, values: list[Any], fields: dict[str, pa.DataType]) -> pa.Array:
    """A struct whose fields are null, or anything, below its nulls."""
    columns = [
        pa.array([draw.choice([None, _any(t)]) if v is None else v[name] for v in values], t)
        for name, t in fields.items()
    ]
    return pa.StructArray.from_arrays(columns, list(fields), mask=pa.array([v is None for v in values]))


def _any(data_type: pa.DataType) -> Any:
    if pa.types.is_struct(data_type):
        return {"a": 7, "s": "x", "b": True}
    return [] if pa.types.is_nested(data_type) else 7


@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize("file_format", ["parquet", "orc"])
def test_nulls_above_fields_that_cannot_be_null(tmp_path: Path, file_format: str, keyed: bool) -> None:
    draw = random.Random(3)
    inner = pa.struct([("a", pa.int32()), ("s", pa.string()), ("b", pa.bool_())])

    def an_inner() -> dict[str, Any]:
        return {"a": draw.randrange(9), "s": "s" * draw.randrange(4), "b": draw.random() < 0.5}

    def a_row() -> dict[str, Any] | None:
        if draw.random() < 0.4:
            return None
        entries = [(str(k), an_inner()) for k in range(draw.randrange(3))]
        numbers = [draw.randrange(5) for _ in range(draw.randrange(3))]
        return {"x": an_inner(), "l": numbers, "m": entries, "n": draw.choice([None, 4])}

    rows = [a_row() for _ in range(60)]
    lists = [[draw.choice([None, an_inner()]) for _ in range(draw.randrange(3))] for _ in rows]
    fields = {"x": inner, "l": pa.list_(pa.int32()), "m": pa.map_(pa.string(), inner), "n": pa.int64()}
    ids = pa.array(draw.sample(range(len(rows)), len(rows)), pa.int32())
    data = pa.table({"id": ids, "r": nullable_struct(draw, rows, fields), "l": pa.array(lists, pa.list_(inner))})
    options = {"file.format": file_format, **({"bucket": "1"} if keyed else {})}
    table = create_table(str(tmp_path), "d.t", COLUMNS, primary_keys=["id"] if keyed else [], options=options)
    for piece in (data.slice(0, 25), data.slice(25)):
        write_arrow(table, piece)
    wanted = [{"id": i, "r": r, "l": v} for i, r, v in zip(ids.to_pylist(), rows, lists, strict=True)]
    assert sorted(read_arrow(table).to_pylist(), key=lambda r: r["id"]) == sorted(wanted, key=lambda r: r["id"])
