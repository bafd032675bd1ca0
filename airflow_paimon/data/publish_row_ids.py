"""Writes files of a branch again with the row ids and versions that their rows have on main, before a publish; reads
ids."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_paimon.core.format.manifest import DataFile, IndexEntry, ManifestEntry
from airflow_paimon.core.row_tracking.row_ids_plan import IdSpace, rewritten_name
from airflow_paimon.core.table.live_files import BucketSplit
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.scan import ScanPlan
from airflow_paimon.core.table.table import Table
from airflow_paimon.data.files.arrow_types import ROW_ID, SEQUENCE_NUMBER
from airflow_paimon.data.files.write import FileTarget, RollingWriter, abandoned_on_failure, delete_unused
from airflow_paimon.data.read import read_split
from airflow_paimon.data.read_splits import plan_read
from airflow_paimon.data.row_columns import ROW_COLUMNS

_ONE_FILE = str(1 << 60)


def rewrite_files(branch: Table, entries: Sequence[ManifestEntry], space: IdSpace) -> list[ManifestEntry]:
    """Write each file again, with all of its rows in their places, so that its deletion vector stays valid.

    A version that no publish has brought to main yet becomes null: the commit's own.

    Raises:
        FormatError: a file is missing or corrupt; the written files are deleted.
    """
    out: list[ManifestEntry] = []
    done: list[str] = []
    try:
        for entry in entries:
            out.append(entry._replace(file=_rewrite(branch, entry, space, done)))
    except BaseException:
        delete_unused(branch.store, done)
        raise
    return out


def _rewrite(branch: Table, entry: ManifestEntry, space: IdSpace, done: list[str]) -> DataFile:
    old = entry.file
    schema = branch.schema(old.schema_id)
    values = StoredPartitions(schema).values(entry.partition)
    target = FileTarget(
        store=branch.store,
        schema=replace(schema, options={**schema.options, "target-file-size": _ONE_FILE}),
        values=values,
        bucket=entry.bucket,
        file_name=rewritten_name(old.file_name, uuid.uuid4().int),
        stores_row_ids=True,
    )
    split = BucketSplit(entry.partition, values, entry.bucket, entry.total_buckets, (old,))
    plan = ScanPlan(branch, None, schema, (split,))
    read, splits = plan_read(plan, columns=[*schema.field_names, *ROW_COLUMNS], layered=True)
    writer = RollingWriter(target)
    with abandoned_on_failure([writer]):
        own = space.in_partition(entry.partition)
        for batch in (b for s in splits for b in read_split(read, s)):
            writer.write(_moved(batch, own))
        [new] = writer.finish()
    done += writer.paths
    return new


def shared_row_id(
    branch: Table,
    entries: Sequence[ManifestEntry],
    main: Table,
    others: Sequence[ManifestEntry],
    index: Sequence[IndexEntry],
    space: IdSpace,
) -> int | None:
    """Return a row id that files of the branch will have on main, and that rows of other files of main have; None:
    there is none. ``index``: of main. Rows of the branch that deletion vectors delete count.

    Raises:
        FormatError: a file is missing or corrupt.
    """
    ids = np.concatenate([_shifted(_ids_of(branch, e), space) for e in entries])
    marked = {r.data_file for i in index for r in i.deletion_vector_ranges or () if r is not None}
    for other in others:
        first = other.file.first_row_id
        if first is None or other.file.file_name in marked:
            found = np.intersect1d(ids, _ids_of(main, other, index))
        else:
            found = ids[(ids >= first) & (ids < first + other.file.row_count)]
        if len(found):
            return int(found[0])
    return None


def _ids_of(view: Table, entry: ManifestEntry, index: Sequence[IndexEntry] = ()) -> np.ndarray[Any, Any]:
    schema = view.schema(entry.file.schema_id)
    values = StoredPartitions(schema).values(entry.partition)
    split = BucketSplit(entry.partition, values, entry.bucket, entry.total_buckets, (entry.file,))
    plan = ScanPlan(view, None, schema, (split,), tuple(index))
    read, splits = plan_read(plan, columns=[ROW_ID], layered=True)
    return np.concatenate([b.column(ROW_ID).to_numpy() for s in splits for b in read_split(read, s)])


def _shifted(ids: np.ndarray[Any, Any], space: IdSpace) -> np.ndarray[Any, Any]:
    shifts = np.array([0, *(s.by for s in space.shifts)], np.int64)
    return ids + shifts[np.searchsorted([s.first for s in space.shifts], ids, side="right")]


def _moved(batch: pa.RecordBatch, space: IdSpace) -> pa.RecordBatch:
    ids = _shifted(batch.column(ROW_ID).to_numpy(), space)
    versions = _versions_on_target(batch.column(SEQUENCE_NUMBER), space)
    batch = batch.set_column(batch.schema.get_field_index(ROW_ID), ROW_ID, pa.array(ids, pa.int64()))
    return batch.set_column(batch.schema.get_field_index(SEQUENCE_NUMBER), SEQUENCE_NUMBER, versions)


def _versions_on_target(versions: pa.Array, space: IdSpace) -> pa.Array:
    """``IdSpace.version_of`` of each."""
    if space.base is None:
        return versions
    values = versions.to_numpy()
    after = np.searchsorted([p.source for p in space.published], values, side="left")
    moved = np.array([*(p.target for p in space.published), 0], np.int64)[after]
    is_new = (values > space.base) & (after == len(space.published))
    return pa.array(np.where(values > space.base, moved, values), pa.int64(), mask=is_new)
