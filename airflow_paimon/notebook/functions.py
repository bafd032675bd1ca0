"""The operations as functions, for programs and notebooks: no Airflow, no Spark, and the same result as the job's.

``table`` is ``db.table`` with ``warehouse`` (and ``storage_options``), or what ``airflow_paimon.open_table`` returned.
``operation_id``, ``now`` and ``dry_run`` are those of the jobs; so are all other arguments, which ``help`` lists.
Errors are those of ``airflow_paimon.core.errors``.

Made by ``make functions`` of the table of operations and of tests/python_functions.py: change those.
"""

# fmt: off
from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal, Unpack

from airflow_paimon.notebook.operation import CommonArguments, Result, describe, perform

if TYPE_CHECKING:
    from airflow_paimon.core.table.table import Table

__all__ = [
    "alter_branch", "alter_chain_table", "alter_table", "check_chain_table", "check_table", "clear_consumers",
    "compact", "compact_chain_table", "compact_manifest", "create_branch", "create_chain_table", "create_table_set",
    "create_tag", "delete_branch", "delete_tag", "diff_branches", "erase_rows", "expire_branches", "expire_changelogs",
    "expire_partitions", "expire_snapshots", "expire_tags", "export_audit", "fast_forward", "find_rows",
    "mark_partition_done", "merge_branch", "plan_correction", "rebase_branch", "remove_orphan_files", "rename_branch",
    "rename_tag", "repair_table", "replace_main", "replace_tag", "rescale", "reset_consumer", "rollback_to",
    "storage_usage", "table_health", "trigger_tag_automatic_creation",
]


def create_branch(
    table: str | Table, branch: str, *, tag: str | None = None, snapshot: int | None = None, from_branch: str = "main",
    if_exists: Literal["fail", "skip", "replace"] = "fail", owner: str | None = None, reason: str | None = None,
    retention: str | None = None, protected: bool = False, force: bool = False, **common: Unpack[CommonArguments],
) -> Result:
    """Create a branch from a tag, from a snapshot, or empty.

    Example:
        >>> create_branch(orders, "try", tag="before_fix", owner="ana").details["base_snapshot"]
        2
    """
    return perform("create_branch", locals())


def alter_branch(
    table: str | Table, branch: str, *, owner: str | None = None, reason: str | None = None,
    retention: str | None = None, protect: bool = False, protected_by: str | None = None, unprotect: bool = False,
    **common: Unpack[CommonArguments],
) -> Result:
    """Change a branch's owner, reason, retention or protection.

    Example:
        >>> alter_branch(orders, "fix", retention="14 d", protect=True).changed
        True
    """
    return perform("alter_branch", locals())


def delete_branch(
    table: str | Table, branch: str, *, expected_branch_snapshot: int | str | None = None,
    if_missing: Literal["fail", "skip"] = "fail", force: bool = False, **common: Unpack[CommonArguments],
) -> Result:
    """Delete a branch other than main.

    Example:
        >>> delete_branch(orders, "fix", if_missing="skip").changed
        True
    """
    return perform("delete_branch", locals())


def rename_branch(
    table: str | Table, branch: str, to_branch: str, *, force: bool = False, **common: Unpack[CommonArguments],
) -> Result:
    """Rename a branch.

    Example:
        >>> rename_branch(orders, "fix", "fix_of_may").branch
        'fix_of_may'
    """
    return perform("rename_branch", locals())


def rebase_branch(
    table: str | Table, branch: str, to_branch: str, *, expected_branch_snapshot: int | str | None = None,
    keep_appended: bool = False, on_overlap: Literal["fail", "branch", "main"] = "fail",
    **common: Unpack[CommonArguments],
) -> Result:
    """Rebase a branch: put its changes on a new branch of main's head.

    Example:
        >>> rebase_branch(orders, "fix", "fix_of_today").branch
        'fix_of_today'
    """
    return perform("rebase_branch", locals())


def create_tag(
    table: str | Table, tag: str, *, branch: str = "main", snapshot: int | None = None, timestamp: str | None = None,
    time_retained: str | None = None, if_exists: Literal["fail", "skip", "replace"] = "fail", hold: str | None = None,
    held_by: str | None = None, **common: Unpack[CommonArguments],
) -> Result:
    """Tag a snapshot of a branch.

    Example:
        >>> create_tag(orders, "end_of_may", time_retained="30 d").details["snapshot"]
        3
    """
    return perform("create_tag", locals())


