"""Rows that are deleted by deletion vectors: gone, once, for every reader; the files stay as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from airflow_paimon.core.commit.committer import commit
from airflow_paimon.core.commit.draft import CommitIdentity, Draft
from airflow_paimon.core.commit.rewrites import commit_rewrite
from airflow_paimon.core.commit.staging import Staging, take_over, unpublished
from airflow_paimon.core.errors import ConflictError, FormatError
from airflow_paimon.core.format.deletion_vectors import Positions
from airflow_paimon.core.format.snapshot import CommitKind, Operation
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.live_entries import live_columns, live_entries
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import read_arrow, write_arrow
from airflow_paimon.data.copy_on_write import CopyOnWrite, plan_copy_on_write
from airflow_paimon.data.row_deletes import RowDeletes, delete_rows, deletes_by_vectors
from airflow_paimon.data.write import discard_files
from tests.data.row_statements import IDS, statement
from tests.oracles.canonical import assert_same_rows
from tests.oracles.drivers import JavaOracle
from tests.randomness import chance

ROWS = 40
OPTIONS = {"bucket": "-1", "deletion-vectors.enabled": "true"}


def make(folder: Path, **options: str) -> Table:
    """Two days with two files each; ``k`` tells a row."""
    columns = [("k", "INT"), ("dt", "STRING")]
    table = create_table(str(folder), "d.t", columns, partition_keys=["dt"], options=OPTIONS | options)
    for start in range(0, ROWS, 20):
        days = ["a"] * 10 + ["b"] * 10
        write_arrow(table, pa.table({"k": pa.array(range(start, start + 20), pa.int32()), "dt": days}))
    return table


def keys(table: Table, **read: Any) -> list[int]:
    return sorted(read_arrow(table, columns=["k"], **read).column("k").to_pylist())


def deleted(table: Table, *gone: int) -> tuple[CopyOnWrite, RowDeletes]:
    """What a DELETE of these keys writes: row n of the file that began with k is at position n - k."""
    plan = plan_copy_on_write(table)
    positions: dict[str, Positions] = {}
    for split in plan.scan.splits:
        for number, file in enumerate(sorted(split.files, key=lambda f: f.creation_time_ms or 0)):
            first = number * 20 + (10 if split.values == ("b",) else 0)
            found = [k - first for k in gone if first <= k < first + file.row_count]
            if found:
                positions[file.file_name] = np.array(sorted(found), np.uint64)
    return plan, delete_rows(plan.scan, plan.write, positions)


def delete(table: Table, *gone: int) -> RowDeletes:
    plan, found = deleted(table, *gone)
    receipt = commit_rewrite(table, found.messages, read=plan.scan, operation=Operation.DELETE)
    assert receipt.snapshot is not None and receipt.snapshot.commit_kind == CommitKind.OVERWRITE
    return found


def files(table: Table) -> set[str]:
    return {f.file_name for s in plan_scan(table).splits for f in s.files}


@pytest.mark.parametrize("bitmap64", ["false", "true"])
def test_deleted_rows_stay_deleted_and_files_stay(tmp_path: Path, bitmap64: str) -> None:
    table = make(tmp_path, **{"deletion-vectors.bitmap64": bitmap64})
    before, left = files(table), set(range(ROWS))
    draw = chance(f"deletes {bitmap64}")
    for _ in range(4):
        gone = draw.sample(sorted(left), 3)
        found = delete(table, *gone)
        left -= set(gone)
        assert found.rows == 3 and keys(table) == sorted(left)
    assert files(table) == before
    assert keys(table, version=2) == list(range(ROWS)), "earlier snapshots have their rows"
    entries = [r for e in plan_scan(table).index_entries for r in e.deletion_vector_ranges or () if r is not None]
    assert sum(r.cardinality or 0 for r in entries) == 12 and len({r.data_file for r in entries}) == len(entries)


def test_a_file_without_rows_is_taken_away(tmp_path: Path) -> None:
    table = make(tmp_path)
    delete(table, 3)
    found = delete(table, *(k for k in range(10) if k != 3), 39)
    assert (found.rows, found.files, len(files(table))) == (10, 1, 3)
    assert keys(table) == [*range(10, 39)]


def test_ids_stay_and_a_rewrite_leaves_no_vector(tmp_path: Path) -> None:
    table = make(tmp_path, **{"row-tracking.enabled": "true"})
    before = {r["k"]: (r["_ROW_ID"], r["_SEQUENCE_NUMBER"]) for r in read_arrow(table, columns=["k", *IDS]).to_pylist()}
    delete(table, 1, 25)
    after = {r["k"]: (r["_ROW_ID"], r["_SEQUENCE_NUMBER"]) for r in read_arrow(table, columns=["k", *IDS]).to_pylist()}
    assert after == {k: v for k, v in before.items() if k not in (1, 25)}
    statement(table, lambda row: None if row["k"] == 2 else row, operation=Operation.DELETE)
    assert keys(table) == [k for k in range(ROWS) if k not in (1, 2, 25)]
    held = {
        r.data_file for e in plan_scan(table).index_entries for r in e.deletion_vector_ranges or () if r is not None
    }
    assert held < files(table) and len(held) == 1


def test_another_delete_in_the_same_file_is_a_conflict_and_one_beside_it_is_not(tmp_path: Path) -> None:
    table = make(tmp_path)
    plan, found = deleted(table, 1)
    delete(table, 2)
    with pytest.raises(ConflictError, match="changed files"):
        commit_rewrite(table, found.messages, read=plan.scan, operation=Operation.DELETE)
    discard_files(plan.write, found.messages)
    plan, found = deleted(table, 3)
    delete(table, 39)
    commit_rewrite(table, found.messages, read=plan.scan, operation=Operation.DELETE)
    assert keys(table) == [k for k in range(ROWS) if k not in (2, 3, 39)]
    assert len(list(table.store.list("index"))) == 3, "that of the conflict is deleted"


def test_a_rewrite_meanwhile_is_a_conflict(tmp_path: Path) -> None:
    table = make(tmp_path)
    plan, found = deleted(table, 1)
    statement(table, lambda row: None if row["k"] == 2 else row, operation=Operation.DELETE)
    with pytest.raises(ConflictError, match="changed files"):
        commit_rewrite(table, found.messages, read=plan.scan, operation=Operation.DELETE)
    assert keys(table) == [k for k in range(ROWS) if k != 2]


def test_statements_that_are_taken_over_together_change_no_file(tmp_path: Path) -> None:
    table = make(tmp_path)
    head, working, before = table.latest_snapshot(), unpublished(table), files(table)
    assert head is not None
    delete(working, 1, 12)
    delete(working, 2)
    assert keys(table) == list(range(ROWS))
    staging = Staging(view=working, onto=table, head=head, schema=table.schema())
    take_over(staging, identity=CommitIdentity(), properties=lambda removed, added: {})
    assert keys(table) == [k for k in range(ROWS) if k not in (1, 2, 12)]
    assert files(table) == before and table.latest_snapshot_id() == head.id + 1


def test_a_position_beyond_the_file_is_refused(tmp_path: Path) -> None:
    table = make(tmp_path)
    plan = plan_copy_on_write(table)
    name = plan.scan.splits[0].files[0].file_name
    with pytest.raises(FormatError, match="position 10"):
        delete_rows(plan.scan, plan.write, {name: np.array([10], np.uint64)})


def test_where_it_is_done(tmp_path: Path) -> None:
    table = make(tmp_path)
    assert deletes_by_vectors(table.schema())
    for number, (options, keyed) in enumerate([
        ({"deletion-vectors.enabled": "false"}, False),
        ({"bucket": "2", "bucket-key": "k"}, False),
        ({"bucket": "2"}, True),
        ({"row-tracking.enabled": "true", "data-evolution.enabled": "true"}, False),
    ]):  # fmt: skip
        other = create_table(str(tmp_path), f"d.t{number}", [("k", "INT NOT NULL")],
                             primary_keys=["k"] if keyed else [], options=OPTIONS | options)  # fmt: skip
        assert not deletes_by_vectors(other.schema())


@pytest.mark.landing
@pytest.mark.oracle
@pytest.mark.parametrize("bitmap64", ["false", "true"])
def test_java_reads_and_compacts_what_is_left(java_oracle: JavaOracle, tmp_path: Path, bitmap64: str) -> None:
    table = make(tmp_path, **{"deletion-vectors.bitmap64": bitmap64})
    delete(table, 1, 2, 15, 30)
    assert_same_rows(read_arrow(table), java_oracle.read(tmp_path, "d.t"))
    delete(table, *range(3, 8))
    assert_same_rows(read_arrow(table), java_oracle.read(tmp_path, "d.t"))
    assert len(keys(table)) == ROWS - 9
    java_oracle.request("compact", warehouse=str(tmp_path), table="d.t")
    assert_same_rows(read_arrow(table), java_oracle.read(tmp_path, "d.t"))
    assert len(keys(table)) == ROWS - 9


@pytest.mark.oracle
def test_java_finds_the_vectors_of_a_partition_that_an_early_release_has_stored(
    java_oracle: JavaOracle, tmp_path: Path
) -> None:
    """It looks for them by the bytes of the partition; a null had others before Paimon 1.1."""
    columns = [("k", "INT"), ("ts", "TIMESTAMP(6)")]
    table = create_table(str(tmp_path), "d.t", columns, partition_keys=["ts"], options=OPTIONS)
    write_arrow(table, pa.table({"k": pa.array(range(10), pa.int32()), "ts": pa.nulls(10, pa.timestamp("us"))}))
    old = bytes.fromhex("000000010001000000000000") + bytes(8)
    entries = live_entries(table, table.latest_snapshot()).values()
    stored = [some for e in entries for some in (e.deleted(), e._replace(partition=old))]
    commit(table, lambda _: Draft(kind=CommitKind.OVERWRITE, entries=stored, schema=table.schema()))
    write_arrow(table, pa.table({"k": pa.array(range(20, 30), pa.int32()), "ts": pa.nulls(10, pa.timestamp("us"))}))
    assert len(plan_scan(table).splits) == 1 and len(set(live_columns(table, table.latest_snapshot()).partitions)) == 2
    delete(table, 3, 5, 27)
    assert keys(table) == [k for k in (*range(10), *range(20, 30)) if k not in (3, 5, 27)]
    assert_same_rows(read_arrow(table), java_oracle.read(tmp_path, "d.t"))
