"""plan_correction: what a correction will read, write and meet. Reads metadata only.

The branch need not exist: then it is planned on main, or the branch of a chain table, which it will be made from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from airflow_paimon.core.chain.guard import is_chain_rows
from airflow_paimon.core.errors import InvalidInputError, PaimonError, UnsafeOperationError
from airflow_paimon.core.format.manifest import FileKind, ManifestEntry
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.publish.bucket_merge_plan import MAX_LISTED, BucketChange
from airflow_paimon.core.publish.overlap import changed_on_main, open_branches
from airflow_paimon.core.publish.streaming_readers import streaming_readers
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import PlanCorrection
from airflow_paimon.core.requests.text_files import sql_of
from airflow_paimon.core.sql_text.checks import (
    check_mode,
    check_statement_alone,
    check_target,
    divided,
    further_views,
    naming_statement,
    viewed_columns,
)
from airflow_paimon.core.sql_text.columns import check_columns
from airflow_paimon.core.sql_text.statement import BRANCH, FUNCTION, MAIN_VIEW, SELECT, StatementScope, read_sql
from airflow_paimon.core.streaming.declared_replays import replays_of
from airflow_paimon.core.table.consumers import read_consumers
from airflow_paimon.core.table.features import check_writable, is_chain_main, is_chain_part
from airflow_paimon.core.table.history import publish_target
from airflow_paimon.core.table.live_entries import live_columns
from airflow_paimon.core.table.live_files import BucketKey
from airflow_paimon.core.table.open_writers import describe_writers
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partition_scope import PartitionScope, choose_partitions
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.paths import MAIN, check_branch_name
from airflow_paimon.core.table.scan import ScanPlan, plan_snapshot
from airflow_paimon.core.table.table import Table, open_table, resolve_version, viewed_table
from airflow_paimon.data.correction_files import CorrectionFiles, FileTotals, combined, correction_files, selection_for

_NAMED_PARTITIONS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class _CorrectedBranch:
    """The branch as it will be corrected. ``view``: what it will be made from where it is not there yet. ``home``: the
    branch that it is published onto, or the one that is corrected in place.
    """

    view: Table
    home: Table
    exists: bool
    schema: TableSchema
    head: Snapshot
    choice: PartitionScope


def plan_correction(context: Context, request: PlanCorrection) -> OperationResult:
    """Plan a correction. Changes nothing.

    Raises:
        InvalidInputError, UnsupportedFeatureError, UnsafeOperationError: what correct_branch would say as well.
    """
    sql = sql_of(request)
    target = _target(context.table, request)
    texts = [] if sql is None else divided(sql)
    several = [read_sql(text, target.schema) for text in texts] or [StatementScope(kind=FUNCTION)]
    scope = several[0]
    for at, text in enumerate(texts, 1):
        with naming_statement(at, texts):
            _check_sql(request, target, text)
    if scope.kind not in (SELECT, FUNCTION):
        check_statement_alone(scope.kind, request.mode, request.partitions)
    else:
        check_mode(target.schema, request.mode, request.partitions, target.view.label)
    selection = selection_for(scope, request.mode, target.choice, target.schema) if len(several) == 1 else None
    scan = plan_snapshot(target.view, target.head, target.schema, selection)
    works = [correction_files(scan, a, mode=request.mode, choice=target.choice) for a in several]
    work = works[0] if len(works) == 1 else combined(works)
    relations = tuple(dict.fromkeys(name for one in several for name in one.relations))
    others = _others(context.table, request, replace(scope, relations=relations))
    details = {
        "statement": ", ".join(one.kind for one in several),
        "mode": request.mode if scope.kind in (SELECT, FUNCTION) else None,
        "branch_exists": target.exists,
        **_work_json(work),
        "other_tables": {name: asdict(amount) for name, amount in others.items()},
        "streaming_readers": _streams(target, scan, work),
        "open_writers": describe_writers(
            target.home,
            target.home.schema(),
            work.buckets,
            head=target.home.latest_snapshot(),
            now_ms=context.now_ms,
        ),
        **_conflicts(target, request, work),
        **_replays(context.table),
        "notes": list(work.notes),
    }
    return context.result(
        None,
        branch=request.branch or request.from_branch,
        changed=False,
        before=target.head.id,
        after=target.head.id,
        details=details,
    )


def _check_sql(request: PlanCorrection, target: _CorrectedBranch, sql: str) -> None:
    """Refuse what correct_branch will refuse: another target, columns that its tables lack."""
    check_target(sql)
    main = target.view.branch(MAIN)
    opened = partial(open_table, request.warehouse, storage_options=request.storage_options)
    columns = {
        BRANCH: target.schema.field_names,
        MAIN_VIEW: main.schema().field_names,
        **viewed_columns(request.view, opened),
    }
    check_columns(sql, columns, {BRANCH: target.view.label, MAIN_VIEW: f"main of {main.name}"})


def _target(main: Table, request: PlanCorrection) -> _CorrectedBranch:
    if request.branch == MAIN:
        raise InvalidInputError(
            f"{main.name}: correct_branch writes a branch, which is published when it is right; leave branch "
            "(--branch) out to plan on main"
        )
    base = main.branch(request.from_branch).require()
    branch = main.branch(request.branch) if request.branch else base
    exists = branch.exists() and branch.branch_name != MAIN
    view = branch if exists else base
    if request.branch and not exists:
        check_branch_name(request.branch)
    schema, head = view.schema(), view.latest_snapshot()
    options = TableOptions(schema.options)
    if is_chain_main(options, view.branch_name):
        raise InvalidInputError(
            f"{main.name} is a chain table, whose rows are in its branches: name the one to correct, or to make the "
            f"branch from, in the table's name: {main.name}$branch_{options.chain_branches[1]}"
        )
    if head is None:
        raise UnsafeOperationError(f"{view.label} is empty, so there is nothing to correct")
    name, chained = request.branch or request.from_branch, is_chain_rows(view)
    check_writable(schema, table=view.label, branch=name, chained=chained, by_buckets=True)
    is_home = not exists or is_chain_part(options, view.branch_name)
    return _CorrectedBranch(
        view=view,
        home=view if is_home else publish_target(main, view),
        exists=exists,
        schema=schema,
        head=head,
        choice=choose_partitions(schema, request.partitions, view.label),
    )


def _work_json(work: CorrectionFiles) -> dict[str, Any]:
    names = list(work.partitions)
    return {
        "reads": asdict(work.reads),
        "replaces": asdict(work.replaces)
        | {
            "buckets": len(work.buckets),
            "partitions": {name: asdict(work.partitions[name]) for name in names[:_NAMED_PARTITIONS]},
            "partition_count": len(names),
        },
        "writes": {"bytes": work.writes.bytes, "rows": work.writes.rows},
        "at_most": work.at_most,
    }


def _others(main: Table, request: PlanCorrection, scope: StatementScope) -> dict[str, FileTotals]:
    """Count the live files of the other views and tables that the SQL names; of one that isn't there, nothing."""
    views = {name.lower(): table for name, table in further_views(request.view).items()}
    named = list(views) if scope.kind == FUNCTION else list(scope.relations)
    found: dict[str, FileTotals] = {}
    for name in dict.fromkeys(named):
        text = main.name if name == MAIN_VIEW else views.get(name, name)
        if name == BRANCH or (name not in views and name != MAIN_VIEW and "." not in name):
            continue
        try:
            opened, version = viewed_table(request.warehouse, text, request.storage_options)
            view, snapshot = resolve_version(opened, version)
        except PaimonError:
            continue  # a name of the query's own; correct_branch says what is wrong
        columns = live_columns(view, snapshot)
        found[text] = FileTotals(
            files=len(columns.file_names), bytes=sum(columns.file_sizes), rows=sum(columns.row_counts)
        )
    return found


