"""The merge by file as a function: which files go, come and get which deletion vector, and what is a conflict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from airflow_paimon.core.errors import ConflictError
from airflow_paimon.core.format.manifest import EMPTY_STATS, DataFile, DeletionVectorRange, IndexEntry, ManifestEntry
from airflow_paimon.core.publish.file_merge_plan import (
    Change,
    Commit,
    FileMerge,
    FileSides,
    Vector,
    merge_files,
    merged_vectors,
)
from airflow_paimon.core.table.live_files import BucketKey, Difference
from airflow_paimon.core.table.partitions import InBucket

BUCKET = BucketKey(b"a", 0)


def bucket_of(one: InBucket) -> BucketKey:
    return BucketKey(one.partition.lower(), one.bucket)


def entry(name: str, partition: bytes = b"a") -> ManifestEntry:
    file = DataFile(name, 11, 1, b"", b"", EMPTY_STATS, EMPTY_STATS, 0, 0, 0, 0)
    return ManifestEntry(0, partition, 0, -1, file)


def entries(*names: str) -> dict[str, ManifestEntry]:
    return {n: entry(n) for n in names}


def change(
    added: Sequence[str] = (),
    removed: Sequence[str] = (),
    vectors: Mapping[str, Vector] | None = None,
    commits: Sequence[Commit] | None = (),
) -> Change:
    def side(names: Sequence[str]) -> dict[BucketKey, dict[Any, ManifestEntry]]:
        return {BUCKET: {entry(n).identifier: entry(n) for n in names}} if names else {}

    return Change(difference=Difference(side(added), side(removed)), vectors=vectors or {}, commits=commits)


def commit(removed: Sequence[str] = (), added: Sequence[str] = (), **more: Any) -> Commit:
    return Commit(bucket=BUCKET, added=entries(*added), removed=entries(*removed), **more)


def index_entry(file: str, *names: str) -> IndexEntry:
    ranges = tuple(DeletionVectorRange(n, 1 + 10 * at, 9) for at, n in enumerate(names))
    return IndexEntry(0, b"a", 0, "DELETION_VECTORS", file, 100, len(names), ranges)


def vectors(*files: IndexEntry) -> dict[str, Vector]:
    found = ((f, r) for f in files for r in f.deletion_vector_ranges or () if r is not None)
    return {r.data_file: Vector(f, r, (f.file_name, r.offset)) for f, r in found}


def merge(theirs: Change, ours: Change, head: Sequence[IndexEntry] = (), **more: Any) -> FileMerge:
    flags = {k: more.pop(k) for k in ("keep_appended", "revert_compaction", "one_file") if k in more}
    sides = FileSides(theirs=theirs, ours=ours, **more)
    return merge_files("d.t", sides, head, lambda b: b.partition.decode(), bucket_of, **flags)


def moved(found: FileMerge) -> tuple[set[str], set[str]]:
    """Names of the files that go, and of those that come."""
    gone = {e.file.file_name for c in found.changes for e in c.delete}
    come = {e.file.file_name for c in found.changes for e in c.add}
    return gone, come


def cause(theirs: Change, ours: Change, **more: Any) -> str:
    with pytest.raises(ConflictError) as refused:
        merge(theirs, ours, **more)
    return str(refused.value.details["cause"])


def test_appends_of_main_are_no_matter() -> None:
    found = merge(change(["b1"], ["f1"]), change(["m1", "m2"]))
    assert moved(found) == ({"f1"}, {"b1"})
    assert found.index is None and found.relies_on == {"f1"}


def test_a_file_that_both_sides_changed() -> None:
    assert cause(change(["b1"], ["f1"]), change(["m1"], ["f1"], commits=[commit(["f1"], ["m1"])])) == "rows"
    assert cause(change(["b1"], ["f1"]), change(["m1"], ["f1"], commits=None)) == "rows", "the history has expired"


def test_a_compaction_of_main_is_in_the_way_and_can_be_taken_back() -> None:
    """Its inputs are live again but for what the branch changed; rows that main appended before it are among them."""
    theirs = change(["b1"], ["f1"])
    ours = change(["c"], ["f1", "f2"], commits=[commit([], ["m1"]), commit(["f1", "f2", "m1"], ["c"], compacts=True)])
    assert cause(theirs, ours) == "compaction"
    found = merge(theirs, ours, revert_compaction=True)
    assert moved(found) == ({"c"}, {"b1", "f2", "m1"}) and found.reverted_compactions == 1
    assert {i.file_name for i in found.restored_files} == {"f1", "f2", "m1"}


def test_two_compactions_in_a_row_are_taken_back_as_one() -> None:
    commits = [commit(["f1", "f2"], ["c"], compacts=True), commit(["c", "m1"], ["d"], compacts=True)]
    ours = change(["d"], ["f1", "f2"], commits=commits)
    found = merge(change(["b1"], ["f1"]), ours, revert_compaction=True)
    assert moved(found) == ({"d"}, {"b1", "f2", "m1"})


def test_rows_that_main_changed_after_a_compaction_are_not_taken_back() -> None:
    commits = [commit(["f1", "f2"], ["c"], compacts=True), commit(["c"], ["m"])]
    ours = change(["m"], ["f1", "f2"], commits=commits)
    assert cause(change(["b1"], ["f1"]), ours, revert_compaction=True) == "rows"


def test_a_compaction_on_the_branch_changes_nothing() -> None:
    compaction = commit(["f1", "f2"], ["c"], compacts=True)
    theirs = change(["c", "b1"], ["f1", "f2"], commits=[compaction, commit([], ["b1"])])
    ours = change(["m"], ["f1"], commits=[commit(["f1"], ["m"])])
    assert moved(merge(theirs, ours)) == (set(), {"b1"})


def test_a_compaction_on_the_branch_that_took_in_new_rows_brings_them() -> None:
    theirs = change(["c"], ["f1"], commits=[commit([], ["b1"]), commit(["f1", "b1"], ["c"], compacts=True)])
    assert moved(merge(theirs, change(["m"]))) == ({"f1"}, {"c"})


def test_rows_appended_to_a_partition_that_the_branch_replaces() -> None:
    theirs = change(["b1"], ["f1"], commits=[commit(["f1"], ["b1"], replaces=True)])
    assert cause(theirs, change(["m1"])) == "appended"
    found = merge(theirs, change(["m1"]), keep_appended=True)
    assert moved(found) == ({"f1"}, {"b1"})
    assert [e.file.file_name for e in found.kept[BUCKET]] == ["m1"]


def test_a_second_publish_brings_what_is_new() -> None:
    published = change(["b1", "b2"], ["f1"])
    theirs = change(["b2", "b3"], ["f1"])  # b1 was rewritten as b3 since
    ours = change(["b1.ids-00000001.parquet", "b2", "m"], ["f1"])
    assert moved(merge(theirs, ours, published=published)) == ({"b1.ids-00000001.parquet"}, {"b3"})


def test_what_main_did_to_published_files_stands_unless_the_branch_changed_them_too() -> None:
    published = change(["b1", "b2"], ["f1"])
    ours = change(["b2", "m"], ["f1"], commits=[commit(["b1"], ["m"])])
    assert moved(merge(published, ours, published=published)) == (set(), set())
    assert cause(change(["b2", "b3"], ["f1"]), ours, published=published) == "rows"


def test_what_the_branch_takes_back_comes_back_on_main() -> None:
    published = change(["b1"], ["f1"])
    ours = change(["b1"], ["f1"])
    assert moved(merge(change(), ours, published=published)) == ({"b1"}, {"f1"})


def test_a_deletion_vector_replaces_that_of_its_own_file_only() -> None:
    base, mine, theirs = index_entry("i0", "f1", "f2"), index_entry("i1", "f1", "f3"), index_entry("i2", "f2")
    first, second = (base._replace(deletion_vector_ranges=(r,), row_count=1) for r in base[7])
    found = merge(
        change(vectors=vectors(theirs, first)), change(vectors=vectors(mine, second)), [mine, second],
        vectors=vectors(base),
    )  # fmt: skip
    assert found.index == [mine, theirs]
    assert found.relies_on == {"f2"} and [c.bucket for c in found.changes] == [BUCKET]


@pytest.mark.parametrize("theirs", [change(["b1"], ["f1"]), change(vectors=vectors(index_entry("i1", "f1")))])
def test_main_marked_rows_of_a_file_that_the_branch_changed(theirs: Change) -> None:
    assert cause(theirs, change(vectors=vectors(index_entry("i2", "f1")))) == "rows"


def test_the_branch_marked_rows_of_a_file_that_main_compacted() -> None:
    mark = index_entry("i1", "f1")
    theirs = change(vectors=vectors(mark), commits=[commit(marked=frozenset(["f1"]))])
    ours = change(["c"], ["f1", "f2"], commits=[commit(["f1", "f2"], ["c"], compacts=True)])
    assert cause(theirs, ours) == "compaction"
    found = merge(theirs, ours, revert_compaction=True)
    assert moved(found) == ({"c"}, {"f1", "f2"}) and found.index == [mark]


def test_a_deleted_file_takes_its_vector_along() -> None:
    base = index_entry("i0", "f1", "f2")
    found = merge(
        change(["b1"], ["f1"], vectors=vectors(base)), change(vectors=vectors(base)), [base], vectors=vectors(base)
    )
    assert found.index == [base._replace(deletion_vector_ranges=base[7][1:], row_count=1)]


def test_vectors_of_one_index_file_are_one_entry() -> None:
    """Paimon tells entries apart by the file's name: of two, one would be lost."""
    both = index_entry("i1", "f1", "f2")
    first = both._replace(deletion_vector_ranges=both[7][:1], row_count=1)
    assert merged_vectors([first], {"f2": vectors(both)["f2"]}, ()) == [both]


def test_a_fixed_bucket_keeps_one_index_file() -> None:
    theirs = change(vectors=vectors(index_entry("i1", "f1")))
    mine = index_entry("i2", "f2")
    ours = change(vectors=vectors(mine))
    assert merge(theirs, ours, [mine]).index is not None
    assert cause(theirs, ours, head=[mine], one_file=True) == "rows"
    other_form = mine._replace(partition=b"A")
    assert merge(theirs, change(), [other_form], one_file=True).index, "Paimon takes it for another partition"
