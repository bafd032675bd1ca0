"""Writes and corrections of partial-update and aggregation tables: rows given are merged by the engine or, in a
correction, replace the merged row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_paimon.core.commit.draft import CommitOptions
from airflow_paimon.core.commit.files import commit_buckets
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import read_arrow, write_arrow
from airflow_paimon.data import write as data_write
from airflow_paimon.data.arrow_write import commit_write
from airflow_paimon.data.files.conform import conform_rows
from airflow_paimon.data.rewrite import folded, live_bucket, rewrite_bucket
from airflow_paimon.data.write import WriteMode, plan_write, write_rows
from tests.data.tables import make_table, rows_of, sorted_changes
from tests.randomness import chance

COLUMNS = {"k": "INT NOT NULL", "a": "INT", "b": "STRING"}
SUM = {"merge_engine": "aggregation", "fields__a__aggregate_function": "sum"}
PARTIAL = {"merge_engine": "partial-update"}
Rows = Sequence[tuple[Any, ...]]


def arrow(rows: Rows) -> pa.Table:
    """Rows ``(k, a, b)``, with the kind at the end if it isn't +I."""
    data = rows_of(COLUMNS, [dict(zip(COLUMNS, r, strict=False)) for r in rows])
    return data.append_column("_row_kind", pa.array([r[3] if len(r) > 3 else "+I" for r in rows]))


def table_of(folder: Path, options: dict[str, str]) -> Table:
    return make_table(folder, COLUMNS, primary_keys=["k"], **{"bucket": "1", **options})


def shown(table: Table) -> list[tuple[Any, ...]]:
    return sorted(tuple(r.values()) for r in read_arrow(table).to_pylist())


def files(table: Table) -> list[Any]:
    return [e.file for e in live_entries(table, table.latest_snapshot()).values()]


@pytest.mark.parametrize("bucket", ["1", "-1"])
def test_rows_of_a_key_are_merged_before_they_are_stored(tmp_path: Path, bucket: str) -> None:
    table = table_of(tmp_path, {**SUM, "bucket": bucket})
    write_arrow(table, arrow([(1, 5, "x"), (2, 1, "y"), (1, 7, None), (1, 2, None, "-D")]))
    (file,) = files(table)
    assert (file.row_count, file.level, file.max_sequence_number) == (2, 0, 3)
    write_arrow(table, arrow([(1, 100, "z"), (3, None, None)]))
    assert shown(table) == [(1, 110, "z"), (2, 1, "y"), (3, None, None)]


@pytest.mark.parametrize("options", [PARTIAL, SUM])
def test_rows_that_are_merged_may_lack_columns(tmp_path: Path, options: dict[str, str]) -> None:
    table = table_of(tmp_path, options)
    keys = pa.array([1, 2], pa.int32())
    write_arrow(table, pa.table({"k": keys, "a": pa.array([5, 6], pa.int32())}))
    write_arrow(table, pa.table({"b": ["x"], "k": keys[:1]}))
    assert shown(table) == [(1, 5, "x"), (2, 6, None)]
    for mode in ("overwrite", "dynamic_overwrite"):
        with pytest.raises(InvalidInputError, match="missing columns b"):
            write_arrow(table, pa.table({"k": keys, "a": keys}), mode=mode)


def test_rows_that_replace_others_have_all_columns(tmp_path: Path) -> None:
    table = table_of(tmp_path, {})
    with pytest.raises(InvalidInputError, match="missing columns b"):
        write_arrow(table, pa.table({"k": pa.array([1], pa.int32()), "a": pa.array([5], pa.int32())}))


def test_partial_rows_fill_the_columns_that_they_give(tmp_path: Path) -> None:
    table = table_of(tmp_path, PARTIAL)
    write_arrow(table, arrow([(1, 1, None), (1, None, "x"), (2, 2, "y")]))
    assert files(table)[0].row_count == 2
    write_arrow(table, arrow([(2, None, "z"), (1, 9, None)]))
    assert shown(table) == [(1, 9, "x"), (2, 2, "z")]


def test_an_overwrite_merges_its_own_rows_only(tmp_path: Path) -> None:
    table = table_of(tmp_path, SUM)
    write_arrow(table, arrow([(1, 5, "x")]))
    write_arrow(table, arrow([(1, 3, "y"), (1, 4, None), (2, 1, "z", "-D")]), mode="overwrite")
    (file,) = files(table)
    assert (file.level, file.delete_row_count) == (5, 0)
    assert shown(table) == [(1, 7, "y")]
    write_arrow(table, arrow([(1, 1, None)]))
    assert shown(table) == [(1, 8, "y")]


def in_parts(table: Table, rows: Sequence[Rows], mode: str, buffer_bytes: int) -> list[Any]:
    """Write rows with a buffer of so many bytes; return the new files."""
    write = replace(plan_write(table, overwrite=mode != "append"), buffer_bytes=buffer_bytes)
    messages = write_rows(write, [conform_rows(arrow(part), write.schema, table.label) for part in rows])
    commit_write(table, write, messages, WriteMode(mode), CommitOptions())
    return [f for m in messages for f in m.new_files]


