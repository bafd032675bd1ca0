"""Reads of a few keys open one bucket and few row groups, and give what a read of everything gives."""

from __future__ import annotations

import datetime as dt
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airflow_paimon.core.format.types import parse_type
from airflow_paimon.core.table.predicate import AllOf, AnyOf, Condition, Predicate
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import read_arrow, write_arrow
from airflow_paimon.data.files.key_lookup import key_points
from airflow_paimon.data.planner import plan_rows
from airflow_paimon.data.read import read_split
from airflow_paimon.data.read_request import ReadRequest
from airflow_paimon.data.read_splits import plan_read
from tests.data.tables import make_table, rows_of

COLUMNS = {"k": "INT NOT NULL", "s": "STRING NOT NULL", "d": "DATE NOT NULL", "v": "STRING", "n": "INT"}
K, S, D, V = (pc.field(name) for name in "ksdv")
DAYS = [dt.date(2025, 1, day) for day in (1, 2, 3)]


def day_row(chance: random.Random) -> dict[str, Any]:
    k = chance.randrange(-15, 15)
    return {"k": k, "s": chance.choice(['a"b', "a\\", "é", "", "x" * 20]), "d": chance.choice(DAYS)}


def filled(folder: Path, seed: int = 0, **options: str) -> Table:
    chance = random.Random(seed)
    table = make_table(folder, COLUMNS, primary_keys=["k", "s", "d"], **{"bucket": "4", **options})
    for at in range(4):
        rows = [{**day_row(chance), "v": f"{at}", "n": i} for i in range(60)]
        kinds = [chance.choice(["+I", "+I", "+I", "-D"]) for _ in rows]
        write_arrow(table, rows_of(COLUMNS, rows).append_column("_row_kind", pa.array(kinds)))
    return table


FILTERS = {
    "one key": (K == 3) & (S == 'a"b') & (DAYS[0] == D),
    "one of two texts": (K == -7) & S.isin(["a\\", "é"]) & (DAYS[1] == D),
    "either": ((K == 1) | (K == 2)) & (S == "") & (DAYS[0] < D),
    "key and value": (K == 3) & (S == "é") & (V == "3"),
    "older version": (K == 3) & (V == "0"),
    "nothing": (K == 3) & (K == 4),
    "swapped": pc.equal(pc.scalar(5), K),
    "not of the key": V == "2",
    "arithmetic": (K + 1) == 4,
    "not": ~(K == 3),
    "ranges": (K > 3) & (K < 5),
    "many": K.isin(list(range(-15, 0))),
    "text like a number": (S == "3") | (K == 3),
}


BUCKET_KEYS = ["", "k", "s,k"]


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Table]:
    """By their bucket keys; they are only read."""
    folder = tmp_path_factory.mktemp("tables")
    return {key: filled(folder / key, **({"bucket_key": key} if key else {})) for key in BUCKET_KEYS}


@pytest.mark.parametrize("bucket_key", BUCKET_KEYS)
@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.every(3)
def test_a_lookup_gives_what_a_filter_over_everything_gives(
    tables: dict[str, Table], name: str, bucket_key: str
) -> None:
    table = tables[bucket_key]
    everything = read_arrow(table)
    expected = everything.filter(FILTERS[name])
    order = [("k", "ascending"), ("s", "ascending"), ("d", "ascending")]
    assert read_arrow(table, where=FILTERS[name]).sort_by(order).to_pylist() == expected.sort_by(order).to_pylist()
    values = read_arrow(table, where=FILTERS[name], columns=["n"]).column("n").to_pylist()
    assert sorted(values) == sorted(expected.column("n").to_pylist())


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (K == 3, {"k": (3,)}),
        ((K == 3) & (S == 'a"b'), {"k": (3,), "s": ('a"b',)}),
        (S.isin(["a", "é", ""]), {"s": ("", "a", "é")}),
        ((DAYS[0] == D) & (V == "7"), {"d": (DAYS[0],)}),
        ((K == 1) | (K == 2), {"k": (1, 2)}),
        ((K == 1) | (V == "x"), {}),
        ((K == 1) & (K == 2), {"k": ()}),
        (K > 1, {}),
        (~(K == 1), {}),
        ((K == 1).is_null(), {}),
        ((K == 1).is_valid(), {}),
        (pc.if_else(K == 1, True, V == "x"), {}),
        ((K * 2) == 2, {}),
    ],
    ids=str,
)
def test_what_an_expression_proves_of_the_key(tmp_path: Path, where: pc.Expression, expected: dict[str, Any]) -> None:
    schema = make_table(tmp_path, COLUMNS, primary_keys=["k", "s", "d"], bucket="4").schema()
    assert key_points(where, schema.field_names, None, schema) == expected


