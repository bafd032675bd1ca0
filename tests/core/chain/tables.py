"""Small chain tables for metadata tests: real manifests and provenance, placeholders for data files."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_paimon.core.chain.layout import ChainBranch, Values
from airflow_paimon.core.chain.provenance import StalePartition, find_stale, gather_provenances, record_provenance
from airflow_paimon.core.chain.provenance_plan import Part, Provenance
from airflow_paimon.core.chain.state import ChainState, files_digest, gather_chain, state_digests
from airflow_paimon.core.commit.draft import CommitMessage, Receipt
from airflow_paimon.core.commit.files import commit_append, commit_buckets, commit_overwrite, drop_partitions
from airflow_paimon.core.format.binary_row import encode_row
from airflow_paimon.core.format.manifest import EMPTY_STATS, DataFile
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.snapshot import CommitKind
from airflow_paimon.core.schema.schema_plan import SchemaChange, apply_changes
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.data_file_paths import bucket_folder
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.live_files import BucketSplit
from airflow_paimon.core.table.table import Table

DAILY = {
    "chain-table.enabled": "true",
    "scan.fallback-snapshot-branch": "snapshot",
    "scan.fallback-delta-branch": "delta",
    "partition.timestamp-pattern": "$dt",
    "partition.timestamp-formatter": "yyyyMMdd",
}


def make_chain(
    warehouse: Path | str,
    *,
    partitions: Sequence[str] = ("dt",),
    options: Mapping[str, str] = DAILY,
    name: str = "d.t",
) -> Table:
    """Key ``k``, sequence ``s``, value ``v``; partition columns are texts."""
    table = create_table(
        str(warehouse),
        name,
        [("k", "BIGINT NOT NULL"), ("s", "BIGINT"), ("v", "STRING"), *((p, "STRING NOT NULL") for p in partitions)],
        partition_keys=partitions,
        primary_keys=[*partitions, "k"],
        options={"bucket": "2", "sequence.field": "s", **options},
    )
    for name in ("snapshot", "delta"):
        branch = table.branch(name)
        branch.store.create(branch.paths.schema(0), table.store.read(table.paths.schema(0)))
    return table


def placeholder(schema: TableSchema, table: Table, values: Values, bucket: int) -> DataFile:
    """One new file of a bucket."""
    file_name = f"data-{uuid.uuid4()}-0.parquet"
    table.store.create(f"{bucket_folder(schema, values, bucket)}/{file_name}", b"placeholder")
    key = encode_row((1,), tuple(f.type for f in schema.key_fields))
    return DataFile(file_name, 11, 1, key, key, EMPTY_STATS, EMPTY_STATS, 0, 0, schema.id, 5,
                    file_source=0, delete_row_count=0, value_stats_cols=())  # fmt: skip


def message(table: Table, values: Values, bucket: int = 0, replaced: Sequence[DataFile] = ()) -> CommitMessage:
    schema = table.schema()
    return CommitMessage(
        partition=encode_row(values, schema.partition_types),
        bucket=bucket,
        total_buckets=2,
        new_files=(placeholder(schema, table, values, bucket),),
        replaced=tuple(replaced),
    )


def parts(text: str) -> Values:
    """``"CN/20250101"`` as values."""
    return tuple(text.split("/"))


def add(branch: Table, text: str, bucket: int = 0) -> Receipt:
    """Append one file; sequence numbers don't matter here, so nothing is planned on."""
    return commit_append(branch, [message(branch, parts(text), bucket)], planned_on=branch.latest_snapshot())


def overwrite(branch: Table, text: str) -> Receipt:
    spec = dict(zip(branch.schema().partition_keys, parts(text), strict=True))
    return commit_overwrite(branch, [message(branch, parts(text))], partitions=[spec])


def drop(branch: Table, *texts: str) -> Receipt:
    keys = branch.schema().partition_keys
    return drop_partitions(branch, [dict(zip(keys, parts(t), strict=True)) for t in texts])


def compact(branch: Table, text: str, bucket: int = 0) -> Receipt:
    """Rewrite one bucket as an engine's compaction does: other files, the same rows."""
    partition = encode_row(parts(text), branch.schema().partition_types)
    live = live_entries(branch, branch.latest_snapshot()).values()
    replaced = [e.file for e in live if (e.partition, e.bucket) == (partition, bucket)]
    return commit_buckets(
        branch,
        [message(branch, parts(text), bucket, replaced)],
        kind=CommitKind.COMPACT,
        operation=None,
    )


def build(table: Table, text: str, anchor: str | None, deltas: Sequence[str]) -> None:
    """Write a snapshot partition with the record of what it was built from, as a chain compaction does."""
    state = gather_chain(table)
    values = parts(text)
    branch = table.branch("snapshot")
    new = message(branch, values)
    digests: Any = {b: state_digests(state, b) for b in (ChainBranch.SNAPSHOT, ChainBranch.DELTA)}
    split = BucketSplit(new.partition, values, 0, 2, new.new_files)
    record = Provenance(
        values=values,
        files=files_digest([split]),
        anchor=None
        if anchor is None
        else Part(values=parts(anchor), files=digests[ChainBranch.SNAPSHOT][parts(anchor)]),
        deltas=tuple(Part(values=parts(d), files=digests[ChainBranch.DELTA][parts(d)]) for d in deltas),
        snapshots=state.snapshot_ids,
        origin="test",
        created_at="2026-11-21T00:00:00+00:00",
    )
    record_provenance(table, state.layout, record)
    spec = dict(zip(state.layout.partition_keys, values, strict=True))
    commit_overwrite(branch, [new], partitions=[spec])


def make_stale_chain(folder: Path) -> Table:
    """d.c: a group of several days, one of which is stale in the snapshot branch, and a group of one day."""
    chain = make_chain(
        folder,
        name="d.c",
        partitions=("region", "dt"),
        options={**DAILY, "chain-table.chain-partition-keys": "dt"},
    )
    for day in ("01", "02", "03", "06", "07", "09"):
        add(chain.branch("delta"), f"CN/202501{day}")
    add(chain.branch("delta"), "US/20250101")
    build(chain, "CN/20250102", None, ["CN/20250101", "CN/20250102"])
    overwrite(chain.branch("delta"), "CN/20250101")
    return chain


def alter_alone(branch: Table, *changes: SchemaChange) -> None:
    """Alter one branch as another engine does."""
    new = apply_changes(branch.schema(), changes, has_data=True, now_ms=0)
    branch.store.create(branch.paths.schema(new.id), new.to_bytes())


def as_another_engine(table: Table, what: Callable[[], object]) -> None:
    """Do something to a chain table without the checks and records of our commits: main is not a chain table then."""
    schema = table.schema()
    for number, enabled in ((1, "false"), (2, "true")):
        following = replace(schema, id=schema.id + number, options={**schema.options, "chain-table.enabled": enabled})
        table.store.create(table.paths.schema(following.id), following.to_bytes())
        if number == 1:
            what()


def provenances(table: Table, state: ChainState, asked: Set[Values] | None = None) -> dict[Values, Provenance]:
    return gather_provenances(table, state.layout, state.snapshot, asked)


def stale_partitions(table: Table, state: ChainState) -> tuple[StalePartition, ...]:
    """The stale snapshot partitions of a chain table."""
    return find_stale(state, gather_provenances(table, state.layout, state.snapshot))
