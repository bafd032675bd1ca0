"""Which of a table's files may be orphans, and which of those may be deleted: pure, over names, sizes and times."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from airflow_paimon.core.metadata_expiry.referenced_files_plan import Sums
from airflow_paimon.core.table.paths import INDEX_DIR, MANIFEST_DIR, STATISTICS_DIR

DATA, CHANGELOG, INDEX, MANIFEST, STATISTICS, TEMPORARY = (
    "data", "changelog", "index", "manifest", "statistics", "temporary",
)  # fmt: skip
_UUID = r"(?P<writer>[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})"
_MANIFEST = re.compile(rf"{_UUID}(?:-base|-changelog)?-\d+")  # with a word: of this package's commits
# What a data file's name can end with: its format, its compression, its index, that it holds blobs or vectors only, and
# this package's rewriting of row ids. Not managed.blob: files with ".blobref" name those, no manifest does.
_SUFFIXES = r"(?:\.(?:parquet|orc|avro|blob|vector|lance|vortex|zstd|snappy|gzip|lz4|zlib|none|index|ids-[0-9a-f]{8}))"
_TEMPORARY = re.compile(r"\..+\.(?:[0-9a-f]{32}|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})\.tmp")
_BUCKET = re.compile(r"bucket-(?:\d+|postpone)")
_METADATA = {
    MANIFEST_DIR: (MANIFEST, ("manifest-list-", "index-manifest-", "manifest-")),
    INDEX_DIR: (INDEX, ("index-",)),
    STATISTICS_DIR: (STATISTICS, ("stat-",)),
}


@dataclass(frozen=True, slots=True)
class Prefixes:
    """What names of data files and changelog files begin with, by any schema of any branch."""

    data: tuple[str, ...]
    changelog: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A file of a kind that can be an orphan. ``path``: below the table's folder; ``size`` in bytes."""

    path: str
    size: int
    kind: str

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


class FileClassifier:
    """Tells the kinds of files by their paths. ``prefixes``: of data and changelog files."""

    def __init__(self, prefixes: Prefixes) -> None:
        data, changelog = ("|".join(map(re.escape, some)) for some in (prefixes.data, prefixes.changelog))
        number = r"{}-\d+"
        self._in_bucket = re.compile(
            rf"(?:(?P<data>{data})|{changelog}){number.format(_UUID)}{_SUFFIXES}+"
            rf"|index-{number.format(_UUID.replace('writer', 'index_writer'))}{_SUFFIXES}*"
        ).fullmatch
        self._buckets: dict[str, bool] = {}

    def classify(self, path: str) -> tuple[str, str] | None:
        """Return the kind of a file that may be an orphan, and the uuid of its writer, "" for none; of a file in a
        folder of data or manifests whose name no known writer gives ``UNKNOWN``; None for all others.
        """
        parent, _, name = path.rpartition("/")
        if name.startswith(".") and _TEMPORARY.fullmatch(name):
            return TEMPORARY, ""
        if parent in _METADATA:
            return _metadata(parent, name)
        is_bucket = self._buckets.get(parent)
        if is_bucket is None:
            is_bucket = self._buckets[parent] = _BUCKET.fullmatch(parent.rpartition("/")[2]) is not None
        if not is_bucket:
            return None
        match = self._in_bucket(name)
        if match is None:
            return UNKNOWN
        data, writer, index_writer = match.group("data", "writer", "index_writer")
        return (INDEX, index_writer) if writer is None else (DATA if data is not None else CHANGELOG, writer)


UNKNOWN = ("unknown", "")


def _metadata(folder: str, name: str) -> tuple[str, str]:
    kind, beginnings = _METADATA[folder]
    for prefix in beginnings:
        match = _MANIFEST.fullmatch(name, len(prefix)) if name.startswith(prefix) else None
        if match is not None:
            return kind, match["writer"]
    return UNKNOWN


KINDS = (DATA, CHANGELOG, INDEX, MANIFEST, STATISTICS, TEMPORARY)
NO_TIME = -(1 << 62)


class CandidateColumns(NamedTuple):
    """Candidates as columns. ``names`` and ``writers``: digests (0: no writer); ``times``: epoch milliseconds;
    ``kinds``: of ``KINDS``.
    """

    names: npt.NDArray[np.uint64]
    sizes: npt.NDArray[np.int64]
    times: npt.NDArray[np.int64]
    kinds: npt.NDArray[np.int8]
    writers: npt.NDArray[np.uint64]

    def older(self, before_ms: int) -> npt.NDArray[np.bool_]:
        """Return which were written before a time (epoch milliseconds); one without a time is not."""
        old: npt.NDArray[np.bool_] = (self.times != NO_TIME) & (self.times < before_ms)
        return old

    def sums(self, chosen: npt.NDArray[np.bool_]) -> Sums:
        """Sum up some candidates."""
        times = self.times[chosen & (self.times != NO_TIME)]
        first = int(times.min()) if len(times) else None
        return Sums(int(chosen.sum()), int(self.sizes[chosen].sum()), first)

    def active_writers(self, before_ms: int) -> npt.NDArray[np.uint64]:
        """Return the writers of files that are not older than a time."""
        return np.unique(self.writers[~self.older(before_ms) & (self.writers != 0)])

    def candidate(self, path: str, at: int) -> Candidate:
        """Return one as a value."""
        return Candidate(path, int(self.sizes[at]), KINDS[self.kinds[at]])


COLUMN_TYPES: tuple[type, ...] = (np.uint64, np.int64, np.int64, np.int8, np.uint64)
"""Of ``CandidateColumns``."""


def find_orphans(
    c: CandidateColumns, used: npt.NDArray[np.bool_], before_ms: int, active_writers: npt.NDArray[np.uint64]
) -> tuple[npt.NDArray[np.bool_], Sums, Sums]:
    """Decide on the candidates whose names no root has; of each, ``used`` says whether some has. Returns which may be
    deleted, and of the others the sums of those that are too young, and of old ones whose writer has put a young file.

    A writer that is still at work may commit files that it wrote long ago: while one of its files, committed or not, is
    younger than ``before_ms``, all its files stay. A file without a time stays as well. ``active_writers``: these
    writers, of all candidates of the table.
    """
    old, busy, free = c.older(before_ms), np.isin(c.writers, active_writers), ~used
    return free & old & ~busy, c.sums(free & ~old), c.sums(free & old & busy)


def by_folder(files: Iterable[Candidate]) -> list[dict[str, object]]:
    """Sum up files by folder and kind, the most bytes first. Buckets of a partition are one folder."""
    sums: dict[tuple[str, str], list[int]] = {}
    for candidate in files:
        folder = candidate.path.rpartition("/")[0]
        above, _, last = folder.rpartition("/")
        if _BUCKET.fullmatch(last):
            folder = above
        total = sums.setdefault((folder, candidate.kind), [0, 0])
        total[0] += 1
        total[1] += candidate.size
    order = sorted(sums.items(), key=lambda item: (-item[1][1], item[0]))
    return [{"folder": f, "kind": k, "files": n, "bytes": size} for (f, k), (n, size) in order]
