"""The one committer: the only module that changes a table. Everything is put-if-absent or compare-and-swap on heads.

A commit writes manifests under unique names, publishes ``snapshot-(head + 1)`` with put-if-absent, reads it back and
then refreshes the LATEST hint. A loser re-plans on the new head. After an unknown outcome nothing is cleaned up.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from airflow_paimon import __version__
from airflow_paimon.core.commit.conditions import HeadState
from airflow_paimon.core.commit.draft import CommitIdentity as CommitIdentity
from airflow_paimon.core.commit.draft import CommitOptions as CommitOptions
from airflow_paimon.core.commit.draft import Draft as Draft
from airflow_paimon.core.commit.draft import MakeDraft as MakeDraft
from airflow_paimon.core.commit.draft import Receipt as Receipt
from airflow_paimon.core.commit.draft import RetryPolicy as RetryPolicy
from airflow_paimon.core.commit.guards import LostInputs, PostCommitCheck, check_draft
from airflow_paimon.core.commit.landed import check_not_built_upon, is_ours, taken_back, unknown_outcome, verify_at_end
from airflow_paimon.core.commit.landed import find_landed as find_landed
from airflow_paimon.core.commit.lost_races import count_lost_race
from airflow_paimon.core.commit.manifests import add_file, add_manifests, base_rows, changelog_list
from airflow_paimon.core.commit.put import execute as execute
from airflow_paimon.core.commit.put import put_new as put_new
from airflow_paimon.core.commit.put import require_committable as require_committable
from airflow_paimon.core.errors import (
    AlreadyExistsError,
    ConflictError,
    NotFoundError,
    OutcomeUnknownError,
    PaimonError,
    StorageError,
    UnsafeOperationError,
)
from airflow_paimon.core.format.hash_index import INDEX_TYPE
from airflow_paimon.core.format.manifest import FileKind, IndexEntry
from airflow_paimon.core.format.manifest_io import write_index_manifest, write_manifest_list
from airflow_paimon.core.format.snapshot import CommitKind, Operation, Snapshot
from airflow_paimon.core.row_tracking.row_ids_plan import stamped
from airflow_paimon.core.table.features import check_known, check_manifest_format
from airflow_paimon.core.table.lineage import Lineage, is_gone, is_standing, require_ready
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partitions import Selection, StoredPartitions
from airflow_paimon.core.table.paths import MAIN, manifest_path
from airflow_paimon.core.table.scan import live_entries, read_delta_lists, read_index, selected_entries
from airflow_paimon.core.table.table import Table

log = logging.getLogger(__name__)

LANDED = "landed"
"""Of an error's details: the snapshot that was published, and was found wrong only then."""
WRITER = "airflow-paimon-"
WRITER_VERSION = f"{WRITER}{__version__}"


def commit(
    table: Table, make_draft: Callable[[Snapshot | None], Draft | None], options: CommitOptions | None = None
) -> Receipt:
    """Commit what ``make_draft`` makes of a head (None: no snapshot yet); see ``commit_at``."""
    return commit_at(table, lambda at: make_draft(at.head), options)


def commit_at(table: Table, make_draft: MakeDraft, options: CommitOptions | None = None) -> Receipt:
    """Plan on the newest head and publish one snapshot; plan again when another writer was faster.

    Of every attempt the draft's conditions must hold, and it must pass the guards (``core/commit/guards.py``). Dropped
    partitions that a post-commit check still needs are restored: an error if the commit only dropped partitions,
    otherwise a warning in the receipt. ``make_draft`` may raise ``ConflictError``; None = nothing to do.

    Raises:
        ConflictError: a condition doesn't hold, or attempts used up. OutcomeUnknownError: it may have landed.
        UnsafeOperationError: a guard refuses it, everything that it dropped was restored, or a post-commit check
            failed. All leave the table readable.
    """
    require_committable(table)
    options = options or CommitOptions()
    identity, retry = options.identity, options.retry
    draft: Draft | None = None
    looked = identity.since
    for attempt in range(1, retry.max_attempts + 1):
        head = table.latest_snapshot()
        if looked is not None and head is not None:
            landed = find_landed(table, identity, looked, head)
            if landed is not None:
                return Receipt(before=_before(table, landed), snapshot=landed, attempts=attempt, replayed=True)
            looked = head.id
        at = HeadState(table, head)
        draft = _followed(draft, head) or make_draft(at)
        if draft is None:
            return Receipt(before=head, snapshot=None, attempts=attempt)
        check_known([head], table=table.label)
        for condition in draft.conditions:
            condition.check(at)
        checks = check_draft(table, head, replace(draft, guard_options=options.guard_options))
        staged = _stage(table, head, draft, options)
        if _publish(table, head, draft, staged):
            warning = _run_checks(table, head, draft, staged.snapshot, checks)
            verify_at_end(table, staged.snapshot)
            return Receipt(before=head, snapshot=staged.snapshot, attempts=attempt, warning=warning)
        count_lost_race()
        time.sleep(retry.wait_s(attempt))
    raise ConflictError(
        f"{table.label}: {retry.max_attempts} attempts to publish lost to other commits; nothing was published, "
        f"run it again when fewer writers commit at once"
    )


