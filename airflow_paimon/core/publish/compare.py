"""Gathers the input of a publish: the changes of branch and main since the branch point or the last publish; and of a
merge by file (``file_merge_plan``), the commits of both sides and the deletion vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from airflow_paimon.core.commit.conditions import KEYS_STAY
from airflow_paimon.core.errors import LostMetadataError
from airflow_paimon.core.format.deletion_vectors import read_deletion_vectors
from airflow_paimon.core.format.manifest import FileKind, IndexEntry, ManifestEntry
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import CommitKind, Operation, Snapshot
from airflow_paimon.core.publish.bucket_merge_plan import Sides, bucket_namer, neutral_kinds, within_reach
from airflow_paimon.core.publish.earlier_publishes import (
    BranchPublish,
    Recognised,
    Standing,
    is_lost,
    main_since,
    own_publishes,
    recognise,
    standing_of,
)
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
from airflow_paimon.core.publish.hold import PublishedMark
from airflow_paimon.core.publish.relatives import brought_by_relatives, meets_relative
from airflow_paimon.core.row_tracking.row_ids_plan import origin_name
from airflow_paimon.core.store.base import side_by_side
from airflow_paimon.core.table.history import (
    Difference,
    branch_point,
    difference,
    really_changed,
    snapshots_between,
    touched,
)
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partition_scope import WHOLE, PartitionScope
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.properties import TARGET_PROPERTY
from airflow_paimon.core.table.reachability import find_deletions
from airflow_paimon.core.table.scan import BucketKey, read_each_delta_list, read_entries, read_index
from airflow_paimon.core.table.table import Table

_OF_ROWS = frozenset([Operation.UPDATE, Operation.DELETE, Operation.MERGE, Operation.WRITE])
"""Operations that change the rows that they name; an OVERWRITE by another one replaces whole partitions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A consistent reading of both sides: ``head`` of main and ``theirs`` of the branch, compared with their ``base``.

    ``schema``: main's newest. ``scope``: the partitions that are published; ``sides`` has no others. ``last``: the last
    publish of the branch, of whatever partitions. ``standing``: the publishes that main's head still stands on.
    ``is_known``: whether main's history tells so; else a publish, or what became of it, may have expired.
    ``gone``: the buckets whose rows have other versions on main than the last publish gave: undone there, or changed
    other than by compaction; all that was published before the branch was rolled back (``goes_back``: rows have lower
    versions).
    ``relatives``: of a table with keys, publishes of relatives, each with the state of the branch that main got by it.
    ``changed``: all partitions in which the branch differs from the base, or was published; ``left``: those out of
    scope in which it has something that main lacks.
    """

    base: Snapshot
    head: Snapshot
    theirs: Snapshot
    schema: TableSchema
    sides: Sides
    last: BranchPublish | None
    scope: PartitionScope = WHOLE
    standing: Standing = field(default_factory=Standing)
    is_known: bool = True
    gone: frozenset[BucketKey] = frozenset()
    goes_back: bool = False
    relatives: tuple[BranchPublish, ...] = ()
    changed: frozenset[bytes] = frozenset()
    left: frozenset[bytes] = frozenset()


def gather_sides(
    main: Table,
    branch: Table,
    *,
    base: Snapshot,
    head: Snapshot,
    theirs: Snapshot,
    schema: TableSchema,
    whole: bool,
    marks: Sequence[PublishedMark] = (),
    scope: PartitionScope = WHOLE,
) -> Compared:
    """Compare ``theirs`` of the branch and ``head`` of main with their ``base``.

    ``whole``: the branch's whole state is taken, so all buckets of main matter, not only those in reach.
    ``marks``: what ``published_marks`` said before this publish made its own note. ``scope``: see ``Compared``.

    Raises:
        FormatError: an earlier publish, or a note of one, says unreadably of which partitions it was.
    """
    reads: list[Callable[[], Any]] = [
        partial(snapshots_between, main, base.id, head.id),
        partial(difference, branch, base, theirs),
        partial(difference, main, base, head),
        partial(snapshots_between, branch, base.id, theirs.id),
    ]
    between, their_diff, our_diff, history = side_by_side(main.store, reads)
    seen = _Seen(
        main=main,
        branch=branch,
        compared=partial(Compared, base=base, head=head, theirs=theirs, schema=schema, scope=scope),
        base=base,
        head=head,
        theirs=theirs,
        schema=schema,
        scope=scope,
        their_diff=their_diff,
        our_diff=our_diff,
        between=between,
        since=main_since(main, base, head) if between is None else between,
        history=history,
        neutral=neutral_kinds(schema),
    )
    return _compare_by_file(seen, marks) if merges_by_file(schema) and not whole else _compare_by_bucket(seen, whole)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """What was read of both sides since their base.

    ``between``: main's snapshots, ``history`` the branch's, None: some have expired. ``since``: those of main that are
    left. ``compared`` makes the result of what is found.
    """

    main: Table
    branch: Table
    compared: Callable[..., Compared]
    base: Snapshot
    head: Snapshot
    theirs: Snapshot
    schema: TableSchema
    scope: PartitionScope
    their_diff: Difference
    our_diff: Difference
    between: Sequence[Snapshot] | None
    since: Sequence[Snapshot]
    history: Sequence[Snapshot] | None
    neutral: Collection[CommitKind]


def _compare_by_file(s: _Seen, marks: Sequence[PublishedMark]) -> Compared:
    found = recognise(s.main, s.branch, s.since, s.schema)
    standing = standing_of(s.since, found or Recognised())
    lost = s.between is None and is_lost(s.branch, s.base, s.their_diff, s.our_diff, standing, marks, s.scope)
    lost = lost or _meets_relative(s, found or Recognised(), standing, marks)
    theirs, ours = s.their_diff.buckets, s.our_diff.buckets
    sides = Sides(theirs=s.their_diff, ours=s.our_diff, theirs_real=theirs, ours_real=ours)
    changed, left = theirs, set[BucketKey]()
    if not s.scope.is_whole:
        then = published_difference(s.branch, s.base, standing)
        changed = changed | then.buckets
        real = really_changed(s.branch, s.history, theirs, s.neutral) | then.buckets
        left = {b for b in real if not (s.scope.holds(b.partition) or s.their_diff.same_in(b, then))}
    return s.compared(
        sides=_only(sides, s.scope),
        last=None if found is None else found.last,
        standing=standing,
        is_known=found is not None and not lost,
        goes_back=_goes_back(s.history, standing),
        changed=_partitions(changed),
        left=_partitions(left),
    )


def _meets_relative(s: _Seen, known: Recognised, standing: Standing, marks: Sequence[PublishedMark]) -> bool:
    """``meets_relative``, without the files that the branch's own publishes brought: those are decided one by one."""
    own = published_difference(s.branch, s.base, standing)
    rest = replace(s.their_diff, added={
        b: {i: e for i, e in files.items() if i not in own.added.get(b, {})} for b, files in s.their_diff.added.items()
    })  # fmt: skip
    return meets_relative(
        *(s.main, s.branch),
        base=s.base,
        head=s.head,
        since=s.since,
        is_whole=s.between is not None,
        known=known,
        marks=marks,
        theirs=s.their_diff,
        rest=rest,
        ours=s.our_diff,
        scope=s.scope,
    )