def replace_tag(
    table: str | Table, tag: str, *, branch: str = "main", snapshot: int | None = None,
    time_retained: str | None = None, **common: Unpack[CommonArguments],
) -> Result:
    """Change the snapshot and the retention of a tag.

    Example:
        >>> replace_tag(orders, "before_fix", snapshot=3).details["snapshot"]
        3
    """
    return perform("replace_tag", locals())


def delete_tag(
    table: str | Table, tag: str, *, branch: str = "main", if_missing: Literal["fail", "skip"] = "fail",
    release_hold: bool = False, **common: Unpack[CommonArguments],
) -> Result:
    """Delete a tag of a branch.

    Example:
        >>> delete_tag(orders, "before_fix").details["snapshot"]
        2
    """
    return perform("delete_tag", locals())


def rename_tag(
    table: str | Table, tag: str, to_tag: str, *, branch: str = "main", **common: Unpack[CommonArguments],
) -> Result:
    """Rename a tag of a branch.

    Example:
        >>> rename_tag(orders, "before_fix", "before_load").changed
        True
    """
    return perform("rename_tag", locals())


def create_table_set(
    table: str | Table, table_set: str, *, member: Iterable[str] = (), keep: int = 10, retention: str = "7 d",
    **common: Unpack[CommonArguments],
) -> Result:
    """Create the next version of a set of tables: one snapshot of each, read as one.

    Example:
        >>> create_table_set(orders, "nightly", member=["sales.customers"]).details["number"]
        1
    """
    return perform("create_table_set", locals())


def reset_consumer(
    table: str | Table, consumer: str, *, next_snapshot: int | None = None, branch: str = "main",
    if_missing: Literal["fail", "skip"] = "fail", **common: Unpack[CommonArguments],
) -> Result:
    """Set or delete the position of a streaming reader.

    Example:
        >>> reset_consumer(orders, "dashboard", next_snapshot=3).changed
        True
    """
    return perform("reset_consumer", locals())


def clear_consumers(
    table: str | Table, *, including: str | None = None, excluding: str | None = None, idle_for: str | None = None,
    branch: str = "main", **common: Unpack[CommonArguments],
) -> Result:
    """Delete positions of streaming readers, which then retain no snapshots.

    Example:
        >>> clear_consumers(orders, including="dash.*").changed
        True
    """
    return perform("clear_consumers", locals())


def alter_table(
    table: str | Table, *, branch: str = "main", change: Iterable[str] = (), **common: Unpack[CommonArguments],
) -> Result:
    """Change columns and options of a table's branch, all changes as one schema version.

    Example:
        >>> alter_table(orders, change=["add column note STRING"]).changed
        True
    """
    return perform("alter_table", locals())


def merge_branch(
    table: str | Table, branch: str, *, approved_by: str | None = None, requested_by: str | None = None,
    four_eyes: bool = False, skip_checks: bool = False, expected_main_snapshot: int | str | None = None,
    undo_retention: str = "7 d", approved_at: str | None = None, reason: str | None = None,
    changelog: Literal["auto", "none"] = "auto", expected_branch_snapshot: int | str | None = None,
    approved_main_snapshot: int | str | None = None, diff: str | None = None, writers_stopped: bool = False,
    force: bool = False, tag_conflict: Literal["fail", "keep-main", "rename"] = "fail", partitions: Iterable[str] = (),
    tags: bool = False, revert_compaction: bool = False, keep_appended: bool = False,
    on_overlap: Literal["fail", "branch", "main"] = "fail", **common: Unpack[CommonArguments],
) -> Result:
    """Publish a branch onto main as one snapshot, and keep what main got since.

    Example:
        >>> merge_branch(orders, "fix", approved_by="ben").snapshot_after
        4
    """
    return perform("merge_branch", locals())


def fast_forward(
    table: str | Table, branch: str, *, approved_by: str | None = None, requested_by: str | None = None,
    four_eyes: bool = False, skip_checks: bool = False, expected_main_snapshot: int | str | None = None,
    undo_retention: str = "7 d", approved_at: str | None = None, reason: str | None = None,
    changelog: Literal["auto", "none"] = "auto", expected_branch_snapshot: int | str | None = None,
    approved_main_snapshot: int | str | None = None, diff: str | None = None, writers_stopped: bool = False,
    force: bool = False, tag_conflict: Literal["fail", "keep-main", "rename"] = "fail", discard_main: bool = False,
    tags: bool = False, **common: Unpack[CommonArguments],
) -> Result:
    """Publish a branch onto main; refused if main changed since the branch was created.

    Example:
        >>> fast_forward(orders, "fix", discard_main=True).snapshot_after
        4
    """
    return perform("fast_forward", locals())


