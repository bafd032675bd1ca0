"""What the undo of a publish would do now: by bucket, by key, by row, or not at all; nothing is written for it."""

from __future__ import annotations

import uuid

import pytest

from airflow_paimon.core.errors import NotFoundError
from airflow_paimon.core.publish.undo_preview import BY_BUCKET, BY_KEY, BY_ROW, NO_WAY, preview_undo
from airflow_paimon.core.table.table import Table
from tests.core.tables import append, make_table, rewrite, run


def published(*, primary: bool = True, **options: str) -> Table:
    """A table whose snapshot 2 is the publish of a branch that has written partition a again."""
    table = make_table(f"memory://{uuid.uuid4()}/wh", primary=primary, **options)
    append(table, "a", rows=3)
    run(table, "create_branch", branch="fix", snapshot=1)
    rewrite(table.branch("fix"), "a")
    run(table, "merge_branch", branch="fix", writers_stopped=True, operation_id="one")
    return table


def test_what_came_later_elsewhere_stays() -> None:
    table = published()
    for number in range(25):
        append(table, "b", seq=number)
    before = table.store.walk("")
    found = preview_undo(table, 2)
    assert (found.way, found.tag, found.later_count) == (BY_BUCKET, "airflow-paimon-undo-one", 25)
    assert [s.id for s in found.later] == list(range(27, 7, -1))
    assert (found.figures["rows_deleted"], found.figures["rows_added"], found.figures["partitions"]) == (1, 3, 1)
    assert table.store.walk("") == before
    planned = run(table, "rollback_to", tag=found.tag, keep_later=True, dry_run=True).details["plan"]["actions"]
    assert [a["reason"] for a in planned][-1] == "reverts snapshot 2 only"
    done = run(table, "rollback_to", tag=found.tag, keep_later=True).details
    assert {name: done[name] for name in found.figures} == found.figures


@pytest.mark.parametrize(
    ("options", "way"), [({}, BY_KEY), ({"sequence.snapshot-ordering": "true", "write-only": "true"}, BY_ROW)]
)
def test_what_changed_again_in_the_same_buckets_is_undone_by_key_or_row(options: dict[str, str], way: str) -> None:
    table = published(**options)
    append(table, "a", seq=9)
    found = preview_undo(table, 2)
    assert (found.way, list(found.conflicts), found.later_count) == (way, ["dt=a/bucket-0"], 1)
    assert found.statement is not None
    assert found.statement.startswith("MERGE INTO branch USING (")
    assert found.views == ("before=d.t@airflow-paimon-undo-one", "published=d.t@2")


def test_what_can_not_be_undone_says_why() -> None:
    table = published(primary=False)
    rewrite(table, "a")
    found = preview_undo(table, 2)
    assert (found.way, found.statement) == (NO_WAY, None)
    assert "changed again since, and d.t has no primary key" in found.why
    assert preview_undo(table, 1).why == "snapshot 1 is not a publish, an undo or a rollback"
    run(table, "delete_tag", tag="airflow-paimon-undo-one")
    assert (preview_undo(table, 2).way, "airflow-paimon-undo-one" in preview_undo(table, 2).why) == (NO_WAY, True)
    with pytest.raises(NotFoundError):
        preview_undo(table, 9)


def test_an_undo_can_be_undone_as_well() -> None:
    table = published()
    run(table, "rollback_to", tag="airflow-paimon-undo-one", keep_later=True, operation_id="two")
    found = preview_undo(table, 3)
    assert (found.way, found.tag) == (BY_BUCKET, "airflow-paimon-undo-two")
    assert (found.figures["rows_deleted"], found.figures["rows_added"]) == (3, 1)
