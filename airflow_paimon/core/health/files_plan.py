"""Figures of a table's live files: small ones, sorted runs, rows that wait for a compaction. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from airflow_paimon.core.format.manifest import EntryColumns, IndexEntry
from airflow_paimon.core.table.features import clustering_options
from airflow_paimon.core.table.live_files import SMALL_FILE_RATIO, count_sorted_runs
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.paths import POSTPONED_BUCKET


class LiveFile(NamedTuple):
    """What is needed of a live file. ``size``: bytes; ``rows``: as the manifest counts them, before any merge."""

    name: str
    size: int
    rows: int
    level: int


class FileGroup(NamedTuple):
    """The live files of one bucket of one branch."""

    branch: str
    partition: bytes
    bucket: int
    files: Sequence[LiveFile]


def group_files(branch: str, columns: EntryColumns) -> list[FileGroup]:
    """Group live files, given as columns of their manifest entries."""
    found: dict[tuple[bytes, int], list[LiveFile]] = {}
    places = zip(columns.partitions, columns.buckets, strict=True)
    files = map(LiveFile, columns.file_names, columns.file_sizes, columns.row_counts, columns.levels)
    for place, file in zip(places, files, strict=True):
        found.setdefault(place, []).append(file)
    return [FileGroup(branch, *place, files) for place, files in found.items()]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRules:
    """What makes a file small and a bucket deep.

    ``small_below``: bytes; ``min_files``: so many small files of a bucket are worth a compaction; ``most_runs``: sorted
    runs that writers leave in a bucket (``num-sorted-run.compaction-trigger``). ``hides_level_zero``: batch readers
    skip level 0. ``clustered``: rows lie in the order of some columns, which only Paimon's own compaction keeps.
    """

    keyed: bool
    small_below: int
    min_files: int
    most_runs: int
    hides_level_zero: bool
    target: int
    clustered: bool = False


def rules_of(options: TableOptions, *, keyed: bool, hides_level_zero: bool, min_files: int) -> FileRules:
    """Return the rules that a table's options make."""
    return FileRules(
        keyed=keyed,
        small_below=int(SMALL_FILE_RATIO * options.target_file_size),
        min_files=min_files,
        most_runs=options.number("num-sorted-run.compaction-trigger", 5),
        hides_level_zero=hides_level_zero,
        target=options.target_file_size,
        clustered=bool(clustering_options(options)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFigures:
    """Figures of live files; of a chain table, of its three branches together.

    ``small_files``: below 0.7 of ``target-file-size``. ``crowded_*``: of append tables, the buckets (without fixed
    buckets: the partitions) whose small files compaction writes together. ``most_runs``: the sorted runs of the deepest
    bucket of a primary-key table; ``deep_*``: buckets with more runs than their writers leave. ``*_branch``: of the
    worst of them. ``waiting_rows``: of primary-key tables on level 0 or in the postponed bucket, of append tables in
    small files that compaction takes; ``hidden_rows``: those of them that batch readers don't see until then.
    """

    files: int = 0
    bytes: int = 0
    rows: int = 0
    partitions: int = 0
    buckets: int = 0
    small_files: int = 0
    crowded_buckets: int = 0
    crowded_files: int = 0
    crowded_bytes: int = 0
    crowded_branch: str = ""
    most_runs: int = 0
    deep_buckets: int = 0
    deep_bytes: int = 0
    deep_branch: str = ""
    waiting_rows: int = 0
    hidden_rows: int = 0


def count_files(groups: Sequence[FileGroup], rules: FileRules) -> FileFigures:
    """Count the live files of a table."""
    files = [f for g in groups for f in g.files]
    small = [[f for f in g.files if f.size < rules.small_below] for g in groups]
    # A compaction takes small files where at least two of them fit into one.
    crowded = [
        (g, some)
        for g, some in zip(groups, small, strict=True)
        if not (rules.keyed or rules.clustered)
        and len(some) >= rules.min_files
        and sum(sorted(f.size for f in some)[:2]) <= rules.target
    ]
    taken = [f for _, some in crowded for f in some]
    runs = [(g, count_sorted_runs(f.level for f in g.files)) for g in groups if rules.keyed]
    deep = [(g, number) for g, number in runs if number > rules.most_runs]
    postponed = [g.bucket == POSTPONED_BUCKET for g in groups]
    waiting = [
        sum(f.rows for f in g.files if is_postponed or f.level == 0) if rules.keyed else 0
        for g, is_postponed in zip(groups, postponed, strict=True)
    ]
    hidden = (
        rows for rows, is_postponed in zip(waiting, postponed, strict=True) if is_postponed or rules.hides_level_zero
    )
    return FileFigures(
        files=len(files),
        bytes=sum(f.size for f in files),
        rows=sum(f.rows for f in files),
        partitions=len({(g.branch, g.partition) for g in groups}),
        buckets=len(groups),
        small_files=sum(map(len, small)),
        crowded_buckets=len(crowded),
        crowded_files=len(taken),
        crowded_bytes=sum(f.size for f in taken),
        crowded_branch=max(crowded, key=lambda pair: len(pair[1]))[0].branch if crowded else "",
        most_runs=max((number for _, number in runs), default=0),
        deep_buckets=len(deep),
        deep_bytes=sum(f.size for g, _ in deep for f in g.files),
        deep_branch=max(deep, key=lambda pair: pair[1])[0].branch if deep else "",
        waiting_rows=sum(waiting) if rules.keyed else sum(f.rows for f in taken),
        hidden_rows=sum(hidden),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionFigures:
    """Rows that deletion vectors mark as deleted, as far as the index says, and the data files that have a vector."""

    rows: int = 0
    files: int = 0
    bytes: int = 0


def count_deletions(groups: Iterable[FileGroup], index: Iterable[IndexEntry]) -> DeletionFigures:
    """Count what deletion vectors mark. Releases before Paimon 1.0 don't say how many rows that are."""
    ranges = (found for entry in index for found in entry.deletion_vector_ranges or () if found is not None)
    vectors = {found.data_file: found.cardinality for found in ranges}
    marked = [f for g in groups for f in g.files if f.name in vectors] if vectors else []
    return DeletionFigures(
        rows=sum(vectors[f.name] or 0 for f in marked), files=len(marked), bytes=sum(f.size for f in marked)
    )
