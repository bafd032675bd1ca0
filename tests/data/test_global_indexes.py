"""Global indexes: which of their entries a commit takes over. None answers with rows that changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_paimon.core.commit.committer import commit
from airflow_paimon.core.commit.draft import Draft
from airflow_paimon.core.errors import UnsupportedFeatureError
from airflow_paimon.core.format.manifest import GlobalIndex, IndexEntry
from airflow_paimon.core.format.snapshot import CommitKind
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import open_context
from airflow_paimon.core.schema.schema_plan import SetOption
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.manifest_entries import read_index_entries
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import drop_partitions, read_arrow, write_arrow
from airflow_paimon.data.compact import compact
from tests.core.metadata_expiry.test_remove_orphan_files import clean
from tests.core.tables import alter_table, run
from tests.data.row_statements import Row, statement

ACTION = "global-index.column-update-action"
A, B = ("btree", "index-a"), ("diskann", "index-b")
"""One of a type that is known here and one of a later type, of the partitions a and b."""


def insert(table: Table, dt: str, *ids: int) -> None:
    write_arrow(table, pa.table({"id": pa.array(ids, pa.int32()), "dt": [dt] * len(ids)}))


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Two partitions, each with an index file that covers its rows, as Paimon enters it."""
    options = {"bucket": "-1", "row-tracking.enabled": "true"}
    made = create_table(str(tmp_path / "wh"), "d.t", [("id", "INT"), ("dt", "STRING")],
                        partition_keys=["dt"], options=options)  # fmt: skip
    for dt, first in (("a", 1), ("b", 3)):
        insert(made, dt, first, first + 1)
    add_indexes(made)
    return made


def add_indexes(table: Table, suffix: str = "") -> None:
    entries = []
    live = live_entries(table, table.latest_snapshot()).values()
    of = sorted(live, key=lambda e: e.file.first_row_id or 0)
    for entry, (kind, name) in zip(of, (A, B), strict=True):
        first, rows = entry.file.first_row_id or 0, entry.file.row_count
        covers = GlobalIndex(first, first + rows - 1, 0, index_meta=b"meta")
        table.store.create(f"index/{name}{suffix}", b"index")
        entries.append(IndexEntry(0, entry.partition, 0, kind, f"{name}{suffix}", 5, rows, None, None, covers))
    schema = table.schema()
    commit(table, lambda head: Draft(kind=CommitKind.APPEND, entries=(), index_entries=entries, schema=schema))


def indexes(table: Table) -> set[str]:
    return {e.file_name for e in read_index_entries(table, table.latest_snapshot())}


def ids(table: Table) -> list[int]:
    return sorted(read_arrow(table)["id"].to_pylist())


def plus_ten(row: Row) -> Row:
    return {**row, "id": row["id"] + 10} if row["id"] == 1 else row


def without_one(row: Row) -> Row | None:
    return None if row["id"] == 1 else row


def compacted(table: Table) -> None:
    insert(table, "a", 7)
    values = {"warehouse": table.store.uri.removeprefix("file://").rsplit("/", 2)[0], "table": table.name}
    request = build_request("compact", {**values, "partitions": ["dt=a"], "min_files": 2})
    compact(open_context(request), request)


def overwritten(table: Table) -> None:
    write_arrow(table, pa.table({"id": pa.array([9], pa.int32()), "dt": ["a"]}), mode="dynamic_overwrite")


