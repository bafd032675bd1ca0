"""The rows that have given keys, against all rows of the table in a plain loop."""

from __future__ import annotations

from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from airflow_paimon.core.commit.copy_on_write import commit_rewrite
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.predicate import Condition
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.data.arrow_write import write_arrow
from airflow_paimon.data.copy_on_write import plan_copy_on_write
from airflow_paimon.data.read import read_split
from airflow_paimon.data.row_columns import POSITION_COLUMNS
from airflow_paimon.data.row_deletes import delete_rows
from airflow_paimon.data.rows_of_keys import rows_of_keys, share_of_rows
from airflow_paimon.data.scan import plan_read, with_positions
from tests.randomness import chance

TYPES = {
    "TINYINT": pa.int8(),
    "BIGINT": pa.int64(),
    "DATE": pa.date32(),
    "STRING": pa.string(),
    "DECIMAL(9, 2)": pa.decimal128(9, 2),
}
EXTREME = [-(2**63), -(2**63) + 1, 2**63 - 1, -1, 0, 1]


def a_value(draw: Random, kind: str) -> Any:
    if draw.random() < 0.1:
        return None
    number = draw.randint(-20, 20)
    match kind:
        case "TINYINT":
            return draw.choice([number, -128, 127])
        case "BIGINT":
            return draw.choice([number, number, draw.choice(EXTREME)])
        case "DATE":
            return date(1970, 1, 1) + timedelta(days=number)
        case "STRING":
            return f"é{number}" if number else ""
        case _:
            return Decimal(number) / 4


@pytest.mark.parametrize("kind", TYPES)
def test_rows_of_keys_are_those_of_a_plain_loop(tmp_path: Path, kind: str) -> None:
    draw = chance(f"rows of keys {kind}")
    columns = [("k", kind), ("v", "STRING"), ("p", "STRING")]
    options = {"bucket": "-1", "deletion-vectors.enabled": "true", "row-tracking.enabled": "true"}
    table = create_table(str(tmp_path), "d.t", columns, partition_keys=["p"], options=options)
    for p in ("x", "x", "y"):
        rows = [{"k": a_value(draw, kind), "v": draw.choice(["a", "b", None]), "p": p} for _ in range(60)]
        schema = pa.schema([("k", TYPES[kind]), ("v", pa.string()), ("p", pa.string())])
        write_arrow(table, pa.Table.from_pylist(rows, schema))
    plan = plan_copy_on_write(table)
    gone = {f.file_name: np.arange(0, 60, 7, np.uint64) for s in plan.scan.splits for f in s.files[:1]}
    commit_rewrite(table, delete_rows(plan.scan, plan.write, gone).messages, read=plan.scan, operation="DELETE")
    asked_for = ((["k"], ["k"]), (["k"], ["k", "p"]), (["v", "_ROW_ID"], ["k"]), (["p", "v", "k"], ["k", "p"]))
    for columns_asked, keys_asked in asked_for:
        for low in (None, 0):
            below = None if low is None else Condition("v", ">=", "a")
            read, splits = plan_read(plan_scan(table), columns=columns_asked, predicate=below)
            read = with_positions(read)
            whole, _ = plan_read(plan_scan(table), columns=[*dict.fromkeys([*columns_asked, *keys_asked])])
            everything = [row for s in splits for b in read_split(with_positions(whole), s) for row in b.to_pylist()]
            own = [v for v in {row["k"] for row in everything} if v is not None]
            asked: dict[str, list[Any]] = {
                "k": draw.sample(own, 5) + [a_value(draw, kind) for _ in range(3)],
                "p": ["x"],
            }
            asked["k"] = [v for v in dict.fromkeys(asked["k"]) if v is not None]
            types = {"k": TYPES[kind], "p": pa.string()}
            keys = {name: pa.array(asked[name], types[name]) for name in keys_asked}
            found = [row for s in splits for batch in rows_of_keys(read, s, keys) for row in batch.to_pylist()]
            names = [*POSITION_COLUMNS, *columns_asked]
            assert found == [
                {n: row[n] for n in names} for row in everything if all(row[n] in asked[n] for n in keys_asked)
            ]
            assert found


def test_no_row_has_a_key_and_no_key_is_asked_for(tmp_path: Path) -> None:
    table = create_table(str(tmp_path), "d.t", [("k", "INT"), ("v", "STRING")], options={"bucket": "-1"})
    write_arrow(table, pa.table({"k": pa.array([1, None], pa.int32()), "v": ["a", "b"]}))
    read, [split] = plan_read(plan_scan(table), columns=["v"])
    for values in ([], [2], [2**31 - 1, -(2**31)]):
        keys = {"k": pa.array(values, pa.int32())}
        assert [b.num_rows for b in rows_of_keys(with_positions(read), split, keys) if b.num_rows] == []
        assert share_of_rows(read, split, keys) == 0
    assert share_of_rows(read, split, {"k": pa.array([1], pa.int32())}) == 0.5


def test_many_texts_are_looked_up_in_splits_of_few_rows(tmp_path: Path) -> None:
    """The same keys for all splits, and then others: what was made for the former must not answer for the latter."""
    draw = chance("many texts")
    table = create_table(str(tmp_path), "d.t", [("k", "STRING"), ("v", "INT")], options={"bucket": "-1"})
    given = [[draw.choice([None, "", f"k{draw.randint(0, 300)}"]) for _ in range(12)] for _ in range(3)]
    for texts in given:
        write_arrow(table, pa.table({"k": pa.array(texts, pa.string()), "v": pa.array(range(12), pa.int32())}))
    read, splits = plan_read(plan_scan(table), columns=["v"])
    for _ in range(3):
        values = draw.sample([f"k{n}" for n in range(300)], 100) + [""] * draw.randint(0, 1)
        keys = {"k": pa.array(values, pa.string())}
        parts = [part for s in splits for part in s.divided()]
        found = [b.column("v").to_pylist() for p in parts for b in rows_of_keys(with_positions(read), p, keys)]
        wanted = [[at for at, text in enumerate(texts) if text in values] for texts in given]
        assert sorted(filter(None, found)) == sorted(filter(None, wanted))
