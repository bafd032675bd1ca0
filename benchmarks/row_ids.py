"""Row ids: what reading them costs, and compaction of small files beside reading and writing the same rows.

10 million rows (k BIGINT, a INT, b DOUBLE, v STRING) of an append table with row tracking, in 8 files, in this process
and in Spark, there also beside Spark's own positions of rows and one more number, without which there are no ids and
versions (the floor); and 200 files of 50,000 rows each that become large ones, beside reading all of them and writing
them as new rows (the floor). The environment variable ``ROWS`` sets the number of rows; runs alternate, CPU times of
this process are printed as well.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import open_context
from airflow_paimon.core.requests.requests import Compact
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.data import read_arrow, write_arrow
from airflow_paimon.data.compact import compact
from airflow_paimon.data.planner import plan_rows
from airflow_paimon.data.read import read_split
from airflow_paimon.data.write import plan_write, write_rows
from airflow_paimon.spark import read_table
from airflow_paimon.spark.row_positions import ROW_INDEX
from benchmarks.spark_read_write import ROWS, drain, in_turns, report, session, with_positions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RUNS, SPARK_RUNS = 5, 12
FILES = 8
SMALL_FILES, SMALL_ROWS = 200, 50_000
COLUMNS = [("k", "BIGINT"), ("a", "INT"), ("b", "DOUBLE"), ("v", "STRING")]
IDS = ("_ROW_ID", "_SEQUENCE_NUMBER")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="airflow-paimon-bench-") as folder:
        warehouse = f"{folder}/warehouse"
        table = create_table(warehouse, "d.t", COLUMNS, options={"bucket": "-1", "row-tracking.enabled": "true"})
        for number in range(FILES):
            write_arrow(table, rows(ROWS // FILES, ROWS // FILES * number))
        print(f"{ROWS:,} rows, {FILES} files")
        with session(Path(folder)) as spark:
            _reads(spark, warehouse, table)
        _compaction(folder)


def rows(count: int, start: int) -> pa.Table:
    keys = pa.array(range(start, start + count), pa.int64())
    return pa.table(
        {
            "k": keys,
            "a": pc.cast(pc.bit_wise_and(keys, 1023), pa.int32()),
            "b": pc.divide(pc.cast(keys, pa.float64()), 7.0),
            "v": pc.binary_join_element_wise("value ", pc.cast(pc.multiply(keys, 2654435761), pa.string()), ""),
        }
    )


def _reads(spark: SparkSession, warehouse: str, table: Table) -> None:
    every = [n for n, _ in COLUMNS]
    positions = with_positions(spark, f"{table.store.uri}/bucket-0")
    report(
        "reading",
        in_turns(
            {
                "read_arrow": lambda: _count(read_arrow(table)),
                "read_arrow with ids": lambda: _count(read_arrow(table, columns=[*every, *IDS])),
            },
            RUNS,
        ),
    )
    report(
        "reading in Spark",
        in_turns(
            {
                "read_table": lambda: drain(read_table(spark, warehouse, "d.t")),
                "Spark's positions of rows and one more number (floor)": lambda: drain(
                    positions().selectExpr(*every, f"{ROW_INDEX.name} + 1", "cast(a AS BIGINT)")
                ),
                "read_table with ids": lambda: drain(read_table(spark, warehouse, "d.t", columns=[*every, *IDS])),
            },
            SPARK_RUNS,
        ),
    )


def _count(found: pa.Table) -> None:
    assert found.num_rows == ROWS // FILES * FILES


def _compaction(folder: str) -> None:
    table = create_table(f"{folder}/small", "d.t", COLUMNS, options={"bucket": "-1", "row-tracking.enabled": "true"})
    for number in range(SMALL_FILES):
        write_arrow(table, rows(SMALL_ROWS, SMALL_ROWS * number))
    figures: dict[str, list[tuple[float, float]]] = {"read and write (floor)": [], "compact": []}
    for run in range(3):
        for name, work in (("read and write (floor)", _rewrite), ("compact", _compact)):
            copy = Path(folder) / f"copy-{run}-{name[:4]}"
            shutil.copytree(f"{folder}/small", copy)
            began, cpu = time.perf_counter(), time.process_time()
            work(str(copy))
            figures[name].append((time.perf_counter() - began, time.process_time() - cpu))
            shutil.rmtree(copy)
    print(f"compaction of {SMALL_FILES} files, {SMALL_FILES * SMALL_ROWS:,} rows")
    floor = min(figures["read and write (floor)"])
    for name, found in figures.items():
        wall, used = min(found)
        print(f"  {name:30} {wall:6.2f} s  {used:6.2f} s CPU  x{wall / floor[0]:.2f}  CPU x{used / floor[1]:.2f}")


def _rewrite(warehouse: str) -> None:
    """Read all files and write their rows into large ones, without ids and without a commit."""
    table = open_table(warehouse, "d.t")
    [(read, splits)] = plan_rows(table).layers
    messages = write_rows(plan_write(table), (b for s in splits for b in read_split(read, s)))
    assert sum(f.row_count for m in messages for f in m.new_files) == SMALL_FILES * SMALL_ROWS


def _compact(warehouse: str) -> None:
    request = build_request("compact", {"warehouse": warehouse, "table": "d.t"})
    assert isinstance(request, Compact)
    result = compact(open_context(request), request)
    assert result.details["rows"] == SMALL_FILES * SMALL_ROWS


if __name__ == "__main__":
    main()
