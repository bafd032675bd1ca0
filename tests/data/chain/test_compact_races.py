"""Compaction of chain tables in company: writers in between, two compactors at once, a crash at every mutation."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest

from airflow_paimon.core.chain.state import gather_chain
from airflow_paimon.core.errors import ConflictError, InvalidInputError
from airflow_paimon.core.table.scan import plan_scan, scan_without_files, with_planned_files
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.data.chain.compact import MAX_ROUNDS
from airflow_paimon.data.compaction_tasks import CompactionTask, RunTasks, TaskOutput, run_here
from tests.core.chain.tables import stale_partitions
from tests.core.tables import run
from tests.data.chain.compactions import change, compact, drop, full, outcomes
from tests.data.chain.tables import Row, Writes, chain_table, day_is, on, seen
from tests.randomness import moments
from tests.stores import Crash, FaultStore

WRITES: Writes = [
    ("snapshot", "20260201", [(k, 1, "a") for k in range(6)]),
    ("delta", "20260202", [(1, 2, "b"), (7, 2, "b")]),
    ("delta", "20260203", [(2, 3, "c"), (7, 3, "c", "-D")]),
]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return chain_table(tmp_path, WRITES, buckets=1)


def meanwhile(*actions: Callable[[], object]) -> RunTasks:
    """Run tasks, the n-th time with the n-th action behind them, the last one for all further times."""
    left = list(actions)

    def run(works: Sequence[CompactionTask]) -> Iterable[TaskOutput]:
        outputs = list(run_here(works))
        (left.pop(0) if len(left) > 1 else left[0])()
        return outputs

    return run


def nothing() -> None:
    """No company."""


def live(table: Table) -> list[str]:
    return [f.file_name for s in plan_scan(table.branch("snapshot")).splits for f in s.files]


def stored(tmp_path: Path) -> set[str]:
    """Data files on disk."""
    return {p.name for p in (tmp_path / "d.db" / "t").glob("dt=*/bucket-*/data-*")}


def check_files(table: Table, tmp_path: Path) -> None:
    """Nothing is doubled, and no file is left that nobody refers to."""
    names = live(table)
    assert len(names) == len(set(names))
    known = {
        f.file_name
        for b in ("snapshot", "delta")
        for i in table.branch(b).snapshot_ids()
        for s in with_planned_files(scan_without_files(table.branch(b), i)).splits
        for f in s.files
    }
    assert stored(tmp_path) == known


def test_two_compactors_at_once(table: Table, tmp_path: Path) -> None:
    expected = seen(table)
    inner = []
    result = compact(table, "dt=20260202", run=meanwhile(lambda: inner.append(compact(table, "dt=20260202")), nothing))
    assert outcomes(inner[0]) == {"dt=20260202": "compacted"}
    assert outcomes(result) == {"dt=20260202": "exists"}
    assert not result.changed
    assert seen(table) == expected
    check_files(table, tmp_path)


def test_two_that_overwrite(table: Table, tmp_path: Path) -> None:
    compact(table, "dt=20260202")
    result = compact(
        table,
        "dt=20260202",
        overwrite=True,
        run=meanwhile(lambda: compact(table, "dt=20260202", overwrite=True), nothing),
    )
    (row,) = result.details["partitions"]
    assert (row["outcome"], row["reason"]) == ("exists", "another compaction has built it meanwhile")
    assert len(live(table)) == 2
    check_files(table, tmp_path)


def test_pending_finds_the_work_done(table: Table, tmp_path: Path) -> None:
    def other() -> None:
        compact(table, pending=True, max_chain_length=0)

    result = compact(table, pending=True, max_chain_length=0, tasks_at_once=9, run=meanwhile(other, nothing))
    assert outcomes(result) == {"dt=20260202": "exists", "dt=20260203": "exists"}
    check_files(table, tmp_path)


LATE: Row = (3, 9, "late")


@pytest.mark.parametrize("mode", ["append", "dynamic_overwrite"])
def test_a_delta_that_changed_is_planned_again(table: Table, tmp_path: Path, mode: str) -> None:
    run = meanwhile(lambda: change(table, "delta", "20260202", [LATE], mode=mode), nothing)
    result = compact(table, "dt=20260202", "dt=20260203", run=run)
    assert outcomes(result) == {"dt=20260202": "compacted", "dt=20260203": "compacted"}
    rows = {r[0]: r[1:3] for r in full(table) if r[-1] == "20260202"}
    assert rows[3] == (9, "late")
    assert (7 in rows) == (mode == "append")
    assert not stale_partitions(table, gather_chain(table))
    check_files(table, tmp_path)


def test_a_delta_that_came_in_between(table: Table, tmp_path: Path) -> None:
    drop(table, "delta", "dt=20260202")
    run = meanwhile(lambda: change(table, "delta", "20260202", [LATE]), nothing)
    compact(table, "dt=20260203", run=run)
    assert LATE in [r[:3] for r in full(table) if r[-1] == "20260203"]
    assert not stale_partitions(table, gather_chain(table))


def test_an_anchor_that_changed(table: Table, tmp_path: Path) -> None:
    run = meanwhile(lambda: change(table, "snapshot", "20260201", [(0, 5, "z")], mode="dynamic_overwrite"), nothing)
    compact(table, "dt=20260202", run=run)
    assert seen(table, where=day_is("20260202")) == on("20260202", (0, 5, "z"), (1, 2, "b"), (7, 2, "b"))
    check_files(table, tmp_path)


def test_other_groups_and_days_disturb_nobody(table: Table) -> None:
    tries: list[int] = []

    def company() -> None:
        tries.append(1)
        change(table, "delta", "20260203", [(4, 9, "later")])
        change(table, "snapshot", "20260120", [(4, 9, "earlier")])

    assert compact(table, "dt=20260202", run=meanwhile(company)).changed
    assert len(tries) == 1


def test_a_writer_that_never_rests_is_a_conflict(table: Table, tmp_path: Path) -> None:
    number = iter(range(100))

    def company() -> None:
        change(table, "delta", "20260203", [(5, 10 + next(number), "again")])

    with pytest.raises(ConflictError, match=rf"dt=20260203 changed in each of {MAX_ROUNDS} attempts") as caught:
        compact(table, "dt=20260202", "dt=20260203", run=meanwhile(company), operation_id="op")
    assert caught.value.details == {"done": ["dt=20260202"], "partitions": ["dt=20260203"]}
    result = compact(table, "dt=20260202", "dt=20260203", operation_id="op")
    assert outcomes(result) == {"dt=20260202": "compacted", "dt=20260203": "compacted"}
    replayed = [r.get("replayed", False) for r in result.details["partitions"]]
    assert replayed == [True, False]
    check_files(table, tmp_path)


def test_a_delta_that_changes_right_after_the_check_is_built_in(table: Table, tmp_path: Path) -> None:
    """The commit is on its way when the delta changes: that is seen right after it, and the partition built again."""
    done: list[str] = []

    def company(method: str, path: str) -> None:
        if method == "create" and path.endswith("branch/branch-snapshot/snapshot/snapshot-2") and not done:
            done.append(path)
            change(table, "delta", "20260202", [LATE])

    store = FaultStore(table.store, on_mutation=company)
    result = compact(table, "dt=20260202", store=store)
    assert done
    assert outcomes(result) == {"dt=20260202": "stale-rebuilt"}
    assert LATE in [r[:3] for r in full(table) if r[-1] == "20260202"]
    assert table.branch("snapshot").latest_snapshot_id() == 3
    assert not stale_partitions(table, gather_chain(table))
    check_files(table, tmp_path)


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_crash_at_every_mutation(tmp_path: Path, overwrite: bool) -> None:
    """A second try with the same operation id does what is missing, and nothing twice."""

    made = chain_table(tmp_path / "made", WRITES, buckets=1)
    if overwrite:
        compact(made, "dt=20260202", "dt=20260203")

    def fresh(name: str) -> Table:
        shutil.copytree(tmp_path / "made", tmp_path / name)
        return open_table(str(tmp_path / name), "d.t")

    first = fresh("probe")
    probe = FaultStore(first.store)
    asked = ("dt=20260202", "dt=20260203")
    expected = outcomes(compact(first, *asked, store=probe, overwrite=overwrite, operation_id="op"))
    visible, rows, ids = seen(made), full(first), first.branch("snapshot").snapshot_ids()
    for step in moments(len(probe.mutations) + 1, 5):
        for after in (False, True):
            table = fresh(f"{step}-{after}")
            with pytest.raises(Crash):
                compact(
                    table,
                    *asked,
                    store=FaultStore(table.store, step, after=after),
                    overwrite=overwrite,
                    operation_id="op",
                )
            assert seen(table) == visible, "a chain reads the same whether it is compacted or not"
            result = compact(table, *asked, overwrite=overwrite, operation_id="op")
            assert outcomes(result) == expected, (step, after)
            assert full(table) == rows
            assert table.branch("snapshot").snapshot_ids() == ids
            names = live(table)
            assert len(names) == len(set(names)) == 3
            assert not stale_partitions(table, gather_chain(table))
            assert run(table, "check_chain_table").details["errors"] == 0


def test_a_task_that_fails_leaves_no_file_of_the_others(table: Table, tmp_path: Path) -> None:
    def failing(works: Sequence[CompactionTask]) -> Iterable[TaskOutput]:
        yield from run_here(works[:1])
        raise ConflictError("no space left")

    with pytest.raises(ConflictError, match="no space left"):
        compact(table, "dt=20260202", run=failing)
    check_files(table, tmp_path)


def test_a_retry_gives_the_first_tries_result(table: Table) -> None:
    first = compact(table, "dt=20260202", "dt=20260205", operation_id="op")
    again = compact(table, "dt=20260202", "dt=20260205", operation_id="op")
    assert outcomes(first) == outcomes(again) == {"dt=20260202": "compacted", "dt=20260205": "gap"}
    assert (first.snapshot_before, first.snapshot_after) == (again.snapshot_before, again.snapshot_after) == (1, 2)
    assert again.changed
    with pytest.raises(InvalidInputError, match="another request"):
        compact(table, "dt=20260203", operation_id="op")
    other = compact(table, "dt=20260202", "dt=20260205", operation_id="op-2")
    assert outcomes(other) == {"dt=20260202": "exists", "dt=20260205": "gap"}


def test_late_rows_make_a_partition_stale_until_it_is_built_again(table: Table, tmp_path: Path) -> None:
    """Connector 2.0.0: rows appended to the delta of a full partition are invisible for good."""
    compact(table, "dt=20260202", "dt=20260203")
    change(table, "delta", "20260202", [LATE])
    told = compact(table, "dt=20260202")
    assert not told.changed and "it is stale (delta dt=20260202 was changed" in told.details["partitions"][0]["reason"]
    result = compact(table, pending=True, max_chain_length=9)
    assert outcomes(result) == {"dt=20260202": "stale-rebuilt", "dt=20260203": "stale-rebuilt"}
    assert [r[-1] for r in full(table) if r[:3] == LATE] == ["20260202", "20260203"]
    assert not stale_partitions(table, gather_chain(table))
    assert not compact(table, pending=True, max_chain_length=9).changed
    check_files(table, tmp_path)


def test_what_its_anchor_is_gone_of_is_not_built_again(table: Table) -> None:
    """As after expiry: the deltas alone are not what the partition holds."""
    compact(table, "dt=20260202")
    drop(table, "snapshot", "dt=20260201")
    before = full(table)
    result = compact(table, "dt=20260202", overwrite=True)
    assert not result.changed
    assert "can't be rebuilt: its anchor dt=20260201 was deleted" in result.details["partitions"][0]["reason"]
    assert full(table) == before
