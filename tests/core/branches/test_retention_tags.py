"""Tags that keep files which come back or are shared: where they stand, when they may go, what a crash leaves."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_paimon.core.errors import FormatError, UnsafeOperationError
from airflow_paimon.core.format.snapshot import Tag
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import open_context
from airflow_paimon.core.table.paths import publish_tag
from airflow_paimon.core.table.table import Table
from airflow_paimon.execution import perform
from tests.core.tables import append, files, make_table, overwrite, rewrite, run
from tests.stateful.paimon_expiry import delete_tag, expire_snapshots
from tests.stores import Crash, FaultStore


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Main with partitions a, b; tag ``base`` and the branches ``fix`` and ``other`` on snapshot 2."""
    table = make_table(tmp_path / "wh", **{"sequence.field": "v"})
    for dt in "ab":
        append(table, dt)
    run(table, "create_tag", tag="base")
    for name in ("fix", "other"):
        run(table, "create_branch", branch=name, tag="base")
    return table


def publish_and_undo(table: Table) -> tuple[str, str]:
    """Snapshot 3 replaces partition a, snapshot 4 brings its file back; the two undo tags."""
    rewrite(table.branch("fix"), "a")
    first = run(table, "merge_branch", branch="fix").details["undo_tag"]
    return first, run(table, "rollback_to", tag=first).details["undo_tag"]


def sound(table: Table) -> bool:
    details = run(table, "check_table").details
    assert details["ok"], details["findings"]
    return True


def keep_tags(table: Table) -> list[str]:
    return [name for name in table.tag_names() if "keep" in name]


def test_a_file_that_came_back_is_kept_at_both_ends_of_its_absence(table: Table) -> None:
    publish_and_undo(table)
    assert keep_tags(table) == ["airflow-paimon-keep-2", "airflow-paimon-keep-4"]
    assert table.snapshot(4).properties["airflow-paimon.files-came-back"] == "true"
    assert "airflow-paimon.files-came-back" not in table.snapshot(3).properties


def test_what_came_back_and_is_replaced_again_stays_for_the_older_tags(table: Table) -> None:
    """The undo tag on snapshot 3 is the nearest one before snapshot 5 but for the keep tag on 4, and lacks the file."""
    publish_and_undo(table)
    overwrite(table, "a")
    before = files(table.branch("other"))
    expire_snapshots(table, 1)
    assert files(table.branch("other")) == before
    assert sound(table)


def test_a_keep_tag_goes_only_after_every_tag_as_old(table: Table) -> None:
    first, second = publish_and_undo(table)
    append(table, "c")
    expire_snapshots(table, 1)
    for name in ("fix", "other"):
        run(table, "delete_branch", branch=name)
    for undo in (first, second):
        delete_tag(table, undo)
        delete_tag(table, publish_tag(undo))
    assert not run(table, "repair_table").changed
    with pytest.raises(UnsafeOperationError, match="tag 'base'"):
        run(table, "delete_tag", tag="airflow-paimon-keep-2")
    delete_tag(table, "base")
    assert sound(table)
    append(table, "c")
    expire_snapshots(table, 1)
    repaired = [finding["id"] for finding in run(table, "repair_table").details["repaired"]]
    assert repaired == [f"spent-keep-tag:airflow-paimon-keep-{n}" for n in (2, 4)]
    assert table.tag_names() == []
    assert sound(table)


def test_a_file_that_only_a_tag_still_tells_of_is_kept_there(table: Table) -> None:
    """The publish that dropped the file is expired: no deletion is left to see, just the tag that holds it."""
    publish_and_undo(table)  # the branch's file was live in snapshot 3 alone, and published_tag(3) holds it
    append(table, "c")
    expire_snapshots(table, 1)
    run(table, "merge_branch", branch="fix")
    assert "airflow-paimon-keep-3" in keep_tags(table)
    assert "airflow-paimon-keep-6" in keep_tags(table)


def test_a_publish_protects_the_branches_that_its_branch_was_made_from(table: Table) -> None:
    rewrite(table.branch("fix"), "a")
    run(table, "create_branch", branch="kid", from_branch="fix", snapshot=3)
    rewrite(table.branch("kid"), "b")
    run(table, "merge_branch", branch="kid")
    assert files(table) == files(table.branch("kid"))
    run(table, "delete_branch", branch="kid")
    overwrite(table, "a")
    expire_snapshots(table, 1)
    assert sound(table), "branch fix shares the file that kid published"


def test_a_branch_of_a_branch_whose_parent_is_another_one_now_is_refused(table: Table) -> None:
    rewrite(table.branch("fix"), "a")
    run(table, "create_branch", branch="kid", from_branch="fix", snapshot=3)
    fix = table.branch("fix")
    fix.store.delete(fix.paths.snapshot(3))  # as another engine that drops the parent
    with pytest.raises(UnsafeOperationError, match="shares no snapshot"):
        run(table, "merge_branch", branch="kid")


def test_a_new_branch_of_an_old_name_shares_nothing_with_the_old_ones_publish(table: Table) -> None:
    rewrite(table.branch("fix"), "a")
    run(table, "merge_branch", branch="fix")
    run(table, "delete_branch", branch="fix")
    run(table, "create_branch", branch="fix", snapshot=3)
    assert sound(table)
    assert "airflow-paimon-branch-fix.3" not in table.tag_names()


