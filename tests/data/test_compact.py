"""compact: fewer files, the same rows with the same ids and versions."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_paimon.core.commit.draft import CommitMessage
from airflow_paimon.core.commit.files import commit_append
from airflow_paimon.core.errors import FormatError, InvalidInputError, PaimonError, UnsupportedFeatureError
from airflow_paimon.core.format.snapshot import CommitKind
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import OperationResult, open_context
from airflow_paimon.core.requests.requests import Compact
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.bucket import bucket_of_rows
from airflow_paimon.core.table.data_file_paths import data_file_path
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.manifest_entries import read_index_entries
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.data import read_arrow, write_arrow
from airflow_paimon.data.compact import compact
from airflow_paimon.data.compaction_tasks import CompactionTask, TaskOutput, Workers, run_here
from tests.data.row_statements import statement, with_ids
from tests.data.test_copy_on_write import STORED, delta, described, insert, make, renamed, without
from tests.oracles.golden import golden_index

Golden = Callable[[str], Path]


def run(table: Table, tasks: Any = run_here, **values: Any) -> OperationResult:
    warehouse = table.store.uri.removeprefix("file://").rsplit("/", 2)[0]
    request = build_request("compact", {"warehouse": warehouse, "table": table.name, **values})
    assert isinstance(request, Compact)
    return compact(open_context(request), request, Workers(tasks))


def names(table: Table) -> set[str]:
    return {e.file.file_name for e in live_entries(table, table.latest_snapshot()).values()}


def test_the_connectors_own_compaction(tmp_path: Path) -> None:
    """Rows of a stored and a plain file, one of them with a null version: as sys.compact leaves them."""
    table = make(tmp_path)
    insert(table, (1, "a"))
    insert(table, (2, "b"))
    insert(table, (3, "c"))
    statement(table, renamed(i2="B"))
    statement(table, without(1), operation="DELETE")
    statement(table, renamed(i3="cc"), [{"id": 7, "name": "g"}], operation="MERGE")
    before = with_ids(table)
    result = run(table, min_files=2)
    assert with_ids(table) == before == [(2, "B", 1, 4), (3, "cc", 2, 6), (7, "g", 3, 6)]
    head = table.latest_snapshot()
    assert head is not None
    assert (head.commit_kind, head.operation, head.next_row_id) == (CommitKind.COMPACT, None, 4)
    [new], old = delta(table)
    assert described(new) == (3, 4, 6, None, STORED, 1)
    assert len(old) == 3
    assert result.details["files_before"] == 3 and result.details["files_after"] == 1
    assert result.details["snapshots"] == [head.id] and result.details["rows"] == 3
    insert(table, (8, "h"))
    assert with_ids(table)[-1] == (8, "h", 4, 8)
    assert not run(table, min_files=3).changed


def test_lives_of_the_connector(golden: Golden, tmp_path: Path) -> None:
    """Deletion vectors, ORC files, stored and plain ones: the rows that are left, with their ids and versions."""
    shutil.copytree(golden("row-tracking-fuzz") / "wh", tmp_path / "wh")
    changed = 0
    for life in golden_index("row-tracking-fuzz"):
        table = open_table(str(tmp_path / "wh"), life["table"])
        if "data-evolution.enabled" in life["options"]:
            with pytest.raises(UnsupportedFeatureError, match=r"data-evolution\.enabled"):
                run(table)
            continue
        before = with_ids(table)
        changed += run(table, min_files=2).changed
        assert with_ids(table) == before
        index = read_index_entries(table, table.latest_snapshot())
        assert not [r for e in index for r in e.deletion_vector_ranges or ()]
        assert not run(table, min_files=2).changed or len(names(table)) > 1
    assert changed > 8


def partitioned(folder: Path, **options: str) -> Table:
    columns = [("id", "INT"), ("dt", "STRING")]
    return create_table(str(folder / "wh"), "d.p", columns, partition_keys=["dt"], options={"bucket": "-1", **options})


def add(table: Table, *pairs: tuple[int, str]) -> None:
    write_arrow(table, pa.table({"id": pa.array([i for i, _ in pairs], pa.int32()), "dt": [d for _, d in pairs]}))


def rows_of(table: Table) -> list[tuple[Any, ...]]:
    return sorted(tuple(r.values()) for r in read_arrow(table).to_pylist())


def test_only_partitions_that_were_chosen_or_have_enough_small_files(tmp_path: Path) -> None:
    table = partitioned(tmp_path)
    for i in range(6):
        add(table, (i, "a"), (10 + i, "b"))
    add(table, (99, "c"))
    before = rows_of(table)
    head = table.latest_snapshot_id()
    planned = run(table, dry_run=True)
    assert (planned.changed, planned.details["partition_names"]) == (True, ["dt=a", "dt=b"])
    assert planned.details["files_before"] == 12
    assert table.latest_snapshot_id() == head
    assert run(table, partitions=["dt=b"]).details["partition_names"] == ["dt=b"]
    assert len(names(table)) == 6 + 1 + 1
    assert not run(table, min_files=7).changed
    assert run(table).details["files_after"] == 1
    assert len(names(table)) == 3
    assert rows_of(table) == before


def test_files_grow_up_to_the_target_size(tmp_path: Path) -> None:
    table = partitioned(tmp_path, **{"target-file-size": "20 kb"})
    for i in range(12):
        ids = pa.array(range(i * 1000, i * 1000 + 1000), pa.int32())
        write_arrow(table, pa.table({"id": ids, "dt": ["a"] * 1000}))
    sizes = [e.file.file_size for e in live_entries(table, table.latest_snapshot()).values()]
    result = run(table)
    assert 1 < result.details["files_after"] < 12
    assert len(result.details["snapshots"]) > 1  # in this process each group of files is a commit
    for entry in live_entries(table, table.latest_snapshot()).values():
        assert entry.file.file_size <= 20_480 + max(sizes)
    assert [i for i, _ in rows_of(table)] == list(range(12_000))


def test_files_that_another_commit_changed_are_planned_again(tmp_path: Path) -> None:
    table = make(tmp_path)
    for i in range(6):
        insert(table, (i, "x"))
    raced = []

    def beside(works: Sequence[CompactionTask]) -> Iterator[TaskOutput]:
        yield from run_here(works)
        if not raced:
            raced.append(statement(table, renamed(i3="new")))
            insert(table, (7, "later"))

    result = run(table, beside)
    assert [r[1] for r in with_ids(table)] == ["x", "x", "x", "new", "x", "x", "later"]
    assert (with_ids(table)[3], with_ids(table)[-1]) == ((3, "new", 3, 7), (7, "later", 6, 8))
    assert len(names(table)) == 1
    assert result.details["files_before"] == 7
    folder = tmp_path / "wh" / "d.db" / "t" / "bucket-0"
    assert len(list(folder.iterdir())) == 6 + 1 + 1 + 1  # the files of the try that lost are deleted


def test_a_retry_goes_on_and_counts_what_landed(tmp_path: Path) -> None:
    table = partitioned(tmp_path)
    for i in range(6):
        add(table, (i, "a"), (10 + i, "b"))
    calls = []

    def fails_later(works: Sequence[CompactionTask]) -> Iterator[TaskOutput]:
        calls.append(works)
        if len(calls) > 1:
            raise FormatError("killed")
        return run_here(works)

    with pytest.raises(PaimonError) as failed:
        run(table, fails_later, operation_id="op")
    [first] = failed.value.details["done"]
    result = run(table, operation_id="op")
    assert result.details["snapshots"] == [first, first + 1]
    assert (result.details["files_before"], result.details["files_after"], result.details["partitions"]) == (12, 2, 2)
    again = run(table, operation_id="op")
    assert again.details == result.details and again.changed
    assert len(rows_of(table)) == 12


def test_partitions_that_do_not_exist_are_refused(tmp_path: Path) -> None:
    table = partitioned(tmp_path)
    with pytest.raises(InvalidInputError, match="day"):
        run(table, partitions=["day=1"])
    assert not run(table, partitions=["dt=1"]).changed


def buckets_in_order(table: Table) -> dict[tuple[bytes, int], list[tuple[Any, ...]]]:
    """The rows of each bucket in the order of its files, whose sequence numbers must not overlap."""
    out: dict[tuple[bytes, int], list[tuple[Any, ...]]] = {}
    for split in plan_scan(table).splits:
        files = sorted(split.files, key=lambda f: f.min_sequence_number)
        for one, other in pairwise(files):
            assert one.max_sequence_number < other.min_sequence_number
        folder = Path(table.store.uri.removeprefix("file://"))
        paths = [folder / data_file_path(table.schema(), split.values, split.bucket, f) for f in files]
        rows = [r for p in paths for r in pq.read_table(p).to_pylist()]
        assert len(rows) == files[-1].max_sequence_number + 1 - files[0].min_sequence_number
        keys = pa.chunked_array([pa.array([r["id"] for r in rows], pa.int32())])
        assert set(bucket_of_rows([keys], [table.schema().field("id").type], 2).tolist()) == {split.bucket}
        out[split.partition, split.bucket] = [tuple(r.values()) for r in rows]
    return out


@pytest.mark.parametrize("target", ["128 mb", "3 kb"])
def test_fixed_buckets_keep_the_order_of_their_rows(tmp_path: Path, target: str) -> None:
    """Readers of an append table with buckets get a bucket's rows in the order in which they were written."""
    options = {"bucket": "2", "bucket-key": "id", "target-file-size": target}
    table = partitioned(tmp_path, **options)
    rng = random.Random(7)
    for number in range(14):
        keys = [rng.randrange(10_000) for _ in range(600 if number in (4, 5, 9) else 20)]
        add(table, *((k, rng.choice("ab")) for k in keys))
    before, files = buckets_in_order(table), names(table)
    assert run(table, dry_run=True).changed
    result = run(table)
    assert result.changed and result.details["rows"] <= sum(map(len, before.values()))
    assert buckets_in_order(table) == before
    assert len(names(table)) < len(files)
    add(table, (1, "a"), (2, "a"), (3, "b"), (4, "b"), (5, "b"))
    after = buckets_in_order(table)
    assert {k: rows[: len(before[k])] for k, rows in after.items()} == before
    assert table.snapshot(result.details["snapshots"][0]).commit_kind == CommitKind.COMPACT


def wrong_count(folder: Path) -> Table:
    """A table with a file whose manifest says one row too many."""
    table = make(folder)
    for i in range(5):
        insert(table, (i, "x"))
    entry = next(iter(live_entries(table, table.latest_snapshot()).values()))
    data = folder / "wh" / "d.db" / "t" / "bucket-0"
    shutil.copy(data / entry.file.file_name, data / "copy.parquet")
    wrong = entry.file._replace(file_name="copy.parquet", row_count=2, first_row_id=None)
    commit_append(
        table,
        [CommitMessage(partition=entry.partition, bucket=0, total_buckets=-1, new_files=(wrong,))],
        planned_on=None,
    )
    return table


def test_files_with_fewer_rows_than_their_manifest_says_are_not_replaced(tmp_path: Path) -> None:
    table = wrong_count(tmp_path)
    with pytest.raises(FormatError, match="have 6 rows instead of the 7 in their manifest"):
        run(table)
    assert table.latest_snapshot_id() == 6
    assert len(list((tmp_path / "wh" / "d.db" / "t" / "bucket-0").iterdir())) == 6
