"""Findings about the tags by which the versions of table sets keep a table's snapshots."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_paimon.core.errors import UnsupportedCatalogError
from airflow_paimon.core.format.snapshot import Tag
from airflow_paimon.core.plan import PutNew
from airflow_paimon.core.requests.findings import WARNING, Finding
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.table import Table
from airflow_paimon.core.table.table_set import SetMember, TableSet
from airflow_paimon.core.table.table_sets import set_folder, set_names


def set_findings(table: Table) -> Iterator[Finding]:
    """Versions of sets whose tag on this table was deleted, renamed, or set on another snapshot."""
    if table.catalog is None:
        return
    main = table.branch(MAIN)
    try:
        folders = [set_folder(table.catalog, name) for name in set_names(table.catalog)]
    except UnsupportedCatalogError:  # its server keeps the warehouse, so there are no sets
        return
    for version in (v for folder in folders for v in folder.versions() if v.abandoned is None):
        pin = version.tables.get(table.name)
        tag = None if pin is None else main.find_tag(version.tag)
        if pin is not None and (tag is None or tag.snapshot.identity != pin.identity):
            yield _finding(main, version, pin, tag)


def _finding(main: Table, version: TableSet, pin: SetMember, tag: Tag | None) -> Finding:
    what = "is gone" if tag is None else f"is on snapshot {tag.snapshot.id} now"
    others = (t.snapshot for t in main.tags() if t.snapshot.identity == pin.identity)
    snapshot = main.find_snapshot(pin.snapshot_id)
    if snapshot is None or snapshot.identity != pin.identity:
        snapshot = next(others, None)
    action = None
    if tag is None and snapshot is not None:
        put = Tag(name=version.tag, snapshot=snapshot)
        action = PutNew(path=main.paths.tag(put.name), data=put.to_bytes(), reason="keeps a version of a table set")
    lost = "" if snapshot is not None else f"; snapshot {pin.snapshot_id} was deleted, so the version can't be read"
    return Finding(
        kind="table-set-tag",
        subject=f"{version.name}@{version.number}",
        severity=WARNING,
        message=f"Tag {version.tag!r} of version {version.number} of table set {version.name!r} {what}{lost}",
        at_risk=f"readers of {version.version}: nothing keeps snapshot {pin.snapshot_id} of {main.name} for them",
        repair=f"create tag {version.tag!r} on snapshot {pin.snapshot_id}" if action is not None else None,
        actions=(action,) if action is not None else (),
    )
