"""Provenance records: read by group, and pruned when their partitions are gone."""

from __future__ import annotations

import time
import uuid
from datetime import UTC, datetime, timedelta

import pytest

from airflow_paimon.core.chain.layout import Values
from airflow_paimon.core.chain.provenance import (
    Records,
    group_folder,
    prune_records,
    record_provenance,
)
from airflow_paimon.core.chain.provenance_plan import Part, Provenance, has_too_many, superfluous
from airflow_paimon.core.chain.state import files_digest, gather_chain, splits_by_partition
from airflow_paimon.core.errors import StorageError
from airflow_paimon.core.table.record_kinds import CHAIN
from airflow_paimon.core.table.table import Table
from tests.core.chain.tables import DAILY, add, build, make_chain, provenances, stale_partitions
from tests.core.chain.test_write_plan import day, days
from tests.stores import CountingStore, FaultStore

NOW = datetime(2026, 11, 21, tzinfo=UTC)
OLD, YOUNG = (NOW - timedelta(days=30)).isoformat(), (NOW - timedelta(days=1)).isoformat()


def record(
    text: str, files: str, anchor: tuple[str, str] | None = None, deltas: str = "", at: str = OLD
) -> tuple[str, Provenance]:
    built = Provenance(
        values=day(text),
        files=files,
        anchor=None if anchor is None else Part(values=day(anchor[0]), files=anchor[1]),
        deltas=tuple(Part(values=v, files="d") for v in sorted(days(deltas))),
        snapshots={},
        origin="test",
        created_at=at,
    )
    return f"{text}-{files}", built


def gone(*records: tuple[str, Provenance], live: dict[str, str], deltas: str) -> set[str]:
    held: dict[Values, str] = {day(t): f for t, f in live.items()}
    return set(superfluous(dict(records), held, days(deltas), NOW))


def test_records_of_live_files_stay_and_older_ones_of_the_same_partition_go() -> None:
    assert gone(record("03", "a"), record("03", "b"), live={"03": "b"}, deltas="") == {"03-a"}
    # somebody rewrote the files: any of the records may be the one that speaks for them
    assert gone(record("03", "a"), record("03", "b"), live={"03": "c"}, deltas="") == set()
    assert gone(record("03", "a"), live={}, deltas="") == {"03-a"}


def test_a_young_record_may_be_of_a_commit_that_is_about_to_land() -> None:
    assert gone(record("03", "a", at=YOUNG), record("04", "a", at="?"), live={}, deltas="") == set()


def test_a_dropped_anchor_stays_on_record_while_it_can_be_built_again() -> None:
    chain = (
        record("07", "a", ("05", "a"), "06 07"),
        record("05", "a", ("03", "a"), "04 05"),
        record("03", "a", None, "03"),
    )
    assert gone(*chain, live={"07": "a"}, deltas="03 04 05 06 07") == set()
    assert gone(*chain, live={"07": "a"}, deltas="04 05 06 07") == {"03-a"}
    assert gone(*chain, live={"07": "a"}, deltas="06 07") == {"05-a", "03-a"}


def stored(count: int) -> Table:
    """One full partition on record, and as many records of partitions that are gone."""
    table = make_chain(f"memory://{uuid.uuid4()}/wh")
    add(table.branch("delta"), "20250102")
    build(table, "20250102", None, ["20250102"])
    layout = gather_chain(table).layout
    for number in range(count):
        values = ((datetime(2020, 1, 1) + timedelta(number)).strftime("%Y%m%d"),)
        built = Provenance(values=values, files="f", anchor=None, deltas=(), snapshots={}, origin="t", created_at=OLD)
        record_provenance(table, layout, built)
    return table


def now_ms() -> int:
    return int(time.time() * 1000)


def test_only_many_records_are_pruned() -> None:
    table = stored(20)
    assert not has_too_many(21, 1) and prune_records(table, now_ms()) == 0
    table = stored(60)
    assert prune_records(table, now_ms()) == 60
    assert len(table.store.walk(CHAIN.folder)) == 1
    assert len(provenances(table, gather_chain(table))) == 1 and stale_partitions(table, gather_chain(table)) == ()


def test_a_failing_clean_up_never_fails_the_operation() -> None:
    table = stored(60)
    faulty = Table(FaultStore(table.store, fail_at=3, error=OSError(5, "no")), table.name)
    assert prune_records(faulty, now_ms()) == 0
    assert len(table.store.walk(CHAIN.folder)) == 59
    assert prune_records(table, now_ms()) == 58


def test_a_group_reads_its_own_records() -> None:
    options = {**DAILY, "chain-table.chain-partition-keys": "dt"}
    table = make_chain(f"memory://{uuid.uuid4()}/wh", partitions=("region", "dt"), options=options)
    for region in "abcdefghijkl":
        add(table.branch("delta"), f"{region}/20250101")
        build(table, f"{region}/20250101", None, [f"{region}/20250101"])
    store = CountingStore(table.store)
    counted = Table(store, table.name)
    state = gather_chain(counted)
    store.tally.reset()
    assert len(provenances(counted, state, {("b", "20250101")})) == 1
    assert store.tally.calls == {"names": 1, "read_many": 1}
    assert store.tally.log[0][1].endswith(group_folder(state.layout, ("b",)))
    store.tally.reset()
    assert len(provenances(counted, state)) == 12  # many groups: one listing of all
    assert store.tally.calls == {"walk": 1, "read_many": 1}


def test_a_record_that_is_pruned_between_listing_and_reading_is_none() -> None:
    table = stored(0)
    state = gather_chain(table)
    records = Records(table, state.layout, [()])
    (path,) = records.paths
    table.store.delete(path)
    digests = {v: files_digest(s) for v, s in splits_by_partition(state.snapshot).items()}
    assert records.matching(digests) == {}
    with pytest.raises(StorageError):
        Records(Table(_Broken(table.store), table.name), state.layout, [()])


class _Broken(CountingStore):
    def names(self, path: str) -> list[str]:
        raise StorageError("unreachable")