def _compare_by_bucket(s: _Seen, whole: bool) -> Compared:
    known = own_publishes(s.main, s.branch, s.since, s.schema)
    standing = standing_of(s.since, known)
    taken, untouched, published, given_back, alone, gone = (set[BucketKey]() for _ in range(6))
    for publish, counts in standing.each():
        brought = _Brought.of(s.main, s.branch, s.base, s.head, s.our_diff, publish, counts, s.neutral)
        taken |= brought.taken
        untouched |= brought.untouched
        published |= brought.published
        as_before = brought.published - s.our_diff.buckets
        given_back |= _given_back(s.main, s.head, brought.published, as_before, publish, s.neutral)
        alone |= _left_alone(s.main, s.branch, s.head, s.theirs, brought.published, publish, s.neutral)
        went_back = _went_back(s.history, publish)
        mine = {b for b in s.their_diff.buckets if counts(b.partition)}
        gone |= brought.published | mine if went_back else brought.published - brought.untouched
    theirs, ours = s.their_diff.buckets, s.our_diff.buckets
    withdrawn = taken - theirs
    candidates = ours if whole else within_reach(ours, theirs | withdrawn, s.schema)
    theirs_real = (really_changed(s.branch, s.history, theirs, s.neutral) | withdrawn) - alone
    sides = Sides(
        theirs=s.their_diff,
        ours=s.our_diff,
        theirs_real=theirs_real,
        ours_real=(really_changed(s.main, s.between, candidates, s.neutral) - untouched) | given_back,
        alone=frozenset(alone),
    )
    left = (b for b in theirs_real if not s.scope.holds(b.partition) and not s.their_diff.same_in(b, s.our_diff))
    return s.compared(
        sides=_only(sides, s.scope),
        last=known.last,
        standing=standing,
        is_known=not known.unknown,
        gone=frozenset(gone),
        goes_back=_goes_back(s.history, standing),
        relatives=brought_by_relatives(s.main, s.branch, s.since, known),
        changed=_partitions(theirs | published),
        left=_partitions(left),
    )


