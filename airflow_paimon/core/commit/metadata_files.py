"""The files of a commit, written under unique names: nobody sees them before a snapshot names them.

Most of them don't depend on the head, so they are written once, and again only for another draft.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from airflow_paimon import __version__
from airflow_paimon.core.commit.cache import CommitCache
from airflow_paimon.core.commit.draft import CommitOptions, Draft
from airflow_paimon.core.commit.manifests import add_file, add_manifests, base_rows
from airflow_paimon.core.errors import OutcomeUnknownError, PaimonError, StorageError
from airflow_paimon.core.format.manifest import FileKind, ManifestEntry
from airflow_paimon.core.format.manifest_io import write_index_manifest, write_manifest_list
from airflow_paimon.core.format.snapshot import WRITER, Snapshot
from airflow_paimon.core.row_tracking.row_ids_plan import stamped
from airflow_paimon.core.store.base import run_parallel
from airflow_paimon.core.table.features import check_manifest_format
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.older_files import older_files_property
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.paths import manifest_path
from airflow_paimon.core.table.table import Table

log = logging.getLogger(__name__)

WRITER_VERSION = f"{WRITER}{__version__}"
_DETERMINING = ("entries", "changelog", "index_entries", "schema")
"""What of a draft determines the files that say what it changes."""
_Named = tuple[str, int]
"""Name and size of a manifest list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeFiles:
    """The files that say what a draft changes, the same ones on any head. ``files``: their content by name.

    ``entries``: the draft's; with row tracking with the ids that they have on one head, after which ``next_row_id`` is
    the next one.
    """

    stamp: str
    draft: Draft
    entries: Sequence[ManifestEntry]
    next_row_id: int | None
    files: Mapping[str, bytes]
    delta: _Named
    changelog: tuple[str | None, int | None]
    index: str | None

    def matches(self, draft: Draft) -> bool:
        """Whether these files can be committed for a draft, which may be that of a later attempt."""
        pairs = ((getattr(self.draft, n), getattr(draft, n)) for n in _DETERMINING)
        return self.next_row_id is None and all(mine is other or mine == other for mine, other in pairs)


def make_change_files(table: Table, head: Snapshot | None, draft: Draft) -> ChangeFiles:
    """Make the files that say what a draft changes; nothing is written yet."""
    stamp = str(uuid.uuid4())
    files: dict[str, bytes] = {}
    options = TableOptions(draft.schema.options)
    check_manifest_format(options, table=table.label)
    entries, next_row_id = draft.entries, None
    if options.row_tracking:
        together = options.flag("row-tracking.partition-group-on-commit", True)
        number = (head.id if head else 0) + 1
        entries, next_row_id = stamped(entries, number, _next_row_id(head, draft), by_partition=together)
    rows = add_manifests(files, f"manifest-{stamp}", entries, draft.schema, options)
    delta = add_file(files, f"manifest-list-{stamp}-1", write_manifest_list(rows))
    changelog: tuple[str | None, int | None] = None, None
    if draft.changelog is not None:
        told = add_manifests(files, f"manifest-{stamp}-changelog", draft.changelog, draft.schema, options)
        changelog = add_file(files, f"manifest-list-{stamp}-2", write_manifest_list(told))
    index = None
    if draft.index_entries:
        index = f"index-manifest-{stamp}-0"
        files[index] = write_index_manifest(list(draft.index_entries))
    return ChangeFiles(
        stamp=stamp,
        draft=draft,
        entries=entries,
        next_row_id=next_row_id,
        files=files,
        delta=delta,
        changelog=changelog,
        index=index,
    )


def _next_row_id(head: Snapshot | None, draft: Draft) -> int:
    return max(draft.next_row_id or 0, (head.next_row_id if head else None) or 0)