def replace_main(
    table: str | Table, branch: str, *, approved_by: str | None = None, requested_by: str | None = None,
    four_eyes: bool = False, skip_checks: bool = False, expected_main_snapshot: int | str | None = None,
    undo_retention: str = "7 d", approved_at: str | None = None, reason: str | None = None,
    changelog: Literal["auto", "none"] = "auto", expected_branch_snapshot: int | str | None = None,
    approved_main_snapshot: int | str | None = None, diff: str | None = None, writers_stopped: bool = False,
    force: bool = False, tag_conflict: Literal["fail", "keep-main", "rename"] = "fail", discard_main: bool = False,
    keep_old_as: str | None = None, options: Literal["branch", "main"] = "branch", option: Iterable[str] = (),
    move_consumer: Iterable[str] = (), readers_stopped: bool = False, **common: Unpack[CommonArguments],
) -> Result:
    """Replace the whole state of main by that of a branch: rows, columns, options, and the branch's tags.

    Example:
        >>> replace_main(orders, "fix", keep_old_as="before", discard_main=True).snapshot_after
        4
    """
    return perform("replace_main", locals())


def rollback_to(
    table: str | Table, *, approved_by: str | None = None, requested_by: str | None = None, four_eyes: bool = False,
    skip_checks: bool = False, expected_main_snapshot: int | str | None = None, undo_retention: str = "7 d",
    approved_at: str | None = None, reason: str | None = None, changelog: Literal["auto", "none"] = "auto",
    branch: str = "main", tag: str | None = None, snapshot: int | None = None, timestamp: str | None = None,
    watermark: str | None = None, keep_later: bool = False, writers_stopped: bool = False,
    **common: Unpack[CommonArguments],
) -> Result:
    """Roll a branch back to the live files of an earlier snapshot or tag, as a new snapshot.

    Example:
        >>> rollback_to(orders, tag="before_fix", reason="wrong load").snapshot_after
        4
    """
    return perform("rollback_to", locals())


def diff_branches(
    table: str | Table, branch: str, *, against: str = "base", partitions: Iterable[str] = (), sample: int = 5,
    mask: Iterable[str] = (), **common: Unpack[CommonArguments],
) -> Result:
    """Compare the rows of two branches, or of a branch and its base.

    Example:
        >>> diff_branches(orders, "fix").details["total"]["changed"]
        1
    """
    return perform("diff_branches", locals())


def plan_correction(
    table: str | Table, *, branch: str | None = None, from_branch: str = "main", sql: str | None = None,
    function: str | None = None, view: Iterable[str] = (), mode: Literal["overwrite", "upsert"] = "overwrite",
    partitions: Iterable[str] = (), **common: Unpack[CommonArguments],
) -> Result:
    """Plan a correction from metadata alone: what it will read and write, and what conflicts with it.

    Example:
        >>> plan_correction(orders, branch="fix", sql="fix.sql").details["statement"]
        'UPDATE'
    """
    return perform("plan_correction", locals())


def compact(
    table: str | Table, *, branch: str = "main", partitions: Iterable[str] = (), min_files: int = 5,
    max_sorted_runs: int | None = None, writers_stopped: bool = False, processes: int = 1,
    **common: Unpack[CommonArguments],
) -> Result:
    """Merge small files and sorted runs into few, and drop deleted rows.

    Example:
        >>> compact(orders, processes=2).details["files_before"]
        6
    """
    return perform("compact", locals())


def compact_manifest(
    table: str | Table, *, branch: str = "main", manifest_sort_enabled: bool = False, **common: Unpack[CommonArguments],
) -> Result:
    """Merge the manifests of a branch into few, sorted by partition, without deleted entries.

    Example:
        >>> compact_manifest(orders).details["after"]["manifests"]
        1
    """
    return perform("compact_manifest", locals())


def rescale(
    table: str | Table, *, branch: str = "main", bucket_num: int | None = None, partitions: Iterable[str] = (),
    writers_stopped: bool = False, processes: int = 1, **common: Unpack[CommonArguments],
) -> Result:
    """Distribute the rows of a table with fixed buckets, or of some partitions, to another number of buckets.

    Example:
        >>> rescale(orders, bucket_num=4).details["bucket_num_before"]
        [2]
    """
    return perform("rescale", locals())