PICKING = {
    "deduplicate": {},
    "deduplicate, sequence": {"sequence__field": "a"},
    "deduplicate, descending": {"sequence__field": "a", "sequence__field.sort_order": "descending"},
    "deduplicate, no deletes": {"ignore_delete": "true"},
    "deduplicate, no -U": {"ignore_update_before": "true"},
    "first-row": {"merge_engine": "first-row", "ignore_delete": "true"},
    "input changelog": {"changelog_producer": "input"},
}


@pytest.mark.parametrize("name", PICKING)
def test_the_buffer_does_not_decide_what_is_written(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random rows in random batches: sorted in parts on the disk and merged, or sorted at once."""
    random = chance(f"buffer/{name}")
    small, large = table_of(tmp_path / "small", PICKING[name]), table_of(tmp_path / "large", PICKING[name])
    monkeypatch.setattr(data_write, "SORT_BYTES", 100)
    values, texts, kinds = [None, *range(5)], [None, "x", "y"], ["+I", "+I", "+U", "-U", "-D"]
    for mode in ("append", "append", "overwrite", "append"):
        drawn = [
            [(random.randrange(15), *map(random.choice, (values, texts, kinds))) for _ in range(random.randrange(12))]
            for _ in range(random.randrange(1, 30))
        ]
        of_small = in_parts(small, drawn, mode, random.choice([1, 400]))
        of_large = in_parts(large, drawn, mode, 1 << 30)
        told = [[(f.row_count, f.level, f.max_sequence_number, f.delete_row_count) for f in some]
                for some in (of_small, of_large)]  # fmt: skip
        assert told[0] == told[1]
        assert shown(small) == shown(large)


def test_a_full_buffer_becomes_a_run_of_its_own_where_values_are_computed(tmp_path: Path) -> None:
    table = table_of(tmp_path, SUM)
    written = in_parts(table, [[(1, n, None), (1, 10 * n, "x")] for n in (1, 2)], "append", 1)
    assert [f.row_count for f in written] == [1, 1]
    assert shown(table) == [(1, 33, "x")]


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        (PARTIAL, "-D"),
        ({**SUM, "fields__b__aggregate_function": "max"}, "-D"),
        ({**SUM, "fields__b__aggregate_function": "max", "aggregation__remove_record_on_delete": "true"}, "-U"),
    ],
)
def test_deletes_without_a_meaning_are_refused(tmp_path: Path, options: dict[str, str], kind: str) -> None:
    """Stored alone such a row would do nothing; with a second one of its key no read could succeed."""
    table = table_of(tmp_path, options)
    with pytest.raises(InvalidInputError, match=rf"d\.t: rows of kind {kind} have no meaning"):
        write_arrow(table, arrow([(1, 1, "x"), (2, 1, "x", kind)]))
    assert table.latest_snapshot() is None
    assert not list(tmp_path.rglob("*.parquet"))


def test_deletes_with_a_meaning(tmp_path: Path) -> None:
    removes = table_of(tmp_path / "removes", {**PARTIAL, "partial_update__remove_record_on_delete": "true"})
    ignores = table_of(tmp_path / "ignores", {**PARTIAL, "ignore_delete": "true"})
    for table in (removes, ignores):
        write_arrow(table, arrow([(1, 1, "x"), (2, 2, "y")]))
        write_arrow(table, arrow([(1, None, None, "-D")]))
    assert shown(removes) == [(2, 2, "y")]
    assert shown(ignores) == [(1, 1, "x"), (2, 2, "y")]


def correct(table: Table, rows: Rows, limit: int) -> None:
    write, plan = plan_write(table), plan_scan(table)
    (split,) = plan.splits
    changes = sorted_changes(conform_rows(arrow(rows), write.schema, table.label), write.schema)
    commit_buckets(table, [rewrite_bucket(write, split, live_bucket(plan, split), changes, limit)])


@pytest.mark.parametrize("options", [SUM, PARTIAL], ids=["aggregation", "partial-update"])
def test_a_corrected_row_replaces_the_merged_one(tmp_path: Path, options: dict[str, str]) -> None:
    table = table_of(tmp_path, options)
    write_arrow(table, arrow([(1, 5, "x"), (2, 2, "y"), (3, 3, "z")]))
    write_arrow(table, arrow([(1, 6, "v"), (2, 3, None)]))
    sums = options is SUM
    correct(table, [(1, None, "set"), (3, None, None, "-D")], limit=4)
    assert shown(table) == [(1, None, "set"), (2, 5 if sums else 3, "y")]
    (file,) = files(table)
    assert (file.level, file.max_sequence_number, file.delete_row_count) == (5, 4, 0)
    write_arrow(table, arrow([(1, 7, None), (2, 1, None)]))  # goes on from the corrected row
    assert shown(table) == [(1, 7, "set"), (2, 6 if sums else 1, "y")]


@pytest.mark.parametrize("options", [SUM, PARTIAL], ids=["aggregation", "partial-update"])
def test_a_fold_keeps_the_rows(tmp_path: Path, options: dict[str, str]) -> None:
    table = table_of(tmp_path, options)
    for n in range(3):
        write_arrow(table, arrow([(1, n, None), (n, None, f"x{n}")]))
    before, plan = shown(table), plan_scan(table)
    (key,) = plan_write(table).next_sequence
    commit_buckets(table, folded(plan_write(table), plan, {key: 1}))
    (file,) = files(table)
    assert (file.level, file.max_sequence_number) == (5, 1)
    assert shown(table) == before
