"""Our streams beside those of Paimon's Java engine (O3): the same changes, and snapshots that it keeps for us."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_paimon.core.streaming.consumers import claim_consumer, keep_from
from airflow_paimon.core.table.table import open_table
from airflow_paimon.data import read_arrow
from tests.data.test_changes import Follower, Row, applied
from tests.oracles.canonical import canonical_rows
from tests.oracles.drivers import JavaOracle
from tests.randomness import chance

pytestmark = pytest.mark.oracle

COLUMNS = {"dt": "STRING NOT NULL", "k": "BIGINT NOT NULL", "v": "STRING"}


@pytest.mark.parametrize("producer", ["none", "input", "lookup", "full-compaction"])
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
    theirs: list[Row] = []
    while True:
        new, following = java_oracle.stream_read(producer)
        theirs += canonical_rows(new)
        if following is not None and following > (table.latest_snapshot_id() or 0):
            break
    if producer == "none":  # ours gives only the newest change of a key in a batch
        found = ours.all()
        assert applied({}, found) == state
        assert {r for r in found if r[-1] == "+I"} <= set(theirs)
    else:
        assert sorted(ours.all()) == sorted(theirs)


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
