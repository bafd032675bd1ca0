"""What must hold of a head for a commit to go on top of it: values that a draft lists, and ``commit`` checks.

A condition that doesn't hold ends the commit: what it was computed from is no longer there, so the caller has to read
and compute again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from airflow_paimon.core.commit.cache import CommitCache
from airflow_paimon.core.commit.partition_contents import names_digest
from airflow_paimon.core.errors import ConflictError, FormatError, NotFoundError
from airflow_paimon.core.format.hash_index import INDEX_TYPE
from airflow_paimon.core.format.manifest import DataFile, FileKind, IndexEntry, ManifestEntry
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import Snapshot, SnapshotRef
from airflow_paimon.core.row_tracking.row_ids_plan import refuse_without_ids
from airflow_paimon.core.table.live_files import BucketKey
from airflow_paimon.core.table.manifest_entries import read_index_entries
from airflow_paimon.core.table.open_writers import refuse_open
from airflow_paimon.core.table.open_writers_plan import remembers_replaced_rows
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partitions import Selection, StoredPartitions
from airflow_paimon.core.table.properties import KEYS_PROPERTY
from airflow_paimon.core.table.scan import ScanPlan
from airflow_paimon.core.table.table import Table

if TYPE_CHECKING:
    from airflow_paimon.core.commit.draft import CommitMessage

KEYS_STAY = {KEYS_PROPERTY: "stay"}
"""Snapshot property of a commit after which every key that is left is in the bucket that it was in."""
_LISTED = 20


@dataclass(eq=False)
class HeadState:
    """A branch's head, as one attempt of a commit reads it: once for the conditions and the draft.

    ``head`` None: the branch has no snapshot yet. ``cache``: what earlier attempts have read. ``stopped_at``: the head
    when the operation began, which may have been tried before, if no writer of another engine was open then. No
    ``cached_property`` reads here: before Python 3.12 it holds one lock for all instances, so that commits of other
    threads would wait for this one's storage.
    """

    table: Table
    head: Snapshot | None
    cache: CommitCache
    _schema: TableSchema | None = None
    stopped_at: SnapshotRef | None = None
    _stored: StoredPartitions | None = None
    _index: Sequence[IndexEntry] | None = None
    _read: dict[frozenset[bytes], Mapping[BucketKey, list[ManifestEntry]]] = field(default_factory=dict)

    @property
    def schema(self) -> TableSchema:
        if self._schema is None:
            self._schema = self.table.schema()
        return self._schema

    @property
    def stored(self) -> StoredPartitions:
        if self._stored is None:
            self._stored = StoredPartitions(self.schema)
        return self._stored

    @property
    def index(self) -> Sequence[IndexEntry]:
        if self._index is None:
            self._index = read_index_entries(self.table, self.head)
        return self._index

    def index_without(self, dropped: Callable[[bytes], bool] | None) -> Sequence[IndexEntry] | None:
        """Return the index entries of all partitions but the dropped ones (None: all); None: the head has no index."""
        if self.head is None or not self.head.index_manifest:
            return None
        return [] if dropped is None else [i for i in self.index if not dropped(i.partition)]

    def live(self, selection: Selection | None) -> Iterable[ManifestEntry]:
        """Return the live files of some partitions; None: all."""
        return self.cache.live(self.head, selection).values()

    def since(self, planned: Snapshot | None, selection: Selection) -> Iterable[ManifestEntry]:
        """Return entries committed after ``planned``; all live entries when a snapshot in between has expired."""
        return self.cache.since(planned, self.head, selection) if self.head is not None else ()

    def buckets(self, partitions: Iterable[bytes]) -> Mapping[BucketKey, list[ManifestEntry]]:
        """Return the live files of some partitions, by bucket."""
        wanted = list(partitions)
        key = frozenset(map(self.stored.canonical, wanted))
        if key not in self._read:
            self._read[key] = self.stored.by_bucket(self.live(self.stored.those(wanted)) if wanted else ())
        return self._read[key]

    def conflict(self, why: str, **details: Any) -> ConflictError:
        return ConflictError(f"{self.table.label}: {why}", details=details)

    def rescaled(self, entry: ManifestEntry) -> ConflictError:
        return self.conflict(
            f"partition {self.stored.text(entry.partition) or '()'} was meanwhile rescaled to "
            f"{entry.total_buckets} buckets; write the rows again"
        )


class Condition(Protocol):
    """A condition of a commit."""

    def check(self, at: HeadState) -> None:
        """Check it on the head that the commit is to go on top of.

        Raises:
            ConflictError: it doesn't hold; nothing was published.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaIs:
    """The branch's newest schema is still this one."""

    schema: TableSchema
    why: str

    def check(self, at: HeadState) -> None:
        if at.schema.identity != self.schema.identity:
            raise at.conflict(self.why)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaIsKept:
    """The branch has still this schema version, which files were written with; newer ones may have come.

    A table that is dropped and made anew numbers its schemas anew, and the drop has deleted files of the write.
    """

    schema: TableSchema

    def check(self, at: HeadState) -> None:
        try:
            there = at.schema if at.schema.id == self.schema.id else at.table.schema(self.schema.id)
            kept = there.identity == self.schema.identity
        except NotFoundError:
            kept = False
        if not kept:
            raise at.conflict(
                f"the table was recreated, or its schema {self.schema.id} replaced, after these rows were written; "
                "repeat the write"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class NumbersAreFree:
    """No bucket has got rows with the sequence numbers of these files since ``planned_on``, and no partition another
    bucket count.
    """

    messages: Sequence[CommitMessage]
    planned_on: Snapshot | None

    def check(self, at: HeadState) -> None:
        planned, head, form = self.planned_on, at.head, at.stored.canonical
        if head is None or (planned is not None and planned.identity == head.identity):
            return
        if not at.schema.primary_keys and all(m.total_buckets == -1 for m in self.messages):
            return
        since = at.since(planned, at.stored.those(m.partition for m in self.messages))
        counts = {form(m.partition): m.total_buckets for m in self.messages}
        lowest = {
            at.stored.bucket(m): min(f.min_sequence_number for f in m.new_files) for m in self.messages if m.new_files
        }
        for entry in since:
            if entry.kind != FileKind.ADD:
                continue
            if entry.total_buckets > 0 and counts[form(entry.partition)] not in (entry.total_buckets, -1):
                raise at.rescaled(entry)
            low = lowest.get(at.stored.bucket(entry))
            if at.schema.primary_keys and low is not None and entry.file.max_sequence_number >= low:
                raise at.conflict(
                    f"bucket {entry.bucket} of partition {at.stored.text(entry.partition) or '()'} got rows with the "
                    f"same sequence numbers meanwhile; write the rows again"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketsAreClosed:
    """No running job of another engine may have a bucket open of which files are replaced, where that would give
    wrong rows (``core/table/open_writers.py``). ``schema``: the writers', None: the head's newest.
    """

    replaced: Sequence[CommitMessage | ManifestEntry]
    schema: TableSchema | None = None

    def check(self, at: HeadState) -> None:
        """Raise ``UnsafeOperationError`` if it doesn't hold."""
        schema = self.schema or at.schema
        if at.head is not None and remembers_replaced_rows(schema):
            replaced = set(map(at.stored.bucket, self.replaced))
            refuse_open(at.table, schema, replaced, at.head, time.time_ns() // 1_000_000, "written", at.stopped_at)


def closed(messages: Sequence[CommitMessage]) -> Condition:
    """Return the condition ``BucketsAreClosed`` for the buckets of which files are replaced."""
    return BucketsAreClosed(replaced=[m for m in messages if m.replaced])


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketsAreAssigned:
    """The partitions got no commit since the dynamic buckets of these rows were chosen on ``planned_on``; where keys
    may move between partitions, no partition did.
    """

    messages: Sequence[CommitMessage]
    planned_on: Snapshot | None

    def check(self, at: HeadState) -> None:
        planned, head = self.planned_on, at.head
        if not has_dynamic_buckets(at.schema) or (head is None and planned is None):
            return
        if head is not None and planned is not None and head.identity == planned.identity:
            return
        moving = has_moving_keys(at.schema)
        selection = at.stored.where(lambda _: True) if moving else at.stored.those(m.partition for m in self.messages)
        changed = next(iter(at.since(planned, selection)), None)
        where = at.stored.text(changed.partition) if changed is not None else None
        if where is None and _hash_indexes(at.table, planned, selection) == _hash_indexes(at.table, head, selection):
            return
        raise at.conflict(
            f"another writer committed to partition {where or '()'} after the dynamic buckets of its rows were chosen: "
            f"a key could get into two buckets; write the rows again"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsHaveIds:
    """Where row tracking is on, the table holds no row without an id: no engine updates or compacts both together.

    The option can't be switched on in a table with data, so files are looked at only if an older schema is without it.

    Raises ``UnsafeOperationError``.
    """

    def check(self, at: HeadState) -> None:
        if at.head is None or at.schema.id == 0 or not TableOptions(at.schema.options).row_tracking:
            return
        if all(TableOptions(s.options).row_tracking for s in at.table.schemas()):
            return
        refuse_without_ids(
            at.table.label,
            (e.file for e in at.live(None)),
            "the table holds",
            "Give their rows ids first: read them and overwrite their partitions (or the table) with them",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketsAreAsRead:
    """The live files of each message's bucket are its ``replaced`` ones, and the other buckets of its partition have
    the bucket count that the new files have: else a key would be in two.
    """

    messages: Sequence[CommitMessage]

    def check(self, at: HeadState) -> None:
        now = at.buckets(m.partition for m in self.messages)
        own = {at.stored.bucket(m): m for m in self.messages}
        for place, message in own.items():
            have = {e.identifier._replace(partition=message.partition) for e in now.get(place, ())}
            if have != {e.identifier for e in message.replaced_entries()}:
                raise at.conflict(
                    f"bucket {message.bucket} of partition {at.stored.text(message.partition) or '()'} changed while "
                    f"it was being rewritten; run it again"
                )
        counts = {at.stored.canonical(m.partition): m.total_buckets for m in self.messages if m.new_files}
        for entry in (e for place, entries in now.items() if place not in own for e in entries):
            count = counts.get(at.stored.canonical(entry.partition), -1)
            if entry.total_buckets > 0 and count not in (entry.total_buckets, -1):
                raise at.rescaled(entry)


@dataclass(frozen=True, slots=True, kw_only=True)
class CountsAreKept:
    """No partition that gets new files has files for another number of buckets: a rescale came first."""

    messages: Sequence[CommitMessage]

    def check(self, at: HeadState) -> None:
        new = [m for m in self.messages if m.new_files and m.total_buckets > 0]
        counts = {at.stored.canonical(m.partition): m.total_buckets for m in new}
        for entry in (e for entries in at.buckets(m.partition for m in new).values() for e in entries):
            if entry.total_buckets > 0 and entry.total_buckets != counts[at.stored.canonical(entry.partition)]:
                raise at.rescaled(entry)


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorsAreAsRead:
    """These buckets have the deletion vectors that were ``read``: no other commit has deleted rows of them."""

    places: Container[BucketKey]
    read: Sequence[IndexEntry]

    def check(self, at: HeadState) -> None:
        if self._files(at, self.read) != self._files(at, at.index):
            raise at.conflict("another commit deleted rows of a bucket while it was rewritten; run it again")

    def _files(self, at: HeadState, index: Sequence[IndexEntry]) -> set[tuple[BucketKey, str]]:
        """Return the files with the vectors of these buckets: new vectors have a new file."""
        placed = ((at.stored.bucket(i), i) for i in index if i.deletion_vector_ranges)
        return {(place, i.file_name) for place, i in placed if place in self.places}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsAreAsRead:
    """All files of the buckets of a scan are live, on the same levels; besides, there are only new rows, on level 0."""

    read: ScanPlan

    def check(self, at: HeadState) -> None:
        live = at.buckets(s.partition for s in self.read.splits)
        for split in self.read.splits:
            now = {file_and_level(e.file) for e in live.get(at.stored.bucket(split), ())}
            read = set(map(file_and_level, split.files))
            if not read <= now:
                raise self._moved(at, "its files were replaced")
            if any(level > 0 for _, level in now - read):
                raise self._moved(at, "it got other files than new rows")

    def _moved(self, at: HeadState, why: str) -> ConflictError:
        return at.conflict(f"another commit changed a bucket while it was compacted: {why}; run it again")


def file_and_level(file: DataFile) -> tuple[str, int]:
    """Identify a file of a bucket: Paimon moves a file to another level under its name."""
    return file.file_name, file.level


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsAreAsPlanned:
    """Those of the partitions that are there hold the files that are ``expected``: a digest of their names, by the
    partition's canonical stored form in hex.
    """

    expected: Mapping[str, str]

    def check(self, at: HeadState) -> None:
        names: dict[str, list[str]] = {}
        for entries in at.buckets(map(bytes.fromhex, self.expected)).values():
            for entry in entries:
                names.setdefault(at.stored.canonical(entry.partition).hex(), []).append(entry.file.file_name)
        changed = sorted(
            at.stored.text(bytes.fromhex(k)) for k, found in names.items() if names_digest(found) != self.expected[k]
        )
        if changed:
            raise at.conflict(
                f"{len(changed)} partitions changed since the drop was planned: {', '.join(changed[:_LISTED])}; plan "
                f"again",
                partitions=changed[:_LISTED],
            )


# -- since a write was planned: dynamic buckets ------------------------------------------------------------------------
#
# Entries of a hash index take no part in Paimon's search for conflicts, and the last writer's replaces the others': two
# writers that meet would put a key into two buckets. So a write here holds only where nothing has been committed to its
# partitions since it was planned. See docs/contributing/format.md, Dynamic buckets.


def has_dynamic_buckets(schema: TableSchema) -> bool:
    """Return whether each new key gets a bucket that the next writer has to find again: in an index, or, where the key
    does not tell the partition (``has_moving_keys``), among the keys of the whole table."""
    return bool(schema.primary_keys) and TableOptions(schema.options).bucket == -1


def has_moving_keys(schema: TableSchema) -> bool:
    """Return whether a key has one row in the whole table, and a write may move it to another partition."""
    return schema.crosses_partitions and has_dynamic_buckets(schema)


def _hash_indexes(table: Table, snapshot: Snapshot | None, selection: Selection) -> set[tuple[int, str]]:
    """Return bucket and name of the hash indexes of some partitions; what differs from all if they can't be read."""
    try:
        found = read_index_entries(table, snapshot)
    except FormatError:  # expired meanwhile
        return {(-1, "")}
    return {(i.bucket, i.file_name) for i in found if i.index_type == INDEX_TYPE and selection(i.partition)}
