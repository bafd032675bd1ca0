"""The manifests that a process keeps: each is read once, in its scope only."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from airflow_paimon.core.errors import FormatError
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.table.live_entries import live_columns, live_entries
from airflow_paimon.core.table.read_cache import CachingStore, FileCache
from airflow_paimon.core.table.table import Table
from tests.core.tables import append, make_table, overwrite
from tests.stores import CountingStore

PLENTY = 1 << 30


def counted(table: Table) -> tuple[Table, CountingStore]:
    store = CountingStore(table.store)
    return replace(table, store=store), store


def living(table: Table, kept: FileCache, scope: str) -> Table:
    return replace(table, store=CachingStore(table.store, kept, scope))


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
    cached = living(cached, FileCache(PLENTY), "lake")
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
    kept = FileCache(PLENTY)
    (plain, store), elsewhere = counted(table), make_table(tmp_path / "elsewhere")
    live_columns(living(plain, kept, "old key"), head_of(table))
    before = manifests_read(store)
    live_columns(living(plain, kept, "new key"), head_of(table))
    assert manifests_read(store) == 2 * before
    with pytest.raises(FormatError, match="is missing"):
        live_columns(living(elsewhere, kept, "old key"), head_of(table))


def test_what_can_change_is_read_again(table: Table) -> None:
    """Of snapshots, schemas and hints none is kept."""
    cached = living(table, FileCache(PLENTY), "lake")
    head = head_of(cached)
    assert cached.schema() == table.schema()
    append(table, "d")
    assert head_of(cached).id == head.id + 1
