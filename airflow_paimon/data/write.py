"""Writes rows into buckets: plan once, distribute rows to buckets, write each bucket's files with its own writer.

A primary-key bucket gets sorted runs of level 0: sequence numbers continue from the bucket's highest, versions of one
key in a run are merged as in a read (docs/contributing/format.md, Data files). It is one run, sorted in parts that go
to the local disk beyond the buffer; but where the merge engine computes values, each full buffer is one. Nothing is
visible until the commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_paimon.core.commit.conditions import has_dynamic_buckets
from airflow_paimon.core.commit.draft import CommitMessage, Receipt
from airflow_paimon.core.commit.idempotency import REFUSALS
from airflow_paimon.core.errors import ConflictError, InvalidInputError, naming_table
from airflow_paimon.core.format.arrow_values import to_values
from airflow_paimon.core.format.hash_index import Hashes
from airflow_paimon.core.format.manifest import DataFile, FileSource
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.store import Store
from airflow_paimon.core.table.bucket import bucket_of_rows, hash_rows
from airflow_paimon.core.table.data_file_paths import bucket_folder
from airflow_paimon.core.table.dynamic_buckets_plan import BUCKET_BITS, BUCKET_MASK, Assigner
from airflow_paimon.core.table.features import check_writable
from airflow_paimon.core.table.live_entries import live_columns
from airflow_paimon.core.table.live_files import BucketKey, BucketSplit
from airflow_paimon.core.table.merge_options import combines_rows
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partition_text import DEFAULT_PARTITION, escape_path_name
from airflow_paimon.core.table.partition_values import PartitionSpec, encode_partition
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.paths import INDEX_DIR, LONGEST_NAME
from airflow_paimon.core.table.scan import ScanPlan
from airflow_paimon.core.table.table import Table
from airflow_paimon.core.table.visibility import waits_for_compaction
from airflow_paimon.data.dynamic_buckets import Assigners, DynamicBuckets, plan_dynamic_buckets
from airflow_paimon.data.files.conform import partition_columns
from airflow_paimon.data.files.write import FileTarget, RollingWriter, abandoned_on_failure, delete_unused
from airflow_paimon.data.merge.rules import merge_rules
from airflow_paimon.data.merge.sorted_runs import Part, RunBuffer, changes_to_write, merges_in_parts, runs_to_write
from airflow_paimon.data.merge.versions import Indices, drop_retracts
from airflow_paimon.data.record_expiry import record_expiry

BUFFER_BYTES = 256 << 20
"""Bytes that a primary-key bucket's writer holds in memory before it puts them, sorted, on the local disk."""

SORT_BYTES = 64 << 20
"""Bytes that it sorts at once: what fits a core's cache and is merged then costs less than sorting all at once."""

_MOST_ROWS_TO_LOOK_AT = 1_000_000

KnownBuckets = npt.NDArray[np.int64]
"""The bucket of each row whose key a look-up has found, else -1."""

UNAWARE_BUCKET = 0
UNAWARE_TOTAL = -1


@dataclass(frozen=True, slots=True)
class WriteMode:
    """``append``, ``overwrite`` (of ``partition``, None = of everything) or ``dynamic_overwrite``."""

    name: str = "append"
    partition: PartitionSpec | None = None

    @property
    def overwrites(self) -> bool:
        return self.name != "append"


