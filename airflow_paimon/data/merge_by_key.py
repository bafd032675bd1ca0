"""Merges buckets that a branch and main both changed, key by key, and writes each that changes as one sorted run.

Three states of the buckets are read side by side, in bounded memory: at the base, on the branch and on main's head. A
row is what a full compaction makes of a key's versions, so the merge engine doesn't matter. Rows of main keep their
sequence numbers; those of the branch get none above the highest of the branch point and of main, so that later rows of
an open writer win over them (``data/rewrite.py``). Of columns that only main has they get main's values.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_paimon.core.commit.conditions import has_dynamic_buckets
from airflow_paimon.core.format.hash_index import (
    INDEX_TYPE,
    Hashes,
    extended_hash_index,
    hash_index_entry,
    read_hash_index,
)
from airflow_paimon.core.format.manifest import FileKind, IndexEntry, ManifestEntry
from airflow_paimon.core.publish.bucket_files import BucketFiles
from airflow_paimon.core.publish.bucket_merge_plan import highest_sequence, key_group
from airflow_paimon.core.publish.key_merge import TAKE_BRANCH, KeyMergeRequest, KeyMergeResult
from airflow_paimon.core.table.bucket import hash_rows
from airflow_paimon.core.table.internal_columns import internal_column
from airflow_paimon.core.table.live_files import BucketKey, BucketSplit
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.paths import INDEX_DIR
from airflow_paimon.data.diff.keyed import changed_rows, json_rows
from airflow_paimon.data.files.arrow_types import SEQUENCE_NUMBER, VALUE_KIND, replaced
from airflow_paimon.data.files.write import ROW_GROUP_BYTES, FileTarget, RollingWriter, abandoned_on_failure
from airflow_paimon.data.merge.engine import Deduplicate, MergeRules
from airflow_paimon.data.merge.runs import align_runs
from airflow_paimon.data.merge.sort_keys import Keys, sort_keys
from airflow_paimon.data.merge_changelog import SIDE, live_rows, rows_of_side
from airflow_paimon.data.net_changelog import BucketState, bucket_states
from airflow_paimon.data.read import read_stored, read_versions
from airflow_paimon.data.read_splits import fitting_rows
from airflow_paimon.data.rewrite import NEW_BUCKET

_BUCKET = internal_column("bucket")
_LISTED = 5
_MEMORY = 256 << 20
_MOST_KEPT = 256 << 20
"""Bytes of changed keys that are kept, to tell whether rows that come meanwhile have one of them."""


def merge_by_key(wanted: KeyMergeRequest) -> KeyMergeResult:
    """Merge buckets by key: in this process, those after one another between which no key may move.

    Raises:
        FormatError: a file is missing or corrupt; the written files are deleted.
    """
    group_of = key_group(wanted.schema)
    groups: dict[object, set[BucketKey]] = {}
    for bucket in sorted(wanted.buckets):
        groups.setdefault(group_of(bucket), set()).add(bucket)
    done: list[_BucketGroup] = []
    with abandoned_on_failure(done):
        for buckets in groups.values():
            done.append(_BucketGroup(wanted, buckets))
            done[-1].merge()
        stopped = wanted.on_overlap is None and any(g.overlapping for g in done)
        if stopped:
            for group in done:
                group.abandon()
        return KeyMergeResult(
            files={} if stopped else {b: files for g in done for b, files in g.files.items()},
            index=[] if stopped else [i for g in done for i in g.write_indexes()],
            changed=sum(g.changed_keys for g in done),
            overlapping=sum(g.overlapping for g in done),
            samples=[s for g in done for s in g.samples][:_LISTED],
            meets=lambda entries: _has_changed_key(wanted, {group_of(b): g for g in done for b in g.buckets}, entries),
        )


@dataclass(frozen=True, slots=True)
class _StateRows:
    """Rows of one state in a stretch of keys, each key once, without deletes."""

    rows: pa.RecordBatch | None
    keys: Keys

    def at(self, positions: npt.NDArray[np.int64]) -> _StateRows:
        return _StateRows(None if self.rows is None else self.rows.take(pa.array(positions)), self.keys[positions])

    def among(self, keys: Keys) -> _StateRows:
        return self.at(np.flatnonzero(np.isin(self.keys, keys)))


@dataclass(slots=True)
class _BucketGroup:
    """Buckets between which keys may move, and what is found and written of them."""

    wanted: KeyMergeRequest
    buckets: set[BucketKey]
    files: dict[BucketKey, list[ManifestEntry]] = field(default_factory=dict)
    changed_keys: int = 0
    overlapping: int = 0
    samples: list[Mapping[str, Any]] = field(default_factory=list)
    _kept: list[pa.RecordBatch] | None = field(default_factory=list)
    _writers: dict[int, RollingWriter] = field(default_factory=dict)
    _changed: set[int] = field(default_factory=set)
    _hashes: dict[int, list[Hashes]] = field(default_factory=dict)
    _places: dict[int, BucketSplit] = field(default_factory=dict)
    _index: dict[int, Hashes] = field(default_factory=dict)
    _indexes: list[str] = field(default_factory=list)

    def merge(self) -> None:
        """Compare the three states, and write the buckets that change."""
        wanted, schema = self.wanted, self.wanted.schema
        sides = [self._states(s) for s in (wanted.base, wanted.theirs, wanted.ours)]
        for side in sides:
            self._places |= {split.bucket.bucket: split.bucket for _, split in side}
        self._index = self._read_indexes()
        some = next(iter(self._places.values()))
        self._places = {b: replace(some, bucket=b) for b in self._index} | self._places
        runs = [_run(state, at) for at, side in enumerate(sides) for state in side]
        rules = MergeRules(keys=schema.trimmed_primary_keys, engine=Deduplicate())
        for slices, keys in align_runs(runs, rules):
            self._step(*_rows_by_state(slices, keys))
        for bucket in sorted(self._changed | self._writers.keys()):
            writer = self._writers.get(bucket)
            if bucket in self._changed:
                place, files = self._places[bucket], () if writer is None else writer.finish()
                self.files[self._key(bucket)] = [
                    ManifestEntry(FileKind.ADD.value, place.partition, bucket, place.total_buckets, f) for f in files
                ]
            elif writer is not None:
                writer.abandon()

    def abandon(self) -> None:
        """Delete what was written."""
        for writer in self._writers.values():
            writer.abandon()
        for path in self._indexes:
            self.wanted.target.store.delete(path)

    def _states(self, state: BucketFiles) -> list[BucketState]:
        target, schema = self.wanted.target, self.wanted.schema
        splits = [s for s in state.splits(schema) if BucketKey(s.partition, s.bucket) in self.buckets]
        found = bucket_states(target, schema, splits, state)
        return [(fitting_rows(read, split.files, _MEMORY // len(found)), split) for read, split in found]

    def _step(self, base: _StateRows, theirs: _StateRows, ours: _StateRows) -> None:
        """Merge a stretch of keys."""
        apart = [*self.wanted.schema.trimmed_primary_keys, _BUCKET, SEQUENCE_NUMBER, VALUE_KIND]
        mine, alike = _differing(base, theirs, apart), self.wanted.equal_rows_overlap
        known = apart if alike else [*apart, *self.wanted.columns_of_target]
        gone = np.setdiff1d(mine, theirs.keys, assume_unique=True)  # with all that main has of them
        left = np.setdiff1d(mine, gone, assume_unique=True)
        both = np.concatenate(
            [_differing(base.among(k), ours.among(k), names) for k, names in ((left, known), (gone, apart))]
        )
        overlapping = both if alike else _differing(theirs.among(both), ours.among(both), known)
        taken = np.setdiff1d(mine, both, assume_unique=True)
        if self.wanted.on_overlap == TAKE_BRANCH:
            taken = np.concatenate([taken, overlapping])
        self._count_overlaps(base, theirs, ours, mine, overlapping)
        if self.overlapping and self.wanted.on_overlap is None:
            return
        self.changed_keys += len(taken)
        self._write(theirs.among(taken), ours, taken)

    def _count_overlaps(
        self, base: _StateRows, theirs: _StateRows, ours: _StateRows, mine: Keys, overlapping: Keys
    ) -> None:
        self.overlapping += len(overlapping)
        names = list(self.wanted.schema.primary_keys)
        if len(overlapping) and len(self.samples) < _LISTED:
            some = overlapping[:_LISTED]
            rows = (side.among(some).rows for side in (theirs, ours))
            found = [row for batch in rows if batch is not None for row in json_rows(batch.select(names))]
            self.samples += [row for at, row in enumerate(found) if row not in found[:at]]
        if self._kept is None or not len(mine):
            return
        gone = base.among(np.setdiff1d(mine, theirs.keys))
        self._kept += [s.rows.select(names) for s in (theirs.among(mine), gone) if s.rows is not None]
        if sum(batch.nbytes for batch in self._kept) > _MOST_KEPT:
            self._kept = None

    def _write(self, theirs: _StateRows, ours: _StateRows, taken: Keys) -> None:
        """Write the rows of main, those of ``taken`` keys as the branch has them."""
        replaced = np.isin(ours.keys, taken)
        if ours.rows is not None:
            self._changed.update(np.unique(_numbers(ours.rows, _BUCKET)[replaced]).tolist())
        kept = ours.at(np.flatnonzero(~replaced))
        parts: list[tuple[pa.RecordBatch, Keys, npt.NDArray[np.int64]]] = []
        if kept.rows is not None:
            parts.append((kept.rows, kept.keys, _numbers(kept.rows, _BUCKET)))
        if theirs.rows is not None and len(theirs.keys):
            buckets = self._buckets_of(theirs, ours)
            self._changed.update(np.unique(buckets).tolist())
            rows = self._completed(theirs.rows, theirs.keys, ours)
            parts.append((self._numbered(rows, buckets), theirs.keys, buckets))
        if not parts:
            return
        order = np.argsort(np.concatenate([keys for _, keys, _ in parts]), kind="stable")
        rows = pa.concat_batches([rows for rows, _, _ in parts]).take(pa.array(order))
        rows = rows.select([*self.wanted.schema.field_names, VALUE_KIND, SEQUENCE_NUMBER])
        buckets = np.concatenate([found for _, _, found in parts])[order]
        for bucket in np.unique(buckets).tolist():
            self._writer(bucket).write(rows.filter(pa.array(buckets == bucket)))

    def _completed(self, rows: pa.RecordBatch, keys: Keys, ours: _StateRows) -> pa.RecordBatch:
        """Give rows of the branch main's values of the columns of which the branch doesn't know."""
        if ours.rows is None:
            return rows
        _, at, known = np.intersect1d(keys, ours.keys, assume_unique=True, return_indices=True)
        places = np.full(len(keys), -1, np.int64)
        places[at] = known
        taken = pa.array(places, mask=places < 0)
        for name in self.wanted.columns_of_target:
            rows = replaced(rows, name, ours.rows.column(name).take(taken))
        return rows

    def _buckets_of(self, theirs: _StateRows, ours: _StateRows) -> npt.NDArray[np.int64]:
        """Return the bucket of each row of the branch: main's, if main knows the key, or its hash."""
        assert theirs.rows is not None
        buckets = _numbers(theirs.rows, _BUCKET).copy()
        _, at, known = np.intersect1d(theirs.keys, ours.keys, assume_unique=True, return_indices=True)
        if len(at):
            buckets[at] = _numbers(ours.rows, _BUCKET)[known]
        schema = self.wanted.schema
        if not has_dynamic_buckets(schema):
            return buckets
        new = np.setdiff1d(np.arange(len(buckets)), at)
        fields = [schema.field(name) for name in schema.trimmed_primary_keys]
        rows = theirs.rows.take(pa.array(new))
        hashes = hash_rows([rows.column(f.name) for f in fields], [f.type for f in fields])
        for bucket, held in self._index.items():
            buckets[new[np.isin(hashes, held)]] = bucket
        for bucket in np.unique(buckets[new]).tolist():
            self._hashes.setdefault(bucket, []).append(hashes[buckets[new] == bucket])
        return buckets

    def _numbered(self, rows: pa.RecordBatch, buckets: npt.NDArray[np.int64]) -> pa.RecordBatch:
        own, at = np.unique(buckets, return_inverse=True)
        known = [(self._highest(b), self.wanted.limits.get(self._key(b), NEW_BUCKET)) for b in own.tolist()]
        limits = np.array(list(map(min, known)), np.int64)[at]
        return replaced(rows, SEQUENCE_NUMBER, np.minimum(_numbers(rows, SEQUENCE_NUMBER), limits))

    def _highest(self, bucket: int) -> int:
        """Return the highest sequence number that main has in a bucket."""
        return highest_sequence([e.file for e in self.wanted.ours.entries.get(self._key(bucket), ())])

    def _key(self, bucket: int) -> BucketKey:
        return BucketKey(self._places[bucket].partition, bucket)

    def _writer(self, bucket: int) -> RollingWriter:
        if bucket not in self._writers:
            place, schema = self._places[bucket], self.wanted.schema
            target = FileTarget(
                store=self.wanted.target.store,
                schema=schema,
                values=place.values,
                bucket=bucket,
                level=TableOptions(schema.options).num_levels - 1,
                max_sequence=self._highest(bucket),
            )
            self._writers[bucket] = RollingWriter(target, group_bytes=ROW_GROUP_BYTES // len(self.buckets))
        return self._writers[bucket]

    def _read_indexes(self) -> dict[int, Hashes]:
        """Read which hashes main has in these buckets, if they are dynamic; one may have no rows any more."""
        bucket_of, group_of = StoredPartitions(self.wanted.schema).bucket, key_group(self.wanted.schema)
        own = set(map(group_of, self.buckets))
        return {
            i.bucket: read_hash_index(
                self.wanted.target.store.read(i.external_path or f"{INDEX_DIR}/{i.file_name}"),
                i.row_count,
                name=i.file_name,
            )
            for i in self.wanted.ours.index
            if i.index_type == INDEX_TYPE and group_of(bucket_of(i)) in own
        }

    def write_indexes(self) -> Iterator[IndexEntry]:
        """Write the hash indexes of the buckets that get new hashes."""
        store, stamp = self.wanted.target.store, uuid.uuid4()
        for bucket, added in sorted(self._hashes.items()):
            known, new = self._index.get(bucket, np.empty(0, np.int32)), np.concatenate(added)
            if np.isin(new, known).all():
                continue
            name, data = f"index-{stamp}-{bucket}", extended_hash_index(known, new)
            self._indexes.append(f"{INDEX_DIR}/{name}")
            store.create_many({self._indexes[-1]: data})
            yield hash_index_entry(self._places[bucket].partition, bucket, name, data)

    def holds_one_of(self, rows: pa.RecordBatch) -> bool:
        """Whether one of these rows has a key that the branch changed."""
        if self._kept is None:
            return True
        if not self._kept or not rows.num_rows:
            return False
        names = self.wanted.schema.trimmed_primary_keys
        changed = pa.concat_batches(self._kept)
        mine, others = sort_keys([[batch.column(n) for n in names] for batch in (changed, rows)])
        return bool(np.isin(others, mine).any())


def _run(state: BucketState, at: int) -> Iterator[pa.RecordBatch]:
    read, split = state
    for batch in read_versions(read, split):
        for name, value, kind in ((SIDE, at, np.int8), (_BUCKET, split.bucket.bucket, np.int64)):
            batch = batch.append_column(name, pa.array(np.full(batch.num_rows, value, kind)))
        yield batch


def _rows_by_state(slices: Sequence[pa.RecordBatch], keys: Sequence[Keys]) -> list[_StateRows]:
    """Return the live rows of each state."""
    states = [_StateRows(*rows_of_side(slices, keys, at)) for at in range(3)]
    return [state.at(live_rows(state.rows)) for state in states]


def _differing(one: _StateRows, other: _StateRows, apart: Sequence[str]) -> Keys:
    """Return the keys that only one of two states has, or that have other values. ``apart``: columns not compared."""
    alone = np.setxor1d(one.keys, other.keys, assume_unique=True)
    same, at_one, at_other = np.intersect1d(one.keys, other.keys, assume_unique=True, return_indices=True)
    if not len(same):
        return alone
    changed = changed_rows(one.at(at_one).rows, other.at(at_other).rows, apart)
    return np.concatenate([alone, same[changed]])


def _numbers(rows: pa.RecordBatch, name: str) -> npt.NDArray[np.int64]:
    return np.asarray(rows.column(name).to_numpy(), np.int64)


def _has_changed_key(
    wanted: KeyMergeRequest, groups: Mapping[object, _BucketGroup], entries: Iterable[ManifestEntry]
) -> bool:
    """Whether files that main got meanwhile hold a key that the branch changed."""
    schema, target = wanted.schema, wanted.target
    stored, group_of = StoredPartitions(schema), key_group(schema)
    fields = [schema.field(name) for name in schema.trimmed_primary_keys]
    for entry in entries:
        if entry.file.schema_id != schema.id:
            return True
        bucket = stored.bucket(entry)
        files = BucketFiles(entries={bucket: [entry]}, index=(), schemas={schema.id: schema})
        [(read, one)] = bucket_states(target, schema, files.splits(schema), files)
        group = groups[group_of(bucket)]
        if any(map(group.holds_one_of, read_stored(read, one, fields))):
            return True
    return False
