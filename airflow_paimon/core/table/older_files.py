"""Since when a branch's snapshots have named nothing but new files, and what the one before names. Pure.

A snapshot of this package says of which one, up to itself, it can't tell that: a publish or a rollback brings back
files and metadata that are older than itself. All after that one need not be read to know that they don't name a file
which is older than they are and which the first of them lacks. So an expiry of a long history reads only its ends.

``57 main manifest-list-...-0``: the snapshot, the branch, and this snapshot's own base list. Other engines hand
properties on to another snapshot (a rollback, a rewrite of manifests) or copy snapshots to another branch (a
fast-forward): there the last two differ, and nothing is known.
"""

from __future__ import annotations

from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.table.properties import OLDER_FILES_PROPERTY


def older_files_at(snapshot: Snapshot, branch: str) -> int | None:
    """Return the newest snapshot up to this one that may name older files than the one before it; None: unknown."""
    number, _, rest = snapshot.properties.get(OLDER_FILES_PROPERTY, "").partition(" ")
    return int(number) if number.isdecimal() and rest == _place(branch, snapshot.base_manifest_list) else None


def older_files_property(head: Snapshot | None, branch: str, base_list: str, *, only_new: bool) -> dict[str, str]:
    """Return what a snapshot on top of ``head`` says of that. ``only_new``: what it names is new, or the head's."""
    if head is None:
        at = 0 if only_new else 1
    else:
        known = older_files_at(head, branch)
        at = (head.id if known is None else known) if only_new else head.id + 1
    return {OLDER_FILES_PROPERTY: f"{at} {_place(branch, base_list)}"}


def _place(branch: str, base_list: str) -> str:
    return f"{branch} {base_list}"
