"""Where each key of a table lives whose primary key does not tell the partition (dynamic buckets, no hash index).

Nothing stored says it: a writer reads the keys of the whole snapshot, as Paimon's own do. See
docs/contributing/format.md, Dynamic buckets.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_paimon.core.errors import UnsupportedFeatureError
from airflow_paimon.core.format.hash_index import Hashes, sorting_order
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.table.bucket import hash_rows
from airflow_paimon.core.table.live_files import BucketKey
from airflow_paimon.core.table.masking import MASK, masks_of
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.scan import plan_snapshot
from airflow_paimon.core.table.table import Table
from airflow_paimon.data.files.arrow_types import arrow_schema, one_array
from airflow_paimon.data.read import read_split
from airflow_paimon.data.read_splits import plan_read

MOST_KEYS = 50_000_000
"""Rows in a snapshot's files beyond which its keys are not read into memory."""

_LISTED = 100

RowNumbers = npt.NDArray[np.int64]
"""For each row the position of its bucket in ``KeyLocations.buckets``; -1: the key is unknown."""


class KeyLocations:
    """The keys of a snapshot, or of files, and the bucket of each; ``buckets`` in canonical form. Picklable.

    ``sizes``: how many keys each bucket has, by partition.
    """

    def __init__(self, schema: TableSchema, parts: Iterable[tuple[BucketKey, Sequence[pa.RecordBatch]]]) -> None:
        """``parts``: the key columns of the rows of each bucket; other columns are left out."""
        self._fields = tuple(schema.field(name) for name in schema.primary_keys)
        self._hidden = masks_of([schema]).columns
        names, batches, counts = [f.name for f in self._fields], [], []
        buckets: list[BucketKey] = []
        for bucket, rows in parts:
            buckets.append(bucket)
            counts.append(sum(b.num_rows for b in rows))
            batches += [b.select(names) for b in rows]
        keys = pa.Table.from_batches(batches, arrow_schema(self._fields))
        hashes = self.hashes(keys)
        order = sorting_order(hashes)
        self.buckets = tuple(buckets)
        self.sizes: dict[bytes, dict[int, int]] = {}
        for bucket, count in zip(buckets, counts, strict=True):
            own = self.sizes.setdefault(bucket.partition, {})
            own[bucket.bucket] = own.get(bucket.bucket, 0) + count
        self._hashes = hashes[order]
        self._keys = keys.take(pa.array(order)).combine_chunks()
        self._at = np.repeat(np.arange(len(buckets), dtype=np.int32), counts)[order]

    def __len__(self) -> int:
        return len(self._at)

    def hashes(self, rows: pa.RecordBatch | pa.Table) -> Hashes:
        """Hash the primary key of each row, partition columns in it included."""
        columns = [rows.column(f.name) for f in self._fields]
        return hash_rows(columns, [f.type for f in self._fields])

    def find(self, rows: pa.RecordBatch | pa.Table) -> RowNumbers:
        """Return where the key of each row lives."""
        wanted = self.hashes(rows)
        order = sorting_order(wanted)
        at = np.empty(len(wanted), np.int64)
        at[order] = np.searchsorted(self._hashes, wanted[order])  # those of sorted numbers lie close together
        found = np.full(len(wanted), -1, np.int64)
        open_rows = self._of_hash(at, wanted, np.arange(len(wanted)))
        while len(open_rows):  # once, and again only for keys of one hash
            same = self._equal(at[open_rows], rows, open_rows)
            hit = open_rows[same]
            found[hit] = self._at[at[hit]]
            open_rows = open_rows[~same]
            at[open_rows] += 1
            open_rows = self._of_hash(at, wanted, open_rows)
        return found

    def _of_hash(self, at: RowNumbers, wanted: Hashes, rows: RowNumbers) -> RowNumbers:
        """Return those of the rows whose hash the key at their position has."""
        there: RowNumbers = rows[at[rows] < len(self._hashes)]
        own: RowNumbers = there[self._hashes[at[there]] == wanted[there]]
        return own

    def known_buckets(self, rows: pa.RecordBatch, partitions: Sequence[bytes], codes: RowNumbers) -> RowNumbers:
        """Return the bucket number of each row whose key lives in the row's own partition, else -1.

        ``codes``: the position of each row's partition in ``partitions``, which are in canonical form.
        """
        numbers = {partition: number for number, partition in enumerate(partitions)}
        own = np.array([numbers.get(b.partition, -1) for b in self.buckets] + [-1], np.int64)
        bucket = np.array([b.bucket for b in self.buckets] + [-1], np.int64)
        found = self.find(rows)
        return np.where(own[found] == codes, bucket[found], -1)

    def duplicates(self, limit: int) -> list[tuple[str, BucketKey, BucketKey]]:
        """Return keys that are in two buckets, as texts, and the buckets; at most ``limit``."""
        same = np.flatnonzero(self._hashes[1:] == self._hashes[:-1])
        suspects = np.union1d(same, same + 1)
        first: dict[tuple[object, ...], int] = {}
        out: list[tuple[str, BucketKey, BucketKey]] = []
        for row in suspects.tolist():
            key = tuple(_comparable(c[row]) for c in self._keys.columns)
            there, here = first.setdefault(key, row), self._at[row]
            if self._at[there] != here:
                out.append((self.text(self._keys, row), self.buckets[self._at[there]], self.buckets[here]))
                if len(out) == limit:
                    break
        return out

    def text(self, rows: pa.RecordBatch | pa.Table, row: int) -> str:
        """Spell the key of a row for people."""
        values = {f.name: rows.column(f.name)[row].as_py() for f in self._fields}
        return ", ".join(f"{n}={MASK if n.lower() in self._hidden else value}" for n, value in values.items())

    def _equal(self, mine: RowNumbers, rows: pa.RecordBatch | pa.Table, theirs: RowNumbers) -> npt.NDArray[np.bool_]:
        ours, others = self._keys.take(pa.array(mine)), rows.take(pa.array(theirs))
        same = np.ones(len(mine), bool)
        for field in self._fields:
            pairs = (_bits(ours.column(field.name)), _bits(others.column(field.name)))
            same &= np.asarray(pc.equal(*pairs).to_numpy(zero_copy_only=False), bool)
        return same


