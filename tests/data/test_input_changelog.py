"""``changelog-producer=input``: streaming readers get the rows of an append as they were given, not merged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from airflow_paimon.core.commit.draft import CommitOptions
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.table.manifest_entries import read_entries
from airflow_paimon.core.table.manifest_lists import ManifestListRef, read_manifest_lists
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import arrow_write
from airflow_paimon.data.arrow_write import commit_write
from airflow_paimon.data.files.conform import ROW_KINDS, conform_rows
from airflow_paimon.data.task_messages import merged_messages
from airflow_paimon.data.write import WriteMode, plan_write, write_rows
from tests.data.test_changes import Follower
from tests.data.test_compact_written import COLUMNS, Row, arrow, keyed, levels, put, shown

INPUT = {"changelog_producer": "input"}


def follower(table: Table) -> Follower:
    """A stream of all changes, from the first on."""
    options = {"scan.mode": "from-snapshot", "scan.snapshot-id": "1", "streaming-read-overwrite": "false"}
    return Follower(table, row_kind=True, **options)


def stored(table: Table) -> list[Row]:
    """The changelog of the newest snapshot, file by file."""
    found = table.latest_snapshot()
    assert found is not None
    if found.changelog_manifest_list is None:
        return []
    (manifests,) = read_manifest_lists(table, [ManifestListRef(found.changelog_manifest_list, None, "changelog")])
    out: list[Row] = []
    for entry in (e for part in read_entries(table, manifests) for e in part):
        assert (entry.file.level, entry.file.file_source) == (0, 0)
        (path,) = Path(table.store.uri.removeprefix("file://")).rglob(entry.file.file_name)
        rows = pq.read_table(path).to_pylist()
        assert entry.file.row_count == len(rows)
        assert entry.file.delete_row_count == sum(r["_VALUE_KIND"] in (1, 3) for r in rows)
        out += [(*(r[n] for n in COLUMNS), ROW_KINDS[r["_VALUE_KIND"]], r["_SEQUENCE_NUMBER"]) for r in rows]
    assert len(out) == found.changelog_record_count
    return out


@pytest.mark.parametrize("engine", ["deduplicate", "partial-update", "aggregation"])
def test_rows_are_told_as_they_are_given(tmp_path: Path, engine: str) -> None:
    table = keyed(tmp_path, engine, **INPUT)
    first: Sequence[Row] = [
        ("x", 2, 1, "a", "+I"),
        ("x", 1, 1, "b", "+I"),
        ("x", 2, 5, None, "+U"),
        ("x", 1, 0, None, "-D"),
    ]
    put(table, *first)
    assert stored(table) == [(*first[at], at) for at in (1, 3, 0, 2)]
    put(table, ("x", 2, 7, "c", "+U"))
    assert stored(table) == [("x", 2, 7, "c", "+U", 4)]
    assert follower(table).all() == [*(first[at] for at in (1, 3, 0, 2)), ("x", 2, 7, "c", "+U")]
    expected = {"deduplicate": (7, "c"), "partial-update": (7, "c"), "aggregation": (13, "c")}[engine]
    assert shown(table) == [("x", 2, *expected)]
    assert levels(table) == [0, 0]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"ignore_delete": "true"}, ["late+I", "new+I"]),
        ({"ignore_update_before": "true"}, ["late+I", "new+I", "new-D"]),
        ({"sequence__field": "a"}, ["late+I", "new-U", "new+I", "new-D"]),
        ({"sequence__field": "a", "sequence__field.sort_order": "descending"}, ["new-U", "new+I", "new-D", "late+I"]),
    ],
)
def test_options_that_leave_rows_out_or_order_them(tmp_path: Path, options: dict[str, str], told: list[str]) -> None:
    table = keyed(tmp_path, **INPUT, **options)
    by_sequence = "sequence__field" in options
    late = ("x", 1, 1, "late", "+I")
    rows = [("x", 1, 2, "new", "-U"), ("x", 1, 2, "new", "+I"), ("x", 1, 2, "new", "-D")]
    put(table, *([*rows, late] if by_sequence else [late, *rows]))
    assert [f"{b}{kind}" for _, _, _, b, kind in follower(table).all()] == told


def test_an_overwrite_tells_nothing(tmp_path: Path) -> None:
    table = keyed(tmp_path, **INPUT)
    for mode in ("overwrite", "dynamic_overwrite"):
        put(table, ("x", 1, 1, "a"), mode=mode)
    assert follower(table).all() == []
    assert not list(tmp_path.rglob("changelog-*"))


def test_a_refused_write_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = keyed(tmp_path, "aggregation", **INPUT, fields__b__aggregate_function="max")
    monkeypatch.setattr(
        arrow_write, "plan_write", lambda *given, **how: replace(plan_write(*given, **how), buffer_bytes=1)
    )
    monkeypatch.setattr(arrow_write, "_BATCH_ROWS", 1)
    with pytest.raises(InvalidInputError, match="have no meaning"):
        put(table, ("x", 1, 1, "a"), ("x", 1, 1, "a", "-U"))
    assert not list(tmp_path.rglob("*.parquet"))
    put(table, ("x", 1, 1, "a"), ("x", 1, 2, "b"))
    assert len(list(tmp_path.rglob("changelog-*"))) == 2
    assert [row[3] for row in stored(table)] == ["a", "b"]


def test_of_the_rows_of_several_tasks_the_last_one_told_wins(tmp_path: Path) -> None:
    """The second task has counted less far, so its rows would lose to the first's that are told before."""
    table = keyed(tmp_path, **INPUT)
    put(table, ("x", 9, 1, "old"))
    reader = follower(table)
    reader.all()
    write = plan_write(table, tasks_share_buckets=True)
    tasks: list[Any] = []
    for rows in ([("x", 3, 1, "y"), ("x", 1, 1, "first")], [("x", 1, 2, "second")]):
        tasks.append(write_rows(write, [conform_rows(arrow(rows), write.schema, table.label)]))
    files = merged_messages(write, tasks)
    commit_write(table, write, files, WriteMode(), CommitOptions())
    told = reader.all()
    assert [(k, b) for _, k, _, b, _ in told] == [(1, "first"), (3, "y"), (1, "second")]
    assert shown(table) == [("x", 1, 2, "second"), ("x", 3, 1, "y"), ("x", 9, 1, "old")]


def test_with_deletion_vectors_the_compaction_tells_nothing_more(tmp_path: Path) -> None:
    table = keyed(tmp_path, **INPUT, deletion_vectors__enabled="true")
    put(table, ("x", 1, 1, "a"))
    put(table, ("x", 1, 2, "b", "+U"))
    reader = follower(table)
    assert (shown(table), levels(table)) == ([("x", 1, 2, "b")], [5])
    assert reader.all() == [("x", 1, 1, "a", "+I"), ("x", 1, 2, "b", "+U")]
