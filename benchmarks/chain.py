"""Compaction of a chain table: an anchor of 10 million rows and 5 deltas of 2 %, in one warm Spark session.

The table: k BIGINT (or a composite key, or text), seq BIGINT, a INT, b DOUBLE, v STRING, dt; 8 buckets. Deltas are
updates, a tenth of them inserts, and some deletes. The baseline is the floor: the same reads and writes
in the same Spark tasks, without a merge. Each figure is the best of several runs, alternating. The environment
variables ``ROWS`` and ``RUNS`` set the number of rows and of runs.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from airflow_paimon.core.chain.state import gather_chain
from airflow_paimon.core.commit.files import CommitMessage, commit_append, drop_partitions
from airflow_paimon.core.format.binary_row import encode_row
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import Context
from airflow_paimon.core.table.bucket import bucket_of_rows
from airflow_paimon.core.table.partitions import partition_types
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.data.chain import compact_bucket as chain_compact
from airflow_paimon.data.chain.compact_bucket import (
    ChainBucketOutput,
    ChainBucketTask,
    CompactionSettings,
    compact_bucket,
    plan_buckets,
)
from airflow_paimon.data.chain.read import _ChainReader
from airflow_paimon.data.files.arrow_types import SEQUENCE_NUMBER, VALUE_KIND
from airflow_paimon.data.files.write import FileTarget, RollingWriter
from airflow_paimon.data.merge.sort_keys import sort_keys
from airflow_paimon.execution import run_operation
from airflow_paimon.spark.jobs.compact_chain_table import _groups, compact_chain_table
from airflow_paimon.spark.task_results import SCHEMA, collect, ship
from airflow_paimon.spark.tasks import map_tasks
from benchmarks.spark_read_write import Took, in_turns, report, session, timed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = int(os.environ.get("ROWS", "10000000"))
RUNS = int(os.environ.get("RUNS", "4"))
DELTAS, BUCKETS = 5, 8
MEMORY = 256 << 20
KEYS = {
    "bigint": ["k BIGINT NOT NULL"],
    "composite": ["k INT NOT NULL", "k2 BIGINT NOT NULL"],
    "string": ["k STRING NOT NULL"],
}
VALUES = pa.array([f"value-{n}" for n in range(100_000)])
FIRST, LAST = "20260201", f"202602{DELTAS + 1:02}"


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="airflow-paimon-bench-") as folder, session(Path(folder)) as spark:
        print(f"{ROWS:,} rows, {BUCKETS} buckets, {DELTAS} deltas, Spark {spark.version}, {spark.sparkContext.master}")
        for key in KEYS:
            table = make_chain(f"{folder}/{key}", key, ROWS, BUCKETS)
            bench_merge(spark, table, f"compaction, {key} key")
            if key == "bigint":
                bench_growth(spark, table, make_chain(f"{folder}/small", key, ROWS // 5, BUCKETS))
                many = make_chain(f"{folder}/many", key, ROWS, BUCKETS)
                bench_operation(spark, {f"{folder}/{key}": (table, 10), f"{folder}/many": (many, 2000)})
        for rows in (ROWS // BUCKETS, ROWS):
            table = make_chain(f"{folder}/one-{rows}", "bigint", rows, 1)
            bench_memory(table, rows)


def make_chain(warehouse: str, key: str, rows: int, buckets: int) -> Table:
    columns = [*KEYS[key], "seq BIGINT", "a INT", "b DOUBLE", "v STRING", "dt STRING NOT NULL"]
    run_operation(
        build_request(
            "create_chain_table",
            {
                "warehouse": warehouse,
                "table": "d.t",
                "column": columns,
                "primary_key": ["dt", *(c.split()[0] for c in KEYS[key])],
                "partition_key": ["dt"],
                "timestamp_pattern": "$dt",
                "timestamp_formatter": "yyyyMMdd",
                "sequence_field": ["seq"],
                "option": [f"bucket={buckets}"],
            },
        )
    )
    table = open_table(warehouse, "d.t")
    put(table.branch("snapshot"), FIRST, key, np.arange(rows), 1, buckets)
    for day in range(2, DELTAS + 2):
        numbers = np.arange(rows // 50) * (49 + day) % int(rows * 1.02)
        put(table.branch("delta"), f"202602{day:02}", key, np.unique(numbers), day, buckets)
    return table


def key_columns(key: str, numbers: np.ndarray[Any, Any]) -> dict[str, pa.Array]:
    if key == "bigint":
        return {"k": pa.array(numbers, pa.int64())}
    if key == "composite":
        return {"k": pa.array(numbers // 1000, pa.int32()), "k2": pa.array(numbers % 1000 * 7, pa.int64())}
    return {"k": pa.array([f"customer-{n:08x}" for n in numbers])}


def batch_of(key: str, numbers: np.ndarray[Any, Any], seq: int, day: str) -> pa.RecordBatch:
    count = len(numbers)
    deletes = (numbers % 97 == 0) & (seq > 1)
    return pa.RecordBatch.from_pydict(
        {
            **key_columns(key, numbers),
            "seq": pa.array(np.full(count, seq, np.int64)),
            "a": pa.array((numbers % 1000).astype(np.int32)),
            "b": pa.array(numbers / 7),
            "v": VALUES.take(pa.array(numbers % 100_000)),
            "dt": pa.repeat(day, count),
            SEQUENCE_NUMBER: pa.array(np.arange(count, dtype=np.int64)),
            VALUE_KIND: pa.array(np.where(deletes, 3, 0).astype(np.int8)),
        }
    )


def put(branch: Table, day: str, key: str, numbers: np.ndarray[Any, Any], seq: int, buckets: int) -> None:
    rows = batch_of(key, numbers, seq, day)
    messages = _messages(branch, rows, day, buckets)
    commit_append(branch, messages, planned_on=branch.latest_snapshot())


def _messages(branch: Table, rows: pa.RecordBatch, day: str, buckets: int) -> list[CommitMessage]:
    schema = branch.schema()
    keys = [schema.field(n) for n in schema.trimmed_primary_keys]
    bucket_keys = [schema.field(n) for n in schema.bucket_keys]
    buckets_of = bucket_of_rows([rows.column(f.name) for f in bucket_keys], [f.type for f in bucket_keys], buckets)
    messages = []
    for bucket in range(buckets):
        mine = rows.filter(pa.array(np.asarray(buckets_of) == bucket))
        if not mine.num_rows:
            continue
        order = np.argsort(sort_keys([[mine.column(f.name) for f in keys]])[0], kind="stable")
        writer = RollingWriter(FileTarget(store=branch.store, schema=schema, values=(day,), bucket=bucket, level=5))
        writer.write(mine.take(pa.array(order)))
        partition = encode_row((day,), partition_types(schema))
        messages.append(
            CommitMessage(partition=partition, bucket=bucket, total_buckets=buckets, new_files=writer.finish())
        )
    return messages


def floor_bucket(compaction: CompactionSettings, work: ChainBucketTask) -> ChainBucketOutput:
    """Read the inputs of a compaction, and write the anchor's rows again."""
    writer = chain_compact._writer(compaction, work)
    reader = _ChainReader(compaction.inputs, work.split)
    for section in work.split.sections:
        base, changes = reader.runs(section)
        for run in changes:
            for _ in run:
                pass
        for rows in base or ():
            writer.write(chain_compact._full_rows(compaction.schema, work.values, rows))
    partition = encode_row(work.values, partition_types(compaction.schema))
    message = CommitMessage(
        partition=partition, bucket=work.split.bucket, total_buckets=work.total_buckets, new_files=writer.finish()
    )
    return ChainBucketOutput(values=work.values, message=message)


