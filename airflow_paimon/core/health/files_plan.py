"""Figures of a table's live files: small ones, sorted runs, rows that wait for a compaction, skew. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from airflow_paimon.core.format.manifest import EntryColumns, IndexEntry
from airflow_paimon.core.table.features import clustering_options
from airflow_paimon.core.table.live_files import SMALL_FILE_RATIO, BucketSplit, count_sorted_runs
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
    partition: Hashable
    bucket: int
    files: Sequence[LiveFile]


def groups_of_columns(branch: str, columns: EntryColumns) -> list[FileGroup]:
    """Group live files, given as columns of their manifest entries."""
    found: dict[tuple[bytes, int], list[LiveFile]] = {}
    places = zip(columns.partitions, columns.buckets, strict=True)
    files = map(LiveFile, columns.file_names, columns.file_sizes, columns.row_counts, columns.levels)
    for place, file in zip(places, files, strict=True):
        found.setdefault(place, []).append(file)
    return [FileGroup(branch, *place, files) for place, files in found.items()]


def groups_of_splits(branch: str, splits: Iterable[BucketSplit]) -> list[FileGroup]:
    """Group the live files of a planned read."""
    return [
        FileGroup(
            branch,
            s.values,
            s.bucket,
            [LiveFile(f.file_name, f.file_size, f.row_count, f.level) for f in s.files],
        )
        for s in splits
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRules:
    """What makes a file small and a bucket deep.

    ``small_below``: bytes; ``min_files``: so many small files of a bucket are worth a compaction; ``most_runs``: sorted
    runs that writers leave in a bucket (``num-sorted-run.compaction-trigger``). ``hides_level_zero``: batch readers
    skip level 0. ``buckets``: of each partition, 0 where that isn't fixed. ``clustered``: rows lie in the order of some
    columns, which only Paimon's own compaction keeps.
    """

    keyed: bool
    small_below: int
    min_files: int
    most_runs: int
    hides_level_zero: bool
    buckets: int
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
        buckets=max(options.bucket, 0),
        target=options.target_file_size,
        clustered=bool(clustering_options(options)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFigures:
    """Figures of live files; of a chain table, of its three branches together.

    ``small_files``: below 0.7 of ``target-file-size``. ``crowded_*``: of append tables, the buckets (without fixed
    buckets: the partitions) whose small files compaction writes together. ``most_runs``: the sorted runs of the deepest
    bucket of a primary-key table, ``mean_runs`` on average; ``deep_*``: buckets with more runs than their writers
    leave. ``waiting_rows``: of primary-key tables on level 0 or in the postponed bucket, of append tables in small
    files that compaction takes; ``hidden_rows``: those of them that batch readers don't see until then.
    ``bucket_skew``: the largest bucket of a partition in proportion to the mean, ``partition_skew``: the largest
    partition likewise; 1 = even.
    """

    files: int = 0
    bytes: int = 0
    rows: int = 0
    partitions: int = 0
    buckets: int = 0
    small_files: int = 0
    small_bytes: int = 0
    crowded_buckets: int = 0
    crowded_files: int = 0
    crowded_bytes: int = 0
    crowded_branch: str = ""
    most_runs: int = 0
    mean_runs: float = 0.0
    deep_buckets: int = 0
    deep_bytes: int = 0
    deep_branch: str = ""
    waiting_rows: int = 0
    hidden_rows: int = 0
    bucket_skew: float = 1.0
    partition_skew: float = 1.0
    largest_partition_bytes: int = 0


def count_files(groups: Sequence[FileGroup], rules: FileRules) -> FileFigures:
    """Count the live files of a table."""
    small = [[f for f in g.files if f.size < rules.small_below] for g in groups]
    runs = [count_sorted_runs(f.level for f in g.files) if rules.keyed else 0 for g in groups]
    crowded = [at for at, some in enumerate(small) if not rules.keyed and _is_crowded(some, rules)]
    deep = [at for at, number in enumerate(runs) if number > rules.most_runs]
    sizes = [sum(f.size for f in g.files) for g in groups]
    waiting, hidden = _waiting(groups, rules)
    bucket_skew, partition_skew, largest = _skew(groups, sizes, rules)
    return FileFigures(
        files=sum(len(g.files) for g in groups),
        bytes=sum(sizes),
        rows=sum(f.rows for g in groups for f in g.files),
        partitions=len({(g.branch, g.partition) for g in groups}),
        buckets=len(groups),
        small_files=sum(map(len, small)),
        small_bytes=sum(f.size for some in small for f in some),
        crowded_buckets=len(crowded),
        crowded_files=sum(len(small[at]) for at in crowded),
        crowded_bytes=sum(f.size for at in crowded for f in small[at]),
        crowded_branch=_worst(groups, {at: len(small[at]) for at in crowded}),
        most_runs=max(runs, default=0),
        mean_runs=round(sum(runs) / len(runs), 2) if runs else 0.0,
        deep_buckets=len(deep),
        deep_bytes=sum(sizes[at] for at in deep),
        deep_branch=_worst(groups, {at: runs[at] for at in deep}),
        waiting_rows=waiting if rules.keyed else sum(f.rows for at in crowded for f in small[at]),
        hidden_rows=hidden,
        bucket_skew=bucket_skew,
        partition_skew=partition_skew,
        largest_partition_bytes=largest,
    )


def _is_crowded(small: Sequence[LiveFile], rules: FileRules) -> bool:
    """Whether a compaction takes the small files of a bucket, and at least two of them fit into one file."""
    if rules.clustered:
        return False
    return len(small) >= rules.min_files and sum(sorted(f.size for f in small)[:2]) <= rules.target


def _worst(groups: Sequence[FileGroup], weights: Mapping[int, int]) -> str:
    return groups[max(weights, key=weights.__getitem__)].branch if weights else ""


def _waiting(groups: Iterable[FileGroup], rules: FileRules) -> tuple[int, int]:
    """Count the rows of a primary-key table that wait for a compaction, and those that readers skip until then."""
    if not rules.keyed:
        return 0, 0
    waiting = hidden = 0
    for group in groups:
        postponed = group.bucket == POSTPONED_BUCKET
        rows = sum(f.rows for f in group.files if postponed or f.level == 0)
        waiting += rows
        hidden += rows if postponed or rules.hides_level_zero else 0
    return waiting, hidden


def _skew(groups: Sequence[FileGroup], sizes: Sequence[int], rules: FileRules) -> tuple[float, float, int]:
    """Return the skew of buckets and of partitions, and the bytes of the largest partition.

    Small partitions count as even: their buckets have a file each, whose sizes say nothing.
    """
    of_partition: dict[Hashable, list[int]] = defaultdict(list)
    for group, size in zip(groups, sizes, strict=True):
        of_partition[group.branch, group.partition].append(size)
    totals = {key: sum(some) for key, some in of_partition.items()}
    uneven = [
        max(some) * max(len(some), rules.buckets) / totals[key]
        for key, some in of_partition.items()
        if totals[key] >= 2 * rules.target and max(len(some), rules.buckets) > 1
    ]
    largest = max(totals.values(), default=0)
    even = not largest or len(totals) < 2
    skew = 1.0 if even else largest * len(totals) / sum(totals.values())
    return round(max(uneven, default=1.0), 2), round(skew, 2), largest


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionFigures:
    """Rows that deletion vectors mark as deleted, as far as the index says, and the data files that have a vector."""

    rows: int = 0
    files: int = 0
    bytes: int = 0


def count_deletions(groups: Iterable[FileGroup], index: Iterable[IndexEntry]) -> DeletionFigures:
    """Count what deletion vectors mark. Releases before Paimon 1.0 don't say how many rows that are."""
    vectors = dict(_vectors(index))
    if not vectors:
        return DeletionFigures()
    marked = [f for g in groups for f in g.files if f.name in vectors]
    return DeletionFigures(
        rows=sum(vectors[f.name] or 0 for f in marked), files=len(marked), bytes=sum(f.size for f in marked)
    )


def _vectors(index: Iterable[IndexEntry]) -> Iterator[tuple[str, int | None]]:
    for entry in index:
        for found in entry.deletion_vector_ranges or ():
            if found is not None:
                yield found.data_file, found.cardinality
