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
    """Group roots by what ends them; some are in several groups."""
    parts = group_roots_by_kind(roots, each_tag=True)
    tags = [p for p in parts if p.kind == TAG and protects(p.name) is None]
    groups = [_joined(BRANCH, name, [p for p in parts if _ends_with(p, name)], name) for name in branches]
    groups += tags
    for branch in (MAIN, *branches):
        own = [p for p in tags if p.branch == branch]
        undo = [p for p in own if is_for_undo(p.name)]
        made = [p for p in own if p not in undo and not p.name.startswith((KEEP_TAG_PREFIX, STAGED_TAG_PREFIX))]
        groups += [_joined(kind, branch, some) for kind, some in ((TAGS, made), (UNDO, undo)) if len(some) > 1]
        groups += [p for p in parts if p.branch == branch and p.kind in (SNAPSHOTS, CHANGELOGS)]
    for kind in (TRASHED, HOLDS):
        some = [p for p in parts if p.kind == kind]
        groups += [_joined(kind, MAIN, some)] if some else []
    return groups


def _joined(kind: str, branch: str, parts: Sequence[RootGroup], name: str = "") -> RootGroup:
    return RootGroup(kind=kind, branch=branch, name=name, roots=tuple(at for part in parts for at in part.roots))


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
    return [
        RootGroup(kind=kind, branch=branch, name=name, roots=tuple(some))
        for (branch, kind, name), some in groups.items()
    ]


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


def _ends_with(part: RootGroup, branch: str) -> bool:
    """Whether roots go with a branch: those of its own, or main's tag that protects what both share."""
    own = part.branch == branch and part.kind not in (TRASHED, HOLDS)
    return own or (part.branch == MAIN and part.kind == TAG and protects(part.name) == branch)


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