def _before(table: Table, landed: Snapshot) -> Snapshot | None:
    try:
        return table.snapshot(landed.id - 1) if landed.id > 1 else None
    except NotFoundError:
        return None


def _followed(draft: Draft | None, head: Snapshot | None) -> Draft | None:
    return None if draft is None or draft.follow is None or head is None else draft.follow(head)


def _run_checks(
    table: Table, before: Snapshot | None, draft: Draft, landed: Snapshot, checks: Sequence[PostCommitCheck]
) -> str | None:
    """Restore dropped partitions that are still needed. The commit has landed: the caller must not delete its files."""
    warnings = []
    for check in checks:
        try:
            lost = check.run()
            problem = None if lost is None else _restore(table, before, landed, lost)
        except PaimonError as error:
            problem = check.not_made(error.message)
        if problem is None:
            continue
        if all(e.kind != FileKind.ADD for e in draft.entries):
            problem.details[LANDED] = landed.id
            raise problem
        log.warning("%s", problem.message)
        warnings.append(problem.message)
    return "; ".join(warnings) or None


def _restore(table: Table, before: Snapshot | None, landed: Snapshot, lost: LostInputs) -> UnsafeOperationError:
    chosen = StoredPartitions(table.schema()).where(lost.partitions.__contains__)
    try:
        options = CommitOptions(guard_options=lost.guard_options)
        done = restore_partitions(table, before, landed, chosen, options, beside_appends=lost.beside_appends)
    except PaimonError as error:
        return lost.not_restored(before.id if before else None, error.message)
    return lost.restored(done.snapshot.id if done.snapshot else None)


def restore_partitions(
    table: Table,
    before: Snapshot | None,
    dropped: Snapshot,
    chosen: Selection,
    options: CommitOptions | None = None,
    *,
    beside_appends: bool,
) -> Receipt:
    """Add again, by reference, files that the snapshot ``dropped`` took from ``before``, of the chosen partitions.

    A partition that is not empty any more is skipped, unless it was only
    appended to and ``beside_appends`` says that its old rows belong beside the new ones.
    """
    return commit(table, partial(_restoring, table, before, dropped, chosen, beside_appends), options)


def _restoring(
    table: Table,
    before: Snapshot | None,
    dropped: Snapshot,
    chosen: Selection,
    beside_appends: bool,
    head: Snapshot | None,
) -> Draft | None:
    """Plan ``restore_partitions`` on top of ``head``.

    Raises:
        ConflictError: what was appended to a partition has deletion vectors or hash indexes where its old rows have.
    """
    if head is None:
        return None
    schema = table.schema()
    form = StoredPartitions(schema).canonical
    live = live_entries(table, head, chosen)
    held = live_entries(table, before, chosen).values()
    doubtful = {form(e.partition) for e in held} & {form(e.partition) for e in live.values()}
    kept = _not_only_appended(table, dropped, head, doubtful, form) if beside_appends else doubtful
    missing = [e for e in held if e.identifier not in live and form(e.partition) not in kept]
    if not missing:
        return None
    index = None
    if before is not None and before.index_manifest:
        now = read_index(table, head)
        names = {i.file_name for i in now}
        wanted = {form(e.partition) for e in missing}
        back = [i for i in read_index(table, before) if form(i.partition) in wanted and i.file_name not in names]
        _refuse_second_index(table, now, back, form)
        index = [*now, *back]
    return Draft(
        kind=CommitKind.OVERWRITE,
        entries=missing,
        index_entries=index,
        schema=schema,
        operation=Operation.OVERWRITE,
        rewrite_base=True,
    )


def _refuse_second_index(
    table: Table, now: Sequence[IndexEntry], back: Sequence[IndexEntry], form: Callable[[bytes], bytes]
) -> None:
    """A bucket has one file of a type. Of a partition's hash indexes, two buckets could claim the same key."""

    def place(entry: IndexEntry) -> tuple[bytes, str, int | None]:
        return form(entry.partition), entry.index_type, None if entry.index_type == INDEX_TYPE else entry.bucket

    twice = {place(i) for i in now} & {place(i) for i in back}
    if twice:
        what = ", ".join(sorted({kind for _, kind, _ in twice}))
        raise ConflictError(
            f"{table.label}: {len({p for p, _, _ in twice})} of the partitions to restore got an index ({what}) "
            f"meanwhile, beside which their old one can't stand"
        )


