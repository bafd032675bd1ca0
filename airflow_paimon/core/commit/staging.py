"""Files written by another engine: into a staging branch, from which one commit of this package takes them over.

An engine's own commit has no operation id, is not put-if-absent on object stores, and may expire files that other
branches share. So the engine commits to a private branch without automatic actions; then the committer publishes those
files, by reference, on the target branch.
"""

from __future__ import annotations

import hashlib
import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from airflow_paimon.core.branches.branch_plan import StoredBranch, plan_delete_branch
from airflow_paimon.core.commit.committer import commit_at
from airflow_paimon.core.commit.conditions import BucketsAreClosed, HeadState
from airflow_paimon.core.commit.draft import CommitIdentity, CommitOptions, Draft, Receipt
from airflow_paimon.core.commit.put import execute
from airflow_paimon.core.errors import (
    ConflictError,
    InvalidInputError,
    PaimonError,
    UnsafeOperationError,
)
from airflow_paimon.core.format.manifest import IndexEntry, ManifestEntry
from airflow_paimon.core.format.schema import TableSchema, parse_schema
from airflow_paimon.core.format.snapshot import CommitKind, Operation, Snapshot
from airflow_paimon.core.plan import Action, HeadIs, Plan, PutNew, Replace
from airflow_paimon.core.publish.bucket_merge_plan import merged_index
from airflow_paimon.core.row_tracking.row_ids_plan import IdSpace, Renumbering, id_space, refuse_stored, renumber
from airflow_paimon.core.store.base import read_if_exists
from airflow_paimon.core.store.unpublished import Unpublished
from airflow_paimon.core.table.branch_record import BranchRecord, branch_record_path
from airflow_paimon.core.table.history import difference
from airflow_paimon.core.table.manifest_entries import read_index_entries
from airflow_paimon.core.table.options import PROTECTIVE_OPTIONS, TableOptions
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.paths import (
    BRANCH_DIR,
    MANIFEST_DIR,
    PRIVATE_DIR,
    SNAPSHOT_PREFIX,
    STAGING_BRANCH_PREFIX,
    STATISTICS_DIR,
    BranchPaths,
    numbered,
)
from airflow_paimon.core.table.table import Table

log = logging.getLogger(__name__)

# Options that make a commit do more (callbacks, metadata of other formats, expiry, tags, changelogs, marks of complete
# partitions), and those that make a read of the branch include another one.
_ACT_BY_THEMSELVES = (
    "changelog-producer", "changelog.num-retained", "commit.callback", "consumer", "metadata.iceberg",
    "partition.end-input-to-done", "partition.expiration", "scan.", "tag.",
)  # fmt: skip


