"""Operators that look after a table: alter, check, repair, compact it, expire what is old.

Made by ``make functions`` of the requests and of tests/python_operators.py: change those.
"""

# fmt: off
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_paimon.operators._base import PaimonOperator, keeps_arguments

__all__ = [
    "AlterTableOperator", "BranchExpireOperator", "ChangelogExpireOperator", "CheckTableOperator",
    "ClearConsumersOperator", "CompactManifestOperator", "CompactOperator", "MarkPartitionDoneOperator",
    "PartitionExpireOperator", "RemoveOrphanFilesOperator", "RepairTableOperator", "RescaleOperator",
    "ResetConsumerOperator", "SnapshotExpireOperator", "StorageUsageOperator", "TableHealthOperator",
    "TagAutomaticCreationOperator", "TagExpireOperator",
]


class AlterTableOperator(PaimonOperator):
    """Change columns and options of a table's branch, all changes as one schema version."""

    operation = "alter_table"

    @keeps_arguments
    def __init__(
        self, *, branch: str = "main", change: Sequence[str] | str = (), **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class BranchExpireOperator(PaimonOperator):
    """Delete branches whose retention has passed, unless they are protected or have unpublished commits."""

    operation = "expire_branches"

    @keeps_arguments
    def __init__(
        self, *, older_than: str | None = None, idle_for: str | None = None, branch_owner: str | None = None,
        drop_unpublished: bool | str = False, notify_before: str | None = None, **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class CheckTableOperator(PaimonOperator):
    """Find incomplete branches, missing protective tags, missing files and stale records."""

    operation = "check_table"

    @keeps_arguments
    def __init__(
        self, *, verify_files: bool | str = True, verify_keys: bool | str = False, memory_mb: int | str = 256,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class RemoveOrphanFilesOperator(PaimonOperator):
    """Delete old files that no snapshot, tag or changelog of any branch refers to."""

    operation = "remove_orphan_files"

    @keeps_arguments
    def __init__(
        self, *, older_than: str = "1 d", records_older_than: str = "30 d", memory_mb: int | str = 256, **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class RepairTableOperator(PaimonOperator):
    """Repair the findings of check_table."""

    operation = "repair_table"

    @keeps_arguments
    def __init__(
        self, *, finding: Sequence[str] | str = (), **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class StorageUsageOperator(PaimonOperator):
    """Count the bytes that each branch, tag and range of snapshots retains, and what its deletion would free."""

    operation = "storage_usage"

    @keeps_arguments
    def __init__(
        self, *, limit: int | str = 100, memory_mb: int | str = 256, **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class TableHealthOperator(PaimonOperator):
    """Score the health of tables by their files and metadata, with reasons and recommended fixes."""

    operation = "table_health"

    @keeps_arguments
    def __init__(
        self, *, storage: bool | str = False, limit: int | str = 100, **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class CompactOperator(PaimonOperator):
    """Merge small files and sorted runs into few, and drop deleted rows."""

    operation = "compact"

    @keeps_arguments
    def __init__(
        self, *, branch: str = "main", partitions: Sequence[str] | str = (), min_files: int | str = 5,
        max_sorted_runs: int | str | None = None, writers_stopped: bool | str = False, **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class RescaleOperator(PaimonOperator):
    """Distribute the rows of a table with fixed buckets, or of some partitions, to another number of buckets."""

    operation = "rescale"

    @keeps_arguments
    def __init__(
        self, *, branch: str = "main", bucket_num: int | str | None = None, partitions: Sequence[str] | str = (),
        writers_stopped: bool | str = False, **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class PartitionExpireOperator(PaimonOperator):
    """Drop partitions that are too old; in a chain table, whole segments."""

    operation = "expire_partitions"

    @keeps_arguments
    def __init__(
        self, *, branch: str = "main", expiration_time: str | None = None, strategy: str | None = None,
        timestamp_pattern: str | None = None, timestamp_formatter: str | None = None,
        min_full_partitions: int | str = 1, limit: int | str | None = None, approved_by: str | None = None,
        requested_by: str | None = None, four_eyes: bool | str = False, skip_checks: bool | str = False, **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class CompactManifestOperator(PaimonOperator):
    """Merge the manifests of a branch into few, sorted by partition, without deleted entries."""

    operation = "compact_manifest"

    @keeps_arguments
    def __init__(
        self, *, branch: str = "main", manifest_sort_enabled: bool | str = False, **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class SnapshotExpireOperator(PaimonOperator):
    """Expire old snapshots, and delete the files that no branch, tag or reader needs any more."""

    operation = "expire_snapshots"

    @keeps_arguments
    def __init__(
        self, *, retain_min: int | str | None = None, retain_max: int | str | None = None,
        max_deletes: int | str | None = None, keep_undo: bool | str = True, retry_window: str = "1 d",
        branch: str = "main", all_branches: bool | str = False, older_than: str | None = None, grace: str = "1 h",
        writers_stopped: bool | str = False, **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class ChangelogExpireOperator(PaimonOperator):
    """Expire old long-lived changelogs, and delete the files that no branch, tag or reader needs any more."""

    operation = "expire_changelogs"

    @keeps_arguments
    def __init__(
        self, *, retain_min: int | str | None = None, retain_max: int | str | None = None,
        max_deletes: int | str | None = None, delete_all: bool | str = False, branch: str = "main",
        all_branches: bool | str = False, older_than: str | None = None, grace: str = "1 h",
        writers_stopped: bool | str = False, **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class TagExpireOperator(PaimonOperator):
    """Expire old tags, and delete the files that no branch, tag or reader needs any more."""

    operation = "expire_tags"

    @keeps_arguments
    def __init__(
        self, *, prefix: str | None = None, include_unlimited: bool | str = False, branch: str = "main",
        all_branches: bool | str = False, older_than: str | None = None, grace: str = "1 h",
        writers_stopped: bool | str = False, **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class MarkPartitionDoneOperator(PaimonOperator):
    """Mark partitions as done, for downstream jobs."""

    operation = "mark_partition_done"

    @keeps_arguments
    def __init__(
        self, *, partitions: Sequence[str] | str = (), **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class TagAutomaticCreationOperator(PaimonOperator):
    """Create the automatic tags of main that are due, and expire old ones."""

    operation = "trigger_tag_automatic_creation"


class ResetConsumerOperator(PaimonOperator):
    """Set or delete the position of a streaming reader."""

    operation = "reset_consumer"

    @keeps_arguments
    def __init__(
        self, *, consumer: str, next_snapshot: int | str | None = None, branch: str = "main", if_missing: str = "fail",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class ClearConsumersOperator(PaimonOperator):
    """Delete positions of streaming readers, which then retain no snapshots."""

    operation = "clear_consumers"

    @keeps_arguments
    def __init__(
        self, *, including: str | None = None, excluding: str | None = None, idle_for: str | None = None,
        branch: str = "main", **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
