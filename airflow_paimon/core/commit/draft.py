"""What the committer takes and gives: drafts, identities, receipts, and how often it tries."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from airflow_paimon.core.format.manifest import IndexEntry, ManifestEntry
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import BATCH_COMMIT_IDENTIFIER, CommitKind, Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often a commit that lost the race for a snapshot id is planned again, and how long it waits (seconds)."""

    max_attempts: int = 100
    first_wait_s: float = 0.005
    max_wait_s: float = 1.0

    def wait_s(self, attempt: int) -> float:
        """Full jitter: anything up to the doubled wait, so that writers spread out."""
        return random.uniform(0, min(self.max_wait_s, self.first_wait_s * 2 ** min(attempt, 20)))


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitIdentity:
    """Who commits: what a retry looks for (docs/format.md, Schemas and snapshots).

    ``since``: the branch's newest snapshot id when the operation was first tried (0 = none). With it, a commit looks
    for one of the same identity after it before it publishes: another try may be alive.
    ``retry_mark``: a path below the table that another try makes before it commits; where nothing is there, no other
    try has committed, even if the snapshots that could tell are expired.
    """

    user: str = field(default_factory=lambda: str(uuid.uuid4()))
    identifier: int = BATCH_COMMIT_IDENTIFIER
    since: int | None = None
    retry_mark: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What to put on top of a head. ``index_entries`` None = inherit the head's index manifest unchanged.

    ``rewrite_base``: write the base manifests anew, without any DELETE. Needed when ``entries`` adds a file that an
    earlier snapshot deleted: Java reads *all* deletions of a manifest list first and drops every ADD that one names.
    ``follow``: give this draft for a newer head if nothing that it went by has changed; None = plan anew.
    ``prepare``: called once the manifests are written, right before the snapshot is put, for what must be there first
    (a schema version); may be called again. False = what the draft went by has changed: plan anew.
    ``guard_options``: what the caller tells the guard that is concerned; only that guard knows its type.
    """

    kind: CommitKind
    entries: Sequence[ManifestEntry]
    index_entries: Sequence[IndexEntry] | None = None
    schema: TableSchema
    properties: Mapping[str, str] = field(default_factory=dict)
    watermark: int | None = None
    next_row_id: int | None = None
    operation: str | None = None
    rewrite_base: bool = False
    follow: Callable[[Snapshot], Draft | None] | None = None
    prepare: Callable[[], bool] | None = None
    guard_options: object = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What a commit did. ``snapshot`` None = there was nothing to commit; ``replayed`` = it is another try's.

    ``warning``: what it dropped and had to restore, because a post-commit check found that it is needed.
    """

    before: Snapshot | None
    snapshot: Snapshot | None
    attempts: int = 1
    replayed: bool = False
    warning: str | None = None

    @property
    def changed(self) -> bool:
        return self.snapshot is not None


MakeDraft = Callable[[Snapshot | None], Draft | None]
