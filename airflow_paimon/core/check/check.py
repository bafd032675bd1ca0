"""check_table finds leftovers and damage of crashes and other engines, and reads only; repair_table carries out the
repairs that it proposes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

from airflow_paimon.core.branches.delete import all_views
from airflow_paimon.core.check import (
    check_branches,
    check_catalog,
    check_files,
    check_hash_indexes,
    check_history,
    check_keys,
    check_records,
    check_row_ids,
    check_schemas,
    check_tags,
)
from airflow_paimon.core.check.check_hash_indexes import HASH_INDEX, rebuild_hash_indexes
from airflow_paimon.core.check.check_keys import KEYS_TWICE
from airflow_paimon.core.check.live_states import LiveStates
from airflow_paimon.core.check.row_checks import NO_ROWS, TOLD_BY_ROWS, RowChecks
from airflow_paimon.core.commit.put import execute
from airflow_paimon.core.errors import FormatError, InvalidInputError, NotFoundError, UnsafeOperationError
from airflow_paimon.core.plan import CompactPartition, Plan, RebuildIndexes, UpdateCatalog
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.findings import (
    ERROR,
    Finding,
    summary,
    unreadable_metadata,
    worst_first,
)
from airflow_paimon.core.requests.requests import CheckTable, Compact, RepairTable
from airflow_paimon.core.table.history import repeat_beside_expiry
from airflow_paimon.core.table.paths import (
    MAIN,
    STAGING_BRANCH_PREFIX,
)
from airflow_paimon.core.table.spill import MEMORY_BYTES
from airflow_paimon.core.table.table import Table


def check_table(
    context: Context,
    request: CheckTable,
    rows: RowChecks,
) -> OperationResult:
    """Check all branches, tags, hints and records of a table; changes nothing.

    ``details.findings`` lists the findings, worst first; ``details.ok`` is true when none is an error or a warning.
    """
    table, now_ms, memory_bytes = context.table, context.now_ms, request.memory_mb << 20
    row_checks = rows if request.verify_keys else replace(rows, key_hashes=None, keys_twice=None)
    findings = find_all(table, now_ms, verify_files=request.verify_files, rows=row_checks, memory_bytes=memory_bytes)
    head = context.table.latest_snapshot_id()
    return context.result(None, branch=MAIN, changed=False, before=head, after=head, details=summary(findings))


def find_all(
    table: Table,
    now_ms: int,
    *,
    verify_files: bool,
    rows: RowChecks = NO_ROWS,
    memory_bytes: int = MEMORY_BYTES,
) -> list[Finding]:
    """Gather the findings of a table, errors first. ``memory_bytes``: for what is known of all files."""
    views, states = all_views(table), LiveStates(table, memory_bytes, verify_files)
    records = check_branches.unfinished_branches(table)
    checks: list[_Check] = [
        check_history.history_findings,
        partial(check_schemas.schema_findings, known=states),
        check_history.option_findings,
        check_history.dangling_findings,
        check_history.changelog_findings,
        partial(check_row_ids.row_id_findings, find_duplicates=rows.duplicate_row_ids if verify_files else None),
        partial(check_hash_indexes.hash_index_findings, verify_files=verify_files, key_hashes=rows.key_hashes),
        partial(check_keys.keys_twice_findings, find_keys=rows.keys_twice),
    ]
    if verify_files:
        checks += [
            partial(check_keys.moving_key_findings, find_keys=rows.keys_in_two_partitions),
            partial(check_keys.bucket_count_findings, known=states),
            partial(check_files.file_findings, known=states),
            check_files.vector_findings,
        ]
    findings = _found(table, [partial(check_branches.unfinished_findings, records=records)])
    for view in views:
        if view.exists():
            findings += _found(view, checks)
        elif view.branch_name not in records:
            findings.append(check_branches.without_schema(view))
    living = [v for v in views[1:] if v.exists()]
    for view in living:
        if view.branch_name.startswith(STAGING_BRANCH_PREFIX):
            findings.append(check_branches.staging_finding(view))
        elif view.branch_name not in records:
            findings += _found(view, [check_branches.protection_findings])
    known_branches = {v.branch_name for v in living} | records.keys()
    findings += _found(
        table,
        [
            check_catalog.catalog_findings,
            check_tags.set_findings,
            check_history.repeated_findings,
            partial(check_tags.needless_findings, living=known_branches),
            check_records.unreadable_records,
            partial(check_history.temporary_findings, views=views, now_ms=now_ms),
        ],
    )
    for view in (table, *living):
        findings += _found(view, [partial(check_tags.expired_findings, now_ms=now_ms), check_tags.publish_findings])
    # One damaged file ends several checks in the same words.
    return worst_first(list({(f.id, f.message): f for f in findings}.values()))


_Check = Callable[[Table], Iterable[Finding]]


def _found(view: Table, checks: Iterable[_Check]) -> list[Finding]:
    """Collect findings; metadata that can't be read is a finding itself and ends that check. What an expiry takes away
    meanwhile is none: where something is wrong, a check looks twice, but for what rows alone tell.
    """

    def collect(check: _Check) -> list[Finding]:
        out: list[Finding] = []
        try:
            for finding in check(view):
                out.append(finding)
        except (FormatError, NotFoundError) as error:
            lost = "reads and commits of this branch fail; expiry and orphan cleaning must not run until it is repaired"
            out.append(unreadable_metadata(view.branch_name, error, lost))
        return out

    def wrong(found: list[Finding]) -> list[Finding]:
        return [f for f in found if f.severity == ERROR and f.kind not in TOLD_BY_ROWS]

    return [f for check in checks for f in repeat_beside_expiry(partial(collect, check), wrong)]


def repair_table(
    context: Context,
    request: RepairTable,
    rows: RowChecks,
    compact: Callable[[Context, Compact], OperationResult],
) -> OperationResult:
    """Repair the findings of check_table that are safe to repair unasked, or only those named by id. ``compact`` is the
    operation of that name.

    Raises:
        InvalidInputError: a named finding does not exist, or has no automatic repair. ConflictError: a file that is to
            be repaired has changed meanwhile; a next run goes on. ConflictError, UnsafeOperationError: see
            ``rebuild_hash_indexes``; or a job may have a bucket open that is to be compacted.
    """
    before = context.table.latest_snapshot_id()
    kinds = {i.partition(":")[0] for i in request.finding}
    asks, asks_twice = HASH_INDEX in kinds, KEYS_TWICE in kinds  # reads index files and keys only then
    row_checks = RowChecks(
        key_hashes=rows.key_hashes if asks else None, keys_twice=rows.keys_twice if asks_twice else None
    )
    findings = find_all(context.table, context.now_ms, verify_files=asks, rows=row_checks)
    chosen = _choose(context, request, findings)
    actions = tuple(a for f in chosen for a in f.actions)
    plan = Plan(
        operation=request.operation,
        table=context.table.name,
        actions=actions,
        summary={"findings": [f.id for f in chosen]},
    )
    if actions and not request.dry_run:
        rebuilt = [a for a in actions if isinstance(a, RebuildIndexes)]
        catalogs = [a for a in actions if isinstance(a, UpdateCatalog)]
        merged = [a for a in actions if isinstance(a, CompactPartition)]
        files = replace(plan, actions=tuple(a for a in actions if a not in [*rebuilt, *catalogs, *merged]))
        execute(context.table, files.actions)
        for branch in sorted({a.branch for a in rebuilt}):
            partitions = {a.partition for a in rebuilt if a.branch == branch}
            if rows.key_hashes is not None:
                rebuild_hash_indexes(context.table.branch(branch), partitions, rows.key_hashes)
        for branch in sorted({a.branch for a in merged}):
            _compact(context, branch, [a.partition for a in merged if a.branch == branch], compact)
        if catalogs:
            check_catalog.update_catalog(context.table)
    left = [f.to_json() for f in findings if f not in chosen]
    after = context.table.latest_snapshot_id()
    details = {"repaired": [f.to_json() for f in chosen], "left": left}
    return context.result(plan, branch=MAIN, changed=bool(actions), before=before, after=after, details=details)


def _compact(
    context: Context, branch: str, partitions: Sequence[str], compact: Callable[[Context, Compact], OperationResult]
) -> None:
    request = Compact(table=context.table.name, branch=branch, partitions=tuple(filter(None, partitions)))
    found = compact(replace(context, request=request), request).details
    if "open_buckets" in found:
        raise UnsafeOperationError(
            f"{context.table.branch(branch).label}: {found['warnings'][0]}; then run it again. Where no job runs any "
            f"more, run compact with writers_stopped (--writers-stopped)",
            details={"open_buckets": found["open_buckets"]},
        )


def _choose(context: Context, request: RepairTable, findings: list[Finding]) -> list[Finding]:
    mendable = {f.id: f for f in findings if f.actions}
    if not request.finding:
        return [f for f in mendable.values() if not f.by_name_only]
    unknown = [i for i in request.finding if i not in mendable]
    if unknown:
        raise InvalidInputError(
            f"{context.table.name}: there is no finding {unknown[0]!r} that can be repaired; there are: "
            f"{', '.join(sorted(mendable)) or 'none'}"
        )
    return [mendable[i] for i in request.finding]
