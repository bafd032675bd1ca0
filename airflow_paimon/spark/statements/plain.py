"""Statements without Spark: those that ``core/correction/plain_statement.py`` reads, evaluated by Arrow.

What is written and committed, and how, is what the same statement in Spark writes: only the changed rows are found and
computed here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_paimon.core.chain.guard import is_chain_rows
from airflow_paimon.core.correction.plain_merge import PlainClause, PlainMerge
from airflow_paimon.core.correction.plain_reader import Case, Column, Expression, Value
from airflow_paimon.core.correction.plain_statement import PlainStatement
from airflow_paimon.core.errors import UnsupportedFeatureError
from airflow_paimon.core.format.manifest import DataFile
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.types import DataField
from airflow_paimon.core.table.hidden_names import hidden
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.core.table.predicate import Predicate, columns_of
from airflow_paimon.core.table.scan import ScanPlan
from airflow_paimon.core.table.table import Table
from airflow_paimon.data.copy_on_write import CopyOnWrite
from airflow_paimon.data.files.arrow_types import FILE_POSITION, ROW_ID, ROW_KIND, arrow_type, repeated
from airflow_paimon.data.memory_plan import fits
from airflow_paimon.data.read import read_split
from airflow_paimon.data.row_columns import POSITION_COLUMNS, ROW_COLUMNS, with_row_columns
from airflow_paimon.data.row_deletes import delete_rows, deletes_by_vectors
from airflow_paimon.data.scan import ReadSplit, TableRead, plan_read, with_positions
from airflow_paimon.data.where_text import to_expression
from airflow_paimon.data.write import TableWrite, partitions_of_rows, plan_write
from airflow_paimon.spark.jobs.correction_tasks import correct_buckets
from airflow_paimon.spark.jobs.live_buckets import touched_files
from airflow_paimon.spark.statements import append, keyed
from airflow_paimon.spark.statements.deleted_rows import positions_by_file
from airflow_paimon.spark.statements.evaluate import CHANGE, DELETED, INSERTED, UPDATED
from airflow_paimon.spark.statements.marked_rows import mark_rows, marked_outcome, marking_of
from airflow_paimon.spark.statements.other_branch import refuse_rows_of_other
from airflow_paimon.spark.statements.outcome import Outcome
from airflow_paimon.spark.statements.statement_plan import (
    Assignment,
    Clause,
    Fragment,
    InsertInto,
    Statement,
    Target,
    update_columns,
)
from airflow_paimon.spark.statements.target_files import Limits, TargetFiles
from airflow_paimon.spark.statements.whole_partitions import Partitions, dropped, partition_rows

_ROW = hidden("row")


class NotPlainError(UnsupportedFeatureError):
    """The statement needs Spark after all: it reads too much, or a value doesn't fit. Nothing was changed."""


def as_statement(plain: PlainStatement | PlainMerge) -> Statement:
    """Return the statement as Spark's parser gives it, but for Spark's own nodes."""
    if isinstance(plain, PlainMerge):
        return Statement(
            kind="MERGE",
            text=plain.text,
            target=Target(name=("branch",), alias=plain.alias, at=Fragment()),
            condition=Fragment(text=plain.condition_text),
            source=Fragment(),
            matched=tuple(map(_clause, plain.matched)),
            not_matched=tuple(map(_clause, plain.not_matched)),
        )
    condition = None if plain.condition_text is None else Fragment(text=plain.condition_text)
    target = Target(name=("branch",), alias=plain.alias, at=Fragment())
    statement = Statement(kind=plain.kind, text=plain.text, target=target, condition=condition)
    if plain.kind == "INSERT":
        return replace(statement, insert=InsertInto(columns=plain.columns), source=Fragment())
    if plain.kind == "DELETE":
        return replace(statement, matched=(Clause(action="delete"),))
    return replace(statement, matched=(Clause(action="update", assignments=_assignments(plain.values)),))


def _clause(plain: PlainClause) -> Clause:
    return Clause(
        action=plain.action,
        condition=None if plain.condition is None else Fragment(),
        assignments=() if plain.star else _assignments(plain.values),
        star=plain.star,
    )