_METADATA = (
    "snapshot", "schema", "tag", "consumer", "changelog", STATISTICS_DIR, MANIFEST_DIR, BRANCH_DIR, PRIVATE_DIR,
)  # fmt: skip
"""Folders of a table in which only metadata lies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Staging:
    """``view`` is the staging branch, or an unpublished view of the branch itself; its files are taken over to
    ``onto``, on top of ``head``, from which it starts.
    """

    view: Table
    onto: Table
    head: Snapshot
    schema: TableSchema


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """Files that a take-over removed from the branch and added to it, as ADD entries."""

    receipt: Receipt
    removed: Sequence[ManifestEntry]
    added: Sequence[ManifestEntry]


def staging_schema(schema: TableSchema) -> TableSchema:
    """Return the schema of a staging branch: the same columns under the same id, without automatic actions.

    Where readers see only compacted files (deletion vectors, first-row) the writer has to compact.
    """
    options = {k: v for k, v in schema.options.items() if not k.startswith(_ACT_BY_THEMSELVES)}
    options.update(PROTECTIVE_OPTIONS)
    known = TableOptions(schema.options)
    compacts = bool(schema.primary_keys) and (known.deletion_vectors or known.merge_engine == "first-row")
    options["write-only"] = "false" if compacts else "true"
    if compacts:
        options["lookup-wait"] = "true"
    return replace(schema, options=options)


def plan_staging(staging: Staging, schemas: Mapping[int, bytes], head: bytes, now_iso: str) -> list[Action]:
    """Plan the staging branch. ``schemas`` and ``head`` are the files of the target branch, byte for byte.

    The latest of ``schemas`` is already changed as the staging branch needs it.
    """
    name, paths = staging.view.branch_name, staging.view.paths
    record = BranchRecord(
        branch=name,
        created_at=now_iso,
        from_branch=staging.onto.branch_name,
        owner="airflow-paimon",
        reason="staging of a running operation; not needed any more once that has ended",
    )
    actions: list[Action] = [
        Replace(path=branch_record_path(name), data=record.to_bytes(), reason="records what the branch is")
    ]
    for schema_id, data in sorted(schemas.items()):
        actions.append(PutNew(path=paths.schema(schema_id), data=data, reason=f"schema {schema_id}"))
    reason = f"snapshot {staging.head.id} of {staging.onto.branch_name}, byte for byte"
    actions.append(PutNew(path=paths.snapshot(staging.head.id), data=head, reason=reason))
    hint = str(staging.head.id).encode()
    actions.append(Replace(path=paths.latest_hint, data=hint, reason="hint for readers"))
    return actions


def open_staging(onto: Table, head: Snapshot, schema: TableSchema, operation_id: str | None, now_iso: str) -> Staging:
    """Create a staging branch for an operation; one left by an earlier try is deleted first.

    Raises:
        ConflictError: ``schema``, which the rows conform to, is no longer the branch's latest.
    """
    prefix = STAGING_BRANCH_PREFIX
    if operation_id is not None:
        prefix += hashlib.sha256(f"{operation_id}\0{onto.branch_name}".encode()).hexdigest()[:16] + "-"
        for name in onto.branch_names():
            if name.startswith(prefix):
                discard_staging(onto.branch(name))
    view = onto.branch(prefix + uuid.uuid4().hex[:12])
    ids = onto.schema_ids()
    schemas = dict(zip(ids, onto.store.read_many([onto.paths.schema(i) for i in ids]), strict=True))
    if ids[-1] != schema.id:
        raise ConflictError(f"{onto.label} was altered while its rows were computed; run it again")
    latest = parse_schema(schemas[ids[-1]], f"{onto.label}: schema-{ids[-1]}")
    schemas[ids[-1]] = staging_schema(latest).to_bytes()
    staging = Staging(view=view, onto=onto, head=head, schema=latest)
    execute(onto, plan_staging(staging, schemas, onto.store.read(onto.paths.snapshot(head.id)), now_iso))
    return staging


def unpublished(branch: Table) -> Table:
    """Return a view of a branch whose commits only this process sees, until ``take_over`` makes one commit of them."""
    return replace(branch, store=Unpublished(branch.store, _METADATA))


def unpublished_snapshots(view: Table) -> list[Snapshot]:
    """Return the snapshots that were committed to an ``unpublished`` view, ascending."""
    if not isinstance(view.store, Unpublished):
        raise InvalidInputError(f"{view.label} is not an unpublished view")
    return [view.snapshot(number) for number in numbered(view.store.held(view.paths.snapshot_dir), SNAPSHOT_PREFIX)]


def discard_staging(view: Table) -> None:
    """Delete a staging branch. Data files stay; those not taken over become orphans.

    A failure is harmless: check_table lists the leftovers.
    """
    try:
        execute(view, plan_staging_deletion(view).actions)
    except PaimonError as error:  # hides no failure of the operation
        log.warning("%s: could not delete the staging branch %s (%s)", view.name, view.branch_name, error)


def take_over(
    staging: Staging,
    *,
    identity: CommitIdentity,
    properties: Callable[[Sequence[ManifestEntry], Sequence[ManifestEntry]], Mapping[str, str]],
    rewrite: Callable[[Table, Sequence[ManifestEntry], IdSpace], Sequence[ManifestEntry]] | None = None,
) -> Taken:
    """Move the staged files to the target branch, as one OVERWRITE snapshot.

    ``properties`` is called with the removed and added files.
    ``rewrite`` writes files again whose rows store versions of the staging branch; without it they are refused.

    Raises:
        ConflictError: the branch was written or altered meanwhile, or another try of the operation took the staging
            branch away; nothing was published.
        UnsafeOperationError: with row tracking, staged files store ids or versions that other rows or commits have. Or
            a running job may have a bucket open whose files are replaced.
    """
    onto, head, schema = staging.onto, staging.head, staging.schema
    removed, added, index = _merged(staging)
    fresh, next_row_id = _numbered(staging, added, rewrite)
    why = "the branch was written or altered while its rows were corrected; nothing was published. Run it again"
    unmoved = HeadIs.of(onto.branch_name, head, schema.id, why)
    draft = Draft(
        kind=CommitKind.OVERWRITE,
        entries=[*(e.deleted() for e in removed), *fresh],
        index_entries=index,
        schema=schema,
        properties=properties(removed, fresh),
        next_row_id=next_row_id,
        operation=Operation.OVERWRITE,
        conditions=(unmoved, BucketsAreClosed(replaced=removed)),
    )

    # statements that only delete rows by deletion vectors change no file
    moved = (
        isinstance(staging.view.store, Unpublished) and index is not None and index != read_index_entries(onto, head)
    )

    def make(at: HeadState) -> Draft | None:
        if removed or fresh or moved:
            return draft
        unmoved.check(at)  # rows that came meanwhile might have been changed as well
        return None

    receipt = commit_at(onto, make, CommitOptions(identity=identity, written_with=schema))
    return Taken(receipt=receipt, removed=removed, added=fresh)


def _numbered(
    staging: Staging,
    added: Sequence[ManifestEntry],
    rewrite: Callable[[Table, Sequence[ManifestEntry], IdSpace], Sequence[ManifestEntry]] | None,
) -> tuple[Sequence[ManifestEntry], int | None]:
    """Give the staged files the row ids that they have on the target branch; with them, the next id there."""
    if not TableOptions(staging.schema.options).row_tracking:
        return added, None
    ours, staged = staging.head.next_row_id or 0, staging.view.latest_snapshot()
    theirs = (staged.next_row_id if staged else None) or 0  # the staging branch continues the row ids of the head
    space = id_space(staging.onto.name, shared=ours, target=ours, source=theirs, base=staging.head.id)
    found = renumber(staging.onto.name, added, (), space)
    refuse_stored(staging.onto.name, found)
    fresh: Sequence[ManifestEntry] = found.entries
    if rewrite is None:
        _check_versions(staging, found)
    elif found.rewrite:
        again = iter(rewrite(staging.view, [fresh[at] for at in sorted(found.rewrite)], space))
        fresh = [next(again) if at in found.rewrite else entry for at, entry in enumerate(fresh)]
    return fresh, space.next_row_id


def _check_versions(staging: Staging, found: Renumbering) -> None:
    """Refuse versions that the target's commit can't give by metadata: of snapshots that the target doesn't have."""
    taken = sorted(found.entries[at].file.file_name for at in found.rewrite)
    if taken:
        raise UnsafeOperationError(
            f"{staging.onto.label}: {len(taken)} staged files, e.g. {taken[0]}, store versions (_SEQUENCE_NUMBER) of "
            f"more than one commit on {staging.view.branch_name}, or have no statistics of them; nothing was "
            f"published. Run it again, or with engine=embedded",
            details={"file_count": len(taken)},
        )


