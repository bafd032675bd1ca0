"""A write that fails before its commit leaves no data files, and cleaning up never hides why it failed."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pytest

from airflow_paimon.core.errors import ConflictError, InvalidInputError, StorageError
from airflow_paimon.core.store import Store
from airflow_paimon.core.table.live_files import BucketKey
from airflow_paimon.core.table.partition_scope import choose_partitions
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import read_arrow, rewrite, write_arrow
from airflow_paimon.data.files.conform import conform_rows
from airflow_paimon.data.write import TableWrite, plan_write, write_rows
from airflow_paimon.spark.jobs.correction_tasks import BucketCorrection, correct_buckets
from tests.data.tables import make_table, rows_of
from tests.stores import CountingStore, FaultStore

T = TypeVar("T")
COLUMNS = {"k": "INT NOT NULL", "v": "STRING"}
ROWS = rows_of(COLUMNS, [{"k": k, "v": f"{k}"} for k in range(40)])
FULL = OSError(errno.ENOSPC, "No space left on device")


class NoDelete(CountingStore):
    """A storage on which every deletion fails."""

    def _call(self, method: str, path: str, action: Callable[[], T]) -> T:
        if method == "delete":
            raise StorageError(f"deleting {path}: connection reset")
        return super()._call(method, path, action)


def files(folder: Path) -> set[str]:
    return {str(p) for p in folder.rglob("*.parquet")}


def keyed(folder: Path) -> Table:
    return make_table(folder, COLUMNS, primary_keys=["k"], bucket="3")


def correct(write: TableWrite) -> None:
    correction = BucketCorrection(write=write, choice=choose_partitions(write.schema, [], "d.t"), live={})
    for _ in correct_buckets(correction, ROWS.to_batches()):
        pass


def plain_rows(write: TableWrite) -> None:
    write_rows(write, [conform_rows(b, write.schema, write.label) for b in ROWS.to_batches()])


@pytest.mark.parametrize("bucket", [2, 3])
@pytest.mark.parametrize("run", [correct, plain_rows])
def test_a_full_disk_at_any_bucket_leaves_no_file(
    tmp_path: Path, run: Callable[[TableWrite], None], bucket: int
) -> None:
    write = plan_write(keyed(tmp_path))
    store = FaultStore(write.store, fail_at=bucket, error=FULL)
    with pytest.raises(StorageError, match="No space left"):
        run(replace(write, store=store))
    assert [m for m, _ in store.mutations][:bucket] == ["open_output"] * bucket
    assert not files(tmp_path)


@pytest.mark.parametrize("run", [correct, plain_rows])
def test_a_clean_up_that_fails_does_not_hide_the_cause(tmp_path: Path, run: Callable[[TableWrite], None]) -> None:
    write = plan_write(keyed(tmp_path))
    store: Store = NoDelete(FaultStore(write.store, fail_at=3, error=FULL))
    with pytest.raises(StorageError, match="No space left"):
        run(replace(write, store=store))


def test_rows_that_are_refused_late_leave_no_file(tmp_path: Path) -> None:
    def batches(write: TableWrite) -> Iterator[pa.RecordBatch]:
        yield conform_rows(ROWS.to_batches()[0], write.schema, write.label)
        raise InvalidInputError("the second batch is wrong")

    for name, options in {"d.a": {}, "d.k": {"primary_keys": ["k"], "bucket": "2"}}.items():
        write = plan_write(make_table(tmp_path, COLUMNS, name=name, **options))  # type: ignore[arg-type]
        with pytest.raises(InvalidInputError, match="second batch"):
            write_rows(write, batches(write))
    assert not files(tmp_path)


def folded(folder: Path) -> tuple[Table, dict[BucketKey, int], list[tuple[Any, ...]]]:
    table = keyed(folder)
    write_arrow(table, ROWS)
    write_arrow(table, ROWS)
    limits = {BucketKey(s.partition, s.bucket): 1 for s in plan_scan(table).splits}
    return table, limits, sorted(tuple(r.values()) for r in read_arrow(table).to_pylist())


def test_a_fold_that_fails_in_a_later_bucket_leaves_no_file(tmp_path: Path) -> None:
    table, limits, rows = folded(tmp_path)
    before, plan, write = files(tmp_path), plan_scan(table), plan_write(table)
    with pytest.raises(StorageError, match="No space left"):
        rewrite.folded(replace(write, store=FaultStore(write.store, 3, error=FULL)), plan, limits)
    assert files(tmp_path) == before
    assert sorted(tuple(r.values()) for r in read_arrow(table).to_pylist()) == rows


class Overwriting(CountingStore):
    """Before the first data file is written through it, somebody else overwrites the table."""

    others: frozenset[str] = frozenset()

    def __init__(self, table: Table, folder: Path) -> None:
        super().__init__(table.store)
        self._table, self._folder = table, folder

    def _call(self, method: str, path: str, action: Callable[[], T]) -> T:
        if method == "open_output" and not self.others:
            write_arrow(self._table, ROWS, mode="overwrite")
            self.others = frozenset(files(self._folder))
        return super()._call(method, path, action)


def test_a_fold_that_finds_its_buckets_overwritten_leaves_no_file(tmp_path: Path) -> None:
    table, limits, rows = folded(tmp_path)
    store = Overwriting(table, tmp_path)
    with pytest.raises(ConflictError):
        rewrite.fold_buckets(replace(table, store=store), limits)
    assert store.tally.calls["open_output"] == 3
    assert files(tmp_path) == store.others
    assert sorted(tuple(r.values()) for r in read_arrow(table).to_pylist()) == rows
