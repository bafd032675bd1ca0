"""Compaction of chain tables, without Spark: the procedure's cases as rows, and what holds for every bucket."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_paimon.core.chain.layout import ChainBranch
from airflow_paimon.core.chain.provenance import gather_provenances
from airflow_paimon.core.chain.state import gather_chain, state_digests
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.table.bucket import bucket_of_rows
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table
from tests.data.chain.compactions import change, compact, full, kinds, outcomes
from tests.data.chain.tables import (
    DAYS,
    chain_table,
    day_is,
    on,
    seen,
    versions,
)

HOURS = {"dt": "STRING", "hour": "STRING"}
HOUR_FORM = ("$dt $hour:00:00", "yyyyMMdd HH:mm:ss")


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
    assert (again.changed, outcomes(again)) == (False, {"dt=20260224": "exists"})


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
    digests = state_digests(state, ChainBranch.SNAPSHOT)
    (record,) = gather_provenances(table, state.layout, state.snapshot).values()
    assert record.values == ("20260224",)
    assert record.anchor is not None and record.anchor.files == digests["20260223",]
    assert [d.files for d in record.deltas] == [state_digests(state, ChainBranch.DELTA)["20260224",]]
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
    assert outcomes(compact(table, "dt=20260225")) == {"dt=20260225": "exists"}
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
    assert result.details["counts"] == {"compacted": 3, "exists": 3}
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


def test_wrong_requests_change_nothing(tmp_path: Path) -> None:
    table = chain_table(tmp_path, DAYS)
    for wrong, why in (("day=20250811", "not a partition column"), ("dt=2025-08-11", "write it like dt=20000101")):
        with pytest.raises(InvalidInputError, match=why):
            compact(table, wrong, operation_id="x")
    assert not (tmp_path / "d.db" / "t" / "_airflow_paimon").exists()


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
