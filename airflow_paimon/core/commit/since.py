"""What was committed since a write was planned, and which of it matters for tables with dynamic buckets.

Entries of a hash index take no part in Paimon's search for conflicts, and the last writer's replaces the others': two
writers that meet would put a key into two buckets. So a write here holds only where nothing has been committed to its
partitions since it was planned. See docs/format.md, Dynamic buckets.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from airflow_paimon.core.errors import FormatError, NotFoundError
from airflow_paimon.core.format.hash_index import INDEX_TYPE
from airflow_paimon.core.format.manifest import IndexEntry, ManifestEntry
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partitions import Selection, StoredPartitions
from airflow_paimon.core.table.properties import KEYS_PROPERTY
from airflow_paimon.core.table.scan import live_entries, read_delta_lists, read_index, selected_entries
from airflow_paimon.core.table.table import Table

if TYPE_CHECKING:
    from airflow_paimon.core.commit.draft import CommitMessage


KEYS_STAY = {KEYS_PROPERTY: "stay"}
"""Snapshot property of a commit after which every key that is left is in the bucket that it was in."""


def entries_since(
    table: Table, planned: Snapshot | None, head: Snapshot, selection: Selection
) -> Iterable[ManifestEntry]:
    """Entries committed after ``planned``; all live entries when a snapshot in between has expired."""
    first = planned.id if planned is not None else 1
    try:
        between = table.snapshots(list(range(first, head.id)))
    except NotFoundError:
        return live_entries(table, head, selection).values()
    if planned is not None and (head.id <= planned.id or between.pop(0).identity != planned.identity):
        return live_entries(table, head, selection).values()
    return selected_entries(table, read_delta_lists(table, [*between, head]), selection)


def has_dynamic_buckets(schema: TableSchema) -> bool:
    """Return whether each new key gets a bucket that the next writer has to find again: in an index, or, where the key
    does not tell the partition (``has_moving_keys``), among the keys of the whole table."""
    return bool(schema.primary_keys) and TableOptions(schema.options).bucket == -1


def has_moving_keys(schema: TableSchema) -> bool:
    """Return whether a key has one row in the whole table, and a write may move it to another partition."""
    return schema.crosses_partitions and has_dynamic_buckets(schema)


def with_hash_indexes_of(
    schema: TableSchema, index: Iterable[IndexEntry], messages: Sequence[CommitMessage]
) -> list[IndexEntry]:
    """Put the hash indexes of the messages in place of those of the same buckets."""
    identity = StoredPartitions(schema).identity
    new = {(identity(m.partition), m.bucket): m.index for m in messages if m.index is not None}
    kept = [i for i in index if i.index_type != INDEX_TYPE or (identity(i.partition), i.bucket) not in new]
    return [*kept, *new.values()]


def hash_indexes(table: Table, snapshot: Snapshot | None, selection: Selection) -> set[tuple[int, str]]:
    """Return bucket and name of the hash indexes of some partitions; what differs from all if they can't be read."""
    try:
        found = read_index(table, snapshot)
    except FormatError:  # expired meanwhile
        return {(-1, "")}
    return {(i.bucket, i.file_name) for i in found if i.index_type == INDEX_TYPE and selection(i.partition)}
