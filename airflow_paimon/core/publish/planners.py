"""The planners of publishing a branch: merge and fast-forward (``replace_main`` has its own). Each plans what main gets
of both sides.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from airflow_paimon.core.errors import ConflictError, UnsafeOperationError
from airflow_paimon.core.format.manifest import FileId, ManifestEntry
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.plan import HeadIs
from airflow_paimon.core.publish.branch_tags import tags_for_main, tags_property
from airflow_paimon.core.publish.bucket_files import BucketFiles, joined_files, read_bucket_files
from airflow_paimon.core.publish.bucket_merge_plan import (
    BucketChange,
    Sides,
    changes_of_branch,
    fast_forward_buckets,
    overlapping_buckets,
)
from airflow_paimon.core.publish.compare import Comparison, SchemaLogs, gather_sides, main_changed_since_unmatched
from airflow_paimon.core.publish.file_merge_plan import describe_appended, merges_by_file
from airflow_paimon.core.publish.file_sides import merge_branch_files
from airflow_paimon.core.publish.hold import Hold
from airflow_paimon.core.publish.key_merge import (
    KeyMergeRequest,
    aggregates,
    not_by_key,
    reason_against,
)
from airflow_paimon.core.publish.newer_head import Unchanged
from airflow_paimon.core.publish.partial_publish import check_parts, part_properties, part_summary
from airflow_paimon.core.publish.publication import Publication
from airflow_paimon.core.publish.publish_schemas import written_with
from airflow_paimon.core.requests.context import Context
from airflow_paimon.core.requests.requests import FastForward, MergeBranch, PublishBranch, ReplaceMain
from airflow_paimon.core.schema.mapping_plan import SchemaMapping, plan_schemas
from airflow_paimon.core.store.base import run_parallel
from airflow_paimon.core.table.history import branch_point, difference, snapshots_between
from airflow_paimon.core.table.live_files import BucketKey
from airflow_paimon.core.table.partition_scope import WHOLE, PartitionScope
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.properties import (
    BASE_SNAPSHOT_PROPERTY,
    BRANCH_IDENTITY_PROPERTY,
    BRANCH_PROPERTY,
    BRANCH_SNAPSHOT_PROPERTY,
)
from airflow_paimon.core.table.table import Table


@dataclass(frozen=True, slots=True)
class PublishPlanner(ABC):
    """What all ways of publishing a branch have in common. ``scope``: the partitions that are published."""

    context: Context
    request: PublishBranch
    branch: Table
    scope: PartitionScope = WHOLE
    takes_all: ClassVar[bool] = False
    """Whether main becomes the branch, so that all of main matters."""

    @abstractmethod
    def plan(self, compared: Comparison) -> Publication:
        """Plan for a head.

        Raises:
            ConflictError: both sides changed a key, a bucket that can't be merged by key, or the columns.
        """

    @property
    def discards_main(self) -> bool:
        """Whether all of main goes, what it got since the base included, so that checks have to look at that too."""
        return False

    @property
    def main(self) -> Table:
        return self.context.table

    def check(self) -> None:
        """Refuse what can be seen before anything is read or written; by default nothing."""
        return

    def base(self) -> Snapshot | None:
        """Return the snapshot that both sides are compared with; None: they share none."""
        return branch_point(self.main, self.branch)

    def adjusted_sides(self, base: Snapshot, head: Snapshot, sides: Sides) -> Sides:
        """Return the sides as this planner sees them."""
        return sides

    def compare(
        self,
        branch_snapshot: Snapshot,
        head: Snapshot | None,
        unfinished: Sequence[Hold],
        put_schema_ids: Collection[int] = (),
    ) -> Comparison:
        """Compare the branch with a head of main, and read the schema versions of both.

        Raises:
            UnsafeOperationError: they share no history.
        """
        main, branch = self.main, self.branch
        reads: list[Callable[[], Any]] = [self.base, *([] if head is None else [main.schemas])]
        base, *found = run_parallel(main.store, reads)
        onto = main.branch_name
        if base is None or head is None:
            instead = ", or let the branch take main's place with replace_main --discard-main if it was created empty"
            instead = instead if onto == MAIN else ""
            raise UnsafeOperationError(
                f"{branch.label} shares no snapshot with {onto} (created empty, or the history and tags of {onto} were "
                f"expired), so there is nothing to compare with. Write its rows to {onto}{instead}"
            )
        own, schemas = self.request.operation_id, found[0]
        compared = gather_sides(
            main,
            branch,
            base=base,
            head=head,
            branch_snapshot=branch_snapshot,
            schema=schemas[-1],
            takes_all=self.takes_all,
            unfinished=[one for one in unfinished if one.user != own],
            scope=self.scope,
        )
        were_put = bool(put_schema_ids) or any(one.user == own for one in unfinished)
        logs = SchemaLogs(main=schemas, branch=branch.schemas(), put_schema_ids=put_schema_ids, were_put=were_put)
        return replace(compared, sides=self.adjusted_sides(base, head, compared.sides), logs=logs)

    def _publication(
        self,
        compared: Comparison,
        changes: Sequence[BucketChange],
        schemas: SchemaMapping,
        more: Mapping[str, object],
    ) -> Publication:
        """``more``: what the summary says besides what it says of every publish."""
        head, theirs, branch, logs = compared.head, compared.branch_snapshot, self.request.branch, compared.logs
        # Main has the columns but no snapshot with them: they were put by a try that was cut off, or by another
        # publish, which takes them back if it is refused and no snapshot says that they are needed.
        has_no_snapshot = logs.were_put or head.schema_id < logs.main[-1].id
        return Publication(
            target=self.main,
            source=self.branch,
            head=head,
            source_snapshot=theirs,
            since=compared.base.id,
            changes=changes,
            schemas=schemas,
            must_be_recorded=has_no_snapshot and not schemas.new and self._brings_columns(compared),
            preconditions=(
                HeadIs.of(self.main.branch_name, head, compared.schema.id),
                HeadIs.of(branch, theirs, logs.branch[-1].id),
            ),
            properties={
                BRANCH_PROPERTY: branch,
                BRANCH_SNAPSHOT_PROPERTY: str(theirs.id),
                BRANCH_IDENTITY_PROPERTY: theirs.identity,
                BASE_SNAPSHOT_PROPERTY: str(compared.base.id),
                **part_properties(compared),
            },
            summary={
                "branch": branch,
                "branch_snapshot": theirs.id,
                "branch_identity": theirs.identity,
                "base_snapshot": compared.base.id,
                "main_snapshot": head.id,
                "main_identity": head.identity,
                "mode": self.request.operation,
                "kept_of_main": len(compared.sides.ours.buckets - {c.bucket for c in changes}),
                "new_schemas": [
                    *(s.id for s in logs.main if s.id in logs.put_schema_ids),
                    *(s.id for s in schemas.new),
                ],
                **more,
                **part_summary(compared),
            },
            scope=self.scope,
        )

    def _brings_columns(self, compared: Comparison) -> bool:
        return self._base_schema(compared).content != compared.logs.branch[-1].content

    def _base_schema(self, compared: Comparison) -> TableSchema:
        by_id = {s.id: s for s in compared.logs.branch}
        return by_id.get(compared.base.schema_id) or self.main.schema(compared.base.schema_id)

    def _schemas(
        self,
        compared: Comparison,
        changes: Sequence[BucketChange],
        own: Collection[FileId] = (),
        used: Collection[int] = (),
    ) -> SchemaMapping:
        """``own``: files of main's. ``used``: further schema ids of the branch's files that are read."""
        logs, base, ids = compared.logs, self._base_schema(compared), {*used, *used_schemas(changes, own)}
        unused = self._unused(base, logs).union(logs.put_schema_ids)
        return plan_schemas(self.main.name, base, logs.main, logs.branch, ids, self.context.now_ms, unused)

    def _unused(self, base: TableSchema, logs: SchemaLogs) -> set[int]:
        """Return main's versions with columns that it has dropped, that the branch has, or an id of whose it has given
        to another, and of which no live file has values.
        """
        shared, names = {f.id for f in base.fields}, {f.id: f.name for f in logs.main[-1].fields}
        own = {s.id: [f for f in s.fields if f.id not in shared] for s in logs.main if s.id > base.id}
        theirs = {x for s in logs.branch for f in s.fields if f.id not in shared for x in (f.id, f.name)}
        renamed = {i for i, fields in own.items() if any(names.get(f.id, f.name) != f.name for f in fields)}
        dropped = {i: [f for f in fields if f.id not in names] for i, fields in own.items() if i not in renamed}
        former = {i for i, fields in dropped.items() if any({f.id, f.name} & theirs for f in fields)}
        return former - written_with(self.main) if former else former

    def _with_tags(self, compared: Comparison, planned: Publication) -> Publication:
        """Give main the branch's own tags, if that was asked for."""
        if not (isinstance(self.request, MergeBranch | FastForward) and self.request.tags):
            return planned
        # A merge by file also keeps the deletion vectors that main has put on other files of a bucket.
        is_state = _becomes(compared, planned.changes) and (planned.file_merge is None or not compared.sides.ours.index)
        tags = tags_for_main(
            self.context, self.request.tag_conflict, self.branch, compared.branch_snapshot, is_state=is_state
        )
        return replace(
            planned,
            properties={**planned.properties, **tags_property(tags)},
            summary={**planned.summary, **tags.summary},
            # On top of a later commit of main, main would not have the state that the tags are on.
            unchanged=None if tags.on_head else planned.unchanged,
        )


