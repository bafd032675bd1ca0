"""Reads keys and row ids of all files, for ``check_table`` and ``repair_table``."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_paimon.core.format.hash_index import Hashes, distinct
from airflow_paimon.core.format.manifest import DataFile
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.table.bucket import hash_rows
from airflow_paimon.core.table.live_files import BucketKey
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.scan import plan_snapshot
from airflow_paimon.core.table.table import Table
from airflow_paimon.core.table.visibility import has_unique_keys, is_clustered
from airflow_paimon.data.files.arrow_types import ROW_ID
from airflow_paimon.data.key_locations import KeyLocations
from airflow_paimon.data.merge.sections import plan_sections, unmerged
from airflow_paimon.data.read import read_split, read_stored
from airflow_paimon.data.read_splits import ReadSplit, TableRead, plan_read

_PENDING = 64
"""Batches whose hashes are kept apart."""


def key_hashes(
    view: Table, head: Snapshot, partitions: Collection[bytes] | None = None
) -> Iterator[tuple[bytes, dict[int, Hashes]]]:
    """Return of each partition (in canonical form; None: all) the hashes of all keys in the files of each bucket, of
    every level, deleted rows included. One partition is in memory, with 4 bytes a key.

    Raises:
        FormatError: a file is missing or corrupt. UnsupportedFeatureError: a table that this engine does not read.
    """
    schema = view.schema()
    stored = StoredPartitions(schema)
    scan = plan_snapshot(view, head, schema, None if partitions is None else stored.those(partitions))
    read, splits = plan_read(scan, layered=True, whole_buckets=True)
    by_partition: dict[bytes, list[ReadSplit]] = {}
    for split in splits:
        by_partition.setdefault(stored.canonical(split.bucket.partition), []).append(split)
    for partition, found in sorted(by_partition.items()):
        yield partition, {s.bucket.bucket: _hashes(read, s) for s in found}


def _hashes(read: TableRead, split: ReadSplit) -> Hashes:
    fields = [read.schema.field(name) for name in read.schema.trimmed_primary_keys]
    parts: list[Hashes] = []
    for file in split.files:
        alone = replace(split.of(unmerged([file])), deletions=())
        for batch in read_stored(read, alone, fields):
            parts.append(hash_rows([batch.column(f.name) for f in fields], [f.type for f in fields]))
            if len(parts) >= _PENDING:
                parts = [distinct(np.concatenate(parts))]
    return distinct(np.concatenate(parts)) if parts else np.empty(0, np.int32)


def keys_twice(view: Table, head: Snapshot) -> Iterator[tuple[BucketKey, str | None]]:
    """Return the buckets of which a batch read gives a key twice, with one such key; None: it has too many keys.

    Files whose ranges of keys don't overlap are not read.

    Raises:
        FormatError: a file is missing or corrupt. UnsupportedFeatureError: a table that this engine does not read.
    """
    schema = view.schema()
    bucket_of = StoredPartitions(schema).bucket
    read, splits = plan_read(plan_snapshot(view, head, schema), columns=schema.primary_keys, layered=True)
    for split in (s for s in splits if has_unique_keys(s.files, schema)):
        # files that another engine clustered by other columns have ranges of these
        sections = [] if is_clustered(schema) else plan_sections(split.files, schema)
        suspects = [f for s in sections if s.needs_merge for f in s.files] if sections else split.files
        bucket = bucket_of(split.bucket)
        if sum(f.row_count for f in suspects) > MAX_ROWS:
            yield bucket, None
            continue
        of_files = ((BucketKey(bucket.partition, n), _rows_of(read, split, f)) for n, f in enumerate(suspects))
        for key, _, _ in KeyLocations(schema, of_files).duplicates(1):
            yield bucket, key


def _rows_of(read: TableRead, split: ReadSplit, file: DataFile) -> list[pa.RecordBatch]:
    return list(read_split(read, split.of(unmerged([file]))))


MAX_ROWS = 50_000_000
"""Ids or keys to compare at once: ids are 800 MB with their files."""
_LISTED = 100


def duplicate_row_ids(
    view: Table, head: Snapshot, files: Sequence[DataFile], limit: int = MAX_ROWS
) -> dict[int, list[str]] | None:
    """Return up to 100 ids that several visible rows of these files have, and the names of their files; None: too many
    rows.

    Raises:
        FormatError: a file is missing or corrupt.
    """
    if sum(f.row_count for f in files) > limit:
        return None
    wanted = {f.file_name for f in files}
    scan = plan_snapshot(view, head, view.schema())
    chosen = [replace(s, files=tuple(f for f in s.files if f.file_name in wanted)) for s in scan.splits]
    read, splits = plan_read(replace(scan, splits=tuple(s for s in chosen if s.files)), columns=[ROW_ID], layered=True)
    names: list[str] = []
    ids: list[npt.NDArray[np.int64]] = []
    for part in (p for s in splits for p in s.divided()):
        found = [batch.column(0).to_numpy() for batch in read_split(read, part)]
        names.append(part.files[0].file_name)
        ids.append(np.concatenate(found) if found else np.empty(0, np.int64))
    every = np.concatenate(ids)
    owner = np.repeat(np.arange(len(ids)), [len(i) for i in ids])
    order = np.argsort(every, kind="stable")
    every, owner = every[order], owner[order]
    duplicates = np.unique(every[1:][every[1:] == every[:-1]])[:_LISTED]
    return {int(i): [names[n] for n in owner[every == i]] for i in duplicates}
