"""Races and orders of chain maintenance that a review found: each test is named after what happened."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest

from airflow_paimon.core.chain.state import gather_chain
from airflow_paimon.core.commit.draft import CommitMessage
from airflow_paimon.core.commit.files import commit_buckets
from airflow_paimon.core.errors import ConflictError, UnsafeOperationError, UnsupportedFeatureError
from airflow_paimon.core.format.snapshot import CommitKind
from airflow_paimon.core.store import Store
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table
from tests.core.chain.tables import as_another_engine, stale_partitions
from tests.core.tables import run
from tests.data.chain.compactions import change, compact, outcomes
from tests.data.chain.expiries import OLD, both, made, rows_of
from tests.data.chain.tables import Row, set_options
from tests.data.chain.test_compact_races import meanwhile, nothing
from tests.data.chain.test_expire_races import competing, drop, faulty, killed_between
from tests.stores import Crash, FaultStore

T = TypeVar("T")
LATE: Row = (7, 7, "late")


def stale(table: Table) -> list[str]:
    return [s.values[-1][4:] for s in stale_partitions(table, gather_chain(table))]


# -- expiry and stale partitions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["append", "dynamic_overwrite"])
def test_expiry_keeps_what_a_stale_partition_is_to_be_built_from(mode: str) -> None:
    """A late or corrected delta behind an old anchor went before anybody had built it in, and its finding with it."""
    table = made("0101", "0102 0103 0110")
    compact(table, "dt=20250103")
    change(table, "delta", "20250102", [LATE], mode=mode)
    assert stale(table) == ["0103"]
    result = run(table, "expire_partitions", **OLD)
    assert not result.changed
    assert "dt=20250103 is stale" in result.details["groups"][0]["reason"]
    assert result.details["waits_for"] == ["dt=20250103"]
    assert "compact_chain_table --pending" in result.details["warnings"][0]
    assert stale(table) == ["0103"]
    assert outcomes(compact(table, pending=True, max_chain_length=9)) == {"dt=20250103": "stale-rebuilt"}
    assert run(table, "expire_partitions", **OLD).changed
    assert both(table) == ("0103", "0103 0110")
    assert LATE in [r[:3] for r in rows_of(table, {"0110"})]


def test_expiry_keeps_the_inputs_of_stale_partitions_one_behind_the_other() -> None:
    """What stays for one stale partition is stale itself; segments before their inputs go all the same."""
    table = made("0101 0105", "0102 0106 0107 0108 0110")
    compact(table, "dt=20250107", "dt=20250110")
    change(table, "delta", "20250106", [LATE])
    assert stale(table) == ["0107", "0110"]
    result = run(table, "expire_partitions", **OLD)
    assert both(table) == ("0105 0107 0110", "0106 0107 0108 0110")
    assert result.details["segments"] == 1
    compact(table, pending=True, max_chain_length=9)
    run(table, "expire_partitions", **OLD)
    assert both(table) == ("0110", "0110")
    assert LATE in [r[:3] for r in rows_of(table, {"0110"})]


def test_a_stale_partition_that_expires_itself_keeps_nothing() -> None:
    table = made("0101 0201", "0102 0103 0205")
    compact(table, "dt=20250103")
    change(table, "delta", "20250102", [LATE])
    run(table, "expire_partitions", **OLD)
    assert both(table) == ("0201", "0205")


def test_an_expiry_of_compacted_partitions_ends_what_a_killed_one_began() -> None:
    """Between the two commits what stays lacks its deltas while its anchor is there: that keeps nothing."""
    table = made("0101", "0102 0103 0105 0110")
    compact(table, "dt=20250103", "dt=20250110")
    killed_between(table)
    assert both(table) == ("0101 0103 0110", "0110")
    run(table, "expire_partitions", **OLD)
    assert both(table) == ("0110", "0110")


# -- expiry and a drop of the anchor at that very moment --------------------------------------------------------------


def grouped() -> Table:
    table = made("US/0101", "US/0105 US/0201 US/0205")
    compact(table, "region=US,dt=20250201")
    return table


@pytest.mark.parametrize("branch", ["delta", "snapshot"])
def test_deltas_come_back_when_the_anchor_went_while_they_were_dropped(branch: str) -> None:
    """A drop that was allowed, as the deltas were there, lands right before expiry's commit, or right behind it."""
    table = grouped()
    expected = rows_of(table, {"US/0205"})

    def anchor_goes() -> None:
        as_another_engine(table, lambda: drop(table, "snapshot", "US/0201"))

    result = faulty(table, competing(table, branch, anchor_goes))
    assert both(table) == ("US/0101", "US/0105 US/0201 US/0205")
    assert rows_of(table, {"US/0205"}) == expected
    assert not result.changed and not result.details["expired"]
    assert not run(table, "expire_partitions", **OLD).changed


