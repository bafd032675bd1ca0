"""All files of some buckets in one state: what a merge by key, or the changelog of a publish, reads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from airflow_paimon.core.format.manifest import IndexEntry, ManifestEntry
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.publish.bucket_merge_plan import highest_sequence
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.live_files import BucketKey, BucketSplit
from airflow_paimon.core.table.manifest_entries import read_index_entries
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketFiles:
    """``index``: index entries, also of other buckets. ``schemas``: those of the files, by id."""

    entries: Mapping[BucketKey, Sequence[ManifestEntry]]
    index: Sequence[IndexEntry]
    schemas: Mapping[int, TableSchema] = field(default_factory=dict)

    @property
    def schema_ids(self) -> set[int]:
        return {e.file.schema_id for group in self.entries.values() for e in group}

    def with_schemas(self, schema_of: Callable[[int], TableSchema]) -> BucketFiles:
        """Return it with the schemas of its files."""
        return replace(self, schemas={i: schema_of(i) for i in self.schema_ids})

    def splits(self, schema: TableSchema) -> list[BucketSplit]:
        values = StoredPartitions(schema).values
        return [
            BucketSplit(
                b.partition, values(b.partition), b.bucket, group[0].total_buckets, tuple(e.file for e in group)
            )
            for b, group in sorted(self.entries.items())
        ]

    @property
    def highest_numbers(self) -> dict[BucketKey, int]:
        return {b: highest_sequence([e.file for e in group]) for b, group in self.entries.items()}

    @property
    def content(self) -> object:
        """What tells this state of the buckets from another one."""
        names = frozenset(e.identifier for group in self.entries.values() for e in group)
        return names, frozenset(self.index)


def read_bucket_files(
    view: Table, snapshot: Snapshot, buckets: Collection[BucketKey], schema: TableSchema
) -> BucketFiles:
    """Read the files of some buckets in a snapshot of a branch. ``schema``: of the table, for its partitions."""
    stored = StoredPartitions(schema)
    chosen = stored.those({b.partition for b in buckets})
    live = live_entries(view, snapshot, chosen) if snapshot.id and buckets else {}
    found = stored.by_bucket(live.values())
    index = [i for i in read_index_entries(view, snapshot) if stored.bucket(i) in buckets]
    return BucketFiles(entries={b: group for b, group in found.items() if b in buckets}, index=index)


def joined_files(states: Iterable[BucketFiles]) -> BucketFiles:
    """Return the state of buckets of which each is in one of these states."""
    parts = list(states)
    return BucketFiles(
        entries={b: group for part in parts for b, group in part.entries.items()},
        index=[i for part in parts for i in part.index],
    )
