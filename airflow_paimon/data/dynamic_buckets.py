"""Dynamic buckets of primary-key tables in a write: what is known of each key, and the index files of a commit.

The driver notes which index files a partition has; a task that distributes rows reads those of the partitions that it
gets rows of, and sends each known bucket along with its row, so the tasks that write need none; the driver writes the
new index files when it has what all tasks wrote. See docs/contributing/format.md, Dynamic buckets.
"""

from __future__ import annotations

import threading
import uuid
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np

from airflow_paimon.core.commit.conditions import has_dynamic_buckets
from airflow_paimon.core.commit.draft import CommitMessage
from airflow_paimon.core.errors import FormatError, NotFoundError
from airflow_paimon.core.format.hash_index import (
    INDEX_TYPE,
    Hashes,
    extended_hash_index,
    hash_index_entry,
    read_hash_index,
    write_hash_index,
)
from airflow_paimon.core.format.manifest import IndexEntry
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.store import Store
from airflow_paimon.core.table.dynamic_buckets_plan import (
    Assigner,
    BucketRules,
    ByBucket,
    bucket_rules,
    check_hashes,
)
from airflow_paimon.core.table.live_files import BucketKey
from airflow_paimon.core.table.manifest_entries import read_index_entries
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.paths import INDEX_DIR
from airflow_paimon.core.table.table import Table
from airflow_paimon.data.key_locations import KeyLocations, read_key_locations

_CACHED_BYTES = 1 << 30
_MOST_CHECKED = 1000
_AT_ONCE_BYTES = 64 << 20

_LEAST_KEPT = 1 << 20
"""Bytes of a partition's indexes from which on a process keeps what it writes: smaller ones are soon read again."""

_Names = tuple[str, ...]
"""The index files of a partition, whose names are never used again, in order."""


_Place = tuple[str, str, bytes]
"""A partition: URI and label of its table, and its values."""


