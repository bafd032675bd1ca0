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
    """
    Change columns and options of a table's branch, all changes as one schema version.

    Data files stay as they are. Changes that the newest version already has are left out.
    ``details["publish"]`` shows for each open branch whether it can still be published. Chain tables are altered by
    ``alter_chain_table``.
    """

    operation = "alter_table"

    @keeps_arguments
    def __init__(
        self, *, branch: str = "main", change: Sequence[str] | str = (), **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class BranchExpireOperator(PaimonOperator):
    """
    Delete branches whose retention has passed, unless they are protected or have unpublished commits.

    Branches that an option or another branch needs also stay. ``details`` has ``expired`` and ``kept`` with a reason
    for each, ``later`` with those whose retention has not passed, and ``expiring_soon``.
    """

    operation = "expire_branches"

    @keeps_arguments
    def __init__(
        self, *, older_than: str | None = None, idle_for: str | None = None, branch_owner: str | None = None,
        drop_unpublished: bool | str = False, notify_before: str | None = None, **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class CheckTableOperator(PaimonOperator):
    """
    Find incomplete branches, missing protective tags, missing files and stale records.

    The findings are in ``details``.
    """

    operation = "check_table"

    @keeps_arguments
    def __init__(
        self, *, verify_files: bool | str = True, verify_keys: bool | str = False, memory_mb: int | str = 256,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class RemoveOrphanFilesOperator(PaimonOperator):
    """
    Delete old files that no snapshot, tag or changelog of any branch refers to.

    These are files of failed writers, deleted branches and rolled back snapshots, and old operation records.
    If metadata that names files is unreadable, or a branch is incomplete, nothing is deleted. ``details`` has files and
    bytes by folder, and what stays and why: ``referenced``, ``young``, ``kept_for_writers``, ``unknown``. A dry run
    plans by this machine's clock.
    """

    operation = "remove_orphan_files"

    @keeps_arguments
    def __init__(
        self, *, older_than: str = "1 d", records_older_than: str = "30 d", memory_mb: int | str = 256, **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class RepairTableOperator(PaimonOperator):
    """
    Repair the findings of check_table.
    """

    operation = "repair_table"

    @keeps_arguments
    def __init__(
        self, *, finding: Sequence[str] | str = (), **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class StorageUsageOperator(PaimonOperator):
    """
    Count the bytes that each branch, tag and range of snapshots retains, and what its deletion would free.

    Reads the whole folder's listing and all metadata of all branches, no data files. ``details["references"]`` begins
    with what frees the most; see :doc:`/howto/storage-usage`.
    """

    operation = "storage_usage"

    @keeps_arguments
    def __init__(
        self, *, limit: int | str = 100, memory_mb: int | str = 256, **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class TableHealthOperator(PaimonOperator):
    """
    Score the health of tables by their files and metadata, with reasons and recommended fixes.

    ``details`` have a score from 0 to 100, and its reasons. For several tables (``table="sales.*"``, ``"*"`` for the
    whole warehouse, or names with commas between) ``details["tables"]`` has these values, the worst first. Tables that
    can't be read come before these, with their ``error``.

    Reads the manifests of the newest and the oldest snapshot, no data files. Each reason has a value and its limit,
    the operation that fixes it and the bytes that this costs; see :doc:`/howto/table-health`.
    """

    operation = "table_health"

    @keeps_arguments
    def __init__(
        self, *, storage: bool | str = False, limit: int | str = 100, **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class CompactOperator(PaimonOperator):
    """
    Merge small files and sorted runs into few, and drop deleted rows.

    Append tables: small files, up to ``target-file-size``. Primary-key tables: the files of each bucket, into one
    sorted run on the highest level. Rows keep their ids and versions, or their sequence numbers. Each commit has some
    groups of files, and a retry continues where the first attempt stopped. ``details`` count the files, bytes and
    rows, and list the snapshots.

    Several tables (``table="sales.*"``, or names with commas between) share one Spark application.
    ``details["tables"]`` has the result of each. A table that fails doesn't stop the others.
    """

    operation = "compact"

    @keeps_arguments
    def __init__(
        self, *, branch: str = "main", partitions: Sequence[str] | str = (), min_files: int | str = 5,
        max_sorted_runs: int | str | None = None, writers_stopped: bool | str = False, **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class RescaleOperator(PaimonOperator):
    """
    Distribute the rows of a table with fixed buckets, or of some partitions, to another number of buckets.

    One commit, which ``rollback_to`` undoes with ``snapshot=result["snapshot_before"]``. No row changes. Partitions
    that already have that number stay as they are. Stop the writers of other engines to these partitions first; writers
    of this package detect the change and rewrite their rows.
    """

    operation = "rescale"

    @keeps_arguments
    def __init__(
        self, *, branch: str = "main", bucket_num: int | str | None = None, partitions: Sequence[str] | str = (),
        writers_stopped: bool | str = False, **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class PartitionExpireOperator(PaimonOperator):
    """
    Drop partitions that are too old; in a chain table, whole segments.

    Anchors that other partitions need stay. ``details`` list what expired and why, by segment. Data files are deleted
    when their snapshots expire. Where the table or the connection requires an approval, a request with another age,
    strategy or time pattern needs one; an expiry by the table's options doesn't.
    """

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
    """
    Merge the manifests of a branch into few, sorted by partition, without deleted entries.

    The commit is one COMPACT snapshot of the same files; without a change there is no commit. ``details`` has
    ``before`` and ``after``, each with ``manifests``, ``bytes``, ``entries`` and ``delete_entries``, and how many
    manifests were ``rewritten``.
    """

    operation = "compact_manifest"

    @keeps_arguments
    def __init__(
        self, *, branch: str = "main", manifest_sort_enabled: bool | str = False, **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class SnapshotExpireOperator(PaimonOperator):
    """
    Expire old snapshots, and delete the files that no branch, tag or reader needs any more.

    ``details`` has ``expired`` by branch and what each is ``retained_by``, what was ``deleted``, what was ``kept`` and
    by which tag, branch or snapshot, and what waits in the ``trash``.
    """

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
    """
    Expire old long-lived changelogs, and delete the files that no branch, tag or reader needs any more.

    ``details`` are those of ``expire_snapshots``.
    """

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
    """
    Expire old tags, and delete the files that no branch, tag or reader needs any more.

    A tag that a branch, an undo or a publish needs stays; ``details.needed`` shows what needs it.
    """

    operation = "expire_tags"

    @keeps_arguments
    def __init__(
        self, *, prefix: str | None = None, include_unlimited: bool | str = False, branch: str = "main",
        all_branches: bool | str = False, older_than: str | None = None, grace: str = "1 h",
        writers_stopped: bool | str = False, **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class MarkPartitionDoneOperator(PaimonOperator):
    """
    Mark partitions as done, for downstream jobs.

    The table's option ``partition.mark-done-action`` specifies how; by default by a file ``_SUCCESS`` in the
    partition's folder.
    """

    operation = "mark_partition_done"

    @keeps_arguments
    def __init__(
        self, *, partitions: Sequence[str] | str = (), **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class TagAutomaticCreationOperator(PaimonOperator):
    """
    Create the automatic tags of main that are due, and expire old ones.

    The table's option ``tag.automatic-creation`` specifies which are due, for all commits since the last one; a table
    without it gets none. ``tag.num-retained-max`` and the tags' retention specify which expire. Tags that a branch or a
    table set needs, or that are under a legal hold, stay.
    """

    operation = "trigger_tag_automatic_creation"


class ResetConsumerOperator(PaimonOperator):
    """
    Set or delete the position of a streaming reader.

    Where a position moves forward, an expiry may delete what the reader has not read.
    """

    operation = "reset_consumer"

    @keeps_arguments
    def __init__(
        self, *, consumer: str, next_snapshot: int | str | None = None, branch: str = "main", if_missing: str = "fail",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class ClearConsumersOperator(PaimonOperator):
    """
    Delete positions of streaming readers, which then retain no snapshots.

    This concerns all readers of a branch, or those that fit every condition.
    """

    operation = "clear_consumers"

    @keeps_arguments
    def __init__(
        self, *, including: str | None = None, excluding: str | None = None, idle_for: str | None = None,
        branch: str = "main", **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