def test_a_branch_from_a_published_snapshot_needs_no_tag_for_it(table: Table) -> None:
    publish_and_undo(table)
    for number in (3, 4):
        run(table, "create_branch", branch=f"new{number}", snapshot=number)
    assert sound(table)


def _cut_off(table: Table, operation: str, **values: Any) -> Iterator[str]:
    """Run an operation that dies at its n-th change of the storage, for every n; gives the newest snapshot's kind."""
    warehouse = table.store.uri.removeprefix("file://").rsplit("/", 2)[0]
    request = build_request(operation, {"warehouse": warehouse, "table": table.name, **values})
    context = open_context(request)
    for step in range(1, 40):
        faulty = Table(FaultStore(table.store, fail_at=step, error=Crash()), table.name)
        try:
            perform(type(context)(request, faulty, context.now_ms, context.started), request)
        except Crash:
            yield (table.latest_snapshot() or table.snapshot(1)).properties.get("airflow-paimon.operation", "")
        else:
            return
    raise AssertionError("40 steps were not enough")


@pytest.mark.parametrize("mended_by", ["retry", "repair"])
def test_a_publish_that_died_before_its_tags_stood(table: Table, mended_by: str) -> None:
    rewrite(table.branch("fix"), "a")
    undo = run(table, "merge_branch", branch="fix").details["undo_tag"]
    for done in _cut_off(table, "rollback_to", tag=undo, operation_id="op"):
        if done == "rollback_to":
            break
    assert "airflow-paimon-keep-4" not in keep_tags(table)
    findings = [f["id"] for f in run(table, "check_table").details["findings"] if f["severity"] == "warning"]
    expected = ("keep-2", "keep-4", "publish-op", "undo-op")
    assert findings == [f"unprotected-publish:airflow-paimon-{t}" for t in expected]
    if mended_by == "retry":
        assert run(table, "rollback_to", tag=undo, operation_id="op").details["replayed"]
    else:
        run(table, "repair_table")
    assert {"airflow-paimon-keep-2", "airflow-paimon-keep-4"} <= set(keep_tags(table))
    assert table.tag("airflow-paimon-undo-op").time_retained == timedelta(days=7)
    assert sound(table)


def test_a_tag_that_an_older_engine_copied_without_the_uuid_is_the_same_snapshot(table: Table) -> None:
    """Paimon 1.4.2 drops the keys of 2.x when it makes a tag; a branch from that tag still shares main's snapshot."""
    head = table.latest_snapshot()
    known = {k: v for k, v in head.to_json().items() if k not in ("uuid", "operation", "writerVersion")}
    copied = Tag(name="java", snapshot=type(head)(**{a: getattr(head, a) for a in head.__slots__} | {"uuid": None}))
    assert "uuid" in head.to_json()
    assert "uuid" not in known
    table.store.create(table.paths.tag("java"), copied.to_bytes())
    run(table, "create_branch", branch="mine", tag="java")
    rewrite(table.branch("mine"), "a")
    assert run(table, "merge_branch", branch="mine").changed


EVERYTHING = {
    "older_than": "0 s",
    "retain_min": 1,
    "grace": "0 s",
    "writers_stopped": True,
    "keep_undo": False,
    "retry_window": "0 s",
}


@pytest.mark.parametrize("name", ["airflow-paimon-keep-2", "airflow-paimon-branch-fix.2", "mine"])
def test_a_tag_whose_files_are_gone_can_be_deleted(tmp_path: Path, name: str) -> None:
    """It keeps nothing, and every expiry stops at it."""
    table = make_table(tmp_path / "wh")
    append(table, "a")
    run(table, "create_tag", tag="old")
    run(table, "create_branch", branch="fix", tag="old")
    lost = append(table, "b").snapshot
    assert lost is not None
    append(table, "c")
    run(table, "expire_snapshots", **EVERYTHING)
    table.store.create(table.paths.tag(name), Tag(name=name, snapshot=lost).to_bytes())
    append(table, "d")
    with pytest.raises(FormatError, match=name):
        run(table, "expire_snapshots", **EVERYTHING)
    run(table, "delete_tag", tag=name)
    assert run(table, "expire_snapshots", **EVERYTHING).details["expired"]["main"]["to"] == 3


def test_a_rollback_that_expires_before_its_tags_are_set_gets_none(tmp_path: Path) -> None:
    """Its process was stopped right after the snapshot, while others committed and expired."""
    table = make_table(tmp_path / "wh")
    append(table, "a")
    run(table, "create_tag", tag="old")
    overwrite(table, "a", seq=5)
    done: list[int] = []

    def meanwhile(method: str, path: str) -> None:
        if path == table.paths.latest_hint and not done:
            done.append(1)
            append(table, "b")
            run(table, "expire_snapshots", **EVERYTHING)

    request = build_request("rollback_to", {"warehouse": str(tmp_path / "wh"), "table": "d.t", "tag": "old"})
    context = open_context(request)
    stopped = Table(FaultStore(table.store, on_mutation=meanwhile), table.name)
    perform(type(context)(request, stopped, context.now_ms, context.started), request)
    assert done and table.snapshot_ids() == [4]
    append(table, "c")
    run(table, "expire_snapshots", **EVERYTHING)
    assert run(table, "check_table").details["findings"] == []
