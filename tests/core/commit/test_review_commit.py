"""What a review of the commit found: partitions whose null has two stored forms, two creators of one branch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_paimon.core.commit.draft import CommitMessage
from airflow_paimon.core.commit.files import commit_append, commit_buckets, commit_partition
from airflow_paimon.core.errors import ConflictError
from airflow_paimon.core.format.binary_row import encode_row
from airflow_paimon.core.format.manifest import EMPTY_STATS, DataFile
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import open_context
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.store import Store
from airflow_paimon.core.table.branch_record import matching_branch_record
from airflow_paimon.core.table.inspect import inspect
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table
from airflow_paimon.execution import perform
from tests.core.tables import append, make_table, run
from tests.stores import _Wrapper

OLD_NULL = bytes.fromhex("00000001") + bytes.fromhex("0001000000000000") + bytes(8)
"""A null TIMESTAMP(6) as Paimon before 1.1 stored it: without the reserved bytes."""


@pytest.fixture
def table(tmp_path: Path) -> Table:
    columns = [("k", "BIGINT NOT NULL"), ("v", "STRING"), ("ts", "TIMESTAMP(6)")]
    return create_table(str(tmp_path / "wh"), "d.t", columns, partition_keys=["ts"], options={"bucket": "-1"})


def _file(name: str) -> DataFile:
    key = EMPTY_STATS.min_values
    return DataFile(name, 11, 1, key, key, EMPTY_STATS, EMPTY_STATS, 0, 0, 0, 0, file_source=0, value_stats_cols=())


def _message(partition: bytes, name: str, replaced: tuple[DataFile, ...] = ()) -> CommitMessage:
    return CommitMessage(partition=partition, bucket=0, total_buckets=-1, new_files=(_file(name),), replaced=replaced)


def test_a_partition_whose_null_is_stored_in_two_forms_is_rewritten_as_one(table: Table) -> None:
    new_null = encode_row((None,), table.schema().partition_types)
    assert new_null != OLD_NULL
    for partition, name in ((OLD_NULL, "data-1.parquet"), (new_null, "data-2.parquet")):
        commit_append(table, [_message(partition, name)], planned_on=table.latest_snapshot())
    (split,) = plan_scan(table).splits
    assert len(split.files) == 2
    assert inspect(table, "partitions").column("file_count").to_pylist() == [2]
    commit_buckets(table, [_message(split.partition, "data-3.parquet", split.files)])
    assert [e.file.file_name for e in live_entries(table, table.latest_snapshot()).values()] == ["data-3.parquet"]
    with pytest.raises(ConflictError):
        commit_buckets(table, [_message(new_null, "data-4.parquet", split.files)])


def test_a_compaction_replaces_both_forms_of_a_null(table: Table) -> None:
    """A split has the bytes of one form; its other files are deleted under those that they are stored with."""
    new_null = encode_row((None,), table.schema().partition_types)
    for partition, name in ((OLD_NULL, "data-1.parquet"), (new_null, "data-2.parquet")):
        commit_append(table, [_message(partition, name)], planned_on=table.latest_snapshot())
    replaced = plan_scan(table).splits
    commit_partition(table, [_message(new_null, "data-3.parquet")], replaced=replaced)
    assert [e.file.file_name for e in live_entries(table, table.latest_snapshot()).values()] == ["data-3.parquet"]


def test_a_publish_takes_the_two_forms_of_a_null_for_one_partition(table: Table) -> None:
    new_null = encode_row((None,), table.schema().partition_types)
    commit_append(table, [_message(OLD_NULL, "data-1.parquet")], planned_on=None)
    run(table, "create_branch", branch="fix", snapshot=1)
    fix = table.branch("fix")
    commit_buckets(fix, [_message(OLD_NULL, "data-2.parquet", (_file("data-1.parquet"),))])
    commit_append(table, [_message(new_null, "data-3.parquet")], planned_on=table.latest_snapshot())
    with pytest.raises(ConflictError, match="main got rows in ts=__DEFAULT_PARTITION__"):
        run(table, "merge_branch", branch="fix")
    for name in ("data-2.parquet", "data-3.parquet"):
        (table_root(table) / "ts=__DEFAULT_PARTITION__/bucket-0").mkdir(parents=True, exist_ok=True)
        (table_root(table) / "ts=__DEFAULT_PARTITION__/bucket-0" / name).touch()
    run(table, "fast_forward", branch="fix", discard_main=True)
    assert [e.file.file_name for e in live_entries(table, table.latest_snapshot()).values()] == ["data-2.parquet"]


def table_root(table: Table) -> Path:
    return Path(table.store.uri.removeprefix("file://"))


class _Meanwhile(_Wrapper):
    """Lets somebody else act right before this process changes the storage for the first time."""

    def __init__(self, inner: Store, act: Callable[[], None]) -> None:
        super().__init__(inner)
        self.acts = [act]

    def _call(self, method: str, path: str, action: Callable[[], Any]) -> Any:
        if method in ("create", "replace", "delete") and self.acts:
            self.acts.pop()()
        return action()


def test_two_creators_of_one_branch_leave_it_protected(tmp_path: Path) -> None:
    table = make_table(tmp_path / "wh")
    append(table, "a")
    append(table, "b")
    values = {"warehouse": str(tmp_path / "wh"), "table": "d.t", "branch": "fix"}
    context = open_context(build_request("create_branch", {**values, "snapshot": 2}))
    store = _Meanwhile(context.table.store, lambda: run(table, "create_branch", branch="fix", snapshot=1))
    with pytest.raises(ConflictError, match="concurrent operation"):
        perform(replace(context, table=Table(store, "d.t")), context.request)
    assert table.branch("fix").latest_snapshot_id() == 1
    assert table.tag("airflow-paimon-branch-fix").snapshot.id == 1
    assert matching_branch_record(table, "fix").snapshot_id == 1
