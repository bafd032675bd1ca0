"""A publish where a key may live in more than one bucket: what one side changed concerns all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_paimon.core.commit.files import commit_append
from airflow_paimon.core.errors import ConflictError
from airflow_paimon.core.format.snapshot import CommitKind
from airflow_paimon.core.publish.bucket_merge_plan import key_group
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.live_files import BucketKey
from airflow_paimon.core.table.table import Table
from tests.core.tables import COLUMNS, append, files, make_table, message, rewrite, run


def branched(table: Table) -> Table:
    for dt in "ab":
        append(table, dt)
    run(table, "create_branch", branch="fix", snapshot=2)
    return table.branch("fix")


@pytest.mark.parametrize(
    ("bucket", "primary_keys", "partition_keys", "scopes"),
    [
        ("2", ["dt", "k"], ["dt"], 4),
        ("-1", [], ["dt"], 4),
        ("-1", ["dt", "k"], ["dt"], 2),
        ("-2", ["dt", "k"], ["dt"], 2),
        ("-1", ["k"], ["dt"], 1),
    ],
)
def test_how_far_the_rows_of_a_key_may_be_apart(
    tmp_path: Path, bucket: str, primary_keys: list[str], partition_keys: list[str], scopes: int
) -> None:
    keys = {"primary_keys": primary_keys, "partition_keys": partition_keys}
    table = create_table(str(tmp_path), "d.t", COLUMNS, options={"bucket": bucket}, **keys)
    group_of = key_group(table.schema())
    assert len({group_of(BucketKey(partition, number)) for partition in (b"a", b"b") for number in (0, 1)}) == scopes


def test_another_bucket_of_the_partition_is_a_conflict_where_writers_choose_buckets(tmp_path: Path) -> None:
    table = make_table(tmp_path / "wh", bucket="-1")
    fix = branched(table)
    rewrite(fix, "a", 1)
    append(table, "a", 2, seq=5)
    before = files(table)
    with pytest.raises(ConflictError, match="dt=a/bucket-1"):
        run(table, "merge_branch", branch="fix", writers_stopped=True)
    assert files(table) == before


def test_other_partitions_are_merged_and_undone_all_the_same(tmp_path: Path) -> None:
    table = make_table(tmp_path / "wh", bucket="-1")
    fix = branched(table)
    rewrite(fix, "a", 1)
    append(table, "b", 2, seq=5)
    undo = run(table, "merge_branch", branch="fix", writers_stopped=True).details["undo_tag"]
    assert len(files(table)) == 4
    append(table, "b", 3, seq=9)
    run(table, "rollback_to", tag=undo, keep_later=True)
    assert len(files(table)) == 4
    undo = run(table, "merge_branch", branch="fix", writers_stopped=True).details["undo_tag"]
    append(table, "a", 2, seq=9)
    with pytest.raises(ConflictError, match="dt=a"):
        run(table, "rollback_to", tag=undo, keep_later=True)


def test_a_second_publish_goes_by_what_main_changed_since_the_first(tmp_path: Path) -> None:
    table = make_table(tmp_path / "wh", bucket="-1")
    fix = branched(table)
    rewrite(fix, "a", 1)
    run(table, "merge_branch", branch="fix", writers_stopped=True)
    append(table, "a", 2, seq=5)
    rewrite(fix, "b", 1)
    run(table, "merge_branch", branch="fix", writers_stopped=True)
    rewrite(fix, "a", 1)
    with pytest.raises(ConflictError, match="dt=a"):
        run(table, "merge_branch", branch="fix", writers_stopped=True)


@pytest.mark.parametrize(("bucket", "conflict"), [("-2", True), ("2", False)])
def test_compaction_moves_rows_out_of_a_postponed_bucket(tmp_path: Path, bucket: str, conflict: bool) -> None:
    table = make_table(tmp_path / "wh", bucket=bucket)
    fix = branched(table)
    append(fix, "a", 0, seq=5)
    rewrite(table, "a", 1, kind=CommitKind.COMPACT)
    if conflict:
        with pytest.raises(ConflictError, match="dt=a"):
            run(table, "merge_branch", branch="fix", writers_stopped=True)
    else:
        assert run(table, "merge_branch", branch="fix", writers_stopped=True).changed


@pytest.mark.parametrize(
    ("options", "hidden"),
    [
        ({"deletion_vectors__enabled": "true"}, 3),
        ({"deletion_vectors__enabled": "true", "deletion_vectors__merge_on_read": "true"}, 0),
        ({"merge_engine": "first-row"}, 3),
        ({"changelog_producer": "lookup"}, 0),
        ({}, 0),
    ],
)
def test_rows_that_wait_for_a_compaction_are_published_and_reported(
    tmp_path: Path, options: dict[str, str], hidden: int
) -> None:
    """Level 0 of the branch, where batch reads of the table hide it: nothing is lost, and nobody sees it yet."""
    plain = {k.replace("__", ".").replace("_", "-"): v for k, v in options.items()}
    table = make_table(tmp_path / "wh", **plain)
    rewrite(table, "a", seq=1)
    run(table, "create_branch", branch="fix", snapshot=1)
    fix = table.branch("fix")
    append(fix, "a", rows=3, seq=5)
    request = {"branch": "fix", "writers_stopped": True}
    planned = run(table, "merge_branch", dry_run=True, **request).details
    done = run(table, "merge_branch", **request).details
    assert files(table) == files(fix)
    for details in (planned, done):
        assert details.get("not_visible_rows", 0) == hidden
        assert ("wait for a compaction" in " ".join(details.get("warnings", []))) == bool(hidden)
    undone = run(table, "rollback_to", tag=done["undo_tag"]).details
    assert "not_visible_rows" not in undone


@pytest.mark.parametrize(
    ("producer", "told", "waiting"),
    [("none", True, 0), ("input", False, 0), ("lookup", False, 1), ("full-compaction", False, 2)],
)
def test_what_streaming_readers_miss_is_said(tmp_path: Path, producer: str, told: bool, waiting: int) -> None:
    """Main's bucket has a file on each of levels 0 and 3: what no compaction has told yet depends on the producer."""
    options = {"changelog-producer": producer, "write-only": "true"}
    table = make_table(tmp_path / "wh", **{k.replace("-", "__"): v for k, v in options.items()})
    commit_append(table, [message(table, "a", level=3), message(table, "a", seq=1)], planned_on=None)
    run(table, "create_branch", branch="fix", snapshot=1)
    rewrite(table.branch("fix"), "a", seq=2)
    details = run(table, "merge_branch", branch="fix", writers_stopped=True, changelog="none").details
    warning = " ".join(details.get("warnings", []))
    assert ("streaming readers" in warning) != told
    assert (f"; {waiting} of the replaced files contain changes" in warning) == bool(waiting)
