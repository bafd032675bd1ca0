"""Tags that retain the files that a publish shares, and those that a publish or rollback brings back.

When Paimon expires a deletion it checks only the nearest earlier tag, and when it deletes a tag only that tag's two
neighbours; neither notices that a file has come back. A file that main held during several periods of its history
therefore needs a keep tag in each period, as long as any other tag is that old: one at its end, so that deleting a
user's tag there deletes no file, and one where the next period begins, so that the expiry of the next deletion finds
the file retained.

See docs/contributing/format.md, Who deletes files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from itertools import pairwise
from typing import Any

from airflow_paimon.core.commit.put import execute, execute_at_once
from airflow_paimon.core.errors import LostMetadataError
from airflow_paimon.core.format.manifest import FileKind, IndexEntry
from airflow_paimon.core.format.snapshot import CommitKind, Snapshot, Tag
from airflow_paimon.core.plan import Delete, PutNew
from airflow_paimon.core.store.base import run_parallel
from airflow_paimon.core.table.branch_record import read_branch_record
from airflow_paimon.core.table.history import difference, existing_snapshots
from airflow_paimon.core.table.manifest_entries import read_entries, read_index_entries
from airflow_paimon.core.table.manifest_lists import read_each_delta_list
from airflow_paimon.core.table.options import parse_retention
from airflow_paimon.core.table.paths import (
    KEEP_TAG_PREFIX,
    MAIN,
    RESERVED_TAG_PREFIX,
    STAGED_TAG_PREFIX,
    manifest_path,
    protects,
    publish_tag,
    published_tag,
)
from airflow_paimon.core.table.properties import (
    BRANCH_IDENTITY_PROPERTY,
    BRANCH_PROPERTY,
    BRANCH_SNAPSHOT_PROPERTY,
    CAME_BACK_PROPERTY,
    TRY_PROPERTY,
    UNDO_RETENTION_PROPERTY,
    UNDO_TAG_PROPERTY,
)
from airflow_paimon.core.table.table import Table

_HALF = 16
_STAGED_AT_MOST = timedelta(days=7)


def keep_tag(snapshot: Snapshot) -> Tag:
    """Return the tag that retains a snapshot's files which came back later, or came back with it."""
    return Tag(name=f"{KEEP_TAG_PREFIX}{snapshot.id}", snapshot=snapshot)


def try_name(operation_id: str, random: str) -> str:
    """Return the name of a try: its first half is that of all tries of the operation."""
    return hashlib.sha256(operation_id.encode()).hexdigest()[:_HALF] + random[:_HALF]


def staged_tag(tried: str, tag: Tag, now: datetime) -> Tag:
    """Return the tag that a try puts before its snapshot, to become ``tag`` once that is committed.

    Its name is the try's own, so that a try that is not committed deletes what it has put, and nothing else. What a
    killed try has left expires after a week.
    """
    name = f"{_staged_prefix(tried)}{tag.name.removeprefix(RESERVED_TAG_PREFIX)}"
    return Tag(name=name, snapshot=tag.snapshot, create_time=now, time_retained=_STAGED_AT_MOST)


def _staged_prefix(tried: str) -> str:
    return f"{STAGED_TAG_PREFIX}{tried}-"


def staged_tag_names(committed: Snapshot, names: Sequence[str]) -> list[str]:
    """Return the staged tags that a publish or rollback still has among these names: it was cut off before it was
    done.
    """
    tried = committed.properties.get(TRY_PROPERTY)
    return [] if tried is None else [n for n in names if n.startswith(_staged_prefix(tried))]


def delete_staged_tags(view: Table, committed: Snapshot) -> None:
    """Delete the staged tags of a publish or rollback, after ``protect_published``: those of other tries of the same
    operation, too, which find its snapshot before they could be committed.
    """
    tried = committed.properties.get(TRY_PROPERTY)
    if tried is None:
        return
    every = f"{STAGED_TAG_PREFIX}{tried[:_HALF]}"
    names = [n for n in view.tag_names() if n.startswith(every)]
    execute(view, [Delete(path=view.paths.tag(name), reason="its snapshot exists") for name in names])


def _final_tag(view: Table, committed: Snapshot, staged: str) -> Tag | None:
    """Return the tag that a staged one becomes; None: it is gone. A name that another state has is extended."""
    tried = committed.properties[TRY_PROPERTY]
    name = RESERVED_TAG_PREFIX + staged.removeprefix(_staged_prefix(tried))
    tag, other = run_parallel(view.store, [partial(view.find_tag, n) for n in (staged, name)])
    if tag is None:
        return None
    retained = None
    if name == committed.properties.get(UNDO_TAG_PROPERTY):
        retained = parse_retention(committed.properties[UNDO_RETENTION_PROPERTY])
    if other is not None and other.snapshot.identity != tag.snapshot.identity:
        name = f"{name}-{tried}"
    created = None if retained is None else tag.create_time
    return Tag(name=name, snapshot=tag.snapshot, create_time=created, time_retained=retained)


