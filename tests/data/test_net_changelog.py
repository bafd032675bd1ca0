"""The changelog of commits that replace buckets: the net difference against what streaming readers were told."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_paimon.core.commit.files import commit_buckets
from airflow_paimon.core.errors import FormatError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.schema.schema_plan import SetOption
from airflow_paimon.core.table.data_file_paths import data_file_path
from airflow_paimon.core.table.manifest_entries import read_entries
from airflow_paimon.core.table.manifest_lists import ManifestListRef, read_manifest_lists
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table
from airflow_paimon.data.files.conform import conform_rows
from airflow_paimon.data.merge.sections import Section
from airflow_paimon.data.net_changelog import BucketState, net_changelog, with_net_changelog
from airflow_paimon.data.read import read_versions
from airflow_paimon.data.rewrite import live_bucket, rewrite_bucket
from airflow_paimon.data.write import TableWrite, plan_write
from tests.core.tables import alter_table
from tests.data.tables import make_table, rows_of, sorted_changes
from tests.data.test_compact import run
from tests.data.test_compact_keyed import COLUMNS, keyed, replace_level, upsert

PRODUCERS = ["input", "lookup", "full-compaction"]


def told_by(table: Table, snapshot: int) -> list[str]:
    """The changelog of a snapshot."""
    found = table.snapshot(snapshot)
    if found.changelog_manifest_list is None:
        return []
    (manifests,) = read_manifest_lists(table, [ManifestListRef(found.changelog_manifest_list, None, "changelog")])
    out = []
    for entry in (e for part in read_entries(table, manifests) for e in part):
        values = StoredPartitions(table.schema()).values(entry.partition)
        path = data_file_path(table.schema(), values, entry.bucket, entry.file)
        rows = pq.read_table(Path(table.store.uri.removeprefix("file://")) / path).to_pylist()
        out += [("+I", "-U", "+U", "-D")[r["_VALUE_KIND"]] + f" {r['p']}{r['k']} {r['v']}" for r in rows]
    assert len(out) == found.changelog_record_count
    return out


def writing(table: Table, producer: str) -> TableWrite:
    write = plan_write(table)
    return replace(write, schema=with_producer(write.schema, producer))


def with_producer(schema: TableSchema, producer: str) -> TableSchema:
    return replace(schema, options={**schema.options, "changelog-producer": producer})


def corrected(
    table: Table, producer: str, rows: Sequence[tuple[str, int, str]], kind: str = "+I", *, keep: bool = True
) -> list[str]:
    """Rewrite the only bucket with these changes; return what streaming readers are told."""
    write, plan = writing(table, producer), plan_scan(table)
    (split,) = plan.splits
    before = live_bucket(plan, split)
    data = rows_of(COLUMNS, [{"p": p, "k": k, "v": v} for p, k, v in rows])
    batch = conform_rows(data.append_column("_row_kind", pa.array([kind] * len(rows))), write.schema, table.label)
    ordered = sorted_changes(batch, write.schema) if rows else []
    message = rewrite_bucket(write, split, before if keep else None, ordered, 100)
    found = with_net_changelog(write, message, before)
    written = found.changelog or ()
    assert all(f.file_name.startswith("changelog-") for f in written) and len(written) <= 1
    committed = commit_buckets(table, [found]).snapshot
    assert committed is not None
    return told_by(table, committed.id)


@pytest.mark.parametrize("producer", PRODUCERS)
def test_a_correction_tells_its_net_difference(tmp_path: Path, producer: str) -> None:
    """Rows that stay are not told, updates of equal rows neither; a second correction starts from the first one."""
    table = keyed(tmp_path, bucket="1")
    upsert(table, *(("a", k, f"v{k}") for k in range(4)))
    run(table)
    assert corrected(table, producer, [("a", 3, "v3"), ("a", 1, "new"), ("a", 9, "more")]) == [
        "-U a1 v1",
        "+U a1 new",
        "+I a9 more",
    ]
    assert corrected(table, producer, [("a", 1, "x"), ("a", 2, "x"), ("a", 7, "x")], "-D") == ["-D a1 new", "-D a2 v2"]
    assert corrected(table, producer, [("a", 0, "v0"), ("a", 2, "back")], keep=False) == [
        "+I a2 back",
        "-D a3 v3",
        "-D a9 more",
    ]
    assert corrected(table, producer, []) == []


@pytest.mark.parametrize(("producer", "level", "told"), [
    ("input", 0, False), ("lookup", 0, True), ("lookup", 3, False),
    ("full-compaction", 0, True), ("full-compaction", 3, True),
])  # fmt: skip
def test_rows_that_no_compaction_has_told_are_told_by_the_rewrite(
    tmp_path: Path, producer: str, level: int, told: bool
) -> None:
    """Nobody replaced them, and after the rewrite no compaction tells them any more."""
    table = keyed(tmp_path, bucket="1")
    upsert(table, ("a", 1, "v"), ("a", 2, "v"))
    run(table)
    upsert(table, ("a", 2, "late"), ("a", 3, "late"))
    replace_level(table, level)
    upsert(table, ("a", 1, "gone"), kind="-D")
    replace_level(table, level)
    late = ["-D a1 v", "-U a2 v", "+U a2 late", "+I a3 late"]
    assert corrected(table, producer, [("a", 5, "x")]) == [*(late if told else []), "+I a5 x"]
    if producer != "input":
        alter_table(table, [SetOption(key="changelog-producer", value=producer)])
        upsert(table, ("a", 6, "y"))
        assert told_by(table, run(table).snapshot_after or 0) == ["+I a6 y"]


@pytest.mark.parametrize(
    ("producer", "told"), [("lookup", ["+U a1 new"]), ("input", ["-U a1 v", "+U a1 new", "-D a2 v"])]
)
def test_kinds_that_readers_are_not_told(tmp_path: Path, producer: str, told: list[str]) -> None:
    """With ``input`` the writers' rows are told as they are."""
    table = keyed(tmp_path, bucket="1", changelog_producer__ignore_update_before="true",
                  changelog_producer__ignore_delete="true")  # fmt: skip
    upsert(table, ("a", 1, "v"), ("a", 2, "v"))
    run(table)
    found = corrected(table, producer, [("a", 1, "new")]) + corrected(table, producer, [("a", 2, "v")], "-D")
    assert found == told


