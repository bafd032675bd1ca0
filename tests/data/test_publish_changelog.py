"""The changelog of publishes, rollbacks and undos: readers that apply it have main's rows, each change once."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_paimon.core.commit.files import commit_buckets
from airflow_paimon.core.errors import ConflictError, FormatError
from airflow_paimon.core.format.manifest import ManifestEntry
from airflow_paimon.core.publish.publish_branch import publish_branch
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import open_context
from airflow_paimon.core.requests.requests import MergeBranch
from airflow_paimon.core.schema.schema_plan import AddColumn, SetOption
from airflow_paimon.core.table.data_file_paths import data_file_path
from airflow_paimon.core.table.manifest_entries import read_entries
from airflow_paimon.core.table.manifest_lists import ManifestListRef, read_manifest_lists
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.data import read_arrow, write_arrow
from airflow_paimon.data.files.conform import conform_rows
from airflow_paimon.data.net_changelog import write_changelog
from airflow_paimon.data.rewrite import live_bucket, rewrite_bucket
from airflow_paimon.data.write import plan_write
from airflow_paimon.execution import row_functions
from tests.core.tables import alter_table, cut_off, forget_results
from tests.core.tables import run as operate
from tests.data.tables import rows_of, sorted_changes
from tests.data.test_compact import run
from tests.data.test_compact_keyed import COLUMNS, keyed, replace_level, upsert
from tests.data.test_net_changelog import told_by
from tests.randomness import moments

PRODUCERS = ["input", "lookup", "full-compaction"]


def with_branch(folder: Path, producer: str, **options: str) -> tuple[Table, Table]:
    """Main with rows of two partitions, told; and a branch of it."""
    table = keyed(folder, bucket="1", **options)
    upsert(table, *(("a", k, f"v{k}") for k in range(3)), ("b", 1, "v1"))
    run(table)
    alter_table(table, [SetOption(key="changelog-producer", value=producer)])
    return table, branch_of(table)


def branch_of(table: Table) -> Table:
    operate(table, "create_branch", branch="fix", snapshot=table.latest_snapshot_id())
    return table.branch("fix")


def correct(table: Table, rows: list[tuple[str, int, str]], kind: str = "+I", partition: str = "a") -> None:
    write, plan = plan_write(table, by_buckets=True), plan_scan(table)
    (split,) = (s for s in plan.splits if s.values == (partition,))
    data = rows_of(COLUMNS, [{"p": p, "k": k, "v": v} for p, k, v in rows])
    batch = conform_rows(data.append_column("_row_kind", pa.array([kind] * len(rows))), write.schema, table.label)
    changes = sorted_changes(batch, write.schema)
    highest = max(f.max_sequence_number for f in split.files)
    commit_buckets(table, [rewrite_bucket(write, split, live_bucket(plan, split), changes, highest)])


def told(table: Table, result: Any) -> list[str]:
    assert result.changed
    return told_by(table, result.snapshot_after)


@pytest.mark.parametrize("producer", PRODUCERS)
def test_a_publish_and_its_undo_tell_their_net_changes(tmp_path: Path, producer: str) -> None:
    main, fix = with_branch(tmp_path, producer)
    correct(fix, [("a", 1, "new"), ("a", 7, "more")])
    correct(fix, [("a", 0, "x")], "-D")
    plan = operate(main, "merge_branch", branch="fix", dry_run=True).details["streaming_readers"]
    assert plan["see"] == "changes" and "get the net changes" in plan["note"]
    assert "the publish reads 2 files, 0.0 MB" in plan["note"]
    assert not list(tmp_path.rglob("bucket-*/changelog-*"))
    done = operate(main, "merge_branch", branch="fix")
    assert told(main, done) == ["-D a0 v0", "-U a1 v1", "+U a1 new", "+I a7 more"]
    readers = done.details["streaming_readers"]
    assert (readers["changelog_producer"], readers["changelog_files"], readers["changelog_rows"]) == (producer, 1, 4)
    assert "warnings" not in done.details
    back = operate(main, "rollback_to", tag=done.details["undo_tag"], keep_later=True)
    assert told(main, back) == ["+I a0 v0", "-U a1 new", "+U a1 v1", "-D a7 more"]
    correct(fix, [("a", 1, "newer")])
    assert told(main, operate(main, "fast_forward", branch="fix")) == [
        "-D a0 v0",
        "-U a1 v1",
        "+U a1 newer",
        "+I a7 more",
    ]


@pytest.mark.parametrize(("producer", "level", "waits"), [
    ("input", 0, False), ("lookup", 0, True), ("lookup", 3, False), ("full-compaction", 0, True),
    ("full-compaction", 3, True),
])  # fmt: skip
def test_rows_that_no_compaction_had_told_are_told_by_the_publish(
    tmp_path: Path, producer: str, level: int, waits: bool
) -> None:
    """The correction has folded them in; without this nobody would tell them any more."""
    main = keyed(tmp_path, bucket="1")
    upsert(main, ("a", 1, "v"), ("a", 2, "v"))
    run(main)
    upsert(main, ("a", 2, "late"))
    replace_level(main, level)
    alter_table(main, [SetOption(key="changelog-producer", value=producer)])
    fix = branch_of(main)
    correct(fix, [("a", 1, "new")])
    late = ["-U a2 v", "+U a2 late"] if waits else []
    assert told(main, operate(main, "merge_branch", branch="fix")) == ["-U a1 v", "+U a1 new", *late]


def test_rows_of_the_branch_that_wait_for_a_compaction_are_told_by_it(tmp_path: Path) -> None:
    """Files of level 0 are published by reference: the compaction of main tells them, and each change comes once."""
    main, fix = with_branch(tmp_path, "lookup")
    correct(fix, [("a", 1, "new")])
    upsert(fix, ("a", 1, "newer"), ("b", 5, "more"))
    done = operate(main, "merge_branch", branch="fix", writers_stopped=True)
    assert "rows of 2 added files follow with the next compaction" in done.details["streaming_readers"]["note"]
    assert told(main, done) == ["-U a1 v1", "+U a1 new"]
    compacted = run(main)
    lines = [line for s in compacted.details["snapshots"] for line in told_by(main, s)]
    assert sorted(lines) == ["+I b5 more", "+U a1 newer", "-U a1 new"]


def test_a_publish_that_changes_no_row_says_so_to_streams(tmp_path: Path) -> None:
    main, fix = with_branch(tmp_path, "input")
    correct(fix, [("a", 1, "v1")])
    done = operate(main, "merge_branch", branch="fix")
    assert main.snapshot(done.snapshot_after).changelog_record_count == 0
    assert told(main, done) == []


def test_none_writes_nothing_and_says_what_is_missed(tmp_path: Path) -> None:
    main, fix = with_branch(tmp_path, "lookup")
    correct(fix, [("a", 1, "new")])
    done = operate(main, "merge_branch", branch="fix", changelog="none")
    assert done.details["streaming_readers"]["see"] == "nothing"
    assert "don't get these changes" in " ".join(done.details["warnings"])
    assert main.snapshot(done.snapshot_after).changelog_manifest_list is None
    assert not list(tmp_path.rglob("bucket-*/changelog-*"))


def test_tables_without_a_producer_are_read_as_before(tmp_path: Path) -> None:
    main, fix = with_branch(tmp_path, "none")
    correct(fix, [("a", 1, "new")])
    done = operate(main, "merge_branch", branch="fix")
    assert done.details["streaming_readers"]["see"] == "overwrites" and "warnings" not in done.details
    assert main.snapshot(done.snapshot_after).changelog_manifest_list is None


def test_a_table_that_can_not_be_merged_is_published_without(tmp_path: Path) -> None:
    main, fix = with_branch(tmp_path, "input")
    correct(fix, [("a", 1, "new")])
    alter_table(main, [SetOption(key="data-file.external-paths", value="file:///elsewhere")])
    done = operate(main, "merge_branch", branch="fix")
    readers = done.details["streaming_readers"]
    assert readers["see"] == "nothing" and "data-file.external-paths" in readers["note"]
    assert "data-file.external-paths" in " ".join(done.details["warnings"])


def test_columns_that_come_with_the_publish(tmp_path: Path) -> None:
    """Rows that have only got an empty column are not told."""
    main, fix = with_branch(tmp_path, "input")
    alter_table(fix, [AddColumn(name="extra", type="INT")])
    data = rows_of({**COLUMNS, "extra": "INT"}, [{"p": "a", "k": 1, "v": "v1", "extra": 5}])
    write, plan = plan_write(fix, by_buckets=True), plan_scan(fix)
    (split,) = (s for s in plan.splits if s.values == ("a",))
    batch = conform_rows(data, write.schema, fix.label)
    changes = sorted_changes(batch, write.schema)
    commit_buckets(fix, [rewrite_bucket(write, split, live_bucket(plan, split), changes, 2)])
    assert told(main, operate(main, "merge_branch", branch="fix")) == ["-U a1 v1", "+U a1 v1"]
    assert read_arrow(main)["extra"].to_pylist().count(5) == 1


def test_a_partition_that_got_other_buckets(tmp_path: Path) -> None:
    """Keys move between buckets; only what is another row is told."""
    main, fix = with_branch(tmp_path, "none")
    alter_table(fix, [SetOption(key="bucket", value="3")])
    rows = [{"p": "a", "k": k, "v": f"v{k}"} for k in range(1, 9)]
    write_arrow(fix, rows_of(COLUMNS, rows), mode="overwrite", partition={"p": "a"})
    alter_table(main, [SetOption(key="changelog-producer", value="input")])
    done = operate(main, "merge_branch", branch="fix", writers_stopped=True)
    assert sorted(told(main, done)) == sorted(["-D a0 v0", *(f"+I a{k} v{k}" for k in range(3, 9))])


def test_damaged_files_stop_the_publish_and_leave_nothing(tmp_path: Path) -> None:
    main, fix = with_branch(tmp_path, "input")
    correct(fix, [("a", 1, "new")])
    correct(fix, [("b", 1, "new")], partition="b")
    for path in tmp_path.rglob("p=b/bucket-*/data-*"):
        path.write_bytes(b"PAR1")
    head = main.latest_snapshot()
    with pytest.raises(FormatError):
        operate(main, "merge_branch", branch="fix")
    assert main.latest_snapshot() == head
    assert not list(tmp_path.rglob("bucket-*/changelog-*"))
    assert operate(main, "merge_branch", branch="fix", changelog="none").changed


def test_expiry_and_cleaning_delete_the_changelogs_of_expired_snapshots_only(tmp_path: Path) -> None:
    main, fix = with_branch(tmp_path, "input")
    for value in ("x", "y", "z"):
        correct(fix, [("a", 1, value)])
        operate(main, "merge_branch", branch="fix")
    later = "2100-01-01T00:00:00+00:00"
    assert named(main) == set(tmp_path.rglob("bucket-*/changelog-*")) and len(named(main)) == 3
    cleaned = operate(main, "remove_orphan_files", older_than="2 h", now=later).details
    assert (cleaned["files"], named(main)) == (0, set(tmp_path.rglob("bucket-*/changelog-*")))
    asked = {
        "older_than": "0 s",
        "grace": "0 s",
        "writers_stopped": True,
        "retry_window": "0 s",
        "keep_undo": False,
        "now": later,
    }
    operate(main, "delete_branch", branch="fix")
    for tag in [t for t in main.tag_names() if t.startswith("airflow-paimon-undo-")]:
        operate(main, "delete_tag", tag=tag)
    for _ in range(2):
        operate(main, "expire_snapshots", retain_min=1, retain_max=1, **asked)
    assert len(named(main)) == 1
    assert set(tmp_path.rglob("bucket-*/changelog-*")) == named(main)
    assert operate(main, "check_table").details["ok"]


def named(table: Table) -> set[Path]:
    """The changelog files that snapshots of main name."""
    out = set()
    for snapshot in table.snapshots():
        if snapshot.changelog_manifest_list is not None:
            (rows,) = read_manifest_lists(table, [ManifestListRef(snapshot.changelog_manifest_list, None, "changelog")])
            for entry in (e for part in read_entries(table, rows) for e in part):
                values = StoredPartitions(table.schema()).values(entry.partition)
                path = data_file_path(table.schema(), values, entry.bucket, entry.file)
                out.add(Path(table.store.uri.removeprefix("file://")) / path)
    return out


def test_a_publish_killed_between_any_two_writes_tells_each_change_once(tmp_path: Path) -> None:
    made, fix = with_branch(tmp_path / "made", "input")
    correct(fix, [("a", 1, "new")])
    correct(fix, [("b", 1, "new")], partition="b")
    for step in moments(100):
        shutil.copytree(tmp_path / "made", tmp_path / str(step))
        main = open_table(str(tmp_path / str(step)), made.name)
        asked = {"branch": "fix", "operation_id": "op"}
        goes_on = cut_off(main, step, "merge_branch", **asked)
        operate(main, "merge_branch", **asked)
        forget_results(main)
        again = operate(main, "merge_branch", **asked).details
        assert again["replayed"] and again["streaming_readers"] == {"see": "changes", "changelog_rows": 4}
        told_lines = [line for number in main.snapshot_ids() for line in told_by(main, number)]
        assert told_lines == ["-U a1 v1", "+U a1 new", "-U b1 v1", "+U b1 new"]
        assert [r["v"] for r in read_arrow(main).sort_by("k").to_pylist() if r["k"] == 1] == ["new", "new"]
        assert named(main) <= set((tmp_path / str(step)).rglob("bucket-*/changelog-*"))
        if not goes_on:
            break
    assert step > 8


@pytest.mark.parametrize("partition", ["a", "b"])
def test_a_commit_of_main_while_the_changelog_is_written(tmp_path: Path, partition: str) -> None:
    """Elsewhere: the publish follows with the same changelog. In what it replaces: a conflict, and nothing is left."""
    main, fix = with_branch(tmp_path, "none")
    correct(fix, [("a", 1, "new")])
    alter_table(main, [SetOption(key="changelog-producer", value="lookup")])

    def meanwhile(*replaced: Any) -> Sequence[ManifestEntry]:
        found = write_changelog(*replaced)
        upsert(main, (partition, 1, "late"))
        return found

    warehouse = main.store.uri.removeprefix("file://").rsplit("/", 2)[0]
    request = build_request("merge_branch", {"warehouse": warehouse, "table": main.name, "branch": "fix"})
    assert isinstance(request, MergeBranch)
    rows = replace(row_functions(), write_changelog=meanwhile)
    if partition == "a":
        with pytest.raises(ConflictError, match="both changed"):
            publish_branch(open_context(request), request, rows)
        assert not list(tmp_path.rglob("bucket-*/changelog-*"))
    else:
        assert told(main, publish_branch(open_context(request), request, rows)) == [
            "-U a1 v1",
            "+U a1 new",
        ]
        assert len(list(tmp_path.rglob("bucket-*/changelog-*"))) == 1