@dataclass(frozen=True, slots=True)
class MergePlanner(PublishPlanner):
    """Brings the branch's changes to what main is now."""

    request: MergeBranch

    def check(self) -> None:
        if not self.scope.is_whole:
            check_parts(self.main, self.request)

    def plan(self, compared: Comparison) -> Publication:
        by_file = merges_by_file(compared.schema)
        return self._with_tags(compared, (self._by_file if by_file else self._by_bucket)(compared))

    def _by_file(self, compared: Comparison) -> Publication:
        if not compared.earlier_publishes_known:
            raise ConflictError(
                f"{self.main.name}: cannot determine what main still has of an earlier publish of "
                f"{self.request.branch!r} or of its parent branch. Rows could be doubled or lost, so nothing was "
                "published. Create a new branch from main's head and correct it again",
                code="not-mergeable",
                details={"conflicts": [], "conflict_count": 0, "cause": "unknown"},
            )
        merge = merge_branch_files(
            compared,
            keep_appended=self.request.keep_appended,
            revert_compaction=self.request.revert_compaction,
        )
        more: dict[str, object] = {}
        if merge.kept:
            more["appended_on_main"] = describe_appended(merge.kept, StoredPartitions(compared.schema).bucket_text)
        if merge.reverted_compactions:
            more["compactions_reverted"] = merge.reverted_compactions
        schemas = self._schemas(compared, merge.changes, merge.restored_files)
        return replace(
            self._publication(compared, merge.changes, schemas, more),
            file_merge=merge,
            unchanged=Unchanged(files=merge.relies_on, partitions=merge.replaced),
        )

    def _by_bucket(self, compared: Comparison) -> Publication:
        overlapping = overlapping_buckets(compared.sides, compared.schema)
        changes = changes_of_branch(compared.sides, overlapping)
        unchanged = Unchanged(buckets=frozenset(compared.sides.theirs.buckets))
        if not overlapping:
            planned = self._publication(compared, changes, self._schemas(compared, changes), {})
            return replace(planned, unchanged=unchanged)
        base, theirs, ours, point = self._key_states(compared, overlapping)
        schemas = self._schemas(compared, changes, used=base.schema_ids | theirs.schema_ids)
        known = {s.id: s for s in (*compared.logs.main, *schemas.new)}
        keys = KeyMergeRequest(
            target=self.main,
            schema=schemas.latest or compared.schema,
            base=base.with_schemas(lambda i: known[schemas.ids.get(i, i)]),
            theirs=theirs.with_schemas(lambda i: known[schemas.ids.get(i, i)]),
            ours=ours.with_schemas(lambda i: known.get(i) or self.main.schema(i)),
            limits=point.highest_numbers,
            on_overlap=None if self.request.on_overlap == "fail" else self.request.on_overlap,
            equal_rows_overlap=aggregates(compared.schema),
        )
        planned = self._publication(compared, changes, schemas, {"merged_by_key": keys.summary})
        return replace(planned, key_merge=keys, unchanged=unchanged)

    def _key_states(self, compared: Comparison, buckets: Collection[BucketKey]) -> tuple[BucketFiles, ...]:
        """Return the states of buckets that both sides changed: at the base, on the branch, on main, and at the branch
        point.

        Raises:
            ConflictError: they can't be merged by key.
        """
        why = reason_against(self.main, compared.schema, compared.sides, buckets)
        last = {p.main.id for b in buckets if (p := compared.on_main.of(b.partition)) is not None}
        expired = any(snapshots_between(self.main, i, compared.head.id) is None for i in last)
        if why is None and (
            expired or not compared.earlier_publishes_known or main_changed_since_unmatched(compared, buckets)
        ):
            why = "cannot determine what main still has of an earlier publish of the branch, or of one related to it"
        if why is not None:
            raise not_by_key(self.main.name, buckets, compared.schema, why, self.main.branch_name)
        bases: dict[str, tuple[Snapshot, set[BucketKey]]] = {}
        for bucket in buckets:
            snapshot = compared.base_of.get(bucket, compared.base)
            bases.setdefault(snapshot.identity, (snapshot, set()))[1].add(bucket)
        base = joined_files(read_bucket_files(self.branch, then, own, compared.schema) for then, own in bases.values())
        theirs, ours, point = (
            read_bucket_files(view, then, buckets, compared.schema)
            for view, then in (
                (self.branch, compared.branch_snapshot),
                (self.main, compared.head),
                (self.branch, compared.base),
            )
        )
        return base, theirs, ours, point


