"""The newest of more snapshots than are listed: from the hints, and proven by what is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_paimon.core.store import local
from airflow_paimon.core.table.table import Table
from tests.core.tables import append, make_table
from tests.stores import CountingStore, Far
from tests.strict_metadata import damaged_on_purpose

SNAPSHOTS = 12


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    table = make_table(tmp_path_factory.mktemp("made") / "wh", primary=False)
    for _ in range(SNAPSHOTS):
        append(table, "a")
    return {path: table.store.read(path) for path in table.store.walk("")}


@pytest.fixture(params=[CountingStore, Far], ids=["near", "far"])
def table(
    tmp_path: Path, made: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Table:
    monkeypatch.setattr(local, "_FEW", 3)
    store = local.LocalStore(str(tmp_path / "wh/d.db/t"))
    for path, data in made.items():
        store.create(path, data)
    return Table(request.param(store), "d.t")


def newest(table: Table) -> int:
    snapshot = table.latest_snapshot()
    assert snapshot is not None and snapshot.id == table.latest_snapshot_id()
    return snapshot.id


def without(table: Table, *ids: int) -> None:
    for number in ids:
        table.store.delete(table.paths.snapshot(number))


def test_a_right_hint_saves_the_listing(table: Table) -> None:
    assert newest(table) == SNAPSHOTS
    assert table.store.tally.calls["names"] == 2, "the beginning of a listing, which finds that there are many"
    assert append(table, "a").snapshot.id == SNAPSHOTS + 1


@pytest.mark.every(3)
@pytest.mark.parametrize("hint", [b"99", b"1", b"5", b"11", b"", b"garbage", b"-1", None])
@pytest.mark.parametrize("earliest", [b"1", b"6", b"", None])
def test_a_lying_hint_changes_nothing(tmp_path: Path, table: Table, hint: bytes | None, earliest: bytes | None) -> None:
    damaged_on_purpose(tmp_path)
    for path, text in ((table.paths.latest_hint, hint), (table.paths.earliest_hint, earliest)):
        if text is None:
            table.store.delete(path)
        else:
            table.store.replace(path, text)
    if earliest == b"6":
        without(table, *range(1, 6))
    assert newest(table) == SNAPSHOTS


@pytest.mark.parametrize("gap", [(9,), (9, 10), (7, 8), (9, 11)])
def test_a_gap_hides_nothing_and_is_not_filled(table: Table, gap: tuple[int, ...]) -> None:
    without(table, *gap)
    table.store.replace(table.paths.latest_hint, b"%d" % (gap[0] - 1))
    assert newest(table) == SNAPSHOTS
    assert append(table, "a").snapshot.id == SNAPSHOTS + 1


def test_a_snapshot_that_another_engine_put_behind_the_newest_is_not_the_newest(table: Table) -> None:
    """It was stopped before its put until others had expired its id, and names its snapshot in the hint."""
    without(table, 1, 3, 4, 5, 6)
    table.store.replace(table.paths.earliest_hint, b"7")
    table.store.replace(table.paths.latest_hint, b"2")
    for number in range(13, 19):
        append(table, "a")
        table.store.replace(table.paths.latest_hint, b"2")
        assert newest(table) == number


def test_after_a_rollback_of_another_engine_its_target_is_the_newest(table: Table) -> None:
    table.store.replace(table.paths.latest_hint, b"8")
    for number in range(SNAPSHOTS, 8, -1):
        assert newest(table) == number
        without(table, number)
    assert newest(table) == 8
