"""Airflow provider for the life of an Apache Paimon table. Importing this package imports nothing heavy."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_paimon.core.publish.main_state import main_state
    from airflow_paimon.core.publish.undo_statement import undo_statement
    from airflow_paimon.core.schema.databases import create_database, drop_database
    from airflow_paimon.notebook.create import create_table
    from airflow_paimon.notebook.functions import *  # noqa: F403
    from airflow_paimon.notebook.operation import Result
    from airflow_paimon.notebook.table import open_table
    from airflow_paimon.notebook.table_set import open_table_set
    from airflow_paimon.notebook.with_spark import check_branch_data, correct_branch

__version__ = "0.1.0"

__all__ = [  # noqa: F405
    "Result", "__version__", "alter_branch", "alter_chain_table", "alter_table", "check_branch_data",
    "check_chain_table", "check_table", "clear_consumers", "compact", "compact_chain_table", "compact_manifest",
    "correct_branch", "create_branch", "create_chain_table", "create_database", "create_table", "create_table_set",
    "create_tag", "delete_branch", "delete_tag", "diff_branches", "drop_database", "erase_rows", "expire_branches",
    "expire_changelogs", "expire_partitions", "expire_snapshots", "expire_tags", "export_audit", "fast_forward",
    "find_rows", "main_state", "mark_partition_done", "merge_branch", "open_table", "open_table_set", "plan_correction",
    "rebase_branch", "remove_orphan_files", "rename_branch", "rename_tag", "repair_table", "replace_main",
    "replace_tag", "rescale", "reset_consumer", "rollback_to", "storage_usage", "table_health",
    "trigger_tag_automatic_creation", "undo_statement",
]  # fmt: skip

_PLACES = {
    "Result": "notebook.operation",
    "check_branch_data": "notebook.with_spark",
    "correct_branch": "notebook.with_spark",
    "create_database": "core.schema.databases",
    "create_table": "notebook.create",
    "drop_database": "core.schema.databases",
    "main_state": "core.publish.main_state",
    "open_table": "notebook.table",
    "open_table_set": "notebook.table_set",
    "undo_statement": "core.publish.undo_statement",
}
"""Where the names are that are no functions of operations."""


def __getattr__(name: str) -> Any:
    # PEP 562: Airflow imports this package in every process that lists providers; the core comes only when asked for.
    if name in __all__:
        return getattr(import_module(f"airflow_paimon.{_PLACES.get(name, 'notebook.functions')}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
