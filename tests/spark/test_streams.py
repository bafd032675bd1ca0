"""Structured Streaming from and into tables and branches: one Spark, real queries, real checkpoints."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.functions import lit

from airflow_paimon.core.commit.stream_batch import ROWS_PROPERTY
from airflow_paimon.core.errors import InvalidInputError, UnsafeOperationError
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.streaming.consumers import keep_from
from airflow_paimon.core.table.consumers import find_consumer
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import read_arrow, write_arrow
from airflow_paimon.data.files.conform import conform_rows
from airflow_paimon.data.write import plan_write, write_rows
from airflow_paimon.spark import register
from airflow_paimon.spark.datasource import PaimonDataSource
from airflow_paimon.spark.source_api import DataSourceStreamReader, ReadAllAvailable, ReadMaxFiles
from airflow_paimon.spark.streaming import source as source_module
from airflow_paimon.spark.streaming.catch_up import catch_up
from airflow_paimon.spark.streaming.sink import commit_batch
from airflow_paimon.spark.streaming.source import PaimonStreamReader, parse_stream_options
from tests import stream_kills
from tests.core.tables import run
from tests.randomness import chance

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


ADMITS = hasattr(DataSourceStreamReader, "getDefaultReadLimit")
"""Whether Spark tells a source where a batch starts and how much it may take: since 4.2."""


def rows(*ids: int, kinds: list[str] | None = None, v: str = "a") -> pa.Table:
    columns: dict[str, Any] = {"k": pa.array(ids, pa.int64()), "v": [f"{v}{i}" for i in ids]}
    return pa.table(columns if kinds is None else {**columns, "_row_kind": kinds})


def keys(table: Table) -> list[int]:
    return sorted(read_arrow(table).column("k").to_pylist())


LATE = "Python worker failed to connect back"
"""Spark gives a source's Python 10 s to start, which it doesn't do on a busy machine: the query is started again."""


class Pipe:
    """A query from ``d.src`` into ``d.dst``, run until it has caught up once."""

    def __init__(self, spark: SparkSession, folder: Path, name: str = "p") -> None:
        register(spark)
        self.spark, self.folder = spark, folder
        self.checkpoint = folder / f"checkpoint-{name}"
        self.read: dict[str, str] = {}
        self.write: dict[str, str] = {}
        self.change: Callable[[DataFrame], DataFrame] = lambda frame: frame

    def start(self) -> StreamingQuery:
        source = {"warehouse": str(self.folder), "table": "d.src", **self.read}
        target = {"warehouse": str(self.folder), "table": "d.dst", **self.write}
        frame = self.spark.readStream.format("airflow_paimon").options(**source).load()
        writer = self.change(frame).writeStream.format("airflow_paimon").options(**target)
        return writer.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True).start()

    def run(self) -> None:
        for _ in range(20):
            query = self.start()
            try:
                assert query.awaitTermination(300)
                return
            except StreamingQueryException as error:
                if LATE not in str(error):
                    raise
            finally:
                query.stop()
        raise AssertionError(LATE)

    def batches(self) -> list[int]:
        return sorted(int(f.name) for f in (self.checkpoint / "commits").iterdir() if f.name.isdigit())

    def forget_last_commit(self) -> None:
        """Leave the checkpoint as after a crash between the sink's commit and Spark's own log."""
        last = self.batches()[-1]
        (self.checkpoint / "commits" / str(last)).unlink()
        (self.checkpoint / "commits" / f".{last}.crc").unlink(missing_ok=True)


def test_an_append_stream_into_a_branch(spark: SparkSession, tmp_path: Path) -> None:
    columns = [("k", "BIGINT"), ("v", "STRING")]
    source = create_table(str(tmp_path), "d.src", columns)
    target = create_table(str(tmp_path), "d.dst", columns)
    write_arrow(source, rows(1, 2))
    write_arrow(target, rows(0))
    run(target, "create_tag", tag="t")
    run(target, "create_branch", branch="b", tag="t")
    branch = target.branch("b")
    pipe = Pipe(spark, tmp_path)
    pipe.write["branch"] = "b"
    pipe.read["consumer-id"] = "c"
    pipe.run()
    assert keys(branch) == [0, 1, 2]
    head = branch.latest_snapshot()
    assert head is not None
    assert (head.commit_identifier, len(head.commit_user)) == (0, 36)
    pipe.forget_last_commit()
    pipe.run()
    assert branch.latest_snapshot_id() == head.id, "the repeated batch found its commit"
    write_arrow(source, rows(3))
    write_arrow(source, rows(4))
    pipe.run()
    assert (keys(branch), keys(target)) == ([0, 1, 2, 3, 4], [0])
    assert pipe.batches() == [0, 1]


@pytest.mark.thorough
def test_a_checkpoint_of_one_batch_ago_loses_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    """Restored, it lacks the last batch, which Spark plans again with what has come since."""
    columns = [("k", "BIGINT"), ("v", "STRING")]
    src = create_table(str(tmp_path), "d.src", columns)
    dst = create_table(str(tmp_path), "d.dst", columns)
    write_arrow(src, rows(1))
    pipe = Pipe(spark, tmp_path)
    pipe.run()
    write_arrow(src, rows(2))
    pipe.run()
    last = pipe.batches()[-1]
    for folder in ("commits", "offsets"):
        (pipe.checkpoint / folder / str(last)).unlink()
        (pipe.checkpoint / folder / f".{last}.crc").unlink(missing_ok=True)
    write_arrow(src, rows(3))
    with pytest.raises(Exception, match="repeats batch 1 with 2 rows, but its commit, snapshot 2, has 1"):
        pipe.run()
    assert keys(dst) == [1, 2]


@pytest.mark.thorough
def test_a_repeated_batch_with_other_rows_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """As many as before, but with other values: an aggregation whose checkpoint is older, or random numbers."""
    columns = [("k", "BIGINT"), ("v", "STRING")]
    src = create_table(str(tmp_path), "d.src", columns)
    dst = create_table(str(tmp_path), "d.dst", columns)
    write_arrow(src, rows(1, 2, 3))
    pipe = Pipe(spark, tmp_path)
    pipe.change = lambda frame: frame.withColumn("v", lit("first"))
    pipe.run()
    pipe.forget_last_commit()
    pipe.run()
    assert keys(dst) == [1, 2, 3], "the same rows: it is in"
    pipe.change = lambda frame: frame.withColumn("v", lit("other"))
    pipe.forget_last_commit()
    with pytest.raises(Exception, match="repeats batch 0 with other rows than its commit, snapshot 1"):
        pipe.run()
    pipe.write = {"sink.other-rows-when-repeated": "true"}
    pipe.run()
    assert read_arrow(dst).column("v").to_pylist() == ["first"] * 3


def test_a_batch_records_the_digest_of_its_rows(tmp_path: Path) -> None:
    """Without a query: what the driver does with the files of the tasks."""
    table = create_table(str(tmp_path), "d.t", [("k", "BIGINT"), ("v", "STRING")])

    def commit(content: str | None) -> None:
        write = plan_write(table)
        files = write_rows(write, [conform_rows(rows(1, 2), write.schema, table.label)])
        commit_batch(table, write, files, "query", 0, content)

    commit("a")
    commit("a")
    commit(None)
    with pytest.raises(UnsafeOperationError, match="with other rows than its commit"):
        commit("b")
    (snapshot,) = table.snapshots()
    assert snapshot.properties[ROWS_PROPERTY] == "a"
    assert keys(table) == [1, 2]


@pytest.mark.thorough
def test_changes_of_a_keyed_table_in_parts(spark: SparkSession, tmp_path: Path) -> None:
    """Upserts, deletes and an overwrite; at most one file in a batch; a batch that fails between commit and log."""
    columns = [("k", "BIGINT NOT NULL"), ("v", "STRING")]
    both = [
        create_table(str(tmp_path), f"d.{n}", columns, primary_keys=["k"], options={"bucket": "2"})
        for n in ("src", "dst")
    ]
    source, target = both
    write_arrow(source, rows(*range(6)))
    run(source, "create_tag", tag="start")
    pipe = Pipe(spark, tmp_path)
    pipe.read = {"row-kind": "true", "streaming-read-overwrite": "true", "scan.tag-name": "start"}
    pipe.read["maxFilesPerTrigger"] = "1"
    pipe.run()
    # since Spark 4.2 a run goes on until nothing is new
    assert pipe.batches() == ([0, 1] if ADMITS else [0]), "a bucket each"
    assert catch_up(pipe.start, 240) == (0 if ADMITS else 1)
    assert pipe.batches() == [0, 1]
    assert read_arrow(target).sort_by("k") == read_arrow(source).sort_by("k")
    write_arrow(source, rows(1, 2, kinds=["+U", "-D"], v="b"))
    write_arrow(source, rows(8, 9, v="c"), mode="overwrite")
    pipe.read.pop("maxFilesPerTrigger")
    pipe.run()
    pipe.forget_last_commit()
    head = target.latest_snapshot_id()
    pipe.run()
    assert target.latest_snapshot_id() == head
    assert read_arrow(target).sort_by("k") == read_arrow(source).sort_by("k") == rows(8, 9, v="c")


def test_options(tmp_path: Path) -> None:
    """What Spark asks of the source, without its processes."""
    columns = [("k", "BIGINT NOT NULL"), ("v", "STRING")]
    create_table(str(tmp_path), "d.src", columns, primary_keys=["k"], options={"bucket": "1"})

    def source(**options: str) -> PaimonDataSource:
        return PaimonDataSource({"warehouse": str(tmp_path), "table": "d.src", **options})

    def load(**options: str) -> list[str]:
        found = source(**options)
        schema = found.schema()
        found.streamReader(schema)
        return schema.fieldNames()

    assert load(**{"row-kind": "true"}) == ["k", "v", "_row_kind"]
    assert load(columns="v", **{"row-kind": "true"}) == ["v", "_row_kind"]
    with pytest.raises(InvalidInputError, match="set the option row-kind=true"):
        load()
    with pytest.raises(InvalidInputError, match="as the source of a stream has no option 'where'"):
        load(where="k > 1", **{"row-kind": "true"})
    with pytest.raises(InvalidInputError, match=r"has no option 'scan\.mode'"):
        source(**{"scan.mode": "latest"}).reader(source().schema())
    with pytest.raises(InvalidInputError, match="as the target of a stream has no option 'mode'"):
        source(mode="overwrite").streamWriter(source().schema(), False)
    with pytest.raises(InvalidInputError, match="not complete: replace the table in foreachBatch"):
        source().streamWriter(source().schema(), True)
    for name, value in (("maxFilesPerTrigger", "0"), ("row-kind", "yes"), ("consumer-id", "a/b")):
        with pytest.raises(InvalidInputError, match=f"The option {name} "):
            parse_stream_options({name: value})


def test_a_run_with_available_now_ends_with_what_was_there(tmp_path: Path) -> None:
    """As Spark asks since 4.2, without its processes: where a batch starts, and how much it may take."""
    table = create_table(str(tmp_path), "d.src", [("k", "BIGINT"), ("v", "STRING")])

    def reader(**options: str) -> PaimonStreamReader:
        source = PaimonDataSource({"warehouse": str(tmp_path), "table": "d.src", "poll-interval": "1 h", **options})
        return source.streamReader(source.schema())  # type: ignore[return-value]

    def run(found: PaimonStreamReader, start: dict[str, Any], limit: Any) -> tuple[list[list[int]], dict[str, Any]]:
        found.prepareForTriggerAvailableNow()
        batches = []
        while (end := found.latestOffset(start, limit)) != start:
            parts = found.partitions(start, end)
            batches.append(sorted(k for p in parts for b in found.read(p) for k in b.column("k").to_pylist()))
            write_arrow(table, rows(100 + len(batches)))  # another writer never pauses
            start = json.loads(json.dumps(end))
        return batches, start

    one, all_files = ReadMaxFiles(1), ReadAllAvailable()
    assert reader().getDefaultReadLimit() == all_files
    small = reader(maxFilesPerTrigger="1")
    assert small.getDefaultReadLimit() == one
    assert run(small, small.initialOffset(), one)[0] == [], "there was nothing"
    for k in range(3):
        write_arrow(table, rows(k))
    small = reader(maxFilesPerTrigger="1")
    batches, at = run(small, small.initialOffset(), one)
    assert sorted(batches) == [[0], [1], [2]], "and nothing that came meanwhile"
    # the next run, in a new process, and with Trigger.Once: all there is, whatever the option says
    assert reader(maxFilesPerTrigger="1").latestOffset(at, one) != at
    assert run(reader(maxFilesPerTrigger="1"), at, all_files)[0] == [[101, 102, 103]]


def test_an_idle_stream_keeps_its_consumer_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a query that is started again asks, without Spark's processes."""
    table = create_table(str(tmp_path), "d.src", [("k", "BIGINT")])
    write_arrow(table, rows(1).select(["k"]))
    found = PaimonDataSource({
        "warehouse": str(tmp_path), "table": "d.src", "scan.mode": "latest", "consumer-id": "c", "poll-interval": "0 s",
    })  # fmt: skip
    reader = found.streamReader(found.schema())
    file = tmp_path / "d.db/src/consumer/consumer-c"
    assert reader.latestOffset() == reader.initialOffset()
    assert not file.exists(), "the first batch claims it"
    keep_from(table, "c", 1)

    def is_written() -> bool:
        os.utime(file, (1000, 1000))
        assert reader.latestOffset() == reader.initialOffset()
        assert find_consumer(table, "c") == 1
        return file.stat().st_mtime > 1000

    reader = found.streamReader(found.schema())
    assert is_written()
    assert not is_written(), "every poll would be too often"
    monkeypatch.setattr(source_module, "REFRESH_S", 0.0)
    assert is_written()


