"""Who reaches some files of a table, and what its end takes from readers. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from airflow_paimon.core.metadata_expiry.file_index_plan import FileIndex, FileNumbers
from airflow_paimon.core.metadata_expiry.root_values import SNAPSHOT, TAG, Root
from airflow_paimon.core.metadata_expiry.storage_usage_plan import (
    CHANGELOGS,
    NEWEST,
    SNAPSHOTS,
    TRASHED,
    holders_by_kind,
)
from airflow_paimon.core.table.paths import KEEP_TAG_PREFIX, MAIN, UNDO_TAG_PREFIX, protects

if TYPE_CHECKING:
    from airflow_paimon.core.format.snapshot import Tag
    from airflow_paimon.core.table.consumers import Consumer

PROTECTIVE_TAG = "protective tag"
"""A kind of holders, besides those of ``holders_by_kind``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reachable:
    """What the roots of a table name."""

    index: FileIndex
    roots: Sequence[Root]
    consumers: Sequence[Consumer]

    @property
    def heads(self) -> Mapping[str, Root]:
        """The newest snapshot of each branch: the rows that readers and writers see now."""
        snapshots = sorted((r for r in self.roots if r.kind == SNAPSHOT), key=lambda r: r.snapshot.id)
        return {r.branch: r for r in snapshots}


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Roots of one kind that reach some of the files. ``files``: positions among these, ascending."""

    kind: str
    branch: str
    name: str | None
    roots: tuple[Root, ...]
    files: tuple[int, ...]

    @property
    def tag_under_legal_hold(self) -> Tag | None:
        """The tag, if it is under a legal hold."""
        tags = (r.tag for r in self.roots if r.tag is not None)
        return next((t for t in tags if t.legal_hold is not None), None)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        ids = [r.snapshot.id for r in self.roots]
        return {
            "kind": self.kind,
            "branch": self.branch,
            "name": self.name,
            "snapshots": len(ids),
            "first_snapshot": min(ids),
            "last_snapshot": max(ids),
            "files": len(self.files),
            "hold": None if self.tag_under_legal_hold is None else self.tag_under_legal_hold.legal_hold,
            "held_by": None if self.tag_under_legal_hold is None else self.tag_under_legal_hold.held_by,
            "lost": lost_with(self),
            "way": way_to_end(self),
        }


def holders_of(reachable: Reachable, numbers: Sequence[int | None]) -> list[Holder]:
    """Group the roots that reach files, given by their numbers (None: no root names it); main first."""
    known = [(at, number) for at, number in enumerate(numbers) if number is not None]
    wanted: FileNumbers = np.array([number for _, number in known], np.int32)
    found = []
    for holder in holders_by_kind(reachable.roots, each_tag=True):
        masks = [(at, held[wanted]) for at, held in zip(holder.roots, reachable.index.each(holder.roots), strict=True)]
        reaching = [(reachable.roots[at], mask) for at, mask in masks if mask.any()]
        if reaching:
            protected = holder.kind == TAG and protects(holder.name) is not None
            found.append(
                Holder(
                    kind=PROTECTIVE_TAG if protected else holder.kind,
                    branch=holder.branch,
                    name=holder.name or None,
                    roots=tuple(root for root, _ in reaching),
                    files=tuple(known[at][0] for at in np.flatnonzero(np.logical_or.reduce([m for _, m in reaching]))),
                )
            )
    return found


def lost_with(holder: Holder) -> str:
    """Say what nobody can read any more once a holder has ended."""
    first, last = holder.roots[0].snapshot, holder.roots[-1].snapshot
    on = "" if holder.branch == MAIN else f" of branch {holder.branch}"
    one = f"snapshot {last.id}{on}, committed {_time(last.time_millis)}"
    texts = {
        NEWEST: "nothing but the rows",
        TAG: f"the version that tag {holder.name} names: {one}",
        PROTECTIVE_TAG: f"branch {protects(holder.name or '')}, which shares files of {one}",
        SNAPSHOTS: f"all snapshots{on} up to {last.id}: reads of a time before {_time(last.time_millis)}, streams that "
        f"are not past snapshot {last.id}",
        CHANGELOGS: f"changes{on} up to snapshot {last.id} for streams that begin earlier",
        TRASHED: f"readers that began before snapshots {first.id} to {last.id}{on} expired",
    }
    if holder.kind == TAG and (holder.name or "").startswith(UNDO_TAG_PREFIX):
        return f"the undo of the publish after {one}"
    if holder.kind == TAG and (holder.name or "").startswith(KEEP_TAG_PREFIX):
        return "nothing: it keeps files that a publish or rollback brought back"
    return texts.get(holder.kind, "what a publish that is running relies on")


def way_to_end(holder: Holder) -> str:
    """Say what ends a holder."""
    on = "" if holder.branch == MAIN else f" --branch {holder.branch}"
    tag = holder.tag_under_legal_hold
    if tag is not None:
        return f"nothing: it {tag.legal_hold_text}; delete_tag --tag {holder.name}{on} --release-hold ends it"
    ways = {
        NEWEST: f"DELETE FROM the {'table' if holder.branch == MAIN else f'branch {holder.branch}'}, then compact{on}",
        TAG: f"delete_tag --tag {holder.name}{on}",
        PROTECTIVE_TAG: f"publish or delete the branch: delete_branch --branch {protects(holder.name or '')}",
        SNAPSHOTS: f"expire_snapshots --retain-min 1 --retain-max 1{on}",
        CHANGELOGS: f"expire_changelogs --delete-all{on}",
        TRASHED: "any expiry, once the grace time is over",
    }
    return ways.get(holder.kind, "the end of the publishes that are running")


def pinning_consumers(reachable: Reachable, holders: Iterable[Holder]) -> list[Consumer]:
    """Return the consumers that keep snapshots which reach the files: their streams have yet to read them."""
    last: dict[str, int] = {}
    for holder in holders:
        if holder.kind == SNAPSHOTS:
            last[holder.branch] = max(r.snapshot.id for r in holder.roots)
    return [c for c in reachable.consumers if c.next_snapshot <= last.get(c.branch, 0)]


def _time(time_millis: int) -> str:
    return datetime.fromtimestamp(time_millis / 1000, UTC).isoformat(timespec="seconds")
