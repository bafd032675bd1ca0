"""Reading and writing 10 million rows in Spark, compared with plain Parquet of the same bytes in the same session.

The table: k BIGINT, seq BIGINT, a INT, b DOUBLE, v STRING, dt; primary key (dt, k), 8 buckets, one partition; for the
append write no keys, no buckets and no partitions. Each figure is the best of several alternating runs. The environment
variable ``ROWS`` sets the number of rows.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.data_file_paths import data_file_path
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table
from airflow_paimon.data.files.read import BATCH_ROWS
from airflow_paimon.spark import read_table, register, write_table
from airflow_paimon.spark.java import find_java
from airflow_paimon.spark.row_positions import ROW_INDEX
from airflow_paimon.spark.source_api import DataSource, DataSourceReader, InputPartition
from airflow_paimon.spark.spark_types import spark_schema
from airflow_paimon.spark.tasks import forgetting_zip_importers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

ROWS = int(os.environ.get("ROWS", "10000000"))
DELTAS = 5
BUCKETS = 8
READS, WRITES = 6, 3

Work = Callable[[], object]


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="airflow-paimon-bench-") as folder, session(Path(folder)) as spark:
        warehouse = f"{folder}/warehouse"
        table = make_table(warehouse)
        source = make_source(spark, f"{folder}/source")
        print(f"{ROWS:,} rows, {BUCKETS} buckets, Spark {spark.version}, {spark.sparkContext.master}")
        bench_write(spark, source, warehouse, folder)
        bench_read(spark, table, warehouse, "nothing to merge")
        for number in range(DELTAS):
            delta = rows(spark, ROWS // 50, step=49 + number, seq=number + 2)
            write_table(delta, warehouse, "d.t")
        bench_read(spark, table, warehouse, f"with {DELTAS} upserts of {ROWS // 50:,} rows to merge")


@contextmanager
def session(folder: Path) -> Iterator[SparkSession]:
    home = find_java(Path(__file__).parent.parent / ".java")
    if home is not None:
        os.environ["JAVA_HOME"] = str(home)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]")
        .appName("airflow-paimon bench")
        .config("spark.driver.memory", "3g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.local.dir", str(folder / "local"))
        .config("spark.sql.shuffle.partitions", str(BUCKETS))
        .getOrCreate()
    )
    try:
        yield spark
    finally:
        spark.stop()


COLUMNS = [("k", "BIGINT NOT NULL"), ("seq", "BIGINT"), ("a", "INT"), ("b", "DOUBLE"), ("v", "STRING"),
           ("dt", "STRING NOT NULL")]  # fmt: skip


def make_table(warehouse: str) -> Table:
    return create_table(
        warehouse,
        "d.t",
        COLUMNS,
        partition_keys=["dt"],
        primary_keys=["dt", "k"],
        options={"bucket": str(BUCKETS), "sequence.field": "seq"},
    )


def rows(spark: SparkSession, count: int, step: int = 1, seq: int = 1) -> DataFrame:
    return spark.range(0, count * step, step, 4).selectExpr(
        "id as k", f"{seq}L as seq", "cast(id % 1000 as int) as a", "id / 7 as b", "concat('value-', id % 100000) as v",
        "'20250808' as dt",
    )  # fmt: skip


def make_source(spark: SparkSession, path: str) -> DataFrame:
    from pyspark.sql import functions as sf

    rows(spark, ROWS).orderBy(sf.hash("k")).write.parquet(path)
    return spark.read.parquet(path)


def bench_write(spark: SparkSession, source: DataFrame, warehouse: str, folder: str) -> None:
    def plain() -> None:
        placed = source.repartition(BUCKETS, "k").sortWithinPartitions("k")
        placed.write.mode("overwrite").option("compression", "zstd").parquet(f"{folder}/plain")

    def ours() -> None:
        write_table(source, warehouse, "d.t", mode="overwrite")

    def plain_append() -> None:
        source.write.mode("overwrite").option("compression", "zstd").parquet(f"{folder}/appended")

    best = in_turns({"plain parquet, shuffled and sorted": plain, "write_table": ours}, WRITES)
    report("write", best)
    create_table(warehouse, "d.plain", COLUMNS)
    appending = {"plain parquet": plain_append, "write_table": lambda: write_table(source, warehouse, "d.plain")}
    report("append write, no keys", in_turns(appending, WRITES))


def bench_read(spark: SparkSession, table: Table, warehouse: str, what: str) -> None:
    plan = plan_scan(table)
    files = [
        table.store.uri.removeprefix("file://") + "/" + data_file_path(plan.schema, s.values, s.bucket, f)
        for s in plan.splits
        for f in s.files
    ]
    names = list(plan.schema.field_names)
    register(spark)
    spark.dataSource.register(pyarrow_source(spark_schema(plan.schema.fields)))
    options = {"warehouse": warehouse, "table": "d.t"}
    best = in_turns(
        {
            f"plain parquet, {len(files)} files": lambda: drain(spark.read.parquet(*files).select(*names)),
            "read_table": lambda: drain(read_table(spark, warehouse, "d.t")),
            "data source": lambda: drain(spark.read.format("airflow_paimon").options(**options).load()),
            "the least of a Python data source": lambda: drain(spark.read.format("floor").load("\n".join(files))),
        },
        READS,
    )
    report(f"read, {what}", best)


def pyarrow_source(schema: StructType) -> type[DataSource]:
    """Return a data source that hands over what pyarrow reads of Parquet files, and does nothing else.

    Defined here, so that Spark sends it to its workers, which can't import a benchmark.
    """
    names = schema.fieldNames()

    class Reader(DataSourceReader):
        def __init__(self, files: list[str]) -> None:
            self.files = files

        def partitions(self) -> list[InputPartition]:
            with forgetting_zip_importers():
                return [InputPartition(file) for file in self.files]

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            with forgetting_zip_importers():
                yield from pq.ParquetFile(partition.value).iter_batches(BATCH_ROWS, columns=names, use_threads=False)

    class Floor(DataSource):
        @classmethod
        def name(cls) -> str:
            return "floor"

        def schema(self) -> StructType:
            with forgetting_zip_importers():
                return schema

        def reader(self, schema: StructType) -> DataSourceReader:
            return Reader(self.options["path"].split("\n"))

    return Floor


def with_positions(spark: SparkSession, path: str) -> Callable[[], DataFrame]:
    """Return what reads Parquet files with the position of each row in its file, which Spark's reader fills in."""
    schema = spark.read.parquet(path).schema.add(ROW_INDEX.name, "long")
    return lambda: spark.read.schema(schema).parquet(path)


