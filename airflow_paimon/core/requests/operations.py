"""The table of operations: name, request, the function that executes it, and where it runs.

Jobs, the launcher, operators and the command line look up here. Functions are given as ``module:function`` and imported
when they are called, so that a DAG file that imports this module stays fast.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from airflow_paimon.core.errors import InvalidInputError, UnsupportedFeatureError
from airflow_paimon.core.requests import chain_requests, expiry_requests, replay_requests, requests
from airflow_paimon.core.requests.base import Request

if TYPE_CHECKING:
    from airflow_paimon.core.requests.context import Context
    from airflow_paimon.core.requests.result import OperationResult

RunsOn = Literal["metadata", "rows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One row of the table.

    Attributes:
        summary: What it does, for ``--help``.
        runs_on: ``metadata``: in any Python, as ``function(context, request)``. ``rows``: in a Spark driver, as
            ``function(spark, context, request)``.
        connector: The function for ``engine="connector"``, if any. Metadata operations need none.
        fold: For publishes: the function that folds buckets of the branch first, passed as third argument.
        on_rows: Further arguments of a metadata operation that may have to read or write rows: the functions of
            the data layer that do.
        plan: Of an operation on rows: the function that makes a dry run's result of metadata alone, if any.
    """

    name: str
    request: type[Request]
    summary: str
    function: str
    runs_on: RunsOn = "metadata"
    connector: str | None = None
    fold: str | None = None
    on_rows: tuple[str, ...] = ()
    plan: str | None = None

    @property
    def needs_spark(self) -> bool:
        """Whether it reads or writes rows. Other operations can run in an Airflow worker."""
        return self.runs_on == "rows"


_CORE, _JOBS, _CONNECTOR = "airflow_paimon.core", "airflow_paimon.spark.jobs", "airflow_paimon.spark.connector"
_FOLD = "airflow_paimon.data.fold:fold_buckets"
_REWRITE = "airflow_paimon.data.publish_row_ids:rewrite_files"
_KEYS = "airflow_paimon.data.key_hashes:key_hashes"
_CHANGELOG = "airflow_paimon.data.publish_changelog:write_changelog"

