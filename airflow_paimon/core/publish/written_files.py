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

from airflow_paimon.core.commit.draft import Draft
from airflow_paimon.core.commit.put import execute, put_new
from airflow_paimon.core.errors import FormatError, NotFoundError, PaimonError
from airflow_paimon.core.format.manifest import FileId, FileKind, IndexEntry, ManifestEntry
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.plan import Delete
from airflow_paimon.core.publish.bucket_checks import other_keys
from airflow_paimon.core.publish.bucket_files import BucketFiles, read_bucket_files
from airflow_paimon.core.publish.bucket_merge_plan import BucketChange
from airflow_paimon.core.publish.key_merge import KeyMergeRequest, KeyMergeResult, overlapping_keys
from airflow_paimon.core.publish.newer_head import MergedBuckets
from airflow_paimon.core.publish.publication import PlannedPublication, Publication, draft_of
from airflow_paimon.core.publish.row_functions import RowFunctions
from airflow_paimon.core.publish.streaming_readers import CHANGES
from airflow_paimon.core.row_tracking.row_ids_plan import IdSpace
from airflow_paimon.core.table.data_file_paths import data_file_path
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.paths import INDEX_DIR
from airflow_paimon.core.table.properties import MERGED_KEYS_PROPERTY
from airflow_paimon.core.table.reachability import missing_files, missing_index_files, unreadable_vectors
from airflow_paimon.core.table.table import Table

log = logging.getLogger(__name__)


