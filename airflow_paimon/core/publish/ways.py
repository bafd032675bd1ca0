"""The ways of publishing a branch: merge, fast-forward, replace main. Each plans what main gets of both sides."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from airflow_paimon.core.errors import ConflictError
from airflow_paimon.core.format.manifest import FileId, ManifestEntry
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.publish.bucket_merge_plan import (
    BucketChange,
    Sides,
    fast_forward_buckets,
    key_scope,
    merge_buckets,
)
from airflow_paimon.core.publish.file_merge import merge_branch_files
from airflow_paimon.core.publish.file_merge_plan import FileMerge, describe_appended, merges_by_file
from airflow_paimon.core.publish.follow import BucketReach, FileReach, Follows
from airflow_paimon.core.publish.replace_main import (
    changed_since_kept,
    check_request,
    is_brought,
    replacement,
    tags_for_main,
)
from airflow_paimon.core.publish.replace_main_plan import CarriedOver
from airflow_paimon.core.publish.safeguards import bucket_namer
from airflow_paimon.core.publish.sides import LastPublish
from airflow_paimon.core.requests.context import Context
from airflow_paimon.core.requests.requests import FastForward, MergeBranch, PublishBranch, ReplaceMain
from airflow_paimon.core.schema.mapping_plan import SchemaMapping, plan_schemas
from airflow_paimon.core.table.history import before_first, branch_point, difference
from airflow_paimon.core.table.lineage import verified_lineage
from airflow_paimon.core.table.properties import TAGS_PROPERTY
from airflow_paimon.core.table.scan import BucketKey
from airflow_paimon.core.table.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """A consistent reading of both sides: the input of the plan."""

    head: Snapshot
    theirs: Snapshot
    base: Snapshot
    sides: Sides
    last: LastPublish | None
    standing: LastPublish | None
    is_known: bool
    main_schemas: Sequence[TableSchema]
    branch_schemas: Sequence[TableSchema]
    withdrawn: frozenset[int]

    def base_schema(self, main: Table) -> TableSchema:
        """Return the schema at the branch point."""
        by_id = {s.id: s for s in self.branch_schemas}
        return by_id.get(self.base.schema_id) or main.schema(self.base.schema_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What main gets. ``properties`` and ``summary``: of what it gets beside rows and columns. ``merge``: if the table
    is merged by file. ``follows``: see ``Decision``.
    """

    changes: Sequence[BucketChange]
    schemas: SchemaMapping
    properties: Mapping[str, str] = field(default_factory=dict)
    summary: Mapping[str, object] = field(default_factory=dict)
    merge: FileMerge | None = None
    follows: Follows | None = None
    watermark: int | None = None


@dataclass(frozen=True, slots=True)
class Merge:
    """Brings the branch's changes to what main is now; also the base of the other ways."""

    context: Context
    request: PublishBranch
    branch: Table

    @property
    def main(self) -> Table:
        return self.context.table

    @property
    def takes_all(self) -> bool:
        """Whether main becomes the branch, so that all of main matters."""
        return False

    @property
    def replaces(self) -> bool:
        """Whether main takes over the branch's options and tags as well, and its history need not be shared."""
        return False

    def check(self) -> None:
        """Refuse what can be seen before anything is read or written."""

    def is_brought(self) -> bool:
        """Whether main has the columns (and options) already that this operation would bring."""
        return self.main.schema().content == self.branch.schema().content

    def base(self) -> Snapshot | None:
        """Return the snapshot that both sides are compared with; None: they share none."""
        return branch_point(self.main, self.branch)

    def compared(self, base: Snapshot, head: Snapshot, sides: Sides) -> Sides:
        """Return the sides as this way sees them."""
        return sides

    def plan(self, g: Gathered, pending: int | None) -> Planned:
        """Plan for a head. ``pending``: main's schema version before an interrupted try, which has brought its columns.

        Raises:
            ConflictError: both sides changed a bucket, or the columns.
        """
        schema = g.main_schemas[-1]
        name = bucket_namer(schema)
        if not merges_by_file(schema):
            changes = merge_buckets(self.main.name, g.sides, name, key_scope(schema), self.main.branch_name)
            reach = BucketReach(buckets=frozenset(g.sides.theirs.buckets | g.sides.theirs_real))
            return self._with_tags(g, Planned(changes=changes, schemas=self._schemas(g, changes), follows=reach))
        merge = _merge_by_file(self.request, self.main, self.branch, g)
        planned = Planned(
            changes=merge.changes,
            schemas=self._schemas(g, merge.changes, merge.known),
            summary=_kept(merge, name),
            merge=merge,
            follows=FileReach(files=merge.relies_on, partitions=merge.replaced),
        )
        return self._with_tags(g, planned)

    def _schemas(self, g: Gathered, changes: Sequence[BucketChange], own: Collection[FileId] = ()) -> SchemaMapping:
        logs = (g.base_schema(self.main), g.main_schemas, g.branch_schemas)
        return plan_schemas(self.main.name, *logs, used_schemas(changes, own), self.context.now_ms, g.withdrawn)

    def _with_tags(self, g: Gathered, planned: Planned) -> Planned:
        """Give main the branch's own tags, if that was asked for."""
        if not self.request.tags:
            return planned
        # A merge by file also keeps the deletion vectors that main has put on other files of a bucket.
        is_state = _becomes(self.branch, g, planned.changes) and (planned.merge is None or not g.sides.ours.index)
        tags = tags_for_main(self.context, self.request.tag_conflict, self.branch, g.theirs, is_state=is_state)
        carried = CarriedOver(branch=self.request.branch, branch_snapshot=g.theirs.id, tags=tags.carried)
        # On top of a later commit of main, main would not have the state that the tags are on.
        on_head = any(t.snapshot is None for t in tags.carried)
        return replace(
            planned,
            properties={TAGS_PROPERTY: carried.to_text()} if tags.carried else {},
            summary={**planned.summary, "tags": [t.name for t in tags.carried], "tags_that_stay": list(tags.stay)},
            follows=None if on_head else planned.follows,
        )


