"""Compaction of chain tables, bucket by bucket: merges an anchor's bucket with those of the deltas into full files.

No shuffle: a key has the same bucket in all branches. The result is one sorted run of the highest level, split at the
target file size, without deletes. Its rows have sequence number -1, one below where Paimon's writers start: in Paimon's
own chain reads the numbers of different partitions decide ties of ``sequence.field``, so a delta's row
wins there as it does here, and so do rows written to the partition later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from airflow_paimon.core.chain.layout import Values
from airflow_paimon.core.chain.read_plan import PartitionRead, Source
from airflow_paimon.core.chain.state import ChainState
from airflow_paimon.core.commit.draft import CommitMessage
from airflow_paimon.core.errors import UnsupportedFeatureError
from airflow_paimon.core.format.binary_row import encode_row
from airflow_paimon.core.format.manifest import DataFile
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.store import Store
from airflow_paimon.core.table.features import check_compactable
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.scan import ScanPlan
from airflow_paimon.data.chain.plan import plan_partitions
from airflow_paimon.data.chain.read import merged_rows
from airflow_paimon.data.chain.splits import ChainSplit, Inputs
from airflow_paimon.data.compaction_tasks import TaskOutput
from airflow_paimon.data.files.arrow_types import SEQUENCE_NUMBER, VALUE_KIND, repeated, with_partition
from airflow_paimon.data.files.evolution import plan_mapping
from airflow_paimon.data.files.write import ROW_GROUP_BYTES, FileTarget, RollingWriter, abandoned_on_failure
from airflow_paimon.data.merge.versions import DELETE
from airflow_paimon.data.read import evolved_rows
from airflow_paimon.data.read_request import ReadRequest
from airflow_paimon.data.read_splits import fitting_rows

FULL_SEQUENCE = -1
_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainBucketTask:
    """One bucket of one partition to write. ``schema`` is the snapshot branch's. Picklable."""

    inputs: Inputs
    schema: TableSchema
    store: Store
    memory_bytes: int
    split: ChainSplit
    values: Values
    total_buckets: int

    @property
    def files(self) -> tuple[DataFile, ...]:
        return self.split.files

    def run(self) -> TaskOutput:
        """Merge the bucket and write it. Without rows the file is a tombstone (see ``_tombstone``). After a failure,
        the written files are deleted.

        Raises:
            FormatError: a file is missing or corrupt. UnsupportedFeatureError: partial updates with deletes.
        """
        writer, count = self._writer(), 0
        with abandoned_on_failure([writer]):
            for _, rows in merged_rows(self.inputs, self.split):
                count += rows.num_rows
                writer.write(self._full_rows(rows))
            files = writer.finish() or self._tombstone()
        message = CommitMessage(
            partition=encode_row(self.values, self.schema.partition_types),
            bucket=self.split.bucket,
            total_buckets=self.total_buckets,
            new_files=files,
        )
        return TaskOutput(messages=(message,), rows=count, deleted_rows=0)

    def _writer(self) -> RollingWriter:
        target = FileTarget(
            store=self.store,
            schema=self.schema,
            values=self.values,
            bucket=self.split.bucket,
            level=TableOptions(self.schema.options).num_levels - 1,
        )
        return RollingWriter(target, group_bytes=min(ROW_GROUP_BYTES, max(1, self.memory_bytes // 4)))

    def _full_rows(self, rows: pa.RecordBatch, kind: int = 0) -> pa.RecordBatch:
        """Add the target's partition columns and the internal columns of a key-value file."""
        names = self.schema.field_names
        columns = with_partition(rows, self.schema, self.values, names)
        columns.append(pa.array(np.full(rows.num_rows, FULL_SEQUENCE, np.int64)))
        columns.append(pa.array(np.full(rows.num_rows, kind, np.int8)))
        return pa.RecordBatch.from_arrays(columns, names=[*names, SEQUENCE_NUMBER, VALUE_KIND])

    def _tombstone(self) -> tuple[DataFile, ...]:
        """Write a file with a delete of one of the bucket's keys.

        A partition without files does not exist, so that an empty result would not be an anchor, and would be computed
        again every time. With a delete it exists and reads as empty, in Paimon too. The sequence fields are null, the
        lowest value, so that this key, like all others, has no effective delete.
        """
        row = self._any_row()
        if row is None:
            return ()
        lowest = set(TableOptions(self.schema.options).sequence_fields)
        nullable = {f.name for f in self.schema.fields if f.type.nullable}
        columns = {
            name: repeated(None, self.schema.field(name).type, 1) if name in lowest & nullable else row.column(name)
            for name in row.schema.names
        }
        writer = self._writer()
        with abandoned_on_failure([writer]):
            writer.write(self._full_rows(pa.RecordBatch.from_pydict(columns), DELETE))
            return writer.finish()

    def _any_row(self) -> pa.RecordBatch | None:
        for file in self.files:
            part = self.split.parts[self.split.part_of[file.file_name]]
            own = self.inputs.anchors if part.is_anchor else self.inputs.deltas
            evolution = plan_mapping(own.schemas[file.schema_id].fields, own.fields)
            for found in evolved_rows(own, (part.values, self.split.bucket, file), evolution, batch_rows=1):
                return found.rows
        return None


def plan_buckets(
    state: ChainState, chains: Sequence[tuple[Values, Values | None, tuple[Values, ...]]], memory_bytes: int
) -> list[ChainBucketTask]:
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
    return [
        ChainBucketTask(
            inputs=inputs,
            schema=plan.schema,
            store=plan.table.store,
            memory_bytes=memory_bytes,
            split=replace(split, targets=(target,)),
            values=target.values,
            total_buckets=totals[split.parts[0].is_anchor][split.parts[0].values],
        )
        for split in group.chains
        for target in split.targets
    ]


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