@dataclass(slots=True)
class WrittenFiles:
    """The files that one call writes. An attempt to commit uses those of an earlier one where they are the same.

    ``rewritten``: the files with other row ids, by the old file and the space of the ids. ``changelogs``: by what is
    replaced. ``merged``: what was merged by key; ``copies``: of files that the target has got since, and compacted.
    """

    rows: RowFunctions
    rewritten: dict[tuple[FileId, IdSpace], ManifestEntry] = field(default_factory=dict)
    changelogs: dict[object, Sequence[ManifestEntry]] = field(default_factory=dict)
    merged: tuple[KeyMergeRequest, KeyMergeResult] | None = None
    copies: dict[FileId, ManifestEntry] = field(default_factory=dict)

    def draft(self, planned: PlannedPublication, properties: Mapping[str, str]) -> Draft:
        """Write what is missing, and return the content of the snapshot."""
        changelog, rewritten = self._changelog(planned), self._rewritten(planned)
        return draft_of(planned, properties, rewritten, changelog)

    def discard(self, table: Table, committed: Draft | None = None) -> None:
        """Delete the files that were written, but for those that were committed."""
        used = set[str]()
        if committed is not None:
            used |= {e.file.file_name for e in (*committed.entries, *(committed.changelog or ()))}
            used |= {i.file_name for i in committed.index_entries or ()}
        self._discard_merged(used)
        written = (*self.rewritten.values(), *(e for group in self.changelogs.values() for e in group))
        delete_unused(table, [e for e in written if e.file.file_name not in used])

    def _rewritten(self, planned: PlannedPublication) -> dict[int, ManifestEntry]:
        """Return the entries to commit in place of those that can't be taken by reference, by their position."""
        publication, found = planned.publication, planned.renumbering
        if found is None or publication.row_ids is None or not found.rewrite:
            return {}
        space = publication.row_ids.space
        own = {e.identifier: e for c in publication.changes for e in c.add}
        wanted = [found.entries[at].identifier for at in found.rewrite]
        missing = [own[i] for i in wanted if (i, space) not in self.rewritten]
        if missing:
            log.info("%s: writing %d files again with other row ids", publication.target.name, len(missing))
            for old, new in zip(missing, self.rows.rewrite(publication.source, missing, space), strict=True):
                self.rewritten[old.identifier, space] = new
        out = {}
        for at in found.rewrite:
            entry = found.entries[at]
            new = self.rewritten[entry.identifier, space]
            out[at] = entry._replace(file=new.file._replace(schema_id=entry.file.schema_id))
        return out

    def _changelog(self, planned: PlannedPublication) -> Sequence[ManifestEntry] | None:
        """Return the changelog of a publish: None if it gets none, empty if no row changes.

        Raises:
            FormatError: a file is missing or corrupt.
        """
        if planned.summary["streaming_readers"]["see"] != CHANGES:
            return None
        publication, (before, after) = planned.publication, _replaced(planned)
        target, schema = publication.target, publication.schema
        key = schema.id, before.content, after.content
        if key not in self.changelogs:
            count = len(publication.changes)
            log.info("%s: comparing the rows of %d buckets, for streaming readers", target.label, count)
            self.changelogs[key] = self.rows.write_changelog(target, schema, before, after)
        return self.changelogs[key]

    def merge_by_key(self, publication: Publication, *, writers_stopped: bool) -> Publication:
        """Return the publication with the buckets that are to be merged by key. Those that were merged on an earlier
        head are used again if they are the same on this one; else their files are deleted.

        Raises:
            ConflictError: keys that both sides changed, and nothing says whose rows are taken.
            UnsafeOperationError: dynamic buckets would get keys, while a writer may be open.
        """
        request = publication.key_merge
        if request is None:
            return publication
        target = request.target
        if self.merged is not None and self.merged[0].content != request.content:
            self._discard_merged()
        if self.merged is None:
            count, megabytes = len(request.buckets), request.read_bytes / 1e6
            log.info("%s: merging %d buckets by key, %.1f MB", target.label, count, megabytes)
            self.merged = request, self.rows.merge_by_key(request)
        merged = self.merged[1].written_with(request.schema)
        if merged.overlapping and request.on_overlap is None:
            raise overlapping_keys(request, merged)
        if merged.index and not writers_stopped:
            indexed = map(StoredPartitions(request.schema).bucket, merged.index)
            raise other_keys(target.label, indexed, request.schema, "the branch")
        changes = {
            b: BucketChange(bucket=b, delete=tuple(request.ours.entries.get(b, ())), add=tuple(entries))
            for b, entries in merged.files.items()
        }
        said = {
            "changed_keys": merged.changed, "overlapping_keys": merged.overlapping, "on_overlap": request.on_overlap
        }  # fmt: skip
        unchanged = publication.unchanged
        if unchanged is not None:
            buckets = MergedBuckets(
                buckets=frozenset(request.buckets),
                changes=changes,
                meets=merged.meets,
                copy=partial(self._copy, target),
            )
            unchanged = replace(unchanged, merged=buckets)
        return replace(
            publication,
            changes=sorted([*publication.changes, *changes.values()], key=lambda c: c.bucket),
            key_merge=None,
            key_merge_result=merged,
            unchanged=unchanged,
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

    def _discard_merged(self, used: Collection[str] = ()) -> None:
        if self.merged is None:
            return
        (request, merged), copies = self.merged, list(self.copies.values())
        self.merged = None
        self.copies.clear()
        unused = [e for e in (*merged.entries, *copies) if e.file.file_name not in used]
        indexes = [f"{INDEX_DIR}/{i.file_name}" for i in merged.index if i.file_name not in used]
        delete_unused(request.target, unused, indexes)


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


def check_files_exist(
    view: Table,
    schema: TableSchema,
    changes: Sequence[BucketChange],
    index: Sequence[IndexEntry],
    checked: set[str],
) -> None:
    """Refuse to publish a missing data or index file, or deletion vectors that can't be read.

    ``checked``: names of files that an earlier attempt found, and that tags have retained since; this attempt adds its
    own.

    Raises:
        FormatError: names the first missing or damaged file.
    """
    adds = [e for c in changes for e in c.add if e.file.file_name not in checked]
    indexes = [i for i in index if i.file_name not in checked]
    lost = missing_files(view, schema, adds) + missing_index_files(view, schema, indexes)
    if lost:
        raise FormatError(
            f"{view.name}: {len(lost)} of {len(adds) + len(indexes)} files to publish are missing, e.g. {lost[0]}: "
            f"another engine expired or cleaned them; nothing was published. Run check_table, then correct again",
            details={"missing": lost[:20]},
        )
    bucket_of, taken = StoredPartitions(schema).bucket, {c.bucket for c in changes}
    vectors = [i for i in indexes if bucket_of(i) in taken]
    for why in unreadable_vectors(view, schema, vectors):
        raise FormatError(
            f"{view.name}: deletion vectors to publish can't be read ({why}); nothing was published. Overwrite their "
            f"partition on the branch"
        )
    checked |= {e.file.file_name for e in adds} | {i.file_name for i in indexes}


def _replaced(planned: PlannedPublication) -> tuple[BucketFiles, BucketFiles]:
    """Return the buckets that a publication changes, before and after it."""
    publication = planned.publication
    schema = publication.schema
    before = read_bucket_files(publication.target, publication.head, {c.bucket for c in publication.changes}, schema)
    live = {e.identifier: e for group in before.entries.values() for e in group}
    for entry in planned.entries:
        if entry.kind == FileKind.ADD:
            live[entry.identifier] = entry
        else:
            live.pop(entry.identifier, None)
    index = before.index if planned.index is None else planned.index
    after = BucketFiles(entries=StoredPartitions(schema).by_bucket(live.values()), index=index)
    new = {s.id: s for s in publication.schemas.new}

    def schema_of(number: int) -> TableSchema:
        return new[number] if number in new else publication.target.schema(number)

    return before.with_schemas(schema_of), after.with_schemas(schema_of)
