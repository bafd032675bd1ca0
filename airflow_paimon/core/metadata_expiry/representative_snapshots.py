"""Which snapshots of a long history have to be read to know what all of them name of older files."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_paimon.core.metadata_expiry.root_values import SNAPSHOT, LazySnapshots, Root
from airflow_paimon.core.table.older_files import older_files_at

_MOST_AHEAD = 64
_NEAR = 4


def representative_snapshots(snapshots: LazySnapshots, expired: Sequence[Root]) -> list[Root]:
    """Return living snapshots of a branch that together name whatever any of them names of the expired roots' files.

    A snapshot names what the one before names, and new files, unless it brings older ones back, which the newest one
    tells (``older_files``). So these are the first one and those that may bring files back; but all of them, where a
    expired root is of another branch, or isn't older than the first one: then its files may be new in a later one.

    Raises:
        Vanished, FormatError: see ``LazySnapshots``.
    """
    gone = {r.snapshot.id for r in expired if r.kind == SNAPSHOT and r.branch == snapshots.branch}
    ids = [i for i in snapshots.ids if i not in gone]
    if not ids:
        return []
    first, last = snapshots.by_ids(ids[:1])[0], ids[-1]
    in_row = last - ids[0] == len(ids) - 1
    if not in_row or not all(_is_older(r, first) for r in expired):
        return snapshots.by_ids(ids)
    return [first, *_restoring_snapshots(snapshots, ids)]


def _is_older(expired: Root, first: Root) -> bool:
    mine, other = expired.snapshot, first.snapshot
    return expired.branch == first.branch and mine.id < other.id and mine.time_millis <= other.time_millis


def _restoring_snapshots(snapshots: LazySnapshots, ids: Sequence[int]) -> list[Root]:
    """Return those of consecutive snapshots, without the first, that may name older files than the one before."""
    found = []
    at, ahead = len(ids) - 1, 1
    while at > 0:
        snapshots.by_ids(ids[max(at - ahead, 0) : at + 1])
        before, root = snapshots.by_ids(ids[at - 1 : at + 1])
        newest = older_files_at(root.snapshot, root.branch, before.snapshot.identity)
        if newest is not None and newest <= ids[0]:
            break
        was, at = at, at if newest is None else newest - ids[0]
        found += snapshots.by_ids(ids[at : at + 1])
        ahead = min(2 * ahead, _MOST_AHEAD) if was - at < _NEAR else 1
        at -= 1
    return found
