"""Stale snapshot partitions: built from what is no longer so."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_paimon.core.chain.provenance import StalePartition
from airflow_paimon.core.chain.state import gather_chain
from airflow_paimon.core.table.table import Table
from tests.core.chain.tables import (
    DAILY,
    add,
    as_another_engine,
    build,
    compact,
    drop,
    make_chain,
    overwrite,
    provenances,
    stale_partitions,
)
from tests.stores import CountingStore


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """S[01]; D[02..05]; S[03] built from S[01] and D[02], D[03]; S[05] built on S[03]."""
    table = make_chain(tmp_path / "wh")
    add(table.branch("snapshot"), "20250101")
    for day in ("20250102", "20250103", "20250104", "20250105"):
        add(table.branch("delta"), day)
    build(table, "20250103", "20250101", ["20250102", "20250103"])
    build(table, "20250105", "20250103", ["20250104", "20250105"])
    return table


def stale(table: Table) -> dict[str, StalePartition]:
    return {"/".join(s.values): s for s in stale_partitions(table, gather_chain(table))}


def test_what_was_built_from_what_is_there_is_fresh(table: Table) -> None:
    assert stale(table) == {}
    assert set(provenances(table, gather_chain(table))) == {("20250103",), ("20250105",)}


def test_a_late_append_makes_a_partition_and_those_built_from_it_stale(table: Table) -> None:
    add(table.branch("delta"), "20250102", bucket=1)
    found = stale(table)
    assert set(found) == {"20250103", "20250105"}
    assert (found["20250103"].because, found["20250103"].cascade) == ((("20250102",),), False)
    assert "delta dt=20250102 was changed" in found["20250103"].reason
    assert (found["20250105"].because, found["20250105"].cascade) == ((("20250103",),), True)
    assert not any(f.lost for f in found.values())


def test_an_overwritten_delta(table: Table) -> None:
    overwrite(table.branch("delta"), "20250105")
    assert [s.because for s in stale(table).values()] == [(("20250105",),)]


def test_compaction_of_a_delta_changes_no_row(table: Table) -> None:
    compact(table.branch("delta"), "20250102")
    compact(table.branch("delta"), "20250105")
    assert stale(table) == {}
    add(table.branch("delta"), "20250104")
    assert set(stale(table)) == {"20250105"}, "and D[05], which compaction alone touched, is not blamed"
    assert stale(table)["20250105"].because == (("20250104",),)


def test_compaction_of_a_full_partition_keeps_its_record(table: Table) -> None:
    compact(table.branch("snapshot"), "20250103")
    compact(table.branch("snapshot"), "20250103")
    assert stale(table) == {}
    assert set(provenances(table, gather_chain(table))) == {("20250103",), ("20250105",)}
    as_another_engine(table, lambda: add(table.branch("delta"), "20250102"))
    assert set(stale(table)) == {"20250103", "20250105"}
    as_another_engine(table, lambda: add(table.branch("snapshot"), "20250103"))
    assert set(stale(table)) == {"20250105"}, "what else was put there since is nobody's record"


def test_compaction_counts_when_its_predecessor_has_expired(table: Table) -> None:
    compact(table.branch("delta"), "20250105")
    table.store.delete("branch/branch-delta/snapshot/snapshot-4")
    assert stale(table) == {}, "the recorded one itself is not needed"
    compact(table.branch("delta"), "20250105")
    table.store.delete("branch/branch-delta/snapshot/snapshot-5")
    assert set(stale(table)) == {"20250105"}


def test_a_late_delta_partition(table: Table) -> None:
    drop(table.branch("delta"), "20250104")
    assert stale(table)["20250105"].lost == (("20250104",),)
    assert "delta dt=20250104 was deleted" in stale(table)["20250105"].reason
    build(table, "20250105", "20250103", ["20250105"])
    assert stale(table) == {}
    add(table.branch("delta"), "20250104")
    assert stale(table)["20250105"].reason == "delta dt=20250104 came after it was built"


def test_a_replaced_anchor(table: Table) -> None:
    overwrite(table.branch("snapshot"), "20250101")
    found = stale(table)
    assert "anchor dt=20250101 was replaced" in found["20250103"].reason
    assert found["20250105"].cascade
    build(table, "20250103", "20250101", ["20250102", "20250103"])
    assert [s.reason for s in stale(table).values()] == ["anchor dt=20250103 was replaced after it was built"]
    build(table, "20250105", "20250103", ["20250104", "20250105"])
    assert stale(table) == {}


def test_expiry_of_a_whole_segment_makes_nothing_stale(table: Table) -> None:
    drop(table.branch("delta"), "20250102")
    assert stale(table)["20250103"].lost == (("20250102",),), "between expiry's two commits"
    drop(table.branch("snapshot"), "20250101")
    assert stale(table) == {}
    overwrite(table.branch("delta"), "20250103")
    assert set(stale(table)) == {"20250103", "20250105"}


def test_a_dropped_anchor_leaves_what_was_built_on_it(table: Table) -> None:
    drop(table.branch("snapshot"), "20250103")
    assert stale(table) == {}


def test_a_nearer_anchor(table: Table) -> None:
    build(table, "20250104", "20250103", ["20250104"])
    assert stale(table) == {}, "made of what S[05] was made of"
    drop(table.branch("snapshot"), "20250103")
    drop(table.branch("snapshot"), "20250104")
    build(table, "20250105", "20250101", ["20250102", "20250103", "20250104", "20250105"])
    build(table, "20250103", "20250101", ["20250102", "20250103"])
    build(table, "20250104", "20250103", ["20250104"])
    assert stale(table) == {}, "one after the other, of what S[05] was made of at once"
    overwrite(table.branch("snapshot"), "20250104")
    assert stale(table)["20250105"].reason == "a nearer anchor dt=20250104 came after it was built"


def test_a_partition_that_another_engine_overwrote_is_not_reported(table: Table) -> None:
    overwrite(table.branch("snapshot"), "20250103")
    as_another_engine(table, lambda: add(table.branch("delta"), "20250102"))
    assert set(stale(table)) == {"20250105"}, "its anchor was replaced; S[03] itself has no record now"


def test_groups_are_apart(tmp_path: Path) -> None:
    table = make_chain(
        tmp_path / "wh",
        partitions=("region", "dt"),
        options={**DAILY, "chain-table.chain-partition-keys": "dt"},
    )
    for region in ("CN", "US"):
        add(table.branch("delta"), f"{region}/20250101")
    build(table, "CN/20250101", None, ["CN/20250101"])
    build(table, "US/20250101", None, ["US/20250101"])
    add(table.branch("delta"), "US/20241231")
    assert {k: s.reason for k, s in stale(table).items()} == {
        "US/20250101": "delta region=US/dt=20241231 came after it was built"
    }


def test_a_record_that_cannot_be_read_is_not_a_record(table: Table) -> None:
    names = table.store.walk("_airflow_paimon/chain")
    assert len(names) == 2
    table.store.replace(names[0], b"{")
    assert len(provenances(table, gather_chain(table))) == 1


def test_records_are_read_together(tmp_path: Path) -> None:
    options = {**DAILY, "chain-table.chain-partition-keys": "dt"}
    table = make_chain(f"memory://{tmp_path.name}/wh", partitions=("region", "dt"), options=options)
    days = [f"r{g}/202501{d:02}" for g in range(3) for d in range(1, 4)]
    for day in days:
        add(table.branch("delta"), day)
        build(table, day, None, [d for d in days if d.split("/")[0] == day.split("/")[0] and d <= day])
    store = CountingStore(table.store)
    counted = Table(store, table.name)
    state = gather_chain(counted)
    store.tally.reset()
    assert len(provenances(counted, state)) == len(days)
    assert store.tally.calls == {"names": 3, "read_many": 1}
    assert stale_partitions(table, state) == ()
