"""Merges two sides by file (``file_merge_plan``): reads their commits and deletion vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow_paimon.core.errors import LostMetadataError
from airflow_paimon.core.format.deletion_vectors import read_deletion_vectors
from airflow_paimon.core.format.manifest import FileKind, ManifestEntry
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import CommitKind, Operation, Snapshot
from airflow_paimon.core.publish.compare import Comparison, gather_sides
from airflow_paimon.core.publish.file_merge_plan import (
    Change,
    Commit,
    FileMerge,
    FileSides,
    Vector,
    appended_files,
    describe_appended,
    merge_files,
    merges_by_file,
    needs_history,
)
from airflow_paimon.core.row_tracking.row_ids_plan import origin_name
from airflow_paimon.core.table.history import branch_point, difference, snapshots_between
from airflow_paimon.core.table.live_files import BucketKey
from airflow_paimon.core.table.manifest_entries import read_deltas, read_index_entries
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partitions import BucketOf, StoredPartitions
from airflow_paimon.core.table.properties import TARGET_PROPERTY
from airflow_paimon.core.table.reachability import find_deletion_vectors
from airflow_paimon.core.table.table import Table

_OF_ROWS = frozenset([Operation.UPDATE, Operation.DELETE, Operation.MERGE, Operation.WRITE])
"""Operations that change the rows that they name; an OVERWRITE by another one replaces whole partitions."""


def merge_branch_files(compared: Comparison, *, keep_appended: bool, revert_compaction: bool) -> FileMerge:
    """Merge a branch into main's head.

    Raises:
        ConflictError: see ``merge_files``.
    """
    return _merge(
        compared.main,
        _sides_of(compared),
        compared.base,
        compared.head,
        compared.schema,
        keep_appended=keep_appended,
        revert_compaction=revert_compaction,
    )


def appended_on_main(
    main: Table, branch: Table, base: Snapshot | None, theirs: Snapshot, head: Snapshot
) -> dict[str, Any] | None:
    """Say what main got, after the branch was made, in partitions that the branch replaces, as the plan of its publish.

    ``base``: the branch point, if it is known. None: nothing; the table isn't merged by file; or it can't be told what
    main has of an earlier publish.
    """
    schema = main.schema()
    if not merges_by_file(schema):
        return None
    base = base or branch_point(main, branch)
    if base is None:
        return None
    compared = gather_sides(main, branch, base=base, head=head, branch_snapshot=theirs, schema=schema, takes_all=False)
    if not compared.earlier_publishes_known:
        return None
    sides = _comparable(main, _sides_of(compared), schema)
    files = appended_files(sides, StoredPartitions(schema).bucket)
    return describe_appended(files, StoredPartitions(schema).bucket_text) if files else None


def _sides_of(compared: Comparison) -> FileSides:
    main, branch = compared.main, compared.branch
    schema, scope, on_main = compared.schema, compared.scope, compared.on_main
    bucket_of = StoredPartitions(schema).bucket

    def partition(vector: Vector) -> bytes:
        return bucket_of(vector.entry).partition

    def vectors(view: Table, snapshot: Snapshot) -> dict[str, Vector]:
        return {n: v for n, v in _vectors(view, snapshot).items() if scope.holds(partition(v))}

    def is_published(commit: Commit) -> bool:
        publish = on_main.of(commit.bucket.partition)
        return publish is not None and commit.snapshot <= publish.branch.id

    commits, published = _commits(branch, compared.base, compared.branch_snapshot), None
    commits = None if commits is None else [c for c in commits if scope.holds(c.bucket.partition)]
    before = vectors(main, compared.base)
    if each := list(on_main.each()):
        known = {n: v for n, v in before.items() if on_main.of(partition(v)) is None}
        for publish, counts in each:
            known |= {n: v for n, v in vectors(branch, publish.branch).items() if counts(partition(v))}
        published = Change(
            difference=compared.published.only(scope.holds),
            vectors=known,
            commits=None if commits is None else list(filter(is_published, commits)),
        )
        if commits is not None:  # what main had then, that publish was decided on
            commits = [replace(c, replaces=c.replaces and not is_published(c)) for c in commits]
    theirs, ours = compared.sides.theirs, compared.sides.ours
    return FileSides(
        theirs=Change(difference=theirs, vectors=vectors(branch, compared.branch_snapshot), commits=commits),
        ours=Change(difference=ours, vectors=vectors(main, compared.head)),
        vectors=before,
        published=published,
    )


def undo_files(
    view: Table,
    *,
    publish: Snapshot,
    target: Snapshot,
    head: Snapshot,
    schema: TableSchema,
    revert_compaction: bool = False,
) -> FileMerge:
    """Take back what ``publish`` changed on the way from ``target``; what came after it stays.

    Raises:
        ConflictError: see ``merge_files``.
    """
    sides = FileSides(
        theirs=Change(difference=difference(view, publish, target), vectors=_vectors(view, target), commits=()),
        ours=Change(difference=difference(view, publish, head), vectors=_vectors(view, head)),
        vectors=_vectors(view, publish),
    )
    return _merge(view, sides, publish, head, schema, keep_appended=True, revert_compaction=revert_compaction)


def _merge(
    view: Table,
    sides: FileSides,
    base: Snapshot,
    head: Snapshot,
    schema: TableSchema,
    *,
    keep_appended: bool,
    revert_compaction: bool,
) -> FileMerge:
    bucket_of = StoredPartitions(schema).bucket
    sides = _comparable(view, sides, schema)
    if needs_history(sides, bucket_of):
        sides = replace(sides, ours=replace(sides.ours, commits=_commits(view, base, head)))
    return merge_files(
        view.name,
        sides,
        read_index_entries(view, head),
        name_bucket=StoredPartitions(schema).bucket_text,
        bucket_of=bucket_of,
        keep_appended=keep_appended,
        revert_compaction=revert_compaction,
        one_file=TableOptions(schema.options).bucket > 0,
    )


def _commits(view: Table, after: Snapshot, up_to: Snapshot) -> list[Commit] | None:
    """Read what each commit did to each bucket; None: some have expired."""
    snapshots = snapshots_between(view, after.id, up_to.id)
    if snapshots is None:
        return None
    bucket_of = StoredPartitions(view.schema()).bucket
    out: list[Commit] = []
    try:
        for snapshot, delta in zip(snapshots, read_deltas(view, snapshots), strict=True):
            out += _by_bucket(snapshot, delta, _marked(view, after, snapshot, bucket_of), bucket_of)
            after = snapshot
    except LostMetadataError:
        return None
    return out


def _by_bucket(
    snapshot: Snapshot, delta: Sequence[ManifestEntry], marked: Mapping[BucketKey, set[str]], bucket_of: BucketOf
) -> list[Commit]:
    groups: dict[BucketKey, tuple[dict[str, ManifestEntry], dict[str, ManifestEntry]]] = {b: ({}, {}) for b in marked}
    for entry in delta:
        added, removed = groups.setdefault(bucket_of(entry), ({}, {}))
        side = added if entry.kind == FileKind.ADD else removed
        side[entry.file.file_name] = entry._replace(kind=FileKind.ADD.value)
    is_rollback = TARGET_PROPERTY in snapshot.properties
    return [
        Commit(
            snapshot=snapshot.id,
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


def _marked(view: Table, before: Snapshot, after: Snapshot, bucket_of: BucketOf) -> dict[BucketKey, set[str]]:
    """Return the data files whose deletion vectors differ, by bucket."""
    if before.index_manifest == after.index_manifest:
        return {}
    old, new = _vectors(view, before), _vectors(view, after)
    found: dict[BucketKey, set[str]] = {}
    for name, vector in (old | new).items():
        if not (name in old and name in new and old[name].content == new[name].content):
            found.setdefault(bucket_of(vector.entry), set()).add(name)
    return found


def _vectors(view: Table, snapshot: Snapshot) -> dict[str, Vector]:
    return {
        r.data_file: Vector(e, r, (e.file_name, r.offset, r.length))
        for e in read_index_entries(view, snapshot)
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
    [(path, where)] = find_deletion_vectors([only], schema)
    found = read_deletion_vectors(view.store.read(path), [where], name=path)
    return vector._replace(content=found[where.data_file].tobytes())