def test_without_a_producer_there_is_no_changelog(tmp_path: Path) -> None:
    table = keyed(tmp_path, bucket="1")
    upsert(table, ("a", 1, "v"))
    assert corrected(table, "none", [("a", 1, "w")]) == []
    assert not list(tmp_path.rglob("changelog-*"))
    assert {s.changelog_manifest_list for s in table.snapshots()} == {None}


def test_a_new_bucket_tells_all_its_rows(tmp_path: Path) -> None:
    table = make_table(
        tmp_path, COLUMNS, primary_keys=["k"], bucket="1", changelog_producer="lookup", write_only="true"
    )
    upsert(table, ("a", 1, "v"), ("a", 2, "v"))
    plan = plan_scan(table)
    (split,) = plan.splits
    message = rewrite_bucket(plan_write(table), split, live_bucket(plan, split), (), 5)
    found = with_net_changelog(plan_write(table), message, None)
    assert found.changelog is not None and [f.row_count for f in found.changelog] == [2]


def test_files_that_are_gone_leave_no_changelog(tmp_path: Path) -> None:
    table = keyed(tmp_path, bucket="1", changelog_producer="lookup")
    upsert(table, *(("a", k, "v") for k in range(3)))
    run(table)
    plan = plan_scan(table)
    (split,) = plan.splits
    message = rewrite_bucket(plan_write(table), split, None, (), 5)
    (path,) = (p for p in tmp_path.rglob("data-*") if p.name == split.files[0].file_name)
    path.unlink()
    with pytest.raises(FormatError, match="is missing"):
        with_net_changelog(plan_write(table), message, live_bucket(plan, split))
    assert len(list(tmp_path.rglob("changelog-*"))) == 1  # the compaction's


def test_a_key_that_moved_to_another_bucket_was_updated(tmp_path: Path) -> None:
    """Its changes are in the bucket that it lives in now, so that one reader gets them in order."""
    table = keyed(tmp_path, bucket="2")
    upsert(table, *(("a", k, "old") for k in range(8)))
    first, second = states(table)
    upsert(table, *(("a", k, "new") for k in range(8)))
    schema = with_producer(table.schema(), "input")
    assert net_changelog(table.store, schema, [first, second], [second, first]) == {}
    moved = [in_bucket(tmp_path, s, 1 - s[1].bucket.bucket) for s in (first, second)]
    assert net_changelog(table.store, schema, [first, second], moved) == {}, "rows that only moved are not told"
    found = net_changelog(table.store, schema, [first, second], [in_bucket(tmp_path, s, 5) for s in states(table)])
    assert [(bucket, [f.row_count for f in files]) for bucket, files in found.items()] == [(5, [16])]
    kinds = pq.read_table(next(tmp_path.rglob("bucket-5/changelog-*")))["_VALUE_KIND"].to_pylist()
    assert kinds == [1, 2] * 8
    gone = net_changelog(table.store, schema, [first, second], [in_bucket(tmp_path, first, 6)])
    assert {b: sum(f.row_count for f in files) for b, files in gone.items()} == {1: count(second)}


def states(table: Table) -> list[BucketState]:
    plan = plan_scan(table)
    return [live_bucket(plan, split) for split in sorted(plan.splits, key=lambda s: s.bucket)]


def in_bucket(folder: Path, state: BucketState, bucket: int) -> BucketState:
    """The same rows in another bucket."""
    read, split = state
    for file in split.files:
        (path,) = folder.rglob(f"bucket-{split.bucket.bucket}/{file.file_name}")
        (path.parents[1] / f"bucket-{bucket}").mkdir(exist_ok=True)
        shutil.copy(path, path.parents[1] / f"bucket-{bucket}" / file.file_name)
    return read, replace(split, bucket=replace(split.bucket, bucket=bucket))


def count(state: BucketState) -> int:
    return len({r["k"] for batch in read_versions(*state) for r in batch.to_pylist()})


def test_files_that_stay_and_share_no_key_are_not_read(tmp_path: Path) -> None:
    table = keyed(tmp_path, bucket="1")
    for first in (0, 100):
        upsert(table, *(("a", k, "old") for k in range(first, first + 3)))
        replace_level(table, 5)
    upsert(table, ("a", 101, "new"))
    (after,) = states(table)
    old = tuple(s for s in after[1].sections if not s.needs_merge)
    (section,) = (s for s in after[1].sections if s.needs_merge)
    before = after[0], replace(after[1], sections=(*old, Section((section.runs[0],))))
    (path,) = (p for p in tmp_path.rglob("data-*") if p.name == old[0].files[0].file_name)
    path.unlink()
    found = net_changelog(table.store, with_producer(table.schema(), "input"), [before], [after])
    assert [f.row_count for files in found.values() for f in files] == [2]
