"""What a task does for a statement on a table without primary key: read a file, leave out, replace or keep its rows."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, groupby, pairwise
from operator import itemgetter

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_paimon.core.commit.draft import CommitMessage
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.types import DataField
from airflow_paimon.data.copy_on_write import CHANGED, CopyOnWrite, replacing_message, write_columns, write_kept
from airflow_paimon.data.files.arrow_types import FILE_NAME, FILE_POSITION, FILE_POSITION_FIELD, VALUE_KIND
from airflow_paimon.data.files.pruning import NO_FILTER
from airflow_paimon.data.merge.versions import Indices
from airflow_paimon.data.read import read_stored
from airflow_paimon.data.read_splits import ReadSplit, TableRead
from airflow_paimon.data.row_columns import ROW_COLUMNS
from airflow_paimon.data.write import discard_files, write_rows
from airflow_paimon.spark.rows_in import conform
from airflow_paimon.spark.statements.evaluate import CHANGE, DELETED, UPDATED


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """What all tasks of a statement have in common. Picklable.

    ``files``: pickled splits of one file each, with the file, by its name; a task unpickles those that it has changes
    of. ``full``: the schema without default values, as a statement that says NULL means it; ``updates``: its columns
    that an update can change.
    """

    plan: CopyOnWrite
    read: TableRead
    files: Mapping[str, bytes]
    updates: TableSchema
    full: TableSchema
    counts_matches: bool
    dry_run: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """The result of one task. ``files``: the names of those that it replaced, or would replace."""

    messages: tuple[CommitMessage, ...] = ()
    files: frozenset[str] = frozenset()
    updated: int = 0
    deleted: int = 0
    inserted: int = 0


def rewrite_files(rewrite: Rewrite, batches: Iterable[pa.RecordBatch]) -> Rewritten:
    """Write the files again that have changes. These come ordered by file and position, inserted rows first.

    Raises:
        InvalidInputError: a row is matched twice.
    """
    groups = groupby((piece for batch in batches for piece in _pieces(batch)), itemgetter(0))
    task = _FileTask(rewrite)
    written: list[CommitMessage] = []
    try:
        first = next(groups, None)
        if first is not None and first[0] is None:
            written += task.insert(rows for _, rows in first[1])
            first = next(groups, None)
        files = groups if first is None else chain([first], groups)
        written += task.write_again((str(n), pa.Table.from_batches([rows for _, rows in some])) for n, some in files)
    except BaseException:
        discard_files(rewrite.plan.write, [*written, *task.written])
        raise
    return Rewritten(
        messages=() if rewrite.dry_run else (*written, *task.written, *task.replaced),
        files=frozenset(task.names),
        updated=task.updated,
        deleted=task.deleted,
        inserted=task.inserted,
    )


def _pieces(batch: pa.RecordBatch) -> Iterator[tuple[str | None, pa.RecordBatch]]:
    """Cut a batch where the file changes."""
    if not batch.num_rows:
        return
    codes = batch.column(FILE_NAME).dictionary_encode(null_encoding="encode").indices.to_numpy(zero_copy_only=False)
    cuts = [0, *(np.flatnonzero(codes[1:] != codes[:-1]) + 1).tolist(), batch.num_rows]
    for start, end in pairwise(cuts):
        yield batch.column(FILE_NAME)[start].as_py(), batch.slice(start, end - start)


class _FileTask:
    """Writes inserted rows and rewrites files, and counts."""

    def __init__(self, rewrite: Rewrite) -> None:
        self._rewrite = rewrite
        self.replaced: list[CommitMessage] = []
        self.written: list[CommitMessage] = []
        self.names: list[str] = []
        self.updated = self.deleted = self.inserted = 0

    def insert(self, batches: Iterator[pa.RecordBatch]) -> list[CommitMessage]:
        conformed = (self._fresh(batch) for batch in batches)
        if self._rewrite.dry_run:
            for _ in conformed:
                pass
            return []
        return write_rows(self._rewrite.plan.write, conformed)

    def _fresh(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.inserted += batch.num_rows
        full = self._rewrite.full
        return conform(batch.select(list(full.field_names)), full, self._rewrite.read.label)

    def write_again(self, groups: Iterator[tuple[str, pa.Table]]) -> list[CommitMessage]:
        changed = ((name, c) for name, rows in groups if (c := self._changes(name, rows)) is not None)
        if self._rewrite.dry_run:
            self.names += [name for name, _ in changed]
            return []
        return write_kept(self._rewrite.plan, self._rows(changed))

    def _rows(self, changed: Iterable[tuple[str, _FileChanges]]) -> Iterator[pa.RecordBatch]:
        """Write what can be written by columns; yield the rows of the other files."""
        rewrite = self._rewrite
        fields = (*rewrite.full.fields, *(ROW_COLUMNS.values() if rewrite.plan.tracks_rows else ()))
        for name, changes in changed:
            split, file = pickle.loads(rewrite.files[name])
            self.names.append(name)
            self.replaced.append(replacing_message(split.bucket, file))
            rows = partial(self._file_rows, split, changes)
            new = None
            if not len(changes.deleted):
                new = write_columns(rewrite.plan, split, file, rewrite.updates.field_names, rows)
            if new is not None:
                self.written.append(new)
            else:
                yield from rows(fields)

    def _file_rows(
        self, split: ReadSplit, changes: _FileChanges, fields: Sequence[DataField]
    ) -> Iterator[pa.RecordBatch]:
        whole = replace(self._rewrite.read, rows=NO_FILTER)
        return map(changes.apply, read_stored(whole, split, (*fields, FILE_POSITION_FIELD)))

    def _changes(self, name: str, rows: pa.Table) -> _FileChanges | None:
        """Count the changes of a file; None when it stays as it is."""
        positions = rows.column(FILE_POSITION).to_numpy()
        twice = np.flatnonzero(positions[1:] == positions[:-1])
        if len(twice) and self._rewrite.counts_matches:
            raise matched_twice(self._rewrite.read.label, name, positions[twice[0]])
        kinds = rows.column(CHANGE)
        updates = rows.filter(pc.equal(kinds, UPDATED))
        deleted = np.unique(positions[pc.equal(kinds, DELETED).to_numpy()])
        self.updated += updates.num_rows
        self.deleted += len(deleted)
        if not updates.num_rows and not len(deleted):
            return None
        schema = self._rewrite.updates
        values = conform(updates.select(list(schema.field_names)), schema, self._rewrite.read.label)
        return _FileChanges(deleted=deleted, updated=updates.column(FILE_POSITION).to_numpy(), values=values)


def matched_twice(label: str, file: str, position: int) -> InvalidInputError:
    return InvalidInputError(
        f"{label}: MERGE_CARDINALITY_VIOLATION: a row of the target is matched by more than one row of the source, so "
        f"it is undefined which of them counts (row {position} of data file {file}); make the source's rows unique by "
        f"the columns of ON"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _FileChanges:
    """The changes of one file by position, ascending. ``values``: the new values of the rows at ``updated``."""

    deleted: Indices
    updated: Indices
    values: pa.RecordBatch

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch of the file with the new values, without deleted rows, and with ``CHANGED``."""
        positions = batch.column(FILE_POSITION).to_numpy()
        first, last = np.searchsorted(self.updated, [positions[0], positions[-1] + 1]) if len(positions) else (0, 0)
        changed = np.zeros(len(positions), bool)
        changed[np.searchsorted(positions, self.updated[first:last])] = True
        if last > first:
            for name in self.values.schema.names:
                if name == VALUE_KIND:
                    continue
                at = batch.schema.get_field_index(name)
                new = self.values.column(name).slice(first, last - first)
                batch = batch.set_column(at, batch.schema.field(at), _replaced(batch.column(at), changed, new))
        batch = batch.append_column(CHANGED, pa.array(changed))
        gone = np.isin(positions, self.deleted)
        return batch.filter(pa.array(~gone)) if gone.any() else batch


def _replaced(column: pa.Array, where: npt.NDArray[np.bool_], new: pa.Array) -> pa.Array:
    if not pa.types.is_nested(column.type):
        return pc.replace_with_mask(column, pa.array(where), new)
    order = np.arange(len(column))
    order[where] = len(column) + np.arange(len(new))
    return pa.concat_arrays([column, new]).take(pa.array(order))
