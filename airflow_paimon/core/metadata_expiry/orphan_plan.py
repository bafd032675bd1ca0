"""Which of a table's files may be orphans, and which of those may be deleted: pure, over names, sizes and times."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

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
    young: tuple[Candidate, ...]
    held: tuple[Candidate, ...]


def sort_files(files: Iterable[Stored], prefixes: Prefixes) -> Sorted:
    """Divide files into candidates for deletion and unknown ones; in other folders only temporary files count."""
    candidates: list[Candidate] = []
    unknown: list[Stored] = []
    for file in files:
        parent = file.path.rpartition("/")[0]
        folder = parent.rpartition("/")[2]
        if _TEMPORARY.fullmatch(file.name):
            candidates.append(Candidate(file, TEMPORARY, None))
        elif parent in _METADATA or _BUCKET.fullmatch(folder):
            found = _in_bucket(file, prefixes) if parent not in _METADATA else _metadata(file, parent)
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


def _in_bucket(file: Stored, prefixes: Prefixes) -> Candidate | None:
    kinds = ((DATA, prefixes.data), (CHANGELOG, prefixes.changelog), (INDEX, ("index-",)))
    for kind, beginnings in kinds:
        for prefix in beginnings:
            match = _NUMBERED.match(file.name, len(prefix)) if file.name.startswith(prefix) else None
            if match is None:
                continue
            rest = file.name[match.end() :]
            if _SUFFIXES.fullmatch(rest) or (kind == INDEX and not rest):
                return Candidate(file, kind, match["writer"])
    return None


def find_orphans(candidates: Sequence[Candidate], used: Collection[str], before_ms: int) -> Orphans:
    """Decide on the candidates whose names no root has (``used`` holds those that some has).

    A writer that is still at work may commit files that it wrote long ago: while one of its files, committed or not, is
    younger than ``before_ms``, all its files stay. A file without a time stays as well.
    """
    at_work = {c.writer for c in candidates if c.writer is not None and not _is_old(c, before_ms)}
    free = [c for c in candidates if c.file.name not in used]
    old = [c for c in free if _is_old(c, before_ms)]
    return Orphans(
        files=tuple(c for c in old if c.writer not in at_work),
        young=tuple(c for c in free if not _is_old(c, before_ms)),
        held=tuple(c for c in old if c.writer in at_work),
    )


def _is_old(candidate: Candidate, before_ms: int) -> bool:
    modified = candidate.file.modified_ms
    return modified is not None and modified < before_ms


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