def _bits(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Make NaN equal to itself, and 0.0 another key than -0.0."""
    whole = one_array(column)
    if pa.types.is_floating(whole.type):
        return whole.view(pa.int32() if pa.types.is_float32(whole.type) else pa.int64())
    return whole


def _comparable(value: pa.Scalar) -> object:
    return _bits(pa.array([value.as_py()], value.type))[0].as_py()


def keys_in_two_partitions(view: Table, head: Snapshot) -> list[tuple[str, str, str]] | None:
    """Return up to 100 keys that two partitions have, and the partitions; None: there are too many keys to compare.

    Raises:
        FormatError: a file is missing or corrupt.
    """
    schema = view.schema()
    try:
        places = read_key_locations(view, schema, head)
    except UnsupportedFeatureError:
        return None
    text = StoredPartitions(schema).text
    return [(key, text(one.partition), text(other.partition)) for key, one, other in places.duplicates(_LISTED)]


def read_key_locations(table: Table, schema: TableSchema, head: Snapshot | None) -> KeyLocations:
    """Read the keys of a snapshot: all that a full compaction would keep, in every partition. None: it has none.

    Raises:
        UnsupportedFeatureError: there are more rows than fit into memory.
        FormatError: a file is missing or corrupt.
    """
    if head is None:
        return KeyLocations(schema, ())
    plan = plan_snapshot(table, head, schema)
    rows = sum(f.row_count for s in plan.splits for f in s.files)
    if rows > MOST_KEYS:
        raise UnsupportedFeatureError(
            f"{table.label}: its primary key lacks partition columns, so a write reads the keys of all partitions; "
            f"{rows:,} rows are more than the {MOST_KEYS:,} that fit into memory. Compact the table, or write with "
            "Paimon's own Spark connector"
        )
    bucket_of = StoredPartitions(schema).bucket
    read, splits = plan_read(plan, columns=schema.primary_keys, layered=True, whole_buckets=True)
    return KeyLocations(schema, ((bucket_of(s.bucket), list(read_split(read, s))) for s in splits))
