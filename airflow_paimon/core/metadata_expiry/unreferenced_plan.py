"""What becomes free when roots of a table are gone, as values. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_paimon.core.metadata_expiry.root_values import Root
from airflow_paimon.core.table.paths import MAIN

_LISTED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreferencedFile:
    """A file that only expired roots name. ``size`` in bytes; 0 = unknown."""

    path: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StillReferenced:
    """Data files of expired roots that others still read."""

    readers: tuple[str, ...]
    files: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreferencedFiles:
    """The files to delete, in the order of the fields: none is named by a file that is deleted later only.

    ``copies``: expired roots that a living one is a copy of, as (expired, living). ``external``: data files outside of
    the table folder, which stay. ``unreadable``: expired roots of which some metadata is gone already, so that data
    files may be left over.
    """

    data: tuple[UnreferencedFile, ...] = ()
    changelog: tuple[UnreferencedFile, ...] = ()
    index: tuple[UnreferencedFile, ...] = ()
    manifests: tuple[UnreferencedFile, ...] = ()
    lists: tuple[UnreferencedFile, ...] = ()
    kept: tuple[StillReferenced, ...] = ()
    copies: tuple[tuple[str, str], ...] = ()
    external: int = 0
    unreadable: tuple[str, ...] = ()

    @property
    def stages(self) -> tuple[tuple[UnreferencedFile, ...], ...]:
        return self.data, self.changelog, self.index, self.manifests, self.lists

    def kept_json(self) -> list[dict[str, Any]]:
        """Return what is not freed, and which roots keep it."""
        whole = [{"all_of": expired, "by": [living]} for expired, living in self.copies[:_LISTED]]
        return whole + [{"files": k.files, "bytes": k.bytes, "by": list(k.readers)} for k in self.kept]

    def to_json(self) -> dict[str, Any]:
        """Return what is freed, for results."""
        return {
            "data_files": len(self.data),
            "changelog_files": len(self.changelog),
            "metadata_files": len(self.index) + len(self.manifests) + len(self.lists),
            "bytes": sum(file.size for stage in self.stages for file in stage),
        }


def nearest_root(expired: Root, others: Iterable[Root]) -> Root | None:
    """Return the root whose live files differ least from an expired one's: the next of its branch, else the last before
    it, else one of main. None: there is no other root.
    """
    at = expired.snapshot.id

    def distance(root: Root) -> tuple[bool, bool, bool, int]:
        later = root.snapshot.id >= at
        return root.branch != expired.branch, root.branch != MAIN, not later, abs(root.snapshot.id - at)

    return min((r for r in others if not r.is_changelog), key=distance, default=None)


def group_kept(sizes: Mapping[str, int], readers: Mapping[str, Sequence[Root]]) -> tuple[StillReferenced, ...]:
    """Group files that stay by the roots that read them, the largest group first; ``sizes`` in bytes, by name."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for name, roots in readers.items():
        if name in sizes:
            groups.setdefault(tuple(r.label for r in roots), []).append(sizes[name])
    kept = [StillReferenced(readers=by, files=len(some), bytes=sum(some)) for by, some in groups.items()]
    return tuple(sorted(kept, key=lambda k: (-k.files, k.readers))[:_LISTED])