def expire_branches(
    table: str | Table, *, older_than: str | None = None, idle_for: str | None = None, owner: str | None = None,
    drop_unpublished: bool = False, notify_before: str | None = None, **common: Unpack[CommonArguments],
) -> Result:
    """Delete branches whose retention has passed, unless they are protected or have unpublished commits.

    Example:
        >>> expire_branches(orders, older_than="30 d").changed
        False
    """
    return perform("expire_branches", locals())


def remove_orphan_files(
    table: str | Table, *, older_than: str = "1 d", records_older_than: str = "30 d", memory_mb: int = 256,
    **common: Unpack[CommonArguments],
) -> Result:
    """Delete old files that no snapshot, tag or changelog of any branch refers to.

    Example:
        >>> remove_orphan_files(orders, older_than="2 d").changed
        False
    """
    return perform("remove_orphan_files", locals())


def check_table(
    table: str | Table, *, verify_files: bool = True, verify_keys: bool = False, memory_mb: int = 256,
    **common: Unpack[CommonArguments],
) -> Result:
    """Find incomplete branches, missing protective tags, missing files and stale records.

    Example:
        >>> check_table(orders).details["ok"]
        True
    """
    return perform("check_table", locals())


def storage_usage(
    table: str | Table, *, limit: int = 100, memory_mb: int = 256, **common: Unpack[CommonArguments],
) -> Result:
    """Count the bytes that each branch, tag and range of snapshots retains, and what its deletion would free.

    Example:
        >>> storage_usage(orders, limit=5).details["references"][0]["kind"]
        'branch'
    """
    return perform("storage_usage", locals())


def find_rows(
    table: str | Table, where: str, *, limit: int = 100, **common: Unpack[CommonArguments],
) -> Result:
    """Find the stored files with rows of a condition, on all branches, and the snapshots and tags that need them.

    Example:
        >>> find_rows(orders, "id = 1").details["rows"]
        4
    """
    return perform("find_rows", locals())


def erase_rows(
    table: str | Table, where: str, *, approved_by: str | None = None, requested_by: str | None = None,
    four_eyes: bool = False, skip_checks: bool = False, limit: int = 100, expire_tags: bool = False,
    expire_history: bool = False, grace: str = "1 h", writers_stopped: bool = False, orphans_older_than: str = "1 d",
    reason: str | None = None, processes: int = 1, **common: Unpack[CommonArguments],
) -> Result:
    """Erase rows of a condition from main, every branch, and old snapshots and tags.

    Example:
        >>> erase_rows(orders, "id = 1", reason="request 17", dry_run=True).changed
        True
    """
    return perform("erase_rows", locals())


def export_audit(
    table: str | Table, *, from_: str | None = None, to: str | None = None, uri: str | None = None,
    format: Literal["json", "csv", "markdown"] | None = None, to_table: str | None = None,
    skip_unreadable: bool = False, **common: Unpack[CommonArguments],
) -> Result:
    """Write who changed tables, why, and who approved it, to a file or to a table.

    Example:
        >>> export_audit(orders, uri="audit.csv").details["records"]
        1
    """
    return perform("export_audit", locals())


def table_health(
    table: str | Table, *, storage: bool = False, limit: int = 100, **common: Unpack[CommonArguments],
) -> Result:
    """Score the health of tables by their files and metadata, with reasons and recommended fixes.

    Example:
        >>> table_health("sales.*", warehouse="/data/warehouse").details["tables"][0]["score"]
        100
    """
    return perform("table_health", locals())


def repair_table(
    table: str | Table, *, finding: Iterable[str] = (), **common: Unpack[CommonArguments],
) -> Result:
    """Repair the findings of check_table.

    Example:
        >>> repair_table(orders).details["repaired"]
        []
    """
    return perform("repair_table", locals())


def create_chain_table(
    table: str | Table, *, column: Iterable[str] = (), primary_key: Iterable[str] = (),
    partition_key: Iterable[str] = (), option: Iterable[str] = (), snapshot_branch: str = "snapshot",
    delta_branch: str = "delta", chain_partition_key: Iterable[str] = (), timestamp_pattern: str | None = None,
    timestamp_formatter: str | None = None, sequence_field: Iterable[str] = (), **common: Unpack[CommonArguments],
) -> Result:
    """Create a chain table, or convert a primary-key table, with its branches and options.

    Example:
        >>> create_chain_table(
        ...     nights, timestamp_pattern="$dt", timestamp_formatter="yyyyMMdd", sequence_field=["v"]
        ... ).changed
        True
    """
    return perform("create_chain_table", locals())


