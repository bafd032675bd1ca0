"""What a watcher of a branch is told: each new snapshot once, whatever expiry and other engines' rollbacks do."""

import dataclasses
import json
from pathlib import Path

import pytest

from airflow_paimon.core.errors import FormatError, InvalidInputError, NotFoundError
from airflow_paimon.core.format.snapshot import CommitKind
from airflow_paimon.core.table.new_snapshots import BranchFeed
from airflow_paimon.core.table.new_snapshots_plan import REMEMBERED, Cursor, NewSnapshot, SnapshotFilter, parse_filter
from airflow_paimon.core.table.table import Table
from tests.core.tables import append, make_table, overwrite, rewrite, run


class Watcher:
    """Looks again and again, as a trigger does, and keeps what it has seen only as JSON."""

    def __init__(self, table: Table) -> None:
        self.feed = BranchFeed(table)
        head = self.feed.look()
        self.cursor = Cursor() if head is None else Cursor().then(NewSnapshot(snapshot=head))

    def new(self) -> list[NewSnapshot]:
        self.feed.look()
        found = list(self.feed.since(self.cursor))
        for one in found:
            self.cursor = Cursor.from_json(json.loads(json.dumps(self.cursor.then(one).to_json())))
        return found

    def ids(self) -> list[int]:
        return [one.snapshot.id for one in self.new()]


def expire(table: Table, *ids: int) -> None:
    """As another engine's expiry leaves it: the oldest snapshots are gone."""
    for snapshot_id in ids:
        table.store.delete(table.paths.snapshot(snapshot_id))


def roll_back(table: Table, to: int) -> None:
    """As Paimon's own rollback does it: later snapshots are deleted, and their ids come again."""
    for snapshot_id in [i for i in table.snapshot_ids() if i > to]:
        table.store.delete(table.paths.snapshot(snapshot_id))
    table.store.replace(table.paths.latest_hint, str(to).encode())


def test_each_snapshot_once_from_the_first_look_on(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    append(table, "1")
    watcher = Watcher(table)
    assert watcher.new() == []
    append(table, "1")
    append(table, "2")
    assert [(n.snapshot.id, n.previous, n.expired, n.rolled_back) for n in watcher.new()] == [
        (2, 1, None, None),
        (3, 2, None, None),
    ]
    assert watcher.new() == []


def test_a_table_that_was_empty_and_one_that_is_missing(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    watcher = Watcher(table)
    assert watcher.new() == []
    append(table, "1")
    assert watcher.ids() == [1]
    with pytest.raises(NotFoundError, match="nothing"):
        BranchFeed(table.branch("nothing")).look()


def test_more_snapshots_than_are_read_at_once_and_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_paimon.core.table.new_snapshots._AT_ONCE", 3)
    table = make_table(tmp_path, primary=False)
    append(table, "1")
    watcher = Watcher(table)
    for _ in range(REMEMBERED + 3):
        append(table, "1")
    assert watcher.ids() == list(range(2, REMEMBERED + 5))
    assert len(watcher.cursor.snapshots) == REMEMBERED
    assert watcher.new() == []


def test_what_expired_unseen_is_said_with_the_first_that_is_left(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    append(table, "1")
    watcher = Watcher(table)
    for _ in range(4):
        append(table, "1")
    expire(table, 1, 2, 3)
    found = watcher.new()
    assert [(n.snapshot.id, n.previous, n.expired) for n in found] == [(4, 1, (2, 3)), (5, 4, None)]
    only_compactions = SnapshotFilter(kinds=("COMPACT",))
    assert [only_compactions.passes(n, watcher.cursor, lambda _: []) for n in found] == [True, False]


def test_a_rollback_is_reported_once_and_the_ids_that_come_again_are_new(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    for _ in range(5):
        append(table, "1")
    watcher = Watcher(table)
    append(table, "1")
    assert watcher.ids() == [6]
    roll_back(table, 5)
    assert [(n.snapshot.id, n.previous, n.rolled_back) for n in watcher.new()] == [(5, 5, 6)]
    assert watcher.new() == []
    roll_back(table, 5)
    append(table, "2")
    assert [(n.snapshot.id, n.previous, n.rolled_back) for n in watcher.new()] == [(6, 5, None)]
    roll_back(table, 5)
    append(table, "3")
    append(table, "3")
    assert [(n.snapshot.id, n.previous, n.rolled_back) for n in watcher.new()] == [(6, 5, 6), (7, 6, None)]


def test_after_a_rollback_past_all_remembered_snapshots_only_the_head_is_reported(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    for _ in range(5):
        append(table, "1")
    watcher = Watcher(table)
    roll_back(table, 3)
    assert [(n.snapshot.id, n.previous, n.rolled_back) for n in watcher.new()] == [(3, None, 5)]
    append(table, "1")
    assert watcher.ids() == [4]


def test_a_hint_that_is_behind_is_not_a_rollback(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    for _ in range(3):
        append(table, "1")
    watcher = Watcher(table)
    expire(table, 2)  # a gap behind the hint hides what is newer
    table.store.replace(table.paths.latest_hint, b"1")
    assert watcher.new() == []


def test_filters_by_kind_and_by_the_partitions_that_a_commit_touched(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    append(table, "1")
    watcher = Watcher(table)
    append(table, "2")
    rewrite(table, "1", kind=CommitKind.COMPACT)
    overwrite(table, "1")
    run(table, "create_tag", tag="t")
    found = watcher.new()
    assert [n.snapshot.commit_kind for n in found] == ["APPEND", "COMPACT", "OVERWRITE"]

    def chosen(wanted: SnapshotFilter) -> list[int]:
        def touched(snapshot: object) -> list[str]:
            assert wanted.partitions
            return watcher.feed.partitions_of(snapshot, wanted.partitions)  # type: ignore[arg-type]

        return [n.snapshot.id for n in found if wanted.passes(n, Cursor(), touched)]

    assert chosen(parse_filter()) == [2, 4]
    assert chosen(parse_filter(kinds="compact")) == [3]
    assert chosen(parse_filter(partitions=["dt=1"])) == [4]
    assert chosen(parse_filter(partitions="dt=2")) == [2]
    assert chosen(parse_filter(partitions=["dt=7"])) == []


def test_a_watermark_counts_when_it_passes_another_step(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    append(table, "1")
    snapshot = table.snapshot(1)
    hour, cursor, passed = 3_600_000, Cursor(), []
    for at in (None, 10 * hour + 1, 10 * hour + 5, 9 * hour, 11 * hour, -(2**63), 13 * hour):
        new = NewSnapshot(snapshot=dataclasses.replace(snapshot, watermark=at), previous=1)
        if parse_filter(watermark_step="1 h").passes(new, cursor, lambda _: []):
            passed.append(at)
        cursor = cursor.then(new)
    assert passed == [10 * hour + 1, 11 * hour, 13 * hour]


@pytest.mark.parametrize(
    "arguments",
    [
        {"kinds": []},
        {"kinds": ["append", "delete"]},
        {"partitions": ["dt"]},
        {"watermark_step": "0 s"},
        {"watermark_step": "x"},
    ],
)
def test_a_filter_that_means_nothing_is_refused(arguments: dict[str, object]) -> None:
    with pytest.raises(InvalidInputError):
        parse_filter(**arguments)  # type: ignore[arg-type]


def test_a_watermark_that_somebody_edited_is_refused() -> None:
    for value in (None, {}, {"snapshots": [[1]], "watermark": None}, {"snapshots": 3}, [1]):
        with pytest.raises(FormatError):
            Cursor.from_json(value)