@dataclass(frozen=True, slots=True)
class FastForwardPlanner(PublishPlanner):
    """Main becomes the branch: rows and columns."""

    request: FastForward | ReplaceMain
    takes_all: ClassVar[bool] = True

    def plan(self, compared: Comparison) -> Publication:
        changes = self._changes(compared, "a fast-forward")
        planned = self._publication(compared, changes, self._schemas(compared, changes), {})
        return self._with_tags(compared, replace(planned, watermark=compared.branch_snapshot.watermark))

    @property
    def discards_main(self) -> bool:
        return self.request.discard_main

    def _changes(self, compared: Comparison, what: str) -> Sequence[BucketChange]:
        discard = self.discards_main
        return fast_forward_buckets(self.main.name, compared.sides, compared.schema, discard_main=discard, what=what)


def used_schemas(changes: Sequence[BucketChange], own: Collection[FileId] = ()) -> set[int]:
    """Return the schema ids of the branch's files that main gets; ``own``: files of main's."""
    return {e.file.schema_id for c in changes for e in c.add if e.identifier not in own}


def _becomes(compared: Comparison, changes: Sequence[BucketChange]) -> bool:
    """Whether these changes make main's head what the branch is, file by file."""
    left = difference(compared.branch, compared.head, compared.branch_snapshot)
    made = {c.bucket: (_names(c.add), _names(c.delete)) for c in changes}
    return all(
        made.get(b) == (_names(left.added.get(b, {}).values()), _names(left.removed.get(b, {}).values()))
        for b in left.buckets
    )


def _names(entries: Iterable[ManifestEntry]) -> set[str]:
    return {e.file.file_name for e in entries}
