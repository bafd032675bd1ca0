"""Findings about the tags by which the versions of table sets keep a table's snapshots."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_paimon.core.branches.tag_files import deletion
from airflow_paimon.core.branches.tags import is_deletable
from airflow_paimon.core.errors import UnsupportedCatalogError
from airflow_paimon.core.format.snapshot import Tag
from airflow_paimon.core.plan import PutNew
from airflow_paimon.core.requests.findings import INFO, WARNING, Finding
from airflow_paimon.core.table.paths import MAIN
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
