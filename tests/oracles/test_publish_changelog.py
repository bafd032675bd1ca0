"""O3's stream of a table with a changelog producer over corrections that are published: exactly main's changes."""

from __future__ import annotations

import pickle
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pytest

from airflow_paimon.core.commit.files import commit_buckets
from airflow_paimon.core.publish.bucket_merge_plan import highest_sequence
from airflow_paimon.core.table.live_files import BucketKey
from airflow_paimon.core.table.partition_scope import choose_partitions
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.data.dynamic_buckets import with_hash_indexes
from airflow_paimon.data.read_splits import plan_read
from airflow_paimon.data.rewrite import NEW_BUCKET
from airflow_paimon.data.write import plan_write
from airflow_paimon.spark.jobs.correction_tasks import BucketCorrection, LiveBucket, correct_buckets
from airflow_paimon.spark.statements.keyed import without_merging
from tests.core.tables import run as operate
from tests.data.tables import rows_of
from tests.data.test_changes import Follower
from tests.oracles.drivers import JavaOracle
from tests.oracles.test_key_compaction import COLUMNS, Life
from tests.randomness import chance, every

pytestmark = pytest.mark.oracle

_FEW = {"bucket": "-1", "dynamic-bucket.target-row-num": "7"}
_VECTORS = {"deletion-vectors.enabled": "true"}
CASES: dict[str, dict[str, str]] = {
    "input": {"bucket": "2", "changelog-producer": "input"},
    "input-dynamic-vectors": {**_FEW, **_VECTORS, "changelog-producer": "input"},
    "lookup-vectors": {"bucket": "1", **_VECTORS, "changelog-producer": "lookup"},
    "lookup-dynamic": {**_FEW, "changelog-producer": "lookup"},
    "full-compaction": {"bucket": "2", "changelog-producer": "full-compaction"},
    "full-compaction-dynamic": {**_FEW, "changelog-producer": "full-compaction"},
}


def corrected(
    table: Table, rows: list[dict[str, Any]], kind: str, columns: Mapping[str, str] = MappingProxyType(COLUMNS)
) -> None:
    """What ``correct_branch --mode upsert``, or a statement on main, does in its tasks, and its commit."""
    plan = plan_scan(table)
    write = plan_write(table, by_buckets=True)
    write = replace(write, schema=without_merging(write.schema))  # as a statement
    read, splits = plan_read(plan, whole_buckets=True)
    known = {BucketKey(s.bucket.partition, s.bucket.bucket): s for s in splits}
    live = {
        key: pickle.dumps(
            LiveBucket(bucket=s.bucket, split=s, max_sequence=highest_sequence(s.files) if s.files else NEW_BUCKET)
        )
        for key, s in known.items()
    }
    correction = BucketCorrection(write=write, choice=choose_partitions(plan.schema, (), ""), live=live, read=read)
    correction = replace(correction, writes_changelog=table.branch_name == "main")
    data = rows_of(columns, rows).append_column("_row_kind", pa.array([kind] * len(rows)))
    messages = [r.message for r in correct_buckets(correction, data.to_batches()) if r.message is not None]
    commit_buckets(
        table, with_hash_indexes(write.dynamic, messages), assigned=(write.planned_on,), vectors=plan.index_entries
    )


class Publishing(Life):
    """A life with corrections on branches, whose publishes and undos are told to Java's streams and to ours."""

    def __init__(self, java: JavaOracle, folder: Path, options: dict[str, str]) -> None:
        super().__init__(java, folder, options)
        self.ours_told = Follower(self.table, row_kind=True)
        self.state: dict[tuple[int, int], str] = {}
        self.hides = "deletion-vectors.enabled" in options

    def publish(self, rows: list[dict[str, Any]], kind: str) -> Any:
        operate(self.table, "create_branch", branch="fix", snapshot=self.table.latest_snapshot_id())
        corrected(self.table.branch("fix"), rows, kind)
        done = operate(self.table, "merge_branch", branch="fix", writers_stopped=True)
        operate(self.table, "delete_branch", branch="fix")
        self.know(rows, kind)
        assert done.details["streaming_readers"]["see"] == "changes"
        return done

    def exactly(self) -> None:
        """Java's stream tells one change after the other: of each key what differs from what it was told before."""
        told = self.changelog
        self.changelog = "lookup"  # follow() then checks each change against the one before
        self.follow()
        self.changelog = told
        if told == "input":
            assert self.told == self.rows
        if not self.hides:  # rows that wait for a compaction in other buckets
            self.check()

    def ours_is_the_same(self) -> None:
        for p, k, v, kind in self.ours_told.all():
            if kind in ("+I", "+U"):
                self.state[p, k] = v
            else:
                self.state.pop((p, k), None)
        assert self.state == self.told


@pytest.mark.random
@pytest.mark.parametrize("name", every(3, CASES))
def test_streams_over_published_corrections(java_oracle: JavaOracle, tmp_path: Path, name: str) -> None:
    random = chance(f"publish-changelog-{name}")
    life = Publishing(java_oracle, tmp_path, CASES[name])
    life.ours()
    for number in range(8):
        life.follow()
        keys = random.sample(range(40), random.randint(1, 12))
        if random.random() < 0.7:  # rows that wait for a compaction, and that the correction takes along
            life.put(life.some(keys))
            life.put(life.some(random.sample(keys, 1)), "-D")
            life.follow()
        before, again = dict(life.rows), [life.some([k])[0] for k in random.sample(range(40), 4)]
        done = life.publish(again, random.choice(["+I", "+I", "-D"]))
        life.exactly()
        if number % 3 == 2 and done.changed:  # not if it deletes keys that are not there
            operate(life.table, "rollback_to", tag=done.details["undo_tag"], keep_later=True, writers_stopped=True)
            life.rows = before
            life.exactly()
        if random.random() < 0.5:
            life.theirs(full=True)
        else:  # as UPDATE, DELETE and MERGE do on main
            rows, kind = [life.some([k])[0] for k in random.sample(range(40), 3)], random.choice(["+I", "-D"])
            corrected(life.table, rows, kind)
            life.know(rows, kind)
            life.exactly()
    life.ours()
    life.theirs(full=True)
    life.follow()
    assert life.told == life.rows
    life.ours_is_the_same()


