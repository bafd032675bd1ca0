"""What the data layer does to the rows of a publish or rollback; core reads and writes metadata alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from airflow_paimon.core.format.manifest import IndexEntry, ManifestEntry
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.publish.bucket_files import BucketFiles
from airflow_paimon.core.publish.key_merge import KeyMergeRequest, KeyMergeResult
from airflow_paimon.core.row_tracking.row_ids_plan import IdSpace
from airflow_paimon.core.table.live_files import BucketKey
from airflow_paimon.core.table.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplacedBuckets:
    """What a publish replaces. ``schema``: the one of its snapshot."""

    target: Table
    schema: TableSchema
    before: BucketFiles
    after: BucketFiles


FoldBuckets = Callable[[Table, Mapping[BucketKey, int]], None]
"""Rewrites buckets of a branch so that no sequence number is above the given one."""

RewriteFiles = Callable[[Table, Sequence[ManifestEntry], IdSpace], Sequence[ManifestEntry]]
"""Writes files of a branch again, in order, with the row ids and versions of main and the branch's schema ids."""

FindSharedId = Callable[
    [Table, Sequence[ManifestEntry], Table, Sequence[ManifestEntry], Sequence[IndexEntry], IdSpace], int | None
]
"""Reads the row ids of files of a branch, as they will be on main, and of files of main with its index entries, and
returns one that both have.
"""

WriteChangelog = Callable[[ReplacedBuckets], Sequence[ManifestEntry]]
"""Writes the net changes as changelog files."""

MergeByKey = Callable[[KeyMergeRequest], KeyMergeResult]
"""Merges buckets by key and writes their new files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFunctions:
    """None: rows can't be read or written here; what needs them is refused."""

    fold: FoldBuckets | None = None
    rewrite: RewriteFiles | None = None
    find_shared_id: FindSharedId | None = None
    write_changelog: WriteChangelog | None = None
    merge_by_key: MergeByKey | None = None


NO_ROW_FUNCTIONS = RowFunctions()