def drain(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


@dataclass(frozen=True)
class Took:
    """Seconds: the least of several runs. ``cpu``: of this process, its JVM and Spark's Python workers together."""

    wall: float = float("inf")
    cpu: float = float("inf")

    def least(self, other: Took) -> Took:
        return Took(min(self.wall, other.wall), min(self.cpu, other.cpu))


def in_turns(works: Mapping[str, Work], runs: int) -> dict[str, Took]:
    """Return the best times of each; the first run of each is a warm-up and not counted."""
    best = dict.fromkeys(works, Took())
    for number in range(runs + 1):
        for name, work in works.items():
            took = timed(work)
            best[name] = best[name].least(took) if number else best[name]
    return best


def timed(work: Work) -> Took:
    started, used = time.perf_counter(), cpu_of_processes()
    work()
    return Took(time.perf_counter() - started, cpu_of_processes() - used)


def cpu_of_processes() -> float:
    """CPU seconds that this process, its children and theirs have used so far."""
    stats = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            stats.append((int(path.parent.name), path.read_text().rpartition(")")[2].split()))
    family = {os.getpid()}
    for _ in stats:
        more = {number for number, fields in stats if int(fields[1]) in family} - family
        family |= more
        if not more:
            break
    ticks = sum(int(t) for number, fields in stats if number in family for t in fields[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def report(what: str, best: Mapping[str, Took]) -> None:
    """Print the times, and their ratios to the first one's."""
    base = next(iter(best.values()))
    for name, took in best.items():
        ratios = f"{took.wall / base.wall:.2f}x, CPU {took.cpu:.2f} s, {took.cpu / max(base.cpu, 0.01):.2f}x"
        print(f"{what}: {name}: {took.wall:.2f} s, {ratios}", flush=True)


if __name__ == "__main__":
    main()
