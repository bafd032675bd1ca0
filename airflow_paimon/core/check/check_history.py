"""Findings about one branch: snapshot ids, hints, schemas, temporary files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from airflow_paimon.core.branches.tag_files import deletion
from airflow_paimon.core.format.snapshot import CommitKind, parse_snapshot
from airflow_paimon.core.plan import Action, Delete, PutNew, Replace
from airflow_paimon.core.publish.earlier_publishes import takes_back
from airflow_paimon.core.publish.undoable_publishes import undoable_publishes
from airflow_paimon.core.requests.findings import ERROR, INFO, WARNING, Finding
from airflow_paimon.core.schema.opening_rules import opening_faults
from airflow_paimon.core.schema.schema_plan import KEY_OPTIONS
from airflow_paimon.core.store.base import read_existing, read_if_exists
from airflow_paimon.core.table.branch_record import read_branch_record
from airflow_paimon.core.table.history import existing_snapshots
from airflow_paimon.core.table.open_writers_plan import is_streamed
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.paths import CHANGELOG_PREFIX, MAIN, MANIFEST_DIR, PRIVATE_DIR, hint_number, numbered
from airflow_paimon.core.table.properties import BRANCH_SNAPSHOT_PROPERTY, REPLACED_PROPERTY
from airflow_paimon.core.table.table import Table, proof_of_snapshots

_DAY_MS = 24 * 3600 * 1000
_TEMPORARY = re.compile(r"\..+\.[0-9a-f-]{32,36}\.tmp")


def history_findings(view: Table) -> Iterator[Finding]:
    """Id gaps, wrong hints, and a missing schema of the head."""
    ids = view.snapshot_ids()
    if not ids:
        yield from _lost_snapshots(view)
        yield from _hints(view, ids)
        return
    left = _left_behind(view, ids)
    for path, data in read_existing(view.store, [view.paths.snapshot(i) for i in left]).items():
        number = path.rpartition("-")[2]
        yield Finding(
            kind="snapshot-left-behind",
            subject=f"{view.branch_name}/{number}",
            severity=WARNING,
            message=f"{view.label}: snapshot {number} lies before the oldest one. Its writer was stopped for so long "
            f"that others had committed and expired meanwhile, and was then killed; its commit counts as not made",
            at_risk="a reader that lists the snapshots takes it for the oldest one",
            repair="delete it",
            actions=(Delete(path=path, expected=data, reason="no later snapshot is based on it"),),
        )
    ids = [i for i in ids if i not in left]
    gaps = [a + 1 for a, b in pairwise(ids) if b != a + 1]
    if gaps:
        yield Finding(
            kind="snapshot-gap",
            subject=f"{view.branch_name}/{gaps[0]}",
            severity=WARNING,
            message=f"{view.label}: snapshot {gaps[0]} is missing between {ids[0]} and {ids[-1]} ({len(gaps)} gaps)",
            at_risk="streaming readers stop there, and a hint before the gap hides the newer snapshots from Paimon",
        )
    head = view.snapshot(ids[-1])
    if head.schema_id not in view.schema_ids():
        yield Finding(
            kind="missing-schema",
            subject=f"{view.branch_name}/{head.schema_id}",
            severity=ERROR,
            message=f"{view.label}: snapshot {head.id} was committed with schema {head.schema_id}, which is missing",
            at_risk="time travel to it fails or reads with wrong columns",
        )
    yield from _hints(view, ids)


def _left_behind(view: Table, ids: list[int]) -> list[int]:
    """Snapshots that writers have put behind the oldest one, under ids that an expiry had made free.

    Their writers take them back at once, unless they are killed: no later snapshot is based on them.
    """
    gaps = [b for a, b in pairwise(ids) if b != a + 1]
    data = read_if_exists(view.store, view.paths.earliest_hint)
    hint = None if data is None else hint_number(data)
    return [i for i in ids if gaps and hint is not None and i < hint and hint <= gaps[-1] and i < gaps[-1]]


def dangling_findings(view: Table) -> Iterator[Finding]:
    """Tags whose manifest lists are gone: an expiry ran while they were made."""
    there = set(view.store.names(MANIFEST_DIR))
    for tag in view.tags():
        lists = (tag.snapshot.base_manifest_list, tag.snapshot.delta_manifest_list)  # Paimon keeps no changelog for it
        lost = [name for name in lists if name not in there]
        if lost:
            yield Finding(
                kind="dangling-tag",
                subject=f"{view.branch_name}/{tag.name}",
                severity=ERROR,
                message=(
                    f"{view.label}: tag {tag.name!r} names manifest list {lost[0]}, which is missing: an expiry "
                    "deleted it before the tag was created"
                ),
                at_risk="the tag can't be read, and expiries and orphan cleaning refuse to work on the table",
                repair="delete the tag",
                actions=(deletion(view, tag, "nothing of its snapshot can be read any more"),),
                by_name_only=True,
            )


def changelog_findings(view: Table) -> Iterator[Finding]:
    """Long-lived changelogs that a stream can't read. One without a changelog list, such as that of a compaction, needs
    its lists only where nothing else tells the changes: Paimon's expiry deletes them.
    """
    ids = numbered(view.store.names(view.paths.changelog_dir), CHANGELOG_PREFIX)
    if not ids:
        return
    told_by_files = TableOptions(view.schema().options).text("changelog-producer", "none").lower() == "none"
    there = set(view.store.names(MANIFEST_DIR))
    for path, data in read_existing(view.store, [view.paths.changelog(i) for i in ids]).items():
        one = parse_snapshot(data, f"{view.name}: {path}")
        needed = one.changelog_manifest_list
        if needed is None and told_by_files and one.commit_kind == CommitKind.APPEND:
            needed = one.delta_manifest_list
        if needed is not None and needed not in there:
            yield Finding(
                kind="lost-changelog",
                subject=f"{view.branch_name}/{one.id}",
                severity=ERROR,
                message=f"{view.label}: changelog {one.id} names manifest list {needed}, which is missing",
                at_risk="a stream that begins there fails; expiries and orphan cleaning may refuse to work",
                repair="delete the changelog",
                actions=(Delete(path=path, expected=data, reason="none of its changes can be read any more"),),
                by_name_only=True,
            )


def repeated_findings(main: Table) -> Iterator[Finding]:
    """Commits of a branch that its job has made a second time, on main, after the branch had replaced main: a resumed
    Flink job commits the files of its savepoint unless the table's history has its user and identifier.
    """
    for made in undoable_publishes(main):
        if made.branch is None or REPLACED_PROPERTY not in made.snapshot.properties:
            continue
        branch, last = main.branch(made.branch), made.snapshot.number(BRANCH_SNAPSHOT_PROPERTY) or 0
        published = branch.find_snapshot(last)
        if published is None or published.identity != made.branch_identity:
            continue
        theirs = existing_snapshots(branch, [i for i in branch.snapshot_ids() if i <= last])
        known = {(s.commit_user, s.commit_identifier): s.id for s in theirs if is_streamed(s)}
        later = existing_snapshots(main, [i for i in main.snapshot_ids() if i > made.snapshot.id])
        for again in later:
            first = known.get((again.commit_user, again.commit_identifier))
            if first is not None and not any(takes_back(s, again) for s in later if s.id > again.id):
                yield Finding(
                    kind="committed-twice",
                    subject=str(again.id),
                    severity=WARNING,
                    message=f"{main.label}: snapshot {again.id} commits again what a job (commit user "
                    f"{again.commit_user}) had committed on branch {made.branch} as snapshot {first}, before that "
                    f"branch replaced main with snapshot {made.snapshot.id}",
                    at_risk="rows of tables without keys and sums of an aggregation count twice. Stop the job, and see "
                    "docs/howto/replace-main.md, A Flink job that filled the branch",
                )


def _lost_snapshots(view: Table) -> Iterator[Finding]:
    """A branch that has lost all snapshots: its folder was deleted."""
    proof = proof_of_snapshots(view)
    if proof is None:
        return
    tags, record, paths = view.tags(), read_branch_record(view, view.branch_name), view.paths
    if not tags and record is not None and view.branch_name != MAIN:  # what it starts from, its source's tags keep
        tags = [t for t in view.branch(record.from_branch).tags() if t.snapshot.identity == record.identity][:1]
    newest = tags[-1].snapshot if tags else None
    actions: tuple[Action, ...] = ()
    if newest is not None:
        reason = "the newest snapshot that a tag still keeps"
        actions = (
            PutNew(path=paths.snapshot(newest.id), data=newest.to_bytes(), reason=reason, same_ok=True),
            Replace(path=paths.latest_hint, data=str(newest.id).encode(), reason=reason),
        )
    yield Finding(
        kind="lost-snapshots",
        subject=view.branch_name,
        severity=ERROR,
        message=f"{view.label} has no snapshots, although {proof} proves that it had: {paths.snapshot_dir} was deleted",
        at_risk="Paimon reads it as empty and starts over with snapshot 1; reads and commits here are refused",
        repair=f"put snapshot {newest.id} back, from a tag; what was committed after it stays lost" if newest else None,
        actions=actions,
        by_name_only=True,
    )


def option_findings(view: Table) -> Iterator[Finding]:
    """Find options that keep Paimon's engines from opening the branch at all, and keys that are none."""
    for key in view.schema().options.keys() & KEY_OPTIONS:
        yield Finding(
            kind="key-without-effect",
            subject=f"{view.branch_name}/{key}",
            severity=WARNING,
            message=f"{view.label}: the stored option {key}={view.schema().options[key]} means nothing",
            at_risk=f"who takes it for the {KEY_OPTIONS[key]} is misled; reset it with alter_table",
        )
    for fault in opening_faults(view.schema()):
        yield Finding(
            kind="unopenable-schema",
            subject=f"{view.branch_name}/{fault.split()[0]}",
            severity=ERROR,
            message=f"{view.label}: Paimon can't open it, or not use it: {fault}",
            at_risk="Paimon's engines fail on it, or where they need the option; correct it with alter_table",
        )


