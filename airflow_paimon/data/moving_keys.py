"""Keeps one row of each key in a table whose primary key does not tell the partition (dynamic buckets).

What a write has put into its files is compared with where the keys live: the driver reads the keys of the new files
again, as only it sees what all tasks have written. An upsert deletes a key where it lives and inserts it anew, as
Paimon's does; an overwrite or a correction of a key that another partition keeps is refused. The commit of all of them
holds on an unchanged table only. See docs/contributing/format.md, Dynamic buckets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_paimon.core.commit.conditions import has_moving_keys
from airflow_paimon.core.commit.draft import CommitMessage
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.table.live_files import BucketKey, BucketSplit
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partition_values import parse_partition_spec
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.scan import ScanPlan
from airflow_paimon.core.table.table import Table
from airflow_paimon.data.dynamic_buckets import with_hash_indexes
from airflow_paimon.data.files.arrow_types import SEQUENCE_FIELD, VALUE_KIND, VALUE_KIND_FIELD, with_partition
from airflow_paimon.data.files.write import abandoned_on_failure
from airflow_paimon.data.key_locations import KeyLocations, RowNumbers, read_key_locations
from airflow_paimon.data.merge.rules import merge_rules
from airflow_paimon.data.merge.versions import DELETE, is_retract
from airflow_paimon.data.read import read_stored
from airflow_paimon.data.read_splits import ReadSplit, TableRead, plan_read
from airflow_paimon.data.write import BucketWriter, TableWrite, WriteMode


def complete_messages(
    table: Table, write: TableWrite, messages: Sequence[CommitMessage], mode: WriteMode
) -> list[CommitMessage]:
    """Return what a write commits: with the new hash indexes of dynamic buckets, or, where keys may move between
    partitions, with the deletes of the keys that were elsewhere.

    Raises:
        InvalidInputError: a key would have two rows; it is named, and both partitions.
    """
    messages = with_hash_indexes(write.dynamic, write.with_stored_partitions(messages))
    if not has_moving_keys(write.schema):
        return messages
    new = _WrittenKeys(table, write, messages)
    new.refuse_duplicates()
    if not mode.overwrites:
        assert write.dynamic is not None and write.dynamic.places is not None
        return [*messages, *write.with_stored_partitions(_deletes_of_moved_keys(new, write.dynamic.places))]
    stored = StoredPartitions(write.schema)
    if mode.partition is not None:
        goes = stored.selection([parse_partition_spec(mode.partition, stored.keys, stored.types)])
    elif mode.name == "dynamic_overwrite":
        goes = stored.those(m.partition for m in messages)
    else:
        return messages  # nothing stays
    new.refuse_in_other_buckets(
        read_key_locations(table, write.schema, write.planned_on), lambda key: not goes(key.partition)
    )
    return messages


def check_corrected(table: Table, write: TableWrite, messages: Sequence[CommitMessage]) -> bool:
    """Check that no key of buckets that were written again is in another one.

    Returns whether keys may move in this table and all of these stay where they were: then nothing but a change of
    these buckets can conflict with the commit, and it gets ``KEYS_STAY``.

    Raises:
        InvalidInputError: a key would have two rows; it is named, and both partitions.
    """
    if not has_moving_keys(write.schema):
        return False
    assert write.dynamic is not None and write.dynamic.places is not None
    bucket_of = StoredPartitions(write.schema).bucket
    replaced = {bucket_of(m) for m in messages}
    new = _WrittenKeys(table, write, messages)
    new.refuse_duplicates()
    new.refuse_in_other_buckets(write.dynamic.places, lambda key: key not in replaced)
    return new.stay(write.dynamic.places)


@dataclass(frozen=True, slots=True)
class _WrittenKeyRows:
    """Merged rows of one bucket's new files: the key columns, and which of them are deletes."""

    bucket: BucketKey
    keys: pa.RecordBatch
    deletes: npt.NDArray[np.bool_]


