"""Full compaction of a primary-key table in Spark, compared with its floor: the same reads and writes in the same
tasks, without merging. And the whole operation, compared with the connector's ``CALL sys.compact``.

8 buckets of rows (k BIGINT, seq BIGINT, a INT, b DOUBLE, v STRING) and five upserts of 2 % each in level 0; for the
connector's sake `write-only`. After each run its files and its snapshots are removed. The connector (0.9.0, on Spark
3.5 in its own JVM) runs if ``make oracles`` has prepared it. The environment variable ``ROWS`` sets the number of rows.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_paimon.core.commit.draft import CommitMessage
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.requests import Compact
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import write_arrow
from airflow_paimon.data.compact_keyed import TASK_BYTES, KeyedCompactionTask, plan_keyed
from airflow_paimon.data.compaction_tasks import TaskOutput
from airflow_paimon.data.files.write import ROW_GROUP_BYTES, RollingWriter
from airflow_paimon.data.merge.sections import Section
from airflow_paimon.data.read import read_versions
from airflow_paimon.data.read_splits import ReadSplit
from airflow_paimon.spark.compaction import _groups
from airflow_paimon.spark.jobs import run_spark_operation
from airflow_paimon.spark.tasks import SCHEMA, collect, cores_of, map_tasks, ship
from benchmarks._connector import connector
from benchmarks.spark_read_write import BUCKETS, DELTAS, ROWS, in_turns, report, rows, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RUNS = 3
COLUMNS = [("k", "BIGINT NOT NULL"), ("seq", "BIGINT"), ("a", "INT"), ("b", "DOUBLE"), ("v", "STRING")]
ENGINES = {
    "deduplicate": {},
    "partial-update": {"merge-engine": "partial-update"},
    "aggregation": {"merge-engine": "aggregation", "fields.a.aggregate-function": "sum"},
}


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="airflow-paimon-bench-") as folder, session(Path(folder)) as spark:
        warehouse = f"{folder}/warehouse"
        tables = {engine: _make(spark, warehouse, engine) for engine in ENGINES}
        for engine, table in tables.items():
            _bench_tasks(spark, table, engine)
        with connector(warehouse, folder) as run:
            _bench_operation(spark, warehouse, tables["deduplicate"], run)


def _make(spark: SparkSession, warehouse: str, engine: str) -> Table:
    options = {"bucket": str(BUCKETS), "write-only": "true", **ENGINES[engine]}
    name = f"d.{engine.replace('-', '_')}"
    table = create_table(warehouse, name, COLUMNS, primary_keys=["k"], options=options)
    write_arrow(table, rows(spark, ROWS).drop("dt").toArrow(), mode="overwrite")
    for number in range(DELTAS):
        write_arrow(table, rows(spark, ROWS // 50, step=49 + number, seq=number + 2).drop("dt").toArrow())
    return table


def _bench_tasks(spark: SparkSession, table: Table, engine: str) -> None:
    request = build_request("compact", {"warehouse": "/", "table": table.name})
    assert isinstance(request, Compact)
    planned = plan_keyed(table, request, None)
    groups: Sequence[Sequence[Any]] = _groups(planned.tasks(planned.groups), cores_of(spark))

    def tasks(run: Callable[[KeyedCompactionTask], TaskOutput]) -> None:
        frame = map_tasks(spark, groups, lambda work: ship(lambda: [run(work)]), SCHEMA)
        for message in (m for output in collect(frame) for m in output.messages):
            for file in message.new_files:
                table.store.delete(f"bucket-{message.bucket}/{file.file_name}")

    works: dict[str, Callable[[], None]] = {
        "floor": lambda: tasks(_floor),
        "merged": lambda: tasks(KeyedCompactionTask.run),
    }
    report(f"compaction tasks, {engine}", in_turns(works, RUNS))


def _floor(work: KeyedCompactionTask) -> TaskOutput:
    """Read the runs of each section one by one, and write the rows of the largest again."""
    writer = RollingWriter(
        work.write.target(work.split.bucket, level=work.top), group_bytes=min(ROW_GROUP_BYTES, TASK_BYTES // 4)
    )
    for section in work.split.sections:
        for run in section.runs:
            alone = ReadSplit(bucket=work.split.bucket, sections=(Section((run,)),))
            is_base = run == max(section.runs, key=lambda r: sum(f.row_count for f in r))
            for batch in read_versions(work.read, alone):
                if is_base:
                    writer.write(work._stored(batch))
    bucket = work.split.bucket
    message = CommitMessage(
        partition=bucket.partition, bucket=bucket.bucket, total_buckets=bucket.total_buckets, new_files=writer.finish()
    )
    return TaskOutput(messages=(message,), rows=0, deleted_rows=0)


def _bench_operation(
    spark: SparkSession, warehouse: str, table: Table, connector_runs: Callable[[str], None] | None
) -> None:
    before = set(table.store.walk(""))

    def again(work: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            work()
            _remove(table, sorted(set(table.store.walk("")) - before))

        return run

    works: dict[str, Callable[[], None]] = {}
    if connector_runs is not None:
        call = f"CALL paimon.sys.compact(`table` => '{table.name}')"
        works["connector"] = again(lambda: connector_runs(call))
    request = build_request("compact", {"warehouse": warehouse, "table": table.name})
    works["compact"] = again(lambda: run_spark_operation(spark, request))
    report("the whole operation", in_turns(works, RUNS))


def _remove(table: Table, paths: Sequence[str]) -> None:
    assert any(p.startswith("snapshot/snapshot-") for p in paths), "nothing was compacted"
    for path in [*paths, "snapshot/LATEST"]:
        table.store.delete(path)


if __name__ == "__main__":
    main()
