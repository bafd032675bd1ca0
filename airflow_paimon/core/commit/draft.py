"""Input and output of the committer: messages of write tasks, drafts, options and receipts."""

from __future__ import annotations

import getpass
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from airflow_paimon.core.commit.conditions import Condition, HeadState, SchemaIsKept
from airflow_paimon.core.format.manifest import DataFile, FileKind, IndexEntry, ManifestEntry, ManifestFile
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import (
    BATCH_COMMIT_IDENTIFIER,
    CommitKind,
    Operation,
    Snapshot,
    SnapshotRef,
)
from airflow_paimon.core.table.live_files import BucketKey


def new_commit_user() -> str:
    """Return a commit user of its own for one write: who runs this process, and a UUID.

    Written as Paimon does with its option ``commit.user-prefix``: ``alice_0e3c...``.
    """
    try:
        login = re.sub(r"[^A-Za-z0-9.@-]+", "-", getpass.getuser()).strip("-")[:64]
    except (OSError, KeyError, ImportError):  # no such user on this machine, as in some containers
        login = ""
    return f"{login}_{uuid.uuid4()}" if login else str(uuid.uuid4())


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitIdentity:
    """Commit user and identifier, by which a retry recognises its commit (docs/contributing/format.md, Schemas and
    snapshots).

    ``since``: the branch's newest snapshot when the operation was first tried. If given, a commit first searches the
    snapshots that came later for its own identity: another try may be running. ``retry_mark``: a path below the table
    that every other try creates before it commits. If it doesn't exist, no other try has committed, even if snapshots
    have expired. ``began``: that snapshot where nothing is searched; None: the newest one that the commit saw first.
    """

    user: str = field(default_factory=new_commit_user)
    identifier: int = BATCH_COMMIT_IDENTIFIER
    since: SnapshotRef | None = None
    began: SnapshotRef | None = None
    retry_mark: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitOptions:
    """What a caller may add to a commit. ``properties``: of the snapshot, beside the draft's own; ``guard_options``:
    for the guard, which alone knows their type. ``written_with``: the schema that its files were written
    with, which the branch must still have; None: it has no new data files, or the draft looks for itself.
    ``writers_stopped``: no writer of another engine was open when the operation began, so files of any bucket may be
    replaced, unless one has committed since. ``max_attempts``: how often a commit that loses the race for a snapshot id
    is tried.
    """

    identity: CommitIdentity = field(default_factory=CommitIdentity)
    properties: Mapping[str, str] = field(default_factory=dict)
    guard_options: object = None
    written_with: TableSchema | None = None
    writers_stopped: bool = False
    max_attempts: int = 100

    @property
    def conditions(self) -> Sequence[Condition]:
        return () if self.written_with is None else (SchemaIsKept(schema=self.written_with),)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitMessage:
    """The output of one write task: the files of one (partition, bucket).

    ``replaced``: the bucket's live files that the task has read and whose rows are in ``new_files``. In a dynamic
    bucket, ``hashes`` are the new keys' (as ``write_hash_index`` writes them), which the driver puts into ``index``,
    the bucket's new hash index. ``changelog``: files with changes for streaming readers; empty: none of their rows
    changes; None: nobody has looked.
    """

    partition: bytes
    bucket: int
    total_buckets: int
    new_files: tuple[DataFile, ...]
    replaced: tuple[DataFile, ...] = ()
    hashes: bytes = b""
    index: IndexEntry | None = None
    changelog: tuple[DataFile, ...] | None = None

    @property
    def key(self) -> BucketKey:
        return BucketKey(self.partition, self.bucket)

    def entries(self) -> list[ManifestEntry]:
        return self._added(self.new_files)

    def changelog_entries(self) -> list[ManifestEntry]:
        return self._added(self.changelog or ())

    def replaced_entries(self) -> list[ManifestEntry]:
        return [e.deleted() for e in self._added(self.replaced)]

    def _added(self, files: Sequence[DataFile]) -> list[ManifestEntry]:
        return [ManifestEntry(FileKind.ADD.value, self.partition, self.bucket, self.total_buckets, f) for f in files]


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """The content of a commit on top of a head. ``index_entries`` None = inherit the head's index manifest unchanged.

    ``only_new``: each file that it names, index files too, was written for it or is the head's: none is brought back.
    ``brings_back``: ``entries`` may add a file that an earlier snapshot deleted. The base manifests that name it are
    written again without it: Java reads *all* deletions of a manifest list first, and drops every ADD that one names.
    ``restores_own_files``: what it adds, this branch has held before, as a rollback does.
    ``base``: the base manifest list instead of the head's, and ``base_entries`` those of a manifest after it; the
    caller knows that they stand for the same live files.
    ``changelog``: additions of files with changes, for streaming readers; None = they are told nothing of this commit.
    ``on_newer_head``: return this draft for a newer head if none of its inputs has changed; None = plan again.
    ``prepare``: called after the manifests are written, right before the snapshot is put, to write what it depends on
    (a schema version); may be called again. False = an input of the draft has changed: plan again. ``conditions``: what
    must hold of the head.
    """

    kind: CommitKind
    entries: Sequence[ManifestEntry]
    changelog: Sequence[ManifestEntry] | None = None
    index_entries: Sequence[IndexEntry] | None = None
    schema: TableSchema
    properties: Mapping[str, str] = field(default_factory=dict)
    watermark: int | None = None
    next_row_id: int | None = None
    operation: Operation | None = None
    only_new: bool = False
    brings_back: bool = False
    restores_own_files: bool = False
    base: Sequence[ManifestFile] | None = None
    base_entries: Sequence[ManifestEntry] = ()
    on_newer_head: Callable[[Snapshot], Draft | None] | None = None
    prepare: Callable[[], bool] | None = None
    conditions: Sequence[Condition] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The result of a commit. ``snapshot`` None = nothing to commit; ``replayed`` = it was made by another try.

    ``warning``: the partitions that were dropped and restored, because a post-commit check found that they are needed.
    """

    before: Snapshot | None
    snapshot: Snapshot | None
    attempts: int = 1
    replayed: bool = False
    warning: str | None = None

    @property
    def changed(self) -> bool:
        return self.snapshot is not None


MakeDraft = Callable[[HeadState], Draft | None]
