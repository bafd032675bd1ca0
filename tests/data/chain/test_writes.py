"""Writes to the branches of chain tables: what is refused, what goes stale, what is built again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_paimon.core.chain.state import gather_chain
from airflow_paimon.core.errors import InvalidInputError, UnsafeOperationError
from airflow_paimon.core.table.record_kinds import CHAIN
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.data import drop_partitions, write_arrow
from tests.core.chain.tables import as_another_engine, stale_partitions
from tests.core.tables import run
from tests.data.chain.compactions import compact, outcomes
from tests.data.chain.tables import Row, Writes, chain_table, day_is, on, seen, set_options

COLUMNS = {"k": pa.int32(), "s": pa.int32(), "v": pa.string(), "dt": pa.string(), "_row_kind": pa.string()}


def rows_of(day: str, *rows: Row) -> pa.Table:
    found = [{**dict(zip("ksv", r, strict=False)), "dt": day, "_row_kind": r[3] if len(r) > 3 else "+I"} for r in rows]
    return pa.Table.from_pylist(found, schema=pa.schema(list(COLUMNS.items())))


def put(table: Table, day: str, *rows: Row, **more: Any) -> dict[str, Any]:
    return write_arrow(table, rows_of(day, *rows), **more)


def drop(table: Table, *days: str, **more: Any) -> Any:
    return drop_partitions(table, [{"dt": d} for d in days], **more)


def days_of(table: Table) -> list[str]:
    return sorted({s.values[0] for s in plan_scan(table).splits})


FULL: Writes = [
    ("snapshot", "20250810", [(1, 1, "a"), (2, 1, "a")]),
    ("delta", "20250811", [(1, 2, "b")]),
    ("delta", "20250812", [(2, 3, "c")]),
    ("snapshot", "20250812", [(1, 2, "b"), (2, 3, "c")]),
    ("delta", "20250813", [(3, 4, "d")]),
    ("snapshot", "20250813", [(1, 2, "b"), (2, 3, "c"), (3, 4, "d")]),
    ("delta", "20250814", [(4, 5, "e")]),
]
"""An anchor, and two partitions that were compacted from it."""


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = chain_table(tmp_path, [w for w in FULL if w[0] == "delta" or w[1] == "20250810"])
    compact(table, "dt=20250812", "dt=20250813")
    return table


# -- appends -----------------------------------------------------------------------------------------------------------


def test_invisible_rows_are_refused(table: Table) -> None:
    """With connector 2.0.0 they are invisible that day and every later day, and compaction returns false."""
    delta = table.branch("delta")
    before = seen(table)
    with pytest.raises(UnsafeOperationError, match=r"20250812 of branch delta would be invisible.*--pending"):
        put(delta, "20250812", (9, 9, "late"))
    assert seen(table) == before and len(seen(delta)) == 4
    done = put(delta, "20250812", (9, 9, "late"), on_stale="record")
    assert seen(table) == before
    assert [(s["partition"], s["cascade"]) for s in done["details"]["stale"]] == [
        ("dt=20250812", False),
        ("dt=20250813", True),
    ]


def rebuild(table: Table) -> dict[str, str]:
    return outcomes(compact(table, pending=True, max_chain_length=9))


def test_late_rows_are_built_in_by_compaction(table: Table) -> None:
    done = put(table.branch("delta"), "20250812", (9, 9, "late"), on_stale="record", operation_id="late")
    assert [s["partition"] for s in done["details"]["stale"]] == ["dt=20250812", "dt=20250813"]
    assert rebuild(table) == {"dt=20250812": "stale-rebuilt", "dt=20250813": "stale-rebuilt"}
    late = (9, 9, "late")
    assert seen(table, where=day_is("20250812")) == on("20250812", (1, 2, "b"), (2, 3, "c"), late)
    assert seen(table, where=day_is("20250814"))[-1] == (*late, "20250814")
    again = put(table.branch("delta"), "20250812", (9, 9, "late"), on_stale="record", operation_id="late")
    assert again["snapshot_after"] == done["snapshot_after"] and len(seen(table.branch("delta"))) == 5
    assert "stale" not in again["details"]


def test_refuse_is_for_overwrites_and_drops_as_well(table: Table) -> None:
    delta = table.branch("delta")
    head = delta.latest_snapshot_id()
    asked: dict[str, Any] = {"mode": "overwrite", "partition": {"dt": "20250812"}, "on_stale": "refuse"}
    with pytest.raises(UnsafeOperationError, match=r"20250812 of branch delta would be invisible"):
        put(delta, "20250812", (1, 9, "new"), **asked)
    with pytest.raises(UnsafeOperationError, match=r"20250813 of branch delta would be invisible"):
        drop(delta, "20250813", on_stale="refuse")
    assert delta.latest_snapshot_id() == head
    put(delta, "20250815", (1, 9, "new"), on_stale="refuse")


@pytest.mark.parametrize("choice", ["rebuild", "drop"])
def test_rebuilding_is_left_to_compaction(table: Table, choice: str) -> None:
    delta = table.branch("delta")
    head = delta.latest_snapshot_id()
    for write in (lambda: put(delta, "20250815", (1, 9, "x"), on_stale=choice), lambda: drop(delta, on_stale=choice)):
        with pytest.raises(InvalidInputError, match=r"on_stale='record'.*compact_chain_table --pending"):
            write()
    assert delta.latest_snapshot_id() == head


def test_rows_before_a_later_full_partition_make_it_stale(table: Table) -> None:
    """They are seen on their own day, not from the next full partition on: that is recorded."""
    done = put(table.branch("delta"), "20250811", (9, 9, "late"))
    assert seen(table, where=day_is("20250811"))[-1] == (9, 9, "late", "20250811")
    assert [s["partition"] for s in done["details"]["stale"]] == ["dt=20250812", "dt=20250813"]
    assert "dt=20250811" in done["details"]["stale"][0]["reason"]
    assert len(table.store.walk(CHAIN.folder)) == 2
    assert "stale" not in put(table.branch("delta"), "20250815", (1, 10, "z"))["details"]


def test_a_loaded_partition_is_not_built_from_a_chain(table: Table) -> None:
    delta = table.branch("delta")
    put(table.branch("snapshot"), "20250816", (1, 1, "loaded"))
    assert "stale" not in put(delta, "20250815", (5, 5, "f"))["details"]
    with pytest.raises(InvalidInputError, match="delta branch"):
        put(table.branch("snapshot"), "20250817", (1, 1, "x"), on_stale="record")
    with pytest.raises(InvalidInputError, match="on_stale is one of"):
        put(delta, "20250817", (1, 1, "x"), on_stale="ignore")


# -- overwriting and dropping deltas -----------------------------------------------------------------------------------


def test_an_overwritten_delta_of_the_first_anchor(tmp_path: Path) -> None:
    """With connector 2.0.0 the statement fails after its data was committed, and the stale anchor still hides it."""
    table = chain_table(tmp_path, [("delta", "20250810", [(1, 1, "a")]), ("delta", "20250811", [(2, 1, "b")])])
    compact(table, "dt=20250810")
    delta = table.branch("delta")
    asked: dict[str, Any] = {"mode": "overwrite", "partition": {"dt": "20250810"}}
    done = put(delta, "20250810", (1, 2, "new"), **asked)
    assert [s["partition"] for s in done["details"]["stale"]] == ["dt=20250810"]
    put(delta, "20250810", (1, 3, "newer"), **asked)
    assert rebuild(table) == {"dt=20250810": "stale-rebuilt"}
    assert seen(table, where=day_is("20250810")) == on("20250810", (1, 3, "newer"))
    assert seen(table, where=day_is("20250811")) == on("20250811", (1, 3, "newer"), (2, 1, "b"))


def test_a_first_anchor_that_another_engine_loaded_is_never_built_again(tmp_path: Path) -> None:
    """Its rows may be in no delta: from the deltas alone it would lose them."""
    writes: Writes = [
        ("snapshot", "20250810", [(1, 1, "a"), (7, 1, "only here")]),
        ("delta", "20250810", [(1, 1, "a")]),
        ("delta", "20250811", [(2, 1, "b")]),
    ]
    table = chain_table(tmp_path, writes)
    asked: dict[str, Any] = {"mode": "overwrite", "partition": {"dt": "20250810"}}
    done = put(table.branch("delta"), "20250810", (1, 2, "new"), **asked)
    assert [s["partition"] for s in done["details"]["stale"]] == ["dt=20250810"]
    night = compact(table, pending=True, max_chain_length=0)
    assert outcomes(night)["dt=20250810"] == "exists"
    assert seen(table, where=day_is("20250811"))[-1] == (7, 1, "only here", "20250811")


def test_a_dropped_delta_stays_in_what_was_built_from_it_until_somebody_asks(table: Table) -> None:
    """No run leaves rows out unasked; naming the partition with overwrite does, and what stands on it follows."""
    delta = table.branch("delta")
    before = seen(table, where=day_is("20250813"))
    done = drop(delta, "20250812", operation_id="out")
    assert drop(delta, "20250812", operation_id="out")["snapshot_after"] == done["snapshot_after"]
    stale = {s["partition"]: s["reason"] for s in done["details"]["stale"]}
    assert "dt=20250812 was deleted" in stale["dt=20250812"] and "dt=20250813" in stale
    for asked in (
        {"pending": True, "max_chain_length": 9},
        {"from_": "dt=20250812", "to": "dt=20250813", "overwrite": True},
    ):
        result = compact(table, **asked)
        assert outcomes(result)["dt=20250812"] == "exists"
        assert "name the partition with overwrite" in result.details["partitions"][0]["reason"]
    assert seen(table, where=day_is("20250813")) == before
    found = outcomes(compact(table, "dt=20250812", overwrite=True))
    assert found == {"dt=20250812": "stale-rebuilt", "dt=20250813": "stale-rebuilt"}
    assert seen(table, where=day_is("20250813")) == on("20250813", (1, 2, "b"), (2, 1, "a"), (3, 4, "d"))
    drop(table.branch("snapshot"), "20250812")  # the day without a delta is a gap again
    assert seen(table, where=day_is("20250812")) == []
    assert stale_partitions(table, gather_chain(table)) == ()


def test_several_deltas_dropped_at_once(table: Table) -> None:
    delta = table.branch("delta")
    done = drop(delta, "20250811", "20250812", operation_id="gone")
    assert done["changed"] and [s["partition"] for s in done["details"]["stale"]] == ["dt=20250812", "dt=20250813"]
    assert days_of(delta) == ["20250813", "20250814"]
    again = drop(delta, "20250811", "20250812", operation_id="gone")
    assert (again["snapshot_after"], again["details"]) == (done["snapshot_after"], done["details"])
    assert not drop(delta, "20250811")["changed"]
    with pytest.raises(InvalidInputError, match="at least one"):
        drop(delta)


def test_deletes_stay_in_overwritten_deltas(table: Table) -> None:
    delta = table.branch("delta")
    put(delta, "20250814", (1, 9, None, "-D"), mode="overwrite", partition={"dt": "20250814"})
    put(delta, "20250815", (2, 9, None, "-D"), mode="dynamic_overwrite")
    assert [r[0] for r in seen(table, where=day_is("20250814"))] == [2, 3]
    assert [r[0] for r in seen(table, where=day_is("20250815"))] == [3]


# -- dropping anchors --------------------------------------------------------------------------------------------------


def test_drops_of_the_reference_example(tmp_path: Path) -> None:
    """testDropSnapshotPartition: the last full partition may go, the first one not."""
    days = [f"2026010{d}" for d in range(1, 6)]
    writes: Writes = [("delta", d, [(int(d[-1]), 1, "a")]) for d in days]
    writes = [*writes, *(("snapshot", d, [(int(d[-1]), 1, "a")]) for d in days[::2])]
    snapshot = chain_table(tmp_path, writes).branch("snapshot")
    drop(snapshot, "20260105")
    with pytest.raises(UnsafeOperationError, match=r"20260101 can't be dropped.*no earlier snapshot partition"):
        drop(snapshot, "20260101")
    assert days_of(snapshot) == ["20260101", "20260103"]


def test_needed_anchors_stay(table: Table) -> None:
    """Several at once (apache/paimon 10126), static and dynamic overwrites, rollback: all of them are one check."""
    snapshot = table.branch("snapshot")
    before = seen(table)
    with pytest.raises(UnsafeOperationError, match=r"20250810 can't be dropped \(and 2 more"):
        drop(snapshot, "20250810", "20250812", "20250813")
    with pytest.raises(UnsafeOperationError, match="20250810 can't be dropped"):
        drop(snapshot, "20250810")
    with pytest.raises(UnsafeOperationError, match="can't be dropped"):
        put(snapshot, "20250820", (1, 1, "x"), mode="overwrite")  # one row instead of all partitions
    with pytest.raises(UnsafeOperationError, match="can't be dropped"):
        put(snapshot, "20250810", mode="overwrite", partition={"dt": "20250810"})
    assert seen(table) == before
    drop(snapshot, "20250812", "20250813")  # the deltas behind the first are all there
    assert seen(table) == before


def test_an_anchor_whose_deltas_are_gone_stays(table: Table) -> None:
    """Paimon asks for an earlier anchor only; without the delta in between its rows would be lost."""
    drop(table.branch("delta"), "20250812", on_stale="record")
    with pytest.raises(UnsafeOperationError, match="of its inputs dt=20250812 was deleted"):
        drop(table.branch("snapshot"), "20250813", "20250812")
    drop(table.branch("snapshot"), "20250813")


def test_an_anchor_that_nobody_built_needs_every_step(tmp_path: Path) -> None:
    writes: Writes = [
        ("snapshot", "20250801", [(1, 1, "old")]),
        ("snapshot", "20250805", [(2, 1, "loaded")]),
        ("delta", "20250806", [(3, 1, "a")]),
    ]
    table = chain_table(tmp_path, writes)
    with pytest.raises(UnsafeOperationError, match="of its inputs dt=20250802, "):
        drop(table.branch("snapshot"), "20250805")


def test_a_rollback_that_would_drop_a_needed_anchor(tmp_path: Path) -> None:
    """testRollbackToAsLatestRejectedWhenDroppingAnchorSnapshotPartition; plain rollback_to checks nothing in Paimon."""
    writes: Writes = [
        ("snapshot", "US/20250101", [(1, 1, "a")]),
        ("snapshot", "CN/20250301", [(1, 1, "a")]),
        ("delta", "CN/20250315", [(1, 2, "b")]),
    ]
    chain_table(tmp_path, writes, partitions={"region": "STRING", "dt": "STRING"}, chain_keys="dt")
    table = open_table(str(tmp_path), "d.t")
    with pytest.raises(UnsafeOperationError, match="region=CN/dt=20250301 can't be dropped"):
        run(table, "rollback_to", branch="snapshot", snapshot=1)
    assert len(plan_scan(table.branch("snapshot")).splits) == 2
    with pytest.raises(UnsafeOperationError, match="option"):
        run(table, "delete_branch", branch="delta")
    with pytest.raises(UnsafeOperationError, match="is the delta branch of a chain table"):
        run(table, "merge_branch", branch="delta")


@pytest.mark.parametrize("branch", ["snapshot", "delta"])
@pytest.mark.parametrize("day", ["2025-08-15", "someday", "20250832", "2025815"])
def test_a_day_that_is_none_is_refused(table: Table, branch: str, day: str) -> None:
    """Otherwise one wrong date would keep every day of the group from being read."""
    view = table.branch(branch)
    before = view.latest_snapshot_id(), days_of(view)
    with pytest.raises(InvalidInputError, match=rf"d\.t: partition dt={day} is .*'yyyyMMdd'.*write its rows to"):
        put(view, day, (9, 9, "x"))
    assert (view.latest_snapshot_id(), days_of(view)) == before
    assert seen(table)


def test_a_day_that_is_none_is_not_published_but_comes_back_by_a_rollback(table: Table) -> None:
    delta = table.branch("delta")
    good = delta.latest_snapshot_id()
    run(table, "create_branch", branch="fix", from_branch="delta", snapshot=good)
    put(table.branch("fix"), "someday", (9, 9, "x"))
    with pytest.raises(InvalidInputError, match="dt=someday is without a partition time"):
        run(table, "merge_branch", branch="fix")
    assert delta.latest_snapshot_id() == good
    as_another_engine(table, lambda: put(delta, "someday", (9, 9, "x")))
    bad = delta.latest_snapshot_id()
    put(delta, "someday", (9, 10, "y"))  # it is there already
    drop(delta, "someday")
    without = delta.latest_snapshot_id()
    run(table, "rollback_to", branch="delta", snapshot=bad)
    assert "someday" in days_of(delta)
    run(table, "rollback_to", branch="delta", snapshot=without)
    run(table, "compact_manifest", branch="delta")  # so that no manifest says any more that it was deleted
    run(table, "rollback_to", branch="delta", snapshot=bad)
    assert "someday" in days_of(delta)


def test_a_day_that_is_none_beside_a_file_that_was_published_before(table: Table) -> None:
    delta = table.branch("delta")
    before = delta.latest_snapshot_id()
    run(table, "create_branch", branch="fix", from_branch="delta", snapshot=before)
    put(table.branch("fix"), "20250816", (9, 9, "x"))
    run(table, "merge_branch", branch="fix")
    run(table, "rollback_to", branch="delta", snapshot=before)
    put(table.branch("fix"), "someday", (9, 9, "x"))
    with pytest.raises(InvalidInputError, match="dt=someday is without a partition time"):
        run(table, "merge_branch", branch="fix")
    drop(table.branch("fix"), "someday")
    run(table, "merge_branch", branch="fix")
    assert "20250816" in days_of(delta)


# -- the rest ----------------------------------------------------------------------------------------------------------


def test_main_hides_what_the_branches_hold(table: Table) -> None:
    done = put(table, "20250813", (1, 1, "mine"))
    assert "dt=20250813 hide" in done["details"]["warnings"][0]
    assert seen(table, where=day_is("20250813")) == on("20250813", (1, 1, "mine"))
    assert "warnings" not in put(table, "20250701", (1, 1, "mine"))["details"]


def test_branches_that_do_not_fit_together_are_refused(table: Table) -> None:
    delta = table.branch("delta")
    for branch in (table, table.branch("snapshot"), delta):
        set_options(branch, {"bucket": "3"})
    with pytest.raises(InvalidInputError, match=r"dt=20250815 would have 3 buckets, but dt=20250813"):
        put(delta, "20250815", (1, 1, "x"))
    put(delta, "20250813", (1, 9, "x"), on_stale="record")  # in the buckets that it has
    set_options(delta, {"bucket": "4"})
    with pytest.raises(InvalidInputError, match="option bucket is '4' in branch 'delta'"):
        put(delta, "20250815", (1, 1, "x"))


def test_partial_updates_of_one_write_add_up(tmp_path: Path) -> None:
    table = chain_table(tmp_path, [("snapshot", "20250810", [(1, 1, "a")])], merge_engine="partial-update")
    put(table.branch("delta"), "20250811", (1, 2, None), (2, 1, "b"), (1, 3, None), (2, 2, None))
    assert seen(table, where=day_is("20250811")) == on("20250811", (1, 3, "a"), (2, 2, "b"))


def test_a_gap_that_was_made_full_goes_stale_and_is_rebuilt(tmp_path: Path) -> None:
    """It has no delta of its own, but goes stale with what comes late before it, and others build on it."""
    table = chain_table(tmp_path, [("delta", "20250810", [(1, 1, "a")]), ("delta", "20250814", [(2, 1, "b")])])
    compact(table, "dt=20250812", gap_policy="carry_forward")
    done = put(table.branch("delta"), "20250811", (3, 1, "late"))
    assert [s["partition"] for s in done["details"]["stale"]] == ["dt=20250812"]
    assert rebuild(table) == {"dt=20250812": "stale-rebuilt"}
    assert seen(table, where=day_is("20250814")) == on("20250814", (1, 1, "a"), (2, 1, "b"), (3, 1, "late"))
