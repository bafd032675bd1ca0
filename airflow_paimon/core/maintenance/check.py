"""check_table: what a crash or another engine left behind, found by reading only."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from airflow_paimon.core.branches.branch_plan import plan_delete_branch
from airflow_paimon.core.branches.lineage import is_unfinished, lineage_path, read_lineage
from airflow_paimon.core.branches.retention_tags import keep_tag_needed, missing_protection
from airflow_paimon.core.branches.tags import check_deletable
from airflow_paimon.core.errors import FormatError, NotFoundError, PaimonError, UnsafeOperationError
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.format.tag import Tag
from airflow_paimon.core.maintenance.check_history import history_findings, journal_findings
from airflow_paimon.core.plan import Action, Delete, DeleteTree, PutNew
from airflow_paimon.core.requests.context import Context
from airflow_paimon.core.requests.findings import ERROR, INFO, WARNING, Finding
from airflow_paimon.core.requests.requests import CheckTable
from airflow_paimon.core.requests.result import OperationResult
from airflow_paimon.core.table.history import greatest_shared
from airflow_paimon.core.table.paths import (
    KEEP_TAG_PREFIX,
    MAIN,
    STAGING_BRANCH_PREFIX,
    TAG_PREFIX,
    BranchPaths,
    protective_tag,
    protects,
    published_tag,
)
from airflow_paimon.core.table.reachability import missing_files, missing_index_files
from airflow_paimon.core.table.scan import live_entries, read_index
from airflow_paimon.core.table.table import Table


def check_table(context: Context, request: CheckTable) -> OperationResult:
    """Look through all branches, tags, hints and journals of a table; changes nothing.

    ``details.findings`` lists what was found, worst first; ``details.ok`` is true when none is an error or a warning.
    """
    findings = find_all(context.table, context.now_ms, verify_files=request.verify_files)
    head = context.table.latest_snapshot_id()
    serious = [f for f in findings if f.severity != INFO]
    details = {
        "ok": not serious,
        "findings": [f.to_json() for f in findings],
        "errors": sum(f.severity == ERROR for f in findings),
        "warnings": sum(f.severity == WARNING for f in findings),
    }
    return context.result(None, branch=MAIN, changed=False, before=head, after=head, details=details)


def find_all(table: Table, now_ms: int, *, verify_files: bool) -> list[Finding]:
    """Gather the findings of a table, errors first."""
    views = [table.branch(MAIN), *(table.branch(n) for n in table.branch_names())]
    findings: list[Finding] = []
    for view in views:
        if not view.exists():
            findings.append(_without_schema(view))
            continue
        findings += _guarded(view, _half_made(view))
        findings += _guarded(view, history_findings(view))
        if verify_files:
            findings += _guarded(view, _file_findings(view))
    living = [v for v in views[1:] if v.exists()]
    for view in living:
        if view.branch_name.startswith(STAGING_BRANCH_PREFIX):
            findings.append(_staging(view))
            continue
        findings += _guarded(view, _protection(table, view))
    findings += _guarded(table, _publish_findings(table))
    findings += _guarded(table, _tag_findings(table, {v.branch_name for v in living}))
    for view in (table, *living):
        findings += _guarded(view, _expired_tags(view, now_ms))
    findings += _guarded(table, journal_findings(table, now_ms))
    order = {ERROR: 0, WARNING: 1, INFO: 2}
    return sorted(findings, key=lambda f: (order[f.severity], f.id))


def _guarded(view: Table, findings: Iterator[Finding]) -> list[Finding]:
    """Collect findings; metadata that can't be read is a finding itself and ends that check."""
    out: list[Finding] = []
    try:
        for finding in findings:
            out.append(finding)
    except (FormatError, NotFoundError) as error:
        out.append(_unreadable(view, error))
    return out


def _unreadable(view: Table, error: PaimonError) -> Finding:
    return Finding(
        kind="unreadable-metadata",
        subject=view.branch_name,
        severity=ERROR,
        message=error.message,
        at_risk="reads and commits of this branch fail; expiry and orphan cleaning must not run until it is mended",
    )


def _without_schema(view: Table) -> Finding:
    root = BranchPaths(view.branch_name).root.rstrip("/")
    name = view.branch_name
    own = _own_snapshots(view)
    kept = f"snapshots {', '.join(map(str, own))} are perhaps its own, so only you can say whether its folder may go"
    actions = (
        ()
        if own
        else (
            DeleteTree(path=root, reason="a branch without a schema and without a commit of its own holds nothing"),
            Delete(path=lineage_path(name), reason="its lineage"),
        )
    )
    return Finding(
        kind="branch-without-schema",
        subject=name,
        severity=ERROR,
        message=f"Branch {name!r} has no schema: half made or half deleted" + (f"; {kept}" if own else ""),
        at_risk="no engine can read it, and Paimon's remove_orphan_files refuses to work on the whole table",
        repair="delete its folder" if actions else None,
        actions=actions,
        by_name_only=True,
    )


def _own_snapshots(view: Table) -> list[int]:
    """Snapshots of a branch that main holds neither as such nor in a tag, or that can't be read: perhaps rows of its
    own. Paimon's create_branch copies tag and snapshot first, the schemas last, so one that is cut off has none."""
    main = view.branch(MAIN)
    own = []
    try:
        shared = {tag.snapshot.identity for tag in main.tags()}
    except (FormatError, NotFoundError):
        shared = set()
    for snapshot_id in view.snapshot_ids():
        try:
            identity = view.snapshot(snapshot_id).identity
            if identity not in shared and identity != main.snapshot(snapshot_id).identity:
                own.append(snapshot_id)
        except (FormatError, NotFoundError):
            own.append(snapshot_id)
    return own


