"""Files of append tables that are rewritten one by one: what they hold, what the commit stamps, and conflicts."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.orc
import pyarrow.parquet as pq
import pytest

from airflow_paimon.core.commit.committer import commit
from airflow_paimon.core.commit.draft import Draft
from airflow_paimon.core.commit.rewrites import commit_rewrite
from airflow_paimon.core.errors import ConflictError, UnsupportedFeatureError
from airflow_paimon.core.format.manifest import DataFile, FileKind
from airflow_paimon.core.format.snapshot import CommitKind
from airflow_paimon.core.schema.schema_plan import AddColumn, DropColumn, RenameColumn, WidenColumn
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.manifest_entries import read_entries, read_index_entries
from airflow_paimon.core.table.manifest_lists import read_delta_lists
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.data import drop_partitions, read_arrow, write_arrow
from airflow_paimon.data.copy_on_write import plan_copy_on_write
from airflow_paimon.data.read_splits import plan_read
from tests.core.tables import alter_table
from tests.data.row_statements import Row, planned, statement, with_ids

Golden = Callable[[str], Path]
STORED = ("id", "name", "_ROW_ID", "_SEQUENCE_NUMBER")


def make(folder: Path, name: str = "d.t", **options: str) -> Table:
    columns = [("id", "INT"), ("name", "STRING")]
    tracked = {"bucket": "-1", "row-tracking.enabled": "true"}
    return create_table(str(folder / "wh"), name, columns, options=tracked | options)


def rows(*pairs: tuple[int, str]) -> pa.Table:
    return pa.table({"id": pa.array([i for i, _ in pairs], pa.int32()), "name": [n for _, n in pairs]})


def insert(table: Table, *pairs: tuple[int, str]) -> None:
    write_arrow(table, rows(*pairs))


def renamed(**names: str) -> Callable[[Row], Row]:
    return lambda row: {**row, "name": names.get(f"i{row['id']}", row["name"])}


def without(*ids: int) -> Callable[[Row], Row | None]:
    return lambda row: None if row["id"] in ids else row


def delta(table: Table) -> tuple[list[DataFile], list[DataFile]]:
    """The files that the newest snapshot added and deleted."""
    head = table.latest_snapshot()
    assert head is not None
    entries = [e for part in read_entries(table, read_delta_lists(table, [head])) for e in part]
    return [e.file for e in entries if e.kind == FileKind.ADD], [e.file for e in entries if e.kind == FileKind.DELETE]


def described(file: DataFile) -> tuple[Any, ...]:
    return (
        *(file.row_count, file.min_sequence_number, file.max_sequence_number),
        *(file.first_row_id, file.write_cols, file.file_source),
    )


def test_the_connectors_own_history(tmp_path: Path) -> None:
    """INSERT, INSERT, UPDATE, DELETE and MERGE leave the entries that Paimon's connector leaves, byte for byte."""
    table = make(tmp_path)
    insert(table, (1, "a"))
    insert(table, (2, "b"))
    insert(table, (3, "c"))
    added, _ = delta(table)
    assert [described(f) for f in added] == [(1, 3, 3, 2, None, 0)]
    statement(table, renamed(i2="B"))
    head = table.latest_snapshot()
    assert head is not None
    assert (head.commit_kind, head.operation, head.next_row_id) == (CommitKind.OVERWRITE, "UPDATE", 3)
    [new], [old] = delta(table)
    assert described(new) == (1, 4, 4, None, STORED, 0)
    assert old.first_row_id == 1
    row = bytes.fromhex("00000004 0008000000000000 0200000000000000 4200000000000081 0100000000000000 0000000000000000")
    assert (new.value_stats.min_values, new.value_stats.max_values) == (row, row)
    assert (new.value_stats.null_counts, new.value_stats_cols) == ((0, 0, 0, 1), None)
    statement(table, without(1), operation="DELETE")
    assert [len(files) for files in delta(table)] == [0, 1]
    statement(table, renamed(i3="cc"), [{"id": 7, "name": "g"}], operation="MERGE")
    added, _ = delta(table)
    assert sorted(map(described, added), key=str) == [(1, 6, 6, 3, None, 0), (1, 6, 6, None, STORED, 0)]
    assert with_ids(table) == [(2, "B", 1, 4), (3, "cc", 2, 6), (7, "g", 3, 6)]


