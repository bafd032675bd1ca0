"""How healthy a table is: a score from 0 to 100 with its reasons, by figures that were read of it. Pure.

Each reason takes off ``most * (1 - limit / value)`` points: none at its limit, half of its most at twice the limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_paimon.core.chain.compaction_plan import LONGEST_CHAIN
from airflow_paimon.core.commit.manifest_merge_plan import is_small
from airflow_paimon.core.format.manifest import IndexEntry, ManifestFile
from airflow_paimon.core.health.files_plan import (
    DeletionFigures,
    FileFigures,
    FileGroup,
    FileRules,
    count_deletions,
    count_files,
)
from airflow_paimon.core.table.options import TableOptions

COMPACT, COMPACT_CHAIN = "compact", "compact_chain_table"
EXPIRE_SNAPSHOTS, EXPIRE_TAGS, EXPIRE_BRANCHES = "expire_snapshots", "expire_tags", "expire_branches"
REMOVE_ORPHANS, CHECK_CHAIN = "remove_orphan_files", "check_chain_table"
COMPACT_MANIFEST = "compact_manifest"

MIN_FILES = 5
"""From so many small files of a bucket on ``compact`` writes them together by default."""
DELETED_PERCENT = 10
OLD_STATE_DAYS = 90
ORPHAN_PERCENT = 5
_DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why a table is not healthy: ``value`` is over ``limit``, both in ``unit``.

    ``points``: what it takes off the score. ``operation``: the job that mends it, on ``branch``; None: no job does.
    ``cost_bytes``: how much that reads, and writes again, at most; 0 for metadata.
    """

    id: str
    text: str
    value: float

    limit: float
    unit: str
    points: int
    operation: str | None = None
    branch: str = "main"
    cost_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainedState:
    """What keeps the files of a state as old as ``since_ms`` (epoch milliseconds): ``kind`` snapshot, tag or branch."""

    kind: str
    name: str
    branch: str
    since_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionFigures:
    """What holds old states of the table, over all branches.

    ``keep_tags``: of the tags, those of publishes, which an expiry ends when they have done their work. ``changelogs``:
    long-lived ones.
    ``automatic_tags``: whether main's options ask for some (``trigger_tag_automatic_creation``).
    ``partitions_expire``: whether main's options say that partitions do (``expire_partitions``).
    ``due_*``: what the table's options and the retentions of tags and branches let expire now. ``blocked_snapshots``:
    those that would be due if ``blocked_by``, a stream's consumer, didn't need them. ``trash``: snapshots and tags that
    have expired and whose files wait for the end of the grace time. ``replaced_bytes``: data files of main's oldest
    snapshot that its newest doesn't have; older snapshots hold at least these. ``oldest``: what holds the oldest state,
    ``unlimited``: the same among what no retention ends.
    """

    snapshots: int = 0
    tags: int = 0
    keep_tags: int = 0
    branches: int = 0
    changelogs: int = 0
    consumers: int = 0
    trash: int = 0
    due_snapshots: int = 0
    due_tags: int = 0
    automatic_tags: bool = False
    partitions_expire: bool = False
    due_branches: int = 0
    blocked_snapshots: int = 0
    blocked_by: str | None = None
    replaced_bytes: int = 0
    oldest: RetainedState | None = None
    unlimited: RetainedState | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestFigures:
    """The manifests of the newest snapshot. ``small``: those that a commit may still merge with others."""

    count: int = 0
    bytes: int = 0
    small: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainFigures:
    """A chain table. ``longest``: deltas after a group's newest full partition; ``errors``: of ``check_chain_table``.

    ``stale_bytes`` and ``pending_bytes``: of the stale partitions, and of the deltas of chains that are too long.
    """

    stale: int = 0
    stale_bytes: int = 0
    longest: int = 0
    pending: int = 0
    pending_bytes: int = 0
    errors: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageFigures:
    """By a listing of the folder: all ``bytes``, and those that nothing refers to for longer than a day."""

    bytes: int
    orphan_files: int
    orphan_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TableHealth:
    """How a table fares at the moment. ``reasons``: those that cost the most points first; no reason is 100.

    ``chain``: of chain tables. ``storage``: only where it was asked for.
    """

    table: str
    score: int
    reasons: tuple[Reason, ...]
    snapshot: int | None
    committed_ms: int | None
    files: FileFigures
    deletions: DeletionFigures
    retained: RetentionFigures
    manifests: ManifestFigures
    chain: ChainFigures | None = None
    storage: StorageFigures | None = None

    @property
    def cost_bytes(self) -> int:
        """What all that the reasons ask for costs at most."""
        return sum(r.cost_bytes for r in self.reasons)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What was read of a table: values, no store. ``manifests``: of main's newest snapshot, base and delta.
    ``unreadable_files``: its live files whose schema main doesn't have.
    """

    table: str
    now_ms: int
    snapshot: int | None
    committed_ms: int | None
    rules: FileRules
    options: TableOptions
    groups: Sequence[FileGroup]
    unreadable_files: int = 0
    index: Sequence[IndexEntry]
    manifests: Sequence[ManifestFile]
    retained: RetentionFigures
    chain: ChainFigures | None = None
    storage: StorageFigures | None = None


def plan_health(observed: Observed) -> TableHealth:
    """Judge a table by what was read of it."""
    files, deletions = count_files(observed.groups, observed.rules), count_deletions(observed.groups, observed.index)
    manifests = ManifestFigures(
        count=len(observed.manifests),
        bytes=sum(m.file_size for m in observed.manifests),
        small=sum(is_small(m, observed.options.manifest_target_size) for m in observed.manifests),
    )
    found = [
        *_file_reasons(files, deletions, observed.rules, observed.unreadable_files),
        *_retention_reasons(observed, files),
        *_storage_reasons(observed, manifests),
        *_chain_reasons(observed.chain),
    ]
    reasons = sorted((r for r in found if r.points > 0), key=lambda r: (-r.points, r.id))
    return TableHealth(
        table=observed.table,
        score=max(0, 100 - sum(r.points for r in reasons)),
        reasons=tuple(reasons),
        snapshot=observed.snapshot,
        committed_ms=observed.committed_ms,
        files=files,
        deletions=deletions,
        retained=observed.retained,
        manifests=manifests,
        chain=observed.chain,
        storage=observed.storage,
    )


def points_of(value: float, limit: float, most: int) -> int:
    """Return the points that a value takes off: 0 up to its limit, nearly ``most`` far beyond it; at least 1 above."""
    return 0 if value <= limit else max(1, round(most * (1 - limit / value)))


def _reason(id_: str, text: str, scored: tuple[float, float, str, int], **more: Any) -> Reason:
    """``scored``: a value, its limit, their unit, and the points that a value far above the limit takes off."""
    value, limit, unit, most = scored
    return Reason(id=id_, text=text, value=value, limit=limit, unit=unit, points=points_of(value, limit, most), **more)


def _file_reasons(
    files: FileFigures, deletions: DeletionFigures, rules: FileRules, unreadable: int
) -> Iterator[Reason]:
    if unreadable:
        text = f"{unreadable:,} files name a schema that main doesn't have, so no engine can read it: see check_table"
        yield Reason(id="missing-schema", text=text, value=unreadable, limit=0, unit="files", points=100)
    usual = (rules.min_files - 1) * files.crowded_buckets
    yield _reason(
        "small-files",
        f"{files.crowded_files:,} small files in {files.crowded_buckets:,} partitions or buckets, where up to "
        f"{rules.min_files - 1} each are left alone",
        (files.crowded_files, usual, "files", 40),
        operation=COMPACT,
        branch=files.crowded_branch,
        cost_bytes=files.crowded_bytes,
    )
    yield _reason(
        "sorted-runs",
        f"{files.deep_buckets:,} buckets have more than {rules.most_runs} sorted runs, one of them "
        f"{files.most_runs:,}: each read merges them",
        (files.most_runs, rules.most_runs, "runs", 40),
        operation=COMPACT,
        branch=files.deep_branch,
        cost_bytes=files.deep_bytes,
    )
    hidden = _percent(files.hidden_rows, files.rows)
    yield _reason(
        "hidden-rows",
        f"{files.hidden_rows:,} rows are committed, and batch readers don't see them before a compaction",
        (hidden, 1, "% of rows", 20),
    )
    yield _reason(
        "deleted-rows",
        f"{deletions.rows:,} deleted rows are still in {deletions.files:,} data files",
        (_percent(deletions.rows, files.rows), DELETED_PERCENT, "% of rows", 20),
        operation=COMPACT,
        cost_bytes=deletions.bytes,
    )


def _retention_reasons(observed: Observed, files: FileFigures) -> Iterator[Reason]:
    held = observed.retained
    yield _reason(
        "snapshots-due",
        f"{held.due_snapshots:,} of {held.snapshots:,} snapshots are older than the table keeps them",
        (held.snapshots, held.snapshots - held.due_snapshots, "snapshots", 15),
        operation=EXPIRE_SNAPSHOTS,
    )
    yield _reason(
        "tags-due",
        f"{held.due_tags:,} tags are past their retention",
        (held.due_tags, 0, "tags", 5),
        operation=EXPIRE_TAGS,
    )
    yield _reason(
        "branches-due",
        f"{held.due_branches:,} branches are past their retention",
        (held.due_branches, 0, "branches", 5),
        operation=EXPIRE_BRANCHES,
    )
    yield _reason(
        "consumer-behind",
        f"consumer {held.blocked_by} keeps {held.blocked_snapshots:,} snapshots that would expire; stop its stream for "
        f"good and delete it, or set the table option consumer.expiration-time",
        (held.blocked_snapshots, observed.options.number("snapshot.num-retained.min", 10), "snapshots", 10),
    )
    yield _reason(
        "replaced-files",
        "older snapshots hold more data files that the newest one doesn't have than it has itself",
        (held.replaced_bytes, max(files.bytes, observed.rules.target), "bytes", 10),
        operation=EXPIRE_SNAPSHOTS if held.due_snapshots else None,
    )
    if held.unlimited is not None:
        state = held.unlimited
        days = max(0, observed.now_ms - state.since_ms) // _DAY_MS
        where = f" of branch {state.branch}" if state.kind == "tag" and state.branch != "main" else ""
        yield _reason(
            "old-state",
            f"{state.kind} {state.name}{where} keeps the files of a state that is {days:,} days old, and has no "
            f"retention",
            (days, OLD_STATE_DAYS, "days", 5),
            operation=f"delete_{state.kind}",
            branch=state.branch,
        )


def _storage_reasons(observed: Observed, manifests: ManifestFigures) -> Iterator[Reason]:
    merged_from = observed.options.manifest_merge_min_count
    yield _reason(
        "manifests",
        f"{manifests.small:,} small manifests, which each plan of a read reads; commits merge them from "
        f"{merged_from} on (manifest.merge-min-count)",
        (manifests.small, 2 * merged_from, "manifests", 10),
        operation=COMPACT_MANIFEST,
    )
    if observed.storage is not None:
        storage = observed.storage
        yield _reason(
            "orphan-files",
            f"{storage.orphan_files:,} files that nothing refers to, written longer than a day ago",
            (_percent(storage.orphan_bytes, storage.bytes), ORPHAN_PERCENT, "% of bytes", 15),
            operation=REMOVE_ORPHANS,
        )


def _chain_reasons(chain: ChainFigures | None) -> Iterator[Reason]:
    if chain is None:
        return
    yield _reason(
        "stale-partitions",
        f"{chain.stale:,} full partitions were built of data that has changed since",
        (chain.stale, 0, "partitions", 30),
        operation=COMPACT_CHAIN,
        cost_bytes=chain.stale_bytes,
    )
    yield _reason(
        "long-chain",
        f"{chain.longest:,} deltas after the newest full partition of a group: a read merges them all",
        (chain.longest, LONGEST_CHAIN, "deltas", 20),
        operation=COMPACT_CHAIN,
        cost_bytes=chain.pending_bytes,
    )
    yield _reason(
        "chain-errors",
        f"check_chain_table has {chain.errors:,} errors",
        (chain.errors, 0, "errors", 40),
        operation=CHECK_CHAIN,
    )


def _percent(part: int, whole: int) -> float:
    return round(100 * part / whole, 1) if whole else 0.0
