"""Airflow operators, one per operation of the core.

All of them can be imported from here; a module is loaded when one of its names is asked for.
Made by ``make functions`` of the requests and of tests/python_operators.py: change those.
"""

# fmt: off
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_paimon.operators.audit import *  # noqa: F403
    from airflow_paimon.operators.branch import *  # noqa: F403
    from airflow_paimon.operators.chain import *  # noqa: F403
    from airflow_paimon.operators.check import *  # noqa: F403
    from airflow_paimon.operators.correction import *  # noqa: F403
    from airflow_paimon.operators.erasure import *  # noqa: F403
    from airflow_paimon.operators.flink import *  # noqa: F403
    from airflow_paimon.operators.maintenance import *  # noqa: F403
    from airflow_paimon.operators.pipeline import *  # noqa: F403
    from airflow_paimon.operators.replay import *  # noqa: F403
    from airflow_paimon.operators.table_set import *  # noqa: F403

MODULES = {
    "audit": (
        "ExportAuditOperator",
    ),
    "branch": (
        "AlterBranchOperator", "CorrectBranchOperator", "CreateBranchOperator", "CreateTagOperator",
        "DeleteBranchOperator", "DeleteTagOperator", "DiffBranchesOperator", "FastForwardOperator",
        "MergeBranchOperator", "PlanCorrectionOperator", "RebaseBranchOperator", "RenameBranchOperator",
        "RenameTagOperator", "ReplaceMainOperator", "ReplaceTagOperator", "RollbackOperator",
    ),
    "chain": (
        "AlterChainTableOperator", "ChainCompactOperator", "CheckChainTableOperator", "CreateChainTableOperator",
    ),
    "check": (
        "CheckBranchOperator",
    ),
    "correction": (
        "CorrectFromBaseOperator", "PublishApprovalOperator",
    ),
    "erasure": (
        "EraseRowsOperator", "FindRowsOperator",
    ),
    "flink": (
        "FlinkSqlOperator", "FlinkStopOperator",
    ),
    "maintenance": (
        "AlterTableOperator", "BranchExpireOperator", "ChangelogExpireOperator", "CheckTableOperator",
        "ClearConsumersOperator", "CompactManifestOperator", "CompactOperator", "MarkPartitionDoneOperator",
        "PartitionExpireOperator", "RemoveOrphanFilesOperator", "RepairTableOperator", "RescaleOperator",
        "ResetConsumerOperator", "SnapshotExpireOperator", "StorageUsageOperator", "TableHealthOperator",
        "TagAutomaticCreationOperator", "TagExpireOperator",
    ),
    "pipeline": (
        "PublishTablesOperator", "ReplayTablesOperator", "UndoTablesOperator",
    ),
    "replay": (
        "ReplayBranchOperator",
    ),
    "table_set": (
        "CreateTableSetOperator",
    ),
}
"""The modules of this package, each with its operators."""
_PLACES = {name: module for module, names in MODULES.items() for name in names}
__all__ = sorted(_PLACES)


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
