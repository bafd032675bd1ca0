"""What executes each operation: the functions of core and data, bound to the names of the table of operations.

An operation's function is imported when it is run, and those on rows that it may call when it calls them: an operation
on metadata starts as fast as it can. What runs in Spark is bound in ``spark/jobs``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from airflow_paimon.core.commit.committed import verified_commits
from airflow_paimon.core.commit.idempotency import once
from airflow_paimon.core.errors import (
    InvalidInputError,
    PaimonError,
    UnsupportedCatalogError,
    UnsupportedFeatureError,
    first_few,
    naming_table,
)
from airflow_paimon.core.requests.context import Context, OperationResult, failure_json, open_context, tables_of
from airflow_paimon.core.requests.operations import names_several, operation_of
from airflow_paimon.core.requests.requests import Request
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.read_cache import cached_reads
from airflow_paimon.core.table.table_sets import same_versions

if TYPE_CHECKING:
    from airflow_paimon.core.check.row_checks import RowChecks
    from airflow_paimon.core.publish.row_functions import RowFunctions

Run = Callable[[Context, Any], OperationResult]

_ON_METADATA: Mapping[str, str] = {
    "create_branch": "core.branches.create:create_branch",
    "alter_branch": "core.branches.ownership:alter_branch",
    "delete_branch": "core.branches.delete:delete_branch",
    "rename_branch": "core.branches.rename:rename_branch",
    "create_tag": "core.branches.tags:create_tag",
    "replace_tag": "core.branches.tags:replace_tag",
    "delete_tag": "core.branches.tags:delete_tag",
    "rename_tag": "core.branches.tags:rename_tag",
    "create_table_set": "core.table_sets.versions:create_table_set",
    "reset_consumer": "core.metadata_expiry.reset_consumers:reset_consumer",
    "clear_consumers": "core.metadata_expiry.reset_consumers:clear_consumers",
    "alter_table": "core.schema.tables:alter",
    "repair_table": "core.check.check:repair_table",
    "create_chain_table": "core.chain.setup:create_chain",
    "check_chain_table": "core.chain.check:check_chain_table",
    "alter_chain_table": "core.chain.setup:alter_chain",
    "rebase_branch": "core.publish.rebase:rebase_branch",
    "merge_branch": "core.publish.publish_branch:publish_branch",
    "fast_forward": "core.publish.publish_branch:publish_branch",
    "replace_main": "core.publish.publish_branch:publish_branch",
    "rollback_to": "core.publish.rollback:rollback_to",
    "plan_correction": "data.plan_correction:plan_correction",
    "check_table": "core.check.check:check_table",
    "storage_usage": "core.metadata_expiry.storage_usage:storage_usage",
    "find_rows": "data.erasure.find_rows:find_rows",
    "export_audit": "data.export_audit:export_audit",
    "table_health": "core.health.table_health:table_health",
    "compact_manifest": "core.manifests.compact_manifest:compact_manifest",
    "expire_branches": "core.metadata_expiry.expire_branches:expire_branches",
    "remove_orphan_files": "core.metadata_expiry.remove_orphan_files:remove_orphan_files",
    "expire_partitions": "core.partition_expiry.expire_partitions:expire_partitions",
    "mark_partition_done": "core.partition_marks.mark_done:mark_partition_done",
    "expire_snapshots": "core.metadata_expiry.expire_snapshots_and_tags:expire_snapshots",
    "expire_changelogs": "core.metadata_expiry.expire_snapshots_and_tags:expire_changelogs",
    "expire_tags": "core.metadata_expiry.expire_snapshots_and_tags:expire_tags",
    "trigger_tag_automatic_creation": "core.metadata_expiry.automatic_tags:trigger_tag_automatic_creation",
}
"""What executes the operations that need no Spark: the module of this package and its function."""
_ON_ROWS_OF_MAIN = frozenset({"rebase_branch", "merge_branch", "fast_forward", "replace_main", "rollback_to"})
_LISTED = 5


def run_operation(request: Request) -> OperationResult:
    """Run a metadata-only operation.

    Raises:
        PaimonError: see each operation. UnsupportedFeatureError: the operation reads rows and needs Spark.
    """

    if operation_of(request.operation).needs_spark:
        raise UnsupportedFeatureError(
            f"{request.operation} reads rows, which needs Spark: run the job, python -m airflow_paimon job "
            f"{request.operation}"
        )
    return perform(open_context(request), request)


def run_here(request: Request, processes: int = 1) -> OperationResult:
    """Run any operation that does without Spark: in this process, or what reads and writes rows in so many.

    Raises:
        PaimonError: see each operation. UnsupportedFeatureError: it needs Spark.
    """

    operation = operation_of(request.operation)
    if isinstance(processes, bool) or not isinstance(processes, int) or processes < 1:
        raise InvalidInputError(f"{request.operation}: processes is a number from 1 on, not {processes!r}")
    if not operation.needs_spark:
        return run_operation(request)
    if names_several(request):
        return run_each(request, partial(run_here, processes=processes))
    if not operation.in_python:
        raise UnsupportedFeatureError(
            f"{request.table}: {request.operation} needs Spark here; run the job: python -m airflow_paimon job "
            f"{request.operation} --help"
        )
    with naming_table(request.table), same_versions(), cached_reads(anew=True):
        more = (processes,) if processes > 1 else ()
        context = open_context(request)
        return once(context, partial(in_python(request.operation), context, request, *more))


def run_each(request: Request, run: Callable[[Request], OperationResult]) -> OperationResult:
    """Run an operation on each of the tables that a request names; one that fails stops no other.

    ``details.tables`` has the result of each. Each table has an operation of its own under the same id, so a retry does
    only what is left.

    Raises:
        PaimonError: some failed; of the kind that is worth a retry, if there is one. ``details["tables"]`` has all
            results, those that failed with their ``error``.
    """

    context = open_context(request)
    found: list[dict[str, Any]] = []
    failed: list[tuple[str, PaimonError]] = []
    for table in tables_of(context):
        try:
            with verified_commits(anew=True):
                result = run(replace(request, table=table.name))
            found.append(result.to_json())
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


def perform(context: Context, request: Request) -> OperationResult:
    """Run a metadata-only operation on an open table, or return the result of its first try if that has ended."""

    operation = operation_of(request.operation)
    keeper = context.table.store.keeper
    if operation.own_metadata and keeper is not None:
        raise UnsupportedCatalogError(
            f"{request.operation} needs the table's own metadata files, and those of {context.table.name} are kept by "
            f"{keeper}; use what that server offers for it"
        )
    with naming_table(context.table.name), same_versions(), cached_reads(anew=True):
        return once(context, partial(on_metadata(request.operation), context, request))


def on_metadata(operation: str) -> Run:
    """Return what executes an operation that needs no Spark."""
    run, more = imported(_ON_METADATA[operation]), tuple[Any, ...]()
    if operation in _ON_ROWS_OF_MAIN:
        more = (row_functions(),)
    elif operation == "check_table":
        more = (_row_checks(),)
    elif operation == "repair_table":
        more = (_row_checks(), _later("data.compact:compact"))
    return (lambda context, request: run(context, request, *more)) if more else run


def in_python(operation: str) -> Callable[..., OperationResult]:
    """Return what does an operation on rows without Spark: of context and request, and of a number of processes if it
    takes one.
    """
    from airflow_paimon.data import local

    return local.diff_branches if operation == "diff_branches" else local.rewrite_files


def imported(place: str) -> Callable[..., Any]:
    """Return a function by the module of this package that has it, and its name."""
    module, _, name = place.partition(":")
    found: Callable[..., Any] = getattr(import_module(f"airflow_paimon.{module}"), name)
    return found


def _later(place: str) -> Callable[..., Any]:
    """Return what imports a function when it is called."""
    return lambda *args, **kwargs: imported(place)(*args, **kwargs)


def row_functions() -> RowFunctions:
    """Return what the data layer does to the rows of a publish or rollback."""
    from airflow_paimon.core.publish.row_functions import RowFunctions

    return RowFunctions(
        fold=_later("data.rewrite:fold_buckets"),
        rewrite=_later("data.publish_row_ids:rewrite_files"),
        find_shared_id=_later("data.publish_row_ids:shared_row_id"),
        write_changelog=_later("data.net_changelog:write_changelog"),
        merge_by_key=_later("data.merge_by_key:merge_by_key"),
    )


def _row_checks() -> RowChecks:
    from airflow_paimon.core.check.row_checks import RowChecks

    return RowChecks(
        duplicate_row_ids=_later("data.check_rows:duplicate_row_ids"),
        keys_in_two_partitions=_later("data.key_locations:keys_in_two_partitions"),
        key_hashes=_later("data.check_rows:key_hashes"),
        keys_twice=_later("data.check_rows:keys_twice"),
    )
