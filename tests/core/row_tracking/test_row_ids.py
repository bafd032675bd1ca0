"""Row ids of a branch that is published: one ``_ROW_ID`` is never on two rows of main."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

from airflow_paimon.core.commit.committer import Draft, commit
from airflow_paimon.core.errors import FormatError, UnsafeOperationError
from airflow_paimon.core.format.binary_row import encode_row
from airflow_paimon.core.format.manifest import DataFile, FileKind, ManifestEntry, Stats
from airflow_paimon.core.format.snapshot import CommitKind, Snapshot
from airflow_paimon.core.format.types import parse_type
from airflow_paimon.core.row_tracking.row_ids_plan import IdRange, IdSpace, assign_row_ids, is_stored, stored_ids
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.scan import live_entries
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


def test_ids_that_both_sides_gave_out_are_refused(tracked: Table) -> None:
    fix = tracked.branch("fix")
    update(fix, "b", insert(fix, "b"))
    insert(tracked, "c")
    before, tags = tracked.latest_snapshot_id(), tracked.tag_names()
    for operation, values in (("merge_branch", {}), ("fast_forward", {"discard_main": True})):
        with pytest.raises(UnsafeOperationError, match=r"_ROW_ID would be on two rows.*new branch") as caught:
            run(tracked, operation, branch="fix", **values)
        assert caught.value.details["shared_row_ids"] == 2
    assert tracked.latest_snapshot_id() == before
    assert [t for t in tracked.tag_names() if "undo" not in t] == tags
    assert ranges(tracked) == [(0, 1), (2, 2)]


def test_onto_a_main_that_gave_out_no_ids_they_stay_as_they_are(tracked: Table) -> None:
    fix = tracked.branch("fix")
    update(fix, "b", insert(fix, "b"))
    insert(fix, "c", rows=3)
    run(tracked, "merge_branch", branch="fix")
    assert ranges(tracked) == [(0, 1), (2, 2), (3, 5)]
    update(fix, "c", [3, 4, 5])
    insert(fix, "d")
    run(tracked, "merge_branch", branch="fix")
    assert ranges(tracked) == [(0, 1), (2, 2), (3, 5), (6, 6)]
    insert(tracked, "e")
    update(fix, "d", [6])
    with pytest.raises(UnsafeOperationError, match="_ROW_ID"):
        update(fix, "f", insert(fix, "f"))
        run(tracked, "merge_branch", branch="fix")


def test_a_row_of_before_the_branch_keeps_its_id_and_a_new_one_gets_a_free_one(tracked: Table) -> None:
    fix = tracked.branch("fix")
    update(fix, "a", [0, 1])
    insert(fix, "b")
    insert(tracked, "c", rows=4)
    run(tracked, "merge_branch", branch="fix")
    assert ranges(tracked) == [(0, 1), (2, 5), (6, 6)]
    head = tracked.latest_snapshot()
    assert head is not None and head.next_row_id == 7
    update(fix, "b", [2])  # on main that row has another id by now
    with pytest.raises(UnsafeOperationError, match="_ROW_ID"):
        run(tracked, "merge_branch", branch="fix")


def test_what_the_statistics_do_not_tell_is_refused(tracked: Table) -> None:
    fix = tracked.branch("fix")
    update(fix, "a", [0, 1], stats=False)
    insert(tracked, "c")
    with pytest.raises(UnsafeOperationError, match="_ROW_ID"):
        run(tracked, "merge_branch", branch="fix")


def test_a_main_that_another_engine_rolled_back_has_no_numbering_in_common() -> None:
    with pytest.raises(UnsafeOperationError, match="rolled main back"):
        assign_row_ids("d.t", [], (), IdSpace(shared=5, target=4, source=9))


def test_a_publish_before_another_engine_rolled_main_back_does_not_count(tracked: Table) -> None:
    fix = tracked.branch("fix")
    insert(fix, "b")
    published = run(tracked, "merge_branch", branch="fix").snapshot_after
    assert published is not None
    tracked.store.delete(tracked.paths.snapshot(published))  # the tag on it stays
    insert(tracked, "c")  # gets the id 2 as well
    update(fix, "b", [2])
    with pytest.raises(UnsafeOperationError, match="_ROW_ID"):
        run(tracked, "merge_branch", branch="fix")
    assert ranges(tracked) == [(0, 1), (2, 2)]


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


def test_ids_of_a_plain_file_and_of_a_delete_are_left_alone() -> None:
    entry = ManifestEntry(1, b"", 0, -1, replace_file(first_row_id=7))
    out, following = assign_row_ids("d.t", [entry], (), IdSpace(shared=5, target=8, source=9))
    assert (out, following) == ([entry], 9)


def replace_file(**values: int) -> DataFile:
    file = DataFile("f", 1, 3, b"", b"", Stats(b"", b"", ()), Stats(b"", b"", ()), 0, 0, 0, 0)
    return file._replace(**values)
