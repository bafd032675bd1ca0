"""Who holds how many bytes of a table, and what its end would free: over numbered files. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import numpy.typing as npt

from airflow_paimon.core.metadata_expiry.referenced_files_plan import Mask, ReferencedFiles, Sums
from airflow_paimon.core.metadata_expiry.root_values import CHANGELOG, HOLD, SNAPSHOT, TAG, Root
from airflow_paimon.core.table.paths import (
    KEEP_TAG_PREFIX,
    MAIN,
    RESERVED_TAG_PREFIX,
    STAGED_TAG_PREFIX,
    is_for_undo,
    protects,
)

BRANCH, NEWEST, SNAPSHOTS, TAGS, UNDO, CHANGELOGS, TRASHED, HOLDS = (
    "branch", "newest", "snapshots", "tags", "undo", "changelogs", "trash", "holds",
)  # fmt: skip
"""Kinds of groups, besides ``tag``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RootGroup:
    """Roots that end together. ``roots``: their positions, in the order of their snapshots.

    ``kind``: ``branch`` (with the tags on main that protect its files), ``tag``, ``tags`` (all tags of a branch that
    people made), ``undo`` (all tags by which publishes are undone), ``snapshots`` (all of a branch but the newest),
    ``changelogs`` (the long-lived ones of a branch), ``trash``, or ``holds`` (of publishes that are running).
    """

    kind: str
    branch: str
    name: str
    roots: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a group of roots names, and what it alone names: its end frees that."""

    group: RootGroup
    names: Sums
    frees: Sums


def group_roots(roots: Sequence[Root], branches: Sequence[str]) -> list[RootGroup]:
    """Group roots by what ends them."""
    order = sorted(range(len(roots)), key=lambda i: (roots[i].branch, roots[i].snapshot.id, roots[i].kind))
    groups = [
        RootGroup(kind=BRANCH, branch=name, name=name, roots=tuple(i for i in order if _ends_with(roots[i], name)))
        for name in branches
    ]
    groups += [_group(TAG, roots, [i]) for i in order if roots[i].kind == TAG and protects(roots[i].name) is None]
    for branch in (MAIN, *branches):
        at = [i for i in order if roots[i].branch == branch]
        tags = [i for i in at if roots[i].kind == TAG]
        made = [i for i in tags if protects(roots[i].name) is None and not is_for_undo(roots[i].name)]
        snapshots = [i for i in at if roots[i].kind == SNAPSHOT]
        grouped = {
            TAGS: [i for i in made if not roots[i].name.startswith((KEEP_TAG_PREFIX, STAGED_TAG_PREFIX))],
            UNDO: [i for i in tags if is_for_undo(roots[i].name)],
            SNAPSHOTS: snapshots[:-1],
            CHANGELOGS: [i for i in at if roots[i].kind == CHANGELOG],
        }
        for kind, some in grouped.items():  # a single tag stands in the list by itself
            groups += [_group(kind, roots, some, branch)] if len(some) > (kind in (TAGS, UNDO)) else []
    for kind, some in ((TRASHED, [i for i in order if roots[i].trash is not None]),
                       (HOLDS, [i for i in order if roots[i].kind == HOLD])):  # fmt: skip
        groups += [_group(kind, roots, some, MAIN)] if some else []
    return groups


def group_roots_by_kind(roots: Sequence[Root], *, each_tag: bool = False) -> list[RootGroup]:
    """Divide roots by branch and kind, main first: ``newest`` (snapshot), ``snapshots`` (the earlier ones), ``tags``
    (or each ``tag``), ``changelogs``, ``trash``, or ``holds`` (of publishes that are running).
    """
    heads = {r.branch: r.snapshot.id for r in sorted(roots, key=lambda r: r.snapshot.id) if r.kind == SNAPSHOT}
    kinds = {SNAPSHOT: SNAPSHOTS, TAG: TAG if each_tag else TAGS, CHANGELOG: CHANGELOGS, HOLD: HOLDS}
    groups: dict[tuple[str, str, str], list[int]] = {}
    for at in sorted(range(len(roots)), key=lambda at: _place(roots[at])):
        root = roots[at]
        is_newest = root.kind == SNAPSHOT and root.snapshot.id == heads[root.branch]
        kind = NEWEST if is_newest else kinds.get(root.kind, TRASHED)
        groups.setdefault((root.branch, kind, root.name if kind == TAG else ""), []).append(at)
    return [_group(kind, roots, some, branch) for (branch, kind, _), some in groups.items()]


def _place(root: Root) -> tuple[bool, str, int, str]:
    return root.branch != MAIN, root.branch, root.snapshot.id, root.path


def usages(
    index: ReferencedFiles, times: npt.NDArray[np.int32], groups: Sequence[RootGroup], among: Mask | None = None
) -> list[Usage]:
    """Count what each group names, and what it alone names. ``times``: how many roots name each file. ``among``: count
    these only.
    """
    counted = np.ones(len(index), bool) if among is None else among
    masks = index.each([at for group in groups for at in group.roots])
    return [_usage(group, islice(masks, len(group.roots)), index, times, counted) for group in groups]


def added(found: Sequence[Usage], more: Sequence[Usage]) -> list[Usage]:
    """Add up the same groups' counts of two sets of files; the first may be empty."""
    pairs = zip(found, more, strict=True) if found else ()
    return [replace(two, names=one.names + two.names, frees=one.frees + two.frees) for one, two in pairs] or list(more)


def _usage(
    group: RootGroup, masks: Iterable[Mask], index: ReferencedFiles, times: npt.NDArray[np.int32], counted: Mask
) -> Usage:
    within = np.zeros(len(index), np.int32)
    for held in masks:
        within += held
    named, alone = counted & (within > 0), counted & (within > 0) & (within == times)
    return Usage(group=group, names=index.sums(named), frees=index.sums(alone))


def _ends_with(root: Root, branch: str) -> bool:
    """Whether a root goes with a branch: one of its own, or main's tag that protects what both share."""
    if root.trash is not None or root.kind == HOLD:
        return False
    return root.branch == branch or (root.branch == MAIN and root.kind == TAG and protects(root.name) == branch)


def _group(kind: str, roots: Sequence[Root], some: Sequence[int], branch: str | None = None) -> RootGroup:
    only = roots[some[0]]
    return RootGroup(kind=kind, branch=branch or only.branch, name=only.name if kind == TAG else "", roots=tuple(some))


def way_to_free(kind: str, branch: str, name: str) -> str:
    """Say what ends a group of roots, so that its files can go."""
    on = "" if branch == MAIN else f" --branch {branch}"
    clean = ", then remove_orphan_files"
    if kind == TAG and name.startswith(RESERVED_TAG_PREFIX):
        return f"expire_tags{on}, once nothing needs it"
    ways = {
        BRANCH: f"delete_branch --branch {name}{clean}",
        TAG: f"delete_tag --tag {name}{on}{clean}",
        TAGS: f"expire_tags --include-unlimited --older-than AGE{on}",
        UNDO: "their own retention; until then these publishes can be undone",
        SNAPSHOTS: f"expire_snapshots --retain-min 1 --retain-max 1{on}",
        CHANGELOGS: f"expire_changelogs --delete-all{on}",
        TRASHED: "any expiry, once the grace time is over",
    }
    return ways.get(kind, "the end of the publishes that are running")