@dataclass(frozen=True, slots=True)
class Forward(Merge):
    """Main becomes the branch: rows and columns."""

    request: FastForward

    @property
    def takes_all(self) -> bool:
        return True

    def plan(self, g: Gathered, pending: int | None) -> Planned:
        changes = self._changes(g, "a fast-forward")
        planned = Planned(changes=changes, schemas=self._schemas(g, changes), watermark=g.theirs.watermark)
        return self._with_tags(g, planned)

    def _changes(self, g: Gathered, what: str) -> Sequence[BucketChange]:
        name = bucket_namer(g.main_schemas[-1])
        discard = self.request.discard_main
        return fast_forward_buckets(self.main.name, g.sides, name, discard_main=discard, what=what)


@dataclass(frozen=True, slots=True)
class Replacing(Forward):
    """Main becomes the branch: rows, columns, options, comment and tags."""

    request: ReplaceMain

    @property
    def replaces(self) -> bool:
        return True

    def check(self) -> None:
        check_request(self.main, self.request)

    def is_brought(self) -> bool:
        return is_brought(self.context, self.branch)

    def base(self) -> Snapshot | None:
        """Also of a branch that was created empty: all that it has comes after that, and all of main as well."""
        found = branch_point(self.main, self.branch)
        if found is not None or not self.request.discard_main:
            return found
        lineage = verified_lineage(self.main, self.branch.branch_name)
        if lineage is None or lineage.snapshot_id is not None or lineage.schema_id is None:
            return None
        return before_first(lineage.schema_id)

    def compared(self, base: Snapshot, head: Snapshot, sides: Sides) -> Sides:
        since = changed_since_kept(self.main, self.branch.branch_name, base, head, sides.ours.buckets)
        return sides if since is None else replace(sides, ours_real=since)

    def plan(self, g: Gathered, pending: int | None) -> Planned:
        changes = self._changes(g, "replacing it")
        logs = (g.base_schema(self.main), g.main_schemas, g.branch_schemas)
        used = used_schemas(changes)
        taken = replacement(self.context, self.request, self.branch, logs, used, g.head, g.theirs, pending)
        return Planned(
            changes=changes,
            schemas=taken.schemas,
            properties=taken.properties,
            summary=taken.summary,
            watermark=g.theirs.watermark,
        )


def way_of(context: Context, request: PublishBranch, branch: Table) -> Merge:
    """Return the way of publishing that a request asks for."""
    if isinstance(request, ReplaceMain):
        return Replacing(context, request, branch)
    return Forward(context, request, branch) if isinstance(request, FastForward) else Merge(context, request, branch)


def used_schemas(changes: Sequence[BucketChange], own: Collection[FileId] = ()) -> set[int]:
    """Return the schema ids of the branch's files that main gets; ``own``: files of main's."""
    return {e.file.schema_id for c in changes for e in c.add if e.identifier not in own}


def _becomes(branch: Table, g: Gathered, changes: Sequence[BucketChange]) -> bool:
    """Whether these changes make main's head what the branch is, file by file."""
    left = difference(branch, g.head, g.theirs)
    made = {c.bucket: (_names(c.add), _names(c.delete)) for c in changes}
    return all(
        made.get(b) == (_names(left.added.get(b, {}).values()), _names(left.removed.get(b, {}).values()))
        for b in left.buckets
    )


def _names(entries: Iterable[ManifestEntry]) -> set[str]:
    return {e.file.file_name for e in entries}


def _merge_by_file(request: PublishBranch, main: Table, branch: Table, g: Gathered) -> FileMerge:
    if not g.is_known:
        raise ConflictError(
            f"{main.name}: it can't be told what main still has of an earlier publish of {request.branch!r}, or of the "
            f"branch that it was made from: snapshots have expired, or that branch went on before it was published. "
            f"Rows could be doubled, so nothing was published. Make a new branch from main's head and correct it again",
            details={"conflicts": [], "conflict_count": 0, "cause": "unknown"},
        )
    return merge_branch_files(
        main,
        branch,
        base=g.base,
        head=g.head,
        theirs=g.theirs,
        differences=(g.sides.theirs, g.sides.ours),
        last=g.standing,
        schema=g.main_schemas[-1],
        keep_appended=isinstance(request, MergeBranch) and request.keep_appended,
        rewrite=request.rewrite,
    )


def _kept(merge: FileMerge, name: Callable[[BucketKey], str]) -> dict[str, object]:
    """Say which rows of main stay beside the branch's, and which of its compactions are taken back."""
    out: dict[str, object] = {}
    if merge.kept:
        out["appended_on_main"] = describe_appended(merge.kept, name)
    if merge.restored:
        out["compactions_taken_back"] = merge.restored
    return out
