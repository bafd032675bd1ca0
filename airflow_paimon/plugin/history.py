"""Gathers what the history shows: the snapshots and tags of the branches, read in parts, each part once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from airflow_paimon.core.errors import FormatError, NotFoundError, PaimonError
from airflow_paimon.core.format.snapshot import Tag
from airflow_paimon.core.table.branch_record import read_branch_record
from airflow_paimon.core.table.paths import MAIN, SNAPSHOT_PREFIX, UNDO_TAG_PREFIX, numbered, protects
from airflow_paimon.core.table.table import Table
from airflow_paimon.plugin.history_plan import LaneInput
from airflow_paimon.plugin.reading import FRESH_SECONDS, Reader
from airflow_paimon.shown.commit import UNREADABLE, Commit
from airflow_paimon.shown.commits import commit_of

_PART = 500
_BYTES = 700
"""About what one commit holds in memory."""


@dataclass(frozen=True, slots=True)
class Outline:
    """What a branch holds, by listings: its snapshots as (id, size, modified), its tags, where it came from."""

    files: Sequence[tuple[int, int, int | None]]
    tags: Sequence[Tag]
    parent: str | None
    owner: str
    reason: str


def outline(main: Table, branch: str) -> Outline:
    """List a branch. Size and time tell a snapshot from another one that got its id after a rollback elsewhere."""
    view = main.branch(branch)
    found = {e.name: e for e in view.store.list(view.paths.snapshot_dir) if not e.is_dir}
    ids = [i for i in numbered(list(found), SNAPSHOT_PREFIX) if i > 0]
    files = [(i, e.size, e.modified_ms) for i in ids for e in (found[f"{SNAPSHOT_PREFIX}{i}"],)]
    made = None if branch == MAIN else read_branch_record(main, branch)
    parent = None if branch == MAIN else made.from_branch if made else MAIN
    return Outline(files, view.tags(), parent, (made.owner if made else "") or "", (made.reason if made else "") or "")


def read_lanes(reader: Reader, main: Table, branches: Sequence[str], deadline: float) -> tuple[list[LaneInput], int]:
    """Read the lanes of main and these branches, the newest snapshots first; and how many snapshots are still to come.

    Raises:
        PaimonError: main can't be listed.
    """
    uri = main.store.uri
    names = [MAIN, *branches]
    outlines = reader.gather(
        {(uri, "outline", n): partial(outline, main, n) for n in names}, deadline=deadline, fresh=FRESH_SECONDS,
        weigh=lambda found: 200 * len(found.files) + 1500 * len(found.tags),
    )  # fmt: skip
    parts: dict[tuple[object, ...], tuple[Table, list[int]]] = {}
    for name in names:
        found = outlines.get((uri, "outline", name))
        if isinstance(found, PaimonError) and name == MAIN:
            raise found
        if isinstance(found, Outline):
            view = main.branch(name)
            for chunk in _parts(found.files):
                parts[(uri, "commits", name, tuple(chunk))] = (view, [i for i, _, _ in chunk])
    jobs = {key: partial(read_commits, view, ids) for key, (view, ids) in parts.items()}
    read = reader.gather(jobs, deadline=deadline, weigh=lambda commits: _BYTES * len(commits))
    missing = sum(len(ids) for key, (_, ids) in parts.items() if key not in read)
    lanes = []
    for name in names:
        about = outlines.get((uri, "outline", name))
        if about is None:
            missing += 1
        if isinstance(about, Outline):
            commits = [c for key, got in read.items() if key[2] == name and isinstance(got, list) for c in got]
            lanes.append(_lane(name, about, commits))
    return lanes, missing


def _parts(files: Sequence[tuple[int, int, int | None]]) -> list[list[tuple[int, int, int | None]]]:
    """Parts with borders at fixed ids, so that a new snapshot changes only the newest part; the newest part first."""
    out: dict[int, list[tuple[int, int, int | None]]] = {}
    for one in files:
        out.setdefault(one[0] // _PART, []).append(one)
    return [out[number] for number in sorted(out, reverse=True)]


def read_commits(view: Table, ids: list[int]) -> list[Commit]:
    """Read snapshots; one that expires meanwhile is left out, one that can't be read says so."""
    try:
        return [commit_of(s) for s in view.snapshots(ids)]
    except (FormatError, NotFoundError):
        return [c for i in ids if (c := _one(view, i)) is not None]


def _one(view: Table, snapshot_id: int) -> Commit | None:
    try:
        return commit_of(view.snapshot(snapshot_id))
    except NotFoundError:
        return None
    except FormatError as error:
        return Commit(id=snapshot_id, millis=0, kind=UNREADABLE, operation=error.message)


def _lane(name: str, about: Outline, commits: Sequence[Commit]) -> LaneInput:
    """Return a lane: tags are flags on commits, a tag whose snapshot has expired is drawn as a commit of its own.

    Tags that only protect a branch are left out.
    """
    by_id = {c.id: c for c in commits}
    listed = {i for i, _, _ in about.files}
    for tag in about.tags:
        if tag.snapshot.id not in listed:
            by_id.setdefault(tag.snapshot.id, replace(commit_of(tag.snapshot), kept_by_tag=True))
        found = by_id.get(tag.snapshot.id)
        if found is None or protects(tag.name) is not None:
            continue
        undo = tag.name.startswith(UNDO_TAG_PREFIX)
        by_id[found.id] = replace(found, tags=(*found.tags, tag.name), undo=found.undo or undo)
    ordered, before = [], 0
    for commit_id in sorted(by_id):
        commit = by_id[commit_id]
        before = commit.millis or before
        ordered.append(commit if commit.millis else replace(commit, millis=before))
    return LaneInput(name=name, commits=ordered, parent=about.parent, owner=about.owner, reason=about.reason)