def test_stored_columns_have_paimons_field_ids(tmp_path: Path) -> None:
    table = make(tmp_path)
    insert(table, (1, "a"), (2, "b"))
    statement(table, renamed(i2="B"))
    [new], _ = delta(table)
    schema = pq.ParquetFile(tmp_path / "wh" / "d.db" / "t" / "bucket-0" / new.file_name).schema_arrow
    found = {f.name: (f.metadata[b"PARQUET:field_id"], f.nullable) for f in schema}
    assert found["_ROW_ID"] == (b"2147483642", False)
    assert found["_SEQUENCE_NUMBER"] == (b"2147483646", True)
    # one row is changed: the highest version is the commit's, the lowest that of the other row
    assert (new.min_sequence_number, new.max_sequence_number) == (1, 2)
    assert with_ids(table) == [(1, "a", 0, 1), (2, "B", 1, 2)]


def test_versions_rise_only_for_changed_rows(tmp_path: Path) -> None:
    table = make(tmp_path)
    insert(table, *((i, "x") for i in range(6)))
    statement(table, renamed(i1="a"))
    statement(table, renamed(i2="b"))
    statement(table, without(0), operation="DELETE")
    assert with_ids(table) == [(1, "a", 1, 2), (2, "b", 2, 3), (3, "x", 3, 1), (4, "x", 4, 1), (5, "x", 5, 1)]
    assert with_ids(table, version=2)[1] == (1, "a", 1, 2)


def test_all_files_of_a_rolled_write_have_the_commits_version(tmp_path: Path) -> None:
    table = make(tmp_path, **{"target-file-size": "1 kb"})
    for start in (0, 3000):
        write_arrow(table, pa.table({"id": pa.array(range(start, start + 3000), pa.int32()), "name": ["x"] * 3000}))
    statement(table, lambda row: {**row, "name": str(row["id"])})
    added, deleted = delta(table)
    assert len(deleted) > 1
    assert {(f.min_sequence_number, f.max_sequence_number) for f in added} == {(3, 3)}
    assert {f.max_sequence_number for f in deleted} == {1, 2}
    assert [r[0] for r in with_ids(table)] == [r[2] for r in with_ids(table)] == list(range(6000))


def test_two_statements_on_different_files_both_land_and_one_of_the_same_file_is_a_conflict(tmp_path: Path) -> None:
    table = make(tmp_path)
    insert(table, (1, "a"), (2, "b"))
    insert(table, (3, "c"))
    first, second, third = (planned(table, renamed(**{n: "X"})) for n in ("i1", "i3", "i2"))
    for plan, messages in (first, second):
        commit_rewrite(table, messages, read=plan.scan, operation="UPDATE")
    with pytest.raises(ConflictError, match=r"d\.t: another commit changed files .*data-.*Run it again"):
        commit_rewrite(table, third[1], read=third[0].scan, operation="UPDATE")
    assert with_ids(table) == [(1, "X", 0, 3), (2, "b", 1, 1), (3, "X", 2, 4)]
    statement(table, renamed(i2="X"))
    assert with_ids(table)[1] == (2, "X", 1, 5)


def test_ids_follow_the_head_of_each_attempt(tmp_path: Path) -> None:
    """A MERGE that was planned before an INSERT numbers its new rows after it, and its versions are its snapshot's."""
    table = make(tmp_path)
    insert(table, (1, "a"))
    plan, messages = planned(table, renamed(i1="A"), [{"id": 9, "name": "new"}])
    insert(table, (2, "b"), (3, "c"))
    commit_rewrite(table, messages, read=plan.scan, operation="MERGE")
    assert with_ids(table) == [(1, "A", 0, 3), (2, "b", 1, 2), (3, "c", 2, 2), (9, "new", 3, 3)]


def test_a_statement_after_an_altered_column_is_a_conflict(tmp_path: Path) -> None:
    table = make(tmp_path)
    insert(table, (1, "a"))
    plan, messages = planned(table, renamed(i1="A"))
    alter_table(table, [AddColumn(name="n", type="INT")])
    with pytest.raises(ConflictError, match="was altered"):
        commit_rewrite(table, messages, read=plan.scan, operation="UPDATE")
    statement(table, renamed(i1="A"))
    assert with_ids(table) == [(1, "A", None, 0, 2)]


