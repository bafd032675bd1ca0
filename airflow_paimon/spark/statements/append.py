"""Statements on tables without primary key: only the files that hold changed rows are written again.

The changed rows go to the task that writes their file, with their place in it and their new values; that task reads the
file and leaves out, replaces or keeps each row. Row ids stay with their rows (``data/copy_on_write.py``).
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.table.internal_columns import internal_column
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partitions import Selection, StoredPartitions
from airflow_paimon.core.table.predicate import Predicate
from airflow_paimon.data.copy_on_write import CopyOnWrite, copy_on_write
from airflow_paimon.data.files.arrow_types import FILE_NAME, FILE_POSITION, ROW_ID
from airflow_paimon.data.files.read import BATCH_ROWS
from airflow_paimon.data.read_groups import plan_of
from airflow_paimon.data.read_splits import ReadSplit, TableRead, fits_in_process, plan_read, with_positions
from airflow_paimon.data.row_columns import POSITION_COLUMNS, ROW_COLUMNS
from airflow_paimon.data.row_deletes import deletes_by_vectors, two_of_one_name
from airflow_paimon.data.write import TableWrite, discard_files, plan_write
from airflow_paimon.spark.arrow_frames import frame_of_arrow
from airflow_paimon.spark.jobs.small_input import few_rows, stored_frame
from airflow_paimon.spark.rows_in import rebalanced
from airflow_paimon.spark.shares import slim_split
from airflow_paimon.spark.spark_types import sql_name
from airflow_paimon.spark.statements.evaluate import Evaluation
from airflow_paimon.spark.statements.file_changes import Rewrite, Rewritten, rewrite_files
from airflow_paimon.spark.statements.insert import inserted
from airflow_paimon.spark.statements.materialized_source import Keys, keys_of_source, materialized_source
from airflow_paimon.spark.statements.other_branch import refuse_rows_of_other
from airflow_paimon.spark.statements.outcome import StatementOutcome
from airflow_paimon.spark.statements.row_deletions import (
    delete_marked_rows,
    deletion_outcome,
    row_deletion_of,
)
from airflow_paimon.spark.statements.statement_plan import Statement, update_columns
from airflow_paimon.spark.statements.target_files import TargetFiles
from airflow_paimon.spark.statements.whole_partitions import drop_partitions, takes_whole_partitions
from airflow_paimon.spark.tasks import SCHEMA, collect, map_in_arrow, ship
from airflow_paimon.spark.truncated_times import refuse_truncated_times

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MOST_TASKS = 64
_TASK = internal_column("task")
_INSERT_TASKS = 4
"""Tasks that write the inserted rows of one partition, so that they don't become very many small files."""


def change_append(spark: SparkSession, statement: Statement, target: TargetFiles, dry_run: bool) -> StatementOutcome:
    """Evaluate a statement and write the touched files again; nothing is committed.

    Raises:
        InvalidInputError: Spark refuses the statement, or a row is matched twice.
    """
    whole = marks_rows(statement, target.schema) and statement.kind != "DELETE"
    ids = whole and TableOptions(target.schema.options).row_tracking
    identity = [*POSITION_COLUMNS, *((ROW_ID,) if ids else ())]
    evaluation = Evaluation(spark, statement, target.schema, identity, whole=whole)
    return _AppendStatement(spark, statement, target, evaluation, dry_run).run()


