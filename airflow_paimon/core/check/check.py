"""check_table: finds leftovers and damage of crashes and other engines. Reads only."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from airflow_paimon.core.branches.delete import all_views
from airflow_paimon.core.branches.retention_tags import keep_tag_needed, missing_protection
from airflow_paimon.core.branches.tags import past_tags
from airflow_paimon.core.check.check_branches import (
    incomplete_branches,
    protection_findings,
    staging_finding,
    unfinished_branches,
    unfinished_findings,
    without_schema,
)
from airflow_paimon.core.check.check_history import (
    dangling_findings,
    history_findings,
    journal_findings,
    opening_findings,
    operation_findings,
    temporary_findings,
)
from airflow_paimon.core.check.check_keys import (
    FindDoubleKeys,
    FindDuplicates,
    KeyHashes,
    hash_index_findings,
    moving_key_findings,
    row_id_findings,
)
from airflow_paimon.core.errors import FormatError, NotFoundError
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.format.tag import Tag
from airflow_paimon.core.plan import Delete
from airflow_paimon.core.publish.schema_records import record_findings
from airflow_paimon.core.requests.context import Context
from airflow_paimon.core.requests.findings import (
    ERROR,
    INFO,
    WARNING,
    Finding,
    summary,
    unreadable_metadata,
    worst_first,
)
from airflow_paimon.core.requests.requests import CheckTable
from airflow_paimon.core.requests.result import OperationResult
from airflow_paimon.core.table.paths import (
    INDEX_DIR,
    KEEP_TAG_PREFIX,
    MAIN,
    STAGING_BRANCH_PREFIX,
    TAG_PREFIX,
    protects,
)
from airflow_paimon.core.table.reachability import missing_files, missing_index_files, unreadable_vectors
from airflow_paimon.core.table.scan import live_entries, read_index
from airflow_paimon.core.table.table import Table


def check_table(
    context: Context,
    request: CheckTable,
    duplicates: FindDuplicates | None = None,
    double_keys: FindDoubleKeys | None = None,
    keys: KeyHashes | None = None,
) -> OperationResult:
    """Check all branches, tags, hints and journals of a table; changes nothing.

    ``details.findings`` lists the findings, worst first; ``details.ok`` is true when none is an error or a warning.
    """
    findings = find_all(
        *(context.table, context.now_ms),
        verify_files=request.verify_files,
        duplicates=duplicates,
        double_keys=double_keys,
        keys=keys if request.verify_keys else None,
    )
    head = context.table.latest_snapshot_id()
    return context.result(None, branch=MAIN, changed=False, before=head, after=head, details=summary(findings))


def find_all(
    table: Table,
    now_ms: int,
    *,
    verify_files: bool,
    duplicates: FindDuplicates | None = None,
    double_keys: FindDoubleKeys | None = None,
    keys: KeyHashes | None = None,
) -> list[Finding]:
    """Gather the findings of a table, errors first. ``duplicates`` compares row ids, ``double_keys`` keys, ``keys``
    gives the keys of dynamic buckets: they read rows.
    """
    views = all_views(table)
    records = unfinished_branches(table)
    findings = _guarded(table, unfinished_findings(table, records))
    for view in views:
        if view.exists():
            findings += _guarded(view, incomplete_branches(view))
            findings += _guarded(view, history_findings(view))
            findings += _guarded(view, opening_findings(view))
            findings += _guarded(view, dangling_findings(view))
            findings += _guarded(view, operation_findings(view))
            findings += _guarded(view, row_id_findings(view, duplicates if verify_files else None))
            findings += _guarded(view, hash_index_findings(view, verify_files=verify_files, keys=keys))
            if verify_files:
                findings += _guarded(view, moving_key_findings(view, double_keys))
                findings += _guarded(view, _file_findings(view))
                findings += _guarded(view, _vector_findings(view))
        elif view.branch_name not in records:
            findings.append(without_schema(view))
    living = [v for v in views[1:] if v.exists()]
    for view in living:
        if view.branch_name.startswith(STAGING_BRANCH_PREFIX):
            findings.append(staging_finding(view))
        elif view.branch_name not in records:
            findings += _guarded(view, protection_findings(table, view))
    findings += _guarded(table, _publish_findings(table))
    findings += _guarded(table, record_findings(table))
    findings += _guarded(table, _tag_findings(table, {v.branch_name for v in living} | records.keys()))
    for view in (table, *living):
        findings += _guarded(view, _expired_tags(view, now_ms))
    findings += _guarded(table, journal_findings(table, now_ms))
    findings += _guarded(table, temporary_findings(table, views, now_ms))
    return worst_first(findings)


def _guarded(view: Table, findings: Iterator[Finding]) -> list[Finding]:
    """Collect findings; metadata that can't be read is a finding itself and ends that check."""
    out: list[Finding] = []
    try:
        for finding in findings:
            out.append(finding)
    except (FormatError, NotFoundError) as error:
        lost = "reads and commits of this branch fail; expiry and orphan cleaning must not run until it is repaired"
        out.append(unreadable_metadata(view.branch_name, error, lost))
    return out