def _merged(staging: Staging) -> tuple[list[ManifestEntry], list[ManifestEntry], list[IndexEntry] | None]:
    """Return the files that go and come, and the index entries after that, None: as they are."""
    onto, head, staged = staging.onto, staging.head, staging.view.latest_snapshot()
    if staged is None:
        raise ConflictError(
            f"{staging.view.label} was deleted by another attempt of this operation; nothing was published. Run it "
            "again"
        )
    diff = difference(staging.view, head, staged)
    removed, added = ([e for b in sorted(side) for e in side[b].values()] for side in (diff.removed, diff.added))
    index = None
    if head.index_manifest or staged.index_manifest:
        index = read_index_entries(staging.view, staged)
        if not isinstance(staging.view.store, Unpublished):  # what the head has beside is not an engine's to take away
            bucket_of = StoredPartitions(staging.schema).bucket
            index = merged_index(read_index_entries(onto, head), index, diff.buckets, bucket_of)
    return removed, added, index


def plan_staging_deletion(view: Table) -> Plan:
    """Plan the deletion of a staging branch, whose name is used only once."""
    name = view.branch_name
    files = view.store.walk(BranchPaths(name).root.rstrip("/"))
    record, stored = BranchRecord(branch=name, created_at=""), read_if_exists(view.store, branch_record_path(name))
    branch = StoredBranch(record=record, record_bytes=stored, files=dict.fromkeys(files))
    return plan_delete_branch("stage", view.name, branch, {}).full_plan()