def run_tasks(
    spark: SparkSession,
    compaction: CompactionSettings,
    works: Sequence[ChainBucketTask],
    run: Callable[[CompactionSettings, ChainBucketTask], ChainBucketOutput],
) -> list[ChainBucketOutput]:
    def make(work: ChainBucketTask) -> Iterable[pa.RecordBatch]:
        return ship(lambda: [run(compaction, work)])

    return collect(map_tasks(spark, _groups(works, spark.sparkContext.defaultParallelism), make, SCHEMA))


def planned(table: Table, memory: int = MEMORY) -> tuple[CompactionSettings, list[ChainBucketTask]]:
    deltas = tuple((f"202602{day:02}",) for day in range(2, DELTAS + 2))
    return plan_buckets(gather_chain(table), [((LAST,), (FIRST,), deltas)], memory)


def discard(table: Table, outputs: Iterable[ChainBucketOutput]) -> None:
    for output in outputs:
        for file in output.message.new_files:
            table.store.delete(f"dt={LAST}/bucket-{output.message.bucket}/{file.file_name}")


def bench_merge(spark: SparkSession, table: Table, what: str) -> None:
    compaction, works = planned(table)

    def tasks(run: Callable[[CompactionSettings, ChainBucketTask], ChainBucketOutput]) -> None:
        discard(table, run_tasks(spark, compaction, works, run))

    report(what, in_turns({"floor": lambda: tasks(floor_bucket), "merged": lambda: tasks(compact_bucket)}, RUNS))