def _publish_findings(table: Table) -> Iterator[Finding]:
    """Publishes and rollbacks of main without their tags, after a crash between the commit and the tags."""
    for snapshot in table.snapshots():
        for action in missing_protection(table, snapshot):
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


def _tag_findings(table: Table, living: set[str]) -> Iterator[Finding]:
    for tag in table.tags():
        branch = protects(tag.name)
        if branch is not None and branch not in living:
            message = f"Tag {tag.name!r} protects files for branch {branch!r}, which is gone"
            yield _needless(table, "stale-protective-tag", tag.name, tag, message, "nothing needs it any more")
        elif tag.name.startswith(KEEP_TAG_PREFIX) and keep_tag_needed(table, tag) is None:
            message = f"Tag {tag.name!r} kept files that a publish or rollback brought back; all snapshots and tags "
            message += "as old as that are gone"
            yield _needless(table, "spent-keep-tag", tag.name, tag, message, "nothing needs it any more")


def _needless(view: Table, kind: str, subject: str, tag: Tag, message: str, reason: str) -> Finding:
    return Finding(
        kind=kind,
        subject=subject,
        severity=INFO,
        message=message,
        at_risk="nothing; the files of that snapshot take up space until the tag goes",
        repair="delete the tag",
        actions=(Delete(path=view.paths.tag(tag.name), reason=reason),),
    )


def _expired_tags(view: Table, now_ms: int) -> Iterator[Finding]:
    """Tags past their retention, including undo tags, but not those that are still needed."""
    for tag in past_tags(view, datetime.fromtimestamp(now_ms / 1000)):
        until = f"was to live until {tag.expires_at():%Y-%m-%d %H:%M}"
        message = f"Tag {tag.name!r} of branch {view.branch_name!r} {until}"
        subject = f"{view.branch_name}/{tag.name}"
        yield _needless(view, "expired-tag", subject, tag, message, "its retention has passed")


def _file_findings(view: Table) -> Iterator[Finding]:
    """Missing data files, of the head and the tags of one branch."""
    schema = view.schema()
    head = view.latest_snapshot()
    wanted: list[tuple[str, Snapshot]] = [("head", head)] if head is not None else []
    wanted += [(f"tag {t.name}", t.snapshot) for t in view.tags()]
    for what, snapshot in wanted:
        subject = f"{view.branch_name}/{what.replace(' ', '-')}"
        try:
            lost = missing_files(view, schema, list(live_entries(view, snapshot).values()))
            lost += missing_index_files(view, schema, read_index(view, snapshot))
        except FormatError as error:
            lost, message = ["?"], error.message
        else:
            message = f"{view.label}: {len(lost)} data files of snapshot {snapshot.id} ({what}) are missing"
            message += f", e.g. {lost[0]}" if lost else ""
        if lost:
            yield Finding(
                kind="missing-files",
                subject=subject,
                severity=ERROR,
                message=message,
                at_risk="reads of this state fail; deleting or expiring anything now could make it worse",
            )


def _vector_findings(view: Table) -> Iterator[Finding]:
    """Deletion vectors of the head that can't be read; missing files are findings of their own."""
    schema, entries = view.schema(), read_index(view, view.latest_snapshot())
    gone = set(missing_index_files(view, schema, entries))
    there = [e for e in entries if f"{INDEX_DIR}/{e.file_name}" not in gone]
    wrong = list(unreadable_vectors(view, schema, there))
    if wrong:
        yield Finding(
            kind="deletion-vectors",
            subject=view.branch_name,
            severity=ERROR,
            message=f"{view.label}: {len(wrong)} files with deletion vectors can't be read, e.g.: {wrong[0]}",
            at_risk="reads of their partitions fail; to ignore them would bring deleted rows back",
        )
