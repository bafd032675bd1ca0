"""Compaction of chain tables, bucket by bucket: merges an anchor's bucket with those of the deltas into full files.

No shuffle: a key has the same bucket in all branches. The result is one sorted run of the highest level, split at the
target file size, without deletes. Its rows have sequence number -1, one below where Paimon's writers start: in Paimon's
own chain reads the numbers of different partitions decide ties of ``sequence.field``, so a delta's row
wins there as it does here, and so do rows written to the partition later.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from airflow_paimon.core.chain.layout import Values
from airflow_paimon.core.chain.read_plan import PartitionRead, Source
from airflow_paimon.core.chain.state import ChainState
from airflow_paimon.core.commit.files import CommitMessage
from airflow_paimon.core.errors import UnsupportedFeatureError
from airflow_paimon.core.format.binary_row import encode_row
from airflow_paimon.core.format.manifest import DataFile
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.store import Store
from airflow_paimon.core.table.features import check_compactable
from airflow_paimon.core.table.live_files import BucketSplit
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partitions import partition_types
from airflow_paimon.core.table.scan import ScanPlan
from airflow_paimon.data.chain.plan import plan_partitions
from airflow_paimon.data.chain.read import merged_rows
from airflow_paimon.data.chain.splits import ChainSplit, Inputs
from airflow_paimon.data.files.arrow_types import SEQUENCE_NUMBER, VALUE_KIND, repeated
from airflow_paimon.data.files.evolution import plan_mapping
from airflow_paimon.data.files.write import ROW_GROUP_BYTES, FileTarget, RollingWriter, abandoned_on_failure
from airflow_paimon.data.merge.versions import DELETE
from airflow_paimon.data.read import evolved_rows
from airflow_paimon.data.read_request import ReadRequest
from airflow_paimon.data.scan import fitting_rows

FULL_SEQUENCE = -1
_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionSettings:
    """The common parameters of all tasks of a compaction. Picklable. ``schema`` is the snapshot branch's."""

    inputs: Inputs
    schema: TableSchema
    store: Store
    label: str
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainBucketTask:
    """One bucket of one partition to write; ``size``: total size of its input files."""

    split: ChainSplit
    values: Values
    total_buckets: int

    @property
    def size(self) -> int:
        return sum(f.file_size for f in self.split.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainBucketOutput:
    """``empty``: no row is left in the bucket, and the file is a tombstone (see ``_tombstone``)."""

    values: Values
    message: CommitMessage
    empty: bool = False


def plan_buckets(
    state: ChainState, chains: Sequence[tuple[Values, Values | None, tuple[Values, ...]]], memory_bytes: int
) -> tuple[CompactionSettings, list[ChainBucketTask]]:
    """Plan the tasks for partitions: target, anchor and deltas of each.

    Raises:
        UnsupportedFeatureError: a feature that this engine does not compact, or rows that Paimon has not compacted yet.
        InvalidInputError: partitions of one chain have different numbers of buckets.
    """
    plan = state.snapshot
    check_compactable(plan.schema, table=plan.table.label, branch=plan.table.branch_name)
    for part in (state.snapshot, state.delta):
        _check_levels(state, part)
    reads = [PartitionRead(target=t, source=Source.CHAIN, anchor=a, deltas=d) for t, a, d in chains]
    without_main = replace(state, main=ScanPlan(state.main.table, None, state.main.schema))
    totals = [{s.values: s.total_buckets for s in p.splits} for p in (state.delta, plan)]
    group = plan_partitions(without_main, reads, ReadRequest(), travels=True)
    files = [f for s in group.chains for f in s.files]
    assert group.inputs is not None
    inputs = Inputs(*(fitting_rows(part, files, memory_bytes) for part in group.inputs))
    compaction = CompactionSettings(
        inputs=inputs,
        schema=plan.schema,
        store=plan.table.store,
        label=plan.table.label,
        memory_bytes=memory_bytes,
    )
    tasks = []
    for split in group.chains:
        total = totals[split.parts[0].is_anchor][split.parts[0].values]
        for target in split.targets:
            one = replace(split, targets=(target,))
            tasks.append(ChainBucketTask(split=one, values=target.values, total_buckets=total))
    return compaction, tasks


def _check_levels(state: ChainState, plan: ScanPlan) -> None:
    """Refuse files that reads skip because of deletion vectors: without their rows a partition is not full.

    Paimon's compaction may move them to a higher level under the same names, which would hide later that they are
    missing.
    """
    if not TableOptions(state.delta.schema.options).deletion_vectors:
        return
    waiting = sorted({state.layout.text_of(s.values) for s in plan.splits if any(f.level == 0 for f in s.files)})
    if waiting:
        raise UnsupportedFeatureError(
            f"{state.layout.label}: {', '.join(waiting[:_SHOWN])} of branch {plan.table.branch_name} hold rows that no "
            f"reader of a table with deletion vectors sees until they are compacted: let Paimon compact those "
            f"partitions first (sys.compact on that branch), then make them full",
            details={"feature": "level-0 files with deletion vectors", "partitions": waiting[:_SHOWN]},
        )


def compact_buckets(compaction: CompactionSettings, tasks: Iterable[ChainBucketTask]) -> Iterator[ChainBucketOutput]:
    """Compact buckets one after the other, in this process."""
    for work in tasks:
        yield compact_bucket(compaction, work)


def compact_bucket(compaction: CompactionSettings, work: ChainBucketTask) -> ChainBucketOutput:
    """Merge one bucket and write it. After a failure, the written files are deleted.

    Raises:
        FormatError: a file is missing or corrupt. UnsupportedFeatureError: partial updates with deletes.
    """
    writer = _writer(compaction, work)
    with abandoned_on_failure([writer]):
        for _, rows in merged_rows(compaction.inputs, work.split):
            writer.write(_full_rows(compaction.schema, work.values, rows))
        files = writer.finish()
        empty = not files
        if empty:
            files = _tombstone(compaction, work)
    message = CommitMessage(
        partition=encode_row(work.values, partition_types(compaction.schema)),
        bucket=work.split.bucket,
        total_buckets=work.total_buckets,
        new_files=files,
    )
    return ChainBucketOutput(values=work.values, message=message, empty=empty)


def _writer(compaction: CompactionSettings, work: ChainBucketTask) -> RollingWriter:
    target = FileTarget(
        store=compaction.store,
        schema=compaction.schema,
        values=work.values,
        bucket=work.split.bucket,
        level=TableOptions(compaction.schema.options).num_levels - 1,
    )
    return RollingWriter(target, group_bytes=min(ROW_GROUP_BYTES, max(1, compaction.memory_bytes // 4)))


def _full_rows(schema: TableSchema, values: Values, rows: pa.RecordBatch, kind: int = 0) -> pa.RecordBatch:
    """Add the target's partition columns and the internal columns of a key-value file."""
    constant = dict(zip(schema.partition_keys, values, strict=True))
    columns = {
        f.name: repeated(constant[f.name], f.type, rows.num_rows) if f.name in constant else rows.column(f.name)
        for f in schema.fields
    }
    columns[SEQUENCE_NUMBER] = pa.array(np.full(rows.num_rows, FULL_SEQUENCE, np.int64))
    columns[VALUE_KIND] = pa.array(np.full(rows.num_rows, kind, np.int8))
    return pa.RecordBatch.from_pydict(columns)


def _tombstone(compaction: CompactionSettings, work: ChainBucketTask) -> tuple[DataFile, ...]:
    """Write a file with a delete of one of the bucket's keys.

    A partition without files does not exist, so that an empty result would not be an anchor, and would be computed
    again every time. With a delete it exists and reads as empty, in Paimon too. The sequence fields are null, the
    lowest value, so that this key, like all others, has no effective delete.
    """
    row = _any_row(compaction, work.split)
    if row is None:
        return ()
    writer = _writer(compaction, work)
    with abandoned_on_failure([writer]):
        writer.write(_full_rows(compaction.schema, work.values, _lowest(compaction.schema, row), DELETE))
        return writer.finish()


def _lowest(schema: TableSchema, row: pa.RecordBatch) -> pa.RecordBatch:
    """Give a row the lowest sequence fields, as far as they are nullable."""
    names = TableOptions(schema.options).sequence_fields
    nullable = {f.name for f in schema.fields if f.type.nullable}
    columns = {
        name: repeated(None, schema.field(name).type, row.num_rows) if name in names and name in nullable else column
        for name, column in zip(row.schema.names, row.columns, strict=True)
    }
    return pa.RecordBatch.from_pydict(columns)


def _any_row(compaction: CompactionSettings, split: ChainSplit) -> pa.RecordBatch | None:
    for file in split.files:
        part = split.parts[split.part_of[file.file_name]]
        own = compaction.inputs.anchors if part.is_anchor else compaction.inputs.deltas
        evolution = plan_mapping(own.schemas[file.schema_id].fields, own.fields)
        for found in evolved_rows(own, (part.values, split.bucket, file), evolution, batch_rows=1):
            return found.rows
    return None


def choose_outputs(outputs: Sequence[ChainBucketOutput]) -> tuple[list[ChainBucketOutput], list[ChainBucketOutput]]:
    """Return the outputs of a partition to commit, and those to discard: tombstones, if other buckets have rows."""
    full = [o for o in outputs if not o.empty]
    tombstones = [o for o in outputs if o.empty and o.message.new_files]
    return (full, tombstones) if full else (tombstones[:1], tombstones[1:])


def splits_after_commit(outputs: Sequence[ChainBucketOutput]) -> tuple[BucketSplit, ...]:
    """Return the splits of a partition after the commit of these outputs."""
    return tuple(
        BucketSplit(o.message.partition, o.values, o.message.bucket, o.message.total_buckets, o.message.new_files)
        for o in outputs
    )
