"""The parts of a planned read for tasks: splits without planning data, and the functions that read them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import pyarrow as pa

from airflow_paimon.core.format.manifest import EMPTY_STATS, DataFile
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.table.scan import BucketSplit
from airflow_paimon.data.chain.read import read_chain_split
from airflow_paimon.data.chain.scan import Inputs
from airflow_paimon.data.chain.splits import ChainSection, ChainSplit, divide_split
from airflow_paimon.data.layers import Layer
from airflow_paimon.data.merge.sections import Run
from airflow_paimon.data.read import read_split
from airflow_paimon.data.scan import ReadSplit, TableRead
from airflow_paimon.data.whole_read import GroupRead, plan_group
from airflow_paimon.spark.spark_types import shipped_schema, to_shipped
from airflow_paimon.spark.tasks import LEAST_TASKS, OPEN_COST_BYTES, TASK_BYTES, pack, share_of

FILES_A_TASK = 500
"""Files that a task of a read of very many files gets at most, about."""
_PIECES = 4
"""Of a task of such a read."""
_EMPTY = b""


def read_rows(read: TableRead, split: ReadSplit) -> Iterator[pa.RecordBatch]:
    """Return a split's rows in Spark's types."""
    target = shipped_schema(read.fields)
    for batch in read_split(read, split):
        yield to_shipped(batch, target)


class GroupShare(NamedTuple):
    """What the task with this ``number`` among ``tasks`` reads of a group of files. ``parts``: see ``plan_group``;
    ``task_bytes``: see ``pieces_of``.
    """

    parts: Sequence[bytes]
    number: int
    tasks: int
    task_bytes: int


def read_group(of: GroupRead, share: GroupShare) -> Iterator[pa.RecordBatch]:
    """Plan a group of files, and return the rows of a share of it in Spark's types."""
    read, splits = plan_group(of, share.parts)
    for some in pieces_of(splits, share.task_bytes)[share.number :: share.tasks]:
        for part in some:
            yield from read_rows(read, part)


def pieces_of(splits: Iterable[ReadSplit], task_bytes: int) -> list[list[ReadSplit]]:
    """Divide the splits of one of very many groups into pieces of a quarter of a task of ``task_bytes``, as several
    small pieces make tasks of more equal size. Files whose keys overlap stay together. Each plan of the same files
    gives the same pieces.
    """
    parts = sorted((slim_split(part) for s in splits for part in s.divided()), key=_place)
    weights = partial(_weight_of_many, task_bytes)
    return pack(parts, weights, task_bytes // _PIECES)


def _place(part: ReadSplit) -> tuple[bytes, int, str]:
    return part.bucket.partition, part.bucket.bucket, min(f.file_name for f in part.files)


def _weight_of_many(task_bytes: int, split: ReadSplit) -> int:
    return bytes_of_files(len(split.files), sum(f.file_size for f in split.files), task_bytes)


def bytes_of_files(files: int, size: int, task_bytes: int) -> int:
    """Return the bytes that tasks of ``task_bytes`` read of very many files of ``size`` bytes together. Opening one
    counts less than in a small read: a task gets up to ``FILES_A_TASK``.
    """
    return size + files * (task_bytes // FILES_A_TASK)


def read_chain_rows(inputs: Inputs, split: ChainSplit) -> Iterator[pa.RecordBatch]:
    """Return the rows of all targets of a chain's split in Spark's types."""
    target = shipped_schema(inputs.main.fields)
    for batch in read_chain_split(inputs, split):
        yield to_shipped(batch, target)


def weight(split: ReadSplit | ChainSplit) -> int:
    """Return the bytes that a task reads for a split, including opening costs."""
    return sum(f.file_size + OPEN_COST_BYTES for f in split.files)


def split_groups(splits: Sequence[ReadSplit]) -> list[list[ReadSplit]]:
    """Return the splits of each task."""
    return pack([slim_split(s) for s in splits], weight, share_of(sum(map(weight, splits))))


def layer_groups(layers: Iterable[Layer]) -> Iterator[tuple[TableRead, list[ReadSplit]]]:
    """Return the splits of each task of a read in many layers, which differ in nothing but their files. A small read is
    cut as by ``split_groups``; of a large one no more than the splits of some tasks are held at a time.
    """
    held: list[ReadSplit] = []
    schemas: dict[int, TableSchema] = {}
    size, last = 0, None
    for last, splits in layers:
        for split in (slim_split(part) for s in splits for part in s.divided()):
            if held and size + weight(split) > LEAST_TASKS * TASK_BYTES:
                yield from _cut(last, schemas, held, size)
                held, size, schemas = [], 0, {}
            held.append(split)
            size += weight(split)
            schemas |= last.schemas
    if held and last is not None:
        yield from _cut(last, schemas, held, size)


def _cut(
    read: TableRead, schemas: Mapping[int, TableSchema], splits: Sequence[ReadSplit], size: int
) -> Iterator[tuple[TableRead, list[ReadSplit]]]:
    common = replace(read, schemas=schemas)
    return ((common, group) for group in pack(splits, weight, min(TASK_BYTES, share_of(size))))


def chain_groups(inputs: Inputs, splits: Sequence[ChainSplit]) -> list[list[ChainSplit]]:
    """Return the chain splits of each task; output counts as much as input."""
    cut = [p for s in splits for p in divide_split(s, inputs.main.schema, TASK_BYTES // len(s.targets))]
    return pack(map(_slim_chain, cut), _chain_weight, share_of(sum(map(_chain_weight, cut))))


def chain_pieces_of(inputs: Inputs, splits: Iterable[ChainSplit], task_bytes: int) -> list[list[ChainSplit]]:
    """Divide the chains of one of very many groups as ``pieces_of`` does. Bytes of output count as much as those of
    input, but a file is opened once.
    """
    parts = (_slim_chain(p) for s in splits for p in divide_split(s, inputs.main.schema, task_bytes // len(s.targets)))

    def weight_of(part: ChainSplit) -> int:
        size = sum(f.file_size for f in part.files) * len(part.targets)
        return bytes_of_files(len(part.files), size, task_bytes)

    return pack(parts, weight_of, task_bytes // _PIECES)


def _chain_weight(split: ChainSplit) -> int:
    return weight(split) * len(split.targets)


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
        sections=tuple(_slim_section(s) for s in split.sections),
        part_of={n: at for n, at in split.part_of.items() if n in names},
    )


def _slim_section(section: ChainSection) -> ChainSection:
    return replace(section, base=tuple(map(_slim_run, section.base)), changes=tuple(map(_slim_run, section.changes)))


def _slim_run(run: Run) -> Run:
    return tuple(map(_slim_file, run))


def _slim_file(file: DataFile) -> DataFile:
    return file._replace(
        min_key=_EMPTY, max_key=_EMPTY, key_stats=EMPTY_STATS, value_stats=EMPTY_STATS, embedded_file_index=None
    )
