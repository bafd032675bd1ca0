"""What ``details`` of each operation's result may hold, for type checkers and completion; nothing is made of these.

What stands here is what docs/reference/results.md and the pages of the operations explain. An entry may be missing:
``result.details.get("replayed")``. An operation without an entry in ``DETAILS`` has a mapping of anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

Rows = list[dict[str, Any]]


class _AnyDetails(TypedDict, total=False):
    """``plan``: of a dry run. ``replayed``: an earlier try of the operation did it."""

    plan: dict[str, Any]
    commit_retries: int
    already_there: bool
    already_gone: bool
    replayed: bool


class Details(_AnyDetails, total=False):
    warnings: list[str]


class BranchDetails(Details, total=False):
    from_branch: str
    from_tag: str | None
    base_snapshot: int | None
    base_identity: str | None
    created_at: str
    owner: str | None
    reason: str | None
    retention: str | None
    protected: bool
    protected_by: str | None
    protective_tag: str | None


class AlterBranchDetails(Details, total=False):
    before: dict[str, Any]
    branch: dict[str, Any]


class DeleteBranchDetails(Details, total=False):
    files: int


class RenameBranchDetails(Details, total=False):
    renamed_from: str


class TagDetails(Details, total=False):
    tag: str
    snapshot: int
    renamed_from: str
    time_retained: str | None
    hold: str
    held_by: str | None
    released_hold: str


class TableSetDetails(Details, total=False):
    table_set: str
    number: int
    version: str
    tag: str
    created: int
    operation_id: str | None
    tables: dict[str, int]
    expired: list[int]


class ConsumerDetails(Details, total=False):
    consumer: str
    next_snapshot: int | None
    stood_at: int | None


class ClearConsumersDetails(Details, total=False):
    deleted: Rows


class AlterTableDetails(Details, total=False):
    schema_id: int
    columns: list[str]
    publish: dict[str, str]


class _Change(Details, total=False):
    """What a publish, a rollback or a rebase changes."""

    buckets: int
    partitions: int
    files_added: int
    files_deleted: int
    rows_added: int
    rows_deleted: int


class _OnMain(_Change, total=False):
    """``undo_tag``: to which ``rollback_to`` goes back."""

    undo_tag: str
    attempts: int
    streaming_readers: dict[str, str]
    open_writers: dict[str, Any]
    operation: str
    operation_id: str


class PublishDetails(_OnMain, total=False):
    branch: str
    branch_snapshot: int
    branch_identity: str
    branch_reason: str
    base_snapshot: int
    main_snapshot: int
    mode: str
    kept_of_main: int
    new_schemas: list[Any]
    only_partitions: list[str]
    published_partitions: list[str]
    left_partitions: list[str]
    left_partition_count: int
    options: list[Any]
    columns: list[Any]
    tags: list[Any]
    tags_that_stay: list[Any]
    kept_old_as: str | None
    branch_writers: list[str]
    replace_main: str
    folds: list[str]


class RebaseDetails(_Change, total=False):
    from_branch: str
    branch_snapshot: int
    base_snapshot: int
    previous_base_snapshot: int


class RollbackDetails(_OnMain, total=False):
    target_snapshot: int
    target_tag: str | None
    head_snapshot: int
    keep_later: bool
    files_came_back: bool


class DiffDetails(Details, total=False):
    branch: str
    against: str
    branch_snapshot: int | None
    against_snapshot: int | None
    main_snapshot: int | None
    different: bool
    key: list[str]
    columns: list[str]
    columns_only_in_branch: list[str]
    columns_only_in_against: list[str]
    total: dict[str, Any]
    partitions: Rows
    partitions_differing: int
    partitions_unchanged: int | None
    buckets: dict[str, int | None]
    files_not_visible: dict[str, int]
    appended_on_main: Any
    open_writers: dict[str, Any]
    notes: list[str]
    about: dict[str, Any]
    checks: dict[str, Any]


class CompactDetails(Details, total=False):
    partitions: int
    partition_names: list[str]
    files_before: int
    files_after: int
    bytes_before: int
    bytes_after: int
    rows: int
    deleted_rows: int
    expired_rows: int
    snapshots: list[int]
    groups: int
    open_buckets: Rows
    warnings: list[str]


class ExpireBranchesDetails(Details, total=False):
    expired: Rows
    kept: Rows
    later: Rows
    expiring_soon: Rows


class ExpiryDetails(Details, total=False):
    """``expired``, ``stopped_by``, ``needed`` and ``consumers`` are by branch."""

    expired: dict[str, Any]
    stopped_by: dict[str, str]
    needed: dict[str, dict[str, str]]
    consumers: dict[str, list[str]]
    reaped: dict[str, int]
    kept: Rows
    trash: dict[str, Any]


class OrphanDetails(Details, total=False):
    older_than: str
    files: int
    bytes: int
    folders: Rows
    folders_left_out: int
    young: dict[str, Any]
    held_by_writers: dict[str, int]
    unknown: dict[str, Any]
    operation_records: int
    stream_records: int
    referenced: dict[str, Any]


class CheckDetails(_AnyDetails, total=False):
    """``errors`` and ``warnings``: how many of the findings are."""

    ok: bool
    findings: Rows
    errors: int
    warnings: int


class RepairDetails(Details, total=False):
    repaired: Rows
    left: Rows


class CreateChainDetails(Details, total=False):
    created: bool
    snapshot_branch: str
    delta_branch: str
    chain_partition_keys: list[str]


class AlterChainDetails(Details, total=False):
    branches: list[str]
    schema_id: int


class CheckChainDetails(CheckDetails, total=False):
    groups: int
    anchors: int
    deltas: int
    gaps: int
    stale: list[str]
    recorded: int


class CompactChainDetails(Details, total=False):
    counts: dict[str, int]
    partitions: Rows
    snapshots: dict[str, int | None]


class ExpirePartitionsDetails(Details, total=False):
    """``expired``: names of partitions by branch; ``kept``, ``over_limit``: how many stay."""

    strategy: str
    cutoff: str
    kept: int
    over_limit: int
    unreadable: list[str]
    expired: dict[str, list[str]]
    partitions: int
    files: int
    rows: int
    bytes: int
    commits: Rows
    note: str


class PlanCorrectionDetails(Details, total=False):
    statement: str
    mode: str | None
    branch_exists: bool
    reads: dict[str, int]
    replaces: dict[str, Any]
    writes: dict[str, int | None]
    at_most: bool
    other_tables: dict[str, dict[str, int]]
    streaming_readers: dict[str, Any] | None
    open_writers: dict[str, Any]
    conflicts: Rows
    changed_on_main: list[str]
    changed_on_main_count: int
    replays: Rows
    tables_looked_at: int
    notes: list[str]


class FindRowsDetails(Details, total=False):
    """``proven``: nothing holds such rows any more, and nothing was left unchecked."""

    time: str
    condition_sha256: str
    proven: bool
    rows: int
    files: dict[str, Any]
    state: dict[str, int | None]
    branches: Rows
    holders: Rows
    consumers: Rows
    found: Rows
    found_left_out: int
    unchecked: Rows
    unchecked_left_out: int
    not_looked_at: list[str]


class EraseRowsDetails(FindRowsDetails, total=False):
    complete: bool
    erased: Rows
    expired_snapshots: dict[str, Any]
    expired_tags: dict[str, Any]
    orphan_files: dict[str, Any]
    proof: str | None
    ends: Rows
    stays: Rows
    conflicts: Rows


class HealthDetails(Details, total=False):
    """Of one table; of several ``tables``, ``left_out``, ``unreadable`` and the worst ``score``."""

    score: int | None
    reasons: Rows
    snapshot: int | None
    committed_ms: int | None
    files: dict[str, Any]
    deletions: dict[str, int]
    held: dict[str, Any]
    manifests: dict[str, int]
    chain: dict[str, Any] | None
    storage: dict[str, Any] | None
    cost_bytes: int
    tables: Rows
    left_out: int
    unreadable: int


class StorageDetails(Details, total=False):
    """Files and bytes of each part, and who holds them."""

    total: dict[str, int]
    referenced: dict[str, int]
    unreferenced: dict[str, int]
    young: dict[str, int]
    unknown: dict[str, int]
    records: dict[str, int]
    others: dict[str, int]
    live: dict[str, int]
    external: dict[str, int]
    holders: Rows
    holders_left_out: int


class AutomaticTagDetails(ExpiryDetails, total=False):
    """``created``: ``tag`` and ``snapshot`` of each. ``next``: the name of the tag that is set next, if time tells."""

    mode: str
    created: Rows
    skipped: dict[str, str]
    next: str | None


class ManifestDetails(Details, total=False):
    """``before`` and ``after``: numbers of ``manifests``, ``bytes``, ``entries`` and ``delete_entries``."""

    before: dict[str, int]
    after: dict[str, int]
    rewritten: int


class RescaleDetails(Details, total=False):
    bucket_num: int
    bucket_num_before: list[int]
    option: int
    option_before: int
    partitions: int
    partition_names: list[str]
    rows: int
    files_before: int
    files_after: int
    bytes_before: int
    bytes_after: int


class MarkPartitionDetails(Details, total=False):
    mark_done_actions: list[str]
    partitions: list[str]


class AuditDetails(Details, total=False):
    tables: int
    records: int
    kinds: dict[str, int]
    uri: str | None
    unreadable: dict[str, str]
    to_table: str
    to_snapshot: int | None
    rows_written: int
    rows_deleted: int


DETAILS: Mapping[str, type] = {
    "create_branch": BranchDetails,
    "alter_branch": AlterBranchDetails,
    "delete_branch": DeleteBranchDetails,
    "rename_branch": RenameBranchDetails,
    "rebase_branch": RebaseDetails,
    "create_tag": TagDetails,
    "delete_tag": TagDetails,
    "rename_tag": TagDetails,
    "replace_tag": TagDetails,
    "create_table_set": TableSetDetails,
    "reset_consumer": ConsumerDetails,
    "clear_consumers": ClearConsumersDetails,
    "alter_table": AlterTableDetails,
    "merge_branch": PublishDetails,
    "fast_forward": PublishDetails,
    "replace_main": PublishDetails,
    "rollback_to": RollbackDetails,
    "diff_branches": DiffDetails,
    "compact": CompactDetails,
    "compact_manifest": ManifestDetails,
    "rescale": RescaleDetails,
    "mark_partition_done": MarkPartitionDetails,
    "expire_branches": ExpireBranchesDetails,
    "expire_snapshots": ExpiryDetails,
    "expire_tags": ExpiryDetails,
    "expire_changelogs": ExpiryDetails,
    "trigger_tag_automatic_creation": AutomaticTagDetails,
    "remove_orphan_files": OrphanDetails,
    "check_table": CheckDetails,
    "repair_table": RepairDetails,
    "create_chain_table": CreateChainDetails,
    "alter_chain_table": AlterChainDetails,
    "check_chain_table": CheckChainDetails,
    "compact_chain_table": CompactChainDetails,
    "expire_partitions": ExpirePartitionsDetails,
    "plan_correction": PlanCorrectionDetails,
    "find_rows": FindRowsDetails,
    "erase_rows": EraseRowsDetails,
    "table_health": HealthDetails,
    "storage_usage": StorageDetails,
    "export_audit": AuditDetails,
}
