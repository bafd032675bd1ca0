"""Which of a table's files may be orphans, and which of those may be deleted: pure, over names, sizes and times."""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from airflow_paimon.core.table.name_digests import ANY_NAME, digests_of
from airflow_paimon.core.table.paths import INDEX_DIR, MANIFEST_DIR, STATISTICS_DIR

DATA, CHANGELOG, INDEX, MANIFEST, STATISTICS, TEMPORARY = (
    "data", "changelog", "index", "manifest", "statistics", "temporary",
)  # fmt: skip
_UUID = r"(?P<writer>[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})"
_NUMBERED = re.compile(rf"{_UUID}-\d+")
_MANIFEST = re.compile(rf"{_UUID}(?:-base|-changelog)?-\d+")  # with a word: of this package's commits
# What a data file's name can end with: its format, its compression, its index, that it holds blobs or vectors only, and
# this package's rewriting of row ids. Not managed.blob: files with ".blobref" name those, no manifest does.
_SUFFIXES = re.compile(
    r"(?:\.(?:parquet|orc|avro|blob|vector|lance|vortex|zstd|snappy|gzip|lz4|zlib|none|index|ids-[0-9a-f]{8}))+"
)
_TEMPORARY = re.compile(r"\..+\.(?:[0-9a-f]{32}|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})\.tmp")
_BUCKET = re.compile(r"bucket-(?:\d+|postpone)")
_METADATA = {
    MANIFEST_DIR: (MANIFEST, ("manifest-list-", "index-manifest-", "manifest-")),
    INDEX_DIR: (INDEX, ("index-",)),
    STATISTICS_DIR: (STATISTICS, ("stat-",)),
}


