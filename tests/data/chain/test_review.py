"""Full partitions whose rows exist nowhere else, or whose recorded inputs no longer match the table."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from airflow_paimon.core.chain.state import gather_chain
from airflow_paimon.core.commit.committer import commit
from airflow_paimon.core.commit.draft import CommitMessage, Draft
from airflow_paimon.core.commit.files import commit_buckets
from airflow_paimon.core.errors import InvalidInputError, UnsafeOperationError
from airflow_paimon.core.format.binary_row import encode_row
from airflow_paimon.core.format.manifest import DeletionVectorRange, IndexEntry
from airflow_paimon.core.format.snapshot import CommitKind
from airflow_paimon.core.table.data_file_paths import bucket_folder
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table
from tests.core.chain.tables import stale_partitions
from tests.core.tables import run
from tests.data.chain.compactions import change, compact, outcomes
from tests.data.chain.compactions import drop as drop_unseen
from tests.data.chain.expiries import OLD, both, made
from tests.data.chain.tables import Row, Writes, chain_table, day_is, seen
from tests.data.chain.test_writes import drop, put

LOADED: Writes = [
    ("snapshot", "20250801", [(1, 1, "a")]),
    ("delta", "20250802", [(2, 2, "b")]),
    ("delta", "20250803", [(3, 3, "c")]),
    ("snapshot", "20250803", [(1, 1, "a"), (2, 2, "b"), (3, 3, "c"), (9, 9, "only here")]),
]
"""Two partitions that somebody loaded; the second one has a row that no delta has."""


def chain(writes: Writes, **more: Any) -> Table:
    return chain_table(f"memory://{uuid.uuid4()}/wh", writes, buckets=1, **more)


def rows(table: Table, day: str) -> list[Row]:
    return [r[:-1] for r in seen(table, where=day_is(day))]


def stale(table: Table) -> list[str]:
    return [s.values[-1] for s in stale_partitions(table, gather_chain(table))]


def night(table: Table) -> dict[str, str]:
    return outcomes(compact(table, pending=True, max_chain_length=9))


# -- the night ---------------------------------------------------------------------------------------------------------


def test_the_night_never_rebuilds_a_later_full_partition_that_nobody_recorded() -> None:
    table = chain(LOADED)
    before = rows(table, "20250803")
    done = put(table.branch("delta"), "20250802", (2, 4, "B"), mode="dynamic_overwrite")
    assert [s["partition"] for s in done["details"]["stale"]] == ["dt=20250803"]
    result = compact(table, pending=True, max_chain_length=9)
    assert outcomes(result) == {"dt=20250803": "exists"}
    assert "its inputs were not recorded" in result.details["partitions"][0]["reason"]
    assert rows(table, "20250803") == before
    assert outcomes(compact(table, "dt=20250803", overwrite=True)) == {"dt=20250803": "stale-rebuilt"}
    assert rows(table, "20250803") == [(1, 1, "a"), (2, 4, "B"), (3, 3, "c")]


def test_loading_one_full_partition_again_leaves_a_later_loaded_one() -> None:
    table = chain(LOADED)
    before = rows(table, "20250803")
    put(table.branch("snapshot"), "20250801", (1, 1, "A"), mode="dynamic_overwrite")
    assert night(table) == {"dt=20250803": "exists"}
    assert rows(table, "20250803") == before


def test_an_own_delta_does_not_stand_in_for_a_dropped_anchor() -> None:
    """S[01] was loaded with rows that D[01] has not; gone is gone."""
    table = chain(
        [
            ("snapshot", "20250801", [(1, 1, "a"), (2, 1, "a"), (3, 1, "a")]),
            ("delta", "20250801", [(1, 2, "b")]),
            ("delta", "20250802", [(4, 2, "d")]),
        ]
    )
    compact(table, "dt=20250802")
    drop_unseen(table, "snapshot", "dt=20250801")
    put(table.branch("delta"), "20250802", (4, 5, "dd"), mode="dynamic_overwrite")
    before = rows(table, "20250802")
    assert len(before) == 4 and night(table)["dt=20250802"] == "exists"
    assert rows(table, "20250802") == before


def test_a_dropped_anchor_that_its_deltas_give_again_is_not_an_obstacle() -> None:
    table = chain([("delta", "20250801", [(1, 1, "a")]), ("delta", "20250802", [(2, 2, "b")])])
    compact(table, "dt=20250801", "dt=20250802")
    drop_unseen(table, "snapshot", "dt=20250801")
    put(table.branch("delta"), "20250802", (2, 3, "B"), mode="dynamic_overwrite")
    assert night(table) == {"dt=20250802": "stale-rebuilt"}
    assert rows(table, "20250802") == [(1, 1, "a"), (2, 3, "B")]


# -- drops and rebuilds ------------------------------------------------------------------------------------------------


@pytest.fixture
def expired() -> Table:
    """S[0201] was built by us; all that it was built from but its own delta has expired."""
    table = made("0101", "0102 0201")
    compact(table, "dt=20250201")
    run(table, "expire_partitions", **OLD)
    assert both(table) == ("0201", "0201") and len(rows(table, "20250201")) == 4
    return table


@pytest.mark.parametrize("mode", ["append", "dynamic_overwrite"])
def test_rows_for_a_kept_anchor_do_not_cost_its_own(expired: Table, mode: str) -> None:
    before = rows(expired, "20250201")
    put(expired.branch("delta"), "20250201", (500, 500, "late"), mode=mode, on_stale="record")
    assert rows(expired, "20250201") == before
    assert night(expired) == {"dt=20250201": "exists"}
    assert outcomes(compact(expired, "dt=20250201", overwrite=True)) == {"dt=20250201": "exists"}
    drop(expired.branch("delta"), "20250201")
    assert night(expired) == {"dt=20250201": "exists"} and rows(expired, "20250201") == before


def test_a_kept_anchor_is_not_dropped_while_its_own_delta_exists(expired: Table) -> None:
    with pytest.raises(UnsafeOperationError, match="20250201 can't be dropped"):
        drop(expired.branch("snapshot"), "20250201")
    assert len(rows(expired, "20250201")) == 4


def test_a_loaded_first_partition_with_a_delta_of_its_own_stays() -> None:
    loaded: Writes = [("snapshot", "20250801", [(1, 1, "a"), (2, 1, "a")]), ("delta", "20250801", [(1, 2, "b")])]
    table = chain(loaded)
    put(table.branch("delta"), "20250801", (1, 3, "c"), on_stale="record")
    assert night(table) == {"dt=20250801": "exists"}
    with pytest.raises(UnsafeOperationError, match="can't be dropped"):
        drop(table.branch("snapshot"), "20250801")
    assert rows(table, "20250801") == [(1, 1, "a"), (2, 1, "a")]


def test_a_first_partition_built_from_deltas_that_are_there_may_go() -> None:
    table = chain([("delta", "20250801", [(1, 1, "a")])])
    compact(table, "dt=20250801")
    drop(table.branch("snapshot"), "20250801")
    assert rows(table, "20250801") == [(1, 1, "a")]


def test_another_on_stale_is_another_request() -> None:
    table = chain([w for w in LOADED if w[:2] != ("snapshot", "20250803")])
    drop(table.branch("delta"), "20250803", operation_id="out", on_stale="refuse")
    with pytest.raises(InvalidInputError, match="another request"):
        drop(table.branch("delta"), "20250803", operation_id="out", on_stale="record")


# -- what is found to be stale -----------------------------------------------------------------------------------------


def rewrite(branch: Table, day: str) -> None:
    """Compact a partition as Paimon does: the same rows in other files."""
    plan, out = plan_scan(branch), []
    for split in (s for s in plan.splits if s.values == (day,)):
        folder, new = bucket_folder(plan.schema, split.values, split.bucket), []
        for file in split.files:
            name = f"data-{uuid.uuid4()}-0.parquet"
            branch.store.create(f"{folder}/{name}", branch.store.read(f"{folder}/{file.file_name}"))
            new.append(file._replace(file_name=name))
        out.append(
            CommitMessage(
                partition=encode_row(split.values, plan.schema.partition_types),
                bucket=split.bucket,
                total_buckets=split.total_buckets,
                new_files=tuple(new),
                replaced=split.files,
            )
        )
    commit_buckets(branch, out, kind=CommitKind.COMPACT, operation=None)


def test_a_full_partition_that_paimon_compacted_is_built_again() -> None:
    table = chain([w for w in LOADED if w[:2] != ("snapshot", "20250803")])
    compact(table, "dt=20250803")
    rewrite(table.branch("snapshot"), "20250803")
    done = put(table.branch("delta"), "20250802", (7, 7, "late"))
    assert [s["partition"] for s in done["details"]["stale"]] == ["dt=20250803"]
    assert night(table) == {"dt=20250803": "stale-rebuilt"}
    rewrite(table.branch("snapshot"), "20250803")
    done = put(table.branch("delta"), "20250802", (8, 8, "later"))
    assert [s["partition"] for s in done["details"]["stale"]] == ["dt=20250803"]
    assert night(table) == {"dt=20250803": "stale-rebuilt"}
    assert rows(table, "20250803") == [(1, 1, "a"), (2, 2, "b"), (3, 3, "c"), (7, 7, "late"), (8, 8, "later")]


@pytest.mark.parametrize("day", ["20250801", "20250802"])
def test_rows_added_to_an_anchor_make_partitions_built_from_it_stale(day: str) -> None:
    """The anchor itself, or a new one that is nearer."""
    table = chain(LOADED)
    done = put(table.branch("snapshot"), day, (5, 5, "x"))
    assert [s["partition"] for s in done["details"]["stale"]] == ["dt=20250803"]
    assert stale(table) == ["20250803"]


@pytest.mark.parametrize("on_stale", [None, "refuse"])
def test_rows_hidden_in_a_partition_without_a_time_are_refused(on_stale: str | None) -> None:
    table = chain([*LOADED, ("delta", "x", [(1, 1, "a")]), ("snapshot", "x", [(1, 1, "a")])])
    with pytest.raises(UnsafeOperationError, match=r"dt=x of branch delta would be invisible.*dt=x is without"):
        put(table.branch("delta"), "x", (2, 2, "b"), on_stale=on_stale)
    put(table.branch("delta"), "x", (2, 2, "b"), on_stale="record")


def reused_ids(table: Table) -> None:
    """Roll the delta branch back by one snapshot as Java does, and put two others in its place."""
    delta = table.branch("delta")
    delta.store.delete(delta.paths.snapshot(delta.latest_snapshot_id() or 0))
    delta.store.delete(delta.paths.latest_hint)
    change(table, "delta", "20250803", [(5, 5, "good")])
    change(table, "delta", "20250820", [(6, 6, "other")])


def test_rows_under_a_snapshot_id_that_was_used_before() -> None:
    table = chain([w for w in LOADED if w[:2] != ("snapshot", "20250803")])
    change(table, "delta", "20250803", [(4, 4, "rolled back")])
    compact(table, "dt=20250803")
    reused_ids(table)
    assert stale(table) == ["20250803"]
    assert night(table) == {"dt=20250803": "stale-rebuilt"}
    assert rows(table, "20250803") == [(1, 1, "a"), (2, 2, "b"), (3, 3, "c"), (5, 5, "good")]
    assert stale(table) == []


def test_a_deletion_vector_is_seen_after_history_expired() -> None:
    """The anchor's files are the same; a vector hides rows of them."""
    table = chain([w for w in LOADED if w[:2] != ("snapshot", "20250803")])
    compact(table, "dt=20250803")
    assert stale(table) == []
    snapshot = table.branch("snapshot")
    held = next(s for s in plan_scan(snapshot).splits if s.values == ("20250801",))
    marks = (DeletionVectorRange(held.files[0].file_name, 1, 40, 1),)
    entry = IndexEntry(0, held.partition, 0, "DELETION_VECTORS", "index-1", 50, 1, marks)
    schema = snapshot.schema()
    commit(snapshot, lambda _: Draft(kind=CommitKind.APPEND, entries=[], index_entries=[entry], schema=schema))
    for number in snapshot.snapshot_ids()[:-1]:
        snapshot.store.delete(snapshot.paths.snapshot(number))
    assert stale(table) == ["20250803"]
