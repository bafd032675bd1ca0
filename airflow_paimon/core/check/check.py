"""check_table finds leftovers and damage of crashes and other engines, and reads only; repair_table carries out the
repairs that it proposes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial

from airflow_paimon.core.audit.records import missing_records
from airflow_paimon.core.branches.delete import all_views
from airflow_paimon.core.branches.retention_tags import keep_tag_needed, missing_tags_of_publish
from airflow_paimon.core.branches.tag_files import deletion
from airflow_paimon.core.branches.tags import past_tags
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
    check_sets,
)
from airflow_paimon.core.check.check_hash_indexes import HASH_INDEX, rebuild_hash_indexes
from airflow_paimon.core.check.check_keys import KEYS_TWICE
from airflow_paimon.core.check.live_states import LiveStates
from airflow_paimon.core.check.row_checks import NO_ROWS, TOLD_BY_ROWS, RowChecks
from airflow_paimon.core.commit.put import execute
from airflow_paimon.core.errors import FormatError, InvalidInputError, NotFoundError, UnsafeOperationError
from airflow_paimon.core.format.snapshot import Tag
from airflow_paimon.core.plan import CompactPartition, Plan, RebuildIndexes, UpdateCatalog
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.findings import (
    ERROR,
    INFO,
    WARNING,
    Finding,
    summary,
    unreadable_metadata,
    worst_first,
)
from airflow_paimon.core.requests.requests import CheckTable, Compact, RepairTable
from airflow_paimon.core.table.history import repeat_beside_expiry
from airflow_paimon.core.table.paths import (
    KEEP_TAG_PREFIX,
    MAIN,
    STAGING_BRANCH_PREFIX,
    TAG_PREFIX,
    protects,
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
            check_sets.set_findings,
            check_history.repeated_findings,
            partial(_tag_findings, living=known_branches),
            check_records.unreadable_records,
            partial(check_history.temporary_findings, views=views, now_ms=now_ms),
        ],
    )
    for view in (table, *living):
        findings += _found(view, [partial(_expired_tags, now_ms=now_ms), _publish_findings])
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


def _publish_findings(view: Table) -> Iterator[Finding]:
    """What a crash right after a publish, rollback, undo or erasure has left out: tags, and audit records."""
    snapshots = view.snapshots()
    for snapshot in snapshots if view.branch_name == MAIN else ():
        for action in () if snapshot.repeats_properties else missing_tags_of_publish(view, snapshot):
            name = action.path.rsplit(f"/{TAG_PREFIX}", 1)[-1]
            yield Finding(
                kind="unprotected-publish",
                subject=name,
                severity=WARNING,
                message=f"Snapshot {snapshot.id} is a publish or rollback, and no tag keeps files "
                f"that other branches or tags hold, too",
                at_risk="when those files are replaced and snapshots expire, the others lose them",
                repair=f"create tag {name!r}",
                actions=(action,),
            )
    for number, action in missing_records(view, snapshots).items():
        yield Finding(
            kind="unrecorded-publish",
            subject=f"{view.branch_name}/{number}",
            severity=INFO,
            message=f"{view.label}: snapshot {number} is a publish, rollback, undo or erasure of which the audit "
            f"has no record",
            at_risk="when another engine expires that snapshot, its request and approval are no longer recorded",
            repair="put its record",
            actions=(action,),
        )


def _tag_findings(table: Table, living: set[str]) -> Iterator[Finding]:
    for tag in table.tags():
        branch = protects(tag.name)
        if branch is not None and branch not in living:
            message = f"Tag {tag.name!r} protects files for branch {branch!r}, which does not exist"
            yield _needless(table, "stale-protective-tag", tag.name, tag, message, "nothing needs it any more")
        elif tag.name.startswith(KEEP_TAG_PREFIX) and keep_tag_needed(table, tag) is None:
            message = f"Tag {tag.name!r} kept files that a publish or rollback brought back; all snapshots and tags "
            message += "as old as that no longer exist"
            yield _needless(table, "spent-keep-tag", tag.name, tag, message, "nothing needs it any more")


def _needless(view: Table, kind: str, subject: str, tag: Tag, message: str, reason: str) -> Finding:
    return Finding(
        kind=kind,
        subject=subject,
        severity=INFO,
        message=message,
        at_risk="nothing; the files of that snapshot take up space until the tag goes",
        repair="delete the tag",
        actions=(deletion(view, tag, reason),),
    )


def _expired_tags(view: Table, now_ms: int) -> Iterator[Finding]:
    """Tags past their retention, including undo tags, but not those that are still needed."""
    for tag in past_tags(view, datetime.fromtimestamp(now_ms / 1000)):
        until = f"was to live until {tag.expires_at():%Y-%m-%d %H:%M}"
        message = f"Tag {tag.name!r} of branch {view.branch_name!r} {until}"
        subject = f"{view.branch_name}/{tag.name}"
        yield _needless(view, "expired-tag", subject, tag, message, "its retention has passed")


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