def _assignments(names: Iterable[str]) -> tuple[Assignment, ...]:
    return tuple(Assignment(key=(name,), at=Fragment(), value=Fragment()) for name in names)


def change_plainly(
    plain: PlainStatement,
    table: Table,
    memory_bytes: int,
    limits: Limits | None = None,
    *,
    dry_run: bool = False,
) -> Outcome:
    """Compute a statement on the head, as ``statements.run.evaluate`` does with Spark; nothing is committed.

    Raises:
        NotPlainError: it takes more memory than ``memory_bytes``, or a computed number doesn't fit its column.
    """
    if table.schema().primary_keys:
        return _change_keyed(plain, table, memory_bytes, limits, dry_run)
    return _change_append(plain, table, memory_bytes, dry_run)


def _change_keyed(
    plain: PlainStatement, table: Table, memory_bytes: int, limits: Limits | None, dry_run: bool
) -> Outcome:
    target, inserts = TargetFiles(table), plain.kind == "INSERT"
    schema = target.schema
    new = with_kind(_inserted(plain, schema), "+I") if inserts else None
    partitions = None if new is None else partitions_of_rows(new, table.store, table.label)(schema)
    selection = target.selection(plain.condition) if new is None else target.those(partitions)
    plan = target.of(selection)
    written = partitions if new is not None else partitions_in(plan)
    write = plan_keyed_write(plan, None if selection is None else written)
    merges = inserts and TableOptions(schema.options).merge_engine != "deduplicate"
    plainest = keyed.without_defaults(schema) if merges else keyed.without_merging(schema)
    write = replace(write, schema=plainest if inserts else keyed.with_stored_chars(plainest))
    tells = keyed.writes_changelog(table, schema)
    if new is None:
        refuse_rows_of_other(plan, plain.condition)
        if _takes_whole_partitions(plain, schema) and not tells:
            found = dropped(plan, write, plain.condition, partial(_chosen, plain, schema), dry_run=dry_run)
            return replace(found, is_part=selection is not None)
        read, splits = _read(plain, plan, whole_buckets=True)
        require_fitting((f for s in splits for f in s.files), plan, memory_bytes)
        kind = "+U" if plain.kind == "UPDATE" else "-D"
        found_rows = matching(read, splits, plain.condition, schema)
        rows = [with_kind(_changed(plain, batch, schema), kind) for batch in found_rows]
    else:
        rows = [new]
        require_fitting(touched_files(plan, write, rows), plan, memory_bytes)
    correction = keyed.correction_on(plan, write, None if limits is None else limits(selection), dry_run)
    correction = replace(correction, writes_changelog=tells, merges=merges)
    outcome = keyed.outcome_of(plan, write, list(correct_buckets(correction, rows)))
    return replace(outcome, is_part=selection is not None)


def plan_keyed_write(plan: ScanPlan, only: frozenset[bytes] | None) -> TableWrite:
    """Plan to write buckets of a table with keys again, those of some partitions; None: of all."""
    chained = is_chain_rows(plan.table)
    return plan_write(plan.table, tasks=1, scan=plan, partitions=lambda schema: only, by_buckets=True, chained=chained)


def partitions_in(plan: ScanPlan) -> frozenset[bytes]:
    """Return the partitions of planned files, in canonical form."""
    canonical = StoredPartitions(plan.schema).canonical
    return frozenset(canonical(s.partition) for s in plan.splits)


