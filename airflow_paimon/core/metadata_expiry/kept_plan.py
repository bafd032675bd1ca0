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


def kept_json(masks: Mapping[RootClass, Mask], sizes: npt.NDArray[np.int64], wanted: Mask) -> list[dict[str, Any]]:
    """Count the wanted files that each class refers to, and those that it alone does; the most bytes first.

    ``sizes``: bytes of each file.
    """
    times = np.zeros(len(sizes), np.int32)
    for mask in masks.values():
        times += mask
    rows = []
    for (branch, kind), mask in masks.items():
        named, alone = mask & wanted, mask & wanted & (times == 1)
        rows.append(
            {
                "branch": branch,
                "kind": kind,
                "files": int(named.sum()),
                "bytes": int(sizes[named].sum()),
                "only_files": int(alone.sum()),
                "only_bytes": int(sizes[alone].sum()),
            }
        )
    return sorted(rows, key=lambda row: (-row["bytes"], row["branch"], row["kind"]))