def test_deltas_come_back_when_the_base_was_corrected_while_they_were_dropped() -> None:
    table = made("0101", "0105 0201 0205")
    compact(table, "dt=20250201")

    def correct() -> None:
        change(table, "snapshot", "20250101", [LATE], mode="dynamic_overwrite")

    assert not faulty(table, competing(table, "delta", correct)).details["expired"]
    assert both(table) == ("0101 0201", "0105 0201 0205")
    assert outcomes(compact(table, pending=True, max_chain_length=9)) == {"dt=20250201": "stale-rebuilt"}
    run(table, "expire_partitions", **OLD)
    assert both(table) == ("0201", "0201 0205")
    assert LATE in [r[:3] for r in rows_of(table, {"0205"})]


def test_deltas_come_back_on_the_retry_of_a_run_that_died_right_behind_its_commit() -> None:
    table = grouped()
    expected = rows_of(table, {"US/0205"})
    killed_between(table, operation_id="op")
    as_another_engine(table, lambda: drop(table, "snapshot", "US/0201"))
    result = run(table, "expire_partitions", **OLD, operation_id="op")
    assert both(table) == ("US/0101", "US/0105 US/0201 US/0205")
    assert rows_of(table, {"US/0205"}) == expected
    assert not result.details["expired"]


def test_deltas_whose_base_is_gone_stay_dropped() -> None:
    table = grouped()
    killed_between(table, operation_id="op")
    as_another_engine(table, lambda: (drop(table, "snapshot", "US/0201"), drop(table, "snapshot", "US/0101")))
    run(table, "expire_partitions", **OLD, operation_id="op")
    assert both(table) == ("", "US/0201 US/0205")


def test_deltas_that_can_not_come_back_name_the_way_out() -> None:
    table = grouped()
    head = table.branch("delta").latest_snapshot_id()
    assert head is not None
    killed_between(table, operation_id="op")
    as_another_engine(table, lambda: drop(table, "snapshot", "US/0201"))
    table.store.delete(table.branch("delta").paths.snapshot(head))
    with pytest.raises(UnsafeOperationError, match=rf"rollback_to --branch delta --snapshot {head}"):
        run(table, "expire_partitions", **OLD, operation_id="op")


# -- compaction -------------------------------------------------------------------------------------------------------


def test_a_nearer_anchor_loaded_while_a_partition_is_compacted_is_built_on() -> None:
    table = made("0101", "0102 0103")

    def load() -> None:
        change(table, "snapshot", "20250102", [(8, 200, "loaded")])

    result = compact(table, "dt=20250103", run=meanwhile(load, nothing))
    assert outcomes(result) == {"dt=20250103": "compacted"}
    assert result.details["partitions"][0]["anchor"] == "dt=20250102"
    assert rows_of(table, {"0103"}) == [
        (1, 103, "0103", "20250103"),
        (103, 103, "delta-0103", "20250103"),
        (8, 200, "loaded", "20250103"),
    ]
    assert not stale(table)


def leveled(table: Table, branch: str, day: str) -> None:
    """Bring a partition's files up under their names, as Paimon's compaction does with what overlaps nothing."""
    view = table.branch(branch)
    splits = [s for s in plan_scan(view).splits if s.values == (day,)]
    messages = [
        CommitMessage(
            partition=s.partition,
            bucket=s.bucket,
            total_buckets=s.total_buckets,
            new_files=tuple(f._replace(level=5) for f in s.files),
            replaced=s.files,
        )
        for s in splits
    ]
    commit_buckets(view, messages, kind=CommitKind.COMPACT, operation=None)


