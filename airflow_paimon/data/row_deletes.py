"""Deletes rows of an append table by deletion vectors: no data file is written again.

As Paimon does where ``deletion-vectors.enabled`` is set: a file's vector has all of its deleted rows, those of before
as well; a file of which no row is left is taken away.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from airflow_paimon.core.commit.draft import CommitMessage
from airflow_paimon.core.errors import FormatError, UnsupportedFeatureError
from airflow_paimon.core.format.deletion_vectors import MAX_POSITION_32, Positions, write_deletion_vectors
from airflow_paimon.core.format.manifest import DataFile, IndexEntry
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.table.live_entries import live_columns
from airflow_paimon.core.table.live_files import BucketSplit
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.paths import INDEX_DIR
from airflow_paimon.core.table.reachability import find_deletion_vectors
from airflow_paimon.core.table.scan import ScanPlan
from airflow_paimon.data.copy_on_write import replacing_message
from airflow_paimon.data.read import load_deletions
from airflow_paimon.data.read_splits import deletions_of
from airflow_paimon.data.write import TableWrite, discard_files

VECTORS = "DELETION_VECTORS"


def deletes_by_vectors(schema: TableSchema) -> bool:
    """Whether rows of the table are deleted by vectors.

    Not in buckets, of which Paimon expects one index file each, and not in tables whose rows lie in several files.
    """
    options = TableOptions(schema.options)
    plain = not schema.primary_keys and options.bucket <= 0 and not options.data_evolution
    return plain and options.deletion_vectors and not options.flag("index-file-in-data-file-dir")


@dataclass(frozen=True, slots=True, kw_only=True)
class RowDeletes:
    """``messages``: the index files, and the files that are taken away; ``files``: how many keep a vector."""

    messages: tuple[CommitMessage, ...]
    rows: int
    files: int


def delete_rows(
    scan: ScanPlan, write: TableWrite, deleted: Mapping[str, Positions], *, dry_run: bool = False
) -> RowDeletes:
    """Write the vectors of files with these rows deleted besides those of before.

    ``deleted``: positions by the name of the file, ascending and each once; none of them is deleted already.

    Raises:
        FormatError: a position beyond the end of its file. UnsupportedFeatureError: two of the files have one name.
    """
    named = [(s, f) for s in scan.splits for f in s.files if f.file_name in deleted]
    files = {f.file_name: (s, f) for s, f in named}
    if len(files) != len(named):
        raise two_of_one_name(scan.table.label)
    known = deletions_of(find_deletion_vectors(scan.index_entries, scan.schema), [f for _, f in files.values()])
    before = load_deletions(scan.table.store, known)
    stored = stored_partitions(scan, [s for s, _ in named])
    gone: list[CommitMessage] = []
    marked: dict[bytes, tuple[BucketSplit, dict[str, Positions]]] = {}
    for name, positions in deleted.items():
        split, file = files[name]
        vector = np.union1d(before.get(name, np.empty(0, np.uint64)), positions)
        _check(file, vector, scan.table.label)
        if len(vector) == file.row_count:
            gone.append(replacing_message(split, file))
        elif len(vector):
            split = replace(split, partition=stored.get(name, split.partition))
            marked.setdefault(split.partition, (split, {}))[1][name] = vector
    rows = sum(map(len, deleted.values()))
    count = sum(len(vectors) for _, vectors in marked.values())
    if dry_run:
        return RowDeletes(messages=(), rows=rows, files=count)
    return RowDeletes(messages=(*gone, *_written(write, marked.values())), rows=rows, files=count)


def stored_partitions(scan: ScanPlan, splits: Iterable[BucketSplit]) -> dict[str, bytes]:
    """Return how the partition of each file is stored, by which Java finds the vectors of the file, and the rows that
    it merges with those of the file. Partitions without a null or NaN have one form, that of their split, and are left
    out.
    """
    several = [s.partition for s in splits if any(value is None or value != value for value in s.values)]
    if not several:
        return {}
    live = live_columns(scan.table, scan.snapshot, StoredPartitions(scan.schema).those(several))
    return dict(zip(live.file_names, live.partitions, strict=True))


def two_of_one_name(label: str) -> UnsupportedFeatureError:
    return UnsupportedFeatureError(f"{label}: two data files have the same name, so their rows can't be distinguished")


def _check(file: DataFile, vector: Positions, label: str) -> None:
    if len(vector) and int(vector[-1]) >= min(file.row_count, MAX_POSITION_32 + 1):
        raise FormatError(
            f"{label}: data file {file.file_name} has {file.row_count} rows by its manifest, and a row at position "
            f"{vector[-1]}, which can't be deleted; run check_table"
        )


def _written(write: TableWrite, marked: Iterable[tuple[BucketSplit, Mapping[str, Positions]]]) -> list[CommitMessage]:
    bits64 = TableOptions(write.schema.options).flag("deletion-vectors.bitmap64")
    done: list[CommitMessage] = []
    stamp = uuid.uuid4()
    try:
        for split, vectors in marked:
            data, ranges = write_deletion_vectors(vectors, bits64=bits64)
            name = f"index-{stamp}-{len(done)}"
            write.store.create(f"{INDEX_DIR}/{name}", data)
            entry = IndexEntry(0, split.partition, split.bucket, VECTORS, name, len(data), len(ranges), ranges)
            done.append(CommitMessage(partition=split.partition, bucket=split.bucket, total_buckets=split.total_buckets,
                                      new_files=(), index=entry))  # fmt: skip
    except BaseException:
        discard_files(write, done)
        raise
    return done