def _streams(target: _CorrectedBranch, scan: ScanPlan, work: CorrectionFiles) -> dict[str, Any]:
    """Say what streaming readers will be told by the publish, and who they are, as far as they are registered."""
    main = target.home
    head = main.latest_snapshot_id() or 0
    top = TableOptions(target.schema.options).num_levels - 1
    readers = streaming_readers(main, target.schema, list(_changes(scan, work, top)), writes=True)
    consumers = [
        {"name": c.name, "next_snapshot": c.next_snapshot, "snapshots_behind": max(head + 1 - c.next_snapshot, 0)}
        for c in read_consumers(main)
    ]
    return {**readers, "consumers": sorted(consumers, key=lambda c: str(c["name"]))}


def _changes(scan: ScanPlan, work: CorrectionFiles, top: int) -> Iterator[BucketChange]:
    """Return the changes as a publish will see them: each replaced file makes place for one like it."""
    for split in scan.splits:
        entries = tuple(
            ManifestEntry(FileKind.ADD.value, split.partition, split.bucket, split.total_buckets, file)
            for file in split.files
            if file.file_name in work.names
        )
        new = tuple(e._replace(file=e.file._replace(level=top)) for e in entries) if work.writes.bytes else ()
        if entries:
            yield BucketChange(bucket=BucketKey(split.partition, split.bucket), delete=entries, add=new)


def _conflicts(target: _CorrectedBranch, request: PlanCorrection, work: CorrectionFiles) -> dict[str, Any]:
    """Name the branches, and main, that have changed what the correction may change."""
    main, name = target.home, StoredPartitions(target.schema).bucket_text
    is_apart = target.view.branch_name != main.branch_name
    moved = sorted(map(name, changed_on_main(main, target.view, work.buckets, work.names))) if is_apart else []
    found = open_branches(main, work.buckets, work.names, request.branch)
    return {
        "conflicts": [_overlap_json(branch, overlap, name) for branch, overlap in found.items()],
        "changed_on_main": moved[:MAX_LISTED],
        "changed_on_main_count": len(moved),
    }


def _overlap_json(branch: str, overlap: frozenset[BucketKey] | PaimonError, name: Any) -> dict[str, Any]:
    unreadable = overlap.message if isinstance(overlap, PaimonError) else None
    buckets = [] if isinstance(overlap, PaimonError) else sorted(map(name, overlap))
    return {
        "branch": branch,
        "buckets": buckets[:MAX_LISTED],
        "bucket_count": len(buckets),
        "unreadable": unreadable,
    }


def _replays(main: Table) -> Mapping[str, Any]:
    found, tables = replays_of(main)
    return {"replays": [asdict(one) for one in found], "tables_checked": tables}