@pytest.mark.random
@pytest.mark.thorough
def test_streams_that_are_stopped_at_random(spark: SparkSession, tmp_path: Path) -> None:
    """Into branches of an append and a primary-key table; ``python -m tests.stream_kills`` kills real processes."""
    register(spark)
    draw = chance("streams")
    stream_kills.make_tables(tmp_path)
    deadline = time.monotonic() + 500
    queries: dict[str, StreamingQuery] = {}

    def keep_running() -> None:
        for pair in stream_kills.PAIRS:
            query = queries.get(pair)
            error = query.exception() if query is not None else None
            assert error is None or LATE in str(error)
            if query is None or error is not None:
                queries[pair] = stream_kills.start(spark, tmp_path, pair, {"processingTime": "0 seconds"})
        assert time.monotonic() < deadline, stream_kills.check(tmp_path)

    for number in range(3):
        try:
            before = [stream_kills.target(tmp_path, pair).latest_snapshot_id() for pair in stream_kills.PAIRS]
            keep_running()
            stream_kills.feed(tmp_path, draw, number)
            while [stream_kills.target(tmp_path, p).latest_snapshot_id() for p in stream_kills.PAIRS] == before:
                keep_running()
                time.sleep(draw.uniform(0.01, 0.5))
            while number == 2 and stream_kills.check(tmp_path):
                keep_running()
                time.sleep(0.1)
        finally:
            for query in queries.values():
                query.stop()
            queries.clear()
    assert stream_kills.check(tmp_path) == []