def check_chain_table(
    table: str | Table, **common: Unpack[CommonArguments],
) -> Result:
    """Find problems of a chain table: option drift, gaps, stale partitions, hidden deltas.

    Example:
        >>> check_chain_table(days).details["ok"]
        True
    """
    return perform("check_chain_table", locals())


def alter_chain_table(
    table: str | Table, *, change: Iterable[str] = (), **common: Unpack[CommonArguments],
) -> Result:
    """Apply one schema change to all three branches of a chain table, or to none.

    Example:
        >>> alter_chain_table(days, change=["add column note STRING"]).changed
        True
    """
    return perform("alter_chain_table", locals())


def compact_chain_table(
    table: str | Table, *, partition: Iterable[str] = (), from_: str | None = None, to: str | None = None,
    pending: bool = False, max_chain_length: int | None = None, overwrite: bool = False,
    gap_policy: Literal["empty", "carry_forward"] = "empty", task_memory_mb: int = 256, processes: int = 1,
    **common: Unpack[CommonArguments],
) -> Result:
    """Compact partitions of a chain table into full partitions of its snapshot branch.

    Example:
        >>> compact_chain_table(days, pending=True, max_chain_length=1).changed
        True
    """
    return perform("compact_chain_table", locals())


def expire_partitions(
    table: str | Table, *, approved_by: str | None = None, requested_by: str | None = None, four_eyes: bool = False,
    skip_checks: bool = False, branch: str = "main", expiration_time: str | None = None,
    strategy: Literal["values-time", "update-time"] | None = None, timestamp_pattern: str | None = None,
    timestamp_formatter: str | None = None, min_full_partitions: int = 1, limit: int | None = None,
    **common: Unpack[CommonArguments],
) -> Result:
    """Drop partitions that are too old; in a chain table, whole segments.

    Example:
        >>> expire_partitions(orders, expiration_time="7 d", now="2026-05-09T00:00:00Z").details["expired"]
        {'main': ['dt=2026-05-01']}
    """
    return perform("expire_partitions", locals())


def mark_partition_done(
    table: str | Table, *, partitions: Iterable[str] = (), **common: Unpack[CommonArguments],
) -> Result:
    """Mark partitions as done, for downstream jobs.

    Example:
        >>> mark_partition_done(orders, partitions=["dt=2026-05-01"]).changed
        True
    """
    return perform("mark_partition_done", locals())


def expire_snapshots(
    table: str | Table, *, branch: str = "main", all_branches: bool = False, older_than: str | None = None,
    grace: str = "1 h", writers_stopped: bool = False, retain_min: int | None = None, retain_max: int | None = None,
    max_deletes: int | None = None, keep_undo: bool = True, retry_window: str = "1 d",
    **common: Unpack[CommonArguments],
) -> Result:
    """Expire old snapshots, and delete the files that no branch, tag or reader needs any more.

    Example:
        >>> expire_snapshots(orders, retain_max=1).changed
        True
    """
    return perform("expire_snapshots", locals())


def expire_changelogs(
    table: str | Table, *, branch: str = "main", all_branches: bool = False, older_than: str | None = None,
    grace: str = "1 h", writers_stopped: bool = False, retain_min: int | None = None, retain_max: int | None = None,
    max_deletes: int | None = None, delete_all: bool = False, **common: Unpack[CommonArguments],
) -> Result:
    """Expire old long-lived changelogs, and delete the files that no branch, tag or reader needs any more.

    Example:
        >>> expire_changelogs(orders, retain_max=1).changed
        False
    """
    return perform("expire_changelogs", locals())


def expire_tags(
    table: str | Table, *, branch: str = "main", all_branches: bool = False, older_than: str | None = None,
    grace: str = "1 h", writers_stopped: bool = False, prefix: str | None = None, include_unlimited: bool = False,
    **common: Unpack[CommonArguments],
) -> Result:
    """Expire old tags, and delete the files that no branch, tag or reader needs any more.

    Example:
        >>> expire_tags(orders, older_than="30 d").changed
        False
    """
    return perform("expire_tags", locals())


def trigger_tag_automatic_creation(
    table: str | Table, **common: Unpack[CommonArguments],
) -> Result:
    """Create the automatic tags of main that are due, and expire old ones.

    Example:
        >>> trigger_tag_automatic_creation(customers).details["mode"]
        'process-time'
    """
    return perform("trigger_tag_automatic_creation", locals())


for _name in __all__:
    describe(_name, globals()[_name])