OPERATIONS: dict[str, tuple[Callable[[Table], object], set[str]]] = {
    "append": (lambda t: insert(t, "a", 9), {"index-a", "index-b"}),
    "overwrite": (overwritten, {"index-b"}),
    "drop partitions": (lambda t: drop_partitions(t, ["dt=a"]), {"index-b"}),
    "DELETE": (lambda t: statement(t, without_one, operation="DELETE"), {"index-b"}),
    "compaction": (compacted, {"index-b"}),
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_commits(table: Table, operation: str) -> None:
    change, left = OPERATIONS[operation]
    change(table)
    assert indexes(table) == left


@pytest.mark.parametrize("operation", ["UPDATE", "MERGE"])
@pytest.mark.parametrize("action", ["THROW_ERROR", "DROP_PARTITION_INDEX", "IGNORE", None])
def test_statements(table: Table, operation: str, action: str | None) -> None:
    if action is not None:
        alter_table(table, [SetOption(key=ACTION, value=action)])
    if action in ("THROW_ERROR", None):
        before = table.latest_snapshot_id(), sorted(table.store.walk("dt=a"))
        with pytest.raises(UnsupportedFeatureError, match=rf"d\.t.*covered by a global index \(btree\).*{ACTION}"):
            statement(table, plus_ten, operation=operation)
        assert indexes(table) == {"index-a", "index-b"} and table.latest_snapshot_id() == before[0]
    else:
        statement(table, plus_ten, operation=operation)
        assert indexes(table) == {"index-b"} and ids(table) == [2, 3, 4, 11]


def test_a_publish_keeps_what_only_got_rows(table: Table) -> None:
    run(table, "create_branch", branch="fix", snapshot=3)
    insert(table.branch("fix"), "b", 8)
    run(table, "merge_branch", branch="fix")
    assert indexes(table) == {"index-a", "index-b"} and ids(table) == [1, 2, 3, 4, 8]


def test_a_publish_drops_what_it_changes_and_its_undo_brings_it_back(table: Table) -> None:
    run(table, "create_branch", branch="fix", snapshot=3)
    statement(table.branch("fix"), without_one, operation="DELETE")
    insert(table, "b", 8)
    published = run(table, "merge_branch", branch="fix")
    assert indexes(table) == {"index-b"} and ids(table) == [2, 3, 4, 8]
    run(table, "rollback_to", tag=published.details["undo_tag"])
    assert indexes(table) == {"index-a", "index-b"} and ids(table) == [1, 2, 3, 4, 8]


def test_a_rollback_brings_the_entries_of_its_snapshot(table: Table) -> None:
    drop_partitions(table, ["dt=b"])
    overwritten(table)
    assert indexes(table) == set()
    run(table, "rollback_to", snapshot=3)
    assert indexes(table) == {"index-a", "index-b"}
    run(table, "rollback_to", snapshot=2)
    assert ids(table) == [1, 2, 3, 4]


def test_no_entry_comes_with_ids_that_mean_other_rows(table: Table) -> None:
    """A branch's rows get other ids where main has given theirs away: its index would name main's rows."""
    run(table, "create_branch", branch="fix", snapshot=3)
    fix = table.branch("fix")
    write_arrow(fix, pa.table({"id": pa.array([5, 6], pa.int32()), "dt": ["a", "b"]}), mode="dynamic_overwrite")
    add_indexes(fix, "-of-fix")
    insert(table, "a", 8)
    run(table, "fast_forward", branch="fix", discard_main=True)
    assert indexes(table) == set() and ids(table) == [5, 6]


def test_the_same_ids_keep_their_entries(table: Table) -> None:
    run(table, "create_branch", branch="fix", snapshot=3)
    fix = table.branch("fix")
    write_arrow(fix, pa.table({"id": pa.array([5, 6], pa.int32()), "dt": ["a", "b"]}), mode="dynamic_overwrite")
    add_indexes(fix, "-of-fix")
    run(table, "fast_forward", branch="fix")
    assert indexes(table) == {"index-a-of-fix", "index-b-of-fix"} and ids(table) == [5, 6]


def test_expiry_and_orphan_cleaning_know_index_files(table: Table) -> None:
    overwritten(table)
    run(table, "expire_snapshots", retain_min=1, retain_max=1, older_than="0 s", grace="0 s", writers_stopped=True)
    assert set(table.store.names("index")) == {"index-b"}
    assert clean(table).details["files"] == 0
    assert set(table.store.names("index")) == {"index-b"}
