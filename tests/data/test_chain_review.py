"""Full partitions whose rows are nowhere else, or whose history is not what it was: scenarios that a review found."""

from __future__ import annotations

import uuid
from typing import Any

from airflow_paimon.core.chain_staleness import stale_partitions
from airflow_paimon.core.chain_state import gather_chain
from airflow_paimon.core.table import Table
from tests.data.chains import Row, Writes, chain_table, day_is, seen
from tests.data.compactions import compact, outcomes
from tests.data.compactions import drop as drop_unseen
from tests.data.test_chain_writes import put

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
    assert outcomes(result) == {"dt=20250803": "already-there"}
    assert "nobody recorded what it was built from" in result.details["partitions"][0]["reason"]
    assert rows(table, "20250803") == before
    assert outcomes(compact(table, "dt=20250803", overwrite=True)) == {"dt=20250803": "stale-rebuilt"}
    assert rows(table, "20250803") == [(1, 1, "a"), (2, 4, "B"), (3, 3, "c")]


def test_loading_one_full_partition_again_leaves_a_later_loaded_one() -> None:
    table = chain(LOADED)
    before = rows(table, "20250803")
    put(table.branch("snapshot"), "20250801", (1, 1, "A"), mode="dynamic_overwrite")
    assert night(table) == {"dt=20250803": "already-there"}
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
    assert len(before) == 4 and night(table)["dt=20250802"] == "already-there"
    assert rows(table, "20250802") == before


def test_a_dropped_anchor_that_its_deltas_give_again_is_no_obstacle() -> None:
    table = chain([("delta", "20250801", [(1, 1, "a")]), ("delta", "20250802", [(2, 2, "b")])])
    compact(table, "dt=20250801", "dt=20250802")
    drop_unseen(table, "snapshot", "dt=20250801")
    put(table.branch("delta"), "20250802", (2, 3, "B"), mode="dynamic_overwrite")
    assert night(table) == {"dt=20250802": "stale-rebuilt"}
    assert rows(table, "20250802") == [(1, 1, "a"), (2, 3, "B")]