class _WrittenKeys:
    """The keys of the files that a write has made."""

    def __init__(self, table: Table, write: TableWrite, messages: Sequence[CommitMessage]) -> None:
        self.write = write
        self.schema: TableSchema = write.schema
        self.stored = StoredPartitions(self.schema)
        self._read, self._splits = self._plan(table, messages)
        self.rows = [r for at in range(len(self._splits)) for r in self._keys_of(at)]
        self.places = KeyLocations(self.schema, ((r.bucket, [r.keys.filter(pa.array(~r.deletes))]) for r in self.rows))

    def _plan(self, table: Table, messages: Sequence[CommitMessage]) -> tuple[TableRead, list[ReadSplit]]:
        by_bucket: dict[BucketKey, list[CommitMessage]] = {}
        for message in messages:
            if message.new_files:
                by_bucket.setdefault(self.stored.bucket(message), []).append(message)
        splits = tuple(
            BucketSplit(key.partition, self.stored.values(key.partition), key.bucket, -1,
                        tuple(f for m in found for f in m.new_files))
            for key, found in by_bucket.items()
        )  # fmt: skip
        plan = ScanPlan(table, self.write.planned_on, self.schema, splits)
        return plan_read(plan, layered=True, whole_buckets=True)

    def _batches(self, at: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Read these columns of a bucket's new rows, merged, and the kind of each row."""
        split, names = self._splits[at], merge_rules(self.schema).columns(columns)
        fields = [self.schema.field(n) for n in names if n not in self.schema.partition_keys]
        for batch in read_stored(self._read, split, (*fields, SEQUENCE_FIELD, VALUE_KIND_FIELD)):
            given = with_partition(batch, self.schema, split.bucket.values, columns)
            yield pa.RecordBatch.from_arrays([*given, batch.column(VALUE_KIND)], names=[*columns, VALUE_KIND])

    def _keys_of(self, at: int) -> Iterator[_WrittenKeyRows]:
        bucket = self._splits[at].bucket
        for batch in self._batches(at, self.schema.primary_keys):
            deletes = is_retract(batch.column(VALUE_KIND))
            yield _WrittenKeyRows(BucketKey(bucket.partition, bucket.bucket), batch, deletes)

    def full_rows(self, buckets: Iterable[BucketKey]) -> Iterator[tuple[BucketKey, pa.RecordBatch]]:
        """Read all columns of the new rows of some buckets."""
        wanted = set(buckets)
        for at, split in enumerate(self._splits):
            key = BucketKey(split.bucket.partition, split.bucket.bucket)
            if key in wanted:
                yield from ((key, batch) for batch in self._batches(at, self.schema.field_names))

    def refuse_duplicates(self) -> None:
        """Refuse rows that hold a key in two partitions."""
        for key, one, other in self.places.duplicates(1):
            names = " and ".join(sorted({self.stored.text(one.partition), self.stored.text(other.partition)}))
            raise self._refusal(f"the rows hold the key {key} in {names}", "keep one of its rows")

    def stay(self, known: KeyLocations) -> bool:
        """Return whether every key is in the bucket where it is known to live."""
        return all(
            bool((np.array([b == rows.bucket for b in known.buckets] + [False])[known.find(rows.keys)]).all())
            for rows in self.rows
        )

    def refuse_in_other_buckets(self, known: KeyLocations, stays: Callable[[BucketKey], bool]) -> None:
        """Refuse keys that live in a bucket that ``stays``."""
        kept = np.array([*map(stays, known.buckets), False])
        for rows in self.rows:
            found = known.find(rows.keys)
            hits = np.flatnonzero(kept[found] & ~rows.deletes)
            if len(hits):
                there = self.stored.text(known.buckets[found[hits[0]]].partition)
                raise self._refusal(
                    f"the rows hold the key {known.text(rows.keys, int(hits[0]))} in "
                    f"{self.stored.text(rows.bucket.partition)}, and {there}, which stays, has it as well",
                    f"delete it there first or in the same statement, overwrite {there} too, or upsert the row "
                    f"with write_table or write_arrow, which moves it",
                )

    def _refusal(self, what: str, way_out: str) -> InvalidInputError:
        key = ", ".join(self.schema.primary_keys)
        return InvalidInputError(
            f"{self.write.label}: {what}; the primary key ({key}) lacks partition columns, so the table has one row of "
            f"each key: {way_out}"
        )

    def refuse_merged(self, key: str, here: str, there: str) -> InvalidInputError:
        """Say that a key can't move, as its row would be merged where it lives."""
        options = TableOptions(self.schema.options)
        why = "ignore-delete" if options.ignore_delete else f"merge-engine={options.merge_engine}"
        return self._refusal(
            f"the rows hold the key {key} in {here}, and it lives in {there}, which it can't leave with {why}",
            f"write its row with the values of {there}",
        )


def _deletes_of_moved_keys(new: _WrittenKeys, known: KeyLocations) -> list[CommitMessage]:
    """Write a delete for each key that lives in another partition than the one that the rows have it in."""
    leaving: dict[BucketKey, list[pa.RecordBatch]] = {}
    if any(len(_rows_of_moved_keys(new, known, rows.bucket, rows.keys)) for rows in new.rows):
        for bucket, batch in new.full_rows({r.bucket for r in new.rows}):
            chosen = _rows_of_moved_keys(new, known, bucket, batch)
            found = known.find(batch)[chosen]
            _refuse_unmovable(new, known, bucket, batch, chosen, found)
            for at in np.unique(found).tolist():
                rows = batch.take(pa.array(chosen[found == at]))
                leaving.setdefault(known.buckets[at], []).append(_deletes(new, rows, known.buckets[at]))
    return _write_deletes(new, leaving)


def _rows_of_moved_keys(new: _WrittenKeys, known: KeyLocations, bucket: BucketKey, rows: pa.RecordBatch) -> RowNumbers:
    """Return the positions of rows whose key lives in another partition.

    A delete of a key that the same write inserts elsewhere is not one: only the insert counts.
    """
    found = known.find(rows)
    elsewhere = np.array([b.partition != bucket.partition for b in known.buckets] + [False])[found]
    inserted = new.places.find(rows) >= 0
    return np.flatnonzero(elsewhere & ~(is_retract(rows.column(VALUE_KIND)) & inserted))


def _refuse_unmovable(
    new: _WrittenKeys,
    known: KeyLocations,
    bucket: BucketKey,
    rows: pa.RecordBatch,
    chosen: RowNumbers,
    found: RowNumbers,
) -> None:
    options = TableOptions(new.schema.options)
    if len(chosen) and (options.merge_engine != "deduplicate" or options.ignore_delete):
        there = new.stored.text(known.buckets[found[0]].partition)
        key = known.text(rows, int(chosen[0]))
        raise new.refuse_merged(key, new.stored.text(bucket.partition), there)


def _deletes(new: _WrittenKeys, rows: pa.RecordBatch, bucket: BucketKey) -> pa.RecordBatch:
    """Turn rows into deletes of their keys in another partition, as Paimon writes them."""
    columns = with_partition(rows, new.schema, new.stored.values(bucket.partition), new.schema.field_names)
    kinds = pa.array(np.full(rows.num_rows, DELETE, np.int8))
    return pa.RecordBatch.from_arrays([*columns, kinds], names=[*new.schema.field_names, VALUE_KIND])


def _write_deletes(new: _WrittenKeys, leaving: Mapping[BucketKey, Sequence[pa.RecordBatch]]) -> list[CommitMessage]:
    writers: list[BucketWriter] = []
    with abandoned_on_failure(writers):
        for bucket, batches in leaving.items():
            values = new.stored.values(bucket.partition)
            writers.append(BucketWriter(new.write, bucket.partition, values, bucket.bucket))
            for batch in batches:
                writers[-1].add(batch)
        return [writer.finish() for writer in writers]