@dataclass(frozen=True, slots=True)
class _AppendStatement:
    """One statement on one head, of which it reads only files that can matter."""

    spark: SparkSession
    statement: Statement
    target: TargetFiles
    evaluation: Evaluation
    dry_run: bool

    def run(self) -> StatementOutcome:
        statement, target, schema = self.statement, self.target, self.target.schema
        if statement.insert is not None:
            plan = self._plan(target.those(frozenset()))
            rows = inserted(self.spark, statement, schema, list(POSITION_COLUMNS))
            refuse_truncated_times(rows, schema.fields, target.table.label)
            return self._written(plan, *self._read(plan, None), rows)
        found = self.evaluation.run(self.evaluation.empty_target())
        refuse_truncated_times(found.rows, schema.fields, target.table.label)
        if statement.kind == "MERGE" and not target.is_small(found.predicate):
            with materialized_source(self.spark, statement, self.evaluation) as kept:
                if kept is not None:
                    return self._merge(kept, keys_of_source(self.evaluation, kept))
        plan = self._plan(target.selection(found.predicate))
        refuse_rows_of_other(plan.scan, found.predicate)
        if takes_whole_partitions(statement, plan.scan, found):
            files, predicate = (plan.scan, plan.write), found.predicate
            return drop_partitions(self.spark, statement, *files, predicate, dry_run=self.dry_run)
        read, splits = self._read(plan, found.predicate, found.uses if statement.kind == "DELETE" else None)
        return self._written(
            plan, read, splits, self.evaluation.run(stored_frame(self.spark, plan_of((read, splits)))).rows
        )

    def _merge(self, kept: DataFrame, keys: Keys) -> StatementOutcome:
        """MERGE with a kept source, which says which partitions can have matching rows, before their files are looked
        for.
        """
        statement, evaluation = self.statement, self.evaluation
        none = frozenset[bytes]()
        plan = self._plan(self.target.those(none) if keys.nothing else self.target.selection(keys.predicate))
        refuse_rows_of_other(plan.scan, keys.predicate)
        read, splits = self._read(plan, keys.predicate)
        splits = [] if keys.nothing else splits
        target = keys.within(stored_frame(self.spark, plan_of((read, splits))))
        rows = evaluation.run(target, kept).rows
        if statement.not_matched:
            rows = rows.union(evaluation.inserts(evaluation.unmatched(target, kept)))
        return self._written(plan, read, splits, rows, kept=True)

    def _plan(self, selection: Selection | None) -> CopyOnWrite:
        """Plan a change of the files of some partitions; None: of all."""
        target = self.target
        scan, only = target.of(selection), None
        written = scan
        if scan is not target.whole_read and TableOptions(target.schema.options).bucket > 0:
            if self._stays():
                canonical = StoredPartitions(target.schema).canonical
                only = frozenset(canonical(s.partition) for s in scan.splits)
            else:
                written = target.whole()  # a row can get into any partition, with its own number of buckets
        return copy_on_write(scan, plan_write(target.table, scan=written, partitions=lambda _: only))

    def _stays(self) -> bool:
        """Whether all rows stay in their partitions, and none is inserted."""
        statement, schema = self.statement, self.target.schema
        inserts = statement.insert is not None or any(c.action == "insert" for c in statement.clauses)
        return not inserts and {*update_columns(statement, schema)}.isdisjoint(schema.partition_keys)

    def _read(
        self, plan: CopyOnWrite, predicate: Predicate | None, only: frozenset[str] | None = None
    ) -> tuple[TableRead, list[ReadSplit]]:
        """Plan the read of the rows that may change; ``only``: the columns that are needed."""
        schema, text = plan.write.schema, self.statement.text.upper()
        own = {ROW_ID} if marks_rows(self.statement, schema) else set()
        columns = [*schema.field_names, *(n for n in ROW_COLUMNS if plan.tracks_rows and (n in own or n in text))]
        if only is not None:
            columns = [n for n in columns if n in only]
        read, splits = plan_read(plan.scan, columns=columns, predicate=predicate, layered=True)
        return with_positions(read), splits

    def _written(
        self, plan: CopyOnWrite, read: TableRead, splits: Sequence[ReadSplit], rows: DataFrame, *, kept: bool = False
    ) -> StatementOutcome:
        """Write what the changed rows come to. ``kept``: see ``few_rows``."""
        if marks_rows(self.statement, plan.write.schema):
            return self._with_marked_rows(plan, rows, kept)
        few = few_rows(rows, kept=kept)
        rewrite = plan_rewrite(self.statement, plan, read, file_parts(splits), self.dry_run)
        if few is not None:
            names = set(few.column(FILE_NAME).unique().to_pylist())
            if fits_in_process(f for s in plan.scan.splits for f in s.files if f.file_name in names):
                return outcome_of(plan, [_rewrite_here(few, rewrite)])
            rows = frame_of_arrow(rows.sparkSession, few, rows.schema)  # not evaluated twice
        placed = _placed(rows, rewrite, list(rewrite.files))
        return outcome_of(plan, _in_tasks(placed, partial(rewrite_files, rewrite), rewrite.plan.write))

    def _with_marked_rows(self, plan: CopyOnWrite, rows: DataFrame, kept: bool) -> StatementOutcome:
        """Mark changed rows as deleted, and write them anew."""
        statement = self.statement
        marking = row_deletion_of(plan, counts_matches=statement.counts_matches, dry_run=self.dry_run)
        few = few_rows(rows, kept=kept)
        if few is not None:
            return deletion_outcome(marking, plan, [delete_marked_rows(marking, few.to_batches(BATCH_ROWS))])
        moved = rows if statement.kind == "DELETE" else rebalanced(rows, plan.write.schema.partition_keys)
        results = _in_tasks(moved, partial(delete_marked_rows, marking), marking.plan.write)
        return deletion_outcome(marking, plan, results)


