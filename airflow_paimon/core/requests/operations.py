"""The table of operations: name, request, the function that executes it, and where it runs.

Jobs, the launcher, operators and the command line look up here. Functions are imported when they are called, so that a
DAG file that imports this module stays fast.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from airflow_paimon.core.errors import (
    InvalidInputError,
    PaimonError,
    UnsupportedCatalogError,
    UnsupportedFeatureError,
    first_few,
    naming_table,
)
from airflow_paimon.core.requests import requests
from airflow_paimon.core.requests.requests import Request
from airflow_paimon.core.table.paths import MAIN, is_pattern

if TYPE_CHECKING:
    from airflow_paimon.core.parallel.workers import RunPieces
    from airflow_paimon.core.requests.context import Context, OperationResult

RowsOfMain = Literal["none", "branch", "changed"]


@dataclass(frozen=True, slots=True)
class Operation:
    """One row of the table. Functions are given as ``module:function``, the module below ``airflow_paimon``.

    Attributes:
        function: Of an operation on metadata: what executes it in any Python, as ``function(context, request)``. None:
            it reads or writes rows in a Spark driver, by a function of ``spark/jobs``.
        rows_of_main: What it does to the rows that readers of main see. ``none``: nothing; files may be written again
            with the same rows. ``branch``: it changes the rows of a branch, which is refused where four eyes are asked
            for and readers of main see that branch, too. ``changed``: it brings rows to main or takes rows from it, so
            its request is an ``Approved``, and four eyes and required checks hold for it.
        fold: For publishes: the function that folds buckets of the branch first, passed as third argument.
        on_rows: Further arguments of a metadata operation that may have to read or write rows: the functions of
            the data layer that do.
        here: Of an operation on rows: the function that does without Spark, if any, as ``function(context,
            request)``; with ``processes`` as third argument, if it has one. Its dry run reads metadata alone.
        own_metadata: It rewrites or deletes metadata files, which is not possible where a server keeps them.
        reads: The branches whose rows it reads: fields of its request that name them, or ``MAIN``.
        writes: The branches whose rows or columns it may change, likewise; ``BY_TABLE``: the table's options name it.
        same_rows: What it writes has the rows that were there before.
    """

    request: type[Request]
    function: str | None
    fold: str | None = None
    on_rows: tuple[str, ...] = ()
    here: str | None = None
    own_metadata: bool = False
    rows_of_main: RowsOfMain = field(kw_only=True)
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    same_rows: bool = False

    @property
    def summary(self) -> str:
        """What it does, in a sentence: the beginning of its request's docstring."""
        return (self.request.__doc__ or "").partition("\n\n")[0].strip()

    @property
    def needs_spark(self) -> bool:
        """Whether it reads or writes rows. Other operations can run in an Airflow worker."""
        return self.function is None


BY_TABLE = "<by the table>"
_LISTED = 5
_KEYS = "data.check_rows:key_hashes"
_KEYS_TWICE = "data.check_rows:keys_twice"
_CHANGELOG = "data.net_changelog:write_changelog"
_MERGE_KEYS = "data.merge_keys:merge_keys"
_PUBLISH: dict[str, Any] = {
    "fold": "data.rewrite:fold_buckets",
    "on_rows": ("data.publish_row_ids:rewrite_files", _CHANGELOG, "data.publish_row_ids:shared_row_id", _MERGE_KEYS),
}