def plan_keep_tags(
    view: Table, after: int, head: Snapshot, returning: set[str], *targets: Snapshot
) -> tuple[tuple[PutNew, ...], tuple[Snapshot, ...]]:
    """Plan the keep tags that must exist before files that ``head`` lacks come back.

    Tags the ``targets`` of a rollback, the snapshot before each unexpired deletion, and the last tag of each period
    that is known only from tags; ignores the time before ``after``, when the files were live. ``returning``: names of
    data and index files, as expiry identifies files by name (a file that compaction only moved comes back on another
    level). Also returns the snapshots whose tags must exist; empty = no file comes back.
    """
    kept = {s.id: s for s in targets}
    if returning:
        searches: list[Callable[[], list[Snapshot]]] = [
            lambda: list(_before_deletions(view, after, head, returning)),
            lambda: list(_before_tagged_gaps(view, after, head, returning)),
        ]
        found_beside = run_parallel(view.store, searches)
        kept |= {s.id: s for found in found_beside for s in found}
    wanted = (tag for tag in map(keep_tag, kept.values()) if not _exists(view, tag))
    actions = tuple(_put(view, tag, f"keeps files of snapshot {tag.snapshot.id} that come back") for tag in wanted)
    return actions, tuple(kept.values())


def _exists(view: Table, tag: Tag) -> bool:
    """Whether the tag exists, perhaps with fewer keys: another engine may have rewritten the snapshot."""
    found = view.find_tag(tag.name)
    return found is not None and found.snapshot.identity == tag.snapshot.identity


def _put(view: Table, tag: Tag, reason: str) -> PutNew:
    return PutNew(path=view.paths.tag(tag.name), data=tag.to_bytes(), same_ok=True, reason=reason)


def _before_deletions(view: Table, after: int, head: Snapshot, returning: set[str]) -> Iterator[Snapshot]:
    """Snapshots some of whose files the next snapshot deletes; few reads, however many snapshots there are.

    Those that expire meanwhile are left out, as if they had expired before: their deletions are done.
    """
    ids = [i for i in view.snapshot_ids() if after <= i <= head.id]
    known = {s.id: s for s in existing_snapshots(view, ids)}
    deleted = _deleted_data_files(view, [s for i, s in known.items() if i > after and i - 1 in known])
    for number in sorted(deleted):
        before, snapshot = known[number - 1], known[number]
        gone = deleted[number]
        with suppress(LostMetadataError):
            if before.index_manifest not in (None, snapshot.index_manifest):
                gone |= index_files(read_index_entries(view, before)) - index_files(read_index_entries(view, snapshot))
        if not gone.isdisjoint(returning):
            yield before


def _deleted_data_files(view: Table, snapshots: list[Snapshot]) -> dict[int, set[str]]:
    """Return the data files that each snapshot's delta deletes, by snapshot id, without ANALYZE snapshots, and without
    those that are being expired.
    """
    commits = [s for s in snapshots if s.commit_kind != CommitKind.ANALYZE]
    try:
        return _read_deletions(view, commits)
    except LostMetadataError:
        found: dict[int, set[str]] = {}
        for snapshot in commits:
            with suppress(LostMetadataError):
                found |= _read_deletions(view, [snapshot])
        return found


def _read_deletions(view: Table, commits: Sequence[Snapshot]) -> dict[int, set[str]]:
    deltas = [[m for m in manifests if m.num_deleted_files] for manifests in read_each_delta_list(view, commits)]
    parts = iter(read_entries(view, [m for manifests in deltas for m in manifests]))
    return {
        s.id: {e.file.file_name for _ in manifests for e in next(parts) if e.kind == FileKind.DELETE}
        for s, manifests in zip(commits, deltas, strict=True)
    }


def index_files(entries: Iterable[IndexEntry]) -> set[str]:
    """Return the names of the index files of some entries."""
    return {e.file_name for e in entries}


def _before_tagged_gaps(view: Table, after: int, head: Snapshot, returning: set[str]) -> Iterator[Snapshot]:
    """Tagged snapshots that have some of the files while the next tagged one lacks one of them."""
    tagged = sorted({t.snapshot.id: t.snapshot for t in view.cached_tags() if t.snapshot.id >= after}.items())
    holding = [(s, files & returning) for _, s in tagged if (files := _missing_from_head(view, head, s)) is not None]
    for (snapshot, files), (_, following) in pairwise([*holding, (head, set())]):
        if not files <= following:
            yield snapshot


def _missing_from_head(view: Table, head: Snapshot, snapshot: Snapshot) -> set[str] | None:
    """Return the names of the data and index files that a tagged snapshot has and the head lacks; None: the tag was
    deleted meanwhile.
    """
    try:
        change = difference(view, head, snapshot)
    except LostMetadataError:
        if any(t.snapshot.identity == snapshot.identity for t in view.tags()):
            raise
        return None
    data = {e.file.file_name for group in change.added.values() for e in group.values()}
    return data.union(*(index_files(group) for group in change.index.values()))


