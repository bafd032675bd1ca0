"""erase_rows on chain tables: every day shows what it showed, but for the erased keys, and no file holds these."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

from airflow_paimon.core.chain.state import gather_chain
from airflow_paimon.core.errors import UnsafeOperationError, UnsupportedFeatureError
from airflow_paimon.core.table.table import Table, open_table
from tests.core.chain.tables import stale_partitions
from tests.core.metadata_expiry.test_remove_orphan_files import Aged, sound
from tests.data.chain.compactions import change, compact, outcomes
from tests.data.chain.tables import DAYS, Row, Writes, chain_table, seen
from tests.data.erasure.test_erase_rows import ALL, erase
from tests.randomness import chance, lives, moments
from tests.stores import Crash, FaultStore


def raw_values(table: Table, column: str = "k") -> list[Any]:
    """All values of a column in all Parquet and ORC files of the folder, by pyarrow alone."""
    root = Path(table.store.uri.removeprefix("file://"))
    found: list[Any] = []
    for path in root.rglob("bucket-*/*"):
        if path.suffix == ".parquet":
            found += pq.ParquetFile(path).read().column(column).to_pylist()
        elif path.suffix == ".orc":
            found += orc.ORCFile(path).read().column(column).to_pylist()
    return found


def without(rows: Sequence[Row], key: int) -> list[Row]:
    return [row for row in rows if row[0] != key]


def reads(table: Table) -> list[list[Row]]:
    return [
        seen(table),
        seen(table, gap_policy="carry_forward"),
        *(seen(table.branch(b)) for b in ("snapshot", "delta")),
    ]


def stale(table: Table) -> dict[str, tuple[bool, int]]:
    state = gather_chain(table)
    return {state.layout.text_of(s.values): (s.cascade, len(s.lost)) for s in stale_partitions(table, state)}


def erased(table: Table, key: int, **values: Any) -> dict[str, Any]:
    before = reads(table)
    details = erase(table, where=f"k = {key}", **values).details
    assert reads(table) == [without(rows, key) for rows in before]
    return dict(details)


def test_a_key_goes_from_all_three_branches(tmp_path: Path) -> None:
    table = chain_table(tmp_path, DAYS)
    details = erased(table, 1)
    assert [one["branch"] for one in details["erased"]] == ["snapshot", "delta", "main"] and not details["branches"]
    assert 1 in raw_values(table), "earlier snapshots still have it"
    assert erased(table, 1, **ALL)["complete"] and 1 not in raw_values(table) and 2 in raw_values(table)
    sound(table)


@pytest.mark.parametrize(
    "options", [{"deletion_vectors__enabled": "true"}, {"merge_engine": "partial-update"}], ids=str
)
def test_what_is_not_written_again_in_a_chain_is_refused(tmp_path: Path, options: dict[str, str]) -> None:
    table = chain_table(tmp_path, DAYS, **options)
    before = table.store.walk("")
    for dry_run in (True, False):
        with pytest.raises(UnsupportedFeatureError, match="rows in place in chain tables with"):
            erase(table, where="k = 1", dry_run=dry_run)
    assert {p for p in table.store.walk("") if not p.startswith("_airflow")} == set(before)


def test_a_delete_that_hides_another_keys_row_stays(tmp_path: Path) -> None:
    """The day's bucket is written again for key 2: without the delete of key 1 the anchor's row would come back."""
    table = chain_table(
        tmp_path,
        [
            ("snapshot", "20250801", [(1, 1, "a"), (2, 1, "a"), (3, 1, "a")]),
            ("delta", "20250802", [(1, 2, "a", "-D"), (2, 2, "b")]),
        ],
        buckets=1,
    )
    assert [row[0] for row in seen(table) if row[-1] == "20250802"] == [2, 3]
    erased(table, 2)
    assert [row[0] for row in seen(table) if row[-1] == "20250802"] == [3]


def test_a_condition_that_an_older_row_would_outlive_is_refused(tmp_path: Path) -> None:
    table = chain_table(tmp_path, DAYS)
    before = table.store.walk("")
    for where, said in (("v = '1-1'", "Leave v out"), ("k = 1 AND dt = '20250810'", "Leave dt out")):
        for dry_run in (True, False):
            with pytest.raises(UnsupportedFeatureError, match=f"rows are erased by key on all days: .* {said}"):
                erase(table, where=where, dry_run=dry_run)
    assert table.store.walk("") == before


@pytest.mark.parametrize(
    ("writes", "said"),
    [
        (
            [("snapshot", "20250801", [(2, 1, "a")]), ("delta", "20250802", [(1, 1, "a")])],
            "dt=20250802 of branch delta, without which that day has no rows at all",
        ),
        (
            [("snapshot", "20250801", [(2, 1, "a")]), ("main", "20250801", [(1, 1, "a")])],
            "dt=20250801 of main, which hides",
        ),
        (
            [
                ("snapshot", "20250801", [(2, 1, "a")]), ("snapshot", "20250802", [(1, 1, "a")]),
                ("delta", "20250803", [(3, 1, "a")]),
            ],
            "dt=20250802 of branch snapshot, on which later deltas build",
        ),
    ],
)  # fmt: skip
def test_a_partition_whose_being_there_matters_is_not_emptied(tmp_path: Path, writes: Writes, said: str) -> None:
    table = chain_table(tmp_path, writes)
    before = table.store.walk(""), reads(table)
    for dry_run in (True, False):
        with pytest.raises(UnsafeOperationError, match=said):
            erase(table, where="k = 1", dry_run=dry_run)
    assert (table.store.walk(""), reads(table)) == before


def test_a_group_of_one_person_goes_whole(tmp_path: Path) -> None:
    table = chain_table(
        tmp_path,
        [
            ("snapshot", "eu/20250801", [(1, 1, "a")]), ("delta", "eu/20250802", [(1, 2, "b")]),
            ("delta", "eu/20250803", [(1, 3, "c")]), ("snapshot", "us/20250801", [(2, 1, "a")]),
            ("delta", "us/20250802", [(2, 2, "b"), (1, 1, "a")]),
        ],
        partitions={"region": "STRING", "dt": "STRING"}, chain_keys="dt",
    )  # fmt: skip
    details = erased(table, 1, **ALL)
    assert [one["branch"] for one in details["erased"]] == ["delta", "snapshot"] and details["complete"]
    assert {row[-2] for row in seen(table)} == {"us"} and 1 not in raw_values(table)
    regional = erase(table, where="region = 'us'", **ALL).details
    assert regional["complete"] and seen(table) == [] and raw_values(table) == []


CHAIN: Writes = [
    ("delta", "20250801", [(1, 1, "a"), (2, 1, "a"), (3, 1, "a")]),
    ("delta", "20250802", [(1, 2, "b"), (4, 1, "a")]),
    ("delta", "20250803", [(2, 2, "b"), (1, 3, "c")]),
    ("delta", "20250804", [(3, 2, "b")]),
]


def compacted(folder: Path) -> Table:
    table = chain_table(folder, CHAIN)
    for day in ("20250802", "20250803"):
        compact(table, f"dt={day}")
    return table


def test_what_was_fresh_stays_fresh_also_without_its_history(tmp_path: Path) -> None:
    table = compacted(tmp_path)
    assert stale(table) == {}
    erased(table, 1, **ALL)
    assert stale(table) == {}
    for branch in ("snapshot", "delta"):
        assert table.branch(branch).snapshot_ids() == table.branch(branch).snapshot_ids()[-1:], "no history is left"
    found = compact(table, pending=True, max_chain_length=99)
    assert "stale-rebuilt" not in outcomes(found).values()
    change(table, "delta", "20250802", [(4, 5, "late")])
    assert set(stale(table)) == {"dt=20250802", "dt=20250803"}, "what is stale is still found to be"


def test_what_was_stale_stays_stale_also_without_its_history(tmp_path: Path) -> None:
    table = compacted(tmp_path)
    change(table, "delta", "20250802", [(4, 5, "late")])
    before = stale(table)
    assert set(before) == {"dt=20250802", "dt=20250803"}
    erased(table, 1, **ALL)
    assert stale(table) == before
    compact(table, pending=True, max_chain_length=99)
    assert stale(table) == {} and 1 not in raw_values(table)


def test_a_delta_that_goes_whole_is_not_a_lost_one(tmp_path: Path) -> None:
    table = chain_table(tmp_path, [*CHAIN[:1], ("delta", "20250802", [(1, 2, "b")]), *CHAIN[2:]])
    compact(table, "dt=20250802")
    erased(table, 1, **ALL)
    assert stale(table) == {} and "20250802" not in str(seen(table.branch("delta")))


def test_a_compaction_that_was_planned_before_brings_nothing_back(tmp_path: Path) -> None:
    from airflow_paimon.data.compaction_tasks import run_here

    table, done = chain_table(tmp_path, CHAIN), []

    def late(works: Any) -> Any:
        outputs = list(run_here(works))
        if not done:
            done.append(erase(table, where="k = 1"))
        return iter(outputs)

    compact(table, "dt=20250802", run=late)
    assert done and 1 not in [row[0] for row in seen(table)]
    last = erase(table, where="k = 1", store=Aged, **ALL)
    assert last.details["complete"] and 1 not in raw_values(table) and stale(table) == {}


def test_a_run_that_is_killed_goes_on(tmp_path: Path) -> None:
    made = compacted(tmp_path / "made")
    for step in moments(300, 25):
        shutil.copytree(tmp_path / "made", tmp_path / str(step))
        table = open_table(str(tmp_path / str(step)), made.name)
        before = reads(table)

        def faulty(store: Any, at: int = step) -> Any:
            return FaultStore(Aged(store), fail_at=at, error=Crash(), after=at % 2 == 0)

        try:
            erase(table, where="k = 1", store=faulty, operation_id="op", **ALL)
        except Crash:
            assert [without(rows, 1) for rows in reads(table)] == [without(rows, 1) for rows in before]
        else:
            break
        assert erase(table, where="k = 1", store=Aged, operation_id="op2", **ALL).details["unchecked"] == []
        assert reads(table) == [without(rows, 1) for rows in before] and stale(table) == {}
        assert erase(table, where="k = 1", store=Aged, **ALL).details["complete"] and 1 not in raw_values(table)
        sound(table)
    else:
        raise AssertionError("it never ended")


@pytest.mark.random
@pytest.mark.parametrize("seed", range(lives(3, 6)))
def test_random_chains(tmp_path: Path, seed: int) -> None:
    """Writes, deletes, compactions and late rows in any order; what is refused changes nothing."""
    rng = chance(f"erase-chain-{seed}")
    days = [f"2025080{n}" for n in range(1, 6)]

    def some(day: str, kinds: Sequence[str]) -> list[Row]:
        return [(k, rng.randrange(9), f"{day}{k}", rng.choice(kinds)) for k in range(6) if rng.random() < 0.6]

    writes = [("delta", day, rows) for day in days if (rows := some(day, ("+I", "+I", "-D")))]
    writes += [
        (b, day, rows)
        for b in ("main", "snapshot")
        for day in days
        if rng.random() < 0.2 and (rows := some(day, ("+I",)))
    ]
    table = chain_table(tmp_path, writes, buckets=rng.choice((1, 2)))
    for day in rng.sample(days, 3):
        compact(table, f"dt={day}")
        if rng.random() < 0.4 and (late := some(day, ("+I",))):
            change(table, "delta", rng.choice(days), late)
    key, before, judged = rng.randrange(6), reads(table), stale(table)
    try:
        details = erase(table, where=f"k = {key}", **ALL).details
    except UnsafeOperationError as error:
        assert "partitions that must stay" in error.message
        assert reads(table) == before and stale(table) == judged
        return
    assert reads(table) == [without(rows, key) for rows in before] and stale(table) == judged
    assert details["complete"] and key not in raw_values(table)
    sound(table)