_TABLE = (
    Operation(
        requests.CreateBranch,
        "core.branches.create:create_branch",
        reads=("from_branch",),
        writes=("branch",),
        same_rows=True,
        rows_of_main="none",
    ),
    Operation(requests.AlterBranch, "core.branches.ownership:alter_branch", rows_of_main="none"),
    Operation(requests.DeleteBranch, "core.branches.delete:delete_branch", rows_of_main="none"),
    Operation(
        requests.RenameBranch,
        "core.branches.delete:rename_branch",
        own_metadata=True,
        reads=("branch",),
        writes=("to_branch",),
        same_rows=True,
        rows_of_main="none",
    ),
    Operation(
        requests.RebaseBranch,
        "core.publish.rebase:rebase_branch",
        on_rows=("data.publish_row_ids:rewrite_files", _MERGE_KEYS),
        own_metadata=True,
        reads=("branch", MAIN),
        writes=("to_branch",),
        rows_of_main="none",
    ),
    Operation(requests.CreateTag, "core.branches.tags:create_tag", rows_of_main="none"),
    Operation(requests.ReplaceTag, "core.branches.tags:replace_tag", rows_of_main="none"),
    Operation(requests.DeleteTag, "core.branches.tags:delete_tag", rows_of_main="none"),
    Operation(requests.RenameTag, "core.branches.rename_tag:rename_tag", rows_of_main="none"),
    Operation(requests.CreateTableSet, "core.table_sets.create:create_table_set", rows_of_main="none"),
    Operation(requests.ResetConsumer, "core.metadata_expiry.reset_consumers:reset_consumer", rows_of_main="none"),
    Operation(requests.ClearConsumers, "core.metadata_expiry.reset_consumers:clear_consumers", rows_of_main="none"),
    Operation(
        requests.AlterTable,
        "core.schema.tables:alter",
        reads=("branch",),
        writes=("branch",),
        same_rows=True,
        rows_of_main="none",
    ),
    Operation(
        requests.MergeBranch,
        "core.publish.merge:publish_branch",
        **_PUBLISH,
        reads=("branch", MAIN),
        writes=(MAIN,),
        rows_of_main="changed",
    ),
    Operation(
        requests.FastForward,
        "core.publish.merge:publish_branch",
        **_PUBLISH,
        reads=("branch", MAIN),
        writes=(MAIN,),
        rows_of_main="changed",
    ),
    Operation(
        requests.ReplaceMain,
        "core.publish.merge:publish_branch",
        **_PUBLISH,
        own_metadata=True,
        reads=("branch", MAIN),
        writes=(MAIN,),
        rows_of_main="changed",
    ),
    Operation(
        requests.RollbackTo,
        "core.publish.rollback:rollback_to",
        on_rows=(_CHANGELOG, _MERGE_KEYS),
        reads=("branch",),
        writes=("branch",),
        rows_of_main="changed",
    ),
    Operation(
        requests.DiffBranches,
        None,
        here="data.local:diff_branches",
        reads=("branch", "against"),
        rows_of_main="none",
    ),
    Operation(
        requests.CheckBranchData,
        None,
        reads=("branch", MAIN),
        rows_of_main="none",
    ),
    Operation(
        requests.CorrectBranch,
        None,
        reads=("branch", MAIN),
        writes=("branch",),
        rows_of_main="branch",
    ),
    Operation(requests.PlanCorrection, "data.plan_correction:plan_correction", rows_of_main="none"),
    Operation(
        requests.ReplayBranch,
        None,
        reads=("branch",),
        writes=("branch",),
        rows_of_main="branch",
    ),
    Operation(
        requests.Compact,
        None,
        here="data.local:compact",
        reads=("branch",),
        writes=("branch",),
        same_rows=True,
        rows_of_main="none",
    ),
    Operation(requests.CompactManifest, "core.manifests.compact_manifest:compact_manifest", rows_of_main="none"),
    Operation(
        requests.Rescale,
        None,
        here="data.local:rescale",
        reads=("branch",),
        writes=("branch",),
        same_rows=True,
        rows_of_main="none",
    ),
    Operation(requests.ExpireBranches, "core.metadata_expiry.expire_branches:expire_branches", rows_of_main="none"),
    Operation(
        requests.RemoveOrphanFiles,
        "core.metadata_expiry.remove_orphan_files:remove_orphan_files",
        own_metadata=True,
        rows_of_main="none",
    ),
    Operation(
        requests.CheckTable,
        "core.check.check:check_table",
        on_rows=("data.check_rows:duplicate_row_ids", "data.key_places:double_keys", _KEYS, _KEYS_TWICE),
        reads=(MAIN,),
        rows_of_main="none",
    ),
    Operation(requests.StorageUsage, "core.metadata_expiry.storage_usage:storage_usage", rows_of_main="none"),
    Operation(requests.FindRows, "data.erasure.find_rows:find_rows", reads=(MAIN,), rows_of_main="none"),
    Operation(
        requests.EraseRows,
        None,
        here="data.local:erase_rows",
        own_metadata=True,
        reads=(MAIN,),
        writes=(MAIN,),
        rows_of_main="changed",
    ),
    Operation(requests.ExportAudit, "data.export_audit:export_audit", rows_of_main="none"),
    Operation(requests.TableHealthCheck, "core.health.table_health:table_health", rows_of_main="none"),
    Operation(
        requests.RepairTable,
        "core.check.check:repair_table",
        on_rows=(_KEYS, _KEYS_TWICE, "data.compact:compact"),
        own_metadata=True,
        reads=(MAIN,),
        rows_of_main="none",
    ),
    Operation(requests.CreateChainTable, "core.chain.setup:create_chain", writes=(MAIN,), rows_of_main="none"),
    Operation(requests.CheckChainTable, "core.chain.check:check_chain", reads=(MAIN,), rows_of_main="none"),
    Operation(
        requests.AlterChainTable,
        "core.chain.setup:alter_chain",
        reads=(MAIN,),
        writes=(MAIN,),
        same_rows=True,
        rows_of_main="none",
    ),
    Operation(
        requests.CompactChainTable,
        None,
        here="data.local:compact_chain_table",
        reads=(MAIN,),
        writes=(BY_TABLE,),
        rows_of_main="none",
    ),
    Operation(
        requests.ExpirePartitions,
        "core.partition_expiry.expire_partitions:expire_partitions",
        reads=("branch",),
        writes=("branch",),
        rows_of_main="changed",
    ),
    Operation(requests.MarkPartitionDone, "core.partition_marks.mark_done:mark_partition_done", rows_of_main="none"),
    Operation(
        requests.ExpireSnapshots, "core.metadata_expiry.expiry:expire_snapshots", own_metadata=True, rows_of_main="none"
    ),
    Operation(
        requests.ExpireChangelogs,
        "core.metadata_expiry.expire_changelogs:expire_changelogs",
        own_metadata=True,
        rows_of_main="none",
    ),
    Operation(requests.ExpireTags, "core.metadata_expiry.expiry:expire_tags", own_metadata=True, rows_of_main="none"),
    Operation(
        requests.TriggerTagAutomaticCreation,
        "core.metadata_expiry.automatic_tags:trigger_tag_automatic_creation",
        own_metadata=True,
        rows_of_main="none",
    ),
)
OPERATIONS = {operation.request.operation: operation for operation in _TABLE}


