"""The rows that compaction of chain tables gives: merge engines, ties, deletion vectors, later columns, a model."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from airflow_paimon.core.chain.state import gather_chain
from airflow_paimon.core.commit.committer import commit
from airflow_paimon.core.commit.draft import Draft
from airflow_paimon.core.errors import UnsupportedFeatureError
from airflow_paimon.core.format.manifest import DeletionVectorRange, IndexEntry
from airflow_paimon.core.format.snapshot import CommitKind
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.data import read_arrow
from airflow_paimon.data.chain.compact_bucket import plan_buckets
from airflow_paimon.execution import run_operation
from tests.core.format.test_deletion_vectors import JAVA_SAMPLE
from tests.data.chain.compactions import change, compact, full, kinds, outcomes
from tests.data.chain.tables import (
    PARTIAL,
    PARTIAL_DELETES,
    TWO_VALUES,
    chain_table,
    day_is,
    on,
    seen,
    set_options,
    versions,
    write,
)
from tests.data.chain.test_read import model
from tests.randomness import chance as chance_of
from tests.randomness import lives


def test_partial_update(tmp_path: Path) -> None:
    table = chain_table(tmp_path, PARTIAL, values=TWO_VALUES, merge_engine="partial-update")
    expected = seen(table, where=day_is("20250811"))
    assert outcomes(compact(table, "dt=20250811")) == {"dt=20250811": "compacted"}
    assert seen(table, where=day_is("20250811")) == expected
    assert [r for r in full(table) if r[-1] == "20250811"] == expected


def test_partial_update_with_deletes(tmp_path: Path) -> None:
    option = {"partial-update__remove-record-on-delete": "true"}
    table = chain_table(tmp_path / "a", PARTIAL_DELETES, values=TWO_VALUES, merge_engine="partial-update", **option)
    compact(table, "dt=20250811")
    assert seen(table, where=day_is("20250811")) == on("20250811", (2, 2, "b1", "B"), (5, 1, "e", "E"))
    assert seen(table, where=day_is("20250812")) == on("20250812", (2, 4, "b2", "B"))
    plain = chain_table(tmp_path / "b", PARTIAL_DELETES, values=TWO_VALUES, merge_engine="partial-update")
    with pytest.raises(UnsupportedFeatureError, match="remove-record-on-delete"):
        compact(plain, "dt=20250811")


def test_a_tie_goes_to_the_delta_before_and_after(tmp_path: Path) -> None:
    """Connector 2.0.0 keeps the anchor's row there."""
    table = chain_table(
        tmp_path,
        [
            ("snapshot", "20260201", [(k, 1, "filler") for k in range(50)]),
            ("delta", "20260202", [(1, 1, "delta")]),
            ("delta", "20260203", [(1, 1, "later")]),
        ],
        buckets=1,
    )
    compact(table, "dt=20260202")
    assert seen(table, where=day_is("20260202") & (pc.field("k") == 1)) == on("20260202", (1, 1, "delta"))
    assert seen(table, where=day_is("20260203") & (pc.field("k") == 1)) == on("20260203", (1, 1, "later"))


def test_a_writer_goes_on_in_a_compacted_partition(tmp_path: Path) -> None:
    table = chain_table(tmp_path, [("delta", "20260202", versions(range(9), 1, "a"))])
    compact(table, "dt=20260202")
    change(table, "snapshot", "20260202", [(1, 1, "b")])
    assert [r[2] for r in full(table) if r[0] == 1] == ["b"]


def test_buckets_with_little_memory_and_several_files(tmp_path: Path) -> None:
    """What a task holds is bounded: batches and row groups shrink, files are split, the rows stay the same."""
    rows = [(k, 1, f"value {k}" * 5) for k in range(30_000)]
    table = chain_table(
        tmp_path,
        [
            ("snapshot", "20260201", rows),
            ("delta", "20260202", [(k, 2, "changed") for k in range(0, 40_000, 7)]),
            ("delta", "20260203", [(k, 3, "", "-D") for k in range(0, 40_000, 11)]),
        ],
        buckets=1,
        target_file_size="64 kb",
    )
    expected = seen(table, where=day_is("20260203"))
    state = gather_chain(table)
    chain = (("20260203",), ("20260201",), (("20260202",), ("20260203",)))
    (work,) = plan_buckets(state, [chain], 256 << 10)
    assert work.inputs.deltas.batch_rows == 1024
    (message,) = pickle.loads(pickle.dumps(work)).run().messages
    files = message.new_files
    assert len(files) > 2 and sum(f.row_count for f in files) == len(expected)
    assert max(f.row_count for f in files) < 12_000
    compact(table, "dt=20260203", task_memory_mb=1)
    assert seen(table, where=day_is("20260203")) == expected
    (split,) = (s for s in plan_scan(table.branch("snapshot")).splits if s.values == ("20260203",))
    keys = [(f.min_key, f.max_key) for f in split.files]
    assert len(set(keys)) == len(keys) > 1


