"""Tag chores: rename, retention, expiry; and the undo tags that a publish leaves."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pytest

from airflow_paimon.core.branches.tags import expire_tags, rename_tag, set_tag_retention
from airflow_paimon.core.errors import AlreadyExistsError, InvalidInputError, NotFoundError, UnsafeOperationError
from airflow_paimon.core.table.table import Table
from tests.core.tables import append, make_table, rewrite, run

NOW = datetime(2026, 11, 21, 12)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = make_table(tmp_path / "wh")
    append(table, "a")
    run(table, "create_tag", tag="one", time_retained="1 d", now="2026-11-20T00:00:00+00:00")
    append(table, "b")
    run(table, "create_tag", tag="two")
    return table


def test_a_renamed_tag_keeps_its_snapshot_and_retention(table: Table) -> None:
    before = table.tag("one")
    rename_tag(table, "one", "uno")
    after = table.tag("uno")
    assert (after.snapshot, after.time_retained, after.create_time) == (
        before.snapshot,
        timedelta(days=1),
        before.create_time,
    )
    assert table.tag_names() == ["two", "uno"]


def test_a_tag_is_not_renamed_onto_another(table: Table) -> None:
    with pytest.raises(AlreadyExistsError, match=r"d\.t: tag 'two' exists"):
        rename_tag(table, "one", "two")
    with pytest.raises(NotFoundError, match="none"):
        rename_tag(table, "none", "other")
    with pytest.raises(InvalidInputError, match="start with airflow-paimon- are set by airflow-paimon"):
        rename_tag(table, "one", "airflow-paimon-branch-x")
    assert table.tag_names() == ["one", "two"]


def test_a_tag_that_protects_a_branch_keeps_name_and_life(table: Table) -> None:
    run(table, "create_branch", branch="fix", tag="two")
    for refused in (
        lambda: rename_tag(table, "airflow-paimon-branch-fix", "other"),
        lambda: set_tag_retention(table, "airflow-paimon-branch-fix", "1 d", NOW),
    ):
        with pytest.raises(UnsafeOperationError):
            refused()


def test_retention_counts_from_now_and_can_be_taken_away(table: Table) -> None:
    set_tag_retention(table, "two", "2 h", NOW)
    assert table.tag("two").expires_at() == NOW + timedelta(hours=2)
    set_tag_retention(table, "two", None, NOW)
    assert table.tag("two").expires_at() is None


def test_only_tags_with_a_retention_that_has_passed_expire(table: Table) -> None:
    assert expire_tags(table, NOW, dry_run=True) == (["one"], {})
    assert table.tag_names() == ["one", "two"]
    assert expire_tags(table, NOW) == (["one"], {})
    assert table.tag_names() == ["two"]


def test_tags_of_a_branch_are_its_own(table: Table) -> None:
    run(table, "create_branch", branch="fix", tag="two")
    fix = table.branch("fix")
    run(table, "create_tag", tag="mine", branch="fix", time_retained="1 h", now="2026-11-20T00:00:00+00:00")
    rename_tag(fix, "mine", "my_own")
    assert expire_tags(fix, NOW) == (["my_own"], {})
    assert "one" in table.tag_names()


def test_check_lists_expired_tags_and_repair_deletes_them(table: Table) -> None:
    (finding,) = run(table, "check_table", now="2026-11-21T12:00:00+00:00").details["findings"]
    assert finding["id"] == "expired-tag:main/one"
    run(table, "repair_table", now="2026-11-21T12:00:00+00:00")
    assert table.tag_names() == ["two"]


def test_a_publish_deletes_the_undo_tags_of_earlier_ones(table: Table) -> None:
    run(table, "create_branch", branch="fix", tag="two")
    rewrite(table.branch("fix"), "a")
    first = run(table, "merge_branch", branch="fix", undo_retention="1 d", now="2026-11-01T00:00:00+00:00")
    rewrite(table.branch("fix"), "b")
    second = run(table, "merge_branch", branch="fix", now="2026-11-21T00:00:00+00:00")
    undo = [t for t in table.tag_names() if t.startswith("airflow-paimon-undo-")]
    assert undo == [second.details["undo_tag"]]
    assert first.details["undo_tag"] not in undo
    assert "one" in table.tag_names(), "a user's own tag is not a publish's business"
