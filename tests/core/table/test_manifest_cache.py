"""What a process keeps of manifests: each is read once, in its scope only, within a limit."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.table.manifest_cache import ManifestCache
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.scan import live_columns, live_entries
from airflow_paimon.core.table.table import Table
from tests.core.tables import append, make_table, overwrite
from tests.stores import CountingStore

PLENTY = 1 << 30


def counted(table: Table) -> tuple[Table, CountingStore]:
    store = CountingStore(table.store)
    return replace(table, store=store), store


def head_of(table: Table) -> Snapshot:
    head = table.latest_snapshot()
    assert head is not None
    return head


def manifests_read(store: CountingStore) -> int:
    uris = [uri for method, uris in store.tally.log if method.startswith("read") for uri in uris.split(", ")]
    return sum("manifest/manifest-" in uri and "-list-" not in uri for uri in uris)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    made = make_table(tmp_path / "wh")
    for day in "abc":
        append(made, day, rows=2)
    overwrite(made, "b", rows=5)
    return made


@pytest.mark.parametrize("live", [live_columns, live_entries])
def test_a_new_snapshot_costs_its_new_manifests(table: Table, live) -> None:  # type: ignore[no-untyped-def]
    cached, store = counted(table)
    cached = cached.keeping_manifests(ManifestCache(PLENTY), "lake")
    assert live(cached, head_of(table)) == live(table, head_of(table))
    first = manifests_read(store)
    assert first > 3
    assert live(cached, head_of(table)) == live(table, head_of(table))
    assert manifests_read(store) == first
    append(table, "d")
    assert live(cached, head_of(table)) == live(table, head_of(table))
    assert manifests_read(store) == first + 1
    assert live(cached.branch("main"), head_of(table)) == live(table, head_of(table))
    assert manifests_read(store) == first + 1


def test_other_credentials_and_other_places_read_for_themselves(table: Table, tmp_path: Path) -> None:
    cache, (plain, store) = ManifestCache(PLENTY), counted(table)
    live_columns(plain.keeping_manifests(cache, ("lake", "old key")), head_of(table))
    before = manifests_read(store)
    live_columns(plain.keeping_manifests(cache, ("lake", "new key")), head_of(table))
    assert manifests_read(store) == 2 * before
    here = table.keeping_manifests(cache, "one").kept_manifests
    there = make_table(tmp_path / "elsewhere").keeping_manifests(cache, "one").kept_manifests
    assert here != there


def test_what_was_read_of_some_partitions_is_not_kept_as_all(table: Table) -> None:
    cached = table.keeping_manifests(ManifestCache(PLENTY), "lake")
    wanted = StoredPartitions(table.schema()).selection([{"dt": "a"}])
    assert len(live_entries(cached, head_of(table), wanted)) == 1
    assert live_entries(cached, head_of(table)) == live_entries(table, head_of(table))
    assert live_entries(cached, head_of(table), wanted) == live_entries(table, head_of(table), wanted)


def test_memory_has_a_limit(table: Table) -> None:
    for limit in (0, 2000, 6000, PLENTY):
        cache = ManifestCache(limit)
        cached = table.keeping_manifests(cache, "lake")
        for _ in range(2):
            assert live_columns(cached, head_of(table)) == live_columns(table, head_of(table))
        assert cache.kept_bytes <= limit
        assert (cache.kept_bytes > 0) == (limit > 2000)


def test_what_is_asked_for_again_stays() -> None:
    cache = ManifestCache(300)
    for key in "abc":
        cache.keep(key, key, 100)
    assert cache.find(["a"]) == {"a": "a"}
    cache.keep("d", "d", 100)
    assert cache.find(list("abcd")) == {"a": "a", "c": "c", "d": "d"}
    cache.keep("d", "D", 50)
    assert cache.kept_bytes == 250


def test_a_table_that_is_sent_to_another_process_keeps_nothing(table: Table) -> None:
    cached = table.keeping_manifests(ManifestCache(PLENTY), "lake")
    assert pickle.loads(pickle.dumps(cached)).kept_manifests is None
