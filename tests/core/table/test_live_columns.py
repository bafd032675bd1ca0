"""The live files in columns are those of the entries: merged over several manifests, with the same errors."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_paimon.core.errors import FormatError
from airflow_paimon.core.format.manifest import EMPTY_STATS, DataFile, FileId, FileKind, ManifestEntry
from airflow_paimon.core.format.manifest_io import read_manifest_columns, write_manifest
from airflow_paimon.core.table.live_entries import live_columns, live_entries
from airflow_paimon.core.table.live_files import BucketKey, live_buckets_of, live_columns_of, net_change
from airflow_paimon.core.table.manifest_lists import all_manifests
from tests.core.tables import append, make_table, overwrite


def _entry(kind: int, name: str, bucket: int, level: int) -> ManifestEntry:
    file = DataFile(name, 10, 1, b"k", b"k", EMPTY_STATS, EMPTY_STATS, 0, 0, 0, level)
    return ManifestEntry(kind, EMPTY_STATS.min_values, bucket, 2, file)


# Few names, buckets and levels: the same file comes, goes and comes back, and one name can be several files.
_entries = st.lists(
    st.builds(_entry, st.integers(0, 1), st.sampled_from("abc"), st.integers(0, 1), st.integers(0, 1)), max_size=12
)


@given(_entries)
def test_entries_in_any_order(entries: list[ManifestEntry]) -> None:
    columns = read_manifest_columns(write_manifest(entries))
    expected: list[FileId] | None = None
    try:
        change = net_change(entries, "t")
        expected = None if change.deleted else list(change.added)
    except FormatError as error:
        assert "added twice" in error.message
    buckets = live_buckets_of([columns])
    if expected is None:
        with pytest.raises(FormatError, match=r"^t(: file . is added twice| deletes file ., which it never added)"):
            live_columns_of(columns, "t")
    else:
        assert list(live_columns_of(columns, "t").identifiers()) == expected
        assert {bucket: totals[2] for bucket, totals in buckets.items()} == Counter(
            BucketKey(file.partition, file.bucket) for file in expected
        )


def test_a_bucket_that_can_not_be_read_is_among_those_with_live_files() -> None:
    """Or a read of many files would leave it out."""
    entries = [_entry(FileKind.ADD, "a", 0, 0), _entry(FileKind.DELETE, "b", 0, 0), _entry(FileKind.DELETE, "b", 1, 0)]
    columns = read_manifest_columns(write_manifest(entries))
    assert {bucket.bucket for bucket in live_buckets_of([columns])} == {0, 1}


def test_deletions_over_several_manifests(tmp_path: Path) -> None:
    table = make_table(tmp_path / "wh")
    assert not live_columns(table, None).kinds
    for day in "abc":
        append(table, day, rows=2)
    overwrite(table, "b", rows=5)
    append(table, "b", 1, rows=7)
    overwrite(table, "c", rows=9)
    head = table.latest_snapshot()
    assert head is not None
    assert len(all_manifests(table, head)) > 3
    live = live_columns(table, head)
    assert list(live.identifiers()) == list(live_entries(table, head))
    assert sorted(live.row_counts) == [2, 5, 7, 9]
    assert not any(live.kinds)


def test_a_lost_manifest_is_named(tmp_path: Path) -> None:
    table = make_table(tmp_path / "wh")
    append(table, "a")
    head = table.latest_snapshot()
    assert head is not None
    name = all_manifests(table, head)[0].file_name
    table.store.delete(f"manifest/{name}")
    with pytest.raises(FormatError, match=f"manifest {name} of a live snapshot is missing"):
        live_columns(table, head)