def _partitions(buckets: Iterable[BucketKey]) -> frozenset[bytes]:
    return frozenset(b.partition for b in buckets)


def _only(sides: Sides, scope: PartitionScope) -> Sides:
    if scope.is_whole:
        return sides
    return Sides(
        theirs=sides.theirs.only(scope.holds),
        ours=sides.ours.only(scope.holds),
        theirs_real={b for b in sides.theirs_real if scope.holds(b.partition)},
        ours_real={b for b in sides.ours_real if scope.holds(b.partition)},
        alone=frozenset(b for b in sides.alone if scope.holds(b.partition)),
    )


def _goes_back(history: Sequence[Snapshot] | None, standing: Standing) -> bool:
    return any(_went_back(history, publish) for publish, _ in standing.each())


def _went_back(history: Sequence[Snapshot] | None, publish: BranchPublish) -> bool:
    """Whether the branch was rolled back since; ``history``: its snapshots, None: some have expired."""
    then = publish.branch.id
    return history is None or any(TARGET_PROPERTY in s.properties for s in history if s.id > then)


@dataclass(frozen=True, slots=True)
class _Brought:
    """The buckets of a publish that main took from the branch and that still differ from the base, those of them that
    only compaction has changed since, and all that the branch had changed when it was published.
    """

    taken: set[BucketKey]
    untouched: set[BucketKey]
    published: set[BucketKey]

    @classmethod
    def of(
        cls,
        main: Table,
        branch: Table,
        base: Snapshot,
        head: Snapshot,
        ours: Difference,
        publish: BranchPublish,
        counts: Callable[[bytes], bool],
        neutral: Collection[CommitKind],
    ) -> _Brought:
        """``counts``: in which partitions the publish is the last one."""
        published = difference(branch, base, publish.branch).only(counts)
        candidates = published.buckets & ours.buckets
        same = {b for b in candidates if published.same_in(b, ours)}
        if same == candidates:
            return cls(same, same, published.buckets)
        then = difference(main, base, publish.main)
        others = {b for b in candidates - same if published.same_in(b, then)}
        moved = really_changed(main, snapshots_between(main, publish.main.id, head.id), others, neutral)
        return cls(same | others, same | (others - moved), published.buckets)


def _given_back(
    main: Table,
    head: Snapshot,
    published: set[BucketKey],
    buckets: set[BucketKey],
    publish: BranchPublish,
    neutral: Collection[CommitKind],
) -> set[BucketKey]:
    """Of ``published`` buckets that are as at the base again (``buckets``), return those that a commit of main put so:
    a partition that the publish brought was dropped or has expired. The next publish would bring it again.

    After a rollback, which is how a publish is undone, it shall. If main's history has expired, a rollback is taken for
    the cause where nothing of the publish is left.
    """
    if not buckets:
        return set()
    between = snapshots_between(main, publish.main.id, head.id)
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


def _left_alone(
    main: Table,
    branch: Table,
    head: Snapshot,
    theirs: Snapshot,
    published: set[BucketKey],
    publish: BranchPublish,
    neutral: Collection[CommitKind],
) -> set[BucketKey]:
    """Of published buckets, return those that the branch has not changed since: whatever main has done to them stands.

    Not those that a rollback of main has taken back, as they shall come again; none if main's history has expired,
    since only that tells of a rollback.
    """
    after = snapshots_between(main, publish.main.id, head.id)
    if after is None or not published:
        return set()
    since = difference(branch, publish.branch, theirs).buckets & published
    history = snapshots_between(branch, publish.branch.id, theirs.id) if since else ()
    alone = published - really_changed(branch, history, since, neutral)
    return alone - _touched_of(main, alone, [s for s in after if TARGET_PROPERTY in s.properties])


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


