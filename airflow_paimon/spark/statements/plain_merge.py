"""MERGE without Spark, as ``core/correction/plain_merge.py`` reads it: Arrow joins the rows of both sides.

What is written and committed, and how, is what the same statement in Spark writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_paimon.core.correction.plain_merge import SOURCE, PlainClause, PlainMerge
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.types import DataField
from airflow_paimon.core.table.partition_filter import either_of
from airflow_paimon.core.table.partitions import Selection
from airflow_paimon.core.table.predicate import AllOf, Condition, Predicate
from airflow_paimon.core.table.scan import ScanPlan
from airflow_paimon.core.table.table import Table
from airflow_paimon.data.files.arrow_types import ROW_ID, arrow_schema, arrow_type
from airflow_paimon.data.layers import other_branch
from airflow_paimon.data.merge.versions import Indices
from airflow_paimon.data.row_columns import POSITION_COLUMNS, ROW_COLUMNS
from airflow_paimon.data.scan import ReadSplit, TableRead, plan_read, with_positions
from airflow_paimon.data.write import partitions_of_rows
from airflow_paimon.spark.jobs.correction_tasks import correct_buckets
from airflow_paimon.spark.jobs.live_buckets import touched_files
from airflow_paimon.spark.statements import append, keyed
from airflow_paimon.spark.statements.evaluate import CHANGE, DELETED, INSERTED, UPDATED, carried_columns
from airflow_paimon.spark.statements.marked_rows import mark_rows, marked_outcome, marking_of
from airflow_paimon.spark.statements.outcome import Outcome
from airflow_paimon.spark.statements.plain import (
    NotPlainError,
    as_statement,
    computed,
    holds,
    matching,
    partitions_in,
    plan_keyed_write,
    require_fitting,
    with_kind,
)
from airflow_paimon.spark.statements.statement_plan import fixed_columns
from airflow_paimon.spark.statements.target_files import Limits, TargetFiles

_LISTED_VALUES = 1000
"""Of a column of the source: so many are looked for in statistics one by one."""
_CHANGES = {"update": UPDATED, "delete": DELETED, "insert": INSERTED}
_KINDS = {UPDATED: "+U", DELETED: "-D", INSERTED: "+I"}


def merge_plainly(
    plain: PlainMerge,
    table: Table,
    source: pa.Table,
    fields: Sequence[DataField],
    memory_bytes: int,
    limits: Limits | None = None,
    *,
    dry_run: bool = False,
) -> Outcome:
    """Compute a MERGE on the head, as ``statements.run.evaluate`` does with Spark; nothing is committed.

    ``source``: the columns ``plain.source_columns`` of its view, of the types of ``fields``.

    Raises:
        NotPlainError: it takes more memory than ``memory_bytes``, or Spark has to say what is wrong with a row.
    """
    target = TargetFiles(table)
    if other_branch(ScanPlan(table, None, target.schema)) is not None:
        raise NotPlainError(f"{table.label} is read together with another branch")
    sides = _Sides(plain, target.schema, _as_batch(source, fields), fields)
    if target.schema.primary_keys:
        return _merge_keyed(sides, target, memory_bytes, limits, dry_run)
    return _merge_append(sides, target, memory_bytes, dry_run)


def _as_batch(source: pa.Table, fields: Sequence[DataField]) -> pa.RecordBatch:
    """Return the source's rows under the names that the statement's conditions and values have for them."""
    schema = arrow_schema([replace(f, name=SOURCE + f.name) for f in fields])
    columns = [_one(source.column(f.name)) for f in fields]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _one(column: pa.ChunkedArray) -> pa.Array:
    found = column.combine_chunks()
    return found if isinstance(found, pa.Array) else pa.concat_arrays(found.chunks)


@dataclass(frozen=True, slots=True)
class _Changed:
    """Rows that one clause takes: ``kind``, the values of the target's columns, and where changed rows lie, with their
    ids if these are carried; of inserted ones None.
    """

    kind: str
    rows: pa.RecordBatch
    places: pa.RecordBatch | None


@dataclass(frozen=True)
class _Sides:
    """A statement, and its source's rows."""

    plain: PlainMerge
    schema: TableSchema
    source: pa.RecordBatch
    fields: Sequence[DataField]

    @cached_property
    def both(self) -> TableSchema:
        """The columns of joined rows."""
        own = tuple(replace(f, name=SOURCE + f.name) for f in self.fields)
        return replace(self.schema, fields=(*self.schema.fields, *own), partition_keys=(), primary_keys=())

    @cached_property
    def can_match(self) -> Indices:
        """The numbers of the source's rows that the condition doesn't leave out by themselves."""
        return np.flatnonzero(holds(self.source, self.plain.of_source, self.both))

    @cached_property
    def predicate(self) -> Predicate | None:
        """What is true for every row of the target that can match; None: no row can."""
        parts = [] if self.plain.of_target is None else [self.plain.of_target]
        rows = self.source.take(pa.array(self.can_match))
        for name, source in self.plain.equal:
            values = pc.drop_null(pc.unique(rows.column(SOURCE + source)))
            if not len(values):
                return None
            if len(values) <= _LISTED_VALUES:
                parts.append(Condition(name, "in", tuple(values.to_pylist())))
            elif not pa.types.is_boolean(values.type):
                bounds = pc.min_max(values).as_py()
                parts += [Condition(name, ">=", bounds["min"]), Condition(name, "<=", bounds["max"])]
        return AllOf(tuple(parts))

    def matched(self, target: pa.Table) -> tuple[Indices, Indices, Indices]:
        """Return the numbers of the target's rows that meet, in order, a row of the source for each, and all rows of
        the source that meet.

        Raises:
            NotPlainError: one of the target meets two of the source, which is for Spark to refuse.
        """
        names = [str(i) for i in range(len(self.plain.equal))]
        left = [target.column(name) for name, _ in self.plain.equal]
        rows = self.source.take(pa.array(self.can_match))
        right = [rows.column(SOURCE + name) for _, name in self.plain.equal]
        source = pa.table([*right, pa.array(self.can_match)], [*names, "row"])
        keys = source.group_by(names).aggregate([("row", "min")])  # each once: pairs of rows may be very many
        found = pa.table([*left, pa.array(np.arange(target.num_rows))], [*names, "of_target"])
        found = found.join(keys, keys=names, join_type="inner").sort_by("of_target")
        own, first = (found.column(n).to_numpy().astype(np.int64) for n in ("of_target", "row_min"))
        if len(keys) == len(source):
            return own, first, first
        each = source.join(keys, keys=names, join_type="inner")
        meets = np.isin(each.column("row_min").to_numpy(), first)
        others = each.column("row").to_numpy()[meets].astype(np.int64)
        if as_statement(self.plain).counts_matches and len(others) > len(np.unique(first)):
            raise NotPlainError("a row is matched twice")
        return own, first, others

    def changes(self, target: pa.Table, own: Indices, others: Indices) -> Iterator[_Changed]:
        """Compute what the clauses for matched rows do. ``target``: with the places of its rows, where files are kept;
        ``own`` and ``others``: the numbers of its rows that meet, and of a row of the source for each.

        Raises:
            NotPlainError: a value doesn't fit its column, or a row's key would change.
        """
        if not self.plain.matched:
            return
        taken = target.take(pa.array(own)).combine_chunks()
        rows = _joined(taken, self.source.take(pa.array(others)))
        for clause, part in _by_clause(self.plain.matched, rows, self.both):
            new = self._values(clause, part)
            names = [n for n in (*POSITION_COLUMNS, ROW_ID) if n in part.schema.names]
            placed = part.select(names) if names else None
            self._refuse_moves(clause, part, new)
            yield _Changed(_CHANGES[clause.action], new, placed)

    def inserts(self, matched: Indices) -> Iterator[_Changed]:
        """Compute what is inserted for rows of the source but these.

        Raises:
            NotPlainError: a value doesn't fit its column.
        """
        left = np.setdiff1d(np.arange(self.source.num_rows), matched)
        rows = self.source.take(pa.array(left))
        for clause, part in _by_clause(self.plain.not_matched, rows, self.both):
            yield _Changed(INSERTED, self._values(clause, part), None)

    def _values(self, clause: PlainClause, rows: pa.RecordBatch) -> pa.RecordBatch:
        fields = self.schema.fields
        columns = [
            computed(clause.values[f.name], rows, f, self.both) if f.name in clause.values else rows.column(f.name)
            for f in fields
        ]
        return pa.RecordBatch.from_arrays(columns, [f.name for f in fields])

    def _refuse_moves(self, clause: PlainClause, rows: pa.RecordBatch, new: pa.RecordBatch) -> None:
        for name in fixed_columns(self.schema):
            if clause.action == "update" and name in clause.values and not _same(rows.column(name), new.column(name)):
                raise NotPlainError(f"column {name!r} of a row would change, which decides where the row lies")


