"""Structured Streaming from and into tables and branches: one Spark, real queries, real checkpoints."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import read_arrow, write_arrow
from airflow_paimon.spark import register
from airflow_paimon.spark.streaming.batch_writer import batch_writer
from airflow_paimon.spark.streaming.catch_up import catch_up
from airflow_paimon.spark.streaming.source import parse_stream_options
from tests import stream_kills
from tests.core.tables import run
from tests.randomness import chance

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def rows(*ids: int, kinds: list[str] | None = None, v: str = "a") -> pa.Table:
    columns: dict[str, Any] = {"k": pa.array(ids, pa.int64()), "v": [f"{v}{i}" for i in ids]}
    return pa.table(columns if kinds is None else {**columns, "_row_kind": kinds})


def keys(table: Table) -> list[int]:
    return sorted(read_arrow(table).column("k").to_pylist())


class Pipe:
    """A query from ``d.src`` into ``d.dst``, run until it has caught up once."""

    def __init__(self, spark: SparkSession, folder: Path, name: str = "p") -> None:
        register(spark)
        self.spark, self.folder = spark, folder
        self.checkpoint = folder / f"checkpoint-{name}"
        self.read: dict[str, str] = {}
        self.write: dict[str, str] = {}

    def start(self) -> StreamingQuery:
        source = {"warehouse": str(self.folder), "table": "d.src", **self.read}
        target = {"warehouse": str(self.folder), "table": "d.dst", **self.write}
        frame = self.spark.readStream.format("airflow_paimon").options(**source).load()
        writer = frame.writeStream.format("airflow_paimon").options(**target)
        return writer.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True).start()

    def run(self) -> None:
        query = self.start()
        try:
            assert query.awaitTermination(120)
        finally:
            query.stop()

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
    pipe.run()
    assert pipe.batches() == [0, 1], "nothing new: no batch"


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
    assert catch_up(pipe.start, 240) == 2, "a bucket each"
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


def test_errors_name_the_way_out(spark: SparkSession, tmp_path: Path) -> None:
    source = create_table(
        str(tmp_path), "d.src", [("k", "BIGINT NOT NULL")], primary_keys=["k"], options={"bucket": "1"}
    )
    pipe = Pipe(spark, tmp_path)

    def load(**options: str) -> None:
        given = {"warehouse": str(tmp_path), "table": "d.src", **options}
        frame = spark.readStream.format("airflow_paimon").options(**given).load()
        query = frame.writeStream.format("noop").option("checkpointLocation", str(pipe.checkpoint)).start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    assert source.latest_snapshot_id() is None
    with pytest.raises(Exception, match="set the option row-kind=true"):
        load()
    with pytest.raises(Exception, match="as the source of a stream has no option 'where'"):
        load(where="k > 1", **{"row-kind": "true"})
    with pytest.raises(Exception, match=r"has no option 'scan\.mode'"):
        given = {"warehouse": str(tmp_path), "table": "d.src", "scan.mode": "latest"}
        spark.read.format("airflow_paimon").options(**given).load().collect()
    for name, value in (("maxFilesPerTrigger", "0"), ("row-kind", "yes"), ("consumer-id", "a/b")):
        with pytest.raises(InvalidInputError, match=f"The option {name} is"):
            parse_stream_options({name: value})


@pytest.mark.random
def test_streams_that_are_stopped_at_random(spark: SparkSession, tmp_path: Path) -> None:
    """Into branches of an append and a primary-key table; ``python -m tests.stream_kills`` kills real processes."""
    register(spark)
    draw = chance("streams")
    stream_kills.make_tables(tmp_path)
    for number in range(3):
        queries = [
            stream_kills.start(spark, tmp_path, pair, {"processingTime": "0 seconds"}) for pair in stream_kills.PAIRS
        ]
        try:
            before = [stream_kills.target(tmp_path, pair).latest_snapshot_id() for pair in stream_kills.PAIRS]
            stream_kills.feed(tmp_path, draw, number)
            deadline = time.monotonic() + 60
            while [stream_kills.target(tmp_path, p).latest_snapshot_id() for p in stream_kills.PAIRS] == before:
                assert time.monotonic() < deadline, [q.exception() for q in queries]
                time.sleep(draw.uniform(0.01, 0.5))
        finally:
            for query in queries:
                query.stop()
    for pair in stream_kills.PAIRS:
        catch_up(partial(stream_kills.start, spark, tmp_path, pair, {"availableNow": True}), 120)
    assert stream_kills.check(tmp_path) == []


def test_a_batch_writer(spark: SparkSession, tmp_path: Path) -> None:
    """The rows of a bucket come together, so that several tasks write one file a bucket."""
    columns = [("k", "BIGINT NOT NULL"), ("v", "STRING")]
    source = create_table(str(tmp_path), "d.src", columns)
    target = create_table(str(tmp_path), "d.dst", columns, primary_keys=["k"], options={"bucket": "2"})
    write_arrow(source, rows(*range(8)))
    pipe = Pipe(spark, tmp_path)
    write = batch_writer(str(tmp_path), "d.dst")
    batches: list[int] = []

    def note(frame: DataFrame, batch: int) -> None:
        write(frame.repartition(3), batch)
        batches.append(batch)

    def start() -> StreamingQuery:
        given = spark.readStream.format("airflow_paimon").options(warehouse=str(tmp_path), table="d.src").load()
        writer = given.writeStream.foreachBatch(note).option("checkpointLocation", str(pipe.checkpoint))
        return writer.trigger(availableNow=True).start()

    assert catch_up(start, 240) == 1
    [snapshot] = target.snapshots()
    assert snapshot.commit_identifier == 0
    assert sum(len(s.files) for s in plan_scan(target).splits) == 2
    pipe.forget_last_commit()
    write_arrow(source, rows(3, v="new"))
    assert catch_up(start, 240) == 2
    assert batches == [0, 0, 1]
    assert target.snapshot_ids() == [1, 2]
    assert read_arrow(target).sort_by("k").column("v").to_pylist()[3] == "new3"
    with pytest.raises(InvalidInputError, match="for foreachBatch of a stream"):
        write(spark.range(1).selectExpr("id as k", "'x' as v"), 0)
