"""Reads that Spark's tasks plan: a task for some manifests, then one for each group of files, which divides them by
their bytes, then those that read them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_paimon.core.table.scan import with_schemas_of_branch
from airflow_paimon.data import whole_read
from airflow_paimon.data.chain import whole_read as chains
from airflow_paimon.data.chain.groups import ChainGroups
from airflow_paimon.data.chain.scan import ChainRead, Inputs
from airflow_paimon.data.chain.whole_read import WholeChain
from airflow_paimon.data.scan import TableRead
from airflow_paimon.data.whole_read import GroupRead, Listed, Sorted, WholeRead, entries_of, packed, unpacked
from airflow_paimon.spark.shares import bytes_of_files, chain_pieces_of, pieces_of, read_chain_rows, read_rows
from airflow_paimon.spark.spark_types import spark_schema
from airflow_paimon.spark.tasks import (
    TASK_BYTES,
    cores_of,
    forgetting_zip_importers,
    map_in_arrow,
    map_tasks,
    pack,
    set_imports_apart,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILES_A_PLAN = 5000
"""Files that a task plans, about."""
MOST_TASKS = 20_000
_MANIFEST_TASKS, _MOST_ENTRIES = 4, 100_000
"""Tasks for each core that read manifests, and the entries of one, unless a manifest has more."""
_SORTED = pa.schema([("group", pa.int32()), ("place", pa.int64()), ("data", pa.binary())])
_PLANNED = pa.schema([("task", pa.int32()), ("data", pa.binary())])
_ROWS = 1000


def whole_frame(spark: SparkSession, whole: WholeRead) -> DataFrame:
    """Return the DataFrame of a read that tasks plan. Their errors are raised when rows are asked for.

    Raises:
        FormatError: the largest manifest is missing or corrupt.
    """
    frames = (
        _rows(planned_files(spark, one), partial(_read_piece, one.read), spark_schema(one.read.fields))
        for one in whole.branches
    )
    return reduce(lambda one, other: one.union(other), frames)


def whole_chain_frame(spark: SparkSession, whole: WholeChain) -> DataFrame:
    """Return the DataFrame of a read of a chain table, as ``whole_frame`` does."""
    fields = whole.base.inputs.main.fields
    return _rows(planned_chains(spark, whole), partial(_read_chain_piece, whole.base), spark_schema(fields))


def _rows(planned: DataFrame, read: Callable[[Any], Iterator[pa.RecordBatch]], schema: Any) -> DataFrame:
    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        set_imports_apart()
        with forgetting_zip_importers():
            for data in (data for batch in batches for data in batch.column(1).to_pylist()):
                yield from read(unpacked(data))

    return map_in_arrow(planned, rows, schema)


def _read_piece(read: TableRead, piece: Any) -> Iterator[pa.RecordBatch]:
    schemas, splits = piece
    return (batch for split in splits for batch in read_rows(replace(read, schemas=schemas), split))


def _read_chain_piece(base: ChainRead, piece: Any) -> Iterator[pa.RecordBatch]:
    layer, schemas, splits = piece
    if layer is not None:
        return _read_piece(base.layers[layer][0], (schemas, splits))
    inputs = Inputs._make(replace(read, schemas=own) for read, own in zip(base.inputs, schemas, strict=True))
    return (batch for split in splits for batch in read_chain_rows(inputs, split))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """What tasks do. ``listed``: for those that read manifests, with the entries of each. ``sort_out``: divides these
    into so many ``groups``. ``pieces``: plans a group, by its number and data, and divides it. ``size``: the bytes of
    all files.
    """

    listed: Sequence[Any]
    entries: Callable[[Any], int]
    sort_out: Callable[[Sequence[Any]], Iterable[Sorted]]
    groups: int
    pieces: Callable[[int, Iterable[bytes]], Iterable[Any]]
    files: int
    size: int


def planned_files(spark: SparkSession, whole: WholeRead) -> DataFrame:
    """Return a task for each about ``TASK_BYTES`` of one branch: rows of a packed pair, schemas by id and splits."""
    of, groups = replace(whole.of, state=with_schemas_of_branch(whole.of.state)), _groups(spark, whole.files)
    bare = replace(whole, listed=(), second=None)
    work = _Work(
        listed=whole.listed,
        entries=_entries,
        sort_out=lambda listed: whole_read.sort_out(bare, listed, groups),
        groups=groups,
        pieces=partial(_pieces, of, TASK_BYTES),
        files=whole.files,
        size=bytes_of_files(whole.files, whole_read.bytes_of(whole), TASK_BYTES),
    )
    return _planned(spark, work)


def _pieces(of: GroupRead, task_bytes: int, group: int, parts: Iterable[bytes]) -> Iterator[Any]:
    read, splits = whole_read.plan_group(of, parts)
    return ((read.schemas, some) for some in pieces_of(splits, task_bytes))


def planned_chains(spark: SparkSession, whole: WholeChain) -> DataFrame:
    """Return a task for each about ``TASK_BYTES`` of a chain table: rows of a packed triple, the number of the layer,
    schemas by id and splits; None: chains, with the schemas of each of their inputs.
    """
    main, snapshot, delta = map(with_schemas_of_branch, whole.of.state.plans)
    of = replace(whole.of, state=replace(whole.of.state, main=main, snapshot=snapshot, delta=delta))
    groups = whole.divided(-(-whole.files // _groups(spark, whole.files)))
    work = _Work(
        listed=whole.listed,
        entries=lambda one: _entries(one.listed),
        sort_out=partial(chains.sort_out, of, groups),
        groups=len(groups),
        pieces=partial(_chain_pieces, of, groups, TASK_BYTES),
        files=whole.files,
        size=bytes_of_files(whole.files, chains.bytes_of(whole, groups), TASK_BYTES),
    )
    return _planned(spark, work)


def _chain_pieces(
    of: chains.ChainGroupRead, groups: ChainGroups, task_bytes: int, group: int, parts: Iterable[bytes]
) -> Iterator[Any]:
    found = chains.plan_group(of, groups.reads(group), parts)
    for layer, (read, splits) in enumerate(found.layers):
        for some in pieces_of(splits, task_bytes):
            yield layer, read.schemas, some
    schemas = [read.schemas for read in found.inputs]
    for chained in chain_pieces_of(found.inputs, found.splits, task_bytes):
        yield None, schemas, chained


def _planned(spark: SparkSession, work: _Work) -> DataFrame:
    tasks = max(1, min(work.files, MOST_TASKS, max(cores_of(spark), -(-work.size // TASK_BYTES))))
    groups, pieces = work.groups, work.pieces

    def planned(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        set_imports_apart()
        with forgetting_zip_importers():
            for group, parts in _parts_of_groups(batches):
                first = group * tasks // groups
                found = enumerate(pieces(group, parts))
                yield from _batches((((first + n) % tasks, packed(piece)) for n, piece in found), _PLANNED)

    return _by_number(map_in_arrow(_sorted_out(spark, work), planned, "task int, data binary"), "task", tasks)


def _sorted_out(spark: SparkSession, work: _Work) -> DataFrame:
    """Return a task for each group of files, which ``_parts_of_groups`` takes."""
    sort_out = work.sort_out

    def sorted_out(listed: Sequence[Any]) -> Iterator[pa.RecordBatch]:
        yield from _batches(((o.group, o.place, o.data) for o in sort_out(listed)), _SORTED)

    most = max(1, min(_MOST_ENTRIES, sum(map(work.entries, work.listed)) // (_MANIFEST_TASKS * cores_of(spark))))
    pieces = pack(work.listed, work.entries, most)
    files = map_tasks(spark, [[piece] for piece in pieces], sorted_out, "group int, place long, data binary")
    return _by_number(files, "group", work.groups).sortWithinPartitions("group", "place")


def _groups(spark: SparkSession, files: int) -> int:
    return max(1, min(files, MOST_TASKS, max(cores_of(spark), -(-files // FILES_A_PLAN))))


def _by_number(frame: DataFrame, column: str, tasks: int) -> DataFrame:
    """Bring the rows to the tasks that a column numbers."""
    by_id: Any = getattr(frame, "repartitionById", frame.repartition)
    found: DataFrame = by_id(tasks, frame[column])
    return found


def _parts_of_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, Iterator[bytes]]]:
    parts = (pair for b in batches for pair in zip(b.column(0).to_pylist(), b.column(2).to_pylist(), strict=True))
    return ((number, (data for _, data in group)) for number, group in groupby(parts, key=itemgetter(0)))


def _entries(listed: Listed) -> int:
    return 1 if listed.manifest is None else entries_of(listed.manifest)


def _batches(found: Iterable[tuple[Any, ...]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    some: list[tuple[Any, ...]] = []
    for one in found:
        some.append(one)
        if len(some) == _ROWS:
            yield _batch(some, schema)
            some = []
    if some:
        yield _batch(some, schema)


def _batch(some: Sequence[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    columns = zip(*some, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )
