"""Who reaches some files of a table, and what its end takes from readers. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from airflow_paimon.core.format.timestamp import utc_text
from airflow_paimon.core.metadata_expiry.referenced_files_plan import FileNumbers, ReferencedFiles
from airflow_paimon.core.metadata_expiry.root_values import TAG, Root
from airflow_paimon.core.metadata_expiry.storage_usage_plan import (
    BRANCH,
    CHANGELOGS,
    NEWEST,
    SNAPSHOTS,
    TRASHED,
    group_roots_by_kind,
    way_to_free,
)
from airflow_paimon.core.table.paths import KEEP_TAG_PREFIX, MAIN, PUBLISH_TAG_PREFIX, UNDO_TAG_PREFIX, protects

if TYPE_CHECKING:
    from airflow_paimon.core.format.snapshot import Tag
    from airflow_paimon.core.table.consumers import Consumer

PROTECTIVE_TAG = "protective tag"
"""A kind of references, besides those of ``group_roots_by_kind``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReachingRoots:
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


def reaching_roots(index: ReferencedFiles, roots: Sequence[Root], numbers: Sequence[int | None]) -> list[ReachingRoots]:
    """Group the roots that reach files, given by their numbers (None: no root names it); main first.

    ``index``: what the roots name.
    """
    known = [(at, number) for at, number in enumerate(numbers) if number is not None]
    wanted: FileNumbers = np.array([number for _, number in known], np.int32)
    found = []
    for group in group_roots_by_kind(roots, each_tag=True):
        masks = [(at, held[wanted]) for at, held in zip(group.roots, index.each(group.roots), strict=True)]
        reaching = [(roots[at], mask) for at, mask in masks if mask.any()]
        if reaching:
            protected = group.kind == TAG and protects(group.name) is not None
            found.append(
                ReachingRoots(
                    kind=PROTECTIVE_TAG if protected else group.kind,
                    branch=group.branch,
                    name=group.name or None,
                    roots=tuple(root for root, _ in reaching),
                    files=tuple(known[at][0] for at in np.flatnonzero(np.logical_or.reduce([m for _, m in reaching]))),
                )
            )
    return found


def lost_with(roots: ReachingRoots) -> str:
    """Say what nobody can read any more once these roots have ended."""
    first, last = roots.roots[0].snapshot, roots.roots[-1].snapshot
    on = "" if roots.branch == MAIN else f" of branch {roots.branch}"
    one = f"snapshot {last.id}{on}, committed {utc_text(last.time_millis)}"
    texts = {
        NEWEST: "nothing but the rows",
        TAG: f"the version that tag {roots.name} names: {one}",
        PROTECTIVE_TAG: f"branch {protects(roots.name or '')}, which shares files of {one}",
        SNAPSHOTS: f"all snapshots{on} up to {last.id}: reads of a time before {utc_text(last.time_millis)}, streams "
        f"that are not past snapshot {last.id}",
        CHANGELOGS: f"changes{on} up to snapshot {last.id} for streams that begin earlier",
        TRASHED: f"readers that began before snapshots {first.id} to {last.id}{on} expired",
    }
    if roots.kind == TAG and (roots.name or "").startswith(UNDO_TAG_PREFIX):
        return f"the undo of the publish after {one}"
    if roots.kind == TAG and (roots.name or "").startswith(PUBLISH_TAG_PREFIX):
        return f"the undo of the publish that is {one}"
    if roots.kind == TAG and (roots.name or "").startswith(KEEP_TAG_PREFIX):
        return "nothing: it keeps files that a publish or rollback brought back"
    return texts.get(roots.kind, "what a publish that is running relies on")


def way_to_end(roots: ReachingRoots) -> str:
    """Say what ends these roots."""
    on = "" if roots.branch == MAIN else f" --branch {roots.branch}"
    tag = roots.tag_under_legal_hold
    if tag is not None:
        return f"nothing: it {tag.legal_hold_text}; delete_tag --tag {roots.name}{on} --release-hold ends it"
    if roots.kind == NEWEST:
        return f"DELETE FROM the {'table' if roots.branch == MAIN else f'branch {roots.branch}'}, then compact{on}"
    protected = protects(roots.name or "")
    if protected is not None:
        return f"publish or delete the branch: {way_to_free(BRANCH, MAIN, protected)}"
    return way_to_free(roots.kind, roots.branch, roots.name or "")


def retaining_consumers(consumers: Iterable[Consumer], holders: Iterable[ReachingRoots]) -> list[Consumer]:
    """Return the consumers that keep snapshots which reach the files: their streams have yet to read them."""
    last: dict[str, int] = {}
    for roots in holders:
        if roots.kind == SNAPSHOTS:
            last[roots.branch] = max(r.snapshot.id for r in roots.roots)
    return [c for c in consumers if c.next_snapshot <= last.get(c.branch, 0)]
