"""Rollbacks and tags by a time or a watermark, and tags under another name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_paimon.core.errors import AlreadyExistsError, InvalidInputError, NotFoundError, UnsafeOperationError
from airflow_paimon.core.format.snapshot import NO_WATERMARK, Tag
from airflow_paimon.core.table.table import Table
from tests.clock import next_millisecond
from tests.core.tables import append, commit_time, forget_results, make_table, names, run


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Three snapshots, each of another millisecond."""
    made = make_table(tmp_path / "wh")
    for day in ("a", "b", "c"):
        append(made, day)
        next_millisecond()
    return made


def time_of(table: Table, number: int) -> str:
    return str(table.snapshot(number).time_millis)


def test_a_time_means_the_newest_snapshot_that_was_there_then(table: Table) -> None:
    assert run(table, "create_tag", tag="then", timestamp=time_of(table, 2)).details["snapshot"] == 2
    just_before = str(table.snapshot(2).time_millis - 1)
    assert run(table, "create_tag", tag="before", timestamp=just_before).details["snapshot"] == 1
    result = run(table, "rollback_to", timestamp=time_of(table, 2))
    assert result.details["target_snapshot"] == 2
    assert len(names(table)) == 2


@pytest.mark.parametrize("expired", [0, 1, 2, 3])
def test_of_several_snapshots_of_one_millisecond_a_time_means_the_newest(tmp_path: Path, expired: int) -> None:
    made, at = make_table(tmp_path / "wh"), {1: 1000, 2: 2000, 3: 2000, 4: 2000, 5: 3000}
    for snapshot, millis in at.items():
        append(made, f"d{snapshot}")
        commit_time(made, snapshot, millis)
    for snapshot in range(1, expired + 1):
        made.store.delete(made.paths.snapshot(snapshot))
    assert run(made, "create_tag", tag="then", timestamp="2000").details["snapshot"] == 4
    assert run(made, "rollback_to", timestamp="2999", dry_run=True).details["target_snapshot"] == 4


def test_a_retry_of_a_tag_by_time_is_the_first_trys_result(table: Table) -> None:
    first = run(table, "create_tag", tag="then", timestamp=time_of(table, 2), operation_id="op")
    forget_results(table)
    again = run(table, "create_tag", tag="then", timestamp=time_of(table, 2), operation_id="op")
    assert again.details == {**first.details, "replayed": True}


def test_times_that_no_snapshot_has_are_refused(table: Table) -> None:
    for operation, more in (("create_tag", {"tag": "t"}), ("rollback_to", {})):
        with pytest.raises(NotFoundError, match="no snapshot as early as 5 ms; the earliest that is left is 1, of "):
            run(table, operation, timestamp="5", **more)
        with pytest.raises(InvalidInputError, match="has no time zone"):
            run(table, operation, timestamp="2026-11-21T02:00:00", **more)
    with pytest.raises(InvalidInputError, match="a snapshot or a timestamp, not both"):
        run(table, "create_tag", tag="t", snapshot=1, timestamp=time_of(table, 1))
    with pytest.raises(InvalidInputError, match="one of tag, snapshot, timestamp and watermark"):
        run(table, "rollback_to", snapshot=1, timestamp=time_of(table, 1))
    with pytest.raises(UnsafeOperationError, match="snapshot 3 is the newest, so there is no publish after it"):
        run(table, "rollback_to", snapshot=3, keep_later=True)
    assert table.latest_snapshot_id() == 3 and not table.tag_names()


def test_a_rollback_by_watermark(table: Table) -> None:
    with pytest.raises(NotFoundError, match="none of its snapshots has a watermark"):
        run(table, "rollback_to", watermark="2026-11-21T02:00:00+00:00")
    for number, watermark in ((1, NO_WATERMARK), (2, 1000), (3, 2000)):
        path = table.paths.snapshot(number)
        table.store.replace(path, json.dumps({**json.loads(table.store.read(path)), "watermark": watermark}).encode())
    with pytest.raises(NotFoundError, match="its earliest watermark is 1000 ms"):
        run(table, "rollback_to", watermark="999")
    assert run(table, "rollback_to", watermark="1999", dry_run=True).details["target_snapshot"] == 2
    assert run(table, "rollback_to", watermark="2000", dry_run=True).details["target_snapshot"] == 3


def test_a_tag_gets_another_name(table: Table) -> None:
    run(table, "create_tag", tag="old", snapshot=2, time_retained="7 d")
    before = table.tag("old")
    result = run(table, "rename_tag", tag="old", to_tag="new")
    assert result.details == {"tag": "new", "renamed_from": "old", "snapshot": 2}
    assert table.tag_names() == ["new"]
    now = table.tag("new")
    assert (now.snapshot, now.create_time, now.time_retained) == (
        before.snapshot, before.create_time, before.time_retained
    )  # fmt: skip


def test_a_tag_gets_another_snapshot_and_retention(table: Table) -> None:
    run(table, "create_tag", tag="old", snapshot=1, time_retained="7 d")
    result = run(table, "replace_tag", tag="old", snapshot=2, time_retained="30 d")
    assert result.changed
    assert result.details == {"tag": "old", "snapshot": 2, "time_retained": "30 d"}
    assert table.tag("old").snapshot.id == 2 and str(table.tag("old").time_retained) == "30 days, 0:00:00"
    run(table, "replace_tag", tag="old")
    assert table.tag("old") == Tag(name="old", snapshot=table.snapshot(3)), "the latest, for ever, as Paimon has it"
    assert not run(table, "replace_tag", tag="old").changed
    assert run(table, "replace_tag", tag="old", snapshot=1, dry_run=True).changed
    assert table.tag("old").snapshot.id == 3


def test_a_tag_that_can_t_be_replaced_is_named(table: Table) -> None:
    run(table, "create_tag", tag="old", snapshot=2)
    run(table, "create_branch", branch="fix", tag="old")
    with pytest.raises(InvalidInputError, match="set by airflow-paimon itself"):
        run(table, "replace_tag", tag="airflow-paimon-branch-fix", snapshot=3)
    with pytest.raises(NotFoundError, match="no tag 'nope'"):
        run(table, "replace_tag", tag="nope")
    with pytest.raises(NotFoundError, match="no snapshot 9"):
        run(table, "replace_tag", tag="old", snapshot=9)
    with pytest.raises(InvalidInputError, match="time_retained must be greater than 0"):
        run(table, "replace_tag", tag="old", time_retained="0 d")
    table.store.delete("tag/tag-airflow-paimon-branch-fix")
    with pytest.raises(UnsafeOperationError, match="branch 'fix' starts from snapshot 2, and only tag 'old'"):
        run(table, "replace_tag", tag="old", snapshot=3)
    assert table.tag("old").snapshot.id == 2


def test_names_that_can_t_be_given_are_refused(table: Table) -> None:
    run(table, "create_tag", tag="old", snapshot=2)
    run(table, "create_tag", tag="taken", snapshot=1)
    run(table, "create_branch", branch="fix", tag="old")
    (own,) = [name for name in table.tag_names() if name not in ("old", "taken")]
    with pytest.raises(AlreadyExistsError, match="'taken' exists, on snapshot 1"):
        run(table, "rename_tag", tag="old", to_tag="taken")
    with pytest.raises(InvalidInputError, match="set by airflow-paimon itself"):
        run(table, "rename_tag", tag=own, to_tag="mine")
    with pytest.raises(NotFoundError):
        run(table, "rename_tag", tag="nope", to_tag="mine")
    assert sorted(table.tag_names()) == sorted(["old", "taken", own])