def bench_growth(spark: SparkSession, table: Table, small: Table) -> None:
    """The same work on a fifth of the rows: time above a fifth does not depend on the number of rows."""

    def tasks(one: Table) -> None:
        discard(one, run_tasks(spark, *planned(one), compact_bucket))

    best = in_turns({f"{ROWS // 5:,} rows": lambda: tasks(small), f"{ROWS:,} rows": lambda: tasks(table)}, RUNS)
    report("compaction, growth", best)


def bench_operation(spark: SparkSession, tables: dict[str, tuple[Table, int]]) -> None:
    """The whole operation, planning and commit included, among few and many other partitions, alternating."""
    best: dict[str, Took] = {}
    for table, others in tables.values():
        put_others(table, others, "2026-01-31")
    for number in range(RUNS + 1):
        for warehouse, (table, others) in tables.items():
            took = operation(spark, table, warehouse)
            name = f"among {others:,} other partitions"
            best[name] = best[name].least(took) if number > 1 else took
    report("the whole operation", best)


def operation(spark: SparkSession, table: Table, warehouse: str) -> Took:
    values = {"warehouse": warehouse, "table": "d.t", "partition": f"dt={LAST}"}
    request = build_request("compact_chain_table", values)
    took = timed(lambda: compact_chain_table(spark, Context(request, open_table(warehouse, "d.t"), 0, 0.0), request))
    drop_partitions(table.branch("snapshot"), [{"dt": LAST}])
    return took


def put_others(table: Table, count: int, last: str) -> None:
    """Add full partitions of a few rows, for the days up to the last one."""
    branch = table.branch("snapshot")
    messages: list[CommitMessage] = []
    for day in (np.datetime64(last) - np.arange(count)).astype(str):
        text = day.replace("-", "")
        messages += _messages(branch, batch_of("bigint", np.arange(BUCKETS), 1, text), text, BUCKETS)
    commit_append(branch, messages, planned_on=branch.latest_snapshot())


def bench_memory(table: Table, rows: int) -> None:
    """Peak memory of a fresh Python process that compacts one bucket, as a Spark task does; idle: its libraries."""
    idle = in_fresh_process(peak_memory, None, None)
    for memory in (MEMORY, MEMORY // 4):
        compaction, (work,) = planned(table, memory)
        peak = in_fresh_process(peak_memory, compaction, work)
        print(
            f"one bucket of {rows:,} rows, --task-memory-mb {memory >> 20}: peak {peak:.0f} MiB (idle {idle:.0f})",
            flush=True,
        )


def in_fresh_process(function: Callable[..., float], *arguments: Any) -> float:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def peak_memory(compaction: CompactionSettings | None, work: ChainBucketTask | None) -> float:
    if compaction is not None and work is not None:
        output = compact_bucket(compaction, work)
        for file in output.message.new_files:
            compaction.store.delete(f"dt={LAST}/bucket-{output.message.bucket}/{file.file_name}")
    # not getrusage: its peak includes the process that was forked
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


if __name__ == "__main__":
    main()
