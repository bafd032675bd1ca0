"""The position of a branch's watcher, and which snapshots are new after it. Pure: no store, no clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_paimon.core.errors import FormatError, InvalidInputError
from airflow_paimon.core.table.options import requested_duration
from airflow_paimon.core.table.partition_text import parse_partition_text

if TYPE_CHECKING:
    # A DAG file that holds a trigger imports this module.
    from airflow_paimon.core.format.snapshot import Snapshot

KINDS = ("APPEND", "OVERWRITE", "COMPACT", "ANALYZE")
DEFAULT_KINDS = ("APPEND", "OVERWRITE")
"""The kinds that change rows; COMPACT and ANALYZE don't."""
REMEMBERED = 32
"""Snapshots that are kept to find the point to which another engine's rollback went."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """The newest snapshots that were seen, oldest first, as ``(id, identity)``; ids alone repeat after a rollback.

    ``watermark`` is the highest of any of them, in epoch milliseconds. A branch without snapshots has been seen, too.
    """

    snapshots: tuple[tuple[int, str], ...] = ()
    watermark: int | None = None

    @property
    def head(self) -> tuple[int, str] | None:
        return self.snapshots[-1] if self.snapshots else None

    def then(self, new: NewSnapshot) -> Cursor:
        """Return what has been seen with one more; what a rollback took away is forgotten."""
        kept = [known for known in self.snapshots if known[0] < new.snapshot.id and known[0] <= (new.previous or 0)]
        marks = [mark for mark in (self.watermark, new.snapshot.known_watermark) if mark is not None]
        cursor = (*kept, (new.snapshot.id, new.snapshot.identity))
        return Cursor(cursor[-REMEMBERED:], max(marks, default=None))

    def to_json(self) -> dict[str, Any]:
        return {"snapshots": [list(known) for known in self.snapshots], "watermark": self.watermark}

    @staticmethod
    def from_json(value: Any) -> Cursor:
        """Parse the output of ``to_json``. ``FormatError`` if it was edited."""
        try:
            return Cursor(tuple((int(i), str(name)) for i, name in value["snapshots"]), value["watermark"])
        except (TypeError, KeyError, ValueError):
            raise FormatError(f"The watermark of a watcher is unreadable: {str(value)[:200]!r}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSnapshot:
    """A snapshot that is new, and what happened before it.

    ``previous``: the newest id before that was seen and counts still. ``expired``: the first and last id of snapshots
    that expired before anybody saw them. ``rolled_back``: the newest id that was seen before another engine took the
    branch back to ``previous``, or made it anew; the snapshot itself may have been seen then.
    """

    snapshot: Snapshot
    previous: int | None = None
    expired: tuple[int, int] | None = None
    rolled_back: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFilter:
    """Which new snapshots count: their kind, the partitions that they touch, the watermarks that they pass.

    ``watermark_step_ms``: only a snapshot whose watermark is the first beyond another multiple of this.
    """

    kinds: tuple[str, ...] = DEFAULT_KINDS
    partitions: tuple[str, ...] = ()
    watermark_step_ms: int | None = None

    def passes(self, new: NewSnapshot, cursor: Cursor, touched: Callable[[Snapshot], Sequence[str]]) -> bool:
        """Decide. What expired unseen or was rolled back might have counted, so it does.

        Args:
            cursor: What was seen before this one.
            touched: Gives those of ``partitions`` that a snapshot wrote; only called when they are asked for.
        """
        if new.expired is not None or new.rolled_back is not None:
            return True
        if new.snapshot.commit_kind not in self.kinds:
            return False
        step, reached, before = self.watermark_step_ms, new.snapshot.known_watermark, cursor.watermark
        passed = step is None or (reached is not None and (before is None or reached // step > before // step))
        return passed and (not self.partitions or bool(touched(new.snapshot)))


def parse_filter(
    *, kinds: Sequence[str] = DEFAULT_KINDS, partitions: Sequence[str] = (), watermark_step: str | None = None
) -> SnapshotFilter:
    """Read a filter from what a DAG author writes: ``APPEND``, ``dt=2025-01-01``, ``1 h``.

    Raises:
        InvalidInputError: an unknown kind, a malformed partition or duration, or no kind at all.
    """
    chosen = tuple(str(kind).upper() for kind in ([kinds] if isinstance(kinds, str) else kinds))
    unknown = [kind for kind in chosen if kind not in KINDS]
    if unknown or not chosen:
        raise InvalidInputError(f"kinds must be some of {', '.join(KINDS)}; got {', '.join(unknown) or 'none'}")
    wanted = (partitions,) if isinstance(partitions, str) else tuple(partitions)
    for spec in wanted:
        parse_partition_text(spec)
    step = None
    if watermark_step is not None:
        step = int(requested_duration(watermark_step, "watermark_step").total_seconds() * 1000)
        if step <= 0:
            raise InvalidInputError(f"watermark_step must be longer than {watermark_step!r}")
    return SnapshotFilter(kinds=chosen, partitions=wanted, watermark_step_ms=step)


def describe_new(new: Sequence[Snapshot], head: Snapshot, cursor: Cursor, base: int | None) -> list[NewSnapshot]:
    """Say what is new.

    Args:
        new: The snapshots above ``base``, ascending.
        head: The branch's newest snapshot.
        base: What ``base_of`` found.
    """
    last = cursor.head
    rolled_back = last[0] if last is not None and base != last[0] else None
    if not new:
        return [] if rolled_back is None else [NewSnapshot(snapshot=head, previous=base, rolled_back=rolled_back)]
    found = []
    for snapshot in new:
        missing = base is not None and snapshot.id > base + 1
        expired = (base + 1, snapshot.id - 1) if missing and base is not None else None
        found.append(NewSnapshot(snapshot=snapshot, previous=base, expired=expired, rolled_back=rolled_back))
        base, rolled_back = snapshot.id, None
    return found


def ids_above(base: int | None, ids: Sequence[int], cursor: Cursor) -> list[int]:
    """Return the new ids; only the last one of a branch whose history is lost."""
    if base is None and cursor.head is not None:
        return list(ids[-1:])
    return [i for i in ids if base is None or i > base]


def base_of(cursor: Cursor, ids: Sequence[int], identities: Mapping[int, str]) -> int | None:
    """Find the newest snapshot that was seen and is still the same.

    One that has expired still counts as long as everything that exists is newer: nothing was rolled back then.

    Args:
        ids: The ids that exist, ascending.
        identities: Of those among them that were seen.
    """
    if cursor.head is None:
        return None
    if not ids or ids[0] > cursor.head[0]:
        return cursor.head[0] if ids else None
    for snapshot_id, identity in reversed(cursor.snapshots):
        if identities.get(snapshot_id) == identity:
            return snapshot_id
    return None