def _change_append(plain: PlainStatement, table: Table, memory_bytes: int, dry_run: bool) -> Outcome:
    target, statement = TargetFiles(table), as_statement(plain)
    inserts = plain.kind == "INSERT"
    plan = append.plan_on(
        target, statement, target.those(frozenset()) if inserts else target.selection(plain.condition)
    )
    schema, is_part = plan.write.schema, plan.scan is not target.whole_if_read()
    if inserts:
        read, splits = plan_read(plan.scan, columns=list(schema.field_names), time_travel=True, layered=True)
        rows = pa.Table.from_batches([_placed_nowhere(_inserted(plain, schema))])
    else:
        refuse_rows_of_other(plan.scan, plain.condition)
        if _takes_whole_partitions(plain, schema):
            found = dropped(plan.scan, plan.write, plain.condition, partial(_chosen, plain, schema), dry_run=dry_run)
            return replace(found, is_part=is_part)
        marks = append.marks_rows(statement, schema)
        ids = (ROW_ID,) if marks and plan.tracks_rows else ()
        read, splits = _read(plain, plan.scan, ids)
        require_fitting((f for s in splits for f in s.files), plan.scan, memory_bytes)
        if plain.kind == "DELETE" and deletes_by_vectors(schema):
            return replace(_marked(plain, plan, read, splits, dry_run), is_part=is_part)
        carried = (*ids, *(schema.field_names if marks else update_columns(statement, schema)))
        rows = _placed_changes(plain, plan, read, splits, carried)
        if marks:
            marking = marking_of(plan, counts_matches=statement.counts_matches, dry_run=dry_run)
            return replace(marked_outcome(marking, plan, [mark_rows(marking, rows.to_batches())]), is_part=is_part)
    parts = append.file_parts(splits)
    rewrite = append.plan_rewrite(statement, plan, with_positions(read), parts, dry_run)
    return replace(append.outcome_of(plan, [append.rewrite_here(rows, rewrite)]), is_part=is_part)


def _marked(
    plain: PlainStatement, plan: CopyOnWrite, read: TableRead, splits: Sequence[ReadSplit], dry_run: bool
) -> Outcome:
    """Delete rows by deletion vectors."""
    positions = positions_by_file(matching(with_positions(read), splits, plain.condition, plan.write.schema))
    found = delete_rows(plan.scan, plan.write, positions, dry_run=dry_run)
    return append.deleted(plan, found)


def _placed_changes(
    plain: PlainStatement, plan: CopyOnWrite, read: TableRead, splits: Sequence[ReadSplit], names: Sequence[str]
) -> pa.Table:
    """Return each changed row's place, what happens to it, and these columns as they become."""
    schema = plan.write.schema
    kind = UPDATED if plain.kind == "UPDATE" else DELETED
    fields = [pa.field(n, arrow_type(POSITION_COLUMNS[n].type)) for n in POSITION_COLUMNS]
    types = {f.name: arrow_type(f.type) for f in with_row_columns(schema).fields}
    fields += [pa.field(CHANGE, pa.string()), *(pa.field(n, types[n]) for n in names)]
    found = []
    for batch in matching(with_positions(read), splits, plain.condition, schema):
        changed = _changed(plain, batch, schema)
        columns = [batch.column(n) for n in POSITION_COLUMNS]
        columns += [pa.repeat(kind, batch.num_rows)]
        columns += [(batch if n in ROW_COLUMNS else changed).column(n) for n in names]
        found.append(pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields)))
    return pa.Table.from_batches(found, pa.schema(fields))


def _placed_nowhere(rows: pa.RecordBatch) -> pa.RecordBatch:
    nowhere = [pa.nulls(rows.num_rows, arrow_type(f.type)) for f in POSITION_COLUMNS.values()]
    columns = [*nowhere, pa.repeat(INSERTED, rows.num_rows), *rows.columns]
    return pa.RecordBatch.from_arrays(columns, [*POSITION_COLUMNS, CHANGE, *rows.schema.names])


def _read(
    plain: PlainStatement, plan: ScanPlan, ids: Sequence[str] = (), *, whole_buckets: bool = False
) -> tuple[TableRead, list[ReadSplit]]:
    """Plan to read all columns, and ``ids``, of the files that may hold rows of the condition."""
    return plan_read(
        plan,
        columns=[*plan.schema.field_names, *ids],
        predicate=plain.condition,
        time_travel=True,
        layered=True,
        whole_buckets=whole_buckets,
    )


def require_fitting(files: Iterable[DataFile], plan: ScanPlan, memory_bytes: int) -> None:
    """Refuse to work on more files than fit.

    Raises:
        NotPlainError: they take more memory.
    """
    if not fits(files, plan.schema, memory_bytes):
        raise NotPlainError(f"{plan.table.label}: what the statement reads is more than {memory_bytes >> 20:,} MiB")


def matching(
    read: TableRead, splits: Sequence[ReadSplit], condition: Predicate | None, schema: TableSchema
) -> Iterator[pa.RecordBatch]:
    """Read the rows for which a condition is true; a null is not."""
    where = None if condition is None else to_expression(condition, schema)
    for split in splits:
        for batch in read_split(read, split):
            found = batch if where is None else filtered(batch, where)
            if found.num_rows:
                yield found


