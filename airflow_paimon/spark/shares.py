"""What each task of a read gets: splits without planning data, and the functions that read them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from airflow_paimon.core.format.manifest import EMPTY_STATS
from airflow_paimon.core.table.live_files import BucketSplit
from airflow_paimon.data.chain.read import read_chain_split
from airflow_paimon.data.chain.splits import ChainSplit, Inputs, divide_split
from airflow_paimon.data.merge.sections import Run
from airflow_paimon.data.read import read_split
from airflow_paimon.data.read_groups import GroupPlan, ReadPlan, packed, unpacked
from airflow_paimon.data.read_splits import ReadSplit, TableRead
from airflow_paimon.spark.spark_types import shipped_schema, to_shipped
from airflow_paimon.spark.tasks import LEAST_TASKS, OPEN_COST_BYTES, TASK_BYTES, pack, share_of

FILES_A_TASK = 500
"""Files that a task of a read of very many files gets at most, about: opening one counts less than in a small read."""
_WITHOUT_PLANNING: dict[str, Any] = {
    "min_key": b"", "max_key": b"", "key_stats": EMPTY_STATS, "value_stats": EMPTY_STATS, "embedded_file_index": None,
}  # fmt: skip
_Split = ReadSplit | ChainSplit


def task_shares(planned: ReadPlan) -> Iterator[bytes]:
    """Return what each task reads, for ``read_share``. Of a large read no more than the splits of some tasks are held
    at a time; what is little after all, as behind a filter, is divided as a small read.
    """
    held: dict[int, _UnassignedSplits] = {}
    for group in planned.groups:
        for number, (common, splits) in enumerate(_parts(group)):
            one = held.setdefault(number, _UnassignedSplits())
            yield from one.add(common, splits, is_large=planned.is_large)
    for one in held.values():
        yield from one.rest()


def read_share(share: bytes) -> Iterator[pa.RecordBatch]:
    """Return the rows of a task in Spark's types."""
    common, splits = unpacked(share)
    read: Callable[..., Iterator[pa.RecordBatch]] = read_chain_rows if isinstance(common, Inputs) else read_rows
    for split in splits:
        yield from read(common, split)


def _parts(group: GroupPlan) -> Iterator[tuple[TableRead | Inputs, list[_Split]]]:
    for read, splits in group.layers:
        yield read, [slim_split(part) for split in splits for part in split.divided()]
    if group.inputs is not None:
        yield group.inputs, list(_chain_parts(group.inputs, group.chains))


class _UnassignedSplits:
    """Splits that differ in nothing but their files, and no task has got yet."""

    def __init__(self) -> None:
        self._common: Any = None
        self._splits: list[_Split] = []
        self._size = 0
        self._was_cut = False

    def add(self, common: TableRead | Inputs, splits: Sequence[_Split], *, is_large: bool) -> Iterator[bytes]:
        """Add splits, and return the shares of those that are many enough."""
        self._common = common if self._common is None else _joined(self._common, common)
        for split in splits:
            size = _size_among_many(split)
            if is_large and self._splits and self._size + size > LEAST_TASKS * TASK_BYTES:
                yield from self._cut(pack(self._splits, _size_among_many))
                self._splits, self._size, self._was_cut = [], 0, True
            self._splits.append(split)
            self._size += size

    def rest(self) -> Iterator[bytes]:
        """Return the shares of what is left."""
        if self._was_cut:
            return self._cut(pack(self._splits, _size_among_many))
        return self._cut(pack(self._splits, weight, share_of(sum(map(weight, self._splits)))))

    def _cut(self, tasks: Sequence[Sequence[_Split]]) -> Iterator[bytes]:
        return (packed((self._common, splits)) for splits in tasks)


def _joined(one: Any, other: Any) -> Any:
    if isinstance(one, Inputs):
        return Inputs._make(map(_joined, one, other))
    return one if one.schemas == other.schemas else replace(one, schemas={**one.schemas, **other.schemas})


def read_rows(read: TableRead, split: ReadSplit) -> Iterator[pa.RecordBatch]:
    """Return a split's rows in Spark's types."""
    target = shipped_schema(read.fields)
    for batch in read_split(read, split):
        yield to_shipped(batch, target)


def read_chain_rows(inputs: Inputs, split: ChainSplit) -> Iterator[pa.RecordBatch]:
    """Return the rows of all targets of a chain's split in Spark's types."""
    target = shipped_schema(inputs.main.fields)
    for batch in read_chain_split(inputs, split):
        yield to_shipped(batch, target)


def weight(split: _Split) -> int:
    """Return the bytes that a task reads for a split, including opening costs; of a chain, output counts as much as
    input.
    """
    return sum(f.file_size + OPEN_COST_BYTES for f in split.files) * _outputs(split)


def _size_among_many(split: _Split) -> int:
    return sum(f.file_size for f in split.files) * _outputs(split) + len(split.files) * (TASK_BYTES // FILES_A_TASK)


def _outputs(split: _Split) -> int:
    return len(split.targets) if isinstance(split, ChainSplit) else 1


def _chain_parts(inputs: Inputs, splits: Sequence[ChainSplit]) -> Iterator[ChainSplit]:
    cut = (part for s in splits for part in divide_split(s, inputs.main.schema, TASK_BYTES // len(s.targets)))
    return map(_slim_chain, cut)


def slim_split(split: ReadSplit) -> ReadSplit:
    """Remove statistics, which only planning needs and which are most of a split's size."""
    sections = tuple(replace(s, runs=tuple(map(_slim_run, s.runs))) for s in split.sections)
    bucket = split.bucket
    slim = BucketSplit(bucket.partition, bucket.values, bucket.bucket, bucket.total_buckets, ())
    return ReadSplit(bucket=slim, sections=sections, deletions=split.deletions)


def _slim_chain(split: ChainSplit) -> ChainSplit:
    names = {f.file_name for f in split.files}
    return replace(
        split,
        sections=tuple(
            replace(s, base=tuple(map(_slim_run, s.base)), changes=tuple(map(_slim_run, s.changes)))
            for s in split.sections
        ),
        part_of={n: at for n, at in split.part_of.items() if n in names},
    )


def _slim_run(run: Run) -> Run:
    return tuple(file._replace(**_WITHOUT_PLANNING) for file in run)