def _same(first: pa.Array, second: pa.Array) -> bool:
    """Whether two columns have the same values, null among them."""
    equal = pc.fill_null(pc.equal(first, second), False)
    both_null = pc.and_(pc.is_null(first), pc.is_null(second))
    return bool(pc.all(pc.or_(equal, both_null), min_count=0).as_py())


def _joined(target: pa.Table, source: pa.RecordBatch) -> pa.RecordBatch:
    columns = [*(_one(c) for c in target.columns), *source.columns]
    return pa.RecordBatch.from_arrays(columns, [*target.schema.names, *source.schema.names])


def _by_clause(
    clauses: Sequence[PlainClause], rows: pa.RecordBatch, schema: TableSchema
) -> Iterator[tuple[PlainClause, pa.RecordBatch]]:
    """Give each row to the first clause whose condition is true for it."""
    for clause in clauses:
        if not rows.num_rows:
            return
        takes = holds(rows, clause.condition, schema)
        if takes.any():
            yield clause, rows.filter(pa.array(takes))
        rows = rows.filter(pa.array(~takes))


def _merge_keyed(
    sides: _Sides, target: TargetFiles, memory_bytes: int, limits: Limits | None, dry_run: bool
) -> Outcome:
    table, schema = target.table, target.schema
    selection, partitions = _selected(sides, target)
    plan = target.of(selection)
    write = plan_keyed_write(plan, None if selection is None else partitions | partitions_in(plan))
    write = replace(write, schema=keyed.without_merging(schema))
    read, splits = plan_read(
        plan,
        columns=list(schema.field_names),
        predicate=sides.predicate,
        time_travel=True,
        layered=True,
        whole_buckets=True,
    )
    splits = [] if sides.predicate is None else splits
    require_fitting((f for s in splits for f in s.files), plan, memory_bytes)
    found = _rows_of(sides, read, splits)
    own, first, others = sides.matched(found)
    changed = [*sides.changes(found, own, first), *sides.inserts(others)]
    rows = [with_kind(c.rows, _KINDS[c.kind]) for c in changed]
    require_fitting(touched_files(plan, write, rows), plan, memory_bytes)
    correction = keyed.correction_on(plan, write, None if limits is None else limits(selection), dry_run)
    correction = replace(correction, writes_changelog=keyed.writes_changelog(table, schema))
    outcome = keyed.outcome_of(plan, write, list(correct_buckets(correction, rows)))
    return replace(outcome, is_part=selection is not None)