def protect_published(view: Table, snapshot: Snapshot) -> None:
    """Set the tags that a publish or rollback needs from now on. Idempotent."""
    actions = missing_tags_of_publish(view, snapshot)
    if actions and not is_unexpired(view, snapshot):  # a tag on it would only stop the next expiry
        on_it = {*_tags_on(view, snapshot), publish_tag(snapshot.properties.get(UNDO_TAG_PROPERTY, ""))}
        own = set(map(view.paths.tag, on_it))
        actions = [a for a in actions if a.path not in own]
    execute_at_once(view, actions)
    if actions and not is_unexpired(view, snapshot):
        # Or the table was dropped and made anew: nothing of what they name is left.
        put = {a.path: a.data for a in actions}
        ours = (t for t in view.tags() if view.paths.tag(t.name) in put)
        left = [view.paths.tag(t.name) for t in ours if not is_unexpired(view, t.snapshot)]
        execute(view, [Delete(path=p, expected=put[p], reason="nothing is left of its snapshot") for p in left])


def missing_tags_of_publish(view: Table, snapshot: Snapshot) -> list[PutNew]:
    """Plan the missing tags of a publish or rollback, according to its properties and its staged tags."""
    looks: list[Callable[[], Any]] = [view.tag_names, partial(_tags_on, view, snapshot)]
    present, of_it = run_parallel(view.store, looks)
    wanted = [(Tag(name=n, snapshot=snapshot), why) for n, why in of_it.items()]
    final_tags = [partial(_final_tag, view, snapshot, staged) for staged in staged_tag_names(snapshot, present)]
    final = [tag for tag in run_parallel(view.store, final_tags) if tag is not None]
    wanted += [(tag, f"keeps snapshot {tag.snapshot.id} for publish {snapshot.id}") for tag in final]
    name = snapshot.properties.get(UNDO_TAG_PROPERTY, "")
    own = (replace(tag, name=publish_tag(name), snapshot=snapshot) for tag in final if tag.name == name)
    wanted += [(tag, f"keeps publish {snapshot.id} for its undo, as long as tag {name!r}") for tag in own]
    return [_put(view, tag, reason) for tag, reason in wanted if tag.name not in present]


def missing_tags_of_copy(view: Table, branch: str, other: str) -> list[PutNew]:
    """Plan the tags by which another branch keeps what those of a branch keep: it is to share its files."""
    found = [view.find_tag(name) for name in view.tag_names() if protects(name) == branch]
    kept = {tag.snapshot.id: tag.snapshot for tag in found if tag is not None}
    wanted = (Tag(name=published_tag(other, s.id), snapshot=s) for s in kept.values())
    return [_put(view, tag, f"shared with branch {other}") for tag in wanted if not _exists(view, tag)]


def _tags_on(view: Table, snapshot: Snapshot) -> dict[str, str]:
    """Return the tags on a publish or rollback itself, and why.

    Main and the branch share the branch's files from now on, and so do the branches that this one was made from.
    """
    wanted = {
        published_tag(branch, snapshot.id): f"keeps what {view.branch_name} now shares with branch {branch}"
        for branch in _sharing_branches(view, snapshot)
    }
    if snapshot.properties.get(CAME_BACK_PROPERTY) and keep_tag_needed(view, keep_tag(snapshot)) is not None:
        wanted[keep_tag(snapshot).name] = f"keeps files that came back with snapshot {snapshot.id}"
    return wanted


def _sharing_branches(view: Table, snapshot: Snapshot) -> Iterator[str]:
    """The branch that a snapshot published, and its ancestors, as far as they still exist."""
    branch = snapshot.properties.get(BRANCH_PROPERTY)
    number = snapshot.properties.get(BRANCH_SNAPSHOT_PROPERTY, "")
    if branch is None or not number.isdigit():
        return
    looks: list[Callable[[], Any]] = [partial(view.branch(branch).find_snapshot, int(number)), view.branch_names]
    published, names = run_parallel(view.store, looks)
    if published is None or published.identity != snapshot.properties.get(BRANCH_IDENTITY_PROPERTY):
        return  # deleted; one of that name may have been created again
    living = set(names) - {view.branch_name}  # which may be the parent, in a chain table
    while branch in living:
        yield branch
        living.discard(branch)
        record = read_branch_record(view.branch(MAIN), branch)
        branch = record.from_branch if record is not None else MAIN


def is_unexpired(view: Table, snapshot: Snapshot) -> bool:
    """Whether a snapshot's files are still there, as far as its manifest list tells."""
    return view.store.exists(manifest_path(snapshot.base_manifest_list))


def keep_tag_needed(view: Table, tag: Tag) -> str | None:
    """Return what still needs a keep tag; None = nothing, so that the tag can be deleted.

    Either a snapshot whose expiry will process the deletion before it, or any other tag that is as old: another engine
    that deletes *that* tag, or expires a deletion after it, must find the files retained here.
    """
    ids = view.snapshot_ids()
    if len(ids) > 1 and ids[0] <= tag.snapshot.id + 1:
        return f"the expiry of snapshot {ids[0]}"
    tags = (t for t in view.cached_tags() if t.snapshot.id <= tag.snapshot.id)
    others = (t for t in tags if not t.name.startswith(KEEP_TAG_PREFIX))
    return next((f"the end of tag {t.name!r}" for t in others), None)
