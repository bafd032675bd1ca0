"""What becomes free when roots of a table are gone, as values. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_paimon.core.metadata_expiry.root_values import Root
from airflow_paimon.core.table.paths import MAIN

_LISTED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadFile:
    """A file that only dead roots name. ``size`` in bytes; 0 = unknown."""

    path: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptFiles:
    """Data files of dead roots that others still read."""

    readers: tuple[str, ...]
    files: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reap:
    """The files to delete, in the order of the fields: none is named by a file that is deleted later only.

    ``held``: dead roots that a living one is a copy of, as (dead, living). ``external``: data files outside of the
    table folder, which stay. ``unreadable``: dead roots of which some metadata is gone already, so that data files may
    be left over.
    """

    data: tuple[DeadFile, ...] = ()
    changelog: tuple[DeadFile, ...] = ()
    index: tuple[DeadFile, ...] = ()
    manifests: tuple[DeadFile, ...] = ()
    lists: tuple[DeadFile, ...] = ()
    kept: tuple[KeptFiles, ...] = ()
    held: tuple[tuple[str, str], ...] = ()
    external: int = 0
    unreadable: tuple[str, ...] = ()

    @property
    def stages(self) -> tuple[tuple[DeadFile, ...], ...]:
        return self.data, self.changelog, self.index, self.manifests, self.lists

    def kept_json(self) -> list[dict[str, Any]]:
        """Return what is not freed, and which roots keep it."""
        whole = [{"all_of": dead, "by": [living]} for dead, living in self.held[:_LISTED]]
        return whole + [{"files": k.files, "bytes": k.bytes, "by": list(k.readers)} for k in self.kept]

    def to_json(self) -> dict[str, Any]:
        """Return what is freed, for results."""
        return {
            "data_files": len(self.data),
            "changelog_files": len(self.changelog),
            "metadata_files": len(self.index) + len(self.manifests) + len(self.lists),
            "bytes": sum(file.size for stage in self.stages for file in stage),
        }


def successor(dead: Root, others: Iterable[Root]) -> Root | None:
    """Return the root whose live files differ least from a dead one's: the next of its branch, else the last before
    it, else one of main. None: there is no other root.
    """
    at = dead.snapshot.id

    def distance(root: Root) -> tuple[bool, bool, bool, int]:
        later = root.snapshot.id >= at
        return root.branch != dead.branch, root.branch != MAIN, not later, abs(root.snapshot.id - at)

    return min((r for r in others if not r.is_changelog), key=distance, default=None)


def group_kept(sizes: Mapping[str, int], readers: Mapping[str, Sequence[Root]]) -> tuple[KeptFiles, ...]:
    """Group files that stay by the roots that read them, the largest group first; ``sizes`` in bytes, by name."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for name, roots in readers.items():
        if name in sizes:
            groups.setdefault(tuple(r.label for r in roots), []).append(sizes[name])
    kept = [KeptFiles(readers=by, files=len(some), bytes=sum(some)) for by, some in groups.items()]
    return tuple(sorted(kept, key=lambda k: (-k.files, k.readers))[:_LISTED])
