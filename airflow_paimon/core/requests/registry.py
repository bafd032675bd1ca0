"""Runs an operation that needs no rows: one entry point for jobs and for operators that work on the worker."""

from __future__ import annotations

from airflow_paimon.core.branches.create import create_branch
from airflow_paimon.core.branches.delete import delete_branch
from airflow_paimon.core.branches.publish import Fold, publish_branch
from airflow_paimon.core.branches.rename import rename_branch
from airflow_paimon.core.branches.rollback import rollback_to
from airflow_paimon.core.branches.tags import create_tag, delete_tag
from airflow_paimon.core.chain.alter import alter_chain
from airflow_paimon.core.chain.check import check_chain
from airflow_paimon.core.chain.setup import create_chain
from airflow_paimon.core.commit.landed import verified_commits
from airflow_paimon.core.errors import InvalidInputError, UnsupportedFeatureError
from airflow_paimon.core.maintenance.check import check_table
from airflow_paimon.core.maintenance.expire_partitions import expire_partitions
from airflow_paimon.core.maintenance.repair import repair_table
from airflow_paimon.core.requests.base import Request
from airflow_paimon.core.requests.chain_requests import (
    AlterChainTable,
    CheckChainTable,
    CreateChainTable,
    ExpirePartitions,
)
from airflow_paimon.core.requests.context import Context, open_context
from airflow_paimon.core.requests.requests import (
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
from airflow_paimon.core.requests.result import OperationResult


def run_operation(request: Request, *, fold: Fold | None = None) -> OperationResult:
    """Run a metadata-only operation. ``fold`` lets ``--rewrite`` of a publish rewrite rows.

    Raises:
        PaimonError: see each operation. UnsupportedFeatureError: the operation reads rows and needs Spark.
    """
    if request.needs_spark:
        raise UnsupportedFeatureError(f"{request.operation} reads rows: run it as a Spark job (run_on='spark')")
    context = open_context(request)
    return _dispatch(context, request, fold)


@verified_commits()
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