def new_snapshot(
    cache: CommitCache, head: Snapshot | None, draft: Draft, options: CommitOptions, changes: ChangeFiles, *, stamp: str
) -> tuple[Snapshot, dict[str, bytes]]:
    """Make a snapshot on top of ``head``, and the files that it needs for this head alone, their content by name;
    nothing is written yet. ``stamp``: of the names of its files.
    """
    files: dict[str, bytes] = {}
    reads: list[Callable[[], object]] = [partial(cache.before, head)] if draft.only_new else []
    if draft.base is None:
        reads.append(partial(cache.manifests, head))
    run_parallel(cache.table.store, reads)  # ``cache`` keeps it
    base = base_rows(cache, head, files, stamp, draft, TableOptions(draft.schema.options))
    base_list = add_file(files, f"manifest-list-{stamp}-0", write_manifest_list(base))
    return _snapshot(cache, head, draft, options, changes, base_list), files


def _snapshot(
    cache: CommitCache,
    head: Snapshot | None,
    draft: Draft,
    options: CommitOptions,
    changes: ChangeFiles,
    base_list: _Named,
) -> Snapshot:
    table = cache.table
    inherited = head.index_manifest if head else None
    delta_count = sum(e.file.row_count if e.kind == FileKind.ADD else -e.file.row_count for e in draft.entries)
    before = cache.before(head) if draft.only_new else None
    older = older_files_property(head, before, table.branch_name, base_list[0], only_new=draft.only_new)
    same_schema = head is not None and head.schema_id == draft.schema.id
    return Snapshot(
        uuid=str(uuid.uuid4()),
        id=(head.id if head else 0) + 1,
        schema_id=draft.schema.id,
        base_manifest_list=base_list[0],
        base_manifest_list_size=base_list[1],
        delta_manifest_list=changes.delta[0],
        delta_manifest_list_size=changes.delta[1],
        changelog_manifest_list=changes.changelog[0],
        changelog_manifest_list_size=changes.changelog[1],
        changelog_record_count=None if draft.changelog is None else sum(e.file.row_count for e in draft.changelog),
        index_manifest=inherited if draft.index_entries is None else changes.index,
        commit_user=options.identity.user,
        writer_version=WRITER_VERSION,
        commit_identifier=options.identity.identifier,
        commit_kind=draft.kind,
        time_millis=max(int(time.time() * 1000), head.time_millis if head else 0),
        total_record_count=_total_before(table, head) + delta_count,
        delta_record_count=delta_count,
        watermark=max((w for w in (draft.watermark, head.watermark if head else None) if w is not None), default=None),
        statistics=head.statistics if head is not None and same_schema else None,
        properties={**options.properties, **draft.properties, **older},
        next_row_id=_next_row_id(head, draft) if changes.next_row_id is None else changes.next_row_id,
        operation=draft.operation,
    )


def write(table: Table, files: Mapping[str, bytes], beside: Sequence[Callable[[], Any]]) -> list[Any]:
    """Write files that no snapshot names yet, and make other calls, at the same time on a remote storage; return what
    those return.

    Raises:
        PaimonError: of one of the calls, or a file could not be written. Nothing was published.
    """

    def put() -> None:
        try:
            table.store.create_many({manifest_path(name): data for name, data in files.items()})
        except OutcomeUnknownError as error:  # of an unreferenced manifest: the snapshot was not put yet
            raise StorageError(
                f"{table.label}: a manifest could not be written, nothing was published ({error.message})"
            ) from error

    return run_parallel(table.store, [put, *beside])[1:]


def discard(table: Table, names: Iterable[str]) -> None:
    """Delete files of an attempt that certainly lost. A failure is harmless and only logged."""
    for name in names:
        try:
            table.store.delete(manifest_path(name))
        except PaimonError as error:
            log.info("%s: could not delete the unused manifest %s (%s)", table.label, name, error)


def _total_before(table: Table, head: Snapshot | None) -> int:
    if head is None:
        return 0
    if head.total_record_count is not None:
        return head.total_record_count
    return sum(e.file.row_count for e in live_entries(table, head).values())
