"""Which branches of a table an operation reads and writes: what its task announces as inlets and outlets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_paimon.core.table.paths import MAIN

_OWN = {"create_branch": "from_branch", "diff_branches": "against", "correct_branch": "branch", "rollback_to": "branch",
        "replay_branch": "branch", "check_branch_data": "branch",
        "rename_branch": "branch", "rebase_branch": "branch", "merge_branch": "branch", "fast_forward": "branch",
        "replace_main": "branch",
        "expire_partitions": "branch", "compact": "branch", "alter_table": "branch",
        "rescale": "branch"}  # fmt: skip
_WRITTEN = {"create_branch": "branch", "rename_branch": "to_branch", "rebase_branch": "to_branch",
            "correct_branch": "branch", "rollback_to": "branch", "expire_partitions": "branch", "compact": "branch",
            "replay_branch": "branch", "alter_table": "branch", "rescale": "branch"}  # fmt: skip
_WRITES_MAIN = frozenset(
    {"merge_branch", "fast_forward", "replace_main", "create_chain_table", "alter_chain_table", "erase_rows"}
)
_WRITES_NOTHING = frozenset({"check_table", "check_chain_table", "create_tag", "create_table_set", "delete_tag",
                             "delete_branch", "rename_tag", "replace_tag", "reset_consumer", "clear_consumers",
                             "alter_branch", "diff_branches", "expire_branches", "expire_snapshots", "expire_tags",
                             "expire_changelogs", "compact_manifest",
                             "remove_orphan_files", "repair_table", "check_branch_data", "storage_usage",
                             "find_rows", "table_health", "plan_correction", "trigger_tag_automatic_creation",
                             "mark_partition_done", "export_audit"})  # fmt: skip
"""Rows and columns of a branch stay as they are, or, of a deleted one, are gone."""
_READS_NOTHING = frozenset({"create_chain_table", "create_tag", "delete_tag", "delete_branch", "alter_branch",
                            "create_table_set", "rename_tag", "replace_tag", "reset_consumer", "clear_consumers",
                            "expire_branches", "expire_snapshots", "expire_tags", "remove_orphan_files",
                            "expire_changelogs", "compact_manifest", "trigger_tag_automatic_creation",
                            "mark_partition_done",
                            "storage_usage", "table_health", "plan_correction", "export_audit"})  # fmt: skip
_READS_MAIN_TOO = frozenset({"rebase_branch", "merge_branch", "fast_forward", "replace_main", "correct_branch",
                             "check_branch_data"})  # fmt: skip
_BASE = "base"


def branches_to_read(operation: str, arguments: Mapping[str, Any]) -> list[Any]:
    """Return the branches that a task reads, by its arguments, templated ones as they are written."""
    if operation in _READS_NOTHING:
        return []
    found = [arguments.get(_OWN[operation]) if operation in _OWN else MAIN]
    if operation == "diff_branches":
        found = [MAIN if name == _BASE else _without_version(name) for name in (arguments.get("branch"), *found)]
    if operation in _READS_MAIN_TOO:
        found.append(MAIN)
    return [name for i, name in enumerate(found) if name not in found[:i]]


def _without_version(name: Any) -> Any:
    """Return the branch of ``BRANCH@VERSION``; a template stays as it is written."""
    return name.partition("@")[0] if isinstance(name, str) and "{{" not in name else name


def branches_to_write(operation: str, arguments: Mapping[str, Any]) -> list[Any]:
    """Return the branches that a task may change, as far as its arguments say; compaction chooses by the table."""
    if operation in _WRITES_MAIN:
        return [MAIN]
    return [arguments.get(_WRITTEN[operation])] if operation in _WRITTEN else []


def branches_written(result: Mapping[str, Any]) -> list[str]:
    """Return the branches whose rows or columns an operation has changed; none for a dry run, a tag or a deletion."""
    operation, details = result["operation"], result["details"]
    if not result["changed"] or result["dry_run"] or operation in _WRITES_NOTHING:
        return []
    found = [result["branch"]]
    if operation == "alter_chain_table":
        found = list(details.get("branches") or found)
    if operation == "erase_rows":
        found = [one["branch"] for one in details["erased"]]
    if operation == "expire_partitions":
        found = list(details.get("expired") or found)  # of a chain table in two branches
    return list(dict.fromkeys(found))