@pytest.mark.parametrize(
    ("predicate", "expected"),
    [
        (Condition("k", "=", 3), {"k": (3,)}),
        (Condition("k", "=", 3.0), {}),
        (Condition("k", "=", True), {}),
        (Condition("k", "=", 2**40), {}),
        (Condition("v", "=", "x"), {}),
        (Condition("d", "=", dt.datetime(2025, 1, 1)), {}),
        (Condition("s", "in", ("a", None, "b", "a")), {"s": ("a", "b")}),
        (
            AllOf((Condition("k", "in", (1, 2, 3)), Condition("k", "in", (2, 3, 4)), Condition("v", ">", "a"))),
            {"k": (2, 3)},
        ),
        (AnyOf((Condition("k", "=", 1), Condition("k", "=", 2))), {"k": (1, 2)}),
        (AnyOf((Condition("k", "=", 1), Condition("v", "=", "x"))), {}),
        (Condition("k", "in", tuple(range(2000))), {}),
        (Condition("k", "!=", 1), {}),
    ],
    ids=str,
)
def test_what_a_predicate_says_of_the_key(tmp_path: Path, predicate: Predicate, expected: dict[str, Any]) -> None:
    schema = make_table(tmp_path, COLUMNS, primary_keys=["k", "s", "d"], bucket="4").schema()
    assert key_points(None, (), predicate, schema) == expected


@pytest.mark.parametrize("keyed", [True, False], ids=["primary-key", "append"])
def test_other_buckets_are_not_opened(tmp_path: Path, keyed: bool) -> None:
    kind: dict[str, Any] = {"primary_keys": ["k"]} if keyed else {"bucket_key": "k"}
    table = make_table(tmp_path, {"k": "INT NOT NULL", "v": "STRING"}, bucket="4", **kind)
    for at in range(2):
        write_arrow(table, pa.table({"k": pa.array(range(40), pa.int32()), "v": [str(at)] * 40}))
    [(_, splits)] = plan_rows(table, ReadRequest(where=K == 7)).layers
    (split,) = splits
    for folder in tmp_path.rglob("bucket-*"):
        if folder.name != f"bucket-{split.bucket.bucket}":
            for file in folder.iterdir():
                file.unlink()
    assert read_arrow(table, where=K == 7).column("v").to_pylist() == (["1"] if keyed else ["0", "1"])
    [(read, splits)] = plan_rows(table, ReadRequest(predicate=Condition("k", "=", 7))).layers
    found = [r for s in splits for b in read_split(read, s) for r in b.to_pylist()]
    assert {r["k"] for r in found} == {7}, "other keys are left out before versions are merged"
    assert len(plan_rows(table, ReadRequest(where=K.isin([7, 8, 9]))).layers[0][1]) > 1


def test_a_bucket_key_that_was_stored_in_another_type_prunes_no_bucket(tmp_path: Path) -> None:
    """We refuse such a change; had another engine made it, negative numbers would have another hash."""
    table = make_table(tmp_path, {"k": "INT NOT NULL", "v": "STRING"}, bucket="4", bucket_key="k")
    write_arrow(table, pa.table({"k": pa.array(range(-9, 9), pa.int32()), "v": ["x"] * 18}))
    plan = plan_scan(table)
    assert len(plan_read(plan, where=K == -5)[1]) == 1
    fields = tuple(replace(f, type=parse_type("BIGINT NOT NULL")) if f.name == "k" else f for f in plan.schema.fields)
    altered = replace(plan, schema=replace(plan.schema, id=1, fields=fields))
    assert len(plan_read(altered, where=K == -5)[1]) == 4


def test_a_bound_that_arrow_can_not_compare_prunes_nothing(tmp_path: Path) -> None:
    """Arrow compares a whole number and a fraction as floats, and fails on a whole number that no float is."""
    columns = {"k": "INT NOT NULL", "v": "STRING"}
    table = make_table(tmp_path, columns, primary_keys=["k"], bucket="2")
    write_arrow(table, rows_of(columns, [{"k": k, "v": f"{k}"} for k in (-3, 5)]))
    where = pc.equal(K, pa.scalar(5.0, pa.float32())) | pc.equal(K, pa.scalar(2147483647, pa.int32()))
    assert read_arrow(table, where=where).column("k").to_pylist() == [5]
