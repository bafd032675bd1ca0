"""Which kinds of roots refer to which files: why a file is no orphan. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from airflow_paimon.core.metadata_expiry.contents_plan import Contents, Mask
from airflow_paimon.core.metadata_expiry.root_values import CHANGELOG, HOLD, SNAPSHOT, TAG, Root


class RootClass(NamedTuple):
    """``kind``: ``newest`` (snapshot), ``snapshots`` (the earlier ones), ``tags``, ``changelogs``, ``trash``, or
    ``publishes`` (that are running), of one branch.
    """

    branch: str
    kind: str


_KINDS = {SNAPSHOT: "snapshots", TAG: "tags", CHANGELOG: "changelogs", HOLD: "publishes"}


def masks_by_class(contents: Contents, roots: Sequence[Root]) -> dict[RootClass, Mask]:
    """Return the files that each class of roots refers to; ``roots``: those of ``contents``, in its order."""
    newest: dict[str, int] = {}
    for root in roots:
        if root.kind == SNAPSHOT:
            newest[root.branch] = max(root.snapshot.id, newest.get(root.branch, 0))
    found: dict[RootClass, Mask] = {}
    for root, held in zip(roots, contents.each(range(len(roots))), strict=True):
        is_newest = root.kind == SNAPSHOT and root.snapshot.id == newest[root.branch]
        kind = "newest" if is_newest else _KINDS.get(root.kind, "trash")
        known = found.setdefault(RootClass(root.branch, kind), np.zeros(contents.files, bool))
        known |= held
    return found


Kept = dict[RootClass, npt.NDArray[np.int64]]
"""Of each class: files, bytes, and of those that it alone refers to."""


def count_kept(masks: Mapping[RootClass, Mask], sizes: npt.NDArray[np.int64], wanted: Mask, found: Kept) -> None:
    """Add to ``found`` the wanted files that each class refers to, and those that it alone does.

    ``sizes``: bytes of each file.
    """
    times = np.zeros(len(sizes), np.int32)
    for mask in masks.values():
        times += mask
    for one, mask in masks.items():
        named, alone = mask & wanted, mask & wanted & (times == 1)
        counts = [named.sum(), sizes[named].sum(), alone.sum(), sizes[alone].sum()]
        found[one] = found.get(one, np.zeros(4, np.int64)) + np.array(counts, np.int64)


def kept_json(found: Kept) -> list[dict[str, Any]]:
    """Return what ``count_kept`` has counted, the most bytes first."""
    names = ("files", "bytes", "only_files", "only_bytes")
    rows: list[dict[str, Any]] = [
        {"branch": branch, "kind": kind, **dict(zip(names, counts.tolist(), strict=True))}
        for (branch, kind), counts in found.items()
    ]
    return sorted(rows, key=lambda row: (-row["bytes"], row["branch"], row["kind"]))
