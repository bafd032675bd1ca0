"""Golden tables through Spark: the rows that Apache Paimon's own connector reads, whichever way the files go."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from airflow_paimon.core.format.types import DataField
from airflow_paimon.core.table.table import open_table
from airflow_paimon.spark import read_table
from airflow_paimon.spark.spark_types import shipped_schema
from tests.golden.test_merge_engines import entry_of
from tests.golden.test_reads import CASES
from tests.oracles.canonical import assert_same_rows
from tests.oracles.golden import Filter, GoldenCase
from tests.randomness import every

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Those that take different ways through Spark; `tests/golden` reads all of them, in Arrow.
NAMES = [
    "types_append_parquet",
    "types_append_orc",
    "types_pk_parquet",
    "types_pk_orc",
    "pk_kts",
    "part_string_new",
    "part_timestamp_legacy",
    "part_timestamp_new",
    "part_decimal_new",
    "part_two",
    "evo_append_v1",
    "evo_append",
    "evo_pk",
    "br_pk_tag_t2",
    "br_pk_fix",
    "br_append_main_v3",
    "seq_descending",
    "ignore_delete",
    "dv",
    "dva",
    "pu",
    "agg",
    "fr",
    "fixed_append",
    "rt",
    "fb",
    "life_rolled",
    "ch_group_all",
    "ch_delete_filter",
    "ch_partial_all",
]
READ = [c for c in CASES if c.archive == "paimon-2.0.0" and c.name in every(3, NAMES)]


@pytest.mark.parametrize("case", READ or [None], ids=lambda case: case.id if case else "no-golden-tables")
@pytest.mark.every(2)
def test_golden_read(spark: SparkSession, golden: Callable[[str], Path], case: GoldenCase | None) -> None:
    archive = golden(case.archive if case else "paimon-2.0.0")
    assert case is not None
    table = open_table(str(archive / "wh"), case.table, branch=case.branch)
    columns = None
    if case.columns is not None:
        columns = [n for one in case.columns for n in (table.schema().field_names if one == "*" else (one,))]
    frame = read_table(
        spark,
        str(archive / "wh"),
        case.table,
        case.branch,
        version=case.version,
        columns=columns,
        where=_sql(case.where),
    )
    expected = pq.read_table(archive / case.expected)
    assert_same_rows(frame.toArrow(), _as_spark_holds_it(expected, table.schema().fields))


# every engine, with and without deletion vectors, the look-up rule, sequence groups, rows that wait for a compaction
MERGED = ("d.m1", "d.m6", "d.m9", "d.m14", "d.m18", "d.m23", "d.m33")


def test_tables_of_all_merge_engines(spark: SparkSession, golden: Callable[[str], Path]) -> None:
    folder = golden("merge-fuzz")
    for name in MERGED:
        (read,) = [r for r in entry_of(folder, name)["reads"] if r["branch"] == "main" and r["version"] is None]
        expected = pq.read_table(folder / read["expected"])
        frame = read_table(spark, str(folder / "wh"), name)
        assert_same_rows(frame.toArrow(), expected)
        filtered = read_table(spark, str(folder / "wh"), name, where="c0 is not null and k > 3")
        wanted = (pc.field("k") > 3) & pc.field("c0").is_valid()
        assert_same_rows(filtered.toArrow(), expected.filter(wanted))


def _sql(where: tuple[Filter, ...]) -> str | None:
    return " and ".join(f"`{c}` {op} {value!r}" for c, op, value in where) or None


def _as_spark_holds_it(rows: pa.Table, fields: tuple[DataField, ...]) -> pa.Table:
    """Spark cuts timestamps off behind the microsecond and knows TIME as an INT."""
    shipped = {f.name: f.type for f in shipped_schema(fields)}
    columns = {}
    for name in rows.column_names:
        column = rows.column(name)
        target = shipped.get(name)
        if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
            column = pc.floor_temporal(column, unit="microsecond")
        if pa.types.is_time(column.type) and target == pa.int32():
            column = column.cast(pa.time32("ms")).cast(pa.int32())
        columns[name] = column
    return pa.table(columns)