def published_difference(branch: Table, base: Snapshot, standing: Standing) -> Difference:
    """Return what the branch had changed, in each partition, when that was last published."""
    parts = [difference(branch, base, publish.branch).only(counts) for publish, counts in standing.each()]
    return Difference(
        {b: group for part in parts for b, group in part.added.items()},
        {b: group for part in parts for b, group in part.removed.items()},
        {b: group for part in parts for b, group in part.index.items()},
    )


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
    if g.standing.publishes:
        states = {publish.branch.id: publish.branch for publish, _ in g.standing.each()}
        vectors = {i: _vectors(branch, then, schema) for i, then in states.items()}
        since = {i: _commits(branch, then, g.theirs) for i, then in states.items()}
        before = {i: _commits(branch, g.base, then) for i, then in states.items()}
        known: dict[str, Vector] = {}
        earlier: list[Commit] | None = []
        for publish, counts in g.standing.each():
            at, own = publish.branch.id, before[publish.branch.id]
            known |= _vectors_in(vectors[at], counts, schema)
            earlier = None if earlier is None or own is None else earlier + _commits_in(own, counts)
            commits = None if commits is None else _replacing_only(commits, since[at], counts)
        published = Change(difference=published_difference(branch, g.base, g.standing), vectors=known, commits=earlier)
    sides = FileSides(
        theirs=Change(difference=g.sides.theirs, vectors=_vectors(branch, g.theirs, schema), commits=commits),
        ours=Change(difference=g.sides.ours, vectors=_vectors(main, g.head, schema)),
        vectors=_vectors(main, g.base, schema),
        published=published,
    )
    return sides if g.scope.is_whole else _sides_in(sides, g.scope, schema)


def _sides_in(sides: FileSides, scope: PartitionScope, schema: TableSchema) -> FileSides:
    """Leave out what is in other partitions."""

    def of(change: Change) -> Change:
        return Change(
            difference=change.difference.only(scope.holds),
            vectors=_vectors_in(change.vectors, scope.holds, schema),
            commits=None if change.commits is None else _commits_in(change.commits, scope.holds),
        )

    return FileSides(
        theirs=of(sides.theirs),
        ours=of(sides.ours),
        vectors=_vectors_in(sides.vectors, scope.holds, schema),
        published=None if sides.published is None else of(sides.published),
    )


def _vectors_in(
    vectors: Mapping[str, Vector], holds: Callable[[bytes], bool], schema: TableSchema
) -> dict[str, Vector]:
    form = StoredPartitions(schema).canonical
    return {name: vector for name, vector in vectors.items() if holds(form(vector.entry.partition))}


def _commits_in(commits: Sequence[Commit], holds: Callable[[bytes], bool]) -> list[Commit]:
    return [c for c in commits if holds(c.bucket.partition)]


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


def _replacing_only(
    commits: Sequence[Commit], since: Sequence[Commit] | None, counts: Callable[[bytes], bool]
) -> list[Commit]:
    """Let the replacements before the last publish count no more, in the partitions that it counts for: what main had
    then, that publish was decided on.
    """
    known = None if since is None else {(c.bucket, frozenset(c.added), frozenset(c.removed)) for c in since}
    return [
        c
        if not counts(c.bucket.partition)
        else replace(
            c, replaces=c.replaces and (known is None or (c.bucket, frozenset(c.added), frozenset(c.removed)) in known)
        )
        for c in commits
    ]


def _commits(view: Table, after: Snapshot, up_to: Snapshot) -> list[Commit] | None:
    """Read what each commit did to each bucket; None: some have expired."""
    snapshots = snapshots_between(view, after.id, up_to.id)
    if snapshots is None:
        return None
    try:
        return _read_commits(view, after, snapshots)
    except LostMetadataError:
        return None


def _read_commits(view: Table, after: Snapshot, snapshots: Sequence[Snapshot]) -> list[Commit]:
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