OPERATIONS: dict[str, Operation] = {
    operation.name: operation
    for operation in (
        Operation(
            name="create_branch",
            request=requests.CreateBranch,
            summary="Create a branch from a tag, from a snapshot, or empty.",
            function=f"{_CORE}.branches.create:create_branch",
        ),
        Operation(
            name="alter_branch",
            request=requests.AlterBranch,
            summary="Change a branch's owner, reason, retention or protection.",
            function=f"{_CORE}.branches.ownership:alter_branch",
        ),
        Operation(
            name="delete_branch",
            request=requests.DeleteBranch,
            summary="Delete a branch other than main.",
            function=f"{_CORE}.branches.delete:delete_branch",
        ),
        Operation(
            name="rename_branch",
            request=requests.RenameBranch,
            summary="Rename a branch.",
            function=f"{_CORE}.branches.rename:rename_branch",
        ),
        Operation(
            name="create_tag",
            request=requests.CreateTag,
            summary="Tag a snapshot of a branch.",
            function=f"{_CORE}.branches.tags:create_tag",
        ),
        Operation(
            name="delete_tag",
            request=requests.DeleteTag,
            summary="Delete a tag of a branch.",
            function=f"{_CORE}.branches.tags:delete_tag",
        ),
        Operation(
            name="alter_table",
            request=requests.AlterTable,
            summary="Change columns and options of a table's branch, all changes as one schema version.",
            function=f"{_CORE}.schema.alter:alter",
        ),
        Operation(
            name="merge_branch",
            request=requests.MergeBranch,
            summary="Publish a branch onto main as one snapshot; refused if main changed the same buckets.",
            function=f"{_CORE}.publish.merge:publish_branch",
            fold=_FOLD,
            on_rows=(_REWRITE, _CHANGELOG),
        ),
        Operation(
            name="fast_forward",
            request=requests.FastForward,
            summary="Publish a branch onto main; refused if main changed since the branch point.",
            function=f"{_CORE}.publish.merge:publish_branch",
            fold=_FOLD,
            on_rows=(_REWRITE, _CHANGELOG),
        ),
        Operation(
            name="replace_main",
            request=requests.ReplaceMain,
            summary="Give main the whole state of a branch: rows, columns, options, and the branch's tags.",
            function=f"{_CORE}.publish.merge:publish_branch",
            fold=_FOLD,
            on_rows=(_REWRITE, _CHANGELOG),
        ),
        Operation(
            name="rollback_to",
            request=requests.RollbackTo,
            summary="Roll a branch back to the live files of an earlier snapshot or tag, as a new snapshot.",
            function=f"{_CORE}.publish.rollback:rollback_to",
            on_rows=(_CHANGELOG,),
        ),
        Operation(
            name="diff_branches",
            request=requests.DiffBranches,
            summary="Compare the rows of two branches, or of a branch and its base.",
            function=f"{_JOBS}.diff_branches:diff_branches",
            runs_on="rows",
            connector=f"{_CONNECTOR}.diff_branches:diff_branches",
        ),
        Operation(
            name="correct_branch",
            request=requests.CorrectBranch,
            summary="Write the rows of a query or a function into a branch.",
            function=f"{_JOBS}.correct_branch:correct_branch",
            runs_on="rows",
            connector=f"{_CONNECTOR}.correct_branch:correct_branch",
        ),
        Operation(
            name="replay_branch",
            request=replay_requests.ReplayBranch,
            summary="Run a function or statements over upstream tables, from a point on, into branches.",
            function=f"{_JOBS}.replay_branch:replay_branch",
            runs_on="rows",
        ),
        Operation(
            name="compact",
            request=requests.Compact,
            summary="Write the small files of an append table together, and drop deleted rows.",
            function=f"{_JOBS}.compact:compact",
            runs_on="rows",
            plan="airflow_paimon.data.compact:compact",
        ),
        Operation(
            name="expire_branches",
            request=requests.ExpireBranches,
            summary="Delete branches whose retention is over, unless they are protected or have unpublished commits.",
            function=f"{_CORE}.metadata_expiry.expire_branches:expire_branches",
        ),
        Operation(
            name="remove_orphan_files",
            request=requests.RemoveOrphanFiles,
            summary="Delete old files that no snapshot, tag or changelog of any branch refers to.",
            function=f"{_CORE}.metadata_expiry.remove_orphan_files:remove_orphan_files",
        ),
        Operation(
            name="check_table",
            request=requests.CheckTable,
            summary="Find incomplete branches, missing protective tags, missing files and stale records.",
            function=f"{_CORE}.check.check:check_table",
            on_rows=(
                "airflow_paimon.data.duplicate_row_ids:duplicate_row_ids",
                "airflow_paimon.data.key_places:double_keys",
                _KEYS,
            ),
        ),
        Operation(
            name="repair_table",
            request=requests.RepairTable,
            summary="Repair the findings of check_table.",
            function=f"{_CORE}.check.repair:repair_table",
            on_rows=(_KEYS,),
        ),
        Operation(
            name="create_chain_table",
            request=chain_requests.CreateChainTable,
            summary="Create a chain table, or convert a primary-key table, with its branches and options.",
            function=f"{_CORE}.chain.setup:create_chain",
        ),
        Operation(
            name="check_chain_table",
            request=chain_requests.CheckChainTable,
            summary="Find problems of a chain table: option drift, gaps, stale partitions, hidden deltas.",
            function=f"{_CORE}.chain.check:check_chain",
        ),
        Operation(
            name="alter_chain_table",
            request=chain_requests.AlterChainTable,
            summary="Apply one schema change to all three branches of a chain table, or to none.",
            function=f"{_CORE}.chain.alter:alter_chain",
        ),
        Operation(
            name="compact_chain_table",
            request=chain_requests.CompactChainTable,
            summary="Compact partitions of a chain table into full ones in its snapshot branch.",
            function=f"{_JOBS}.compact_chain_table:compact_chain_table",
            runs_on="rows",
        ),
        Operation(
            name="expire_partitions",
            request=chain_requests.ExpirePartitions,
            summary="Drop partitions that are too old; in a chain table, whole segments.",
            function=f"{_CORE}.partition_expiry.expire_partitions:expire_partitions",
        ),
        Operation(
            name="expire_snapshots",
            request=expiry_requests.ExpireSnapshots,
            summary="Expire old snapshots, and delete the files that no branch, tag or reader needs any more.",
            function=f"{_CORE}.metadata_expiry.expire_snapshots:expire_snapshots",
        ),
        Operation(
            name="expire_tags",
            request=expiry_requests.ExpireTags,
            summary="Expire old tags, and delete the files that no branch, tag or reader needs any more.",
            function=f"{_CORE}.metadata_expiry.expire_snapshots:expire_tags",
        ),
    )
}


