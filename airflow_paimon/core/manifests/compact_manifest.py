"""compact_manifest: the manifests of a branch's newest snapshot become few, sorted by partition, without deletions.

One COMPACT snapshot of the same live files. Older snapshots, tags and branches keep the manifests that they name. The
new manifests are written once, before the commit: a commit that loses a race adds to them what changed meanwhile, so a
writer that never pauses can't stop it.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from airflow_paimon.core.commit.committer import COMMITTED, commit_at
from airflow_paimon.core.commit.conditions import HeadState
from airflow_paimon.core.commit.draft import CommitOptions, Draft
from airflow_paimon.core.commit.idempotency import REFUSALS, Attempt, attempt_of
from airflow_paimon.core.commit.manifests import add_manifests
from airflow_paimon.core.commit.metadata_files import write
from airflow_paimon.core.commit.put import delete_files, require_committable
from airflow_paimon.core.errors import FormatError, PaimonError, StorageError
from airflow_paimon.core.format.manifest import ManifestEntry, ManifestFile
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import CommitKind, Snapshot
from airflow_paimon.core.manifests.compact_manifest_plan import choose_manifests
from airflow_paimon.core.plan import HeadIs, Plan
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.requests.requests import CompactManifest
from airflow_paimon.core.table.features import check_manifest_format
from airflow_paimon.core.table.history import changed_files
from airflow_paimon.core.table.live_files import net_change, never_added
from airflow_paimon.core.table.manifest_entries import read_entries
from airflow_paimon.core.table.manifest_lists import all_manifests
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.paths import manifest_path
from airflow_paimon.core.table.properties import DETAILS_PROPERTY, OPERATION_PROPERTY
from airflow_paimon.core.table.table import Table

_STEP = "compact_manifest"
SORT_OPTION = "manifest-sort.enabled"


def compact_manifest(context: Context, request: CompactManifest) -> OperationResult:
    """Merge the manifests of a branch; no commit where that changes nothing.

    Raises:
        FormatError: a manifest is missing or corrupt. ConflictError: attempts used up. Nothing was changed.
    """
    view = context.table.branch(request.branch).require()
    check_manifest_format(TableOptions(view.schema().options), table=view.label)
    if request.dry_run:
        return _dry_run(context, request, view)
    require_committable(view)
    with attempt_of(context, request.branch) as tried:
        committed = tried.committed(_STEP)
        if committed is not None:
            return _result(context, request, committed.id - 1, committed, committed.values(DETAILS_PROPERTY, dict))
        return _ManifestCompaction(context, request, view, tried).execute()


def _dry_run(context: Context, request: CompactManifest, view: Table) -> OperationResult:
    head = view.latest_snapshot()
    found = None if head is None else _compacted(view, head, sort=request.manifest_sort_enabled)
    details = _unchanged(view, head) if found is None else found.details
    fence = () if head is None else (HeadIs.of(request.branch, head, view.schema().id),)
    plan = Plan(operation=request.operation, table=view.name, preconditions=fence, summary=details)
    number = None if head is None else head.id
    return context.result(
        plan, branch=request.branch, changed=found is not None, before=number, after=number, details=details
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compaction:
    """The manifests ``old`` of a snapshot say the same as ``kept``, which are some of them, and ``added``.

    ``files``: the added ones by their names, to be written. ``schema``: the branch's when they were planned.
    """

    schema: TableSchema
    old: Sequence[ManifestFile]
    kept: Sequence[ManifestFile]
    added: Sequence[ManifestFile]
    files: dict[str, bytes]
    details: dict[str, Any]


def _compacted(view: Table, head: Snapshot, *, sort: bool) -> _Compaction | None:
    """Read, merge and encode; None: there is nothing to do. Raises as ``compact_manifest`` does."""
    schema = view.schema()
    options, stored = TableOptions(schema.options), StoredPartitions(schema)
    sort = sort or options.flag(SORT_OPTION, False)
    old = all_manifests(view, head)
    rewritten = choose_manifests(old, options.manifest_target_size, schema.partition_types if sort else None)
    if not rewritten:
        return None
    parts = dict(zip(rewritten, read_entries(view, rewritten), strict=True))
    where = f"{view.label}: snapshot {head.id}"
    change = net_change((e for part in parts.values() for e in part), where)
    if deleted := change.deleted.values():  # of files that manifests to keep have added
        may_hold = stored.manifests_with({e.partition for e in deleted}, {e.bucket for e in deleted})
        more = [m for m in old if m not in parts and may_hold(m)]
        parts |= zip(more, read_entries(view, more), strict=True)
        change = net_change((e for m in old if m in parts for e in parts[m]), where)
    if change.deleted:
        raise never_added(where, next(iter(change.deleted.values())).file.file_name)
    files: dict[str, bytes] = {}
    added = add_manifests(files, f"manifest-{uuid.uuid4()}", list(change.added.values()), schema, options)
    if len(added) >= len(parts) and not sort and not any(m.num_deleted_files for m in parts):
        return None
    kept = [m for m in old if m not in parts]
    details = _details(old, [*kept, *added], len(parts))
    return _Compaction(schema=schema, old=old, kept=kept, added=added, files=files, details=details)


def _details(old: Sequence[ManifestFile], new: Sequence[ManifestFile], rewritten: int) -> dict[str, Any]:
    before, after = (
        {
            "manifests": len(rows),
            "bytes": sum(m.file_size for m in rows),
            "entries": sum(m.num_added_files + m.num_deleted_files for m in rows),
            "delete_entries": sum(m.num_deleted_files for m in rows),
        }
        for rows in (old, new)
    )
    return {"before": before, "after": after, "rewritten": rewritten}


def _unchanged(view: Table, head: Snapshot | None) -> dict[str, Any]:
    rows = [] if head is None else all_manifests(view, head)
    return _details(rows, rows, 0)


@dataclass(slots=True)
class _ManifestCompaction:
    """One try. ``written``: what it has planned on the newest head that it planned on, and written."""

    context: Context
    request: CompactManifest
    view: Table
    tried: Attempt
    written: _Compaction | None = None

    def execute(self) -> OperationResult:
        try:
            receipt = commit_at(self.view, self._draft, CommitOptions(identity=self.tried.identity(_STEP)))
        except (*REFUSALS, StorageError) as error:
            if COMMITTED not in error.details:
                self._discard()
            raise
        if receipt.replayed:
            self._discard()
        before, committed = receipt.before, receipt.snapshot
        details = _unchanged(self.view, before) if committed is None else committed.values(DETAILS_PROPERTY, dict)
        return _result(self.context, self.request, before.id if before is not None else None, committed, details)

    def _draft(self, at: HeadState) -> Draft | None:
        """Plan on a head and write the new manifests. What an earlier plan has written stays, for the orphan cleaning:
        it can't be told here whether a snapshot that another engine has replaced was built upon.
        """
        if at.head is None:
            self.view.require()  # its branch may be gone
            return None
        found = _compacted(self.view, at.head, sort=self.request.manifest_sort_enabled)
        if found is None:
            return None
        self.written = found
        write(self.view, found.files, [])
        return self._commit_of(found, [*found.kept, *found.added])

    def _commit_of(
        self, found: _Compaction, base: Sequence[ManifestFile], entries: Sequence[ManifestEntry] = ()
    ) -> Draft:
        return Draft(
            kind=CommitKind.COMPACT,
            only_new=True,
            entries=(),
            schema=found.schema,
            properties={OPERATION_PROPERTY: _STEP, DETAILS_PROPERTY: json.dumps(found.details)},
            base=base,
            base_entries=entries,
            on_newer_head=lambda head: self._on_newer_head(found, head),
        )

    def _on_newer_head(self, found: _Compaction, head: Snapshot) -> Draft | None:
        """Put what has changed meanwhile behind the new manifests. None: one that was to stay is no longer the head's,
        so that an expiry may delete it, or the table was altered or made anew, without the new ones: plan again.
        """
        if self.view.schema() != found.schema:
            return None
        now, new = all_manifests(self.view, head), [*found.kept, *found.added]
        if now[: len(found.old)] == list(found.old):
            return self._commit_of(found, [*new, *now[len(found.old) :]])
        if not {m.file_name for m in found.kept} <= {m.file_name for m in now}:
            return None
        try:
            added, removed = changed_files(self.view, found.old, now)
        except FormatError:  # an expiry has deleted some of the old ones
            return None
        changes = [*(e.deleted() for e in removed.values()), *(e.added() for e in added.values())]
        return self._commit_of(found, new, changes)

    def _discard(self) -> None:
        """Delete what was written, unless the branch has come to name it. What can't be deleted is left as orphans."""
        if self.written is None:
            return
        try:
            head = self.view.latest_snapshot()
            named = {m.file_name for m in all_manifests(self.view, head)} if head is not None else set()
        except PaimonError:
            return
        if not named & self.written.files.keys():
            delete_files(self.view, [manifest_path(name) for name in self.written.files])


def _result(
    context: Context, request: CompactManifest, before: int | None, committed: Snapshot | None, details: dict[str, Any]
) -> OperationResult:
    after = before if committed is None else committed.id
    changed = committed is not None
    return context.result(None, branch=request.branch, changed=changed, before=before, after=after, details=details)
