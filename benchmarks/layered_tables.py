"""Tables of entries alone whose reads need more than one file of a row: branches that are read together, chain tables,
and files of some columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from airflow_paimon.core.commit.committer import commit
from airflow_paimon.core.commit.draft import Draft
from airflow_paimon.core.format.binary_row import encode_row
from airflow_paimon.core.format.manifest import ManifestEntry
from airflow_paimon.core.format.snapshot import CommitKind
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.table import Table
from benchmarks.metadata import BUCKETS, new_file

DAYS, FULL_EVERY = 1000, 10
_CHAINED = {
    "chain-table.enabled": "true",
    "scan.fallback-snapshot-branch": "snapshot",
    "scan.fallback-delta-branch": "delta",
    "partition.timestamp-pattern": "$dt",
    "partition.timestamp-formatter": "yyyyMMdd",
}


def make_chain(warehouse: Path, files: int) -> int:
    """Make a chain table with a full partition every ten days; return how many files a read needs."""
    main = _make(warehouse, keyed=True)
    branches = [_branch(main, name) for name in ("snapshot", "delta")]
    full = range(0, DAYS, FULL_EVERY)
    changed = [day for day in range(DAYS) if day % FULL_EVERY]
    for branch, days in zip(branches, (full, changed), strict=True):
        _commit(branch, _entries(branch, days, files // DAYS))
    for one in (main, *branches):
        _set_options(one, _CHAINED)
    return files // DAYS * DAYS


def make_fallback(warehouse: Path, files: int) -> int:
    """Make a table with the first half of the days, which reads the others in a branch that has three quarters of them;
    return how many files a read needs.
    """
    main = _make(warehouse, keyed=True)
    other = _branch(main, "other")
    per_day = files * 4 // DAYS // 5
    _commit(main, _entries(main, range(DAYS // 2), per_day))
    _commit(other, _entries(other, range(DAYS // 4, DAYS), per_day))
    _set_options(main, {"scan.fallback-branch": "other"})
    return DAYS * per_day


def make_evolved(warehouse: Path, files: int) -> int:
    """Make a table with data evolution, a column of every fourth file in a later file; return how many files a read
    needs.
    """
    table = _make(warehouse, keyed=False)
    _commit(table, _entries(table, range(DAYS), files * 4 // 5 // DAYS))
    _set_options(table, {"data-evolution.enabled": "true"})
    held = list(live_entries(table, table.latest_snapshot()).values())
    later = [
        e._replace(file=new_file(n, b"")._replace(first_row_id=e.file.first_row_id, write_cols=("v",), schema_id=1))
        for n, e in enumerate(held[::4])
    ]
    _commit(table, later)
    return len(held) + len(later)


MAKE: Mapping[str, Callable[[Path, int], int]] = {
    "chain": make_chain,
    "fallback branch": make_fallback,
    "data evolution": make_evolved,
}


def _make(warehouse: Path, *, keyed: bool) -> Table:
    options = {"bucket": str(BUCKETS), "sequence.field": "s"} if keyed else {"row-tracking.enabled": "true"}
    return create_table(
        str(warehouse),
        "d.big",
        [("k", "BIGINT NOT NULL"), ("v", "STRING"), ("s", "INT"), ("dt", "STRING NOT NULL")],
        partition_keys=["dt"],
        primary_keys=["dt", "k"] if keyed else [],
        options=options,
    )


def _branch(main: Table, name: str) -> Table:
    branch = main.branch(name)
    branch.store.create(branch.paths.schema(0), main.store.read(main.paths.schema(0)))
    return branch


def _set_options(table: Table, options: Mapping[str, str]) -> None:
    schema = table.schema()
    following = replace(schema, id=schema.id + 1, options={**schema.options, **options})
    table.store.create(table.paths.schema(following.id), following.to_bytes())


def _entries(table: Table, days: Sequence[int], per_day: int) -> Iterator[ManifestEntry]:
    """Give a day's files, by bucket where rows have keys; no two of a bucket and day have the same keys."""
    schema = table.schema()
    types, buckets = schema.partition_types, BUCKETS if schema.primary_keys else -1
    for day in days:
        partition = encode_row((f"{2020 + day // 336}{day // 28 % 12 + 1:02}{day % 28 + 1:02}",), types)
        for number in range(per_day):
            key = encode_row((number,), (schema.field("k").type,)) if schema.primary_keys else b""
            bucket = number % BUCKETS if schema.primary_keys else 0
            yield ManifestEntry(0, partition, bucket, buckets, new_file(number, key))


def _commit(table: Table, entries: Iterator[ManifestEntry] | Sequence[ManifestEntry]) -> None:
    draft = Draft(kind=CommitKind.APPEND, entries=list(entries), schema=table.schema())
    commit(table, lambda _: draft)