def test_readers_of_overwrites_get_each_change_once(java_oracle: JavaOracle, tmp_path: Path) -> None:
    """They read the snapshot's files instead of its changelog."""
    life = Publishing(java_oracle, tmp_path, CASES["input"])
    java_oracle.open_stream_reader(tmp_path, "d.t", "again", options={"streaming-read-overwrite": "true"})
    life.reader = "again"
    life.follow()
    life.publish(life.some([1, 2, 20]), "+I")
    life.exactly()
    life.publish(life.some([1, 3]), "-D")
    life.exactly()


def test_java_cleans_and_expires_beside_published_changelogs(java_oracle: JavaOracle, tmp_path: Path) -> None:
    """It keeps those of the snapshots that stay, and its stream reads them."""
    life = Publishing(java_oracle, tmp_path, CASES["input"])
    for number in range(3):
        life.publish(life.some([number, 7]), "+I")
    before = set(tmp_path.rglob("bucket-*/changelog-*"))
    java_oracle.do("remove_orphans", tmp_path, "d.t", older_than_ms=int(time.time() * 1000) + 60_000)
    assert set(tmp_path.rglob("bucket-*/changelog-*")) == before
    life.exactly()
    java_oracle.do("expire_snapshots", tmp_path, "d.t", retain_max=1, retain_min=1)
    assert set(tmp_path.rglob("bucket-*/changelog-*")) < before
    late = {"scan.mode": "from-snapshot", "scan.snapshot-id": str(life.table.latest_snapshot_id())}
    java_oracle.open_stream_reader(tmp_path, "d.t", "late", options=late)
    found, _ = java_oracle.stream_read("late")
    assert {(r["k"], r["_row_kind"]) for r in found.to_pylist()} == {(2, "-U"), (2, "+U"), (7, "-U"), (7, "+U")}


ENGINES = {
    "partial-update": {"fields.s.sequence-group": "n"},
    "aggregation": {"fields.n.aggregate-function": "sum", "fields.s.aggregate-function": "max"},
    "first-row": {},
}


@pytest.mark.parametrize(
    ("engine", "producer"),
    every(
        2,
        [
            ("first-row", "lookup"),
            *((e, p) for e in ("partial-update", "aggregation") for p in ("lookup", "full-compaction", "input")),
        ],
    ),
)
def test_merged_rows_are_told(java_oracle: JavaOracle, tmp_path: Path, engine: str, producer: str) -> None:
    """Of records that wait for a compaction the row that they make, beside the corrected row."""
    columns = {"k": "INT NOT NULL", "s": "INT", "n": "INT"}
    options = {"bucket": "1", "merge-engine": engine, "changelog-producer": producer, "write-only": "true"}
    java_oracle.create_table(tmp_path, "d.t", columns, primary_keys=["k"], options={**options, **ENGINES[engine]})
    table = open_table(str(tmp_path), "d.t")
    java_oracle.write(tmp_path, "d.t", [{"k": k, "s": 1, "n": 10} for k in range(4)])
    java_oracle.do("compact", tmp_path, "d.t", full=True, options={"write-only": "false"})
    java_oracle.open_stream_reader(tmp_path, "d.t", "engines")
    first = java_oracle.stream_read("engines")[0].to_pylist()
    state = {r["k"]: (r["s"], r["n"]) for r in first}
    assert state == dict.fromkeys(range(4), (1, 10))
    java_oracle.write(tmp_path, "d.t", [{"k": 2, "s": 2, "n": 5}, {"k": 9, "s": 2, "n": 5}])
    operate(table, "create_branch", branch="fix", snapshot=table.latest_snapshot_id())
    corrected(table.branch("fix"), [{"k": 1, "s": 7, "n": 70}], "+I", columns)
    operate(table, "merge_branch", branch="fix", writers_stopped=True)
    told = []
    while (found := java_oracle.stream_read("engines")[0]).num_rows:
        told += [(r["_row_kind"], r["k"], r["s"], r["n"]) for r in found.to_pylist()]
    waiting = {"partial-update": 5, "aggregation": 15}.get(engine)
    mine = [("-U", 1, 1, 10), ("+U", 1, 7, 70)]
    late = [("-U", 2, 1, 10), ("+U", 2, 2, waiting)] if waiting is not None else []
    if producer == "input":  # Java's writer has told its own records
        assert told == [("+I", 2, 2, 5), ("+I", 9, 2, 5), *mine]
    else:
        assert told == [*mine, *late, ("+I", 9, 2, 5)]
    rows = {r["k"]: (r["s"], r["n"]) for r in java_oracle.read(tmp_path, "d.t").to_pylist()}
    assert rows == {0: (1, 10), 1: (7, 70), 2: (2, waiting) if waiting else (1, 10), 3: (1, 10), 9: (2, 5)}
