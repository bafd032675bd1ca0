"""Our streams beside those of Paimon's Java engine (O3): the same changes, and snapshots that it keeps for us."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_paimon.core.streaming.consumers import claim_consumer, keep_from
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.data import read_arrow
from airflow_paimon.data.write import plan_write, write_rows
from airflow_paimon.spark.rows_in import conform
from airflow_paimon.spark.streaming.sink import commit_batch
from tests.core.tables import run
from tests.data.test_changes import Follower, Row, applied
from tests.oracles.canonical import canonical_rows
from tests.oracles.drivers import JavaOracle
from tests.randomness import chance

pytestmark = pytest.mark.oracle

COLUMNS = {"dt": "STRING NOT NULL", "k": "BIGINT NOT NULL", "v": "STRING"}


@pytest.mark.parametrize("producer", ["none", "input", "lookup", "full-compaction"])
@pytest.mark.every(2)
def test_the_same_changes_as_java(java_oracle: JavaOracle, tmp_path: Path, producer: str) -> None:
    draw = chance(producer)
    options = {"bucket": "2", "changelog-producer": producer}
    java_oracle.create_table(tmp_path, "d.t", COLUMNS, partition_keys=["dt"], primary_keys=["dt", "k"], options=options)
    table = open_table(str(tmp_path), "d.t")
    ours = Follower(table, row_kind=True, **{"scan.mode": "from-snapshot", "scan.snapshot-id": "1"})
    full = Follower(table, row_kind=True)
    state: dict[Row, Row] = {}
    for number in range(6):
        keys = draw.sample(range(8), 4)
        kinds = [draw.choice(["+I", "+I", "-D"]) for _ in keys]
        rows = [
            {"dt": "ab"[k % 2], "k": k, "v": f"{number}", "_row_kind": kind}
            for k, kind in zip(keys, kinds, strict=True)
        ]
        java_oracle.write(tmp_path, "d.t", rows)
        if number % 2:
            java_oracle.do("compact", tmp_path, "d.t", full=True)
            applied(state, full.all())
            assert sorted(state.values()) == sorted(canonical_rows(java_oracle.read(tmp_path, "d.t")))
    java_oracle.open_stream_reader(
        tmp_path, "d.t", producer, options={"scan.mode": "from-snapshot", "scan.snapshot-id": "1"}
    )
    theirs = streamed(java_oracle, producer, table)
    if producer == "none":  # ours gives only the newest change of a key in a batch
        found = ours.all()
        assert applied({}, found) == state
        assert {r for r in found if r[-1] == "+I"} <= set(theirs)
    else:
        assert sorted(ours.all()) == sorted(theirs)


@pytest.mark.parametrize("engine", ["partial-update", "aggregation"])
def test_the_records_as_they_were_written_of_other_merge_engines(
    java_oracle: JavaOracle, tmp_path: Path, engine: str
) -> None:
    """With the producer input both give the records of the writers, and of a compaction nothing."""
    columns = {"k": "INT NOT NULL", "n": "INT", "v": "STRING"}
    options = {
        "bucket": "2",
        "changelog-producer": "input",
        "merge-engine": engine,
        "fields.n.aggregate-function": "sum",
    }
    if engine == "partial-update":
        del options["fields.n.aggregate-function"]
    java_oracle.create_table(tmp_path, "d.t", columns, primary_keys=["k"], options=options)
    table = open_table(str(tmp_path), "d.t")
    java_oracle.write(tmp_path, "d.t", [{"k": k, "n": 1, "v": "first"} for k in range(4)])
    ours = Follower(table, row_kind=True)
    java_oracle.open_stream_reader(tmp_path, "d.t", engine)
    assert sorted(ours.all(), key=repr) == sorted(streamed(java_oracle, engine, table), key=repr)
    java_oracle.write(tmp_path, "d.t", [{"k": 1, "n": 5, "v": None}, {"k": 1, "n": None, "v": "x"}, {"k": 7, "n": 2}])
    java_oracle.do("compact", tmp_path, "d.t", full=True)
    java_oracle.write(tmp_path, "d.t", [{"k": 1, "n": 3}])
    told = ours.all()
    assert sorted(told, key=repr) == sorted(streamed(java_oracle, engine, table), key=repr)
    assert sorted(told, key=repr) == sorted(
        [(1, 5, None, "+I"), (1, None, "x", "+I"), (7, 2, None, "+I"), (1, 3, None, "+I")], key=repr
    )


def test_java_keeps_what_a_stream_has_yet_to_read(java_oracle: JavaOracle, tmp_path: Path) -> None:
    java_oracle.create_table(tmp_path, "d.t", COLUMNS, partition_keys=["dt"])
    main = open_table(str(tmp_path), "d.t")
    java_oracle.write(tmp_path, "d.t", [{"dt": "a", "k": 0, "v": "x"}])
    java_oracle.do("create_tag", tmp_path, "d.t", name="t")
    java_oracle.do("create_branch", tmp_path, "d.t", name="b", tag="t")
    for view, branch in ((main, None), (main.branch("b"), "b")):
        follower = Follower(view)
        assert len(follower.all()) == 1
        claim_consumer(view, "ours", 1, ignore_progress=False)
        for k in range(1, 5):
            java_oracle.write(tmp_path, "d.t", [{"dt": "a", "k": k, "v": "x"}], branch=branch)
        java_oracle.do("expire_snapshots", tmp_path, "d.t", branch, retain_max=1, retain_min=1)
        assert view.snapshot_ids()[0] == 1
        assert [r[1] for r in follower.all()] == [1, 2, 3, 4]
        keep_from(view, "ours", 4)
        java_oracle.do("expire_snapshots", tmp_path, "d.t", branch, retain_max=1, retain_min=1)
        assert view.snapshot_ids()[0] == 4
        assert read_arrow(view).num_rows == 5


def sink(table: Table, batch: int, rows: Sequence[Mapping[str, Any]], tries: int = 1) -> None:
    """Write a batch as the sink of a query does, without Spark's processes; each further try finds its commit."""
    for _ in range(tries):
        write = plan_write(table)
        given = pa.Table.from_pylist([dict(r) for r in rows]).to_batches()
        files = list(write_rows(write, (conform(part, write.schema, write.label) for part in given)))
        commit_batch(table, write, files, f"query-of-{table.branch_name}", batch)


