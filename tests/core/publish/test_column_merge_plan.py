"""Publishes of tables with data evolution: what counts as a change of the same values, and which file wins."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from airflow_paimon.core.errors import ConflictError, UnsupportedFeatureError
from airflow_paimon.core.format.manifest import EMPTY_STATS, DataFile, ManifestEntry
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.types import AtomicType, DataField
from airflow_paimon.core.publish.bucket_merge_plan import BucketChange
from airflow_paimon.core.publish.column_merge_plan import ColumnOrder, check_column_conflicts, check_ranges, ordered
from airflow_paimon.core.row_tracking.row_ids_plan import IdSpace, Shift, renumber
from airflow_paimon.core.table.live_files import BucketKey, Difference

BUCKET = BucketKey(b"", 0)
SPACE = IdSpace(shifts=(Shift(100, 7), Shift(200, 50)), next_row_id=300, base=3)
"""What a second publish needs: ids from 100 on were shifted by the first one."""


def schema(number: int, **ids: int) -> TableSchema:
    fields = tuple(DataField(i, n, AtomicType("INT")) for n, i in ids.items())
    return TableSchema(id=number, fields=fields, highest_field_id=max(ids.values()))


SCHEMAS = {0: schema(0, k=0, a=1, b=2), 1: schema(1, k=0, renamed=1, b=2, c=3)}


def entry(
    name: str, first: int | None, rows: int, *columns: str, number: int = 9, schema_id: int = 0, kind: int = 0
) -> ManifestEntry:
    file = DataFile(name, 1, rows, b"", b"", EMPTY_STATS, EMPTY_STATS, number, number, schema_id, 0,
                    first_row_id=first, write_cols=columns or None)  # fmt: skip
    return ManifestEntry(kind, b"", 0, -1, file)


def side(added: Sequence[ManifestEntry] = (), removed: Sequence[ManifestEntry] = ()) -> Difference:
    def of(entries: Sequence[ManifestEntry]) -> dict[BucketKey, dict[object, ManifestEntry]]:
        return {BUCKET: {e.identifier: e for e in entries}} if entries else {}

    return Difference(of(added), of(removed))  # type: ignore[arg-type]


def conflicts(
    theirs: Sequence[ManifestEntry],
    ours: Sequence[ManifestEntry] = (),
    *,
    gone: Sequence[ManifestEntry] = (),
    ours_gone: Sequence[ManifestEntry] = (),
    published: Sequence[ManifestEntry] = (),
) -> list[str]:
    change = BucketChange(bucket=BUCKET, delete=tuple(gone), add=tuple(theirs))
    try:
        check_column_conflicts("d.t", [change], side([*theirs, *published], gone), side(ours, ours_gone), space=SPACE,
                      schemas=(SCHEMAS, SCHEMAS), name_bucket=lambda b: f"bucket-{b.bucket}")  # fmt: skip
    except ConflictError as error:
        found: list[str] = error.details["conflicts"]
        return found
    return []


def test_ranges_and_columns() -> None:
    theirs = [entry("t", 10, 10, "a")]
    assert conflicts(theirs, [entry("m", 10, 10, "a")]) == ["a of row ids 10 to 19 in bucket-0"]
    assert conflicts(theirs, [entry("m", 10, 10, "b")]) == []
    assert conflicts(theirs, [entry("m", 20, 10, "a")]) == []
    assert conflicts(theirs, [entry("m", 0, 11, "a", "b")]) == ["a of row ids 10 to 10 in bucket-0"]
    assert conflicts([entry("t", 100, 7, "a")], [entry("m", 100, 7)]) == []  # different rows with the same ids
    assert conflicts([entry("t", 100, 10, "a")], [entry("m", 107, 10, "a")]) == ["a of row ids 107 to 116 in bucket-0"]


def test_a_column_is_known_by_its_id_and_by_its_name() -> None:
    assert conflicts([entry("t", 0, 5, "a")], [entry("m", 0, 5, "renamed", schema_id=1)]) != []
    assert conflicts([entry("t", 0, 5, "a")], [entry("m", 0, 5, "c", schema_id=1)]) == []
    assert conflicts([entry("t", 0, 5, "strange")], [entry("m", 0, 5, "b")]) == ["b of row ids 0 to 4 in bucket-0"]


def test_a_file_that_is_gone_counts_as_all_columns() -> None:
    base = entry("f", 0, 5)
    assert conflicts([], [entry("m", 0, 5, "b")], gone=[base]) != []
    assert conflicts([entry("t", 0, 5, "b")], ours_gone=[base]) != []
    assert conflicts([entry("t", 0, 5, "b")], [entry("compacted", None, 5)], ours_gone=[base]) != []
    assert conflicts([entry("t", 5, 5, "b")], ours_gone=[base]) == []


def test_what_an_earlier_publish_brought_is_no_change_of_the_target() -> None:
    earlier = entry("t1", 0, 5, "a")
    assert conflicts([entry("t2", 0, 5, "a")], [earlier], published=[earlier]) == []
    assert conflicts([entry("t2", 0, 5, "a")], [earlier]) != []


def test_ranges_have_to_be_the_targets() -> None:
    live = {BUCKET: [entry("f1", 0, 5), entry("f2", 5, 5), entry("late", 100, 7)]}

    def check(*added: ManifestEntry, gone: Sequence[ManifestEntry] = ()) -> None:
        change = BucketChange(bucket=BUCKET, delete=tuple(gone), add=added)
        check_ranges("d.t", live, [change], space=SPACE, name_bucket=lambda b: f"bucket-{b.bucket}")

    check(entry("t", 0, 5, "a"), entry("p.blob", 3, 4, "pic"), entry("new", 100, 9))
    check(entry("t", 0, 10), entry("u", 0, 10, "a"), gone=live[BUCKET][:2])
    with pytest.raises(ConflictError, match=r"d\.t: the branch compacted files of bucket-0"):
        check(entry("t", 0, 10, "a"))


def numbers(*before: ManifestEntry, floor: int = 3, head: int = 5) -> list[int]:
    after = [e._replace(file=e.file._replace(max_sequence_number=0)) for e in before]
    found = ordered("d.t", before, after, SCHEMAS, ColumnOrder(known=100, floor=floor), head)
    return [e.file.max_sequence_number for e in found]


def test_the_newest_file_of_a_column_gets_the_commits_number() -> None:
    t1, t2, t3 = (entry(f"t{n}", 0, 5, "a", number=n) for n in (7, 8, 9))
    assert numbers(t1) == [0]
    assert numbers(t1, t2) == [5, 0] and numbers(t2, t1) == [0, 5]
    assert numbers(t3, t1, t2) == [0, 4, 5]
    assert numbers(t1, entry("b", 0, 5, "b", number=8)) == [0, 0]
    assert numbers(t1, entry("o", 5, 5, "a", number=8)) == [0, 0]
    assert numbers(t1, entry("both", 0, 5, "a", "b", number=8), entry("b", 0, 5, "b", number=9)) == [4, 5, 0]


def test_the_oldest_file_of_a_range_stays_the_oldest() -> None:
    """Deletion vectors are of that file: where it comes with the publish, one with other columns is not as old."""
    first, late = entry("n", 100, 5, "a", number=4), entry("u", 100, 5, "b", number=5)
    assert numbers(first, late) == [5, 0]
    assert numbers(first, entry("n.blob", 100, 2, "b", number=4)) == [0, 0]
    old = [entry("c", 0, 5, "a", number=7), entry("u", 0, 5, "b", number=8)]
    assert numbers(*old) == [0, 0]
    assert numbers(*old, entry("base", 0, 5, number=1, kind=1))[:2] == [5, 0]
    assert numbers(*old, entry("base", 5, 5, number=1, kind=1))[:2] == [0, 0]


def test_too_few_numbers() -> None:
    """They have to be above those of the base's files, which the target has as well."""
    t1, t2 = (entry(f"t{n}", 0, 5, "a", number=n) for n in (7, 8))
    with pytest.raises(UnsupportedFeatureError, match=r"d\.t: the branch changed columns .* in 2 commits .*t7"):
        numbers(t1, t2, floor=3, head=3)
    new = [entry("n", 100, 5, number=4), entry("u", 100, 5, "a", number=5)]
    assert numbers(*new, floor=1, head=1) == [1, 0]
    with pytest.raises(UnsupportedFeatureError, match="in 3 commits"):
        numbers(*new, entry("v", 100, 5, "a", number=6), floor=1, head=1)


def test_a_file_of_old_and_new_rows_has_no_ids_on_the_target() -> None:
    space = IdSpace(shifts=(Shift(100, 7),), next_row_id=120, base=3)
    with pytest.raises(UnsupportedFeatureError, match=r"d\.t: file f of the branch joins rows"):
        renumber("d.t", [entry("f", 95, 10)], (), space)
    renumber("d.t", [entry("f", 95, 5), entry("g", 100, 5)], (), space)


def test_numbers_of_single_columns_are_the_sources() -> None:
    with_numbers = [e._replace(file=e.file._replace(write_cols_sequences=(2, 9)))
                    for e in (entry("new", 0, 5, "a", "b"), entry("old", 0, 5, "a", "b", number=3))]  # fmt: skip
    found = renumber("d.t", with_numbers, (), SPACE).entries
    assert [(e.file.max_sequence_number, e.file.write_cols_sequences) for e in found] == [(0, None), (3, (2, 9))]
