"""Buckets computed by Spark's own operators are those of the core, whatever the values; other keys go the other way."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_paimon.core.format.types import AtomicType, DataField, parse_type
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.bucket import bucket_of_rows
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.data import read_arrow
from airflow_paimon.data.files.arrow_types import arrow_type
from airflow_paimon.spark import write_table
from airflow_paimon.spark.arrow_frames import collect_arrow, frame_of_arrow
from airflow_paimon.spark.bucket_hash import can_compute, with_bucket
from tests.randomness import chance

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TYPES = ("TINYINT", "SMALLINT", "INT", "BIGINT", "DATE")
BITS = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "BIGINT": 64}
ROWS = 400


def values(kind: AtomicType, random: Random) -> list[Any]:
    if kind.root == "DATE":
        days = [dt.date.fromordinal(random.randint(1, dt.date.max.toordinal())) for _ in range(ROWS)]
        return [None if kind.nullable and random.random() < 0.1 else d for d in days]
    limit = 1 << (BITS[kind.root] - 1)
    edges = [0, 1, -1, limit - 1, -limit, limit // 2]
    drawn = [random.choice(edges) if random.random() < 0.2 else random.randrange(-limit, limit) for _ in range(ROWS)]
    return [None if kind.nullable and random.random() < 0.1 else n for n in drawn]


def test_the_buckets_are_those_of_the_core(spark: SparkSession) -> None:
    random = chance(0)
    kinds = [parse_type(f"{t}{n}") for t in TYPES for n in ("", " NOT NULL")]
    fields = tuple(DataField(i, f"c` {i}", kind) for i, kind in enumerate(kinds) if isinstance(kind, AtomicType))
    columns = [pa.array(values(f.type, random), arrow_type(f.type)) for f in fields]  # type: ignore[arg-type]
    frame = frame_of_arrow(spark, pa.table(columns, names=[f.name for f in fields]))
    keys = [(f,) for f in random.sample(fields, 4)] + [tuple(random.sample(fields, n)) for n in (2, 3, 8)]
    counts = [random.choice((1, 2, 7, 8, 1000, 32767)) for _ in keys]
    for at, (key, count) in enumerate(zip(keys, counts, strict=True)):
        assert can_compute(frame, key, "default")
        frame = with_bucket(frame, key, count, f"bucket{at}")
    found = collect_arrow(frame)
    for at, (key, count) in enumerate(zip(keys, counts, strict=True)):
        by_core = bucket_of_rows([columns[f.id] for f in key], [f.type for f in key], count)
        assert found.column(f"bucket{at}").to_pylist() == by_core.tolist(), (key, count)


def test_other_keys_are_left_to_python(spark: SparkSession) -> None:
    frame = spark.createDataFrame([], "k bigint, v string, n int, d date")
    field = {name: DataField(0, name, parse_type(kind)) for name, kind in (("k", "BIGINT"), ("v", "STRING"))}
    assert can_compute(frame, [field["k"]], "default")
    assert not can_compute(frame, [field["v"]], "default")
    assert not can_compute(frame, [field["k"]], "hive")
    assert not can_compute(frame, [DataField(0, "k", parse_type("BIGINT"), default_value="1")], "default")
    assert not can_compute(frame, [DataField(0, "k", parse_type("DATE"))], "default")  # a mistake of the caller's
    assert not can_compute(frame, [field["k"]] * 9, "default")


@pytest.mark.parametrize("key", ["BIGINT", "STRING"])
def test_a_bucket_is_written_by_one_task(spark: SparkSession, tmp_path: Path, key: str) -> None:
    columns = [("p", "DOUBLE"), ("k", f"{key} NOT NULL"), ("n", "INT")]
    table = create_table(
        str(tmp_path), "d.t", columns, partition_keys=["p"], options={"bucket": "3", "bucket-key": "k"}
    )
    partition = "CASE id % 4 WHEN 0 THEN double('-0.0') WHEN 1 THEN double('0.0') WHEN 2 THEN double('NaN') END"
    rows = spark.range(0, 240, 1, 4).selectExpr(
        f"{partition} AS p", f"cast(id AS {key}) AS k", "cast(id AS int) AS n"
    )  # fmt: skip
    write_table(rows, str(tmp_path), "d.t")
    splits = plan_scan(table).splits
    assert [(s.bucket, len(s.files)) for s in splits] == [(b, 1) for _ in range(4) for b in range(3)]
    assert sorted(read_arrow(table).column("n").to_pylist()) == list(range(240))
