"""What the data layer does to the rows of a publish or rollback; core reads and writes metadata alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_paimon.core.format.manifest import IndexEntry, ManifestEntry
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.publish.bucket_files import BucketFiles
from airflow_paimon.core.publish.key_merge import KeyMergeRequest, KeyMergeResult
from airflow_paimon.core.row_tracking.row_ids_plan import IdSpace
from airflow_paimon.core.table.live_files import BucketKey
from airflow_paimon.core.table.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFunctions:
    """What ``execution.py`` binds to the functions of the data layer."""

    fold: Callable[[Table, Mapping[BucketKey, int]], None]
    """Rewrites buckets of a branch so that no sequence number is above the given one."""
    rewrite: Callable[[Table, Sequence[ManifestEntry], IdSpace], Sequence[ManifestEntry]]
    """Writes files of a branch again, in order, with the row ids and versions of main and the branch's schema ids."""
    find_shared_id: Callable[
        [Table, Sequence[ManifestEntry], Table, Sequence[ManifestEntry], Sequence[IndexEntry], IdSpace], int | None
    ]
    """Reads the row ids of files of a branch, as they will be on main, and of files of main with its index entries, and
    returns one that both have.
    """
    write_changelog: Callable[[Table, TableSchema, BucketFiles, BucketFiles], Sequence[ManifestEntry]]
    """Writes the net changes of some buckets of a branch as changelog files: from what they were before to what they
    become, by the schema of the new snapshot.
    """
    merge_by_key: Callable[[KeyMergeRequest], KeyMergeResult]
    """Merges buckets by key and writes their new files."""


def _no_rows(*_: Any) -> Any:
    raise AssertionError("a dry run reads and writes no rows")


NO_ROWS = RowFunctions(
    fold=_no_rows, rewrite=_no_rows, find_shared_id=_no_rows, write_changelog=_no_rows, merge_by_key=_no_rows
)
"""Of dry runs of whole branches and of undos."""
