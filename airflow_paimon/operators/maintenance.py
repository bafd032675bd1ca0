"""Operators that look after a table: alter it, check it, repair it, compact it, expire its partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_paimon.core.requests.requests import GRACE, RETRY_WINDOW
from airflow_paimon.operators._approval import with_requester
from airflow_paimon.operators._base import PaimonOperator, keeps_arguments
from airflow_paimon.shown.holders import holder_text
from airflow_paimon.shown.listing import size_text

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_paimon.core.requests.requests import Request
    from airflow_paimon.hooks.paimon import PaimonHook

__all__ = [
    "AlterTableOperator",
    "BranchExpireOperator",
    "ChangelogExpireOperator",
    "CheckTableOperator",
    "ClearConsumersOperator",
    "CompactManifestOperator",
    "CompactOperator",
    "MarkPartitionDoneOperator",
    "PartitionExpireOperator",
    "RemoveOrphanFilesOperator",
    "RepairTableOperator",
    "RescaleOperator",
    "ResetConsumerOperator",
    "SnapshotExpireOperator",
    "StorageUsageOperator",
    "TableHealthOperator",
    "TagAutomaticCreationOperator",
    "TagExpireOperator",
]

_LOGGED_HOLDERS = 20


class AlterTableOperator(PaimonOperator):
    """
    Change columns and options of one branch, all changes as one schema version. Data files stay as they are.

    Changes that the newest version has made already are not made again. ``details["publish"]`` says for each open
    branch whether it can still be published. Chain tables are altered by ``AlterChainTableOperator``.

    :param change: ``add column NAME TYPE ['COMMENT'] [first | after NAME]``, ``drop column NAME``,
        ``rename column NAME to NAME``, ``alter column NAME type TYPE``, ``alter column NAME comment 'TEXT'``,
        ``alter column NAME first | after NAME``, ``set KEY=VALUE``, ``reset KEY`` (templated)
    :param branch: branch to alter (templated)
    """

    operation = "alter_table"

    @keeps_arguments
    def __init__(self, *, change: Sequence[str] | str = (), branch: str = "main", **kwargs: Any) -> None:
        super().__init__(**kwargs)


class BranchExpireOperator(PaimonOperator):
    """
    Delete branches whose retention is over; others as old as ``older_than`` and ``idle_for`` say.

    Protected branches, those with commits that main doesn't have, and those that an option or another branch needs
    stay. ``details``: ``expired`` and ``kept`` with the reason of each, ``later`` with what has a retention still, and
    ``expiring_soon``.

    :param older_than: also branches without a retention that were created longer ago, such as ``30 d`` (templated)
    :param idle_for: also branches without a retention that nothing was committed to for as long; with ``older_than``
        both must hold (templated)
    :param branch_owner: only branches of this owner, or of this pattern: ``data_correction/*`` (templated)
    :param drop_unpublished: branches with commits that main doesn't have, too (templated)
    :param notify_before: list the branches that expire within this time, such as ``3 d``, as ``expiring_soon``
        (templated)
    """

    operation = "expire_branches"
    attribute_names: ClassVar[dict[str, str]] = {"owner": "branch_owner"}

    @keeps_arguments
    def __init__(
        self,
        *,
        older_than: str | None = None,
        idle_for: str | None = None,
        branch_owner: str | None = None,
        drop_unpublished: bool | str = False,
        notify_before: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)

    def _log_lines(self, result: Mapping[str, Any]) -> list[str]:
        found = result["details"]
        word = "would be deleted" if result["dry_run"] else "deleted"
        lines = [f"Branch {one['branch']} {word}: {one['why']}" for one in found["expired"]]
        lines += [f"Branch {one['branch']} stays: {one['why']}" for one in found["kept"]]
        return lines + [f"Branch {one['branch']} expires at {one['expires_at']}" for one in found["expiring_soon"]]


class CheckTableOperator(PaimonOperator):
    """
    Find incomplete branches, missing protective tags, missing files and stale operation records, in ``details``.

    :param verify_files: also look whether every referenced data file exists (templated)
    :param verify_keys: also read the keys: with dynamic buckets, to compare them with the index; with deletion vectors
        or ``first-row``, to find keys that are there twice (templated)
    :param memory_mb: MiB of memory for what is known of the table's files; more lies in a temporary file (templated)
    """

    operation = "check_table"

    @keeps_arguments
    def __init__(
        self,
        *,
        verify_files: bool | str = True,
        verify_keys: bool | str = False,
        memory_mb: int | str = 256,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class RemoveOrphanFilesOperator(PaimonOperator):
    """
    Delete old files that no snapshot, tag, changelog or trash entry of any branch refers to, and old operation records.

    Files that failed writers left, and those of deleted branches and rolled back snapshots. If anything that names
    files is unreadable, or a branch is incomplete, nothing is deleted. ``details`` has files and bytes by folder, and
    what stays and why: ``referenced``, ``young``, ``held_by_writers``, ``unknown``; a dry run plans by this machine's
    clock.

    :param older_than: only files that were written longer ago, by the storage's clock; at least ``1 h``. It must be
        longer than any writer takes from its first file to its commit (templated)
    :param records_older_than: delete operation records that are older; at least ``7 d`` (templated)
    :param memory_mb: MiB of memory for what is known of the table's files; more lies in a temporary file (templated)
    """

    operation = "remove_orphan_files"

    @keeps_arguments
    def __init__(
        self, *, older_than: str = "1 d", records_older_than: str = "30 d", memory_mb: int | str = 256, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)

    def _log_lines(self, result: Mapping[str, Any]) -> list[str]:
        found = result["details"]
        word = "would be deleted" if result["dry_run"] else "deleted"
        lines = [f"{found['files']:,} files with {found['bytes']:,} bytes {word}"]
        lines += [
            f"{one['folder'] or 'the table folder'}: {one['files']:,} {one['kind']} files, {one['bytes']:,} bytes"
            for one in found["folders"]
        ]
        return lines + _why_kept(found)


def _why_kept(found: Mapping[str, Any]) -> list[str]:
    """Say why the other files stay."""
    young, held = found["young"], found["held_by_writers"]
    lines = [f"{found['referenced']['files']:,} files stay as something refers to them:"]
    lines += [
        f"  {one['kind']} of {one['branch']}: {one['files']:,} files, {one['only_files']:,} of them by nothing else"
        for one in found["referenced"]["by"][:_LOGGED_HOLDERS]
    ]
    if young["files"]:
        lines.append(f"{young['files']:,} files are too young, the first until {young['old_enough_from']}")
    if held["files"]:
        lines.append(f"{held['files']:,} old files stay as their writer has written a young one")
    if found["unknown"]["files"]:
        lines.append(f"{found['unknown']['files']:,} files have names that no known writer gives")
    return lines


class RepairTableOperator(PaimonOperator):
    """
    Repair what :class:`CheckTableOperator` found.

    :param finding: only these finding ids; all that are safe to repair when left out (templated)
    """

    operation = "repair_table"

    @keeps_arguments
    def __init__(self, *, finding: Sequence[str] | str = (), **kwargs: Any) -> None:
        super().__init__(**kwargs)


class StorageUsageOperator(PaimonOperator):
    """
    Count the bytes that each branch, tag and range of snapshots holds, and those that its end would free.

    Reads the whole folder's listing and all metadata of all branches, no data files. ``details["holders"]`` begins with
    what frees the most; see :doc:`/howto/storage-usage`.

    :param limit: holders to list; 0 for all (templated)
    :param memory_mb: MiB of memory for what is known of the table's files; more lies in a temporary file (templated)
    """

    operation = "storage_usage"

    @keeps_arguments
    def __init__(self, *, limit: int | str = 100, memory_mb: int | str = 256, **kwargs: Any) -> None:
        super().__init__(**kwargs)

    def _log_lines(self, result: Mapping[str, Any]) -> list[str]:
        found = result["details"]
        lines = [
            f"{found['total']['files']:,} files with {size_text(found['total']['bytes'])}, of which "
            f"{size_text(found['live']['bytes'])} are main's newest state and "
            f"{size_text(found['unreferenced']['bytes'])} are referenced by nothing"
        ]
        return lines + [
            f"{holder_text(one)} frees {size_text(one['frees_bytes'])} of {size_text(one['bytes'])}: {one['way']}"
            for one in found["holders"][:_LOGGED_HOLDERS]
        ]


class TableHealthOperator(PaimonOperator):
    """
    Judge a table by its files and metadata: ``details`` have a score from 0 to 100, and its reasons.

    Of several tables (``table="sales.*"``, ``"*"`` for the whole warehouse, or names with commas between)
    ``details["tables"]`` has all that, the worst first; tables that can't be read come before these, with their
    ``error``.

    Reads the manifests of the newest and the oldest snapshot, no data files. Each reason has a figure and its limit,
    the operation that mends it and the bytes that this costs; see :doc:`/howto/table-health`.

    :param storage: also list the table's folder, and count what nothing refers to (templated)
    :param limit: of several tables: how many to list; 0 for all (templated)
    """

    operation = "table_health"

    @keeps_arguments
    def __init__(self, *, storage: bool | str = False, limit: int | str = 100, **kwargs: Any) -> None:
        super().__init__(**kwargs)

    def _log_lines(self, result: Mapping[str, Any]) -> list[str]:
        found = result["details"]
        if "tables" in found:
            return [_health_line(one) for one in found["tables"]]
        return [
            f"Score {found['score']}",
            *(f"{one['id']} takes off {one['points']}: {one['text']}" for one in found["reasons"]),
        ]


def _health_line(one: Mapping[str, Any]) -> str:
    if one["score"] is None:
        return f"{one['table']} can't be read: {one['error']['message']}"
    why = ", ".join(f"{r['id']} -{r['points']}" for r in one["reasons"])
    return f"{one['table']}: score {one['score']}{f': {why}' if why else ''}"


class CompactOperator(PaimonOperator):
    """
    Write the small files of an append table together, up to its ``target-file-size``, and drop deleted rows; merge the
    files of a primary-key table, bucket by bucket, into one sorted run on the highest level.

    Rows keep their ids and versions, or their sequence numbers. Some groups of files at a time are committed, and a
    retry goes on where the first try stopped; ``details`` count the files, bytes and rows, and list the snapshots.

    Several tables (``table="sales.*"``, or names with commas between) share one Spark application;
    ``details["tables"]`` has the result of each, and one that fails stops no other.

    :param branch: branch to compact (templated)
    :param partitions: only these, ``k=v,...``; all when left out (templated)
    :param min_files: append tables: leave partitions with fewer small files as they are (templated)
    :param max_sorted_runs: primary-key tables: merge only buckets with more sorted runs than this, counting each file
        of level 0 and each higher level; by default all that are not merged completely (templated)
    :param writers_stopped: primary-key tables: also compact buckets that a running job of another engine may have
        open: promise that none is running (templated)
    """

    operation = "compact"

    @keeps_arguments
    def __init__(
        self,
        *,
        branch: str = "main",
        partitions: Sequence[str] | str = (),
        min_files: int | str = 5,
        max_sorted_runs: int | str | None = None,
        writers_stopped: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)

    def _done(self, context: Context, result: dict[str, Any], of: PaimonOperator | None = None) -> dict[str, Any]:
        """Take a result; of several tables, that of each."""
        for one in result["details"].get("tables", ()):
            super()._done(context, one)
        return result if "tables" in result["details"] else super()._done(context, result)

    def _log_lines(self, result: Mapping[str, Any]) -> list[str]:
        found = result["details"]
        if result["dry_run"]:
            return [f"{found['files_before']} files in {found['partitions']} partitions would be written again"]
        return [
            f"{found['files_before']} files became {found['files_after']} in {found['partitions']} partitions: "
            f"{found['rows']:,} rows, {found['deleted_rows']:,} deleted ones dropped",
            *found.get("warnings", ()),
        ]


class RescaleOperator(PaimonOperator):
    """
    Distribute the rows of a table with fixed buckets, or of some partitions, to another number of buckets: one commit,
    which ``RollbackOperator`` undoes with ``snapshot=result["snapshot_before"]``.

    No row changes. Partitions that have that number already stay as they are. Stop the writers of other engines to
    these partitions first; writers of this package notice it and write their rows again.

    :param bucket_num: how many buckets each partition gets; else the option ``bucket``, which becomes this number when
        the whole table is rescaled (templated)
    :param branch: branch to rescale (templated)
    :param partitions: only these, ``k=v,...``; all when left out (templated)
    :param writers_stopped: promise that no job of another engine writes these partitions (templated)
    """

    operation = "rescale"

    @keeps_arguments
    def __init__(
        self,
        *,
        bucket_num: int | str | None = None,
        branch: str = "main",
        partitions: Sequence[str] | str = (),
        writers_stopped: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)

    def _log_lines(self, result: Mapping[str, Any]) -> list[str]:
        found = result["details"]
        number, warnings = found["bucket_num"], found.get("warnings", [])
        if result["dry_run"]:
            files, size = found["files_before"], size_text(found["bytes_before"])
            line = (
                f"{files} files ({size}) of {found['partitions']} partitions would be distributed to {number} buckets"
            )
        elif not found["partitions"]:
            line = f"nothing to write: every chosen partition has {number} buckets already"
        else:
            line = f"{found['rows']:,} rows in {found['partitions']} partitions, now in {number} buckets each"
        return [line, *warnings]


class PartitionExpireOperator(PaimonOperator):
    """
    Drop partitions that are too old; of a chain table whole segments per group, never an anchor that is needed.

    The result's ``details`` list what expired and why, by segment; data files are deleted when their snapshots expire.

    :param branch: branch of an ordinary table; a chain table expires as a whole (templated)
    :param expiration_time: age, e.g. ``30 d``; else option ``partition.expiration-time`` (templated)
    :param strategy: ``values-time`` or ``update-time``; else option ``partition.expiration-strategy`` (templated)
    :param timestamp_pattern: else option ``partition.timestamp-pattern`` (templated)
    :param timestamp_formatter: else option ``partition.timestamp-formatter`` (templated)
    :param min_anchors: chain tables: full partitions that each group keeps at least (templated)
    :param limit: partitions, or segments per group, that expire in one run at most (templated)
    :param approved_by: who approved an age that is not the table's own; kept in the snapshots' properties (templated)
    :param requested_by: kept there, too; whoever triggered the run, where Airflow knows (templated)
    :param four_eyes: refuse unless ``approved_by`` is somebody other than who asked for it. For an age, strategy or
        time pattern of its own the Paimon connection's ``four_eyes`` and the table's option ask for it too; an expiry
        by the table's own options is its owner's decision (templated)
    :param skip_checks: for such an age: expire although the table requires checks, which can't look at what will be
        left; the snapshots say so (templated)
    """

    operation = "expire_partitions"

    @keeps_arguments
    def __init__(
        self,
        *,
        branch: str = "main",
        expiration_time: str | None = None,
        strategy: str | None = None,
        timestamp_pattern: str | None = None,
        timestamp_formatter: str | None = None,
        min_anchors: int | str = 1,
        limit: int | str | None = None,
        approved_by: str | None = None,
        requested_by: str | None = None,
        four_eyes: bool | str = False,
        skip_checks: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)

    def _request(self, hook: PaimonHook, context: Context) -> Request:
        return with_requester(super()._request(hook, context), hook, context)

    def _log_lines(self, result: Mapping[str, Any]) -> list[str]:
        lines = []
        for group in result["details"].get("groups", ()):
            lines.append(f"{group['group'] or 'all'}: {group['reason']}")
            lines += [f"  {one['snapshot'] or 'before the first'} and {len(one['deltas'])} deltas: {one['rows']:,} rows"
                      for one in group["segments"]]  # fmt: skip
        return lines


class CompactManifestOperator(PaimonOperator):
    """
    Merge the manifests of a branch's newest snapshot into few, sorted by partition, without deleted entries.

    One COMPACT snapshot of the same files, or none where that changes nothing. ``details``: ``before`` and ``after``,
    each with ``manifests``, ``bytes``, ``entries`` and ``delete_entries``; and how many were ``rewritten``.

    :param branch: branch whose manifests are merged (templated)
    :param manifest_sort_enabled: also rewrite large manifests whose partitions overlap; else option
        ``manifest-sort.enabled`` (templated)
    """

    operation = "compact_manifest"

    @keeps_arguments
    def __init__(self, *, branch: str = "main", manifest_sort_enabled: bool | str = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)

    def _log_lines(self, result: Mapping[str, Any]) -> list[str]:
        found = result["details"]
        before, after = found["before"], found["after"]
        if not result["changed"]:
            return [f"Nothing to merge; manifests: {before['manifests']:,}"]
        word = "would become" if result["dry_run"] else "became"
        return [
            f"{before['manifests']:,} manifests with {before['entries']:,} entries {word} {after['manifests']:,} with "
            f"{after['entries']:,}"
        ]


class SnapshotExpireOperator(PaimonOperator):
    """
    Expire old snapshots, and delete the files that no branch, tag, reader or running operation needs any more.

    ``details``: ``expired`` by branch, what ``stopped_by`` each, what was ``reaped``, what was ``kept`` and by which
    tag, branch or snapshot, and what waits in the ``trash``.

    :param branch: branch whose snapshots expire (templated)
    :param all_branches: main and every branch instead (templated)
    :param older_than: an age such as ``7 d``, or an ISO time with an offset; else option ``snapshot.time-retained``
        (templated)
    :param retain_min: the newest snapshots that always stay; else option ``snapshot.num-retained.min`` (templated)
    :param retain_max: the most that stay, whatever their age; else option ``snapshot.num-retained.max`` (templated)
    :param max_deletes: the most that expire in one run, of each branch (templated)
    :param grace: how long files stay for readers that began before, at least 10 min (templated)
    :param writers_stopped: nobody writes, reads or tags: allows a shorter ``grace`` (templated)
    :param keep_undo: keep what the undo of a publish needs, while its tag lives (templated)
    :param retry_window: keep what retries of operations this young may look for (templated)
    """

    operation = "expire_snapshots"

    @keeps_arguments
    def __init__(
        self,
        *,
        branch: str = "main",
        all_branches: bool | str = False,
        older_than: str | None = None,
        retain_min: int | str | None = None,
        retain_max: int | str | None = None,
        max_deletes: int | str | None = None,
        grace: str = GRACE,
        writers_stopped: bool | str = False,
        keep_undo: bool | str = True,
        retry_window: str = RETRY_WINDOW,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)

    def _log_lines(self, result: Mapping[str, Any]) -> list[str]:
        return _expired(result, "snapshots")


class ChangelogExpireOperator(PaimonOperator):
    """
    Expire changelogs that outlive their snapshots, and delete the files that no branch, tag or reader needs any more.

    ``details`` are those of :class:`SnapshotExpireOperator`.

    :param branch: branch whose changelogs expire (templated)
    :param all_branches: main and every branch instead (templated)
    :param older_than: an age such as ``7 d``, or an ISO time with an offset; else option ``changelog.time-retained``
        (templated)
    :param retain_min: the newest changelogs and snapshots, counted together, that always stay; else option
        ``changelog.num-retained.min`` (templated)
    :param retain_max: the most that stay, whatever their age; else option ``changelog.num-retained.max`` (templated)
    :param max_deletes: the most that expire in one run, of each branch (templated)
    :param delete_all: all of them, the newest one too, but for what a consumer is to read (templated)
    :param grace: how long files stay for readers that began before, at least 10 min (templated)
    :param writers_stopped: nobody writes, reads or tags: allows a shorter ``grace`` (templated)
    """

    operation = "expire_changelogs"

    @keeps_arguments
    def __init__(
        self,
        *,
        branch: str = "main",
        all_branches: bool | str = False,
        older_than: str | None = None,
        retain_min: int | str | None = None,
        retain_max: int | str | None = None,
        max_deletes: int | str | None = None,
        delete_all: bool | str = False,
        grace: str = GRACE,
        writers_stopped: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)

    def _log_lines(self, result: Mapping[str, Any]) -> list[str]:
        return _expired(result, "changelogs")


class TagExpireOperator(PaimonOperator):
    """
    Expire tags past their retention, and delete the files that nothing needs any more.

    A tag that a branch, an undo or a publish relies on stays; ``details.needed`` says what needs it.

    :param branch: branch whose tags expire (templated)
    :param all_branches: main and every branch instead (templated)
    :param older_than: also tags with a longer retention that are older than this age, such as ``30 d``, or this time
        (ISO, with an offset; templated)
    :param prefix: only tags whose name begins with it (templated)
    :param include_unlimited: with ``older_than``: also tags without a retention, by the age of their file (templated)
    :param grace: how long files stay for readers that began before, at least 10 min (templated)
    :param writers_stopped: nobody writes, reads or tags: allows a shorter ``grace`` (templated)
    """

    operation = "expire_tags"

    @keeps_arguments
    def __init__(
        self,
        *,
        branch: str = "main",
        all_branches: bool | str = False,
        older_than: str | None = None,
        prefix: str | None = None,
        include_unlimited: bool | str = False,
        grace: str = GRACE,
        writers_stopped: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)

    def _log_lines(self, result: Mapping[str, Any]) -> list[str]:
        found = result["details"]
        word = "would expire" if result["dry_run"] else "expired"
        lines = [
            f"{branch}: {len(names)} tags {word}: {', '.join(names)}" for branch, names in found["expired"].items()
        ]
        for branch, needed in found["needed"].items():
            lines += [f"{branch}: tag {name} stays: {reason}" for name, reason in needed.items()]
        return lines + _freed(result)


def _expired(result: Mapping[str, Any], what: str) -> list[str]:
    found = result["details"]
    word = "would expire" if result["dry_run"] else "expired"
    lines = [f"{branch}: {what} {e['from']} to {e['to']} {word}" for branch, e in found["expired"].items()]
    lines += [f"{branch}: {reason}" for branch, reason in found["stopped_by"].items()]
    return lines + _freed(result)


def _freed(result: Mapping[str, Any]) -> list[str]:
    found = result["details"]
    reaped = found["reaped"]
    files = reaped["data_files"] + reaped["changelog_files"]
    word = "would be deleted" if result["dry_run"] else "deleted"
    lines = [f"{files} data files and {reaped['metadata_files']} metadata files {word}: {reaped['bytes']:,} bytes"]
    if found["trash"]["entries"]:
        lines.append(f"{found['trash']['entries']} entries wait in the trash until {found['trash']['next_due']}")
    return lines + [f"Warning: {warning}" for warning in found["warnings"]]


class MarkPartitionDoneOperator(PaimonOperator):
    """
    Mark partitions of main as complete, for whoever waits for that: by the actions of the table's option
    ``partition.mark-done-action``, a file ``_SUCCESS`` in the partition's folder without it.

    :param partitions: the partitions, such as ``["dt=2025-01-01"]``; the last columns may be left out (templated)
    """

    operation = "mark_partition_done"

    @keeps_arguments
    def __init__(self, *, partitions: Sequence[str] | str = (), **kwargs: Any) -> None:
        super().__init__(**kwargs)


class TagAutomaticCreationOperator(PaimonOperator):
    """
    Set the automatic tags of main that are due by the table's option ``tag.automatic-creation``, for all commits since
    the last one, and expire those that are too many (``tag.num-retained-max``) or whose retention has passed.

    Tags that a branch or a table set needs, or that are under a legal hold, stay. A table without the option gets none.
    """

    operation = "trigger_tag_automatic_creation"


class ResetConsumerOperator(PaimonOperator):
    """
    Set what a streaming reader reads next, or delete its position, so that it keeps no snapshot any more.

    A position that is moved on lets an expiry take what the reader has not read.

    :param consumer: the reader's ``consumer-id`` (templated)
    :param next_snapshot: the snapshot to read next; left out: the consumer is deleted (templated)
    :param branch: the branch that it reads (templated)
    :param if_missing: of a consumer to delete: ``fail`` or ``skip`` (templated)
    """

    operation = "reset_consumer"

    @keeps_arguments
    def __init__(
        self,
        *,
        consumer: str,
        next_snapshot: int | str | None = None,
        branch: str = "main",
        if_missing: str = "fail",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)


class ClearConsumersOperator(PaimonOperator):
    """
    Delete the positions of a branch's streaming readers: of all, or of those that fit every condition.

    :param including: only those whose whole name fits this regular expression (templated)
    :param excluding: not those whose whole name fits this one (templated)
    :param idle_for: only those that nothing was written to for as long, such as ``7 d`` (templated)
    :param branch: the branch that they read (templated)
    """

    operation = "clear_consumers"

    @keeps_arguments
    def __init__(
        self,
        *,
        including: str | None = None,
        excluding: str | None = None,
        idle_for: str | None = None,
        branch: str = "main",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