def _selected(sides: _Sides, target: TargetFiles) -> tuple[Selection | None, frozenset[bytes]]:
    """Return the partitions of rows that can change, and of rows that can be inserted; those of the latter once more.
    None: all.
    """
    table, schema = target.table, target.schema
    new: frozenset[bytes] | None = frozenset()
    try:
        candidates = [c.rows for c in sides.inserts(np.empty(0, np.int64))]
        if candidates:
            new = partitions_of_rows(pa.Table.from_batches(candidates), table.store, table.label)(schema)
    except InvalidInputError:  # of a row that may match, and is not inserted then
        new = None
    none = target.those(frozenset())
    changed = none if sides.predicate is None else target.selection(sides.predicate)
    inserted = target.those(new)
    both = None if changed is None or inserted is None else either_of(changed, inserted)
    return both, new or frozenset()


def _rows_of(sides: _Sides, read: TableRead, splits: Sequence[ReadSplit]) -> pa.Table:
    batches = list(matching(read, splits, sides.plain.of_target, sides.schema))
    return pa.Table.from_batches(batches) if batches else read.output_schema.empty_table()


def _merge_append(sides: _Sides, target: TargetFiles, memory_bytes: int, dry_run: bool) -> Outcome:
    statement, schema = as_statement(sides.plain), target.schema
    nothing = sides.predicate is None
    selection = target.those(frozenset()) if nothing else target.selection(sides.predicate)
    plan = append.plan_on(target, statement, selection)
    marks = append.marks_rows(statement, schema)
    ids = (ROW_ID,) if marks and plan.tracks_rows else ()
    columns = [*schema.field_names, *ids]
    read, splits = plan_read(plan.scan, columns=columns, predicate=sides.predicate, time_travel=True, layered=True)
    splits = [] if nothing else splits
    require_fitting((f for s in splits for f in s.files), plan.scan, memory_bytes)
    placed = with_positions(read)
    found = _rows_of(sides, placed, splits)
    own, first, others = sides.matched(found)
    changed = [*sides.changes(found, own, first), *sides.inserts(others)]
    rows = _placed(changed, schema, carried_columns(statement, schema, marks), ids)
    if marks:
        marking = marking_of(plan, counts_matches=statement.counts_matches, dry_run=dry_run)
        outcome = marked_outcome(marking, plan, [mark_rows(marking, rows.to_batches())])
    else:
        rewrite = append.plan_rewrite(statement, plan, placed, append.file_parts(splits), dry_run)
        outcome = append.outcome_of(plan, [append.rewrite_here(rows, rewrite)])
    return replace(outcome, is_part=plan.scan is not target.whole_if_read())


def _placed(
    changed: Sequence[_Changed], schema: TableSchema, names: Sequence[str], ids: Sequence[str] = ()
) -> pa.Table:
    """Return each changed row's place and id, what happens to it, and its new values."""
    where = [*POSITION_COLUMNS, *ids]
    fields: Mapping[str, pa.DataType] = {
        **{n: arrow_type({**POSITION_COLUMNS, **ROW_COLUMNS}[n].type) for n in where},
        CHANGE: pa.string(),
        **{n: arrow_type(schema.field(n).type) for n in names},
    }
    batches = []
    for part in changed:
        rows = part.rows.num_rows
        places = [pa.nulls(rows, fields[n]) if part.places is None else part.places.column(n) for n in where]
        columns = [*places, pa.repeat(part.kind, rows), *(part.rows.column(n) for n in names)]
        batches.append(pa.RecordBatch.from_arrays(columns, list(fields)))
    return pa.Table.from_batches(batches, pa.schema(list(fields.items())))
