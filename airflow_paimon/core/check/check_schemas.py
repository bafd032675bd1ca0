"""Live files that name a schema which their branch doesn't have: no engine can read the branch."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from airflow_paimon.core.branches.delete import all_views
from airflow_paimon.core.check.live_states import LiveStates
from airflow_paimon.core.format.manifest import FileKind
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.plan import PutNew
from airflow_paimon.core.requests.findings import ERROR, Finding
from airflow_paimon.core.table.history import existing_snapshots
from airflow_paimon.core.table.live_entries import live_columns
from airflow_paimon.core.table.manifest_entries import read_entries
from airflow_paimon.core.table.manifest_lists import read_delta_lists
from airflow_paimon.core.table.open_writers import began_with
from airflow_paimon.core.table.table import Table


def schema_findings(view: Table, known: LiveStates) -> Iterator[Finding]:
    """Check the head of a branch. ``known``: what was read of the table before.

    Flink commits such files where a job that wrote a branch is resumed on main: its savepoint holds files of the branch
    (measured with Flink 2.0.1 and Paimon 1.4.2).
    """
    head = view.latest_snapshot()
    if head is None:
        return
    ids = set(view.schema_ids())
    if known.has_schemas(view, head, ids):
        return
    missing = _missing(view, head, ids)
    if not missing:
        return
    before = _last_readable(view, head, ids)
    put, sources = _versions(view, head, before, missing)
    back = (
        "no snapshot without them is left; a tag or branch may have one"
        if before is None
        else f"rollback_to snapshot {before} (--branch {view.branch_name} --snapshot {before}) makes it readable "
        f"again, without what was committed since"
    )
    yield Finding(
        kind="missing-schema",
        subject=view.branch_name,
        severity=ERROR,
        message=f"{view.label}: live files of snapshot {head.id} name schema {', '.join(map(str, missing))}, which "
        f"the branch doesn't have: a job that wrote another branch was resumed here from its savepoint",
        at_risk=f"no engine can read these files. Stop the job; {back}",
        repair=f"keep the rows, which the job may have committed twice: put the newest schema of "
        f"{view.branch_name} again under that number, as it has the same columns in branch {', '.join(sources)}, which "
        f"the job wrote before"
        if put
        else None,
        actions=put,
        by_name_only=True,
    )


def _missing(view: Table, snapshot: Snapshot, ids: Collection[int]) -> list[int]:
    return sorted(set(live_columns(view, snapshot).schema_ids) - set(ids))


def _last_readable(view: Table, head: Snapshot, ids: Collection[int]) -> int | None:
    """Return a snapshot before the head that has all its schemas, the newest one if all after it lack some."""
    numbers = [i for i in view.snapshot_ids() if i < head.id]
    low, high = 0, len(numbers)
    while low < high:
        middle = (low + high) // 2
        snapshot = view.find_snapshot(numbers[middle])
        if snapshot is None or _missing(view, snapshot, ids):
            high = middle
        else:
            low = middle + 1
    return numbers[low - 1] if low else None


def _versions(
    view: Table, head: Snapshot, before: int | None, missing: Collection[int]
) -> tuple[tuple[PutNew, ...], list[str]]:
    """Return what puts the missing schemas, and the branches that have them; nothing where their columns aren't sure.

    They are if every branch with a schema of that number has the columns of this branch's newest one, and the jobs
    that brought the files have written one of these branches.
    """
    newest = view.schema()
    if before is None or min(missing) <= newest.id:
        return (), []
    sources = [v for v in all_views(view) if v.branch_name != view.branch_name and v.exists()]
    sources = [v for v in sources if set(missing) & set(v.schema_ids())]
    for number in missing:
        known = [v.schema(number) for v in sources if number in v.schema_ids()]
        if not known or any(s.content != newest.content for s in known):
            return (), []
    users = {s.commit_user for v in sources for s in v.snapshots() if s.id > began_with(v)}
    since = existing_snapshots(view, list(range(before + 1, head.id + 1)))
    foreign = read_delta_lists(view, [s for s in since if s.commit_user not in users])
    entries = (e for part in read_entries(view, foreign) for e in part)
    if any(e.kind == FileKind.ADD and e.file.schema_id in missing for e in entries):
        return (), []
    reason = "live files name it; it has the columns of the newest schema"
    versions = (replace(newest, id=n) for n in range(newest.id + 1, max(missing) + 1))
    put = tuple(PutNew(path=view.paths.schema(v.id), data=v.to_bytes(), reason=reason) for v in versions)
    return put, [v.branch_name for v in sources]
