"""Anchors and the deltas that hold the same rows, dropped at the same moment: neither branch's guard sees it coming."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pyarrow as pa
import pytest

from airflow_paimon.core.errors import StorageError, UnsafeOperationError
from airflow_paimon.core.store import Store
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import drop_partitions, read_arrow, write_arrow
from tests.core.chain.tables import as_another_engine
from tests.core.tables import run
from tests.data.chain.compactions import change, compact
from tests.data.chain.expiries import both, made, rows_of
from tests.data.chain.test_expire_races import competing
from tests.stores import FaultStore

T = TypeVar("T")
ANCHOR = {"dt": "20250103"}
DELTAS = [{"dt": "20250102"}, {"dt": "20250103"}]


def compacted() -> Table:
    """0103 is built from 0101 and two deltas, and another delta builds on it."""
    table = made("0101", "0102 0103 0105")
    compact(table, "dt=20250103")
    return table


def drop_anchor(table: Table) -> None:
    drop_partitions(table.branch("snapshot"), [ANCHOR])


def drop_deltas(table: Table) -> None:
    drop_partitions(table.branch("delta"), DELTAS)


def with_company(table: Table, branch: str, what: Callable[[], None]) -> Table:
    """The table, with somebody who acts right before our commit on a branch is put."""
    return Table(competing(table, branch, what), table.name)


def test_either_goes_alone() -> None:
    table = compacted()
    drop_anchor(table)
    assert both(table) == ("0101", "0102 0103 0105")
    table = compacted()
    drop_deltas(table)
    assert both(table) == ("0101 0103", "0105")


def test_an_anchor_is_back_when_its_deltas_went_at_that_very_moment() -> None:
    table = compacted()
    expected = rows_of(table, {"0105"})
    seen_twice = with_company(table, "snapshot", lambda: drop_deltas(table))
    with pytest.raises(UnsafeOperationError) as caught:
        drop_anchor(seen_twice)
    assert "dt=20250103 were dropped at the same moment as dt=20250102" in caught.value.message
    assert caught.value.details["partitions"] == ["dt=20250103"]
    assert caught.value.details["snapshot"] == table.branch("snapshot").latest_snapshot_id()
    assert both(table) == ("0101 0103", "0105")
    assert rows_of(table, {"0105"}) == expected


def test_deltas_are_back_when_the_anchor_that_held_their_rows_went_at_that_very_moment() -> None:
    table = compacted()
    expected = rows_of(table, {"0105"})
    seen_twice = with_company(table, "delta", lambda: drop_anchor(table))
    with pytest.raises(UnsafeOperationError, match="which held their rows; they are back with snapshot"):
        drop_deltas(seen_twice)
    assert both(table) == ("0101", "0102 0103 0105")
    assert rows_of(table, {"0105"}) == expected


def test_added_rows_stay_when_dropped_partitions_are_restored() -> None:
    """Its files are in a snapshot by then: an error would have had them deleted."""
    table = compacted()
    expected = rows_of(table, {"0105"})
    view = with_company(table, "snapshot", lambda: drop_deltas(table)).branch("snapshot")
    rows = pa.table({"k": [8], "s": [8], "v": ["new"], "dt": ["20250101"]}, schema=read_arrow(view).schema)
    result = write_arrow(view, rows, mode="overwrite")
    assert "dt=20250103 were dropped at the same moment" in result["details"]["warnings"][0]
    assert both(table) == ("0101 0103", "0105")
    assert rows_of(table, {"0105"}) == expected
    assert [r[:3] for r in rows_of(table, {"0101"})] == [(8, 8, "new")]


def test_what_can_not_be_put_back_names_the_way_out() -> None:
    table = compacted()
    before = table.branch("snapshot").latest_snapshot_id()

    def compete(method: str, path: str) -> None:
        if method == "create" and "branch-snapshot/snapshot/snapshot-" in path:
            if both(table)[1] == "0105":
                raise StorageError("disk full")
            drop_deltas(table)

    with pytest.raises(UnsafeOperationError) as caught:
        drop_anchor(Table(FaultStore(table.store, on_mutation=compete), table.name))
    assert "can't be restored" in caught.value.message
    assert f"rollback_to --branch snapshot --snapshot {before}" in caught.value.message


class Blind(FaultStore):
    """The first look at a branch that follows a commit on the other one fails."""

    def __init__(self, inner: Store, own: str) -> None:
        super().__init__(inner)
        self._own = f"branch-{own}/snapshot/snapshot-"
        self._other = "branch-delta/snapshot/" if own == "snapshot" else "branch-snapshot/snapshot/"
        self._armed = False

    def _call(self, method: str, path: str, action: Callable[[], T]) -> T:
        if self._armed and path.startswith(f"branch/{self._other}"):
            self._armed = False
            raise StorageError("connection reset")
        done = super()._call(method, path, action)
        self._armed = self._armed or (method == "create" and self._own in path)
        return done


@pytest.mark.parametrize(
    ("branch", "dropped", "names"),
    [("snapshot", [ANCHOR], ["dt=20250103"]), ("delta", DELTAS, ["dt=20250102", "dt=20250103"])],
)
def test_a_drop_that_could_not_be_checked_is_an_error(
    branch: str, dropped: list[dict[str, str]], names: list[str]
) -> None:
    table = compacted()
    before = table.branch(branch).latest_snapshot_id()
    with pytest.raises(UnsafeOperationError, match=r"are dropped, but the check .*connection reset") as caught:
        drop_partitions(Table(Blind(table.store, branch), table.name, branch), dropped)
    assert all(n in caught.value.message for n in (*names, "check_chain_table"))
    assert f"rollback_to --branch {branch} --snapshot {before}" in caught.value.message
    committed = table.branch(branch).latest_snapshot_id()
    assert caught.value.details == {"partitions": names, "snapshot": before, "committed_snapshot": committed}
    assert committed == (before or 0) + 1  # it stands
    run(table, "rollback_to", branch=branch, snapshot=before)
    assert both(table) == both(compacted())


def test_a_write_that_could_not_be_checked_says_so_in_its_warnings() -> None:
    table = compacted()
    blind = Table(Blind(table.store, "snapshot"), table.name, "snapshot")
    rows = pa.table({"k": [8], "s": [8], "v": ["new"], "dt": ["20250101"]}, schema=read_arrow(blind).schema)
    (warning,) = write_arrow(blind, rows, mode="overwrite")["details"]["warnings"]
    assert "dt=20250103 are dropped, but the check" in warning and "check_chain_table" in warning
    assert both(table)[0] == "0101"  # what it wrote stands


def test_what_another_engine_drops_at_that_moment_counts_as_well() -> None:
    table = compacted()
    expected = rows_of(table, {"0105"})
    seen_twice = with_company(table, "snapshot", lambda: as_another_engine(table, lambda: drop_deltas(table)))
    with pytest.raises(UnsafeOperationError):
        drop_anchor(seen_twice)
    assert rows_of(table, {"0105"}) == expected


def test_other_commits_meanwhile_keep_nothing() -> None:
    table = compacted()
    late = with_company(table, "snapshot", lambda: change(table, "delta", "20250107", [(9, 9, "late")]))
    drop_anchor(late)
    assert both(table) == ("0101", "0102 0103 0105 0107")


def test_a_partition_that_somebody_has_loaded_again_meanwhile_stays_as_that() -> None:
    """What is put back must not be laid over it: its old rows would come back to life."""
    table = compacted()
    loaded = [(3, 99, "loaded")]

    company = [lambda: drop_deltas(table), lambda: change(table, "snapshot", "20250103", loaded)]

    def compete(method: str, path: str) -> None:
        if company and method == "create" and "branch-snapshot/snapshot/snapshot-" in path:
            company.pop(0)()

    fault = FaultStore(table.store, on_mutation=compete)
    with pytest.raises(UnsafeOperationError, match="they exist again"):
        drop_anchor(Table(fault, table.name))
    assert [r[:3] for r in rows_of(table, {"0103"})] == loaded
