"""Reads which keys are in the files of each dynamic bucket, for ``check_table`` and ``repair_table``."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

import numpy as np

from airflow_paimon.core.format.hash_index import Hashes, distinct
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.table.bucket import hash_rows
from airflow_paimon.core.table.scan import plan_snapshot
from airflow_paimon.core.table.stored_partitions import StoredPartitions
from airflow_paimon.core.table.table import Table
from airflow_paimon.data.merge.sections import Section
from airflow_paimon.data.read import read_stored
from airflow_paimon.data.scan import ReadSplit, TableRead, plan_read

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
    read, splits = plan_read(scan, time_travel=True, layered=True, whole_buckets=True)
    by_partition: dict[bytes, list[ReadSplit]] = {}
    for split in splits:
        by_partition.setdefault(stored.canonical(split.bucket.partition), []).append(split)
    for partition, found in sorted(by_partition.items()):
        yield partition, {s.bucket.bucket: _hashes(read, s) for s in found}


def _hashes(read: TableRead, split: ReadSplit) -> Hashes:
    fields = [read.schema.field(name) for name in read.schema.trimmed_primary_keys]
    parts: list[Hashes] = []
    for file in split.files:
        alone = replace(split, sections=(Section(((file,),)),), deletions=())
        for batch in read_stored(read, alone, fields):
            parts.append(hash_rows([batch.column(f.name) for f in fields], [f.type for f in fields]))
            if len(parts) >= _PENDING:
                parts = [distinct(np.concatenate(parts))]
    return distinct(np.concatenate(parts)) if parts else np.empty(0, np.int32)
