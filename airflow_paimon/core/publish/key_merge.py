"""Buckets of tables with keys that both sides of a merge changed: merged row by row, by key.

The keys that the branch changed since the base are compared with what the target did to these keys since. Where none is
in common, the bucket becomes the target's with the branch's rows of those keys, written again as one sorted run. Reads
metadata alone; the data layer reads and writes the rows (``MergeByKey``). See
docs/contributing/publishing.md, Merging by key.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_paimon.core.errors import ConflictError, UnsupportedFeatureError
from airflow_paimon.core.format.hash_index import INDEX_TYPE
from airflow_paimon.core.format.manifest import IndexEntry, ManifestEntry
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.publish.bucket_files import BucketFiles
from airflow_paimon.core.publish.bucket_merge_plan import (
    MAX_LISTED,
    Sides,
    bucket_names,
    listed,
    ways_out,
)
from airflow_paimon.core.table.features import check_writable
from airflow_paimon.core.table.live_files import BucketKey
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partitions import BucketOf, StoredPartitions
from airflow_paimon.core.table.paths import POSTPONED_BUCKET
from airflow_paimon.core.table.table import Table

TAKE_BRANCH = "branch"
"""``on_overlap``: of keys that both sides changed the branch's rows are taken; else the target's stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyMergeRequest:
    """Buckets to merge by key: their state at the base, on the branch (``theirs``) and on the target (``ours``).

    ``schema``: by which rows are read and written, the one of the snapshot. ``on_overlap``: whose rows are taken of
    keys that both sides changed; None: it is a conflict. ``equal_rows_overlap``: also where they changed a key to equal
    rows, since two equal sums are two increments, and not one. ``limits``: the highest sequence numbers at the branch
    point, above which no row of the branch may get: a writer may be open since then.
    """

    target: Table
    schema: TableSchema
    base: BucketFiles
    theirs: BucketFiles
    ours: BucketFiles
    limits: Mapping[BucketKey, int]
    on_overlap: str | None = None
    equal_rows_overlap: bool = False

    @property
    def buckets(self) -> set[BucketKey]:
        return {b for state in self._states for b in state.entries}

    @property
    def _states(self) -> tuple[BucketFiles, BucketFiles, BucketFiles]:
        return self.base, self.theirs, self.ours

    @property
    def columns_of_target(self) -> list[str]:
        """The columns of which no file of the base or the branch knows: the branch's rows say nothing of them. One that
        the base alone knows was taken back, and its values with it.
        """
        known = {f.id for state in (self.base, self.theirs) for s in state.schemas.values() for f in s.fields}
        return [f.name for f in self.schema.fields if f.id not in known]

    @property
    def read_bytes(self) -> int:
        """Bytes of the files that are read."""
        return sum(e.file.file_size for s in self._states for group in s.entries.values() for e in group)

    @property
    def content(self) -> object:
        return self.schema.fields, dict(self.schema.options), self.on_overlap, *(s.content for s in self._states)

    @property
    def summary(self) -> dict[str, Any]:
        names = bucket_names(self.schema, self.buckets)
        return {"buckets": names[:MAX_LISTED], "bucket_count": len(names), "read_bytes": self.read_bytes}


def aggregates(schema: TableSchema) -> bool:
    """Whether columns have an aggregate function, so that a row doesn't show which records made it."""
    own = any(key.startswith("fields.") and key.endswith(".aggregate-function") for key in schema.options)
    return own or TableOptions(schema.options).merge_engine == "aggregation"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyMergeResult:
    """What a merge by key has written: the new files of each bucket that changes, and its hash index if that gets keys.

    ``changed``: how many keys the target gets of the branch; ``overlapping``: how many both sides changed differently,
    with ``samples`` of them as JSON objects. ``meets``: whether files that were added to level 0 since hold a key that
    the branch changed. Where keys overlap and nothing says whose rows are taken, nothing is written.
    """

    files: Mapping[BucketKey, Sequence[ManifestEntry]]
    index: Sequence[IndexEntry] = ()
    changed: int = 0
    overlapping: int = 0
    samples: Sequence[Mapping[str, Any]] = ()
    meets: Callable[[Sequence[ManifestEntry]], bool] = lambda entries: True

    @property
    def entries(self) -> list[ManifestEntry]:
        return [e for group in self.files.values() for e in group]

    def written_with(self, schema: TableSchema) -> KeyMergeResult:
        """Return it with the id that a branch gives to the schema with these columns."""
        files = {
            b: [e._replace(file=e.file._replace(schema_id=schema.id)) for e in group] for b, group in self.files.items()
        }
        return replace(self, files=files)