def operation_of(name: str) -> Operation:
    """Look an operation up.

    Raises:
        InvalidInputError: the name is unknown.
    """
    if name not in OPERATIONS:
        raise InvalidInputError(f"Unknown operation {name!r}; there are: {', '.join(sorted(OPERATIONS))}")
    return OPERATIONS[name]


def resolve(function: str) -> Callable[..., Any]:
    """Import a function that the table names."""
    module, _, name = function.partition(":")
    found: Callable[..., Any] = getattr(import_module(f"airflow_paimon.{module}"), name)
    return found


def run_operation(
    request: Request, *, fold: Callable[..., Any] | None = None, in_tasks: RunPieces | None = None
) -> OperationResult:
    """Run a metadata-only operation. ``fold`` is called instead of the operation's own; ``in_tasks``: see ``Context``.

    Raises:
        PaimonError: see each operation. UnsupportedFeatureError: the operation reads rows and needs Spark.
    """
    from airflow_paimon.core.requests.context import open_context

    if operation_of(request.operation).needs_spark:
        raise UnsupportedFeatureError(
            f"{request.operation} reads rows, which needs Spark: run the job, python -m airflow_paimon job "
            f"{request.operation}"
        )
    return perform(replace(open_context(request), in_tasks=in_tasks), request, fold)


def plan_operation(request: Request) -> OperationResult:
    """Plan an operation on rows without Spark: the result of a dry run, from metadata alone.

    Raises:
        PaimonError: see the operation. UnsupportedFeatureError: its plan needs rows.
    """
    if operation_of(request.operation).here is None or not request.dry_run:
        raise UnsupportedFeatureError(f"{request.operation} has no plan without rows: run it as a Spark job")
    return run_here(request)


