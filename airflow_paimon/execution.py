"""What executes each operation: the functions of core and data, bound to the names of the table of operations.

An operation's function is imported when it is run, and those on rows that it may call when it calls them: an operation
on metadata starts as fast as it can. What runs in Spark is bound in ``spark/jobs``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

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
    from airflow_paimon.core.check.row_checks import (
        FindDuplicateRowIds,
        FindKeysInTwoPartitions,
        FindKeysTwice,
        ReadKeyHashes,
        RowChecks,
    )
    from airflow_paimon.core.publish.row_functions import (
        FindSharedId,
        FoldBuckets,
        MergeByKey,
        RewriteFiles,
        RowFunctions,
        WriteChangelog,
    )
    from airflow_paimon.core.requests.requests import Compact

P = ParamSpec("P")
R = TypeVar("R")
Run = Callable[[Context, Any], OperationResult]

_LISTED = 5


def run_operation(request: Request, *, fold: FoldBuckets | None = None) -> OperationResult:
    """Run a metadata-only operation. ``fold`` is called instead of the operation's own.

    Raises:
        PaimonError: see each operation. UnsupportedFeatureError: the operation reads rows and needs Spark.
    """

    if operation_of(request.operation).needs_spark:
        raise UnsupportedFeatureError(
            f"{request.operation} reads rows, which needs Spark: run the job, python -m airflow_paimon job "
            f"{request.operation}"
        )
    return perform(open_context(request), request, fold)


def plan_operation(request: Request) -> OperationResult:
    """Plan an operation on rows without Spark: the result of a dry run, from metadata alone.

    Raises:
        PaimonError: see the operation. UnsupportedFeatureError: its plan needs rows.
    """
    if not operation_of(request.operation).in_python or not request.dry_run:
        raise UnsupportedFeatureError(f"{request.operation} has no plan without rows: run it as a Spark job")
    return run_here(request)


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


def perform(context: Context, request: Request, fold: FoldBuckets | None = None) -> OperationResult:
    """Run a metadata-only operation on an open table, or return the result of its first try if that has ended."""

    operation = operation_of(request.operation)
    keeper = context.table.store.keeper
    if operation.own_metadata and keeper is not None:
        raise UnsupportedCatalogError(
            f"{request.operation} needs the table's own metadata files, and those of {context.table.name} are kept by "
            f"{keeper}; use what that server offers for it"
        )
    with naming_table(context.table.name), same_versions(), cached_reads(anew=True):
        return once(context, partial(on_metadata(request.operation, fold), context, request))


def on_metadata(operation: str, fold: FoldBuckets | None = None) -> Run:
    """Return what executes an operation that needs no Spark. ``fold``: see ``run_operation``."""
    found = _of_branches(operation) or _of_tables(operation) or _of_main(operation, fold) or _of_maintenance(operation)
    assert found is not None
    return found


def _of_branches(operation: str) -> Run | None:
    """Branches and tags."""
    match operation:
        case "create_branch":
            from airflow_paimon.core.branches.create import create_branch

            return create_branch
        case "alter_branch":
            from airflow_paimon.core.branches.ownership import alter_branch

            return alter_branch
        case "delete_branch":
            from airflow_paimon.core.branches.delete import delete_branch

            return delete_branch
        case "rename_branch":
            from airflow_paimon.core.branches.rename import rename_branch

            return rename_branch
        case "create_tag":
            from airflow_paimon.core.branches.tags import create_tag

            return create_tag
        case "replace_tag":
            from airflow_paimon.core.branches.tags import replace_tag

            return replace_tag
        case "delete_tag":
            from airflow_paimon.core.branches.tags import delete_tag

            return delete_tag
        case "rename_tag":
            from airflow_paimon.core.branches.tags import rename_tag

            return rename_tag
    return None


def _of_tables(operation: str) -> Run | None:
    """Schemas, chain tables, consumers, table sets and repairs."""
    match operation:
        case "create_table_set":
            from airflow_paimon.core.table_sets.create import create_table_set

            return create_table_set
        case "reset_consumer":
            from airflow_paimon.core.metadata_expiry.reset_consumers import reset_consumer

            return reset_consumer
        case "clear_consumers":
            from airflow_paimon.core.metadata_expiry.reset_consumers import clear_consumers

            return clear_consumers
        case "alter_table":
            from airflow_paimon.core.schema.tables import alter

            return alter
        case "repair_table":
            from airflow_paimon.core.check.check import repair_table

            return lambda context, request: repair_table(context, request, _row_checks(), _compact)
        case "create_chain_table":
            from airflow_paimon.core.chain.setup import create_chain

            return create_chain
        case "check_chain_table":
            from airflow_paimon.core.chain.check import check_chain

            return check_chain
        case "alter_chain_table":
            from airflow_paimon.core.chain.setup import alter_chain

            return alter_chain
    return None


def _of_main(operation: str, fold: FoldBuckets | None) -> Run | None:
    """What main gets, and what is looked up."""
    match operation:
        case "rebase_branch":
            from airflow_paimon.core.publish.rebase import rebase_branch

            return lambda context, request: rebase_branch(context, request, _row_functions())
        case "merge_branch" | "fast_forward" | "replace_main":
            from airflow_paimon.core.publish.merge import publish_branch

            return lambda context, request: publish_branch(context, request, _row_functions(fold))
        case "rollback_to":
            from airflow_paimon.core.publish.rollback import rollback_to

            return lambda context, request: rollback_to(context, request, _row_functions())
        case "plan_correction":
            from airflow_paimon.data.plan_correction import plan_correction

            return plan_correction
        case "check_table":
            from airflow_paimon.core.check.check import check_table

            return lambda context, request: check_table(context, request, _row_checks())
        case "storage_usage":
            from airflow_paimon.core.metadata_expiry.storage_usage import storage_usage

            return storage_usage
        case "find_rows":
            from airflow_paimon.data.erasure.find_rows import find_rows

            return find_rows
        case "export_audit":
            from airflow_paimon.data.export_audit import export_audit

            return export_audit
        case "table_health":
            from airflow_paimon.core.health.table_health import table_health

            return table_health
    return None


def _of_maintenance(operation: str) -> Run | None:
    """Expiry and clean-up."""
    match operation:
        case "compact_manifest":
            from airflow_paimon.core.manifests.compact_manifest import compact_manifest

            return compact_manifest
        case "expire_branches":
            from airflow_paimon.core.metadata_expiry.expire_branches import expire_branches

            return expire_branches
        case "remove_orphan_files":
            from airflow_paimon.core.metadata_expiry.remove_orphan_files import remove_orphan_files

            return remove_orphan_files
        case "expire_partitions":
            from airflow_paimon.core.partition_expiry.expire_partitions import expire_partitions

            return expire_partitions
        case "mark_partition_done":
            from airflow_paimon.core.partition_marks.mark_done import mark_partition_done

            return mark_partition_done
        case "expire_snapshots":
            from airflow_paimon.core.metadata_expiry.expire_snapshots_and_tags import expire_snapshots

            return expire_snapshots
        case "expire_changelogs":
            from airflow_paimon.core.metadata_expiry.expire_changelogs import expire_changelogs

            return expire_changelogs
        case "expire_tags":
            from airflow_paimon.core.metadata_expiry.expire_snapshots_and_tags import expire_tags

            return expire_tags
        case "trigger_tag_automatic_creation":
            from airflow_paimon.core.metadata_expiry.automatic_tags import trigger_tag_automatic_creation

            return trigger_tag_automatic_creation
    return None


def in_python(operation: str) -> Callable[..., OperationResult]:
    """Return what does an operation on rows without Spark: of context and request, and of a number of processes if it
    takes one.
    """
    from airflow_paimon.data import local

    by_name: dict[str, Callable[..., OperationResult]] = {
        "compact": local.compact,
        "compact_chain_table": local.compact_chain_table,
        "diff_branches": local.diff_branches,
        "erase_rows": local.erase_rows,
        "rescale": local.rescale,
    }
    return by_name[operation]


def _later(load: Callable[[], Callable[P, R]]) -> Callable[P, R]:
    """Return what imports a function of the data layer when it is called."""

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return load()(*args, **kwargs)

    return call


@_later
def _fold() -> FoldBuckets:
    from airflow_paimon.data.rewrite import fold_buckets

    return fold_buckets


@_later
def _rewrite() -> RewriteFiles:
    from airflow_paimon.data.publish_row_ids import rewrite_files

    return rewrite_files


@_later
def _changelog() -> WriteChangelog:
    from airflow_paimon.data.net_changelog import write_changelog

    return write_changelog


@_later
def _shared_id() -> FindSharedId:
    from airflow_paimon.data.publish_row_ids import shared_row_id

    return shared_row_id


@_later
def _merge_by_key() -> MergeByKey:
    from airflow_paimon.data.key_merge import merge_by_key

    return merge_by_key


def _row_functions(fold: FoldBuckets | None = None) -> RowFunctions:
    from airflow_paimon.core.publish.row_functions import RowFunctions

    return RowFunctions(
        fold=fold or _fold,
        rewrite=_rewrite,
        find_shared_id=_shared_id,
        write_changelog=_changelog,
        merge_by_key=_merge_by_key,
    )


@_later
def _duplicate_row_ids() -> FindDuplicateRowIds:
    from airflow_paimon.data.check_rows import duplicate_row_ids

    return duplicate_row_ids


@_later
def _keys_in_two_partitions() -> FindKeysInTwoPartitions:
    from airflow_paimon.data.key_locations import keys_in_two_partitions

    return keys_in_two_partitions


@_later
def _key_hashes() -> ReadKeyHashes:
    from airflow_paimon.data.check_rows import key_hashes

    return key_hashes


@_later
def _keys_twice() -> FindKeysTwice:
    from airflow_paimon.data.check_rows import keys_twice

    return keys_twice


def _row_checks() -> RowChecks:
    from airflow_paimon.core.check.row_checks import RowChecks

    return RowChecks(
        duplicate_row_ids=_duplicate_row_ids,
        keys_in_two_partitions=_keys_in_two_partitions,
        key_hashes=_key_hashes,
        keys_twice=_keys_twice,
    )


@_later
def _compact() -> Callable[[Context, Compact], OperationResult]:
    from airflow_paimon.data.compact import compact

    return compact