class _ReadIndexes:
    """The indexes that this process has read or written, the last one of each partition, up to ``_CACHED_BYTES``; and
    which ones it has checked.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # several threads may write
        self._known: OrderedDict[_Place, tuple[_Names, ByBucket]] = OrderedDict()
        self._bytes = 0
        self._checked: OrderedDict[_Names, None] = OrderedDict()

    def known(self, place: _Place, names: _Names) -> ByBucket | None:
        with self._lock:
            held, found = self._known.get(place, ((), None))
            if found is None or held != names:
                return None
            self._known.move_to_end(place)
            return found

    def keep(self, place: _Place, names: _Names, known: ByBucket) -> None:
        with self._lock:
            self._drop(place)
            self._known[place] = names, known
            self._bytes += known.nbytes
            while len(self._known) > 1 and self._bytes > _CACHED_BYTES:
                self._drop(next(iter(self._known)))

    def drop(self, place: _Place) -> None:
        with self._lock:
            self._drop(place)

    def _drop(self, place: _Place) -> None:
        if place in self._known:
            self._bytes -= self._known.pop(place)[1].nbytes

    def is_checked(self, names: _Names) -> bool:
        """Whether it was found that no hash is in two buckets."""
        return names in self._checked

    def note_checked(self, names: _Names) -> None:
        with self._lock:
            self._checked[names] = None
            while len(self._checked) > _MOST_CHECKED:
                self._checked.popitem(last=False)


_seen = _ReadIndexes()


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicBuckets:
    """What a write has to know of a table's dynamic buckets. Picklable.

    ``indexes``: the hash indexes of each partition (in canonical form), one a bucket. ``unindexed``: buckets with files
    but without an index. ``places``: where the keys live whose partition may change; such a table has no index.
    ``sizes``: of each partition, how many hashes each bucket has; then the known bucket of each row comes along with
    it, and nothing is read. ``checks``: see ``assigner``.
    """

    store: Store
    label: str
    schema: TableSchema
    rules: BucketRules
    indexes: Mapping[bytes, tuple[IndexEntry, ...]] = field(default_factory=dict)
    unindexed: Mapping[bytes, tuple[int, ...]] = field(default_factory=dict)
    places: KeyLocations | None = None
    sizes: Mapping[bytes, Mapping[int, int]] | None = None
    checks: bool = True

    def after_look_up(self) -> DynamicBuckets:
        """Return what the tasks have to know that get each row's known bucket with it: a few bytes a bucket."""
        if self.sizes is not None:
            return self
        if self.places is not None:
            sizes = self.places.sizes
        else:
            sizes = {p: {e.bucket: e.row_count for e in entries} for p, entries in self.indexes.items()}
        return replace(self, indexes={}, unindexed={}, places=None, sizes=sizes)

    def assigner(self, partition: bytes) -> Assigner:
        """Return an assigner for a partition. Without ``checks`` the driver has to call ``check`` before it commits: it
        takes longer than all else here, and would be done in each process that assigns.

        Raises:
            FormatError: its index is damaged; a write could put a key into a second bucket.
        """
        # where keys are looked up, not hashes, a new key may go to another bucket than an old one with its hash
        sizes = self.sizes if self.places is None else self.places.sizes
        if sizes is not None:
            return Assigner(ByBucket(), sizes.get(partition, {}), self.rules)
        entries = self.indexes.get(partition, ())
        if self.unindexed.get(partition):
            raise self._damaged(partition, f"bucket {self.unindexed[partition][0]} has data files but no hash index")
        return Assigner(self._known(partition, entries), {e.bucket: e.row_count for e in entries}, self.rules)

    def check(self, partition: bytes) -> None:
        """See that no hash is in two buckets of a partition, unless this process has seen it before.

        Raises:
            FormatError: see ``assigner``.
        """
        entries = self.indexes.get(partition, ())
        names = _names_of(entries)
        if len(entries) < 2 or _seen.is_checked(names):
            return
        if self.checks:
            self._known(partition, entries)  # which keeps them for the new index files
            return
        with self._whole(partition):
            check_hashes(self._read_all(partition, entries))
        _seen.note_checked(names)

    def shares(self, partition: bytes) -> int:
        """Return how many tasks can assign buckets of a partition; no index file is read."""
        return self.rules.shares_of(len({e.bucket for e in self.indexes.get(partition, ())}))

    def hashes(self, partition: bytes, bucket: int) -> Hashes:
        """Return the hashes that the index of a bucket holds."""
        entries = self.indexes.get(partition, ())
        entry = next((e for e in entries if e.bucket == bucket), None)
        known = _seen.known(self._place(partition), _names_of(entries))
        if known is not None:
            return dict(known.parts).get(bucket, np.empty(0, np.int32))
        return np.empty(0, np.int32) if entry is None else self._read(partition, [entry])[0]

    def kept(self, partition: bytes) -> ByBucket | None:
        """Return the index of a partition if this process holds it, has checked it, and it is not small."""
        names = _names_of(self.indexes.get(partition, ()))
        known = _seen.known(self._place(partition), names)
        worth = known is not None and known.nbytes >= _LEAST_KEPT and _seen.is_checked(names)
        return known if worth else None

    def keep_extended(self, partition: bytes, written: Mapping[int, tuple[str, bytes]]) -> None:
        """Keep the index of a partition with the files of these buckets (name and content), which this process has
        written, instead of the one before: its next write doesn't have to read it.

        The new hashes were looked up in all buckets. So where no hash was in two of them, none is now.
        """
        known, entries = self.kept(partition), self.indexes.get(partition, ())
        if known is None:
            return
        parts = {bucket: hashes for bucket, hashes in known.parts if bucket not in written}
        names = {e.bucket: e.file_name for e in entries}
        for bucket, (name, data) in written.items():
            parts[bucket], names[bucket] = read_hash_index(data, len(data) // 4, name=name), name
        now = tuple(sorted(names.values()))
        _seen.keep(self._place(partition), now, ByBucket(tuple(parts.items())))
        _seen.note_checked(now)

    def _known(self, partition: bytes, entries: Sequence[IndexEntry]) -> ByBucket:
        if not entries:
            return ByBucket()
        place, names = self._place(partition), _names_of(entries)
        found = _seen.known(place, names)
        if found is None:
            _seen.drop(place)  # that of an earlier snapshot: its memory can hold this one
            found = self._read_all(partition, entries)
        if self.checks and not _seen.is_checked(names):
            with self._whole(partition):
                check_hashes(found)
            _seen.note_checked(names)
        _seen.keep(place, names, found)
        return found

    def _read_all(self, partition: bytes, entries: Sequence[IndexEntry]) -> ByBucket:
        return ByBucket.of(zip((e.bucket for e in entries), self._read(partition, entries), strict=True))

    def _place(self, partition: bytes) -> _Place:
        return self.store.uri, self.label, partition

    def _read(self, partition: bytes, entries: Sequence[IndexEntry]) -> list[Hashes]:
        if len({e.bucket for e in entries}) < len(entries):
            raise self._damaged(partition, "a bucket has several hash indexes")
        try:
            paths = [e.external_path or f"{INDEX_DIR}/{e.file_name}" for e in entries]
            found = zip(entries, self.store.read_many(paths), strict=True)
            return [read_hash_index(data, e.row_count, name=e.file_name) for e, data in found]
        except NotFoundError as error:
            raise self._damaged(partition, f"a hash index is missing ({error.message})") from None
        except FormatError as error:
            raise self._damaged(partition, error.message) from None

    @contextmanager
    def _whole(self, partition: bytes) -> Iterator[None]:
        try:
            yield
        except FormatError as error:
            raise self._damaged(partition, error.message) from None

    def _damaged(self, partition: bytes, why: str) -> FormatError:
        stored = StoredPartitions(self.schema)
        where = f"partition {stored.text(partition)}" if self.schema.partition_keys else "the table"
        return FormatError(
            f"{self.label}: {where} can't be written, as a key could get into two buckets: {why}. Read its rows and "
            "write them back with mode=overwrite; or stop the writers and run repair_table --finding "
            "hash-index:BRANCH",
            code="broken-hash-index",
            details={"partition": stored.text(partition)},
        )


def _names_of(entries: Iterable[IndexEntry]) -> _Names:
    return tuple(sorted(e.file_name for e in entries))


def plan_dynamic_buckets(
    table: Table,
    schema: TableSchema,
    head: Snapshot | None,
    live: Iterable[BucketKey],
    *,
    tasks: int,
    tasks_share_buckets: bool,
) -> DynamicBuckets | None:
    """Read which hash indexes a table has, or where its keys live. ``head``: None = none, every key is new; ``live``:
    its buckets with files, in canonical form.

    ``tasks`` and ``tasks_share_buckets`` are those of ``bucket_rules``. None: the table has no dynamic buckets.
    """
    if not has_dynamic_buckets(schema):
        return None
    rules = bucket_rules(TableOptions(schema.options), tasks=tasks, tasks_share_buckets=tasks_share_buckets)
    if schema.crosses_partitions:
        places = read_key_locations(table, schema, head)
        _refuse_double_keys(table, schema, places)
        return DynamicBuckets(store=table.store, label=table.label, schema=schema, rules=rules, places=places)
    form = StoredPartitions(schema).canonical
    indexes: dict[bytes, tuple[IndexEntry, ...]] = {}
    for entry in read_index_entries(table, head):
        if entry.index_type == INDEX_TYPE:
            key = form(entry.partition)
            indexes[key] = (*indexes.get(key, ()), entry)
    indexed = {BucketKey(partition, e.bucket) for partition, entries in indexes.items() for e in entries}
    lacking: dict[bytes, tuple[int, ...]] = {}
    for partition, bucket in sorted(set(live) - indexed):
        lacking[partition] = (*lacking.get(partition, ()), bucket)
    return DynamicBuckets(
        store=table.store,
        label=table.label,
        schema=schema,
        rules=rules,
        indexes=indexes,
        unindexed=lacking,
    )


def _refuse_double_keys(table: Table, schema: TableSchema, places: KeyLocations) -> None:
    """Refuse to write where a look-up would find one of two rows."""
    text = StoredPartitions(schema).text
    for key, one, other in places.duplicates(1):
        raise FormatError(
            f"{table.label} can't be written, as the key {key} is in {text(one.partition)} and in "
            f"{text(other.partition)}: overwrite one of the partitions without it (write_table or write_arrow with "
            f"mode=overwrite)"
        )


class Assigners:
    """The assigners of one task or process, by partition."""

    def __init__(self, dynamic: DynamicBuckets | None) -> None:
        self._dynamic = dynamic
        self._by_partition: dict[bytes, Assigner] = {}

    def of(self, partition: bytes) -> Assigner:
        """Return the assigner of a partition; see ``DynamicBuckets.assigner``."""
        assert self._dynamic is not None, "only tables with dynamic buckets assign them"
        if partition not in self._by_partition:
            self._by_partition[partition] = self._dynamic.assigner(partition)
        return self._by_partition[partition]

    def with_hashes(self, messages: Iterable[CommitMessage]) -> list[CommitMessage]:
        """Return the messages with the new hashes of their buckets."""
        added = {
            BucketKey(partition, bucket): write_hash_index(hashes)
            for partition, assigner in self._by_partition.items()
            for bucket, hashes in assigner.added().items()
        }
        return [replace(m, hashes=added[m.key]) if m.key in added else m for m in messages]


def check_indexes_of(dynamic: DynamicBuckets | None, messages: Iterable[CommitMessage]) -> None:
    """Check the indexes of the partitions that tasks have written to without ``checks``.

    Raises:
        FormatError: see ``DynamicBuckets.assigner``; nothing may be committed.
    """
    if dynamic is not None:
        form = StoredPartitions(dynamic.schema).canonical
        for partition in sorted({form(m.partition) for m in messages}):
            dynamic.check(partition)


def with_hash_indexes(dynamic: DynamicBuckets | None, messages: Sequence[CommitMessage]) -> list[CommitMessage]:
    """Write the index files of buckets with new hashes; return the messages with their entries, to be committed.

    A bucket without files needs no index.
    """
    if dynamic is None or dynamic.places is not None:
        return [replace(m, hashes=b"") if m.hashes else m for m in messages]
    bucket_of = StoredPartitions(dynamic.schema).bucket
    added: dict[BucketKey, list[bytes]] = {}
    for message in messages:
        if message.new_files and message.hashes:
            added.setdefault(bucket_of(message), []).append(message.hashes)
    out: list[CommitMessage] = []
    stamp = uuid.uuid4()
    files: dict[str, bytes] = {}
    written: dict[bytes, dict[int, tuple[str, bytes]]] = {}
    size = 0
    for message in messages:
        key = bucket_of(message)
        parts = added.pop(key, None) if message.new_files else None
        index = None
        if parts is not None:
            name = f"index-{stamp}-{len(out)}"
            data = files[f"{INDEX_DIR}/{name}"] = _extended(dynamic, key, parts)
            size += len(data)
            if dynamic.kept(key.partition) is not None:
                written.setdefault(key.partition, {})[key.bucket] = name, data
            index = hash_index_entry(message.partition, message.bucket, name, data)
        out.append(replace(message, hashes=b"", index=index))
        if size > _AT_ONCE_BYTES:
            dynamic.store.create_many(files)
            files, size = {}, 0
    dynamic.store.create_many(files)
    for partition, of_buckets in written.items():
        dynamic.keep_extended(partition, of_buckets)
    return out


def _extended(dynamic: DynamicBuckets, key: BucketKey, added: Sequence[bytes]) -> bytes:
    new = [read_hash_index(part, len(part) // 4, name="a task") for part in added]
    return extended_hash_index(dynamic.hashes(key.partition, key.bucket), np.concatenate(new))