def test_a_row_that_moves_to_another_partition_keeps_its_id(tmp_path: Path) -> None:
    columns = [("id", "INT"), ("dt", "STRING")]
    options = {"bucket": "-1", "row-tracking.enabled": "true"}
    table = create_table(str(tmp_path / "wh"), "d.t", columns, partition_keys=["dt"], options=options)
    write_arrow(table, pa.table({"id": pa.array([1, 2, 3], pa.int32()), "dt": ["a", "b", "a"]}))
    before = {row[0]: row[2] for row in with_ids(table)}
    assert abs(before[1] - before[3]) == 1  # the files of a partition are numbered together
    statement(table, lambda row: {**row, "dt": "z"} if row["id"] == 1 else row)
    drop_partitions(table, ["dt=a"])
    assert with_ids(table) == sorted([(1, "z", before[1], 2), (2, "b", before[2], 1)], key=lambda r: r[2])


def test_overwritten_ids_are_not_given_out_again(tmp_path: Path) -> None:
    table = make(tmp_path)
    insert(table, (1, "a"), (2, "b"))
    write_arrow(table, rows((5, "e")), mode="overwrite")
    insert(table, (6, "f"))
    assert with_ids(table) == [(5, "e", 2, 2), (6, "f", 3, 3)]


def test_tables_without_row_tracking_are_rewritten_without_the_columns(tmp_path: Path) -> None:
    table = make(tmp_path, **{"row-tracking.enabled": "false"})
    insert(table, (1, "a"), (2, "b"))
    insert(table, (3, "c"))
    statement(table, renamed(i2="B"), [{"id": 4, "name": "d"}])
    added, deleted = delta(table)
    assert [f.write_cols for f in added] == [None, None] and len(deleted) == 1
    assert [f.first_row_id for f in added] == [None, None]
    found = read_arrow(table).to_pylist()
    assert sorted((r["id"], r["name"]) for r in found) == [(1, "a"), (2, "B"), (3, "c"), (4, "d")]


def test_primary_key_tables_are_not_rewritten_file_by_file(tmp_path: Path) -> None:
    columns = [("id", "INT NOT NULL")]
    table = create_table(str(tmp_path / "wh"), "d.k", columns, primary_keys=["id"], options={"bucket": "1"})
    with pytest.raises(UnsupportedFeatureError, match="has a primary key"):
        plan_copy_on_write(table)


