"""Writes the changelog of a publish: compares the rows of the buckets that it replaces."""

from __future__ import annotations

from airflow_paimon.core.format.manifest import FileKind, ManifestEntry
from airflow_paimon.core.publish.changelog import BucketsState, ReplacedBuckets
from airflow_paimon.core.publish.row_ids import delete_files
from airflow_paimon.core.table.features import check_file, check_index, check_mergeable
from airflow_paimon.core.table.live_files import BucketSplit
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.stored_partitions import StoredPartitions
from airflow_paimon.core.table.vector_files import find_deletions
from airflow_paimon.data.merge.sections import plan_sections
from airflow_paimon.data.merge_changelog import producer_of
from airflow_paimon.data.net_changelog import BucketState, ChangelogTarget, net_changelog
from airflow_paimon.data.scan import ReadSplit, TableRead, deletions_of

_States = tuple[list[BucketState], list[BucketState]]


def write_changelog(replaced: ReplacedBuckets) -> list[ManifestEntry]:
    """Write the net changes, a file for each bucket with changes; in this process, one bucket after the other, in
    bounded memory. Both sides are read.

    Raises:
        FormatError: a file is missing or corrupt; the written files are deleted. UnsupportedFeatureError: a table that
            this engine can't merge.
    """
    target, schema = replaced.target, replaced.schema
    producer = producer_of(schema)
    if producer is None:
        return []
    check_mergeable(schema, table=target.label, branch=target.branch_name)
    changelog = ChangelogTarget(store=target.store, schema=schema, producer=producer)
    out: list[ManifestEntry] = []
    try:
        for before, after in _groups(replaced):
            places = {s.bucket.bucket: s.bucket for _, s in (*before, *after)}
            for bucket, files in net_changelog(changelog, before, after).items():
                place = places[bucket]
                out += [
                    ManifestEntry(FileKind.ADD.value, place.partition, bucket, place.total_buckets, f) for f in files
                ]
    except BaseException:
        delete_files(target, out)
        raise
    return out


def _groups(replaced: ReplacedBuckets) -> list[_States]:
    """Return the buckets one by one, or, where a key may move from one to another, those of a partition together."""
    stored = StoredPartitions(replaced.schema)
    sides = [replaced.before, replaced.after]
    totals: dict[bytes, set[int]] = {}
    for split in (s for side in sides for s in side.buckets):
        totals.setdefault(stored.canonical(split.partition), set()).add(split.total_buckets)
    apart = TableOptions(replaced.schema.options).bucket > 0
    groups: dict[tuple[bytes, int], _States] = {}
    for at, side in enumerate(sides):
        for split, state in zip(side.buckets, _states(replaced, side), strict=True):
            partition = stored.canonical(split.partition)
            bucket = split.bucket if apart and len(totals[partition]) == 1 else -1
            if split.bucket >= 0:  # postponed rows are told when they have got their bucket
                groups.setdefault((partition, bucket), ([], []))[at].append(state)
    return [groups[key] for key in sorted(groups)]


def _states(replaced: ReplacedBuckets, side: BucketsState) -> list[BucketState]:
    label, schema = replaced.target.label, replaced.schema
    check_index(side.index, table=label)
    deletions = find_deletions(side.index, schema)
    read = TableRead(
        store=replaced.target.store,
        label=label,
        schema=schema,
        schemas=replaced.schemas,
        columns=schema.field_names,
    )
    types = [f.type for f in schema.key_fields]

    def state(split: BucketSplit) -> BucketState:
        for file in split.files:
            check_file(file, replaced.schemas[file.schema_id], table=label)
        own = deletions_of(deletions, split.files)
        return read, ReadSplit(bucket=split, sections=tuple(plan_sections(split.files, types)), deletions=own)

    return [state(split) for split in side.buckets]
