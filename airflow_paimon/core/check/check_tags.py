"""Findings about tags: a publish or a version of a table set lacks one, or nothing needs one any more. Also about
publishes of which the audit has no record.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from airflow_paimon.core.audit.records import missing_records
from airflow_paimon.core.branches.retention_tags import keep_tag_needed, missing_tags_of_publish
from airflow_paimon.core.branches.tag_files import deletion
from airflow_paimon.core.branches.tags import is_deletable, past_tags
from airflow_paimon.core.errors import UnsupportedCatalogError
from airflow_paimon.core.format.snapshot import Tag
from airflow_paimon.core.plan import PutNew
from airflow_paimon.core.requests.findings import INFO, WARNING, Finding
from airflow_paimon.core.table.paths import KEEP_TAG_PREFIX, MAIN, TAG_PREFIX, protects
from airflow_paimon.core.table.table import Table
from airflow_paimon.core.table.table_sets import TableSet, set_folder, set_names


def set_findings(table: Table) -> Iterator[Finding]:
    """Versions of sets whose tag on this table was deleted, renamed, or set on another snapshot; tags of no version."""
    if table.catalog is None:
        return
    main = table.branch(MAIN)
    try:
        folders = [set_folder(table.catalog, name) for name in set_names(table.catalog)]
    except UnsupportedCatalogError:  # its server keeps the warehouse, so there are no sets
        return
    for folder in folders:
        versions = folder.versions()
        for version in versions:
            yield from _missing_tag(main, version)
        for name in folder.left_over_tags(main, versions):
            if (tag := main.find_tag(name)) is not None and is_deletable(main, tag):
                yield Finding(
                    kind="table-set-left-over",
                    subject=name,
                    severity=INFO,
                    message=f"Tag {name!r} belongs to no version of table set {folder.name!r}: the task that set it "
                    "was killed, or the version has expired",
                    at_risk=f"nothing; it keeps the files of snapshot {tag.snapshot.id}. The next version of the set "
                    "that has this table deletes it",
                    repair=f"delete tag {name!r}",
                    actions=(deletion(main, tag, "no version of its table set has it"),),
                )


def _missing_tag(main: Table, version: TableSet) -> Iterator[Finding]:
    member = version.tables.get(main.name)
    tag = None if member is None else main.find_tag(version.tag)
    if member is None or (tag is not None and tag.snapshot.identity == member.identity):
        return
    what = "is gone" if tag is None else f"is on snapshot {tag.snapshot.id} now"
    snapshot = main.find_snapshot(member.snapshot_id)
    if snapshot is None or snapshot.identity != member.identity:
        snapshot = next((t.snapshot for t in main.tags() if t.snapshot.identity == member.identity), None)
    action = None
    if tag is None and snapshot is not None:
        put = Tag(name=version.tag, snapshot=snapshot)
        action = PutNew(path=main.paths.tag(put.name), data=put.to_bytes(), reason="keeps a version of a table set")
    number = member.snapshot_id
    lost = "" if snapshot is not None else f"; snapshot {number} was deleted, so the version can't be read"
    yield Finding(
        kind="table-set-tag",
        subject=f"{version.name}@{version.number}",
        severity=WARNING,
        message=f"Tag {version.tag!r} of version {version.number} of table set {version.name!r} {what}{lost}",
        at_risk=f"readers of {version.version}: nothing keeps snapshot {number} of {main.name} for them",
        repair=f"create tag {version.tag!r} on snapshot {number}" if action is not None else None,
        actions=(action,) if action is not None else (),
    )


def publish_findings(view: Table) -> Iterator[Finding]:
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


def needless_findings(table: Table, living: set[str]) -> Iterator[Finding]:
    """Tags of this package that keep files for nothing. ``living``: the branches that exist, or are being made."""
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


def expired_findings(view: Table, now_ms: int) -> Iterator[Finding]:
    """Tags past their retention, including undo tags, but not those that are still needed."""
    for tag in past_tags(view, datetime.fromtimestamp(now_ms / 1000)):
        until = f"was to live until {tag.expires_at():%Y-%m-%d %H:%M}"
        message = f"Tag {tag.name!r} of branch {view.branch_name!r} {until}"
        subject = f"{view.branch_name}/{tag.name}"
        yield _needless(view, "expired-tag", subject, tag, message, "its retention has passed")
