"""Row ids of a branch that is published: one ``_ROW_ID`` is never on two rows of main."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

from airflow_paimon.core.commit.committer import commit
from airflow_paimon.core.commit.draft import Draft
from airflow_paimon.core.errors import FormatError, UnsafeOperationError, UnsupportedFeatureError
from airflow_paimon.core.format.binary_row import encode_row
from airflow_paimon.core.format.manifest import DataFile, FileKind, ManifestEntry, Stats
from airflow_paimon.core.format.snapshot import CommitKind, Snapshot
from airflow_paimon.core.format.types import parse_type
from airflow_paimon.core.row_tracking.row_ids_plan import (
    IdRange,
    IdSpace,
    PublishedVersion,
    Shift,
    id_space,
    is_stored,
    origin_name,
    parse_published,
    parse_shifts,
    refuse_stored,
    renumber,
    rewritten_name,
    stamped,
    stored_ids,
)
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.partition_scope import WHOLE
from airflow_paimon.core.table.table import Table, open_table
from tests.core.tables import message, run

COLS = ("k", "v", "dt", "_ROW_ID", "_SEQUENCE_NUMBER")
TYPES = [parse_type(t) for t in ("BIGINT", "STRING", "STRING", "BIGINT", "BIGINT")]


@pytest.fixture
def tracked(tmp_path: Path) -> Table:
    """Partition a holds the rows 0 and 1; branch ``fix`` begins there."""
    options = {"bucket": "-1", "row-tracking.enabled": "true"}
    columns = [("k", "BIGINT"), ("v", "STRING"), ("dt", "STRING")]
    table = create_table(str(tmp_path / "wh"), "d.t", columns, partition_keys=["dt"], options=options)
    insert(table, "a", rows=2)
    run(table, "create_branch", branch="fix", snapshot=1)
    return table


def insert(view: Table, dt: str, rows: int = 1) -> list[int]:
    """What an INSERT leaves: a plain file that goes on from the head's next row id."""
    head = view.latest_snapshot()
    first = head.next_row_id or 0 if head else 0
    put(view, dt, add=message(view, dt, rows=rows).new_files[0]._replace(first_row_id=first), next_row_id=first + rows)
    return list(range(first, first + rows))


def update(view: Table, dt: str, ids: list[int], *, stats: bool = True) -> None:
    """What an UPDATE of a partition leaves: one file that stores the ids of its rows, in place of all others."""
    row = [encode_row((1, "x", dt, i, None), TYPES) for i in (min(ids), max(ids))]
    file = message(view, dt, rows=len(ids)).new_files[0]
    file = file._replace(write_cols=COLS, first_row_id=None, value_stats_cols=None if stats else ())
    if stats:
        file = file._replace(value_stats=Stats(row[0], row[1], (0, 0, 0, 0, len(ids))))
    put(view, dt, add=file, replaces=True)


def put(view: Table, dt: str, *, add: DataFile, replaces: bool = False, next_row_id: int | None = None) -> None:
    partition = message(view, dt).partition

    def draft(head: Snapshot | None) -> Draft:
        old = [e.deleted() for e in live_entries(view, head).values() if replaces and e.partition == partition]
        new = ManifestEntry(FileKind.ADD.value, partition, 0, -1, add)
        kind = CommitKind.OVERWRITE if replaces else CommitKind.APPEND
        return Draft(kind=kind, entries=[*old, new], schema=view.schema(), next_row_id=next_row_id)

    commit(view, draft)


def ranges(table: Table) -> list[IdRange]:
    """The row ids of main's live files; no two may overlap."""
    out = []
    for entry in live_entries(table, table.latest_snapshot()).values():
        file = entry.file
        first = file.first_row_id
        ids = stored_ids(file) if first is None else IdRange(first, first + file.row_count - 1)
        assert ids is not None
        out.append(ids)
    out.sort()
    assert all(a.last < b.first for a, b in pairwise(out)), out
    head = table.latest_snapshot()
    assert head is not None and (head.next_row_id or 0) > out[-1].last
    return out


def test_a_main_that_another_engine_rolled_back_has_no_numbering_in_common() -> None:
    with pytest.raises(UnsafeOperationError, match="rolled main back"):
        id_space("d.t", shared=5, target=4, source=9, base=1)


def test_a_file_without_row_ids_is_not_published(tracked: Table) -> None:
    fix = tracked.branch("fix")
    put(fix, "b", add=message(fix, "b").new_files[0]._replace(file_source=1))  # a commit numbers only new rows
    with pytest.raises(FormatError, match="has no row ids"):
        run(tracked, "merge_branch", branch="fix")


def test_the_ranges_of_stored_files_are_those_of_the_rows(golden: Callable[[str], Path]) -> None:
    """Files written by Paimon's connector: the statistics against the column itself."""
    seen = 0
    for folder in sorted((golden("row-tracking-fuzz") / "wh" / "d.db").iterdir()):
        main = open_table(path=str(folder))
        for view in (main, *(main.branch(n) for n in main.branch_names())):
            for entry in live_entries(view, view.latest_snapshot()).values():
                if not is_stored(entry.file):
                    continue
                (path,) = folder.rglob(entry.file.file_name)
                column = _column(path)
                ids = stored_ids(entry.file)
                if column is not None and ids is not None:
                    seen += 1
                    assert ids == (min(column), max(column))
    assert seen >= 10


def _column(path: Path) -> list[int] | None:
    if path.suffix not in (".parquet", ".orc"):
        return None
    read = pq.ParquetFile(path) if path.suffix == ".parquet" else orc.ORCFile(path)  # not the folder's names
    table: pa.Table = read.read(columns=["_ROW_ID"])
    ids: list[int] = table.column(0).to_pylist()
    return ids