def run_here(request: Request, processes: int = 1) -> OperationResult:
    """Run any operation that does without Spark: in this process, or what reads and writes rows in so many.

    Raises:
        PaimonError: see each operation. UnsupportedFeatureError: it needs Spark.
    """
    from airflow_paimon.core.commit.idempotency import once
    from airflow_paimon.core.requests.context import open_context
    from airflow_paimon.core.table.read_once import reading_once
    from airflow_paimon.core.table.table_sets import same_versions

    operation = operation_of(request.operation)
    if isinstance(processes, bool) or not isinstance(processes, int) or processes < 1:
        raise InvalidInputError(f"{request.operation}: processes is a number from 1 on, not {processes!r}")
    if not operation.needs_spark:
        return run_operation(request)
    if names_several(request):
        return run_each(request, partial(run_here, processes=processes))
    if operation.here is None:
        raise UnsupportedFeatureError(
            f"{request.table}: {request.operation} needs Spark here; run the job: python -m airflow_paimon job "
            f"{request.operation} --help"
        )
    with naming_table(request.table), same_versions(), reading_once(anew=True):
        more = (processes,) if processes > 1 else ()
        context = open_context(request)
        run: Callable[[], OperationResult] = partial(resolve(operation.here), context, request, *more)
        return once(context, run)


def names_several(request: Request) -> bool:
    """Whether a request on rows names several tables, one of which is worked on after the other."""
    return operation_of(request.operation).needs_spark and request.takes_patterns and is_pattern(request.table)


def run_each(request: Request, run: Callable[[Request], OperationResult]) -> OperationResult:
    """Run an operation on each of the tables that a request names; one that fails stops no other.

    ``details.tables`` has the result of each. Each table has an operation of its own under the same id, so a retry does
    only what is left.

    Raises:
        PaimonError: some failed; of the kind that is worth a retry, if there is one. ``details["tables"]`` has all
            results, those that failed with their ``error``.
    """
    from airflow_paimon.core.requests.context import failure_json, open_context, tables_of

    context = open_context(request)
    found: list[dict[str, Any]] = []
    failed: list[tuple[str, PaimonError]] = []
    for table in tables_of(context):
        try:
            found.append(run(replace(request, table=table.name)).to_json())
        except PaimonError as error:
            found.append(failure_json(request.operation, table.name, error))
            failed.append((table.name, error))
    if failed:
        worst = min((error for _, error in failed), key=lambda e: e.exit_code in (2, 4))
        said = first_few([f"{name}: {error.message}" for name, error in failed], _LISTED, "; ")
        raise type(worst)(
            f"{request.operation} failed for {len(failed)} of {len(found)} tables, the others are done: {said}",
            details={"tables": found},
        )
    changed = any(one["changed"] for one in found)
    branch = str(getattr(request, "branch", MAIN))
    return context.result(None, branch=branch, changed=changed, details={"tables": found})


def perform(context: Context, request: Request, fold: Callable[..., Any] | None = None) -> OperationResult:
    """Run a metadata-only operation on an open table, or return the result of its first try if that has ended."""
    from airflow_paimon.core.commit.idempotency import once
    from airflow_paimon.core.table.read_once import reading_once
    from airflow_paimon.core.table.table_sets import same_versions

    operation = operation_of(request.operation)
    assert operation.function is not None
    function = resolve(operation.function)
    keeper = context.table.store.keeper
    if operation.own_metadata and keeper is not None:
        raise UnsupportedCatalogError(
            f"{request.operation} needs the table's own metadata files, and those of {context.table.name} are kept by "
            f"{keeper}; use what that server offers for it"
        )
    with naming_table(context.table.name), same_versions(), reading_once(anew=True):
        run: Callable[[], OperationResult] = partial(function, context, request, *_helpers(operation, fold))
        return once(context, run)


def _helpers(operation: Operation, fold: Callable[..., Any] | None) -> tuple[Any, ...]:
    """The functions of the data layer that an operation may need, imported when they are called."""
    lazily = tuple(_imported_later(function) for function in operation.on_rows)
    return (fold or _imported_later(operation.fold), *lazily) if operation.fold else lazily


def _imported_later(function: str) -> Callable[..., Any]:
    return lambda *args: resolve(function)(*args)