def marks_rows(statement: Statement, schema: TableSchema) -> bool:
    """Whether changed rows are marked as deleted, and those of an update written anew."""
    return statement.insert is None and deletes_by_vectors(schema)


def outcome_of(plan: CopyOnWrite, results: Sequence[Rewritten]) -> StatementOutcome:
    """Return what these files come to."""
    return StatementOutcome(
        read=plan.scan,
        write=plan.write,
        messages=tuple(m for r in results for m in r.messages),
        updated=sum(r.updated for r in results),
        deleted=sum(r.deleted for r in results),
        inserted=sum(r.inserted for r in results),
        rewritten=frozenset(name for r in results for name in r.files),
    )


def _in_tasks(rows: DataFrame, work: Callable[[Iterator[pa.RecordBatch]], Any], write: TableWrite) -> list[Any]:
    """Return what each task makes of its rows. Where one refuses, what the others have written is deleted."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return ship(lambda: [work(batches)])

    def discard(done: Sequence[Any]) -> None:
        discard_files(write, [m for r in done for m in r.messages])

    return collect(map_in_arrow(rows, run, SCHEMA), refused=discard)


def file_parts(splits: Sequence[ReadSplit]) -> list[ReadSplit]:
    """Divide splits into those of one file each."""
    return [part for split in splits for part in split.divided()]


def plan_rewrite(
    statement: Statement, plan: CopyOnWrite, read: TableRead, parts: Sequence[ReadSplit], dry_run: bool
) -> Rewrite:
    files = {p.files[0].file_name: pickle.dumps((slim_split(p), p.files[0]), pickle.HIGHEST_PROTOCOL) for p in parts}
    if len(files) != len(parts):
        raise two_of_one_name(plan.scan.table.label)
    schema = plan.write.schema
    full = schema.without_defaults()
    names = set(update_columns(statement, schema))
    updates = replace(full, fields=tuple(f for f in full.fields if f.name in names), partition_keys=())
    return Rewrite(
        plan=plan.for_tasks(),
        read=read,
        files=files,
        updates=updates,
        full=full,
        counts_matches=statement.counts_matches,
        dry_run=dry_run,
    )


def _rewrite_here(few: pa.Table, rewrite: Rewrite) -> Rewritten:
    """Write files again by changes in any order."""
    inserted = pc.is_null(few.column(FILE_NAME))
    changed = few.filter(pc.invert(inserted)).sort_by([(FILE_NAME, "ascending"), (FILE_POSITION, "ascending")])
    ordered = pa.concat_tables([few.filter(inserted), changed])
    return rewrite_files(rewrite, ordered.to_batches(BATCH_ROWS))


def _placed(rows: DataFrame, rewrite: Rewrite, names: Sequence[str]) -> DataFrame:
    """Bring the changes of a file to one task, in the order of its rows, and files to different tasks."""
    from pyspark.sql import functions as sf

    tasks = max(1, min(MOST_TASKS, len(names)))
    keys = [sf.col(sql_name(k)) for k in rewrite.full.partition_keys if k in rows.columns]
    spread = sf.pmod(sf.spark_partition_id(), sf.lit(_INSERT_TASKS))
    task = sf.pmod(sf.hash(*keys) + spread if keys else spread, sf.lit(tasks))
    if names:
        numbers = {name: i % tasks for i, name in enumerate(names)}
        known = sf.map_from_arrays(sf.array(*map(sf.lit, numbers)), sf.array(*map(sf.lit, numbers.values())))
        task = sf.coalesce(sf.element_at(known, sf.col(FILE_NAME)), task)
    numbered = rows.withColumn(_TASK, task.cast("int"))
    by_id = getattr(numbered, "repartitionById", numbered.repartition)
    moved: DataFrame = by_id(tasks, sf.col(_TASK))
    return moved.drop(_TASK).sortWithinPartitions(sf.col(FILE_NAME).asc_nulls_first(), FILE_POSITION)
