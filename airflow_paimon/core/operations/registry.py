"""Runs an operation that needs no rows: one entry point for jobs and for operators that work on the worker."""

from __future__ import annotations

from airflow_paimon.core.errors import InvalidInputError, UnsupportedFeatureError
from airflow_paimon.core.operations.branches import create_branch, delete_branch, rename_branch
from airflow_paimon.core.operations.chain_alter import alter_chain
from airflow_paimon.core.operations.chain_request import (
    AlterChainTable,
    CheckChainTable,
    CreateChainTable,
    ExpirePartitions,
)
from airflow_paimon.core.operations.chain_setup import create_chain
from airflow_paimon.core.operations.check import check_table
from airflow_paimon.core.operations.check_chain import check_chain
from airflow_paimon.core.operations.context import Context, open_context
from airflow_paimon.core.operations.expire_partitions import expire_partitions
from airflow_paimon.core.operations.publish import Fold, publish_branch
from airflow_paimon.core.operations.repair import repair_table
from airflow_paimon.core.operations.request import (
    CheckTable,
    CreateBranch,
    CreateTag,
    DeleteBranch,
    DeleteTag,
    PublishBranch,
    RenameBranch,
    RepairTable,
    RollbackTo,
)
from airflow_paimon.core.operations.request_base import Request
from airflow_paimon.core.operations.result import OperationResult
from airflow_paimon.core.operations.rollback import rollback_to
from airflow_paimon.core.operations.tags import create_tag, delete_tag


def run_operation(request: Request, *, fold: Fold | None = None) -> OperationResult:
    """Run a metadata-only operation. ``fold`` lets ``--rewrite`` of a publish rewrite rows.

    Raises:
        PaimonError: see each operation. UnsupportedFeatureError: the operation reads rows and needs Spark.
    """
    if request.needs_spark:
        raise UnsupportedFeatureError(f"{request.operation} reads rows: run it as a Spark job (run_on='spark')")
    context = open_context(request)
    return _dispatch(context, request, fold)


def _dispatch(context: Context, request: Request, fold: Fold | None) -> OperationResult:
    match request:
        case CreateBranch():
            return create_branch(context, request)
        case DeleteBranch():
            return delete_branch(context, request)
        case RenameBranch():
            return rename_branch(context, request)
        case CreateTag():
            return create_tag(context, request)
        case DeleteTag():
            return delete_tag(context, request)
        case PublishBranch():
            return publish_branch(context, request, fold)
        case RollbackTo():
            return rollback_to(context, request)
        case _:
            return _maintain(context, request)


def _maintain(context: Context, request: Request) -> OperationResult:
    match request:
        case CheckTable():
            return check_table(context, request)
        case RepairTable():
            return repair_table(context, request)
        case CreateChainTable():
            return create_chain(context, request)
        case CheckChainTable():
            return check_chain(context, request)
        case AlterChainTable():
            return alter_chain(context, request)
        case ExpirePartitions():
            return expire_partitions(context, request)
        case _:
            raise InvalidInputError(f"Unknown operation {request.operation!r}")