PartitionsOf = Callable[[TableSchema], frozenset[bytes] | None]
"""Finds the partitions, in canonical form, to which the rows of a write go; None: not known before, any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableWrite:
    """The common parameters of all tasks of a write. Picklable.

    ``total_buckets`` and ``next_sequence`` are those of the table's live files as of ``planned_on``; they are empty for
    a write that ``replaces`` the partitions that it writes to. ``only``: the partitions that were looked at, in their
    canonical form; None = all. ``dynamic``: of a table with dynamic buckets. ``tasks_share_buckets``: rows of one
    bucket, also of one key, come to several tasks. ``stores_row_ids``: the rows have ``_ROW_ID`` and
    ``_SEQUENCE_NUMBER`` and keep them. ``stored_partitions``: how the live files of a bucket store its partition, where
    that is not the canonical form.
    """

    store: Store
    label: str
    schema: TableSchema
    planned_on: Snapshot | None
    total_buckets: Mapping[bytes, int] = field(default_factory=dict)
    next_sequence: Mapping[BucketKey, int] = field(default_factory=dict)
    stored_partitions: Mapping[BucketKey, bytes] = field(default_factory=dict)
    only: frozenset[bytes] | None = None
    replaces: bool = False
    source: FileSource = FileSource.APPEND
    stores_row_ids: bool = False
    buffer_bytes: int = BUFFER_BYTES
    dynamic: DynamicBuckets | None = None
    tasks_share_buckets: bool = False

    @property
    def is_keyed(self) -> bool:
        return bool(self.schema.primary_keys)

    @property
    def writes_input_changelog(self) -> bool:
        """Whether streaming readers get the written rows as their changelog; never those of an overwrite."""
        producer = TableOptions(self.schema.options).text("changelog-producer", "none").lower()
        return self.is_keyed and not self.replaces and producer == "input"

    @property
    def partial(self) -> bool:
        """Whether rows may lack columns: see ``combines_rows``."""
        return not self.replaces and combines_rows(self.schema)

    def target(self, bucket: BucketSplit, **how: Any) -> FileTarget:
        """Return where the files of a bucket lie; ``how``: the other fields of a ``FileTarget``."""
        return FileTarget(store=self.store, schema=self.schema, values=bucket.values, bucket=bucket.bucket, **how)

    def after_look_up(self) -> TableWrite:
        """Return what tasks need whose rows come with their ``KnownBuckets``, if the table has dynamic ones."""
        return self if self.dynamic is None else replace(self, dynamic=self.dynamic.after_look_up())

    def with_stored_partitions(self, messages: Iterable[CommitMessage]) -> list[CommitMessage]:
        """Return the messages with partitions as the live files of their buckets store them: Java merges rows of no
        other ones.
        """
        return [replace(m, partition=self.stored_partitions.get(m.key, m.partition)) for m in messages]

    @property
    def default_buckets(self) -> int:
        return TableOptions(self.schema.options).bucket

    def buckets_of(self, partition: bytes) -> int:
        """Number of buckets of a partition: that of its files, not of an option changed since."""
        return self.total_buckets.get(partition, self.default_buckets)


def plan_write(
    table: Table,
    *,
    overwrite: bool = False,
    chained: bool = False,
    tasks: int = 1,
    tasks_share_buckets: bool = False,
    by_buckets: bool = False,
    partitions: PartitionsOf = lambda _: None,
    scan: ScanPlan | None = None,
) -> TableWrite:
    """Read the parameters of a write. ``overwrite``: existing files are replaced, so they are ignored.
    ``chained``: branches of chain tables may be written; the caller reports what becomes stale.
    ``tasks_share_buckets``: rows of one bucket come to several tasks. For dynamic buckets, ``tasks``: how many may
    write one new partition. ``by_buckets``: see ``check_writable``. ``partitions``: only their files are read.
    ``scan``: the head's files of all partitions that get rows, if they have been read.

    Raises:
        UnsupportedFeatureError: a feature that this engine does not write.
    """
    schema = table.schema() if scan is None else scan.schema
    check_writable(schema, table=table.label, branch=table.branch_name, chained=chained, by_buckets=by_buckets)
    if waits_for_compaction(schema, table.branch_name):
        record_expiry(schema, 0, table.label)  # else the compaction after the commit would refuse these options
    head = table.latest_snapshot() if scan is None else scan.snapshot
    only = None if schema.crosses_partitions or overwrite else partitions(schema)
    live = () if overwrite else _places(table, schema, head, only, scan)
    totals, sequences, forms = _in_live_files(table.label, live)
    return TableWrite(
        store=table.store,
        label=table.label,
        schema=schema,
        planned_on=head,
        total_buckets={p: n for p, n in totals.items() if n > 0},
        next_sequence=sequences,
        stored_partitions=forms,
        only=only,
        replaces=overwrite,
        dynamic=plan_dynamic_buckets(
            table,
            schema,
            None if overwrite else head,
            sequences.keys(),
            tasks=tasks,
            tasks_share_buckets=tasks_share_buckets,
        ),
        tasks_share_buckets=tasks_share_buckets,
    )


class _Place(NamedTuple):
    """Where a live file lies; ``key`` has the canonical form of the partition."""

    stored_partition: bytes
    key: BucketKey
    total_buckets: int
    max_sequence_number: int


def _places(
    table: Table, schema: TableSchema, head: Snapshot | None, only: frozenset[bytes] | None, scan: ScanPlan | None
) -> Iterable[_Place]:
    """Return where the live files are that decide how rows are written; none where nothing depends on them."""
    if TableOptions(schema.options).bucket <= 0 and not has_dynamic_buckets(schema):
        return ()
    if scan is not None:
        return _places_in(scan)
    stored = StoredPartitions(schema)
    c = live_columns(table, head, None if only is None else stored.those(only))
    keys = map(BucketKey, map(stored.canonical, c.partitions), c.buckets)
    return map(_Place, c.partitions, keys, c.total_buckets, c.max_sequence_numbers)


def _places_in(scan: ScanPlan) -> Iterable[_Place]:
    bucket_of = StoredPartitions(scan.schema).bucket
    for split in scan.splits:
        key = bucket_of(split)
        yield from (_Place(split.partition, key, split.total_buckets, f.max_sequence_number) for f in split.files)


def _in_live_files(
    label: str, live: Iterable[_Place]
) -> tuple[dict[bytes, int], dict[BucketKey, int], dict[BucketKey, bytes]]:
    """Return the number of buckets of each partition, the next sequence number of each bucket, and how its partition is
    stored, where no file has the canonical form.
    """
    totals: dict[bytes, int] = {}
    sequences: dict[BucketKey, int] = {}
    forms: dict[BucketKey, bytes] = {}
    for stored, key, total, highest in live:
        known = totals.setdefault(key.partition, total)
        if known != total:
            raise ConflictError(f"{label}: a partition has files for {known} and others for {total} buckets")
        sequences[key] = max(sequences.get(key, 0), highest + 1)
        if forms.get(key) != key.partition:
            forms[key] = stored
    return totals, sequences, {key: stored for key, stored in forms.items() if stored != key.partition}


def partitions_of_rows(data: pa.Table | pa.RecordBatch, store: Store, label: str) -> PartitionsOf:
    """Return what finds the partitions of rows; None where there are so many rows that looking at all files costs less.

    Raises:
        InvalidInputError: on use, as ``conform_rows`` does.
    """

    def found(schema: TableSchema) -> frozenset[bytes] | None:
        if not schema.partition_keys or data.num_rows > _MOST_ROWS_TO_LOOK_AT:
            return None
        if any(data.schema.names.count(key) != 1 for key in schema.partition_keys):
            return None  # default values, or an error that comes with the rows
        rows = pa.Table.from_batches([data]) if isinstance(data, pa.RecordBatch) else data
        partitions: set[bytes] = set()
        for batch in rows.select(list(schema.partition_keys)).to_batches():
            own = partition_columns(batch, schema, label)
            partitions.update(p for p, _ in _partition_codes(store, schema, label, own)[1])
        return frozenset(partitions)

    return found


class BucketRows(NamedTuple):
    """Rows of one bucket: those of ``batch`` at ``indices`` (None = all), in their original order.

    ``values`` are the decoded partition values.
    """

    partition: bytes
    values: tuple[Any, ...]
    bucket: int
    batch: pa.RecordBatch
    indices: Indices | None

    @property
    def num_rows(self) -> int:
        return int(self.batch.num_rows) if self.indices is None else len(self.indices)

    @property
    def rows(self) -> pa.RecordBatch:
        return self.batch if self.indices is None else self.batch.take(pa.array(self.indices))


def distribute(
    write: TableWrite, rows: pa.RecordBatch, assigners: Assigners, known: KnownBuckets | None = None
) -> Iterator[BucketRows]:
    """Distribute rows (as ``conform_rows`` returns them) to their buckets.

    ``assigners``: the same for all rows of a task; only dynamic buckets need them. ``known``: of rows that were looked
    up before.
    """
    if not rows.num_rows:
        return
    codes, partitions = _partition_codes(write.store, write.schema, write.label, rows)
    names = [p for p, _ in partitions]
    if write.dynamic is None:
        buckets = _bucket_column(write, rows, codes, names)
    else:
        buckets = _assigned(write, rows, codes, names, assigners, known)
    span = int(buckets.max()) + 1
    if len(partitions) == 1 and int(buckets.min()) == span - 1:
        yield BucketRows(*partitions[0], span - 1, rows, None)
        return
    groups = codes.astype(np.int64) * span + buckets
    # numpy sorts numbers of 16 bits by radix
    order = np.argsort(groups if len(partitions) * span > 1 << 16 else groups.astype(np.uint16), kind="stable")
    ordered = groups[order]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(order)], strict=True):
        partition, values = partitions[int(ordered[start]) // span]
        indices = None if end - start == rows.num_rows else order[start:end]
        yield BucketRows(partition, values, int(ordered[start]) % span, rows, indices)


def bucket_groups(
    write: TableWrite, rows: pa.RecordBatch, assigners: Assigners
) -> tuple[KnownBuckets, KnownBuckets | None]:
    """Return a number per row to distribute by, the same for all rows of a bucket, or of a share of dynamic ones (and,
    rarely, for two of them); and the known buckets of rows with dynamic ones. ``assigners``: as in ``distribute``."""
    if not rows.num_rows:
        return np.empty(0, np.int64), None if write.dynamic is None else np.empty(0, np.int64)
    codes, partitions = _partition_codes(write.store, write.schema, write.label, rows)
    names = [p for p, _ in partitions]
    known = None
    if write.dynamic is None:
        shares = _bucket_column(write, rows, codes, names)
    else:
        shares = _hashed(write, rows, codes, names, lambda p, *row: _share_and_bucket(assigners.of(p), *row))
        shares, known = shares >> BUCKET_BITS, (shares & BUCKET_MASK) - 1
    stable = np.array([_stable_number(p) for p in names], np.int64)
    return (stable[codes] + shares) & np.int64(0x7FFFFFFFFFFFFFFF), known


def _share_and_bucket(assigner: Assigner, hashes: Hashes, known: KnownBuckets | None) -> KnownBuckets:
    """Return both in one number: the share above 16 bits that hold the bucket plus one, 0 if it is unknown."""
    found = assigner.find(hashes, known)
    return assigner.share_of(hashes, found) << BUCKET_BITS | (found + 1)


def _stable_number(partition: bytes) -> int:
    number = 0
    for byte in partition:
        number = (number * 1_000_003 + byte) & 0x3FFFFFFFFFFFFFFF
    return number


def _partition_codes(
    store: Store, schema: TableSchema, label: str, rows: pa.RecordBatch
) -> tuple[npt.NDArray[np.int64], list[tuple[bytes, tuple[Any, ...]]]]:
    """Return per row the number of its partition, and the partitions: stored bytes and decoded values."""
    fields = schema.partition_fields
    combined, count = np.zeros(rows.num_rows, np.int64), 1
    for f in fields:
        column = rows.column(f.name)
        if pa.types.is_floating(column.type):  # compared by their bits: -0.0 is another partition than 0.0
            column = column.view(pa.int32() if pa.types.is_float32(column.type) else pa.int64())
        encoded = column.dictionary_encode(null_encoding="encode")  # in the order in which the values occur
        if len(encoded.dictionary) == 1:
            continue
        own = np.asarray(encoded.indices.to_numpy(zero_copy_only=False), np.int64)
        if count == 1:
            combined, count = own, len(encoded.dictionary)
        else:
            each, combined = np.unique(combined * len(encoded.dictionary) + own, return_inverse=True)
            count = len(each)
    firsts = np.zeros(count, np.int64)
    firsts[combined[::-1]] = np.arange(rows.num_rows)[::-1]
    sample = rows.take(pa.array(firsts))
    columns = [sample.column(f.name) for f in fields]
    values = list(zip(*(to_values(c, f.type) for c, f in zip(columns, fields, strict=True)), strict=True)) or [()]
    check_partition_values(store, schema, label, values)
    types = [f.type for f in fields]
    return combined, [(encode_partition(v, types), v) for v in values]


def _bucket_column(
    write: TableWrite, rows: pa.RecordBatch, codes: npt.NDArray[np.int64], partitions: Sequence[bytes]
) -> npt.NDArray[np.int64]:
    if write.default_buckets <= 0:
        return np.zeros(rows.num_rows, np.int64) + UNAWARE_BUCKET
    if not write.schema.bucket_keys:  # an append table of Paimon 0.7, which has one bucket
        return np.zeros(rows.num_rows, np.int64)
    fields = [write.schema.field(n) for n in write.schema.bucket_keys]
    columns = [rows.column(f.name) for f in fields]
    types = [f.type for f in fields]
    totals = np.array([write.buckets_of(p) for p in partitions])
    out = np.zeros(rows.num_rows, np.int64)
    for total in np.unique(totals).tolist():
        found = bucket_of_rows(columns, types, total, TableOptions(write.schema.options).bucket_function)
        mask = totals[codes] == total
        out[mask] = found[mask]
    return out


def _assigned(
    write: TableWrite,
    rows: pa.RecordBatch,
    codes: npt.NDArray[np.int64],
    partitions: Sequence[bytes],
    assigners: Assigners,
    known: KnownBuckets | None,
) -> KnownBuckets:
    """Return the bucket of each row: the known one, or one that is assigned now."""

    def assigned(partition: bytes, hashes: Hashes, found: KnownBuckets | None) -> KnownBuckets:
        return assigners.of(partition).assign(hashes, found)

    if known is None:
        if write.dynamic is not None and write.dynamic.sizes is not None:  # known keys would get a second bucket
            raise AssertionError(f"{write.label}: rows came without their buckets")
        return _hashed(write, rows, codes, partitions, assigned)
    new = np.flatnonzero(known < 0)
    if not len(new):
        return known
    buckets = known.copy()
    buckets[new] = _hashed(write, rows.take(pa.array(new)), codes[new], partitions, assigned)
    return buckets


def _hashed(
    write: TableWrite,
    rows: pa.RecordBatch,
    codes: npt.NDArray[np.int64],
    partitions: Sequence[bytes],
    number: Callable[[bytes, Hashes, npt.NDArray[np.int64] | None], npt.NDArray[np.int64]],
) -> npt.NDArray[np.int64]:
    """Return ``number`` of each row; it gets the rows of a partition as hashes of their keys, and their known buckets
    where nothing but a look-up of the key finds them."""
    places = write.dynamic.places if write.dynamic is not None else None
    known: npt.NDArray[np.int64] | None = None
    if places is not None:
        hashes, known = places.hashes(rows), places.known_buckets(rows, partitions, codes)
    else:
        schema = write.schema
        names = schema.primary_keys if schema.crosses_partitions else schema.trimmed_primary_keys
        fields = [schema.field(n) for n in names]
        hashes = hash_rows([rows.column(f.name) for f in fields], [f.type for f in fields])
    if len(partitions) == 1:
        return number(partitions[0], hashes, known)
    out = np.empty(rows.num_rows, np.int64)
    for code, partition in enumerate(partitions):
        mask = codes == code
        if mask.any():
            out[mask] = number(partition, hashes[mask], known[mask] if known is not None else None)
    return out


def _part_bytes(write: TableWrite) -> int:
    """Return how many bytes of a bucket are sorted at once: all that are held where it matters which rows meet."""
    small = write.is_keyed and merges_in_parts(write.schema) and not write.writes_input_changelog
    return min(SORT_BYTES, write.buffer_bytes) if small else write.buffer_bytes


class BucketWriter:
    """Writes one bucket: ``add`` rows any number of times, then ``finish`` (or ``abandon``)."""

    def __init__(self, write: TableWrite, partition: bytes, values: tuple[Any, ...], bucket: int) -> None:
        self._write = write
        if write.only is not None and partition not in write.only:  # its sequence numbers would begin at 0
            raise AssertionError(f"{write.label}: rows came for a partition that the write was not planned for")
        self._key = BucketKey(partition, bucket)
        self._total = write.buckets_of(partition) if write.default_buckets > 0 else UNAWARE_TOTAL
        self._target = FileTarget(
            store=write.store,
            schema=write.schema,
            values=values,
            bucket=bucket,
            source=write.source,
            stores_row_ids=write.stores_row_ids,
        )
        self._options = TableOptions(write.schema.options)
        self._sequence = write.next_sequence.get(self._key, 0)
        self._buffer: list[Part] = []
        self._buffer_bytes = 0
        self._plain = None if write.is_keyed else RollingWriter(self._target, self._sequence)
        self._runs: list[RollingWriter] = []
        self._sorted_runs = RunBuffer(write.buffer_bytes)
        self._part_bytes = _part_bytes(write)
        self._files: list[DataFile] = []
        self._changelog: list[DataFile] = []
        self._took_rows = False

    @property
    def is_needed(self) -> bool:
        """Whether the finished bucket changes the table: it has files, or its rows cause a partition to be replaced."""
        return bool(self._files) or (self._write.replaces and self._took_rows)

    def add(self, batch: pa.RecordBatch, indices: Indices | None = None) -> None:
        """Add rows of a batch as ``conform_rows`` returns it; later rows are newer."""
        rows = batch.num_rows if indices is None else len(indices)
        if self._plain is not None:
            self._plain.write(batch if indices is None else batch.take(pa.array(indices)))
            return
        self._buffer.append((batch, indices))
        self._buffer_bytes += batch.nbytes * rows // max(batch.num_rows, 1)
        if self._buffer_bytes >= self._part_bytes:
            self._flush()

    def finish(self) -> CommitMessage:
        """Write the remaining rows and return the message to commit."""
        if self._plain is not None:
            self._files += self._plain.finish()
        else:
            alone = self._write.replaces and not self._runs  # nothing to merge with: equivalent to a compacted bucket
            # deletes still hide rows of other partitions in a chain, and rows that another task has written
            keep_deletes = not alone or self._options.chain_table or self._write.tasks_share_buckets
            self._flush(keep_deletes)
            if self._sorted_runs:
                self._write_run(self._sorted_runs.merged(merge_rules(self._write.schema)), keep_deletes)
                self._sorted_runs.close()
            if alone and len(self._runs) == 1 and not any(f.delete_row_count for f in self._files):
                top = self._options.num_levels - 1
                self._files = [f._replace(level=top) for f in self._files]
        return CommitMessage(
            partition=self._key.partition,
            bucket=self._key.bucket,
            total_buckets=self._total,
            new_files=tuple(self._files),
            changelog=tuple(self._changelog) or None,
        )

    def abandon(self) -> None:
        """Delete the written files. Only before a commit of them was attempted."""
        self._sorted_runs.close()
        for writer in [self._plain, *self._runs] if self._plain is not None else self._runs:
            writer.abandon()

    def _flush(self, keep_deletes: bool = True) -> None:
        """Sort the buffered rows into runs, and write those that are not merged with later ones."""
        if not self._buffer:
            return
        for run in self._sorted():
            self._took_rows = self._took_rows or run.num_rows > 0
            if merges_in_parts(self._write.schema):
                self._sorted_runs.add(run)
            else:
                self._write_run(run.to_batches(), keep_deletes)
        if self._write.writes_input_changelog:
            self._write_input_changelog()
        self._sequence += sum(b.num_rows if i is None else len(i) for b, i in self._buffer)
        self._buffer, self._buffer_bytes = [], 0

    def _write_run(self, batches: Iterable[pa.RecordBatch], keep_deletes: bool) -> None:
        run = RollingWriter(self._target)
        self._runs.append(run)
        for batch in batches:
            run.write(batch if keep_deletes else drop_retracts(batch))
        self._files += run.finish()

    def _write_input_changelog(self) -> None:
        writer = RollingWriter(replace(self._target, is_changelog=True))
        self._runs.append(writer)
        for batch in changes_to_write(self._buffer, self._write.schema, self._sequence).to_batches():
            writer.write(batch)
        self._changelog += writer.finish()

    def _sorted(self) -> list[pa.Table]:
        with naming_table(self._write.label):
            return runs_to_write(self._buffer, self._write.schema, self._sequence)


class RowsWriter:
    """Writes rows of any buckets, with one writer per bucket: ``add`` any number of times, then ``finish``.

    Memory grows with the number of buckets.
    """

    def __init__(self, write: TableWrite) -> None:
        self._write = write
        self._writers: dict[BucketKey, BucketWriter] = {}
        self._assigners = Assigners(write.dynamic)

    def add(self, batch: pa.RecordBatch, known: KnownBuckets | None = None) -> None:
        """Add rows as ``conform_rows`` returns them; ``known``: see ``distribute``."""
        for part in distribute(self._write, batch, self._assigners, known):
            key = BucketKey(part.partition, part.bucket)
            if key not in self._writers:
                self._writers[key] = BucketWriter(self._write, part.partition, part.values, part.bucket)
            self._writers[key].add(part.batch, part.indices)

    def finish(self) -> list[CommitMessage]:
        """Write the remaining rows. A message without files is from a bucket that got only deletes while its partition
        is replaced.
        """
        finished = [(w, w.finish()) for w in self._writers.values()]
        return self._assigners.with_hashes(message for writer, message in finished if writer.is_needed)

    def abandon(self) -> None:
        """Delete the written files. Only before a commit of them was attempted."""
        for writer in self._writers.values():
            writer.abandon()


def write_rows(write: TableWrite, batches: Iterator[pa.RecordBatch] | Sequence[pa.RecordBatch]) -> list[CommitMessage]:
    """Write rows of any buckets as ``RowsWriter`` does. After a failure, the written files are deleted."""
    return write_placed_rows(write, ((batch, None) for batch in batches))


def write_placed_rows(
    write: TableWrite, batches: Iterable[tuple[pa.RecordBatch, KnownBuckets | None]]
) -> list[CommitMessage]:
    """Like ``write_rows``, of rows that come with their known buckets."""
    writer = RowsWriter(write)
    with abandoned_on_failure([writer]):
        for batch, known in batches:
            writer.add(batch, known)
        return writer.finish()


def commit_or_discard(write: TableWrite, messages: Sequence[CommitMessage], commit: Callable[[], Receipt]) -> Receipt:
    """Commit files; they are deleted if the commit is refused, or if another try of the operation was faster and wrote
    its own.

    Raises:
        REFUSALS: why nothing was committed. OutcomeUnknownError: the files stay.
    """
    try:
        receipt = commit()
    except REFUSALS:
        discard_files(write, messages)
        raise
    if receipt.replayed:
        discard_files(write, messages)
    return receipt


def discard_files(write: TableWrite, messages: Iterable[CommitMessage]) -> None:
    """Delete data and index files that certainly no snapshot refers to: see ``delete_unused``."""
    values = StoredPartitions(write.schema).values
    for message in messages:
        folder = bucket_folder(write.schema, values(message.partition), message.bucket)
        indexes = [] if message.index is None else [f"{INDEX_DIR}/{message.index.file_name}"]
        files = (*message.new_files, *(message.changelog or ()))
        delete_unused(write.store, [*(f"{folder}/{file.file_name}" for file in files), *indexes])


def check_partition_values(
    store: Store, schema: TableSchema, label: str, partitions: Sequence[tuple[Any, ...]]
) -> None:
    """Refuse the text that represents null: its rows would share null's folder, and no request could name them.

    Raises:
        InvalidInputError: that text, or one that is too long for the name of a folder (object stores allow it).
    """
    reserved = {DEFAULT_PARTITION, TableOptions(schema.options).partition_default_name}
    for values in partitions:
        for key, value in zip(schema.partition_keys, values, strict=True):
            if isinstance(value, str) and value in reserved:
                raise InvalidInputError(
                    f"{label}: partition column {key!r} has the string {value!r}, which represents null in partition "
                    "names (option partition.default-name); write null, or another string"
                )
            _check_folder(store, label, key, value)


def _check_folder(store: Store, label: str, key: str, value: Any) -> None:
    if not isinstance(value, str) or not store.uri.startswith("file:"):
        return
    size = len(f"{escape_path_name(key)}={escape_path_name(value)}".encode())
    if size > LONGEST_NAME:
        raise InvalidInputError(
            f"{label}: partition column {key!r} has a string of {len(value)} characters ({value[:40]!r}...): its "
            f"folder name would have {size} bytes, and the file system allows {LONGEST_NAME}; partition by a shorter "
            "value"
        )
