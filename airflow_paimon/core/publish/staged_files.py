"""Files that a publish writes besides its snapshot: those whose row ids or versions mean other rows on main; those of
buckets that are merged by key; and its changelog, the net changes for streaming readers of a table with a changelog
producer.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from airflow_paimon.core.commit.committer import Draft, execute, put_new
from airflow_paimon.core.errors import NotFoundError, PaimonError
from airflow_paimon.core.format.manifest import FileId, FileKind, IndexEntry, ManifestEntry
from airflow_paimon.core.plan import Delete
from airflow_paimon.core.publish.bucket_files import BucketFiles
from airflow_paimon.core.publish.bucket_merge_plan import BucketChange, other_keys
from airflow_paimon.core.publish.key_merge import KeyMergeRequest, KeyMergeResult, not_by_key, overlapping_keys
from airflow_paimon.core.publish.publication import PlannedPublication, Publication, draft_of
from airflow_paimon.core.publish.reach import BucketReach, MergedBuckets
from airflow_paimon.core.publish.row_functions import (
    MergeByKey,
    ReplacedBuckets,
    RewriteFiles,
    RowFunctions,
    WriteChangelog,
)
from airflow_paimon.core.publish.streaming_readers import CHANGES
from airflow_paimon.core.row_tracking.row_ids_plan import IdSpace, refuse_stored
from airflow_paimon.core.table.data_file_paths import data_file_path
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.manifest_entries import read_index_entries
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.paths import INDEX_DIR
from airflow_paimon.core.table.properties import MERGED_KEYS_PROPERTY
from airflow_paimon.core.table.table import Table

log = logging.getLogger(__name__)


@dataclass(slots=True)
class RewrittenFiles:
    """The files that this call has written. An attempt to commit uses those of an earlier one if main has given out no
    ids in between.
    """

    rewrite: RewriteFiles | None
    made: dict[tuple[FileId, IdSpace], ManifestEntry] = field(default_factory=dict)

    def entries_of(self, planned: PlannedPublication) -> dict[int, ManifestEntry]:
        """Return the entries to commit in place of those that can't be taken by reference, by their position.

        Raises:
            UnsafeOperationError: there are some, and nothing can write them.
        """
        d, found = planned.publication, planned.renumbering
        if found is None or d.row_ids is None or not found.rewrite:
            return {}
        space = d.row_ids.space
        if self.rewrite is None:
            refuse_stored(d.target.name, found)
            return {}
        own = {e.identifier: e for c in d.changes for e in c.add}
        wanted = [found.entries[at].identifier for at in found.rewrite]
        missing = [own[i] for i in wanted if (i, space) not in self.made]
        if missing:
            log.info("%s: writing %d files again with other row ids", d.target.name, len(missing))
            for old, new in zip(missing, self.rewrite(d.source, missing, space), strict=True):
                self.made[old.identifier, space] = new
        out = {}
        for at in found.rewrite:
            entry = found.entries[at]
            new = self.made[entry.identifier, space]
            out[at] = entry._replace(file=new.file._replace(schema_id=entry.file.schema_id))
        return out


def delete_unused(table: Table, entries: Sequence[ManifestEntry], others: Sequence[str] = ()) -> None:
    """Delete files that no snapshot refers to. A failure leaves orphans, which are harmless. ``others``: paths."""
    if not entries and not others:
        return
    schema = table.schema()
    values = StoredPartitions(schema).values
    paths = [*(data_file_path(schema, values(e.partition), e.bucket, e.file) for e in entries), *others]
    try:
        execute(table, [Delete(path=p, reason="written by a publish that did not use it") for p in paths])
    except PaimonError as error:
        log.info("%s: unused files were left behind (%s)", table.label, error)


@dataclass(slots=True)
class KeyMergeFiles:
    """The files of buckets that this call has merged by key. A publication on a newer head uses them if the buckets are
    the same there; else they are deleted, and the buckets merged again. ``copies``: those of files that the target has
    got since, and compacted.
    """

    merge: MergeByKey | None
    made: tuple[KeyMergeRequest, KeyMergeResult] | None = None
    copies: dict[FileId, ManifestEntry] = field(default_factory=dict)

    def into(self, publication: Publication, *, writers_stopped: bool) -> Publication:
        """Return the publication with the buckets that are to be merged by key.

        Raises:
            ConflictError: keys that both sides changed, and nothing says whose rows are taken; or no rows can be read
                here.
            UnsafeOperationError: dynamic buckets would get keys, while a writer may be open.
        """
        request = publication.key_merge
        if request is None:
            return publication
        if self.merge is None:
            why, target = "rows can't be read here", request.target.branch_name
            raise not_by_key(request.target.name, request.buckets, request.schema, why, target)
        if self.made is not None and self.made[0].content != request.content:
            self.discard()
        if self.made is None:
            megabytes, label = request.read_bytes / 1e6, request.target.label
            log.info("%s: merging %d buckets by key, %.1f MB", label, len(request.buckets), megabytes)
            self.made = request, self.merge(request)
        merged = self.made[1].written_with(request.schema)
        if merged.overlapping and request.on_overlap is None:
            raise overlapping_keys(request, merged)
        if merged.index and not writers_stopped:
            bucket_of = StoredPartitions(request.schema).bucket
            buckets = [bucket_of(i) for i in merged.index]
            raise other_keys(request.target.label, buckets, request.schema, "the branch")
        return self._with_merged(publication, request, merged)

    def _with_merged(self, publication: Publication, request: KeyMergeRequest, merged: KeyMergeResult) -> Publication:
        changes = {
            b: BucketChange(bucket=b, delete=tuple(request.ours.entries.get(b, ())), add=tuple(entries))
            for b, entries in merged.files.items()
        }
        said = {
            "changed_keys": merged.changed, "overlapping_keys": merged.overlapping, "on_overlap": request.on_overlap
        }  # fmt: skip
        reach = publication.reach
        if isinstance(reach, BucketReach):
            buckets = MergedBuckets(
                buckets=frozenset(request.buckets),
                changes=changes,
                meets=merged.meets,
                copy=partial(self._copy, request.target),
            )
            reach = replace(reach, merged=buckets)
        return replace(
            publication,
            changes=sorted([*publication.changes, *changes.values()], key=lambda c: c.bucket),
            key_merge=None,
            key_merge_result=merged,
            reach=reach,
            properties={**publication.properties, MERGED_KEYS_PROPERTY: json.dumps(said)},
            summary={**publication.summary, "merged_by_key": {**request.summary, **said}},
        )

    def _copy(self, target: Table, entry: ManifestEntry) -> ManifestEntry | None:
        """Copy a data file of the target, byte by byte; None: it has expired, or lies outside of the table."""
        known, file = self.copies.get(entry.identifier), entry.file
        if known is not None or file.external_path is not None:
            return known
        name = f"data-{uuid.uuid4()}-0.{file.file_name.partition('.')[2]}"
        copied = entry._replace(file=file._replace(file_name=name, extra_files=()))
        schema = target.schema()
        values = StoredPartitions(schema).values(entry.partition)
        path, new_path = (data_file_path(schema, values, entry.bucket, f) for f in (file, copied.file))
        try:
            put_new(target, new_path, target.store.read(path))
        except NotFoundError:
            return None
        self.copies[entry.identifier] = copied
        return copied

    def discard(self, used: Collection[str] = ()) -> None:
        """Delete the files that were written, but for the used ones."""
        if self.made is None:
            return
        (request, merged), copies = self.made, list(self.copies.values())
        self.made = None
        self.copies.clear()
        unused = [e for e in (*merged.entries, *copies) if e.file.file_name not in used]
        indexes = [f"{INDEX_DIR}/{i.file_name}" for i in merged.index if i.file_name not in used]
        delete_unused(request.target, unused, indexes)


@dataclass(slots=True)
class ChangelogFiles:
    """The changelog files that this call has written. An attempt to commit uses those of an earlier one if the replaced
    files are the same.
    """

    write: WriteChangelog | None
    made: dict[object, Sequence[ManifestEntry]] = field(default_factory=dict)

    def entries_of(self, planned: PlannedPublication) -> Sequence[ManifestEntry] | None:
        """Return the changelog of a publish: None if it gets none, empty if no row changes.

        Raises:
            FormatError: a file is missing or corrupt.
        """
        if self.write is None or planned.summary["streaming_readers"]["see"] != CHANGES:
            return None
        replaced = _replaced(planned)
        key = replaced.schema.id, replaced.before.content, replaced.after.content
        if key not in self.made:
            label, count = replaced.target.label, len(planned.publication.changes)
            log.info("%s: comparing the rows of %d buckets, for streaming readers", label, count)
            self.made[key] = self.write(replaced)
        return self.made[key]


@dataclass(slots=True)
class StagedFiles:
    """All files that a call writes besides its snapshot. ``used``: the names of those that its last draft names."""

    rewritten: RewrittenFiles
    changelog: ChangelogFiles
    keys: KeyMergeFiles
    used: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, rows: RowFunctions, keys: KeyMergeFiles) -> StagedFiles:
        return cls(RewrittenFiles(rows.rewrite), ChangelogFiles(rows.write_changelog), keys)

    def draft(self, planned: PlannedPublication, properties: Mapping[str, str]) -> Draft:
        """Write what is missing, and return the content of the snapshot."""
        changelog, rewritten = self.changelog.entries_of(planned), self.rewritten.entries_of(planned)
        self.used = {e.file.file_name for e in (*rewritten.values(), *(changelog or ()))}
        self.use(planned.publication)
        return draft_of(planned, properties, rewritten, changelog)

    def use(self, d: Publication) -> None:
        """Count the files of a merge by key as used by a draft of this publication."""
        self.used |= set() if d.key_merge_result is None else d.key_merge_result.file_names

    def discard(self, table: Table, used: Collection[str] = ()) -> None:
        """Delete the files that were written, but for the used ones."""
        for written in (self.rewritten.made.values(), *self.changelog.made.values()):
            delete_unused(table, [e for e in written if e.file.file_name not in used])
        self.keys.discard(used)


def _replaced(planned: PlannedPublication) -> ReplacedBuckets:
    d = planned.publication
    schema = d.schema
    stored = StoredPartitions(schema)
    taken = {c.bucket for c in d.changes}
    before = live_entries(d.target, d.head, stored.those({b.partition for b in taken}))
    before = {k: e for k, e in before.items() if stored.bucket(e) in taken}
    after = dict(before)
    for entry in planned.entries:
        if entry.kind == FileKind.ADD:
            after[entry.identifier] = entry
        else:
            after.pop(entry.identifier, None)
    new = {s.id: s for s in d.schemas.new}
    ids = {e.file.schema_id for e in (*before.values(), *after.values())}
    schemas = {i: new[i] if i in new else d.target.schema(i) for i in ids}
    index = read_index_entries(d.target, d.head)

    def files(entries: Mapping[FileId, ManifestEntry], index: Sequence[IndexEntry]) -> BucketFiles:
        return BucketFiles(entries=stored.by_bucket(entries.values()), index=index, schemas=schemas)

    return ReplacedBuckets(
        target=d.target,
        schema=schema,
        before=files(before, index),
        after=files(after, index if planned.index is None else planned.index),
    )
