"""Keys, of the head of a branch: one twice in a bucket that is read without a merge, one in two partitions of a table
that has one row of a key in all of them; partitions with files for different numbers of buckets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from airflow_paimon.core.check.live_states import LiveStates
from airflow_paimon.core.check.row_checks import FindKeysInTwoPartitions, FindKeysTwice
from airflow_paimon.core.commit.conditions import has_moving_keys
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.plan import CompactPartition
from airflow_paimon.core.requests.findings import ERROR, INFO, Finding
from airflow_paimon.core.table.live_entries import live_buckets
from airflow_paimon.core.table.live_files import BucketKey
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.table import Table
from airflow_paimon.core.table.visibility import has_unique_keys

KEYS_TWICE = "keys-twice"


def bucket_count_findings(view: Table, known: LiveStates) -> Iterator[Finding]:
    """Find partitions of the head with files for different numbers of fixed buckets. ``known``: what was read of the
    table before.
    """
    schema, head = view.schema(), view.latest_snapshot()
    if head is None or TableOptions(schema.options).bucket < 1:
        return
    stored = StoredPartitions(schema)
    mixed = _mixed(stored, known.totals(view, head))
    if mixed:  # deleted files are among them
        live = live_buckets(view, head)
        mixed = _mixed(stored, ((partition, total) for (partition, _), totals in live.items() for total in totals))
    if mixed:
        one = min(mixed, key=stored.text)
        counts = sorted(mixed[one])
        yield Finding(
            kind="bucket-counts",
            subject=view.branch_name,
            severity=ERROR,
            message=f"{view.label}: {len(mixed)} partitions have files for different numbers of buckets, e.g. "
            f"{stored.text(one) or '()'} has files for {' and for '.join(map(str, counts))} buckets: a writer of "
            f"another engine stayed open while it was rescaled",
            at_risk="reads return a key twice that is in both, and writers refuse the partition; INSERT OVERWRITE of "
            "the partition's rows, each key once, helps",
        )


def _mixed(stored: StoredPartitions, totals: Iterable[tuple[bytes, int]]) -> dict[bytes, set[int]]:
    """Return the partitions, in canonical form, with more than one number of buckets."""
    found: dict[bytes, set[int]] = {}
    for partition, total in totals:
        if total > 0:
            found.setdefault(stored.canonical(partition), set()).add(total)
    return {partition: some for partition, some in found.items() if len(some) > 1}


def keys_twice_findings(view: Table, find_keys: FindKeysTwice | None) -> Iterator[Finding]:
    """Check the head of a branch. ``find_keys`` None: nothing, as only the rows tell.

    A writer that stays open over a commit which replaces files of its bucket doesn't mark the replaced rows as deleted
    in the new files (measured with Flink 2.0.1 and Paimon 1.4.2).
    """
    schema, head = view.schema(), view.latest_snapshot()
    if head is None or find_keys is None or not schema.primary_keys or not has_unique_keys((), schema):
        return
    found = dict(find_keys(view, head))
    twice = {bucket: key for bucket, key in found.items() if key is not None}
    text = StoredPartitions(schema).text
    if len(twice) < len(found):
        large = min(text(b.partition) for b in found.keys() - twice.keys())
        yield Finding(
            kind="keys-not-compared",
            subject=view.branch_name,
            severity=INFO,
            message=(
                f"{view.label}: {len(found) - len(twice)} buckets, e.g. of {large or '()'}, have too many keys to "
                "search for duplicates"
            ),
            at_risk="nothing, if no job had them open when their files were replaced",
        )
    if twice:
        yield _keys_twice(view, schema, twice, {text(b.partition) for b in twice})


def _keys_twice(view: Table, schema: TableSchema, twice: Mapping[BucketKey, str], partitions: set[str]) -> Finding:
    """A compaction keeps the newer one of two whole rows; other merge engines would merge values that were replaced."""
    keeps_newest = TableOptions(schema.options).merge_engine == "deduplicate"
    bucket, key = min(twice.items())
    name = StoredPartitions(schema).text(bucket.partition)
    heals = "" if keeps_newest else "; a compaction would merge both rows: overwrite them, each key once"
    return Finding(
        kind=KEYS_TWICE,
        subject=view.branch_name,
        severity=ERROR,
        message=f"{view.label}: batch reads of {len(twice)} buckets give a key twice, e.g. {key} in "
        f"{name or '()'}, bucket {bucket.bucket}: a job had them open while their files were replaced",
        at_risk=f"reads return such a key twice until the bucket is compacted{heals}",
        repair="compact the partitions; the newer row of each key stays" if keeps_newest else None,
        actions=tuple(
            CompactPartition(
                path=f"{view.branch_name}: {p}", branch=view.branch_name, partition=p, reason="a key occurs twice"
            )
            for p in sorted(partitions)
            if keeps_newest
        ),
        by_name_only=True,
    )


def moving_key_findings(view: Table, find_keys: FindKeysInTwoPartitions | None) -> Iterator[Finding]:
    """Check the head of a branch. ``find_keys`` None: nothing, as only the rows tell."""
    schema, head = view.schema(), view.latest_snapshot()
    if head is None or find_keys is None or not has_moving_keys(schema):
        return
    found = find_keys(view, head)
    if found is None:
        yield Finding(
            kind="keys-not-compared",
            subject=view.branch_name,
            severity=INFO,
            message=f"{view.label}: the table has too many keys to search for one that two partitions have",
            at_risk="nothing, if every writer has read the keys of the whole table",
        )
    elif found:
        key, one, other = found[0]
        yield Finding(
            kind="key-in-two-partitions",
            subject=view.branch_name,
            severity=ERROR,
            message=f"{view.label}: {len(found)} keys are in two partitions, e.g. {key} in {one} and {other}",
            at_risk="reads give both rows, and every engine refuses to write; overwrite one of the partitions without "
            "the row (write_table or write_arrow with mode=overwrite)",
        )
