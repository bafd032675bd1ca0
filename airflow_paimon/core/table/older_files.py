"""Since when a branch's snapshots have named nothing but new files, and what the one before names. Pure.

A snapshot of this package says of which one, up to itself, it can't tell that: a publish or a rollback brings back
files and metadata that are older than itself. All after that one need not be read to know that they don't name a file
which is older than they are and which the first of them lacks. So an expiry of a long history reads only its ends.

``57 main manifest-list-...-0 manifest-list-...-1``: the snapshot, the branch, this snapshot's own base list, and the
identity of the one that it is based on. Other engines hand properties on to another snapshot (a rollback, a rewrite of
manifests) or copy snapshots to another branch (a fast-forward): there list or branch differ, and nothing is known. A
fast-forward also brings the copy of an own snapshot back, perhaps on top of others than those that it was based on. So
who goes by what a snapshot tells compares the one before; a commit on top of it does, too, for all that come later.
"""

from __future__ import annotations

from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.table.properties import OLDER_FILES_PROPERTY


def older_files_at(snapshot: Snapshot, branch: str, before: str | None) -> int | None:
    """Return the newest snapshot up to this one that may name older files than the one before it; None: unknown.

    ``before``: the identity of the branch's snapshot with the id before; None: that has expired.
    """
    number, place, base = _parts(snapshot)
    if not number.isdecimal() or place != _place(branch, snapshot.base_manifest_list):
        return None
    return int(number) if before is None or base == before or int(number) == snapshot.id else None


def older_files_property(
    head: Snapshot | None, before: str | None, branch: str, base_list: str, *, only_new: bool
) -> dict[str, str]:
    """Return what a snapshot on top of ``head`` says of that. ``before``: see ``older_files_at``, of the head.

    ``only_new``: what it names is new, or the head's.
    """
    if head is None:
        at, base = 0 if only_new else 1, ""
    else:
        known = older_files_at(head, branch, before)
        at, base = (head.id if known is None else known) if only_new else head.id + 1, head.identity
    return {OLDER_FILES_PROPERTY: f"{at} {_place(branch, base_list)} {base}"}


def _parts(snapshot: Snapshot) -> tuple[str, str, str]:
    number, _, rest = snapshot.properties.get(OLDER_FILES_PROPERTY, "").partition(" ")
    place, _, base = rest.rpartition(" ")
    return number, place, base


def _place(branch: str, base_list: str) -> str:
    return f"{branch} {base_list}"
