"""expire_changelogs: which long-lived changelogs go, what keeps them, and a run that is killed."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from airflow_paimon.core.errors import InvalidInputError, NotFoundError
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.table import Table
from tests.core.metadata_expiry.test_remove_orphan_files import clean
from tests.core.tables import append, cut_off, make_table, move, overwrite, run
from tests.randomness import moments
from tests.soundness import assert_sound, files_on_disk

OPERATION = "expire_changelogs"
OPTIONS = {"snapshot.num-retained.min": "1", "snapshot.num-retained.max": "2", "snapshot.time-retained": "1 ms",
           "changelog.num-retained.min": "1", "changelog.num-retained.max": "100",
           "changelog.time-retained": "9 d"}  # fmt: skip
AT_ONCE = {"grace": "0 s", "writers_stopped": True}


def old_table(branch: str | None = None) -> Table:
    """Eight snapshots, of which the first six are long-lived changelogs only."""
    table = make_table(f"memory://{uuid.uuid4()}/wh", **OPTIONS)
    if branch is not None:
        run(table, "create_branch", branch=branch)
    for view in (table, *([table.branch(branch)] if branch is not None else [])):
        for i in range(8):
            (append if i % 3 else overwrite)(view, "a", seq=i)
    run(table, "expire_snapshots", **AT_ONCE, retain_max=2, retain_min=2, all_branches=True)
    return table


def left(view: Table) -> list[int]:
    names = view.store.names(view.paths.changelog_dir)
    return sorted(int(name.partition("-")[2]) for name in names if name.startswith("changelog-"))


def hint(table: Table, name: str) -> bytes | None:
    path = f"changelog/{name}"
    return table.store.read(path) if table.store.exists(path) else None


@pytest.fixture
def table() -> Table:
    table = old_table()
    assert (left(table), table.snapshot_ids()) == ([1, 2, 3, 4, 5, 6], [7, 8])
    return table


def test_by_the_options_nothing_is_due(table: Table) -> None:
    result = run(table, OPERATION, **AT_ONCE)
    assert (result.changed, result.details["expired"]) == (False, {})
    assert result.details["retained_by"] == {"main": "changelog 1 stays: it, or the one after it, is too young"}


@pytest.mark.parametrize(
    ("values", "kept", "why"),
    [
        ({"retain_max": 5}, [4, 5, 6], "too young"),
        ({"older_than": "0 s"}, [6], "it is the newest changelog"),
        ({"older_than": "0 s", "retain_min": 5}, [4, 5, 6], "the newest 5 stay"),
        ({"older_than": "0 s", "max_deletes": 2}, [3, 4, 5, 6], "at most 2 expire in one run"),
        ({"delete_all": True}, [], None),
    ],
)  # fmt: skip
def test_what_is_asked_for_goes(table: Table, values: dict[str, Any], kept: list[int], why: str | None) -> None:
    foreseen = run(table, OPERATION, **AT_ONCE, **values, dry_run=True)
    assert left(table) == [1, 2, 3, 4, 5, 6]
    result = run(table, OPERATION, **AT_ONCE, **values)
    assert (left(table), table.snapshot_ids()) == (kept, [7, 8])
    gone = 6 - len(kept)
    assert result.details["expired"] == {"main": {"changelogs": gone, "from": 1, "to": gone}}
    assert result.details["deleted"] == foreseen.details["deleted"]
    assert result.details["deleted"]["metadata_files"] > 0
    stopped = result.details["retained_by"]
    assert why in stopped["main"] if why is not None else stopped == {}
    assert hint(table, "EARLIEST") == (str(kept[0]).encode() if kept else None)
    assert hint(table, "LATEST") == (b"6" if kept else None)
    assert_sound(table)
    assert not run(table, OPERATION, **AT_ONCE, **values).changed or "max_deletes" in values


@pytest.mark.parametrize("values", [{"older_than": "0 s"}, {"delete_all": True}], ids=str)
def test_what_a_consumer_is_to_read_stays(table: Table, values: dict[str, Any]) -> None:
    table.store.create("consumer/consumer-copy", b'{"nextSnapshot": 3}')
    result = run(table, OPERATION, **AT_ONCE, **values)
    assert left(table) == [3, 4, 5, 6]
    assert "consumer 'copy' is at snapshot 3" in result.details["retained_by"]["main"]
    assert_sound(table)


def test_a_changelog_whose_snapshot_is_still_there_stays(table: Table) -> None:
    """An expiry of the snapshot was cut off after it had put the changelog."""
    table.store.create("changelog/changelog-7", table.store.read("snapshot/snapshot-7"))
    result = run(table, OPERATION, **AT_ONCE, delete_all=True)
    assert (left(table), table.snapshot_ids()) == ([7], [7, 8])
    assert result.details["retained_by"] == {"main": "changelog 7 stays: its snapshot is still there"}
    assert hint(table, "EARLIEST") == b"7"
    assert_sound(table)


def test_they_wait_in_the_trash_for_the_grace_time(table: Table) -> None:
    there = files_on_disk(table)
    result = run(table, OPERATION, delete_all=True)
    assert (left(table), result.details["trash"]["entries"]) == ([], 6)
    assert files_on_disk(table) == there
    assert not run(table, OPERATION, delete_all=True).changed
    assert run(table, OPERATION, **AT_ONCE).changed
    assert files_on_disk(table) < there
    assert_sound(table)


def test_a_file_that_a_changelog_names_on_another_level_is_no_orphan() -> None:
    """A compaction that moves a file deletes it on one level, and adds it on another one, under the same name."""
    table = make_table(f"memory://{uuid.uuid4()}/wh", **OPTIONS)
    append(table, "a")
    (entry,) = live_entries(table, table.latest_snapshot()).values()
    move(table, entry)
    for _ in range(3):
        overwrite(table, "a")
    run(table, "expire_snapshots", **AT_ONCE, retain_max=2, retain_min=2)
    run(table, OPERATION, **AT_ONCE, older_than="0 s", max_deletes=1)
    assert (left(table), table.snapshot_ids()) == ([2, 3], [4, 5])
    assert clean(table).details["files"] == 0
    assert_sound(table)


def test_of_a_branch_of_main_and_of_all() -> None:
    table = old_table("fix")
    fix = table.branch("fix")
    assert run(table, OPERATION, branch="fix", delete_all=True, **AT_ONCE).changed
    assert (len(left(table)), left(fix)) == (6, [])
    assert list(run(table, OPERATION, all_branches=True, delete_all=True, **AT_ONCE).details["expired"]) == ["main"]
    assert_sound(table)


def test_killed_at_any_step_the_next_run_ends_it() -> None:
    for step in moments(80, 5):
        table = old_table()
        died = cut_off(table, step, OPERATION, delete_all=True, **AT_ONCE)
        assert_sound(table, leaks=True)
        run(table, OPERATION, delete_all=True, **AT_ONCE)
        assert left(table) == []
        assert hint(table, "EARLIEST") is None or died, "a run that finds none to expire leaves the hints"
        assert_sound(table)
        if not died:
            assert step > 12
            return
    raise AssertionError("it has no end")


@pytest.mark.parametrize(
    ("values", "error", "match"),
    [
        ({"retain_min": 5, "retain_max": 2}, InvalidInputError, "at most retain_max"),
        ({"retain_min": 200}, InvalidInputError, "at most retain_max"),
        ({"delete_all": True, "retain_min": 1}, InvalidInputError, "leave older_than"),
        ({"older_than": "2099-01-01T00:00:00+00:00"}, InvalidInputError, "future"),
        ({"all_branches": True, "branch": "x"}, InvalidInputError, "not both"),
        ({"branch": "nope"}, NotFoundError, "nope"),
        ({"grace": "9 min", "writers_stopped": False}, InvalidInputError, "at least 10 min"),
    ],
)
def test_bad_input_changes_nothing(table: Table, values: dict[str, Any], error: type, match: str) -> None:
    there = files_on_disk(table)
    with pytest.raises(error, match=match):
        run(table, OPERATION, **{**AT_ONCE, **values})
    assert (files_on_disk(table), left(table)) == (there, [1, 2, 3, 4, 5, 6])