def _not_only_appended(
    table: Table, dropped: Snapshot, head: Snapshot, partitions: set[bytes], form: Callable[[bytes], bytes]
) -> set[bytes]:
    """The non-empty partitions whose files were not only appended, or whose history has expired."""
    if not partitions:
        return set()
    try:
        since = table.snapshots(list(range(dropped.id + 1, head.id + 1)))
    except NotFoundError:
        return partitions
    deltas = read_delta_lists(table, [s for s in since if s.commit_kind == CommitKind.OVERWRITE])
    written = selected_entries(table, deltas, None)
    return partitions & {form(e.partition) for e in written if e.kind == FileKind.ADD}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Staged:
    snapshot: Snapshot
    files: Mapping[str, bytes]


def _stage(table: Table, head: Snapshot | None, draft: Draft, given: CommitOptions) -> _Staged:
    """Write the manifests of a draft under unique names: invisible until the snapshot is published."""
    stamp = str(uuid.uuid4())
    files: dict[str, bytes] = {}
    options = TableOptions(draft.schema.options)
    check_manifest_format(options, table=table.label)
    next_row_id = _highest(draft.next_row_id, head.next_row_id if head else None, 0)
    entries = draft.entries
    if options.row_tracking:
        together = options.flag("row-tracking.partition-group-on-commit", True)
        number = (head.id if head else 0) + 1
        entries, next_row_id = stamped(entries, number, next_row_id or 0, by_partition=together)
    delta_rows = add_manifests(files, f"manifest-{stamp}", entries, draft.schema, options)
    base = base_rows(table, head, files, stamp, draft, options)
    base_list = add_file(files, f"manifest-list-{stamp}-0", write_manifest_list(base))
    delta_list = add_file(files, f"manifest-list-{stamp}-1", write_manifest_list(delta_rows))
    changelog = changelog_list(files, stamp, draft, options)
    index = head.index_manifest if head else None
    if draft.index_entries is not None:
        index = None
        if draft.index_entries:
            index = f"index-manifest-{stamp}-0"
            files[index] = write_index_manifest(list(draft.index_entries))
    delta_count = sum(e.file.row_count if e.kind == FileKind.ADD else -e.file.row_count for e in draft.entries)
    same_schema = head is not None and head.schema_id == draft.schema.id
    snapshot = Snapshot(
        uuid=str(uuid.uuid4()),
        id=(head.id if head else 0) + 1,
        schema_id=draft.schema.id,
        base_manifest_list=base_list[0],
        base_manifest_list_size=base_list[1],
        delta_manifest_list=delta_list[0],
        delta_manifest_list_size=delta_list[1],
        changelog_manifest_list=changelog[0],
        changelog_manifest_list_size=changelog[1],
        changelog_record_count=None if draft.changelog is None else sum(e.file.row_count for e in draft.changelog),
        index_manifest=index,
        commit_user=given.identity.user,
        writer_version=WRITER_VERSION,
        commit_identifier=given.identity.identifier,
        commit_kind=draft.kind,
        time_millis=max(int(time.time() * 1000), head.time_millis if head else 0),
        total_record_count=_total_before(table, head) + delta_count,
        delta_record_count=delta_count,
        watermark=_highest(draft.watermark, head.watermark if head else None),
        statistics=head.statistics if head is not None and same_schema else None,
        properties={**given.properties, **draft.properties},
        next_row_id=next_row_id,
        operation=draft.operation,
    )
    staged = _Staged(snapshot=snapshot, files=files)
    _write(table, staged)
    return staged


def _write(table: Table, staged: _Staged) -> None:
    try:
        for name, data in staged.files.items():
            table.store.create(manifest_path(name), data)
    except StorageError:
        _discard(table, staged)
        raise
    except OutcomeUnknownError as error:  # of an unreferenced manifest: the snapshot was not put yet
        _discard(table, staged)
        raise StorageError(
            f"{table.label}: a manifest could not be written, nothing was published ({error.message})"
        ) from error


def _total_before(table: Table, head: Snapshot | None) -> int:
    if head is None:
        return 0
    if head.total_record_count is not None:
        return head.total_record_count
    return sum(e.file.row_count for e in live_entries(table, head).values())


def _highest(*values: int | None) -> int | None:
    known = [v for v in values if v is not None]
    return max(known) if known else None


