"""Data evolution: the column files of one range of row ids are read side by side, the newest file of a column wins.

An UPDATE of a table with ``data-evolution.enabled`` writes a file with the assigned columns only, of all rows of the
range. See docs/contributing/format.md, Data evolution.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from airflow_paimon.core.errors import FormatError
from airflow_paimon.core.format.manifest import DataFile
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.types import DataField
from airflow_paimon.data.files.read import FileBatch
from airflow_paimon.data.merge.sections import Section, unmerged


def plan_column_files(files: Sequence[DataFile], label: str) -> list[Section]:
    """Group the files of a bucket by their row ids; in each section the oldest file, the anchor, comes first.

    Raises:
        FormatError: ranges of row ids overlap without being equal.
    """
    sections = unmerged([f for f in files if f.first_row_id is None])
    groups: dict[int, list[DataFile]] = {}
    for file in files:
        if file.first_row_id is not None:
            groups.setdefault(file.first_row_id, []).append(file)
    end = 0
    for first, group in sorted(groups.items()):
        if first < end or len({f.row_count for f in group}) > 1:
            names = ", ".join(sorted(f.file_name for f in group))
            raise FormatError(f"{label}: the row ids of {names} overlap other files in part; run check_table")
        end = first + group[0].row_count
        sections.append(Section(tuple((f,) for f in sorted(group, key=_age)), side_by_side=len(group) > 1))
    return sections


def _age(file: DataFile) -> tuple[int, str]:
    return file.max_sequence_number, file.file_name


def columns_of_files(
    files: Sequence[DataFile], schemas: Mapping[int, TableSchema], fields: Sequence[DataField]
) -> list[tuple[DataFile, tuple[DataField, ...]]]:
    """Return the files of a section that have to be read, each with the columns for which it is the newest file.

    Columns that no file holds are left to the anchor, where they are read as null.
    """
    held = [(file, _held_ids(file, schemas[file.schema_id])) for file in files]
    won: dict[str, list[DataField]] = {}
    for field in fields:
        owner = next((file for file, ids in reversed(held) if field.id in ids), files[0])
        won.setdefault(owner.file_name, []).append(field)
    return [(file, tuple(won[file.file_name])) for file in files if file.file_name in won]


def _held_ids(file: DataFile, written: TableSchema) -> frozenset[int]:
    names = None if file.write_cols is None else set(file.write_cols)
    return frozenset(f.id for f in written.fields if names is None or f.name in names)


def beside(streams: Sequence[Iterator[FileBatch]], label: str) -> Iterator[FileBatch]:
    """Put the columns of several files of equal length side by side, whatever their batches' sizes are.

    Raises:
        FormatError: a file is shorter than another one.
    """
    start = 0
    rest: list[pa.RecordBatch | None] = [None] * len(streams)
    while True:
        rest = [_next_rows(stream) if r is None else r for stream, r in zip(streams, rest, strict=True)]
        batches = [r for r in rest if r is not None]
        if not batches:
            return
        if len(batches) < len(streams):
            raise FormatError(f"{label}: column files of the same row ids differ in length; run check_table")
        rows = min(b.num_rows for b in batches)
        parts = [b.slice(0, rows) for b in batches]
        names = [n for part in parts for n in part.schema.names]
        yield FileBatch(start, pa.RecordBatch.from_arrays([c for part in parts for c in part.columns], names=names))
        start += rows
        rest = [b.slice(rows) if b.num_rows > rows else None for b in batches]


def _next_rows(stream: Iterator[FileBatch]) -> pa.RecordBatch | None:
    return next((found.rows for found in stream if found.rows.num_rows), None)
