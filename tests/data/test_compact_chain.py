"""Compaction of chain tables, without Spark: the procedure's cases as rows, and what holds for every bucket."""

from __future__ import annotations

import pickle
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airflow_paimon.core.bucket import bucket_of_rows
from airflow_paimon.core.chain import Branch
from airflow_paimon.core.chain_provenance import read_provenances, state_digests
from airflow_paimon.core.chain_state import gather_chain
from airflow_paimon.core.commit import Draft, commit
from airflow_paimon.core.errors import InvalidInputError, UnsupportedFeatureError
from airflow_paimon.core.manifest import DeletionVectorRange, IndexEntry
from airflow_paimon.core.operations.registry import run_operation
from airflow_paimon.core.operations.request import build_request
from airflow_paimon.core.options import TableOptions
from airflow_paimon.core.scan import plan_scan
from airflow_paimon.core.snapshot import CommitKind
from airflow_paimon.core.table import Table
from airflow_paimon.data import read_arrow
from airflow_paimon.data.chain_compact import compact_bucket, plan_buckets
from tests.core.test_deletion_vectors import JAVA_SAMPLE
from tests.data.chains import (
    DAYS,
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
from tests.data.compactions import change, compact, full, outcomes
from tests.data.test_chain_read import model

HOURS = {"dt": "STRING", "hour": "STRING"}
HOUR_FORM = ("$dt $hour:00:00", "yyyyMMdd HH:mm:ss")


def kinds(table: Table) -> list[str]:
    branch = table.branch("snapshot")
    return [s.commit_kind.value for s in branch.snapshots(branch.snapshot_ids())]


def test_basic_case_of_the_procedure(tmp_path: Path) -> None:
    table = chain_table(tmp_path, [("snapshot", "20260222", [(0, 1, "0")]), ("snapshot", "20260223", [(1, 1, "1")])])
    nothing = compact(table, "dt=20260224")
    assert (nothing.changed, outcomes(nothing)) == (False, {"dt=20260224": "gap"})
    change(table, "delta", "20260224", [(2, 2, "2")])
    before = seen(table, where=day_is("20260224"))
    result = compact(table, 'dt="20260224"')
    assert result.changed and result.branch == "snapshot"
    assert (result.snapshot_before, result.snapshot_after) == (2, 3)
    assert outcomes(result) == {"dt=20260224": "compacted"}
    assert full(table) == sorted(
        [*on("20260222", (0, 1, "0")), *on("20260223", (1, 1, "1")), *on("20260224", (1, 1, "1"), (2, 2, "2"))],
        key=repr,
    )
    assert seen(table, where=day_is("20260224")) == before == on("20260224", (1, 1, "1"), (2, 2, "2"))
    again = compact(table, "dt=20260224")
    assert (again.changed, outcomes(again)) == (False, {"dt=20260224": "already-there"})


def test_result_counts_and_provenance(tmp_path: Path) -> None:
    table = chain_table(
        tmp_path,
        [
            ("snapshot", "20260223", versions(range(10), 1, "a")),
            ("delta", "20260224", [(3, 2, "b"), (4, 2, "b", "-D"), (20, 1, "b")]),
        ],
        buckets=1,
    )
    (row,) = compact(table, "dt=20260224", operation_id="op-1").details["partitions"]
    assert {k: row[k] for k in ("rows_in", "files_in", "rows_out", "files_out", "snapshot", "anchor", "deltas")} == {
        "rows_in": 12,
        "files_in": 2,
        "rows_out": 10,
        "files_out": 1,
        "snapshot": 2,
        "anchor": "dt=20260223",
        "deltas": ["dt=20260224"],
    }
    assert row["bytes_in"] > 0 < row["bytes_out"]
    assert row["snapshots"] == {"main": None, "snapshot": 1, "delta": 1}
    state = gather_chain(table)
    digests = state_digests(state, Branch.SNAPSHOT)
    (record,) = read_provenances(table, state.layout, digests).values()
    assert record.values == ("20260224",)
    assert record.anchor is not None and record.anchor.files == digests["20260223",]
    assert [d.files for d in record.deltas] == [state_digests(state, Branch.DELTA)["20260224",]]
    assert (record.origin, record.snapshots["delta"]) == ("op-1", 1)
    (split,) = (s for s in state.snapshot.splits if s.values == ("20260224",))
    (file,) = split.files
    assert file.level == TableOptions(state.snapshot.schema.options).num_levels - 1
    assert (file.min_sequence_number, file.max_sequence_number, file.delete_row_count) == (-1, -1, 0)
    assert file.schema_id == table.branch("snapshot").schema().id


def test_overwrite_drops_what_only_the_partition_had(tmp_path: Path) -> None:
    table = chain_table(
        tmp_path,
        [
            ("main", "20260222", [(1, 1, "1")]),
            ("snapshot", "20260223", [(2, 1, "2")]),
            ("snapshot", "20260224", [(3, 1, "3")]),
            ("snapshot", "20260225", [(3, 2, "3-1")]),
            ("delta", "20260225", [(4, 2, "4")]),
        ],
    )
    assert outcomes(compact(table, "dt=20260225")) == {"dt=20260225": "already-there"}
    assert seen(table, where=day_is("20260225")) == on("20260225", (3, 2, "3-1"))
    assert compact(table, "dt=20260225", overwrite=True).changed
    assert seen(table, where=day_is("20260225")) == on("20260225", (3, 1, "3"), (4, 2, "4"))
    assert [r for r in full(table) if r[-1] != "20260225"] == [(2, 1, "2", "20260223"), (3, 1, "3", "20260224")]
    assert kinds(table) == ["APPEND"] * 3 + ["OVERWRITE"]


def test_hours_of_the_procedure(tmp_path: Path) -> None:
    old, new = "1", "1-1"
    table = chain_table(
        tmp_path,
        [
            ("snapshot", "20260210/20", [(0, 1, "0")]),
            ("snapshot", "20260210/22", versions(range(1, 3), 1, old)),
            ("delta", "20260210/21", versions(range(1, 3), 1, old)),
            ("delta", "20260210/22", [(1, 2, new), (3, 1, old)]),
            ("delta", "20260210/23", [(2, 2, new), (4, 1, old)]),
        ],
        partitions=HOURS,
        form=HOUR_FORM,
    )
    compact(table, """dt="20260210",hour='23'""")
    assert [r[:3] for r in full(table) if r[-1] == "23"] == [(1, 1, old), (2, 2, new), (4, 1, old)]
    for hour, rows in (("00", versions(range(1, 5), 2, new)), ("02", versions(range(1, 5), 2, new))):
        change(table, "snapshot", f"20260211/{hour}", rows if hour == "00" else [*rows, (5, 1, old), (6, 1, old)])
    for hour, rows in (
        ("00", [(3, 2, new), (4, 2, new)]),
        ("01", [(5, 1, old), (6, 1, old)]),
        ("02", [(5, 2, new), (6, 2, new)]),
    ):
        change(table, "delta", f"20260211/{hour}", rows)
    assert not compact(table, "dt=20260211,hour=02").changed
    assert compact(table, "dt=20260211,hour=02", overwrite=True).changed
    assert [r[:3] for r in full(table) if r[-2:] == ("20260211", "02")] == versions(range(1, 7), 2, new)


GROUPED: list[tuple[str, str, list[Any]]] = [
    ("snapshot", "CN/20260210/20", [(1, 1, "a")]),
    ("snapshot", "CN/20260210/21", [(2, 1, "a")]),
    ("snapshot", "CN/20260210/22", [(3, 1, "a")]),
    ("snapshot", "UK/20260210/21", [(21, 1, "a")]),
    ("snapshot", "FR/20260210/22", [(31, 1, "a")]),
    ("snapshot", "CA/20260210/21", [(41, 1, "a")]),
    ("delta", "CN/20260210/22", [(4, 1, "a")]),
    ("delta", "US/20260210/22", [(11, 1, "a")]),
    ("delta", "UK/20260210/22", [(22, 1, "a")]),
]


@pytest.mark.parametrize("tasks_at_once", [1, 100])
def test_groups_of_the_procedure(tmp_path: Path, tasks_at_once: int) -> None:
    table = chain_table(
        tmp_path, GROUPED, partitions={"region": "STRING", **HOURS}, form=HOUR_FORM, chain_keys="dt,hour"
    )
    dry = compact(table, "dt=20260210,hour=22", overwrite=True, dry_run=True)
    assert dry.changed and dry.details["counts"] == {"gap": 1, "compact": 3, "nothing-to-do": 1}
    (shown,) = (p for p in dry.details["plan"]["partitions"] if p["partition"].startswith("region=CN"))
    assert (shown["group"], shown["rows_in"], shown["overwrites"]) == ({"region": "CN"}, 2, True)
    assert len(plan_scan(table.branch("snapshot")).splits) == 6
    result = compact(table, "dt=20260210,hour=22", overwrite=True, tasks_at_once=tasks_at_once)
    at_22 = [(r[3], r[0]) for r in full(table) if r[-1] == "22"]
    assert at_22 == [("US", 11), ("CN", 2), ("UK", 21), ("UK", 22), ("FR", 31), ("CN", 4)]
    assert result.details["counts"] == {"gap": 1, "compacted": 3, "nothing-to-do": 1}
    assert result.snapshot_after == 9


def test_several_partitions_at_once_are_what_they_are_one_by_one(tmp_path: Path) -> None:
    table, other = (chain_table(tmp_path / n, [w for w in DAYS if w[0] != "main"]) for n in "ab")
    expected = {d: seen(table, where=day_is(d)) for d in ("20250809", "20250811", "20250813")}
    result = compact(table, from_="dt=20250809", to="dt=20250814")
    assert result.details["counts"] == {"compacted": 3, "already-there": 3}
    for day in ("20250813", "20250809", "20250811"):
        compact(other, f"dt={day}")
    assert full(table) == full(other)
    for day, rows in expected.items():
        assert seen(table.branch("snapshot"), where=day_is(day)) == rows


def test_a_later_target_starts_from_the_earlier_ones_result(tmp_path: Path) -> None:
    deltas = [("delta", f"202602{d:02}", [(d, 1, "a"), (0, d, "x")]) for d in range(2, 9)]
    table, at_once = (
        chain_table(tmp_path / n, [("snapshot", "20260201", [(0, 1, "x"), (1, 1, "a")]), *deltas]) for n in "ab"
    )
    expected = seen(table)
    assert compact(table, pending=True, max_chain_length=1).details["counts"] == {"compacted": 3}
    assert compact(at_once, "dt=20260208").details["counts"] == {"compacted": 1}
    assert seen(table) == seen(at_once) == expected
    rows = {r["partition"]: r for r in compact(table, pending=True, max_chain_length=0).details["partitions"]}
    assert [r["anchor"] for r in rows.values()] == ["dt=20260201", "dt=20260203", "dt=20260205", "dt=20260207"]
    assert seen(table) == full(table) == expected
    assert not compact(table, pending=True, max_chain_length=0).changed


def test_gaps(tmp_path: Path) -> None:
    table = chain_table(
        tmp_path,
        [
            ("snapshot", "20260201", [(1, 1, "a")]),
            ("delta", "20260202", [(2, 1, "a")]),
            ("delta", "20260204", [(1, 2, "a", "-D")]),
        ],
    )
    assert outcomes(compact(table, "dt=20260203")) == {"dt=20260203": "gap"}
    carried = seen(table, where=day_is("20260203"), gap_policy="carry_forward")
    assert compact(table, "dt=20260203", gap_policy="carry_forward").changed
    assert seen(table, where=day_is("20260203")) == carried == on("20260203", (1, 1, "a"), (2, 1, "a"))
    assert seen(table, where=day_is("20260204")) == on("20260204", (2, 1, "a"))


def test_an_empty_result_is_there_and_reads_as_empty(tmp_path: Path) -> None:
    """Paimon writes nothing then, and computes it again every time."""
    table = chain_table(
        tmp_path,
        [
            ("snapshot", "20260201", versions(range(9), 1, "a")),
            ("delta", "20260202", [(k, 2, "a", "-D") for k in range(9)]),
            ("delta", "20260203", [(7, 3, "b")]),
        ],
    )
    result = compact(table, pending=True, max_chain_length=0)
    assert [(r["partition"], r["rows_out"], r["files_out"]) for r in result.details["partitions"]] == [
        ("dt=20260202", 0, 1),
        ("dt=20260203", 1, 1),
    ]
    assert seen(table, where=day_is("20260202")) == []
    assert seen(table, where=day_is("20260203")) == on("20260203", (7, 3, "b"))
    assert ("20260202",) in gather_chain(table).partitions.snapshot
    assert not compact(table, pending=True, max_chain_length=0).changed


def test_the_delete_in_an_empty_result_hides_nothing(tmp_path: Path) -> None:
    """All deletes are gone from full partitions: the key in which an empty one is written down is no exception."""
    table = chain_table(tmp_path, [("delta", "20260201", [(k, 5, "a", "-D") for k in range(4)])], buckets=1)
    compact(table, "dt=20260201")
    change(table, "delta", "20260202", versions(range(4), 3, "late"))
    assert seen(table) == on("20260202", *versions(range(4), 3, "late"))


def test_a_bucket_that_became_empty_leaves_no_file(tmp_path: Path) -> None:
    table = chain_table(
        tmp_path,
        [("snapshot", "20260201", versions(range(9), 1, "a")), ("delta", "20260202", [(0, 2, "a", "-D")])],
        buckets=4,
    )
    by_bucket = {s.bucket for s in plan_scan(table.branch("snapshot")).splits}
    alone = min(by_bucket)
    gone = [r for r in full(table) if bucket_of(table, r[0]) == alone]
    change(table, "delta", "20260202", [(r[0], 3, "a", "-D") for r in gone])
    folder = tmp_path / "d.db" / "t" / "dt=20260202" / f"bucket-{alone}"
    compact(table, "dt=20260202")
    splits = [s for s in plan_scan(table.branch("snapshot")).splits if s.values == ("20260202",)]
    assert {s.bucket for s in splits} <= by_bucket - {alone}
    written = {f.file_name for s in plan_scan(table.branch("delta")).splits for f in s.files}
    assert {p.name for p in folder.glob("data-*")} <= written  # the sign is gone again


def bucket_of(table: Table, key: int) -> int:
    schema = table.schema()
    keys = [schema.field(n).type for n in schema.bucket_keys]
    return int(bucket_of_rows([pa.array([key], pa.int32())], keys, 4)[0])


def test_main_is_not_looked_at(tmp_path: Path) -> None:
    table = chain_table(tmp_path, [("main", "20260202", [(9, 9, "m")]), ("delta", "20260202", [(1, 1, "a")])])
    compact(table, "dt=20260202")
    assert full(table) == on("20260202", (1, 1, "a"))
    assert seen(table) == on("20260202", (9, 9, "m"))


def test_partial_update(tmp_path: Path) -> None:
    table = chain_table(tmp_path, PARTIAL, values=TWO_VALUES, merge_engine="partial-update")
    expected = seen(table, where=day_is("20250811"))
    assert outcomes(compact(table, "dt=20250811")) == {"dt=20250811": "compacted"}
    assert seen(table, where=day_is("20250811")) == expected
    assert [r for r in full(table) if r[-1] == "20250811"] == expected


def test_partial_update_with_deletes(tmp_path: Path) -> None:
    option = {"partial-update__remove-record-on-delete": "true"}
    table = chain_table(*(tmp_path / "a", PARTIAL_DELETES), values=TWO_VALUES, merge_engine="partial-update", **option)
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


def test_wrong_requests_change_nothing(tmp_path: Path) -> None:
    table = chain_table(tmp_path, DAYS)
    for wrong, why in (("day=20250811", "no partition column"), ("dt=2025-08-11", "write it like dt=20000101")):
        with pytest.raises(InvalidInputError, match=why):
            compact(table, wrong, operation_id="x")
    assert not (tmp_path / "d.db" / "t" / "_airflow_paimon").exists()


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
    compaction, (work,) = plan_buckets(state, [chain], 256 << 10)
    assert compaction.inputs.deltas.batch_rows == 1024
    output = compact_bucket(*pickle.loads(pickle.dumps((compaction, work))))
    files = output.message.new_files
    assert len(files) > 2 and sum(f.row_count for f in files) == len(expected)
    assert max(f.row_count for f in files) < 12_000
    compact(table, "dt=20260203", task_memory_mb=1)
    assert seen(table, where=day_is("20260203")) == expected
    (split,) = (s for s in plan_scan(table.branch("snapshot")).splits if s.values == ("20260203",))
    keys = [(f.min_key, f.max_key) for f in split.files]
    assert len(set(keys)) == len(keys) > 1


@pytest.mark.parametrize("seed", range(20))
def test_compaction_equals_the_model(tmp_path: Path, seed: int) -> None:
    """Random chains of both engines; each read of main says the same before and after some partition became full."""
    chance = random.Random(seed)
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


def test_a_spec_that_leaves_a_chain_column_out(tmp_path: Path) -> None:
    table = chain_table(
        tmp_path,
        [("delta", f"{day}/{hour}", [(1, 1, hour)]) for day in ("20260201", "20260202") for hour in ("01", "03")],
        partitions=HOURS,
        form=HOUR_FORM,
    )
    expected = seen(table)
    assert list(outcomes(compact(table, "dt=20260202"))) == ["dt=20260202/hour=01", "dt=20260202/hour=03"]
    assert seen(table) == expected
    carried = compact(table, "dt='20260202'", gap_policy="carry_forward")
    assert outcomes(carried)["dt=20260202/hour=02"] == "compacted"
    assert outcomes(carried)["dt=20260202/hour=00"] == "compacted"