def _prepared(table: Table, draft: Draft, staged: _Staged) -> bool:
    try:
        return draft.prepare is None or draft.prepare()
    except PaimonError:
        _discard(table, staged)  # the snapshot was not put yet
        raise


def _publish(table: Table, head: Snapshot | None, draft: Draft, staged: _Staged) -> bool:
    """Put the snapshot file if absent, unless the head is gone. False = it certainly did not land.

    If the id is free but the head is gone, the branch was deleted (and perhaps recreated), or
    rolled back by another engine. The snapshot would then bring the old rows back.
    """
    branch = _ready_branch(table, staged)
    if not _is_still_there(table, head, draft) or not _prepared(table, draft, staged):
        _discard(table, staged)
        return False
    path = table.paths.snapshot(staged.snapshot.id)
    try:
        table.store.create(path, staged.snapshot.to_bytes())
    except StorageError:
        _discard(table, staged)
        raise
    except AlreadyExistsError:
        landed = _read_back(table, staged, branch, certain=True)
        if not landed:
            _discard(table, staged)
    except OutcomeUnknownError:
        landed = _read_back(table, staged, branch, certain=False)
        if not landed:  # its manifests stay: a commit on top of ours, made before it was replaced, refers to them
            check_not_built_upon(table, draft, staged.snapshot)
    else:
        landed = _read_back(table, staged, branch, certain=False)
        if not landed:
            raise unknown_outcome(table, staged.snapshot, "another engine wrote over it right after it was published")
    if landed and not taken_back(table, staged.snapshot):
        _refresh_hint(table, staged.snapshot.id)
        return True
    return False


def _ready_branch(table: Table, staged: _Staged) -> Lineage | None:
    """Refuse a branch that is being created, renamed or deleted, as late as possible before the put."""
    try:
        return require_ready(table)
    except ConflictError:
        _discard(table, staged)
        raise


def _is_still_there(table: Table, head: Snapshot | None, draft: Draft) -> bool:
    if head is None:
        return table.store.exists(table.paths.schema(draft.schema.id))
    now = table.find_snapshot(head.id)
    return now is not None and now.identity == head.identity


def _read_back(table: Table, staged: _Staged, branch: Lineage | None, *, certain: bool) -> bool:
    """Read back the snapshot of this id. ``certain``: the storage refused our put, so an absent file means it lost.

    The branch is checked first: an operation that deletes or renames it later finds the snapshot.
    """
    snapshot = staged.snapshot
    try:
        standing = is_standing(table, branch)
        landed = is_ours(table, snapshot)
        if landed and not standing:
            raise _branch_taken_away(table, staged, branch)
        return landed
    except NotFoundError:
        if certain:
            return False
        raise unknown_outcome(table, snapshot, "it is not there when it is read back") from None
    except StorageError as error:
        raise unknown_outcome(table, snapshot, f"it could not be read back ({error})") from error


def _branch_taken_away(table: Table, staged: _Staged, branch: Lineage | None) -> PaimonError:
    """Return the error for a snapshot that was put while its branch was renamed or deleted.

    Once the branch is deleted, the snapshot belongs to no branch, and would bring its rows into the next branch of
    that name.
    """
    snapshot, data = staged.snapshot, staged.snapshot.to_bytes()
    path, following = table.paths.snapshot(snapshot.id), table.paths.snapshot(snapshot.id + 1)
    if not is_gone(table, branch) or table.store.exists(following):
        return unknown_outcome(table, snapshot, "its branch is being renamed or deleted, or was recreated")
    table.store.delete(path)
    if table.store.exists(following):  # a writer to the recreated branch has committed on top of it
        with suppress(AlreadyExistsError):
            table.store.create(path, data)
        return unknown_outcome(table, snapshot, "its branch was recreated, and another commit there is based on it")
    _discard(table, staged)
    return ConflictError(f"{table.label}: the branch was renamed or deleted during the commit; nothing was written")


def _refresh_hint(table: Table, snapshot_id: int) -> None:
    try:
        table.store.replace(table.paths.latest_hint, str(snapshot_id).encode())
        if table.branch_name != MAIN and not table.exists():  # deleted meanwhile, and this would be its only file
            table.store.delete(table.paths.latest_hint)
    except (StorageError, OutcomeUnknownError) as error:
        log.warning("%s: LATEST hint not refreshed (%s); readers list the folder instead", table.label, error)


def _discard(table: Table, staged: _Staged) -> None:
    """Delete the manifests of an attempt that certainly lost. A failure is harmless and only logged."""
    for name in staged.files:
        try:
            table.store.delete(manifest_path(name))
        except PaimonError as error:
            log.info("%s: could not delete the unused manifest %s (%s)", table.label, name, error)