def filtered(batch: pa.RecordBatch, where: pc.Expression) -> pa.RecordBatch:
    """Return the rows for which an expression is true."""
    found = pa.Table.from_batches([batch]).filter(where).combine_chunks().to_batches()
    return found[0] if found else batch.slice(0, 0)


def _changed(plain: PlainStatement, batch: pa.RecordBatch, schema: TableSchema) -> pa.RecordBatch:
    """Return rows with what their columns become; all from the old values."""
    columns = []
    for field in schema.fields:
        if field.name in plain.values:
            columns.append(computed(plain.values[field.name], batch, field, schema))
        else:
            columns.append(batch.column(field.name))
    return pa.RecordBatch.from_arrays(columns, list(schema.field_names))


_COMPUTE = {"+": pc.add_checked, "-": pc.subtract_checked, "*": pc.multiply_checked}


def computed(found: Expression, batch: pa.RecordBatch, field: DataField, schema: TableSchema) -> pa.Array:
    """Return what a column becomes in these rows. ``schema``: of the rows.

    Raises:
        NotPlainError: a number is out of range, or null where the column can't be.
    """
    column = _value(found, batch, field, schema)
    if column.null_count and not field.type.nullable:  # Spark, or what writes its rows, says where
        raise NotPlainError(f"a value of column {field.name!r} would be null, which it can't be")
    return column


def _value(found: Expression, batch: pa.RecordBatch, field: DataField, schema: TableSchema) -> pa.Array:
    if isinstance(found, Value):
        return repeated(found.value, field.type, batch.num_rows)
    if isinstance(found, Column):
        return batch.column(found.name)
    if isinstance(found, Case):
        masks = pa.StructArray.from_arrays(
            [pa.array(holds(batch, condition, schema)) for condition, _ in found.branches],
            [str(i) for i in range(len(found.branches))],
        )
        values = [_value(value, batch, field, schema) for _, value in found.branches]
        return pc.case_when(masks, *values, _value(found.otherwise, batch, field, schema))
    sides = (_value(found.left, batch, field, schema), _value(found.right, batch, field, schema))
    try:
        return _COMPUTE[found.sign](*sides)
    except pa.ArrowInvalid:  # Spark says where
        raise NotPlainError(f"a value of column {field.name!r} would be out of its range") from None


def holds(rows: pa.RecordBatch, condition: Predicate | None, schema: TableSchema) -> npt.NDArray[np.bool_]:
    """Return for each row whether a condition is true; a null is not."""
    out = np.full(rows.num_rows, condition is None)
    if condition is not None:
        known = rows.select(sorted(columns_of(condition)))
        numbered = pa.Table.from_batches([known]).append_column(_ROW, pa.array(np.arange(rows.num_rows)))
        out[numbered.filter(to_expression(condition, schema)).column(_ROW).to_numpy()] = True
    return out


def _inserted(plain: PlainStatement, schema: TableSchema) -> pa.RecordBatch:
    columns = [
        pa.array([row[i] for row in plain.rows], arrow_type(field.type)) for i, field in enumerate(schema.fields)
    ]
    return pa.RecordBatch.from_arrays(columns, list(schema.field_names))


def with_kind(rows: pa.RecordBatch, kind: str) -> pa.RecordBatch:
    """Add a column with what becomes of each row's key."""
    return rows.append_column(ROW_KIND, pa.repeat(kind, rows.num_rows))


def _takes_whole_partitions(plain: PlainStatement, schema: TableSchema) -> bool:
    used = frozenset[str]() if plain.condition is None else columns_of(plain.condition)
    return plain.kind == "DELETE" and used <= frozenset(schema.partition_keys)


def _chosen(plain: PlainStatement, schema: TableSchema, partitions: Partitions) -> Partitions:
    """Return the partitions that the condition holds for."""
    if plain.condition is None or not partitions:
        return partitions
    rows = filtered(partition_rows(schema, partitions), to_expression(plain.condition, schema))
    known = list(partitions.items())
    return dict(known[number] for number in rows.column(FILE_POSITION).to_pylist())