@pytest.mark.random
@pytest.mark.parametrize("seed", range(lives(4, 20)))
def test_compaction_equals_the_model(tmp_path: Path, seed: int) -> None:
    """Random chains of both engines; each read of main says the same before and after some partition became full."""
    chance = chance_of(seed)
    partial = seed % 2 == 1
    writes: list[tuple[str, str, list[Any]]] = []
    number = 0
    for _ in range(chance.randint(3, 12)):
        branch = chance.choice(["snapshot", *["delta"] * 5])
        rows = []
        for k in chance.sample(range(12), chance.randint(1, 8)):
            number += 1
            values = [chance.choice([None, f"v{chance.randint(0, 99)}"]) for _ in range(2)]
            # rising sequences: a delete that is dropped by compaction hides nothing that comes later
            rows.append((k, number, *values, chance.choice(["+I", "+I", "+U", "-D"])))
        writes.append((branch, "", rows))
    days = sorted(chance.choices(range(10, 20), k=len(writes)))
    writes = [(b, f"202508{d}", rows) for (b, _, rows), d in zip(writes, days, strict=True)]
    engine = {"merge_engine": "partial-update", "partial-update__remove-record-on-delete": "true"} if partial else {}
    table = chain_table(tmp_path, writes, values=TWO_VALUES, buckets=chance.randint(1, 3), **engine)
    expected = model(writes, partial)
    assert seen(table) == expected
    day = chance.choice([d for b, d, _ in writes])
    compact(table, f"dt={day}")
    assert seen(table) == expected
    compact(table, pending=True, max_chain_length=chance.randint(0, 2))
    assert seen(table) == expected
    assert [r for r in full(table) if r[-1] == day] == [r for r in expected if r[-1] == day]
    assert set(kinds(table)) <= {"APPEND"}


def test_deletion_vectors_are_applied(tmp_path: Path) -> None:
    """Rows that are marked in the anchor are left out, and go on hiding older ones; the result needs no marks."""
    table = chain_table(tmp_path, [], buckets=1, **{"chain-table__enabled": "false"})
    snapshot, delta = table.branch("snapshot"), table.branch("delta")
    rows = versions(range(1, 6), 2, "a")
    write(snapshot, ["k", "s", "v"], ["dt"], "20250810", rows, mode="dynamic_overwrite")
    write(delta, ["k", "s", "v"], ["dt"], "20250811", [(3, 1, "late"), (5, 3, "new"), (6, 1, "d")], mode="overwrite")
    (held,) = plan_scan(snapshot).splits
    snapshot.store.create("index/index-1", JAVA_SAMPLE)
    marks = (DeletionVectorRange(held.files[0].file_name, 1, len(JAVA_SAMPLE) - 9, 2),)
    entry = IndexEntry(0, held.partition, 0, "DELETION_VECTORS", "index-1", len(JAVA_SAMPLE), 2, marks)
    schema = snapshot.schema()
    commit(snapshot, lambda _: Draft(kind=CommitKind.OVERWRITE, entries=[], index_entries=[entry], schema=schema))
    for branch in (table, snapshot, delta):
        set_options(branch, {"chain-table.enabled": "true", "deletion-vectors.enabled": "true"})
    expected = seen(table, where=day_is("20250811"))
    assert outcomes(compact(table, "dt=20250811")) == {"dt=20250811": "compacted"}
    assert [r for r in full(table) if r[-1] == "20250811"] == expected == seen(table, where=day_is("20250811"))
    assert [e.partition for e in plan_scan(snapshot).index_entries] == [held.partition]


def test_columns_that_came_later(tmp_path: Path) -> None:
    table = chain_table(
        tmp_path, [("snapshot", "20260201", [(1, 1, "a"), (2, 1, "a")]), ("delta", "20260202", [(2, 2, "b")])]
    )
    changes = ("add column w STRING", "rename column v to x")
    asked = {"warehouse": str(tmp_path), "table": "d.t", "change": changes}
    run_operation(build_request("alter_chain_table", asked))
    change(table, "delta", "20260203", [(1, 3, "c", "new")])
    expected = seen(table)
    result = compact(table, pending=True, max_chain_length=0)
    assert result.details["counts"] == {"compacted": 2}
    assert seen(table) == expected
    last = [r for r in read_arrow(table.branch("snapshot")).to_pylist() if r["dt"] == "20260203"]
    assert [(r["k"], r["x"], r["w"]) for r in last] == [(1, "c", "new"), (2, "b", None)]
    latest = table.branch("snapshot").schema().id
    made = [f for s in plan_scan(table.branch("snapshot")).splits if s.values > ("20260201",) for f in s.files]
    assert {f.schema_id for f in made} == {latest}