def _hints(view: Table, ids: list[int]) -> Iterator[Finding]:
    hints = (
        (view.paths.latest_hint, ids[-1] if ids else None),
        (view.paths.earliest_hint, ids[0] if ids else None),
    )
    for path, right in hints:
        name = path.rsplit("/", 1)[-1]
        data = read_if_exists(view.store, path)
        text = "" if data is None else data.decode("utf-8", "replace").strip()
        if data is None or right is None or text == str(right):
            continue
        stale = hint_number(text) in ids
        which = "newest" if name == "LATEST" else "oldest"
        yield Finding(
            kind="wrong-hint",
            subject=f"{view.branch_name}/{name}",
            severity=INFO if stale else WARNING,
            message=f"{view.label}: hint {name} contains {text[:30]!r}, the {which} snapshot is {right}",
            at_risk="Paimon may read a missing snapshot, or miss newer ones; airflow-paimon lists the folder instead",
            repair=f"write {right}",
            actions=(Replace(path=path, data=str(right).encode(), expected=data, reason=f"the snapshots say {right}"),),
        )


def temporary_findings(table: Table, views: Sequence[Table], now_ms: int) -> Iterator[Finding]:
    """Temporary files that a killed writer left, once they are a day old: a younger one may be in use."""
    folders = [f"{PRIVATE_DIR}/{e.name}" for e in table.store.list(PRIVATE_DIR) if e.is_dir]
    folders += [f for v in views for f in (v.paths.schema_dir, v.paths.snapshot_dir, v.paths.tag_dir)]
    for folder in folders:
        old = [
            info.name
            for info in table.store.list(folder)
            if _TEMPORARY.fullmatch(info.name) and info.modified_ms is not None and now_ms - info.modified_ms > _DAY_MS
        ]
        if old:
            yield Finding(
                kind="temporary-files",
                subject=folder,
                severity=INFO,
                message=f"{len(old)} temporary files of interrupted writes lie in {folder}, e.g. {old[0]}",
                at_risk="nothing; readers ignore them",
                repair="delete them",
                actions=tuple(Delete(path=f"{folder}/{name}", reason="an interrupted write left it") for name in old),
            )