def test_rows_that_deletion_vectors_hide_are_compacted_by_paimon_first() -> None:
    table = made("0101", "0102")
    for view in (table, table.branch("snapshot"), table.branch("delta")):
        set_options(view, {"deletion-vectors.enabled": "true"})
    for branch, day in (("snapshot", "20250101"), ("delta", "20250102")):
        with pytest.raises(UnsupportedFeatureError, match=f"dt={day} of branch {branch} .*let Paimon compact"):
            compact(table, "dt=20250102")
        leveled(table, branch, day)
    assert outcomes(compact(table, "dt=20250102")) == {"dt=20250102": "compacted"}
    assert [r[0] for r in rows_of(table, {"0102"})] == [1, 101, 102]


def test_a_partition_whose_delta_changed_before_a_killed_try_could_look_again_is_built_again() -> None:
    table = made("0101", "0102 0103")
    done: list[str] = []

    def company(method: str, path: str) -> None:
        if done:
            raise Crash("right behind the commit")
        if method == "create" and path.endswith("branch/branch-snapshot/snapshot/snapshot-2"):
            done.append(path)
            change(table, "delta", "20250102", [LATE])

    asked = ("dt=20250102", "dt=20250103")
    with pytest.raises(Crash):
        compact(table, *asked, store=FaultStore(table.store, on_mutation=company), operation_id="op")
    assert stale(table) == ["0102"]
    result = compact(table, *asked, operation_id="op")
    assert outcomes(result) == {"dt=20250102": "stale-rebuilt", "dt=20250103": "compacted"}
    assert not stale(table)
    assert LATE in [r[:3] for r in rows_of(table, {"0103"})]


def test_a_delta_of_the_anchors_date_with_other_buckets_does_not_count() -> None:
    table = made("0101", "0102")
    delta = table.branch("delta")
    set_options(delta, {"bucket": "4"})
    change(table, "delta", "20250101", [LATE])
    set_options(delta, {"bucket": "1"})
    compact(table, "dt=20250102")
    assert {s.total_buckets for s in plan_scan(table.branch("snapshot")).splits} == {1}


# -- reads ------------------------------------------------------------------------------------------------------------


class Paced(FaultStore):
    """Acts before the next look at a branch's snapshots, as often as there are acts."""

    def __init__(self, inner: Store, branch: str, *acts: Callable[[], object]) -> None:
        super().__init__(inner)
        self._folder = f"branch/branch-{branch}/snapshot"
        self._acts = list(acts)

    def _call(self, method: str, path: str, action: Callable[[], T]) -> T:
        if path == self._folder and self._acts:  # a listing
            self._acts.pop(0)()
        return super()._call(method, path, action)


def night(table: Table) -> None:
    compact(table, "dt=20250201")
    run(table, "expire_partitions", **OLD)


def test_a_reader_that_meets_compaction_and_expiry_between_two_branches_loses_no_row() -> None:
    table = made("0101", "0105 0201 0205")
    expected = rows_of(table, {"0205"})
    store = Paced(table.store, "delta", lambda: night(table))
    assert rows_of(Table(store, table.name), {"0205"}) == expected
    assert both(table) == ("0201", "0201 0205")


def test_a_state_is_that_of_one_moment() -> None:
    table = made("0101", "0105 0201 0205")
    store = Paced(table.store, "delta", lambda: night(table))
    state = gather_chain(Table(store, table.name))
    assert sorted(v[0][4:] for v in state.partitions.snapshot) == ["0201"]
    assert sorted(v[0][4:] for v in state.partitions.delta) == ["0201", "0205"]


def test_branches_that_never_rest_are_a_conflict() -> None:
    table = made("0101", "0105")
    acts = [lambda n=n: change(table, "snapshot", "20250101", [(n, n, "x")]) for n in range(100, 125)]
    with pytest.raises(ConflictError, match="during each of 20 attempts"):
        gather_chain(Table(Paced(table.store, "delta", *acts), table.name))
