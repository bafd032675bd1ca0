"""Gathers the input of a publish: the changes of branch and main since the branch point or the last publish; and of a
merge by file (``file_merge_plan``), the commits of both sides and the deletion vectors.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any

from airflow_paimon.core.commit.conditions import KEYS_STAY
from airflow_paimon.core.format.deletion_vectors import read_deletion_vectors
from airflow_paimon.core.format.manifest import FileKind, IndexEntry, ManifestEntry
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import CommitKind, Operation, Snapshot
from airflow_paimon.core.publish.bucket_merge_plan import Sides, bucket_namer, neutral_kinds, within_reach
from airflow_paimon.core.publish.file_merge_plan import (
    Change,
    Commit,
    FileMerge,
    FileSides,
    Form,
    Vector,
    appended_files,
    describe_appended,
    merge_files,
    merges_by_file,
    needs_history,
)
from airflow_paimon.core.row_tracking.row_ids_plan import (
    PublishedVersion,
    Shift,
    origin,
    origin_name,
    parse_published,
    parse_shifts,
)
from airflow_paimon.core.table.history import (
    Difference,
    branch_point,
    difference,
    really_changed,
    snapshots_between,
    snapshots_there,
    touched,
)
from airflow_paimon.core.table.lineage import read_lineage
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.properties import (
    BRANCH_IDENTITY_PROPERTY,
    BRANCH_PROPERTY,
    BRANCH_SNAPSHOT_PROPERTY,
    KEEP_LATER_PROPERTY,
    ROW_IDS_PROPERTY,
    ROW_VERSIONS_PROPERTY,
    TARGET_PROPERTY,
)
from airflow_paimon.core.table.reachability import find_deletions
from airflow_paimon.core.table.scan import BucketKey, read_each_delta_list, read_entries, read_index
from airflow_paimon.core.table.table import Table

_OF_ROWS = frozenset([Operation.UPDATE, Operation.DELETE, Operation.MERGE, Operation.WRITE])
"""Operations that change the rows that they name; an OVERWRITE by another one replaces whole partitions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastPublish:
    """The newest publish of a branch in main's history: main's snapshot, and the published one of the branch.

    ``gone``: the buckets whose rows have other versions on main than that publish gave: undone there, or changed other
    than by compaction; all of the branch, if that was rolled back since (``goes_back``: rows have lower versions).
    """

    main: Snapshot
    branch: Snapshot
    gone: frozenset[BucketKey] = frozenset()
    goes_back: bool = False

    @property
    def versions(self) -> tuple[PublishedVersion, ...]:
        """What versions of the branch became by this publish and the ones before it."""
        earlier = parse_published(self.main.properties.get(ROW_VERSIONS_PROPERTY, ""))
        return (*earlier, PublishedVersion(self.branch.id, self.main.id))

    @property
    def shifts(self) -> tuple[Shift, ...]:
        """What the publish did to the branch's row ids; empty if it says nothing of them."""
        return parse_shifts(self.main.properties.get(ROW_IDS_PROPERTY, ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A consistent reading of both sides: ``head`` of main and ``theirs`` of the branch, compared with their ``base``.

    ``schema``: main's newest. ``last``: the last publish of the branch. ``standing``: the newest one that main's head
    still stands on; None: there is none, or a rollback has taken it back. ``is_known``: whether main's history tells
    so; else a publish, or what became of it, may have expired.
    """

    base: Snapshot
    head: Snapshot
    theirs: Snapshot
    schema: TableSchema
    sides: Sides
    last: LastPublish | None
    standing: LastPublish | None = None
    is_known: bool = True


def gather_sides(
    main: Table,
    branch: Table,
    *,
    base: Snapshot,
    head: Snapshot,
    theirs: Snapshot,
    schema: TableSchema,
    whole: bool,
    marked: int | None = None,
) -> Compared:
    """Compare ``theirs`` of the branch and ``head`` of main with their ``base``.

    ``whole``: the branch's whole state is taken, so all buckets of main matter, not only those in reach.
    ``marked``: what ``published_mark`` said before this publish made its own note.
    """
    compared = partial(Compared, base=base, head=head, theirs=theirs, schema=schema)
    their_diff, our_diff = difference(branch, base, theirs), difference(main, base, head)
    between = snapshots_between(main, base.id, head.id)
    since = _main_since(main, base, head) if between is None else between
    history = snapshots_between(branch, base.id, theirs.id)
    if merges_by_file(schema) and not whole:
        found = _recognised(main, branch, since)
        standing = _standing(since, found or {})
        lost = between is None and _is_lost(branch, base, standing, our_diff, marked)
        newest = (found[s.id] for s in reversed(since) if s.id in found) if found is not None else ()
        last = _with_history(next(iter(newest), None), history)
        sides = Sides(theirs=their_diff, ours=our_diff, theirs_real=their_diff.buckets, ours_real=our_diff.buckets)
        is_known = found is not None and not lost
        return compared(sides=sides, last=last, standing=standing, is_known=is_known)
    last = _with_history(last_publish_of(main, branch, since), history)
    neutral = neutral_kinds(schema)
    taken, untouched, published = _of_last_publish(main, branch, base, head, our_diff, last, neutral)
    if last is not None:
        gone = published | their_diff.buckets if last.goes_back else published - untouched
        last = replace(last, gone=frozenset(gone))
    withdrawn = taken - their_diff.buckets
    candidates = our_diff.buckets if whole else within_reach(our_diff.buckets, their_diff.buckets | withdrawn, schema)
    given_back = _given_back(main, head, published, published - our_diff.buckets, last, neutral)
    real = really_changed(branch, history, their_diff.buckets, neutral)
    sides = Sides(
        theirs=their_diff,
        ours=our_diff,
        theirs_real=real | withdrawn,
        ours_real=(really_changed(main, between, candidates, neutral) - untouched) | given_back,
    )
    return compared(sides=sides, last=last)


def _with_history(last: LastPublish | None, history: Sequence[Snapshot] | None) -> LastPublish | None:
    """Say whether the branch was rolled back since; ``history``: its snapshots, None: some have expired."""
    if last is None:
        return None
    then = last.branch.id
    return replace(
        last, goes_back=history is None or any(TARGET_PROPERTY in s.properties for s in history if s.id > then)
    )


def _of_last_publish(
    main: Table,
    branch: Table,
    base: Snapshot,
    head: Snapshot,
    ours: Difference,
    last: LastPublish | None,
    neutral: Collection[CommitKind],
) -> tuple[set[BucketKey], set[BucketKey], set[BucketKey]]:
    """Return the buckets that main took from the branch and that still differ from the base, those of them that
    only compaction has changed since, and all that the branch had changed when it was published.
    """
    if last is None:
        return set(), set(), set()
    published = difference(branch, base, last.branch)
    candidates = published.buckets & ours.buckets
    same = {b for b in candidates if published.same_in(b, ours)}
    if same == candidates:
        return same, same, published.buckets
    then = difference(main, base, last.main)
    others = {b for b in candidates - same if published.same_in(b, then)}
    moved = really_changed(main, snapshots_between(main, last.main.id, head.id), others, neutral)
    return same | others, same | (others - moved), published.buckets


def _given_back(
    main: Table,
    head: Snapshot,
    published: set[BucketKey],
    buckets: set[BucketKey],
    last: LastPublish | None,
    neutral: Collection[CommitKind],
) -> set[BucketKey]:
    """Of ``published`` buckets that are as at the base again (``buckets``), return those that a commit of main put so:
    a partition that the publish brought was dropped or has expired. The next publish would bring it again.

    After a rollback, which is how a publish is undone, it shall. If main's history has expired, a rollback is taken for
    the cause where nothing of the publish is left.
    """
    if last is None or not buckets:
        return set()
    between = snapshots_between(main, last.main.id, head.id)
    if between is None:
        return buckets if buckets < published else set()
    found: set[BucketKey] = set()
    rest, later = set(buckets), []
    for snapshot in reversed([s for s in between if s.commit_kind not in neutral]):
        if TARGET_PROPERTY not in snapshot.properties:
            later.append(snapshot)
            continue
        found |= _touched_of(main, rest, later)
        rest -= found | _touched_of(main, rest, [snapshot])
        later = []
    return found | _touched_of(main, rest, later)


def _touched_of(main: Table, buckets: set[BucketKey], commits: Sequence[Snapshot]) -> set[BucketKey]:
    seen = touched(main, commits) if buckets and commits else set()
    return set(buckets) if seen is None else buckets & seen


def keys_stay(branch: Table, base: Snapshot, theirs: Snapshot, sides: Sides) -> bool:
    """Whether each key of the branch is where it is on main: it has only corrections in place, and main no changes."""
    history = snapshots_between(branch, base.id, theirs.id)
    return (
        not sides.ours_real
        and history is not None
        and all(
            s.commit_kind in (CommitKind.COMPACT, CommitKind.ANALYZE) or KEYS_STAY.items() <= s.properties.items()
            for s in history
        )
    )


def _main_since(main: Table, base: Snapshot, head: Snapshot) -> list[Snapshot]:
    """Return the rest of main's history after ``base``: snapshots that still exist, and those that tags hold.

    A publish is among them while its branch exists: the tag that protects the shared files is on it.
    """
    found = {t.snapshot.id: t.snapshot for t in main.tags_once() if base.id < t.snapshot.id <= head.id}
    there = [number for number in main.snapshot_ids() if base.id < number <= head.id]
    found |= {s.id: s for s in snapshots_there(main, there)}
    return [found[number] for number in sorted(found)]


def last_publish_of(main: Table, branch: Table, since: Sequence[Snapshot]) -> LastPublish | None:
    """Find the newest publish of this branch by the properties of main's snapshots since the base.

    None also when the branch's snapshot is gone, or another engine has rolled main back after the publish.
    """
    name = branch.branch_name
    own = (s for s in reversed(since) if s.properties.get(BRANCH_PROPERTY) == name)
    newest = next((s for s in own if BRANCH_IDENTITY_PROPERTY in s.properties), None)
    if newest is None:
        return None
    number = newest.properties.get(BRANCH_SNAPSHOT_PROPERTY, "")
    then = branch.find_snapshot(int(number)) if number.isdigit() else None
    now = main.find_snapshot(newest.id)
    identity = newest.properties[BRANCH_IDENTITY_PROPERTY]
    if then is None or then.identity != identity or (now is not None and now.identity != newest.identity):
        return None
    return LastPublish(main=newest, branch=then)


def _standing(since: Sequence[Snapshot], published: Mapping[int, LastPublish]) -> LastPublish | None:
    """Return the newest publish that main's newest snapshot still stands on: a rollback to before it, and its undo, go
    back to the publish before it.

    ``since``: main's snapshots after the branch point; ``published``: those that are publishes, by id.
    """
    standing: dict[int, LastPublish | None] = {}
    now: LastPublish | None = None
    for snapshot in since:
        target = snapshot.properties.get(TARGET_PROPERTY, "")
        if snapshot.id in published:
            now = published[snapshot.id]
        elif target.isdigit():
            whole = snapshot.properties.get(KEEP_LATER_PROPERTY) != "true"
            if whole or (now is not None and now.main.id == int(target) + 1):
                now = standing.get(max((i for i in standing if i <= int(target)), default=-1))
        standing[snapshot.id] = now
    return now


def _recognised(main: Table, branch: Table, since: Sequence[Snapshot]) -> dict[int, LastPublish] | None:
    """Find the publishes of states that the branch has come from: its own, also under an earlier name, and those of the
    branches that it was made from, before that. By the id of main's snapshot.

    None: the branch shares files with another publish, and what that brought can't be told: the published snapshot is
    gone, or the parent went on before it was published.
    """
    parents, record = dict[str, int](), read_lineage(main, branch.branch_name)
    made = _millis(record.created_at) if record is not None else None
    while record is not None and record.from_branch not in {MAIN, branch.branch_name, *parents}:
        parents[record.from_branch] = record.snapshot_id or 0
        record = read_lineage(main, record.from_branch)
    found: dict[int, LastPublish] = {}
    for snapshot in (s for s in since if BRANCH_IDENTITY_PROPERTY in s.properties):
        said = snapshot.properties
        name, identity = said.get(BRANCH_PROPERTY, ""), said[BRANCH_IDENTITY_PROPERTY]
        text = said.get(BRANCH_SNAPSHOT_PROPERTY, "")
        number = int(text) if text.isdigit() else 0
        own = branch.find_snapshot(number)
        if own is not None and own.identity == identity:
            found[snapshot.id] = LastPublish(main=snapshot, branch=own)
        elif name == branch.branch_name and own is None:
            if made is None or snapshot.time_millis >= made:
                return None  # else it was an earlier branch of this name
        elif name in parents:
            then = main.branch(name).find_snapshot(number)
            if then is None or then.identity != identity or number > parents[name]:
                return None
            found[snapshot.id] = LastPublish(main=snapshot, branch=then)
    return found


def _millis(text: str) -> int | None:
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        return None


def _is_lost(branch: Table, base: Snapshot, standing: LastPublish | None, ours: Difference, marked: int | None) -> bool:
    """Whether it can't be told, without main's history, what main still has of the branch: it was published since, or
    main has none of the published files. A rollback has taken them away then, or main has merged them into others.
    """
    if marked is not None and (standing is None or standing.branch.id < marked):
        return True
    if standing is None:
        return False
    published = difference(branch, base, standing.branch)
    added, removed = ({i for group in side.values() for i in group} for side in (published.added, published.removed))
    here = {origin(i) for group in ours.added.values() for i in group}
    return not (added & here or removed & {i for group in ours.removed.values() for i in group})


# -- a merge by file ---------------------------------------------------------------------------------------------------


def merge_branch_files(main: Table, branch: Table, g: Compared, *, keep_appended: bool, rewrite: bool) -> FileMerge:
    """Merge a branch into main's head.

    Raises:
        ConflictError: see ``merge_files``.
    """
    sides = _sides_of(main, branch, g)
    return _merge(main, sides, g.base, g.head, g.schema, keep_appended=keep_appended, rewrite=rewrite)


def appended_on_main(main: Table, branch: Table, theirs: Snapshot, head: Snapshot) -> dict[str, Any] | None:
    """Say what main got, after the branch was made, in partitions that the branch replaces, as the plan of its publish.

    None: nothing; the table isn't merged by file; or it can't be told what main has of an earlier publish.
    """
    schema, base = main.schema(), branch_point(main, branch)
    if base is None or not merges_by_file(schema):
        return None
    compared = gather_sides(main, branch, base=base, head=head, theirs=theirs, schema=schema, whole=False)
    if not compared.is_known:
        return None
    sides = _comparable(main, _sides_of(main, branch, compared), schema)
    files = appended_files(sides, StoredPartitions(schema).canonical)
    return describe_appended(files, bucket_namer(schema)) if files else None


def _sides_of(main: Table, branch: Table, g: Compared) -> FileSides:
    schema, commits = g.schema, _commits(branch, g.base, g.theirs)
    published = None
    if g.standing is not None:
        then = g.standing.branch
        published = Change(
            difference=difference(branch, g.base, then),
            vectors=_vectors(branch, then, schema),
            commits=_commits(branch, g.base, then),
        )
        commits_since = _commits(branch, then, g.theirs)
        commits = None if commits is None else _replacing_only(commits, commits_since)
    return FileSides(
        theirs=Change(difference=g.sides.theirs, vectors=_vectors(branch, g.theirs, schema), commits=commits),
        ours=Change(difference=g.sides.ours, vectors=_vectors(main, g.head, schema)),
        vectors=_vectors(main, g.base, schema),
        published=published,
    )


def undo_files(
    view: Table, *, publish: Snapshot, target: Snapshot, head: Snapshot, schema: TableSchema, rewrite: bool = False
) -> FileMerge:
    """Take back what ``publish`` changed on the way from ``target``; what came after it stays.

    Raises:
        ConflictError: see ``merge_files``.
    """
    sides = FileSides(
        theirs=Change(difference=difference(view, publish, target), vectors=_vectors(view, target, schema), commits=()),
        ours=Change(difference=difference(view, publish, head), vectors=_vectors(view, head, schema)),
        vectors=_vectors(view, publish, schema),
    )
    return _merge(view, sides, publish, head, schema, keep_appended=True, rewrite=rewrite)


def _merge(
    view: Table,
    sides: FileSides,
    base: Snapshot,
    head: Snapshot,
    schema: TableSchema,
    *,
    keep_appended: bool,
    rewrite: bool,
) -> FileMerge:
    form = StoredPartitions(schema).canonical
    sides = _comparable(view, sides, schema)
    if needs_history(sides, form):
        sides = replace(sides, ours=replace(sides.ours, commits=_commits(view, base, head)))
    return merge_files(
        *(view.name, sides, read_index(view, head), bucket_namer(schema), form),
        keep_appended=keep_appended,
        rewrite=rewrite,
        one_file=TableOptions(schema.options).bucket > 0,
    )


def _replacing_only(commits: Sequence[Commit], since: Sequence[Commit] | None) -> list[Commit]:
    """Let the replacements before the last publish count no more: what main had then, that publish was decided on."""
    known = None if since is None else {(c.bucket, frozenset(c.added), frozenset(c.removed)) for c in since}
    return [
        replace(
            c, replaces=c.replaces and (known is None or (c.bucket, frozenset(c.added), frozenset(c.removed)) in known)
        )
        for c in commits
    ]


def _commits(view: Table, after: Snapshot, up_to: Snapshot) -> list[Commit] | None:
    """Read what each commit did to each bucket; None: some have expired."""
    snapshots = snapshots_between(view, after.id, up_to.id)
    if snapshots is None:
        return None
    form = StoredPartitions(view.schema()).canonical
    lists = read_each_delta_list(view, snapshots)
    manifests = [m for rows in lists for m in rows]
    entries = iter(read_entries(view, manifests))
    out: list[Commit] = []
    previous = after
    for snapshot, rows in zip(snapshots, lists, strict=True):
        delta = [e for _ in rows for e in next(entries)]
        marked = _marked(view, previous, snapshot, form)
        out += _by_bucket(snapshot, delta, marked, form)
        previous = snapshot
    return out


def _by_bucket(
    snapshot: Snapshot, delta: Sequence[ManifestEntry], marked: Mapping[BucketKey, set[str]], form: Form
) -> list[Commit]:
    groups: dict[BucketKey, tuple[dict[str, ManifestEntry], dict[str, ManifestEntry]]] = {b: ({}, {}) for b in marked}
    for entry in delta:
        added, removed = groups.setdefault(BucketKey(form(entry.partition), entry.bucket), ({}, {}))
        side = added if entry.kind == FileKind.ADD else removed
        side[entry.file.file_name] = entry._replace(kind=FileKind.ADD.value)
    is_rollback = TARGET_PROPERTY in snapshot.properties
    return [
        Commit(
            bucket=bucket,
            added=added,
            removed=removed,
            marked=frozenset(marked.get(bucket, set()) - removed.keys()),
            compacts=snapshot.commit_kind == CommitKind.COMPACT,
            replaces=bool(removed)
            and snapshot.commit_kind == CommitKind.OVERWRITE
            and snapshot.operation not in _OF_ROWS
            and not is_rollback,
        )
        for bucket, (added, removed) in groups.items()
    ]


def _marked(view: Table, before: Snapshot, after: Snapshot, form: Form) -> dict[BucketKey, set[str]]:
    """Return the data files whose deletion vectors differ, by bucket."""
    if before.index_manifest == after.index_manifest:
        return {}
    old, new = (_ranges(read_index(view, s)) for s in (before, after))
    found: dict[BucketKey, set[str]] = {}
    for name in old.keys() | new.keys():
        if old.get(name) != new.get(name):
            entry = (new.get(name) or old[name])[0]
            found.setdefault(BucketKey(form(entry.partition), entry.bucket), set()).add(name)
    return found


def _ranges(index: Sequence[IndexEntry]) -> dict[str, tuple[IndexEntry, object]]:
    plain = [(e, e._replace(deletion_vector_ranges=None, row_count=0), e.deletion_vector_ranges) for e in index]
    return {r.data_file: (p, r) for _, p, ranges in plain for r in ranges or () if r is not None}


def _vectors(view: Table, snapshot: Snapshot, schema: TableSchema) -> dict[str, Vector]:
    if not TableOptions(schema.options).deletion_vectors and snapshot.index_manifest is None:
        return {}
    return {
        r.data_file: Vector(e, r, (e.file_name, r.offset, r.length))
        for e in read_index(view, snapshot)
        for r in e.deletion_vector_ranges or ()
        if r is not None
    }


def _comparable(view: Table, sides: FileSides, schema: TableSchema) -> FileSides:
    """Compare vectors by their positions where they lie in different files: Paimon writes a vector again as it is."""
    states = [sides.theirs.vectors, sides.ours.vectors, sides.vectors]
    states += [] if sides.published is None else [sides.published.vectors]
    seen: dict[str, set[object]] = {}
    for state in states:
        for name, vector in state.items():
            seen.setdefault(origin_name(name), set()).add(vector.content)
    unlike = {name for name, contents in seen.items() if len(contents) > 1}
    if not unlike:
        return sides

    def read(state: Mapping[str, Vector]) -> dict[str, Vector]:
        return {n: _with_positions(view, v, schema) if origin_name(n) in unlike else v for n, v in state.items()}

    return replace(
        sides,
        theirs=replace(sides.theirs, vectors=read(sides.theirs.vectors)),
        ours=replace(sides.ours, vectors=read(sides.ours.vectors)),
        vectors=read(sides.vectors),
        published=None if sides.published is None else replace(sides.published, vectors=read(sides.published.vectors)),
    )


def _with_positions(view: Table, vector: Vector, schema: TableSchema) -> Vector:
    only = vector.entry._replace(deletion_vector_ranges=(vector.range,))
    [(path, where)] = find_deletions([only], schema)
    found = read_deletion_vectors(view.store.read(path), [where], name=path)
    return vector._replace(content=found[where.data_file].tobytes())