def operation_of(name: str) -> Operation:
    """Look an operation up.

    Raises:
        InvalidInputError: the name is unknown.
    """
    if name not in OPERATIONS:
        raise InvalidInputError(f"Unknown operation {name!r}; there are: {', '.join(sorted(OPERATIONS))}")
    return OPERATIONS[name]


def resolve(function: str) -> Callable[..., Any]:
    """Import a function given as ``module:function``."""
    module, _, name = function.partition(":")
    found: Callable[..., Any] = getattr(import_module(module), name)
    return found


def run_operation(request: Request, *, fold: Callable[..., Any] | None = None) -> OperationResult:
    """Run a metadata-only operation. ``fold`` is called instead of the operation's own.

    Raises:
        PaimonError: see each operation. UnsupportedFeatureError: the operation reads rows and needs Spark.
    """
    from airflow_paimon.core.requests.context import open_context

    if operation_of(request.operation).needs_spark:
        raise UnsupportedFeatureError(f"{request.operation} reads rows: run it as a Spark job (run_on='spark')")
    return perform(open_context(request), request, fold)


def plan_operation(request: Request) -> OperationResult:
    """Plan an operation on rows without Spark: the result of a dry run, from metadata alone.

    Raises:
        PaimonError: see the operation. UnsupportedFeatureError: its plan needs rows.
    """
    from airflow_paimon.core.requests.context import open_context

    plan = operation_of(request.operation).plan
    if plan is None or not request.dry_run:
        raise UnsupportedFeatureError(f"{request.operation} has no plan without rows: run it as a Spark job")
    result: OperationResult = resolve(plan)(open_context(request), request)
    return result


def perform(context: Context, request: Request, fold: Callable[..., Any] | None = None) -> OperationResult:
    """Run a metadata-only operation on an open table."""
    from airflow_paimon.core.commit.landed import verified_commits

    operation = operation_of(request.operation)
    function = resolve(operation.function)
    with verified_commits():
        result: OperationResult = function(context, request, *_helpers(operation, fold))
    return result


def _helpers(operation: Operation, fold: Callable[..., Any] | None) -> tuple[Any, ...]:
    """The functions of the data layer that an operation may need, imported when they are called."""
    lazily = tuple(_imported_later(function) for function in operation.on_rows)
    return (fold or _imported_later(operation.fold), *lazily) if operation.fold else lazily


def _imported_later(function: str) -> Callable[..., Any]:
    return lambda *args: resolve(function)(*args)


def function_on_rows(request: Request) -> Callable[..., OperationResult]:
    """Return the function of an operation that runs in a Spark driver, for the request's engine.

    Raises:
        InvalidInputError: the operation needs no Spark. UnsupportedFeatureError: the engine does not support it.
    """
    operation = operation_of(request.operation)
    if not operation.needs_spark:
        raise InvalidInputError(f"{request.operation} reads and writes no rows: run it without Spark")
    check_engine(request)
    return resolve((operation.connector if request.engine == "connector" else None) or operation.function)


def check_engine(request: Request) -> None:
    """Check that the engine supports the operation.

    Raises:
        UnsupportedFeatureError: the operation reads and writes rows, and the connector has no function for it.
    """
    operation = operation_of(request.operation)
    if operation.needs_spark and request.engine == "connector" and operation.connector is None:
        raise UnsupportedFeatureError(
            f"{request.table}: {request.operation} does not run with the engine connector; use --engine embedded, or "
            f"leave --engine out",
            table=request.table,
        )
