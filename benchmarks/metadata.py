"""The cost of metadata operations on a large table: create_branch, a poke, merge_branch; seconds, store calls, bytes.

The table is synthetic: 100,000 files in few manifests, and a given number of snapshot files. These operations read and
write no data files, as the counts of the store show; the changed files exist as placeholders.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from airflow_paimon.core.commit.committer import commit
from airflow_paimon.core.commit.draft import CommitMessage, Draft
from airflow_paimon.core.commit.files import commit_buckets
from airflow_paimon.core.format.binary_row import encode_row
from airflow_paimon.core.format.manifest import EMPTY_STATS, DataFile, ManifestEntry
from airflow_paimon.core.format.snapshot import CommitKind
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import Context
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.data_file_paths import bucket_folder
from airflow_paimon.core.table.partitions import Selection, StoredPartitions
from airflow_paimon.core.table.table import Table
from airflow_paimon.execution import perform
from tests.stores import CountingStore

PARTITIONS, BUCKETS, FILES = 1000, 10, 100_000


def make_empty_table(warehouse: Path) -> Table:
    """Make a primary-key table, by day."""
    return create_table(
        str(warehouse),
        "d.big",
        [("k", "BIGINT NOT NULL"), ("v", "STRING"), ("dt", "STRING NOT NULL")],
        partition_keys=["dt"],
        primary_keys=["dt", "k"],
        options={"bucket": str(BUCKETS)},
    )


def make_large_table(warehouse: Path, files: int, snapshots: int) -> Table:
    """Make a primary-key table with that many live files and snapshot files."""
    table = make_empty_table(warehouse)
    schema = table.schema()
    types, key = schema.partition_types, encode_row((1,), (schema.field("k").type,))
    entries = []
    for i in range(files):
        partition = encode_row((f"day-{i % PARTITIONS:04d}",), types)
        entries.append(ManifestEntry(0, partition, (i // PARTITIONS) % BUCKETS, BUCKETS, new_file(i, key)))
    commit(table, lambda head: Draft(kind=CommitKind.APPEND, entries=entries, schema=schema))
    first = table.snapshot(1)
    for i in range(2, snapshots + 1):
        path = Path(table.store.uri.removeprefix("file://")) / "snapshot" / f"snapshot-{i}"
        path.write_bytes(replace(first, id=i, uuid=str(uuid.uuid4())).to_bytes())
    table.store.replace("snapshot/LATEST", str(snapshots).encode())
    return table


def new_file(number: int, key: bytes) -> DataFile:
    return DataFile(f"data-{uuid.uuid4()}-0.parquet", 1000, 10, key, key, EMPTY_STATS, EMPTY_STATS, number, number + 9,
                    0, 0, file_source=0, delete_row_count=0, value_stats_cols=())  # fmt: skip


def change_files(table: Table, count: int, selection: Selection | None = None) -> None:
    """Rewrite ``count`` files of a branch, whole buckets at a time; old and new files exist as placeholders.

    ``selection``: partitions that have so many files, of a large table.
    """
    from airflow_paimon.core.table.live_entries import live_entries

    schema = table.schema()
    live = live_entries(table, table.latest_snapshot(), selection).values()
    groups = list(StoredPartitions(schema).by_bucket(live).items())
    messages = []
    for bucket, entries in groups[: count // len(groups[0][1])]:
        new = tuple(new_file(0, e.file.min_key)._replace(max_sequence_number=0, min_sequence_number=0) for e in entries)
        day = _day(bucket.partition)
        for file in (*new, *(e.file for e in entries)):
            table.store.create(f"{bucket_folder(schema, (day,), bucket.bucket)}/{file.file_name}", b"x")
        messages.append(
            CommitMessage(partition=bucket.partition, bucket=bucket.bucket, total_buckets=BUCKETS, new_files=new,
                          replaced=tuple(e.file for e in entries))
        )  # fmt: skip
    commit_buckets(table, messages)


def _day(partition: bytes) -> str:
    from airflow_paimon.core.format.binary_row import decode_row
    from airflow_paimon.core.format.types import AtomicType

    return str(decode_row(partition, (AtomicType("STRING"),))[0])


def measured(table: Table, operation: str, **values: object) -> tuple[float, CountingStore, object]:
    """Run an operation on a counting store; seconds without opening the table."""
    warehouse = table.store.uri.removeprefix("file://").rsplit("/", 2)[0]
    request = build_request(operation, {"warehouse": warehouse, "table": table.name, **values})
    store = CountingStore(table.store)
    context = Context(request, Table(store, table.name), int(time.time() * 1000), time.monotonic())
    started = time.perf_counter()
    result = perform(context, request)
    return time.perf_counter() - started, store, result


def _tally(store: CountingStore) -> str:
    tally = store.tally
    mega = f"{tally.bytes_read / 1e6:.2f} MB read, {tally.bytes_written / 1e6:.2f} MB written"
    return f"{tally.requests} store requests, {mega}"


def bench_create_branch(table: Table, snapshots: int) -> None:
    """Time create_branch from a tag, best and median of 7."""
    measured(table, "create_tag", tag="base")
    times, store = [], None
    for i in range(7):
        seconds, store, _ = measured(table, "create_branch", branch=f"b{i}", tag="base")
        times.append(seconds * 1000)
    assert store is not None
    print(f"create_branch, {snapshots} snapshots, {FILES} files: best {min(times):.1f} ms, median "
          f"{statistics.median(times):.1f} ms, {_tally(store)} (goal: 20 ms, 25 calls)")  # fmt: skip


def bench_poke(table: Table, snapshots: int) -> None:
    """Count the reads of one poke with a correct LATEST hint."""
    store = CountingStore(table.store)
    started = time.perf_counter()
    Table(store, table.name).hinted_snapshot()
    print(
        f"poke, {snapshots} snapshots: {(time.perf_counter() - started) * 1000:.2f} ms, {_tally(store)} (goal: 3 reads)"
    )


def bench_merge(table: Table) -> None:
    """Publish 1,000 changed files among 100,000."""
    measured(table, "create_branch", branch="fix", tag="base")
    change_files(table.branch("fix"), 1000)
    seconds, store, result = measured(table, "merge_branch", branch="fix")
    details = result.details  # type: ignore[attr-defined]
    what = f"{details['files_added']} of {FILES} files changed in {details['buckets']} buckets"
    print(f"merge_branch, {what}: {seconds:.2f} s, {_tally(store)}")


def bench_rollback(table: Table) -> None:
    """Undo it: files are restored, so the base manifests are rewritten."""
    undo = next(n for n in table.tag_names() if "undo" in n)
    seconds, store, _ = measured(table, "rollback_to", tag=undo)
    print(f"rollback_to of it (files come back, base manifests rewritten): {seconds:.2f} s, {_tally(store)}")


def main() -> None:
    """Print all figures."""
    run: list[Callable[[], None]] = []
    with tempfile.TemporaryDirectory() as folder:
        for snapshots in (10, 100_000):
            bench_poke(make_large_table(Path(folder) / f"poke{snapshots}", 100, snapshots), snapshots)
        big = make_large_table(Path(folder) / "big", FILES, 10_000)
        run = [lambda: bench_create_branch(big, 10_000), lambda: bench_merge(big), lambda: bench_rollback(big)]
        for step in run:
            step()
    sys.stdout.flush()


if __name__ == "__main__":
    main()
