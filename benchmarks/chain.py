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
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from airflow_paimon.core.chain.state import gather_chain
from airflow_paimon.core.commit.draft import CommitMessage
from airflow_paimon.core.commit.files import commit_append, drop_partitions
from airflow_paimon.core.format.binary_row import encode_row
from airflow_paimon.core.format.manifest import DataFile
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import Context
from airflow_paimon.core.requests.requests import CompactChainTable
from airflow_paimon.core.store import Store
from airflow_paimon.core.table.bucket import bucket_of_rows
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.data.chain.compact_bucket import ChainBucketTask, plan_buckets
from airflow_paimon.data.chain.read import _ChainReader
from airflow_paimon.data.compaction_tasks import CompactionTask, TaskOutput
from airflow_paimon.data.files.arrow_types import SEQUENCE_NUMBER, VALUE_KIND
from airflow_paimon.data.files.write import FileTarget, RollingWriter
from airflow_paimon.data.merge.sort_keys import sort_keys
from airflow_paimon.execution import run_operation
from airflow_paimon.spark.compaction import in_tasks, rewrite_files
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
        partition = encode_row((day,), schema.partition_types)
        messages.append(
            CommitMessage(partition=partition, bucket=bucket, total_buckets=buckets, new_files=writer.finish())
        )
    return messages


@dataclass(frozen=True)
class FloorTask:
    """Reads the inputs of a compaction, and writes the anchor's rows again."""

    work: ChainBucketTask

    @property
    def files(self) -> Sequence[DataFile]:
        return self.work.files

    def run(self) -> TaskOutput:
        work = self.work
        writer, reader = work._writer(), _ChainReader(work.inputs, work.split)
        for section in work.split.sections:
            base, changes = reader.runs(section)
            for run in changes:
                for _ in run:
                    pass
            for rows in base or ():
                writer.write(work._full_rows(rows))
        message = CommitMessage(
            partition=encode_row(work.values, work.schema.partition_types),
            bucket=work.split.bucket,
            total_buckets=work.total_buckets,
            new_files=writer.finish(),
        )
        return TaskOutput(messages=(message,), rows=0, deleted_rows=0)


def planned(table: Table, memory: int = MEMORY) -> list[ChainBucketTask]:
    deltas = tuple((f"202602{day:02}",) for day in range(2, DELTAS + 2))
    return plan_buckets(gather_chain(table), [((LAST,), (FIRST,), deltas)], memory)


def run_and_discard(spark: SparkSession, table: Table, works: Sequence[CompactionTask]) -> None:
    for output in in_tasks(spark, table.name)(works):
        discard(table.store, output)


def discard(store: Store, output: TaskOutput) -> None:
    for message in output.messages:
        for file in message.new_files:
            store.delete(f"dt={LAST}/bucket-{message.bucket}/{file.file_name}")


def bench_merge(spark: SparkSession, table: Table, what: str) -> None:
    works = planned(table)
    floor = [FloorTask(work) for work in works]

    def turn(tasks: Sequence[CompactionTask]) -> Callable[[], None]:
        return lambda: run_and_discard(spark, table, tasks)

    report(what, in_turns({"floor": turn(floor), "merged": turn(works)}, RUNS))


def bench_growth(spark: SparkSession, table: Table, small: Table) -> None:
    """The same work on a fifth of the rows: time above a fifth does not depend on the number of rows."""

    def tasks(one: Table) -> None:
        run_and_discard(spark, one, planned(one))

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
    assert isinstance(request, CompactChainTable)
    took = timed(lambda: rewrite_files(spark, Context(request, open_table(warehouse, "d.t"), 0, 0.0), request))
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
    idle = in_fresh_process(peak_memory, None)
    for memory in (MEMORY, MEMORY // 4):
        (work,) = planned(table, memory)
        peak = in_fresh_process(peak_memory, work)
        print(
            f"one bucket of {rows:,} rows, --task-memory-mb {memory >> 20}: peak {peak:.0f} MiB (idle {idle:.0f})",
            flush=True,
        )


def in_fresh_process(function: Callable[..., float], *arguments: Any) -> float:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def peak_memory(work: ChainBucketTask | None) -> float:
    if work is not None:
        discard(work.store, work.run())
    # not getrusage: its peak includes the process that was forked
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


if __name__ == "__main__":
    from benchmarks import chain

    chain.main()  # not of this module: Spark's workers couldn't import the classes of its tasks
