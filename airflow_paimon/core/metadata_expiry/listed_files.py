"""The files of a table's folder as columns, about 60 bytes each of which a part is in memory at a time: paths are
compressed, names and writers are digests.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from airflow_paimon.core.errors import FormatError, NotFoundError
from airflow_paimon.core.metadata_expiry.orphan_plan import (
    COLUMN_TYPES,
    KINDS,
    NO_TIME,
    UNKNOWN,
    Candidate,
    CandidateColumns,
    FileClassifier,
    Prefixes,
)
from airflow_paimon.core.metadata_expiry.referenced_files_plan import Sums
from airflow_paimon.core.store.base import FileInfo
from airflow_paimon.core.store.threads import map_parallel
from airflow_paimon.core.table.manifest_lists import count_live_files
from airflow_paimon.core.table.name_digests import ANY_NAME, Digests, digests_of
from airflow_paimon.core.table.paths import PRIVATE_DIR
from airflow_paimon.core.table.spill import DigestRanges, SortedColumns, SpillBuffer, SpilledBytes, concat_columns
from airflow_paimon.core.table.table import Table

Places = npt.NDArray[np.int64]
"""Where the paths of files lie: number of the part, and place in it."""
_PLACE_BITS = 32
_NO_UUID = "0" * 32
_EXAMPLES = 20
_LISTINGS_AT_ONCE = 16
_MANY = 500_000
"""Files from which on the folders are listed side by side: an object store lists 1,000 in a request."""


@dataclass(slots=True)
class ListedFiles:
    """The files of a table's folder. ``prefixes``: of data and changelog files.

    ``candidates``: those that can be orphans, by the digests of their names. ``active_writers``: writers of those that
    are not older than ``before_ms``. ``unknown``: those whose names no known writer gives, with some ``examples`` of
    their paths. ``other_files``, if ``lists_other_files``: all but the candidates, the unknown ones and this package's
    own files among them.
    """

    runs: SpillBuffer
    prefixes: Prefixes
    lists_other_files: bool = False
    before_ms: int | None = None
    candidates: list[SortedColumns] = field(default_factory=list)
    active_writers: Digests = field(default_factory=lambda: np.zeros(0, np.uint64))
    unknown: Sums = field(default_factory=Sums)
    examples: list[str] = field(default_factory=list)
    other_files: list[FileInfo] = field(default_factory=list)
    _paths: list[SpilledBytes] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """How many candidates there are."""
        return sum(run.rows for run in self.candidates)

    def add(self, infos: Iterable[FileInfo]) -> None:
        """Add some files."""
        classify = FileClassifier(self.prefixes).classify
        found: list[tuple[FileInfo, tuple[str, str]]] = []
        unknown: list[FileInfo] = []
        for info in infos:
            kind = None if info.name.startswith(f"{PRIVATE_DIR}/") else classify(info.name)
            if kind is not None and kind is not UNKNOWN:
                found.append((info, kind))
                continue
            if kind is UNKNOWN:
                unknown.append(info)
            if self.lists_other_files:
                self.other_files.append(info)
        self.unknown += Sums(len(unknown), sum(f.size for f in unknown))
        self.examples = sorted([*self.examples, *(f.name for f in unknown)])[:_EXAMPLES]
        if found:
            self._add_candidates(found)

    def _add_candidates(self, found: Sequence[tuple[FileInfo, tuple[str, str]]]) -> None:
        candidates = _columns_of(found)
        if self.before_ms is not None:
            self.active_writers = np.union1d(self.active_writers, candidates.active_writers(self.before_ms))
        places = (len(self._paths) << _PLACE_BITS) + np.arange(len(found), dtype=np.int64)
        self.candidates.append(self.runs.add((*candidates, places)))
        paths = "\0".join([info.name for info, _ in found]).encode(errors=ANY_NAME)
        self._paths.append(self.runs.keep(zlib.compress(paths, 1)))

    def by_ranges(self, cuts: Digests) -> Iterator[tuple[CandidateColumns, Places]]:
        """Return the candidates of each range of digests, with where their paths lie."""
        ranges = DigestRanges(self.candidates, cuts)
        for at in range(len(ranges)):
            *columns, places = concat_columns(ranges.parts(at), (*COLUMN_TYPES, np.int64))
            yield CandidateColumns._make(columns), places

    def values(self, c: CandidateColumns, places: Places, chosen: npt.NDArray[np.bool_]) -> Iterator[Candidate]:
        """Return some of the candidates of a range as values."""
        where = chosen.nonzero()[0]
        where = where[np.argsort(places[where])]
        number, paths = -1, [""]
        for at, place in zip(where.tolist(), places[where].tolist(), strict=True):
            if place >> _PLACE_BITS != number:
                number = place >> _PLACE_BITS
                paths = zlib.decompress(self._paths[number].read()).decode(errors=ANY_NAME).split("\0")
            yield c.candidate(paths[place & (1 << _PLACE_BITS) - 1], at)


def list_in_parts(table: Table, add: Callable[[Sequence[FileInfo]], None]) -> None:
    """List all files of a table's folder, in parts; ``add`` is called with one after the other."""

    adding = threading.Lock()

    def add_all(folder: str) -> None:
        for infos in table.store.files_in_parts(folder):
            with adding:
                add(infos)

    try:
        is_large = count_live_files(table, table.latest_snapshot()) >= _MANY
    except (FormatError, NotFoundError):  # whoever needs these lists says it
        is_large = False
    if not is_large:
        add_all("")
        return
    folders, objects = table.store.divided("")
    add(objects)
    map_parallel(add_all, folders, _LISTINGS_AT_ONCE)


def _columns_of(found: Sequence[tuple[FileInfo, tuple[str, str]]]) -> CandidateColumns:
    """Return candidates as columns. ``found``: each with its kind, and the uuid of its writer, "" for none."""
    infos, writers = [info for info, _ in found], [writer for _, (_, writer) in found]
    joined = "".join([uuid or _NO_UUID for uuid in writers]).replace("-", "")
    halves = np.frombuffer(bytes.fromhex(joined), ">u8").reshape(len(writers), 2)
    numbers = np.maximum(halves[:, 0] ^ halves[:, 1], 1).astype(np.uint64)
    numbers[np.array([not uuid for uuid in writers], bool)] = 0
    return CandidateColumns(
        names=digests_of([info.name.rpartition("/")[2] for info in infos]),
        sizes=np.array([info.size for info in infos], np.int64),
        times=np.array([NO_TIME if info.modified_ms is None else info.modified_ms for info in infos], np.int64),
        kinds=np.array([KINDS.index(kind) for _, (kind, _) in found], np.int8),
        writers=numbers,
    )
