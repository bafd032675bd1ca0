"""Reads of primary-key tables of all merge engines: which files, which of their rows, whatever the filter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airflow_paimon.core.commit.committer import commit
from airflow_paimon.core.commit.draft import Draft
from airflow_paimon.core.errors import UnsupportedFeatureError
from airflow_paimon.core.format.manifest import DataFile, DeletionVectorRange, FileKind, IndexEntry, ManifestEntry
from airflow_paimon.core.format.snapshot import CommitKind
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.scan import plan_scan, scan_without_files, with_planned_files
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import read_arrow, write_arrow
from airflow_paimon.data.read import read_versions
from airflow_paimon.data.read_splits import plan_read
from airflow_paimon.data.rewrite import live_bucket
from tests.data.chain.tables import set_options
from tests.data.tables import make_table, rows_of

COLUMNS = {"k": "INT NOT NULL", "s": "INT", "g": "INT"}
SUM = {"merge-engine": "aggregation", "fields.s.aggregate-function": "sum"}
Row = tuple[Any, ...]


def table_of(folder: Path, options: Mapping[str, str], *files: tuple[int, Sequence[Row]]) -> Table:
    """A table of one bucket with these files, oldest first: the level of each, and its rows (``(k, s, g)``, with the
    kind at the end if it isn't +I).
    """
    table = make_table(folder, COLUMNS, primary_keys=["k"], bucket="1", write_only="true")
    for level, rows in files:
        add_file(table, level, rows)
    set_options(table, options)
    return table


def add_file(table: Table, level: int, rows: Sequence[Row]) -> None:
    known = set(live_entries(table, table.latest_snapshot()).values())
    data = rows_of(COLUMNS, [dict(zip(COLUMNS, r, strict=False)) for r in rows])
    kinds = [r[3] if len(r) > 3 else "+I" for r in rows]
    write_arrow(table, data.append_column("_row_kind", pa.array(kinds)))
    (entry,) = set(live_entries(table, table.latest_snapshot()).values()) - known
    change_file(table, entry, level=level)


def change_file(table: Table, entry: ManifestEntry, **changes: Any) -> None:
    """Replace a file's entry, as another engine would have written it."""
    file: DataFile = entry.file._replace(**changes)
    if file != entry.file:
        entries = [entry._replace(kind=FileKind.DELETE), entry._replace(kind=FileKind.ADD, file=file)]
        commit(table, lambda _: Draft(kind=CommitKind.OVERWRITE, entries=entries, schema=table.schema()))


def rows(table: Table, **more: Any) -> list[Row]:
    return sorted(tuple(r.values()) for r in read_arrow(table, **more).to_pylist())


def whole_bucket(table: Table) -> list[Row]:
    """What a full compaction reads: the rows with their kinds."""
    plan = plan_scan(table)
    found = [r for s in plan.splits for b in read_versions(*live_bucket(plan, s)) for r in b.to_pylist()]
    return [(r["k"], r["s"], r["g"], r["_VALUE_KIND"]) for r in found]


THREE_LEVELS = [(5, [(1, 10, 1)]), (4, [(1, 13, 1)]), (0, [(1, 100, 1)])]


@pytest.mark.parametrize(
    ("options", "total"),
    [
        ({"changelog-producer": "lookup"}, 113),
        ({"force-lookup": "true"}, 113),
        ({"deletion-vectors.enabled": "true", "deletion-vectors.merge-on-read": "true"}, 113),
        ({"changelog-producer": "full-compaction"}, 123),
        ({}, 123),
    ],
)
def test_which_levels_are_summed(tmp_path: Path, options: dict[str, str], total: int) -> None:
    table = table_of(tmp_path, {**SUM, **options}, *THREE_LEVELS)
    assert rows(table) == [(1, total, 1)]
    assert rows(table, columns=["s"]) == [(total,)]
    assert whole_bucket(table) == [(1, total, 1, 0)]


def test_options_that_came_after_the_rows_decide(tmp_path: Path) -> None:
    table = table_of(tmp_path, SUM, *THREE_LEVELS)
    assert rows(table) == [(1, 123, 1)]
    set_options(table, {"changelog-producer": "lookup"})
    assert rows(table) == [(1, 113, 1)]
    set_options(table, {"fields.s.aggregate-function": "min", "changelog-producer": "none"})
    assert rows(table) == [(1, 10, 1)]
    set_options(table, {"fields.s.aggregate-function": "last_value", "sequence.field": "s"})
    assert rows(table) == [(1, 100, 1)]
    set_options(table, {"sequence.field.sort-order": "descending"})
    assert rows(table) == [(1, 10, 1)]


@pytest.mark.parametrize(
    "options", [SUM, {**SUM, "deletion-vectors.enabled": "true", "deletion-vectors.merge-on-read": "true"}]
)
def test_a_filter_by_a_value_does_not_leave_out_a_part_of_a_sum(tmp_path: Path, options: dict[str, str]) -> None:
    table = table_of(tmp_path, options, (5, [(1, 3, 1), (2, 7, 1)]), (0, [(1, 4, 1)]))
    assert rows(table, where=pc.field("s") == 7) == [(1, 7, 1), (2, 7, 1)]
    assert rows(table, where=pc.field("s") == 3) == []
    assert rows(table, where=(pc.field("k") == 1) & (pc.field("s") == 7)) == [(1, 7, 1)]


def test_a_filter_by_a_value_does_not_undo_a_partial_update(tmp_path: Path) -> None:
    table = table_of(tmp_path, {"merge-engine": "partial-update"}, (5, [(1, 3, 1)]), (0, [(1, None, 2)]))
    assert rows(table, where=pc.field("g") == 2) == [(1, 3, 2)]
    assert rows(table, where=pc.field("s") == 3) == [(1, 3, 2)]
    assert rows(table, where=pc.field("g") == 1) == []
    assert rows(table, where=pc.is_null(pc.field("s"))) == []


HIDING = [
    {"merge-engine": "first-row"},
    {**SUM, "deletion-vectors.enabled": "true"},
    {"merge-engine": "partial-update", "deletion-vectors.enabled": "true"},
    {"deletion-vectors.enabled": "true"},
]


@pytest.mark.parametrize("options", HIDING)
def test_level_0_is_hidden_from_reads_and_not_from_rewriting(tmp_path: Path, options: dict[str, str]) -> None:
    table = table_of(tmp_path, options, (5, [(1, 10, 1)]), (4, [(2, 20, 1)]), (0, [(1, 5, None), (3, 30, 1)]))
    assert rows(table) == [(1, 10, 1), (2, 20, 1)]
    merged = {"first-row": (10, 1), "aggregation": (15, 1), "partial-update": (5, 1), "": (5, None)}
    row = merged[options.get("merge-engine", "")]
    assert whole_bucket(table) == [(1, *row, 0), (2, 20, 1, 0), (3, 30, 1, 0)]


def test_reads_in_key_order_show_the_same_rows(tmp_path: Path) -> None:
    options = {"deletion-vectors.enabled": "true"}
    table = table_of(tmp_path, options, (5, [(1, 1, 1), (5, 5, 1)]), (4, [(2, 2, 1), (3, 3, 1)]), (0, [(9, 9, 1)]))
    plan = plan_scan(table)
    assert [len(s.sections) for s in plan_read(plan)[1]] == [2]
    read, splits = plan_read(plan, in_key_order=True)
    assert [len(s.sections) for s in splits] == [1]
    assert read.columns == ("k", "s", "g")


def test_retracts_above_level_0_are_merged_where_nothing_else_is(tmp_path: Path) -> None:
    options = {"deletion-vectors.enabled": "true"}
    table = table_of(tmp_path, options, (5, [(1, 1, 1), (2, 2, 1)]), (4, [(1, 1, 1, "-D"), (3, 3, 1)]))
    assert rows(table) == [(2, 2, 1), (3, 3, 1)]


@pytest.mark.parametrize("options", [SUM, {"merge-engine": "partial-update"}, {"merge-engine": "first-row"}, {}])
def test_a_lone_delete_is_no_row(tmp_path: Path, options: dict[str, str]) -> None:
    table = table_of(tmp_path, options, (1, [(1, 5, 1, "-D"), (2, 5, 1)]))
    assert rows(table) == [(2, 5, 1)]
    assert rows(table, columns=["k"]) == [(2,)]


def test_a_removed_row_stays_removed_whatever_columns_are_read(tmp_path: Path) -> None:
    options = {
        "merge-engine": "partial-update",
        "fields.g.sequence-group": "s",
        "partial-update.remove-record-on-sequence-group": "g",
    }
    table = table_of(tmp_path, options, (5, [(1, 10, 5), (2, 20, 5)]), (0, [(1, 10, 6, "-D")]))
    for columns in (["k"], ["s"], ["g", "k"], None):
        assert [r["k"] if "k" in r else r["s"] / 10 for r in read_arrow(table, columns=columns).to_pylist()] == [2]


def test_deleted_values_come_back_unless_a_compaction_was_in_between(tmp_path: Path) -> None:
    options = {"merge-engine": "partial-update", "partial-update.remove-record-on-delete": "true"}
    steps = [(0, [(1, 1, 1)]), (0, [(1, 2, 2, "-D")]), (0, [(1, 9, None)])]
    assert rows(table_of(tmp_path / "a", options, *steps)) == [(1, 9, 2)]
    assert rows(table_of(tmp_path / "b", options, *steps[2:])) == [(1, 9, None)]


def test_commits_order_the_rows_of_a_table_with_snapshot_ordering(tmp_path: Path) -> None:
    table = table_of(tmp_path, {"sequence.snapshot-ordering": "true"}, (0, [(1, 1, 1), (2, 2, 2)]), (0, [(1, 3, 3)]))
    first, second = sorted(live_entries(table, table.latest_snapshot()).values(), key=lambda e: -e.file.row_count)
    for entry, number in ((first, 9), (second, 8)):
        change_file(table, entry, min_sequence_number=number, max_sequence_number=number)
    assert rows(table) == [(1, 1, 1), (2, 2, 2)]
    newest = next(e for e in live_entries(table, table.latest_snapshot()).values() if e.file.row_count == 1)
    change_file(table, newest, min_sequence_number=10, max_sequence_number=10)
    assert rows(table) == [(1, 3, 3), (2, 2, 2)]
    compacted = next(e for e in live_entries(table, table.latest_snapshot()).values() if e.file.row_count == 2)
    change_file(table, compacted, file_source=None)
    with pytest.raises(UnsupportedFeatureError, match="unknown source"):
        rows(table)


@pytest.mark.damages_metadata
def test_files_clustered_by_another_column_are_read_without_a_look_at_their_key_bounds(tmp_path: Path) -> None:
    options = {"pk-clustering-override": "true", "clustering.columns": "g", "deletion-vectors.enabled": "true"}
    table = table_of(tmp_path, options, (1, [(1, 1, 30), (2, 2, 20)]), (2, [(3, 3, 10)]))
    for entry in live_entries(table, table.latest_snapshot()).values():
        change_file(table, entry, min_key=b"\1", max_key=b"\2", key_stats=replace_bounds(entry.file))
    assert rows(table) == [(1, 1, 30), (2, 2, 20), (3, 3, 10)]
    assert rows(table, where=pc.field("k") == 3) == [(3, 3, 10)]


def replace_bounds(file: DataFile) -> Any:
    return file.key_stats._replace(min_values=file.key_stats.max_values[:4] + b"\0" * 12)


def test_time_travel_merges_by_the_current_options(tmp_path: Path) -> None:
    table = table_of(tmp_path, {}, (0, [(1, 9, 1)]), (0, [(1, 5, 2)]))
    snapshot = table.latest_snapshot_id()
    assert rows(table, version=snapshot) == [(1, 5, 2)]
    set_options(table, {"sequence.field": "s"})
    assert rows(table, version=snapshot) == rows(table) == [(1, 9, 1)]


def rename(table: Table, name: str, to_name: str, options: Mapping[str, str]) -> None:
    """A new schema version, as Paimon writes it: these options have the new name instead of those with the old one."""
    schema = table.schema()
    fields = tuple(replace(f, name=to_name) if f.name == name else f for f in schema.fields)
    kept = {k: v for k, v in schema.options.items() if name not in (v, *k.split("."))}
    following = replace(schema, id=schema.id + 1, fields=fields, options={**kept, **options})
    table.store.create(table.paths.schema(following.id), following.to_bytes())


FUNCTIONS = {"merge-engine": "partial-update", "fields.default-aggregate-function": "last_non_null_value"}


@pytest.mark.parametrize(
    ("options", "renamed", "row"),
    [
        ({"sequence.field": "s"}, {"sequence.field": "s2"}, (1, 9, 1)),
        ({"sequence.field": "s,g"}, {"sequence.field": "s2,g"}, (1, 9, 1)),
        (SUM, {"fields.s2.aggregate-function": "sum"}, (1, 14, 2)),
        (
            {**FUNCTIONS, "fields.s.sequence-group": "g"},
            {**FUNCTIONS, "fields.s2.sequence-group": "g"},
            (1, 9, 1),
        ),
        (
            {**FUNCTIONS, "fields.g.sequence-group": "s", "fields.s.aggregate-function": "sum"},
            {**FUNCTIONS, "fields.g.sequence-group": "s2", "fields.s2.aggregate-function": "sum"},
            (1, 14, 2),
        ),
    ],
    ids=["sequence field", "sequence fields", "sum", "sequence group", "sum in a sequence group"],
)
def test_time_travel_merges_by_columns_renamed_since(
    tmp_path: Path, options: dict[str, str], renamed: dict[str, str], row: Row
) -> None:
    table = make_table(tmp_path, COLUMNS, primary_keys=["k"], bucket="1", write_only="true")
    set_options(table, options)
    for one in [(1, 9, 1), (1, 5, 2)]:
        add_file(table, 0, [one])
    snapshot = table.latest_snapshot_id()
    assert rows(table) == [row]
    rename(table, "s", "s2", renamed)
    assert rows(table) == rows(table, version=snapshot) == [row]
    assert read_arrow(table, version=snapshot).column_names == ["k", "s", "g"]


def test_files_keep_their_own_options_with_time_travel(tmp_path: Path) -> None:
    table = table_of(tmp_path, {}, (0, [(1, 9, 1)]))
    set_options(table, {"orc.timestamp-ltz.legacy.type": "false"})
    read, _ = plan_read(with_planned_files(scan_without_files(table, 1)))
    assert read.schema.options == table.schema().options
    assert read.schemas[0] == table.schema(0)


DELETE_2_AND_3 = bytes.fromhex("01 00000018 5e43f2d0 3a300000 01000000 0000 0100 10000000 0200 0300 c898f63d")


@pytest.mark.parametrize("beside_data", [False, True])
def test_vectors_are_applied_before_the_merge(tmp_path: Path, beside_data: bool) -> None:
    options = {**SUM, "deletion-vectors.enabled": "true", "deletion-vectors.merge-on-read": "true"}
    table = table_of(tmp_path, {}, (5, [(k, 10 * k, 1) for k in range(5)]), (0, [(2, 3, 1), (4, 2, 1)]))
    set_options(table, {**options, "index-file-in-data-file-dir": str(beside_data).lower()})
    (split,) = plan_scan(table).splits
    (file,) = (f for f in split.files if f.level)
    table.store.create("bucket-0/index-1" if beside_data else "index/index-1", DELETE_2_AND_3)
    ranges = (DeletionVectorRange(file.file_name, 1, 24, 2),)
    size = len(DELETE_2_AND_3)
    entry = IndexEntry(0, split.partition, 0, "DELETION_VECTORS", "index-1", size, 1, ranges)
    schema = table.schema()
    commit(table, lambda _: Draft(kind=CommitKind.OVERWRITE, entries=[], index_entries=[entry], schema=schema))
    assert rows(table) == [(0, 0, 1), (1, 10, 1), (2, 3, 1), (4, 42, 1)]
    assert [row[:2] for row in whole_bucket(table)] == [(0, 0), (1, 10), (2, 3), (4, 42)]
    set_options(table, {"deletion-vectors.merge-on-read": "false"})
    assert rows(table) == [(0, 0, 1), (1, 10, 1), (4, 40, 1)]
    assert [row[:2] for row in whole_bucket(table)] == [(0, 0), (1, 10), (2, 3), (4, 42)]