@pytest.mark.parametrize("keyed", [False, True], ids=["append", "upsert"])
def test_java_reads_what_our_sink_wrote_and_goes_on(java_oracle: JavaOracle, tmp_path: Path, keyed: bool) -> None:
    """On main and on a branch: the sink, Java's writers and the sink again; both engines' streams follow."""
    options = {"primary_keys": ["dt", "k"], "options": {"bucket": "2"}} if keyed else {}
    java_oracle.create_table(tmp_path, "d.t", COLUMNS, partition_keys=["dt"], **options)
    main = open_table(str(tmp_path), "d.t")
    sink(main, 0, rows(0, 1))
    run(main, "create_tag", tag="t")
    run(main, "create_branch", branch="b", tag="t")
    for view, branch in ((main.branch("b"), "b"), (main, None)):
        since = {"scan.mode": "from-snapshot", "scan.snapshot-id": "1"}
        ours = Follower(view, row_kind=True, **since)
        java_oracle.open_stream_reader(tmp_path, "d.t", f"{keyed}{branch}", branch, since)
        sink(view, 1, rows(1, 2, 3, kinds="+I +I +I") if keyed else rows(2, 3), tries=3)
        sink(view, 2, rows(1, 4, kinds="-D +I") if keyed else rows(4))
        assert view.latest_snapshot_id() == 3
        assert java_rows(java_oracle, tmp_path, branch) == canonical_rows(read_arrow(view))
        java_oracle.write(tmp_path, "d.t", rows(0, 5), branch=branch)
        if keyed:
            java_oracle.do("compact", tmp_path, "d.t", branch, full=True)
        with java_oracle.open_stream_writer(tmp_path, "d.t", branch=branch) as writer:
            for k in (2, 6):
                writer.write(rows(k))
                writer.commit()
                sink(view, 3 + k, rows(k + 1))
        expected = [0, 2, 3, 4, 5, 6, 7] if keyed else [0, 0, 1, 2, 2, 3, 3, 4, 5, 6, 7]
        found = java_rows(java_oracle, tmp_path, branch)
        assert sorted(r[1] for r in found) == expected
        assert found == canonical_rows(read_arrow(view))
        read, theirs = ours.all(), streamed(java_oracle, f"{keyed}{branch}", view)
        if keyed:
            assert sorted(applied({}, read).values()) == sorted(applied({}, theirs).values()) == sorted(found)
        else:
            assert sorted(r[:-1] for r in read) == sorted(r[:-1] for r in theirs) == sorted(found)


def rows(*ids: int, kinds: str = "") -> list[dict[str, Any]]:
    """Rows of two partitions; ``kinds``: the row kind of each, in words."""
    columns = [{"dt": "ab"[k % 2], "k": k, "v": "x"} for k in ids]
    return [c | {"_row_kind": kind} for c, kind in zip(columns, kinds.split(), strict=True)] if kinds else columns


def java_rows(java_oracle: JavaOracle, warehouse: Path, branch: str | None) -> list[Row]:
    return canonical_rows(java_oracle.read(warehouse, "d.t", branch=branch))


def streamed(java_oracle: JavaOracle, reader: str, view: Table) -> list[Row]:
    """What Java's stream reads up to the newest snapshot."""
    found: list[Row] = []
    while True:
        new, following = java_oracle.stream_read(reader)
        found += canonical_rows(new)
        if following is not None and following > (view.latest_snapshot_id() or 0):
            return found