def space(*shifts: Shift, base: int | None = 4) -> IdSpace:
    return IdSpace(shifts=shifts, next_row_id=99, base=base)


def test_one_shift_for_all_ids_of_a_branch_and_none_for_older_ones() -> None:
    found = id_space("d.t", shared=5, target=8, source=9, base=4)
    assert (found.shifts, found.next_row_id, found.text) == (((5, 3),), 12, "5+3")
    assert [found.shift_of(i) for i in (0, 4, 5, 8)] == [0, 0, 3, 3]
    later = id_space("d.t", earlier=parse_shifts(found.text), shared=9, target=20, source=11, base=4)
    assert (later.shifts, later.next_row_id) == (((5, 3), (9, 11)), 22)
    assert [later.moves(ids) for ids in (IdRange(0, 4), IdRange(0, 5), None)] == [False, True, True]
    assert parse_shifts("kept") == parse_shifts("") == ()
    assert not space(Shift(5, 0)).moves(None)


def test_published_versions_are_read_also_as_earlier_development_versions_wrote_them() -> None:
    both = (PublishedVersion(4, 7), PublishedVersion(9, 12))
    for text in ("4>7,9>12", IdSpace(shifts=(), next_row_id=99, base=4, published=both).published_text):
        assert parse_published(text, lambda texts: WHOLE) == both


def test_what_becomes_of_each_kind_of_file() -> None:
    """Shifted by the manifest, written again, or taken as it is: by where its ids are and what its versions mean."""
    row = [encode_row((1, "x", "a", i, v), TYPES) for i, v in ((3, 2), (6, 7))]
    new = stored(row, versions=3, nulls=0)
    old = stored([encode_row((1, "x", "a", i, v), TYPES) for i, v in ((3, 2), (4, 4))], versions=9, nulls=1)
    fresh = stored([encode_row((1, "x", "a", i, None), TYPES) for i in (3, 4)], versions=9, nulls=3)
    plain = replace_file(first_row_id=7)._replace(min_sequence_number=9, max_sequence_number=9)
    files = [new, old, fresh, plain, plain._replace(first_row_id=2, max_sequence_number=3)]
    entries = [ManifestEntry(0, b"", 0, -1, f._replace(file_name=str(i))) for i, f in enumerate(files)]
    entries.append(ManifestEntry(1, b"", 0, -1, plain))
    found = renumber("d.t", entries, (), space(Shift(5, 3)))
    assert found.rewrite == {0: True}
    assert found.renumbered == 1
    versions = [(e.file.first_row_id, e.file.min_sequence_number, e.file.max_sequence_number) for e in found.entries]
    assert versions[1:] == [(None, 2, 0), (None, 0, 0), (10, 0, 0), (2, 9, 3), (7, 9, 9)]
    kept = renumber("d.t", entries, (), space(Shift(5, 0)))
    assert kept.rewrite == {}
    later = [e._replace(file=e.file._replace(unknown=(('{"name":"_LATER"}', b"x"),))) for e in entries]
    for changed in (later[0], later[3]):
        with pytest.raises(UnsupportedFeatureError, match=r"d\.t: the rows of . get other ids"):
            renumber("d.t", [changed], (), space(Shift(5, 3)))
    assert renumber("d.t", later[-1:], (), space(Shift(5, 3))).entries == tuple(later[-1:])
    assert renumber("d.t", entries[:1], (), space(Shift(5, 0), base=2)).rewrite == {0: False}
    assert renumber("d.t", entries, {e.identifier for e in entries}, space(Shift(5, 3))).entries == tuple(entries)
    unknown = [ManifestEntry(0, b"", 0, -1, old._replace(value_stats_cols=()))]
    assert renumber("d.t", unknown, (), space(Shift(5, 3))).rewrite == {0: True}
    with pytest.raises(UnsafeOperationError, match=r"store row ids that main has since given"):
        refuse_stored("d.t", found)
    refuse_stored("d.t", kept)


def stored(row: list[bytes], *, versions: int, nulls: int) -> DataFile:
    file = replace_file(file_source=0)._replace(write_cols=COLS, value_stats=Stats(row[0], row[1], (0, 0, 0, 0, nulls)))
    return file._replace(min_sequence_number=2, max_sequence_number=versions)


def test_the_name_of_a_file_that_is_written_again_tells_its_origin() -> None:
    name = rewritten_name("data-1-0.orc", 2**40 + 255)
    assert name == "data-1-0.orc.ids-000000ff.parquet"
    assert origin_name(name) == origin_name("data-1-0.orc") == "data-1-0.orc"
    assert origin_name(rewritten_name(name, 7)) == "data-1-0.orc"
    assert origin_name("data.ids-1.parquet") == "data.ids-1.parquet"


def test_new_rows_are_numbered_partition_by_partition() -> None:
    entries = [ManifestEntry(0, p, 0, -1, replace_file(file_source=0)) for p in (b"a", b"b", b"a")]
    for together, firsts in ((True, [5, 11, 8]), (False, [5, 8, 11])):
        out, following = stamped(entries, 7, 5, by_partition=together)
        assert ([e.file.first_row_id for e in out], following) == (firsts, 14)
        assert {(e.file.min_sequence_number, e.file.max_sequence_number) for e in out} == {(7, 7)}
    assert stamped([entries[0].deleted()], 7, 5) == ([entries[0].deleted()], 5)


def replace_file(**values: int) -> DataFile:
    file = DataFile("f", 1, 3, b"", b"", Stats(b"", b"", ()), Stats(b"", b"", ()), 0, 0, 0, 0)
    return file._replace(**values)
