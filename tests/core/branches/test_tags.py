"""Tags whose retention has passed, and the undo tags that a publish leaves."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pytest

from airflow_paimon.core.branches.tags import past_tags
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


def test_only_tags_with_a_retention_that_has_passed_can_go(table: Table) -> None:
    assert [t.name for t in past_tags(table, NOW)] == ["one"]
    assert not [*past_tags(table, NOW, "two")]
    assert not [*past_tags(table, NOW - timedelta(days=1))]


def test_tags_of_a_branch_are_its_own(table: Table) -> None:
    run(table, "create_branch", branch="fix", tag="two")
    fix = table.branch("fix")
    run(table, "create_tag", tag="mine", branch="fix", time_retained="1 h", now="2026-11-20T00:00:00+00:00")
    assert [t.name for t in past_tags(fix, NOW)] == ["mine"]


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
