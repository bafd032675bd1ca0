"""What must hold of the hash indexes of a table with dynamic buckets, seen from its rows."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from airflow_paimon.core.format.hash_index import INDEX_TYPE, read_hash_index
from airflow_paimon.core.table.bucket import hash_rows
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table
from airflow_paimon.data.files.arrow_types import VALUE_KIND
from airflow_paimon.data.read import read_versions
from airflow_paimon.data.read_splits import plan_read

DYNAMIC = {"bucket": "-1", "dynamic-bucket.target-row-num": "4"}

SAME_HASH = ((244151170461, 108880350306), (818767994427, 613392597017), (134510933789, 379968236427))
"""Pairs of BIGINT keys with one hash, found by trying out 400,000."""


def indexed(table: Table) -> dict[tuple[Any, int], set[int]]:
    """The hashes in the index of each (partition values, bucket); one index file each."""
    plan = plan_scan(table)
    values = {s.partition: s.values for s in plan.splits}
    found: dict[tuple[Any, int], set[int]] = {}
    for entry in plan.index_entries:
        if entry.index_type == INDEX_TYPE:
            key = (values.get(entry.partition, entry.partition), entry.bucket)
            assert key not in found, f"two hash indexes of {key}"
            data = table.store.read(f"index/{entry.file_name}")
            assert entry.file_size == len(data)
            hashes = read_hash_index(data, entry.row_count, name=entry.file_name).tolist()
            found[key] = set(hashes)
            assert len(found[key]) == len(hashes)
    return found


def check_indexes(table: Table) -> dict[tuple[Any, int], set[int]]:
    """Every key of every file, deletes included, is in its bucket's index, and in that of no other bucket."""
    found = indexed(table)
    homes: dict[tuple[Any, int], set[int]] = defaultdict(set)
    for (partition, bucket), hashes in found.items():
        for one in hashes:
            homes[partition, one].add(bucket)
    assert not {k: b for k, b in homes.items() if len(b) > 1}
    read, splits = plan_read(plan_scan(table))
    fields = [read.schema.field(n) for n in read.schema.trimmed_primary_keys]
    for split in splits:
        for batch in read_versions(read, split):
            assert VALUE_KIND in batch.schema.names
            keys = hash_rows([batch.column(f.name) for f in fields], [f.type for f in fields])
            mine = np.array(sorted(found.get((split.bucket.values, split.bucket.bucket), ())), np.int32)
            assert np.isin(keys, mine).all(), f"keys of {split.bucket.values}, bucket {split.bucket.bucket}"
    return found