def test_deleted_rows_of_a_rewritten_file_are_gone_and_the_others_stay_deleted(golden: Golden, tmp_path: Path) -> None:
    """A table of Paimon's connector with deletion vectors: r1 before its compaction (snapshot 4) has several."""
    shutil.copytree(golden("row-tracking-fuzz") / "wh", tmp_path / "wh")
    for name in ("d.r1", "d.r5", "d.r9", "d.r12", "d.r16", "d.r17"):
        table = open_table(str(tmp_path / "wh"), name)
        before = with_ids(table)
        vectors = [e for e in read_index_entries(table, table.latest_snapshot()) if e.deletion_vector_ranges]
        one = before[len(before) // 2]
        statement(table, lambda row, one=one: {**row, "data": "new"} if row["_ROW_ID"] == one[-2] else row)  # type: ignore[misc]
        head = table.latest_snapshot()
        assert head is not None
        changed = (one[0], "new", *one[2:-1], head.id)
        assert with_ids(table) == [changed if row == one else row for row in before]
        live = {e.file.file_name for e in live_entries(table, head).values()}
        left = {r.data_file for e in read_index_entries(table, head) for r in e.deletion_vector_ranges or () if r}
        assert left <= live
        assert len(left) <= sum(len(e.deletion_vector_ranges or ()) for e in vectors)


def test_row_groups_skipped_by_a_filter_do_not_shift_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_paimon.data.files.write.ROW_GROUP_ROWS", 10)
    table = make(tmp_path)
    insert(table, *((i, f"n{i:03}") for i in range(100)))
    statement(table, renamed(i50="n050x"))
    insert(table, *((i, f"n{i:03}") for i in range(100, 200)))
    for where in (pc.field("id") == 55, pc.field("id") == 155, pc.field("_ROW_ID") == 55, pc.field("_ROW_ID") > 195):
        every = read_arrow(table, columns=["id", "_ROW_ID"])
        found = read_arrow(table, columns=["id", "_ROW_ID"], where=where)
        assert found.num_rows
        assert sorted(map(str, found.to_pylist())) == sorted(map(str, every.filter(where).to_pylist()))


def test_ids_survive_changes_of_the_schema(tmp_path: Path) -> None:
    """Dropped, added, renamed and widened columns: plain and stored files of old schemas keep their ids."""
    table = make(tmp_path)
    insert(table, (1, "a"), (2, "b"), (3, "c"))
    insert(table, (4, "d"))
    statement(table, renamed(i2="B"))
    alter_table(table, [RenameColumn(name="name", to_name="label"), WidenColumn(name="id", type="BIGINT")])
    alter_table(table, [AddColumn(name="n", type="INT", after="")])
    assert with_ids(table) == [(None, 1, "a", 0, 1), (None, 2, "B", 1, 3), (None, 3, "c", 2, 1), (None, 4, "d", 3, 2)]
    statement(table, lambda row: {**row, "n": 7} if row["id"] in (3, 4) else row)
    added, _ = delta(table)
    assert {f.schema_id for f in added} == {table.schema().id}
    alter_table(table, [DropColumn(name="label")])
    assert with_ids(table) == [(None, 1, 0, 1), (None, 2, 1, 3), (7, 3, 2, 4), (7, 4, 3, 4)]
    assert with_ids(table, where=pc.field("_ROW_ID") == 3) == [(7, 4, 3, 4)]
    assert [r["_ROW_ID"] for r in read_arrow(table, version=3, columns=["name", "_ROW_ID"]).to_pylist()]


@pytest.mark.parametrize("kind", ["orc", "avro"])
def test_ids_in_files_of_other_formats(tmp_path: Path, kind: str) -> None:
    """Mixed with Parquet: a plain file and a stored one with a null version."""
    table = make(tmp_path)
    insert(table, *((i, f"n{i}") for i in range(5)))
    insert(table, (5, "e"))
    statement(table, renamed(i3="C"))
    expected = with_ids(table)
    folder = tmp_path / "wh" / "d.db" / "t" / "bucket-0"
    entries, new = list(live_entries(table, table.latest_snapshot()).values()), []
    for entry in entries:
        rows = pq.ParquetFile(folder / entry.file.file_name).read()
        name = f"{entry.file.file_name.removesuffix('.parquet')}.{kind}"
        if kind == "orc":
            pyarrow.orc.write_table(rows, folder / name)
        else:
            fields = [{"name": f.name, "type": ["null", "string" if f.name == "name" else "long"]} for f in rows.schema]
            with (folder / name).open("wb") as out:
                fastavro.writer(out, {"type": "record", "name": "r", "fields": fields}, rows.to_pylist())
        new.append(entry._replace(file=entry.file._replace(file_name=name)))
    gone = [e.deleted() for e in entries]
    schema = table.schema()
    commit(table, lambda _: Draft(kind=CommitKind.OVERWRITE, entries=[*gone, *new], schema=schema))
    assert with_ids(table) == expected
    assert with_ids(table, where=pc.field("_ROW_ID") == 3) == [expected[3]]
    assert [r["_SEQUENCE_NUMBER"] for r in read_arrow(table, columns=["_SEQUENCE_NUMBER"]).to_pylist()].count(3) == 1
    statement(table, renamed(i4="D"))
    assert [r[-2:] for r in with_ids(table)] == [(i, {3: 3, 4: 5, 5: 2}.get(i, 1)) for i in range(6)]


def test_filters_skip_files_by_ids_versions_and_values(tmp_path: Path) -> None:
    """Files of both kinds: the statistics of a stored one have two more columns than the table."""
    table = make(tmp_path)
    for first in (0, 10, 20):
        insert(table, *((first + i, f"n{first + i}") for i in range(5)))
    statement(table, renamed(i11="changed"))

    def files(where: pc.Expression) -> int:
        _, splits = plan_read(plan_scan(table), columns=["id"], where=where)
        return sum(len(s.files) for s in splits)

    assert [files(pc.field("_ROW_ID") == i) for i in (0, 6, 14, 15)] == [1, 1, 1, 0]
    assert [files(pc.field("_SEQUENCE_NUMBER") == v) for v in (1, 2, 3, 4, 5)] == [1, 1, 2, 1, 0]
    assert [files(pc.field("id") == i) for i in (3, 12, 15, 24)] == [1, 1, 0, 1]
    assert [files(pc.field("name") == n) for n in ("n3", "changed", "zz")] == [1, 1, 0]