@dataclass(frozen=True, slots=True)
class Stored:
    """A file of the table's folder. ``modified_ms``: by the storage's clock; None if it has none."""

    path: str
    size: int
    modified_ms: int | None

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class Prefixes:
    """What names of data files and changelog files begin with, by any schema of any branch."""

    data: tuple[str, ...]
    changelog: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A file of a kind that can be an orphan. ``writer``: the uuid in its name, which all files of a writer share."""

    file: Stored
    kind: str
    writer: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sorted:
    """The files of a table. ``unknown``: files in folders of data or manifests whose names no known writer gives."""

    candidates: tuple[Candidate, ...]
    unknown: tuple[Stored, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphans:
    """``young``: unreferenced files that are too young; ``held``: old ones whose writer has put a young file."""

    files: tuple[Candidate, ...]
    young: Sums
    held: Sums


@dataclass(frozen=True, slots=True)
class Sums:
    """How many files, with their ``bytes``; ``first_ms``: when the oldest of them was written, None if unknown."""

    files: int = 0
    bytes: int = 0
    first_ms: int | None = None


def sort_files(files: Iterable[Stored], prefixes: Prefixes) -> Sorted:
    """Divide files into candidates for deletion and unknown ones; in other folders only temporary files count."""
    candidates: list[Candidate] = []
    unknown: list[Stored] = []
    is_bucket = cache(lambda folder: _BUCKET.fullmatch(folder.rpartition("/")[2]) is not None)
    for file in files:
        parent, _, name = file.path.rpartition("/")
        if name.startswith(".") and _TEMPORARY.fullmatch(name):
            candidates.append(Candidate(file, TEMPORARY, None))
        elif parent in _METADATA or is_bucket(parent):
            found = _in_bucket(file, name, prefixes) if parent not in _METADATA else _metadata(file, parent)
            if found is None:
                unknown.append(file)
            else:
                candidates.append(found)
    return Sorted(candidates=tuple(candidates), unknown=tuple(unknown))


def _metadata(file: Stored, folder: str) -> Candidate | None:
    kind, beginnings = _METADATA[folder]
    for prefix in beginnings:
        match = _MANIFEST.fullmatch(file.name, len(prefix)) if file.name.startswith(prefix) else None
        if match is not None:
            return Candidate(file, kind, match["writer"])
    return None


def _in_bucket(file: Stored, name: str, prefixes: Prefixes) -> Candidate | None:
    kinds = ((DATA, prefixes.data), (CHANGELOG, prefixes.changelog), (INDEX, ("index-",)))
    for kind, beginnings in kinds:
        for prefix in beginnings:
            match = _NUMBERED.match(name, len(prefix)) if name.startswith(prefix) else None
            if match is None:
                continue
            rest = name[match.end() :]
            if _SUFFIXES.fullmatch(rest) or (kind == INDEX and not rest):
                return Candidate(file, kind, match["writer"])
    return None


KINDS = (DATA, CHANGELOG, INDEX, MANIFEST, STATISTICS, TEMPORARY)
_NO_TIME = -(1 << 62)
_WRITER = struct.Struct(">QQ")


class Candidates:
    """The candidates of a table as columns, about 60 bytes each: paths are compressed, names and writers are digests.

    ``unknown``: see ``Sorted``; of them the sums, and the first ``examples``.
    """

    def __init__(self, examples: int = 0) -> None:
        """``examples``: how many unknown files to name."""
        self._paths: list[tuple[int, bytes]] = []
        self._parts: list[tuple[npt.NDArray[Any], ...]] = []
        self._listed = examples
        self.unknown = Sums()
        self.examples: list[str] = []

    def add(self, found: Sorted) -> None:
        """Add what was found in some folders."""
        some = found.candidates
        self.examples = sorted([*self.examples, *(f.path for f in found.unknown)])[: self._listed]
        sizes = sum(f.size for f in found.unknown)
        self.unknown = Sums(self.unknown.files + len(found.unknown), self.unknown.bytes + sizes)
        if not some:
            return
        self._paths.append((len(some), zlib.compress("\0".join(c.file.path for c in some).encode(errors=ANY_NAME), 1)))
        times = [_NO_TIME if c.file.modified_ms is None else c.file.modified_ms for c in some]
        self._parts.append((
            digests_of([c.file.name for c in some]),
            np.array([c.file.size for c in some], np.int64),
            np.array(times, np.int64),
            np.array([KINDS.index(c.kind) for c in some], np.int8),
            np.array([0 if c.writer is None else _writer_number(c.writer) for c in some], np.uint64),
        ))  # fmt: skip

    def columns(self) -> CandidateColumns:
        """Return the columns, in the order in which the files were listed."""
        types: tuple[type, ...] = (np.uint64, np.int64, np.int64, np.int8, np.uint64)
        empty: tuple[npt.NDArray[Any], ...] = tuple(np.zeros(0, kind) for kind in types)
        parts, self._parts = self._parts or [empty], []
        joined = CandidateColumns._make(np.concatenate(some) for some in zip(*parts, strict=True))
        self._parts = [tuple(joined)]
        return joined

    def at(self, chosen: npt.NDArray[np.bool_]) -> Iterator[Candidate]:
        """Return some candidates as values."""
        c = self.columns()
        start = 0
        for number, paths in self._paths:
            where = chosen[start : start + number].nonzero()[0]
            if len(where):
                names = zlib.decompress(paths).decode(errors=ANY_NAME).split("\0")
                for at in where.tolist():
                    yield _candidate(names[at], c, start + at)
            start += number


class CandidateColumns(NamedTuple):
    """``names`` and ``writers``: digests (0: no writer); ``times``: epoch milliseconds; ``kinds``: of ``KINDS``."""

    names: npt.NDArray[np.uint64]
    sizes: npt.NDArray[np.int64]
    times: npt.NDArray[np.int64]
    kinds: npt.NDArray[np.int8]
    writers: npt.NDArray[np.uint64]

    def older(self, before_ms: int) -> npt.NDArray[np.bool_]:
        """Return which were written before a time (epoch milliseconds); one without a time is not."""
        old: npt.NDArray[np.bool_] = (self.times != _NO_TIME) & (self.times < before_ms)
        return old

    def sums(self, chosen: npt.NDArray[np.bool_]) -> Sums:
        """Sum up some candidates."""
        times = self.times[chosen & (self.times != _NO_TIME)]
        first = int(times.min()) if len(times) else None
        return Sums(int(chosen.sum()), int(self.sizes[chosen].sum()), first)


def _writer_number(uuid: str) -> int:
    high, low = _WRITER.unpack(bytes.fromhex(uuid.replace("-", "")))
    return (high ^ low) or 1


def _candidate(path: str, c: CandidateColumns, at: int) -> Candidate:
    time = int(c.times[at])
    return Candidate(Stored(path, int(c.sizes[at]), None if time == _NO_TIME else time), KINDS[c.kinds[at]], None)


def find_orphans(candidates: Candidates, used: npt.NDArray[np.bool_], before_ms: int) -> Orphans:
    """Decide on the candidates whose names no root has; of each, ``used`` says whether some has.

    A writer that is still at work may commit files that it wrote long ago: while one of its files, committed or not, is
    younger than ``before_ms``, all its files stay. A file without a time stays as well.
    """
    c = candidates.columns()
    old = c.older(before_ms)
    at_work = np.unique(c.writers[~old & (c.writers != 0)])
    busy = np.isin(c.writers, at_work)
    free = ~used
    return Orphans(
        files=tuple(sorted(candidates.at(free & old & ~busy), key=lambda c: c.file.path)),
        young=c.sums(free & ~old),
        held=c.sums(free & old & busy),
    )


def by_folder(files: Iterable[Candidate]) -> list[dict[str, object]]:
    """Sum up files by folder and kind, the most bytes first. Buckets of a partition are one folder."""
    sums: dict[tuple[str, str], list[int]] = {}
    for candidate in files:
        folder = candidate.file.path.rpartition("/")[0]
        above, _, last = folder.rpartition("/")
        if _BUCKET.fullmatch(last):
            folder = above
        total = sums.setdefault((folder, candidate.kind), [0, 0])
        total[0] += 1
        total[1] += candidate.file.size
    order = sorted(sums.items(), key=lambda item: (-item[1][1], item[0]))
    return [{"folder": f, "kind": k, "files": n, "bytes": size} for (f, k), (n, size) in order]