def _staging(view: Table) -> Finding:
    name = view.branch_name
    files = view.store.walk(BranchPaths(name).root.rstrip("/"))
    return Finding(
        kind="staging-branch",
        subject=name,
        severity=INFO,
        message=f"Branch {name!r} is where a correction with engine=connector stages its files: one is under way, or "
        f"was cut off",
        at_risk="nothing; files that were not taken over take up space until orphan cleaning finds them",
        repair="delete it",
        actions=plan_delete_branch("repair_table", view.name, name, files, ()).actions,
        by_name_only=True,
    )


def _half_made(view: Table) -> Iterator[Finding]:
    lineage = read_lineage(view, view.branch_name)
    if view.branch_name == MAIN or lineage is None or view.snapshot_ids() or not is_unfinished(view, lineage):
        return
    name = view.branch_name
    was_to = f"start from snapshot {lineage.snapshot_id}" if lineage.snapshot_id else f"get schema {lineage.schema_id}"
    paths = BranchPaths(name)
    actions: tuple[Action, ...] = (
        *(Delete(path=f, reason="half made") for f in reversed(view.store.walk(paths.root.rstrip("/")))),
        DeleteTree(path=paths.root.rstrip("/"), reason="half made"),
        Delete(path=lineage_path(name), reason="its lineage"),
        Delete(path=view.branch(lineage.from_branch).paths.tag(protective_tag(name)), reason="protects nothing"),
    )
    yield Finding(
        kind="half-made-branch",
        subject=name,
        severity=ERROR,
        message=f"Branch {name!r} was to {was_to} of {lineage.from_branch}, but the run that made it was cut off: it "
        f"is empty",
        at_risk="a writer would take it for an empty branch; nothing of main is at risk",
        repair="delete it (or run create_branch again with if_exists='skip' to finish it)",
        actions=actions,
        by_name_only=True,
    )


def _protection(table: Table, view: Table) -> Iterator[Finding]:
    name = view.branch_name
    lineage = read_lineage(table, name)
    source = table.branch(lineage.from_branch) if lineage is not None else table
    base = greatest_shared(source, view)
    if base is None and lineage is not None and lineage.snapshot_id in view.snapshot_ids():
        base = view.snapshot(lineage.snapshot_id)
    if base is None:
        return
    holders = [t.name for t in source.tags() if t.snapshot.identity == base.identity and t.time_retained is None]
    if any(protects(holder) == name for holder in holders) or (holders and lineage is None):
        return
    taken = source.find_tag(protective_tag(name)) is not None  # on another snapshot, or with a retention
    tag_name = published_tag(name, base.id) if taken else protective_tag(name)
    action = PutNew(
        path=source.paths.tag(tag_name),
        data=Tag(name=tag_name, snapshot=base).to_bytes(),
        reason=f"keeps the files that branch {name} shares",
        same_ok=True,
    )
    yield Finding(
        kind="unprotected-branch",
        subject=name,
        severity=WARNING,
        message=f"Branch {name!r} shares files of snapshot {base.id} of {source.branch_name}, and no protective tag "
        f"keeps them (it was deleted, or another engine made the branch)",
        at_risk=f"when {source.branch_name} expires snapshots, the branch loses files and can't be read",
        repair=f"create tag {tag_name!r}",
        actions=(action,),
    )


def _publish_findings(table: Table) -> Iterator[Finding]:
    """Publishes and rollbacks of main without their tags: a crash came between the commit and those."""
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
        action = Delete(path=table.paths.tag(tag.name), reason="nothing needs it any more")
        if branch is not None and branch not in living:
            yield Finding(
                kind="stale-protective-tag",
                subject=tag.name,
                severity=INFO,
                message=f"Tag {tag.name!r} protects files for branch {branch!r}, which is gone",
                at_risk="nothing; the files of that snapshot take up space until the tag goes",
                repair="delete the tag",
                actions=(action,),
            )
        elif tag.name.startswith(KEEP_TAG_PREFIX) and keep_tag_needed(table, tag) is None:
            yield Finding(
                kind="spent-keep-tag",
                subject=tag.name,
                severity=INFO,
                message=f"Tag {tag.name!r} kept files that a publish or rollback brought back; all snapshots and tags "
                f"as old as that are gone",
                at_risk="nothing; the files of that snapshot take up space until the tag goes",
                repair="delete the tag",
                actions=(action,),
            )


def _expired_tags(view: Table, now_ms: int) -> Iterator[Finding]:
    """Tags that no engine has expired, undo tags among them; not those that something relies on."""
    now = datetime.fromtimestamp(now_ms / 1000)
    for tag in view.tags():
        end = tag.expires_at()
        if end is None or end >= now:
            continue
        try:
            check_deletable(view, tag)
        except UnsafeOperationError:
            continue
        yield Finding(
            kind="expired-tag",
            subject=f"{view.branch_name}/{tag.name}",
            severity=INFO,
            message=f"Tag {tag.name!r} of branch {view.branch_name!r} was to live until {end:%Y-%m-%d %H:%M}",
            at_risk="nothing; the files of that snapshot take up space until the tag goes",
            repair="delete the tag",
            actions=(Delete(path=view.paths.tag(tag.name), reason="its retention has passed"),),
        )


def _file_findings(view: Table) -> Iterator[Finding]:
    """Referenced data files that are not there, for the head and the tags of one branch."""
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