def reason_against(table: Table, schema: TableSchema, sides: Sides, buckets: Collection[BucketKey]) -> str | None:
    """Return why these buckets can't be merged by key, or None."""
    options = TableOptions(schema.options)
    if not schema.primary_keys:
        return "the table has no primary key"
    if options.chain_table:
        return "deletes of a chain table hide rows of other partitions"
    if options.bucket == POSTPONED_BUCKET:
        return "rows of postponed buckets have no bucket yet"
    if schema.crosses_partitions and options.bucket <= 0:
        return "a key of this table may move from one partition to another"
    try:
        check_writable(schema, table=table.label, branch=table.branch_name, by_buckets=True)
    except UnsupportedFeatureError as error:
        return error.message
    partitions = {b.partition for b in buckets}
    files = [e for d in (sides.theirs, sides.ours) for group in (*d.added.values(), *d.removed.values())
             for e in group.values()]  # fmt: skip
    if StoredPartitions(schema).recounted(files) & partitions:
        return "the number of buckets has changed"
    return None


def not_by_key(
    table: str, buckets: Iterable[BucketKey], schema: TableSchema, why: str, target: str = "main"
) -> ConflictError:
    """Return the conflict of buckets that both sides changed and that can't be merged by key."""
    names = bucket_names(schema, buckets)
    return ConflictError(
        f"{table}: {target} and the branch both changed {listed(names)} since the branch point, and they can't be "
        f"merged by key: {why}; nothing was published. {ways_out(names, target)}",
        code="not-mergeable",
        details={"conflicts": names[:MAX_LISTED], "conflict_count": len(names)},
    )


def overlapping_keys(request: KeyMergeRequest, merged: KeyMergeResult) -> ConflictError:
    """Return the conflict of keys that both sides changed."""
    names, target = request.summary["buckets"], request.target.branch_name
    return ConflictError(
        f"{request.target.name}: {target} and the branch both changed {described_keys(merged)} since the branch point; "
        "nothing was published. Compare them, start again, or set on_overlap (--on-overlap): main drops "
        f"the branch's rows, branch drops {target}'s newer ones",
        code="branch-conflict",
        details={
            "conflicts": names,
            "conflict_count": request.summary["bucket_count"],
            "overlap": described_keys(merged),
            "keys": list(merged.samples),
            "key_count": merged.overlapping,
        },
    )


def described_keys(merged: KeyMergeResult) -> str:
    """Name the keys that both sides changed, for people: the first few, and how many there are."""
    keys = ["(" + ", ".join(f"{name}={value}" for name, value in key.items()) + ")" for key in merged.samples]
    more = merged.overlapping - len(keys)
    return f"the rows of {merged.overlapping} keys, {', '.join(keys)}{f' and {more} more' if more else ''},"


def with_merged_index(index: Sequence[IndexEntry], merged: KeyMergeResult, bucket_of: BucketOf) -> list[IndexEntry]:
    """Return the target's index entries after a merge by key: the new files are without rows that deletion vectors
    delete, and hash indexes that did not get keys stay.
    """
    new = {bucket_of(i) for i in merged.index}

    def stays(entry: IndexEntry) -> bool:
        bucket = bucket_of(entry)
        return bucket not in merged.files or (entry.index_type == INDEX_TYPE and bucket not in new)

    return [*filter(stays, index), *merged.index]
