"""Statements by deletion vectors: the old rows are marked as deleted, and only the new ones are written.

As Paimon does where ``deletion-vectors.enabled`` is set; but here updated rows keep their ids in a MERGE, too
(Paimon's MERGE numbers them anew).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_paimon.core.commit.draft import CommitMessage
from airflow_paimon.core.format.deletion_vectors import Positions, read_bitmap, write_bitmap
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.data.copy_on_write import CopyOnWrite, changed_rows, kept_write
from airflow_paimon.data.files.arrow_types import FILE_NAME, FILE_POSITION, ROW_ID
from airflow_paimon.data.files.write import abandoned_on_failure
from airflow_paimon.data.row_columns import POSITION_COLUMNS
from airflow_paimon.data.row_deletes import delete_rows
from airflow_paimon.data.write import RowsWriter, discard_files
from airflow_paimon.spark.rows_in import conform
from airflow_paimon.spark.statements.evaluate import CHANGE, DELETED, MATCHED, UPDATED
from airflow_paimon.spark.statements.file_changes import matched_twice
from airflow_paimon.spark.statements.outcome import StatementOutcome

FilePositions = dict[str, bytes]
"""Positions of the rows of files, by name, as ``write_bitmap`` writes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowDeletion:
    """What all tasks of a statement have in common. Picklable. ``full``: the schema without default values, as a
    statement that says NULL means it.
    """

    plan: CopyOnWrite
    full: TableSchema
    label: str
    counts_matches: bool
    dry_run: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionOutput:
    """The result of one task. ``gone``: the rows that are updated or deleted; ``matched``: those that are left as they
    are, where matches are counted.
    """

    messages: tuple[CommitMessage, ...]
    gone: FilePositions
    matched: FilePositions
    updated: int
    inserted: int


def delete_marked_rows(marking: RowDeletion, batches: Iterable[pa.RecordBatch]) -> DeletionOutput:
    """Write the new and the changed rows of a statement's changes, in any order, and find out which rows go.

    Raises:
        InvalidInputError: a value that a column can't hold.
    """
    task = _DeletionTask(marking)
    with abandoned_on_failure(task.writers):
        for batch in batches:
            task.add(batch)
        return task.finish()


class _DeletedPositions:
    """Rows of files, by their positions; a row may come several times."""

    def __init__(self) -> None:
        self._parts: dict[str, list[Positions]] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        names = batch.column(FILE_NAME).dictionary_encode()
        codes = names.indices.to_numpy()
        positions = batch.column(FILE_POSITION).to_numpy().astype(np.uint64)
        for code, name in enumerate(names.dictionary.to_pylist()):
            own = positions[codes == code] if len(names.dictionary) > 1 else positions
            self._parts.setdefault(name, []).append(own)

    def bitmaps(self) -> FilePositions:
        return {name: write_bitmap(np.unique(np.concatenate(found))) for name, found in self._parts.items()}

    def twice(self) -> tuple[str, int] | None:
        """Return the file and position of a row that has come more than once."""
        for name, found in self._parts.items():
            ordered = np.sort(np.concatenate(found))
            again = np.flatnonzero(ordered[1:] == ordered[:-1])
            if len(again):
                return name, int(ordered[again[0]])
        return None


class _DeletionTask:
    def __init__(self, marking: RowDeletion) -> None:
        self._marking = marking
        plan = marking.plan
        fresh = RowsWriter(plan.write)  # rows with ids never share a file with new ones
        self._fresh = fresh
        self._changed = RowsWriter(kept_write(plan)) if plan.tracks_rows else fresh
        self.writers = [fresh, self._changed] if plan.tracks_rows else [fresh]
        self._gone, self._matched, self._all = _DeletedPositions(), _DeletedPositions(), _DeletedPositions()
        self._updated = self._inserted = 0

    def add(self, batch: pa.RecordBatch) -> None:
        placed = pc.is_valid(batch.column(FILE_NAME))
        kinds = batch.column(CHANGE)
        updated = pc.equal(kinds, UPDATED)
        fresh, changed = batch.filter(pc.invert(placed)), batch.filter(updated)
        self._inserted += fresh.num_rows
        self._updated += changed.num_rows
        self._write(self._fresh, fresh, with_ids=False)
        self._write(self._changed, changed, with_ids=self._marking.plan.tracks_rows)
        places = batch.select(list(POSITION_COLUMNS))
        self._gone.add(places.filter(pc.or_(updated, pc.equal(kinds, DELETED))))
        if self._marking.counts_matches:
            self._matched.add(places.filter(pc.equal(kinds, MATCHED)))
            self._all.add(places.filter(placed))

    def _write(self, writer: RowsWriter, rows: pa.RecordBatch, *, with_ids: bool) -> None:
        if not rows.num_rows:
            return
        full = self._marking.full
        values = conform(rows.select(list(full.field_names)), full, self._marking.label)
        if not self._marking.dry_run:
            ids = rows.column(ROW_ID) if with_ids else None
            writer.add(changed_rows(self._marking.plan, values, ids))

    def finish(self) -> DeletionOutput:
        twice = self._all.twice()
        if twice is not None:
            raise matched_twice(self._marking.label, *twice)
        return DeletionOutput(
            messages=tuple(m for w in self.writers for m in w.finish()),
            gone=self._gone.bitmaps(),
            matched=self._matched.bitmaps(),
            updated=self._updated,
            inserted=self._inserted,
        )


def deletion_outcome(marking: RowDeletion, plan: CopyOnWrite, results: Sequence[DeletionOutput]) -> StatementOutcome:
    """Write the deletion vectors of what the tasks found. ``plan``: with its files.

    Raises:
        InvalidInputError: a row is matched twice.
    """
    messages = tuple(m for r in results for m in r.messages)
    try:
        if marking.counts_matches:
            _check_matches(marking, results)
        gone = {name: np.unique(np.concatenate(some)) for name, some in _by_file(r.gone for r in results).items()}
        deletes = delete_rows(plan.scan, plan.write, gone, dry_run=marking.dry_run)
    except BaseException:
        discard_files(plan.write, messages)
        raise
    updated = sum(r.updated for r in results)
    return StatementOutcome(
        read=plan.scan,
        write=plan.write,
        messages=(*messages, *deletes.messages),
        updated=updated,
        deleted=deletes.rows - updated,
        inserted=sum(r.inserted for r in results),
        marked=deletes.files,
    )


def _by_file(tasks: Iterable[FilePositions]) -> dict[str, list[Positions]]:
    """Return what the tasks found of each file; rows of one may have come to several."""
    parts: dict[str, list[Positions]] = {}
    for found in tasks:
        for name, bitmap in found.items():
            parts.setdefault(name, []).append(read_bitmap(bitmap))
    return parts


def _check_matches(marking: RowDeletion, results: Sequence[DeletionOutput]) -> None:
    """A task has seen to its own rows; those of one row may have come to several tasks."""
    for name, arrays in _by_file(found for r in results for found in (r.gone, r.matched)).items():
        rows, times = np.unique(np.concatenate(arrays), return_counts=True)
        if len(rows) < sum(map(len, arrays)):
            raise matched_twice(marking.label, name, int(rows[times > 1][0]))


def row_deletion_of(plan: CopyOnWrite, *, counts_matches: bool, dry_run: bool) -> RowDeletion:
    """Plan the tasks of a statement."""
    schema = plan.write.schema
    full = schema.without_defaults()
    return RowDeletion(
        plan=plan.for_tasks(), full=full, label=plan.scan.table.label, counts_matches=counts_matches, dry_run=dry_run
    )
