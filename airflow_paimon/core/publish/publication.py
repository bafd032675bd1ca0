"""A publish or a rollback on top of one head, as one value: planners make it, checks look at it, and its plan and its
snapshot are derived from it.

It can be carried over to a newer head (``newer_head.py``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_paimon.core.branches.retention_tags import index_files, plan_keep_tags
from airflow_paimon.core.commit.draft import Draft
from airflow_paimon.core.commit.idempotency import name_part
from airflow_paimon.core.errors import first_few
from airflow_paimon.core.format.manifest import FileId, FileKind, IndexEntry, ManifestEntry
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import CommitKind, Operation, Snapshot
from airflow_paimon.core.plan import Action, HeadIs, Plan, PutNew, PutSnapshot, ReplaceBucket, SetTag
from airflow_paimon.core.publish.audit_properties import figures_property
from airflow_paimon.core.publish.bucket_merge_plan import (
    MAX_LISTED,
    BucketChange,
    left_on_their_levels,
    mapped_entries,
    merged_index,
    summarize,
)
from airflow_paimon.core.publish.column_merge_plan import ColumnOrder, ordered
from airflow_paimon.core.publish.file_merge_plan import FileMerge
from airflow_paimon.core.publish.key_merge import KeyMergeRequest, KeyMergeResult, with_merged_index
from airflow_paimon.core.publish.newer_head import Unchanged, unchanged_until
from airflow_paimon.core.publish.streaming_readers import CHANGES, NOTHING, is_missed, streaming_readers
from airflow_paimon.core.requests.requests import Publish
from airflow_paimon.core.row_tracking.row_ids_plan import IdSpace, Renumbering, renumber
from airflow_paimon.core.schema.mapping_plan import SchemaMapping
from airflow_paimon.core.table.consumers import consumer_names
from airflow_paimon.core.table.global_indexes import without_global_indexes
from airflow_paimon.core.table.live_files import BucketKey, index_origin
from airflow_paimon.core.table.manifest_entries import read_index_entries
from airflow_paimon.core.table.partition_scope import WHOLE, PartitionScope
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.paths import UNDO_TAG_PREFIX
from airflow_paimon.core.table.properties import (
    CAME_BACK_PROPERTY,
    ROW_IDS_PROPERTY,
    ROW_VERSIONS_PROPERTY,
)
from airflow_paimon.core.table.table import Table
from airflow_paimon.core.table.visibility import invisible_files


@dataclass(frozen=True, slots=True, kw_only=True)
class RowIds:
    """What becomes of the row ids of a table with row tracking. ``space`` and ``known``: see ``renumber``.

    ``renamed_files``: files of the source that the target has under another name, written again by an earlier publish.
    ``column_order``: with data evolution, what the order of its files needs.
    """

    space: IdSpace
    known: Collection[FileId]
    renamed_files: Mapping[FileId, FileId]
    column_order: ColumnOrder | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """What ``target`` gets on top of ``head``: some buckets become as they are in ``source_snapshot``, a state of
    ``source``; that is the target itself for a rollback.

    ``since``: the two histories are the same up to this snapshot id; retention tags are not needed before it.
    ``schemas``: the mapping of schema ids to the target's, and the versions to add. ``must_be_recorded``: it needs a
    snapshot also if it changes nothing: the target has its columns already, but no snapshot with them; or it takes back
    a publish on which the target stands. ``row_ids``: None if they are the target's own, or it has none.
    ``file_merge``: if the table is merged by file. ``key_merge``: buckets that are still to be merged by key;
    ``key_merge_result``: what was merged so, of which ``changes`` has the files. ``unchanged``: what must not change
    for it to stand on a newer head; None = decide again on each head. ``scope``: the partitions of the source that are
    published.
    """

    target: Table
    source: Table
    head: Snapshot
    source_snapshot: Snapshot
    since: int
    changes: Sequence[BucketChange]
    schemas: SchemaMapping
    must_be_recorded: bool = False
    preconditions: tuple[HeadIs, ...]
    properties: Mapping[str, str] = field(default_factory=dict)
    summary: Mapping[str, Any] = field(default_factory=dict)
    watermark: int | None = None
    row_ids: RowIds | None = None
    file_merge: FileMerge | None = None
    key_merge: KeyMergeRequest | None = None
    key_merge_result: KeyMergeResult | None = None
    unchanged: Unchanged | None = None
    scope: PartitionScope = WHOLE

    @property
    def changes_anything(self) -> bool:
        return bool(self.changes or self.key_merge or self.schemas.new or self.must_be_recorded)

    @property
    def is_rollback(self) -> bool:
        return self.source == self.target

    @property
    def schema(self) -> TableSchema:
        """The target's schema afterwards."""
        return self.target.schema() if self.schemas.latest is None else self.schemas.latest

    @property
    def buckets(self) -> set[BucketKey]:
        """The buckets of which files go, those that are still to be merged by key included."""
        keyed = set[BucketKey]() if self.key_merge is None else self.key_merge.buckets
        return {c.bucket for c in self.changes if c.delete} | keyed

    @property
    def written(self) -> Collection[FileId]:
        """Files that are the target's own: their entries have its schema ids already."""
        if self.file_merge is not None:
            return self.file_merge.restored_files
        return () if self.key_merge_result is None else frozenset(e.identifier for e in self.key_merge_result.entries)

    def index_after(self, now: Sequence[IndexEntry]) -> Sequence[IndexEntry] | None:
        """Return the target's index entries after the publish; None: they stay as they are."""
        merged, bucket_of = self.key_merge_result, StoredPartitions(self.schema).bucket
        if self.file_merge is not None:
            index = self.file_merge.index
        else:
            taken = {c.bucket for c in self.changes}.difference(() if merged is None else merged.files.keys())
            index = merged_index(now, read_index_entries(self.source, self.source_snapshot), taken, bucket_of)
            index = index if merged is None else with_merged_index(index, merged, bucket_of)
        if index is None or self.row_ids is None or not self.row_ids.space.moves(None):
            return index
        own = {i.file_name for i in now}
        return [i for i in index if i.global_index is None or i.file_name in own]  # others name the source's ids

    def on_newer_head(self, newer: Snapshot, schema: TableSchema) -> Publication | None:
        """Return what was planned on the head before as it is on a newer one; None: it has to be planned again."""
        assert self.unchanged is not None
        first_id = None if self.row_ids is None else self.row_ids.space.first_free
        if first_id is not None and (newer.next_row_id or 0) > first_id:
            return None
        unchanged = unchanged_until(self.target, self.head, newer, self.unchanged, schema)
        if unchanged is None:
            return None
        moved = replace(self, head=newer, unchanged=unchanged)
        if unchanged.merged is None or self.key_merge_result is None:
            return moved
        merged = unchanged.merged.changes
        if all(merged.get(c.bucket, c) == c for c in self.changes):
            return moved
        return replace(
            moved,
            changes=[merged.get(c.bucket, c) for c in self.changes],
            key_merge_result=replace(self.key_merge_result, files={b: c.add for b, c in merged.items()}),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPublication:
    """What a publication writes. ``index``: the index entries, None: the head's; ``kept_snapshots``: their retention
    tags must exist while it is committed; ``entries``: of the delta; ``renumbering``: the same with the target's row
    ids.
    """

    publication: Publication
    index: Sequence[IndexEntry] | None
    kept_snapshots: tuple[Snapshot, ...]
    entries: Sequence[ManifestEntry]
    renumbering: Renumbering | None
    plan: Plan
    summary: Mapping[str, Any]


def plan_publication(request: Publish, publication: Publication) -> PlannedPublication:
    """Determine row ids, index entries, retention tags and the plan. Reads, but writes nothing.

    Raises:
        FormatError: see ``renumber``.
    """
    schema, target, head = publication.schema, publication.target, publication.head
    changes = left_on_their_levels(publication.changes, schema)
    publication, merged = replace(publication, changes=changes), publication.key_merge_result
    new = set(publication.written) if merged is not None else set()
    returning = {e.file.file_name for c in changes for e in c.add if e.identifier not in new}
    index = None
    if changes and (head.index_manifest or publication.source_snapshot.index_manifest):
        now = read_index_entries(target, head)
        index = publication.index_after(now)
        own = index_files(() if merged is None else merged.index)
        returning |= index_files(index or ()) - index_files(now) - own
    targets = (publication.source_snapshot,) if publication.is_rollback and returning else ()
    keep, held = plan_keep_tags(target, publication.since, head, returning, *targets)
    entries = mapped_entries(changes, publication.schemas.ids, publication.written)
    renumbering = None
    if (ids := publication.row_ids) is not None:
        renumbering = renumber(target.name, entries, ids.known, ids.space)
        if (order := ids.column_order) is not None:
            schemas = {s.id: s for s in (*target.schemas(), *publication.schemas.new)}
            found = ordered(target.name, entries, renumbering.entries, schemas, order, head.id)
            renumbering = replace(renumbering, entries=found)
            if publication.file_merge is not None and head.index_manifest:
                index = _without_updated_columns(publication, order, entries, index)
    readers = streaming_readers(target, schema, changes, writes=request.changelog == "auto")
    hidden = _not_visible(publication)
    missed = _missed_by(target, readers, is_missed(schema, changes)) if changes else []
    summary = {**publication.summary, **summarize(changes), **hidden, "streaming_readers": readers}
    if renumbering is not None:
        summary |= {"renumbered_files": renumbering.renumbered, "rewritten_files": len(renumbering.rewrite)}
    if publication.key_merge is not None:
        note = "the counts of files and rows leave out these buckets: their keys are compared when it runs"
        summary["merged_by_key"] = {**publication.key_merge.summary, "note": note}
    if warnings := [*publication.summary.get("warnings", ()), *hidden.get("warnings", ()), *missed]:
        summary["warnings"] = warnings
    plan = Plan(
        operation=request.operation,
        table=target.name,
        preconditions=publication.preconditions,
        actions=(*keep, *_actions(request, publication)),
        summary=summary,
    )
    return PlannedPublication(
        publication=publication,
        index=index,
        kept_snapshots=held,
        entries=entries,
        renumbering=renumbering,
        plan=plan,
        summary=summary,
    )


def _actions(request: Publish, publication: Publication) -> Sequence[Action]:
    """Return what a publication writes besides the tags that keep files, in order; nothing if it changes nothing.

    Without an operation id the name of the undo tag is chosen when it is set. Retention tags on the new snapshot itself
    are set after it (``protect_published``) and not listed.
    """
    if not publication.changes_anything:
        return ()
    head, schema, paths = publication.head, publication.schema, publication.target.paths
    source, name_bucket = publication.source_snapshot.id, StoredPartitions(schema).bucket_text
    is_rollback, branch = publication.is_rollback, publication.source.branch_name
    whose = f"back to snapshot {source}" if is_rollback else f"publishes branch {branch}"
    if publication.summary.get("keep_later"):
        whose = f"reverts snapshot {source + 1} only"
    undo = SetTag(
        path=paths.tag(f"{UNDO_TAG_PREFIX}{name_part(request.operation_id) if request.operation_id else '*'}"),
        snapshot_id=head.id,
        retained=request.undo_retention,
        reason=f"undo is rollback_to this tag ({request.undo_retention})",
    )
    schemas = (
        PutNew(path=paths.schema(s.id), data=s.to_bytes(), reason="columns that the branch added")
        for s in publication.schemas.new
    )
    buckets = (
        ReplaceBucket(
            path=name_bucket(c.bucket),
            delete=tuple(sorted(e.file.file_name for e in c.delete)),
            add=tuple(sorted(e.file.file_name for e in c.add)),
            reason=f"{whose}: {len(c.delete)} files out, {len(c.add)} in",
        )
        for c in publication.changes
    )
    return (
        undo,
        *schemas,
        *buckets,
        PutSnapshot(path=paths.snapshot(head.id + 1), schema_id=schema.id, reason=whose),
    )


def _missed_by(target: Table, readers: Mapping[str, Any], is_lost: bool) -> list[str]:
    """Warn if somebody misses what the publish changes. ``is_lost``: whether no later compaction tells it either."""
    if readers["see"] == CHANGES:
        return []
    if names := consumer_names(target):
        return [f"{target.label} has consumers ({first_few(names, MAX_LISTED)}): {readers['note']}"]
    return [readers["note"]] if readers["see"] == NOTHING and is_lost else []


def _without_updated_columns(
    publication: Publication,
    columns: ColumnOrder,
    entries: Sequence[ManifestEntry],
    index: Sequence[IndexEntry] | None,
) -> Sequence[IndexEntry] | None:
    """Leave out what the target's indexes say of columns that are now in files that only came."""
    entered = read_index_entries(publication.target, publication.head) if index is None else index
    bucket_of = StoredPartitions(publication.schema).bucket
    updated = {bucket_of(e).partition for e in entries if e.kind == FileKind.ADD and columns.is_there(e.file)}
    left = without_global_indexes(entered, updated, bucket_of)
    return left if len(left) < len(entered) else index


def _not_visible(publication: Publication) -> dict[str, Any]:
    """Describe the added files that batch reads skip for now; the target then reads as the source does now.

    Rows of level 0 are committed and are published by reference. Tables with deletion vectors or first-row show them
    once they are compacted.
    """
    schema, target, source = publication.schema, publication.target, publication.source
    hidden = [(c.bucket, e) for c in publication.changes for e in invisible_files(c.add, schema)]
    if not hidden:
        return {}
    name = StoredPartitions(schema).bucket_text
    buckets, rows = sorted({name(b) for b, _ in hidden}), sum(e.file.row_count for _, e in hidden)
    return {
        "not_visible_files": len(hidden),
        "not_visible_rows": rows,
        "warnings": [
            f"{rows} rows in {len(hidden)} files of {', '.join(buckets[:MAX_LISTED])} wait for a compaction: batch "
            f"reads of {target.label} show them only after one (CALL sys.compact), as on {source.label} now"
        ],
    }


def draft_of(
    planned: PlannedPublication,
    properties: Mapping[str, str],
    rewritten: Mapping[int, ManifestEntry],
    changelog: Sequence[ManifestEntry] | None,
) -> Draft:
    """Return the content of the snapshot. ``properties``: those common to all publishes of this operation.
    ``rewritten``: the files that were written again for ``renumbering``, by their position.
    """
    publication = planned.publication
    out = {**properties, **publication.properties, **figures_property(publication.changes)}
    next_row_id = max(publication.head.next_row_id or 0, publication.source_snapshot.next_row_id or 0)
    entries, index = list(planned.entries), planned.index
    if planned.renumbering is not None and publication.row_ids is not None:
        entries, space = list(planned.renumbering.entries), publication.row_ids.space
        names = {k.file_name: v.file_name for k, v in publication.row_ids.renamed_files.items()}
        for at, entry in rewritten.items():
            names[entries[at].file.file_name] = entry.file.file_name
            entries[at] = entry
        index = None if index is None else [index_origin(e, names) for e in index]
        next_row_id = space.next_row_id
        out[ROW_IDS_PROPERTY] = space.text
        if space.published:
            out[ROW_VERSIONS_PROPERTY] = space.published_text
    if planned.kept_snapshots:
        out[CAME_BACK_PROPERTY] = "true"
    return Draft(
        kind=CommitKind.OVERWRITE,
        entries=entries,
        changelog=changelog,
        index_entries=index,
        schema=publication.schema,
        properties=out,
        watermark=publication.watermark,
        next_row_id=next_row_id,
        operation=Operation.OVERWRITE,
        brings_back=True,
        restores_own_files=publication.is_rollback,
    )
