"""Several tasks of one write with rows of the same buckets: no number twice for a key, and no number wasted."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_paimon.core.commit.draft import CommitMessage, CommitOptions
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import read_arrow, write_arrow
from airflow_paimon.data.arrow_write import commit_write
from airflow_paimon.data.files.conform import conform_rows
from airflow_paimon.data.task_messages import merged_messages
from airflow_paimon.data.write import TableWrite, WriteMode, plan_write, write_rows
from tests.data.tables import make_table, rows_of

COLUMNS = {"k": "INT NOT NULL", "v": "STRING"}
Rows = Sequence[tuple[int, str]]


def batches(write: TableWrite, rows: Rows, kinds: Sequence[str] | None = None) -> list[pa.RecordBatch]:
    data = rows_of(COLUMNS, [{"k": k, "v": v} for k, v in rows])
    if kinds is not None:
        data = data.append_column("_row_kind", pa.array(kinds))
    return [conform_rows(data, write.schema, write.label)]


def written(table: Table, mode: str, *tasks: Rows, buffer_bytes: int = 1 << 20) -> tuple[TableWrite, list[Any]]:
    write = replace(plan_write(table, overwrite=mode != "append"), buffer_bytes=buffer_bytes)
    return write, [write_rows(write, batches(write, rows)) for rows in tasks]


def commit(table: Table, write: TableWrite, messages: list[CommitMessage], mode: str = "append") -> None:
    commit_write(table, write, messages, WriteMode(mode), CommitOptions())


def numbered(folder: Path) -> list[tuple[int, int]]:
    """(key, sequence number) of every row of every file there is."""
    files = [pq.read_table(f, columns=["k", "_SEQUENCE_NUMBER"]) for f in folder.rglob("*.parquet")]
    return [(r["k"], r["_SEQUENCE_NUMBER"]) for f in files for r in f.to_pylist()]


def test_tasks_share_numbers_where_they_share_no_key(tmp_path: Path) -> None:
    table = make_table(tmp_path, COLUMNS, primary_keys=["k"], bucket="1")
    write_arrow(table, rows_of(COLUMNS, [{"k": -1, "v": "old"}]))
    write, tasks = written(table, "append", *[[(k, "new") for k in range(t, 300, 3)] for t in range(3)])
    messages = merged_messages(write, tasks)
    assert messages == [m for t in tasks for m in t], "nothing was written again"
    commit(table, write, messages)
    assert max(n for _, n in numbered(tmp_path)) == 100, "as many as the largest task has rows"
    assert read_arrow(table).num_rows == 301


@pytest.mark.parametrize("buffer_bytes", [1, 1 << 20], ids=["many-runs", "one-run"])
@pytest.mark.parametrize("buckets", ["1", "3"])
@pytest.mark.parametrize("seed", range(4))
def test_no_key_has_a_number_twice(tmp_path: Path, seed: int, buckets: str, buffer_bytes: int) -> None:
    chance = random.Random(seed)
    table = make_table(tmp_path, COLUMNS, primary_keys=["k"], bucket=buckets)
    write_arrow(table, rows_of(COLUMNS, [{"k": k, "v": "old"} for k in range(50)]))
    given = [[(chance.randrange(60), f"{t}-{i}") for i in range(chance.randrange(1, 80))] for t in range(5)]
    write, tasks = written(table, "append", *given, buffer_bytes=buffer_bytes)
    files = len(list(tmp_path.rglob("*.parquet")))
    commit(table, write, merged_messages(write, tasks))
    found = numbered(tmp_path)
    assert len(set(found)) == len(found)
    assert len(list(tmp_path.rglob("*.parquet"))) == files, "what was written again was deleted"
    assert max(n for _, n in found) < 50 + sum(map(len, given))
    rows = {r["k"]: r["v"] for r in read_arrow(table).to_pylist()}
    last = [dict(g) for g in given]
    for key in range(60):
        offered = {g[key] for g in last if key in g} or ({"old"} if key < 50 else set())
        assert {rows[key]} <= offered if offered else key not in rows


def test_of_two_rows_with_the_same_number_the_later_tasks_wins(tmp_path: Path) -> None:
    table = make_table(tmp_path, COLUMNS, primary_keys=["k"], bucket="1")
    write, tasks = written(table, "append", *[[(1, f"task {t}"), (t + 10, "own")] for t in range(4)])
    commit(table, write, merged_messages(write, tasks))
    assert {r["k"]: r["v"] for r in read_arrow(table).to_pylist()} == {
        1: "task 3",
        **dict.fromkeys(range(10, 14), "own"),
    }
    write_arrow(table, rows_of(COLUMNS, [{"k": 1, "v": "newer"}]))
    assert {r["k"]: r["v"] for r in read_arrow(table).to_pylist()}[1] == "newer"


def test_files_of_several_tasks_in_a_replaced_bucket_lie_on_level_0(tmp_path: Path) -> None:
    """Each task takes its run for the bucket's only one; but files above level 0 must not share keys."""
    table = make_table(tmp_path, COLUMNS, primary_keys=["k"], bucket="1")
    write, tasks = written(table, "overwrite", [(1, "a"), (5, "a")], [(5, "b"), (9, "b")])
    assert [f.level for t in tasks for m in t for f in m.new_files] == [5, 5]
    commit(table, write, merged_messages(write, tasks), "overwrite")
    assert [f.level for f in plan_scan(table).splits[0].files] == [0, 0]
    assert sorted((r["k"]) for r in read_arrow(table).to_pylist()) == [1, 5, 9]


def test_without_keys_numbers_follow_each_other(tmp_path: Path) -> None:
    table = make_table(tmp_path, COLUMNS, bucket="1", bucket_key="k")
    for _ in range(2):
        write, tasks = written(table, "append", [(1, "a"), (2, "a")], [(3, "b")])
        commit(table, write, merged_messages(write, tasks))
    files = plan_scan(table).splits[0].files
    assert sorted((f.min_sequence_number, f.max_sequence_number) for f in files) == [(0, 1), (2, 2), (3, 4), (5, 5)]


@pytest.mark.parametrize("mode", ["append", "overwrite"])
@pytest.mark.parametrize("engine", ["deduplicate", "aggregation"])
def test_a_delete_meets_the_row_that_another_task_has_written(tmp_path: Path, engine: str, mode: str) -> None:
    options = {"merge_engine": engine, "fields__s__aggregate_function": "sum"}
    columns = {"k": "INT NOT NULL", "s": "BIGINT"}
    table = make_table(tmp_path, columns, primary_keys=["k"], bucket="1", **options)
    write = plan_write(table, overwrite=mode == "overwrite", tasks_share_buckets=True)
    tasks = []
    for kind in ("+I", "-D"):
        rows = rows_of(columns, [{"k": 1, "s": 5}]).append_column("_row_kind", pa.array([kind]))
        tasks.append(write_rows(write, [conform_rows(rows, write.schema, write.label)]))
    commit(table, write, merged_messages(write, tasks), mode)
    left = [] if engine == "deduplicate" else [{"k": 1, "s": 0}]
    assert read_arrow(table).to_pylist() == left
