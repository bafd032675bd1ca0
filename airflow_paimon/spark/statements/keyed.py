"""Statements on primary-key tables: the buckets that hold changed rows are written again, whole.

That is what corrections do (docs/contributing/publishing.md, A running writer keeps winning), with two differences:
what the statement says holds whatever the merge engine, ``sequence.field`` or ``ignore-delete`` would make of a
change; and a row may not be matched twice. Only the rows of an INSERT are merged with those that are there, where
that is what the merge engine is for (not deduplicate).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_paimon.core.chain.guard import is_chain_rows
from airflow_paimon.core.commit.draft import CommitMessage
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.types import AtomicType
from airflow_paimon.core.table.live_files import BucketKey
from airflow_paimon.core.table.options import BRANCH_CHANGELOG_OPTION, TableOptions
from airflow_paimon.core.table.partition_scope import choose_partitions
from airflow_paimon.core.table.partitions import Selection, StoredPartitions, either_of
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.predicate import Predicate
from airflow_paimon.core.table.scan import ScanPlan
from airflow_paimon.core.table.table import Table
from airflow_paimon.data.dynamic_buckets import with_hash_indexes
from airflow_paimon.data.files.arrow_types import ROW_KIND
from airflow_paimon.data.merge_changelog import producer_of
from airflow_paimon.data.read_groups import plan_of
from airflow_paimon.data.read_splits import plan_read
from airflow_paimon.data.rewrite import new_bucket_number
from airflow_paimon.data.write import TableWrite, plan_write
from airflow_paimon.spark.jobs.correction_tasks import BucketCorrection, BucketResult, live_buckets, run_buckets
from airflow_paimon.spark.jobs.small_input import few_rows, stored_frame
from airflow_paimon.spark.statements.evaluate import (
    CHANGE,
    DELETED,
    INSERTED,
    MATCHED,
    MOVED,
    UPDATED,
    Evaluated,
    Evaluation,
    stored_chars,
)
from airflow_paimon.spark.statements.insert import inserted
from airflow_paimon.spark.statements.materialized_source import MaterializedSource, materialized_source_of
from airflow_paimon.spark.statements.other_branch import refuse_rows_of_other
from airflow_paimon.spark.statements.outcome import StatementOutcome
from airflow_paimon.spark.statements.statement_plan import Statement
from airflow_paimon.spark.statements.target_files import Limits, TargetFiles, partitions_of
from airflow_paimon.spark.statements.whole_partitions import drop_partitions, takes_whole_partitions
from airflow_paimon.spark.tasks import cores_of
from airflow_paimon.spark.truncated_times import refuse_truncated_times

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_KINDS = {INSERTED: "+I", UPDATED: "+U", DELETED: "-D", MATCHED: "-U"}
_MERGE_OPTIONS = ("sequence.field", "merge-engine", "ignore-delete", "partial-update.")
"""Parts of the names of options that decide between versions of a key."""


def change_keyed(
    spark: SparkSession, statement: Statement, target: TargetFiles, limits: Limits | None, dry_run: bool
) -> StatementOutcome:
    """Evaluate a statement and write the touched buckets; nothing is committed.

    ``limits``: the highest sequence number that each bucket may hold; None = what it holds now.

    Raises:
        InvalidInputError: Spark refuses the statement, a row is matched twice, a key would change or come twice.
    """
    change = _KeyedChange(spark, statement, target, limits, dry_run)
    return change.insert() if statement.insert is not None else change.change()


@dataclass(frozen=True, slots=True)
class _KeyedChange:
    """One statement on one head."""

    spark: SparkSession
    statement: Statement
    target: TargetFiles
    limits: Limits | None
    dry_run: bool

    def insert(self) -> StatementOutcome:
        schema = self.target.schema
        merges = TableOptions(schema.options).merge_engine != "deduplicate"
        rows = _with_kinds(inserted(self.spark, self.statement, schema, ()))
        refuse_truncated_times(rows, schema.fields, self.target.table.label)
        few = few_rows(rows)
        partitions = None if few is None else partitions_of(few, self.target.table, schema)
        selection = self.target.those(partitions)
        plan = self.target.of(selection)
        write = self._write(plan, None if selection is None else partitions)
        write = replace(write, schema=schema.without_defaults() if merges else without_merging(schema))
        return self._written(rows, few, plan, write, selection, merges=merges)

    def change(self) -> StatementOutcome:
        """UPDATE, DELETE and MERGE."""
        target = self.target
        evaluation = self._evaluation(self.statement)
        empty = evaluation.run(evaluation.empty_target())
        self._refuse_cut_off(empty)
        if self.statement.kind == "MERGE" and target.has_many():
            with materialized_source_of(self.spark, self.statement, evaluation, target.table, target.schema) as known:
                if known is not None:
                    again = self._evaluation(known.statement)
                    return self._on(again, again.run(again.empty_target()), known)
        return self._on(evaluation, empty, None)

    def _refuse_cut_off(self, empty: Evaluated) -> None:
        """Changed rows are written whole; of those that are deleted count the columns that say which ones they are."""
        schema, label = self.target.schema, self.target.table.label
        keys = {*schema.primary_keys, *schema.partition_keys}
        if self.statement.kind != "DELETE":
            refuse_truncated_times(empty.rows, schema.fields, label, fixed=keys)
            return
        names = keys | {*TableOptions(schema.options).sequence_fields}
        refuse_truncated_times(empty.rows, [f for f in schema.fields if f.name in names], label, fixed=names)

    def _evaluation(self, statement: Statement) -> Evaluation:
        return Evaluation(self.spark, statement, self.target.schema, (), whole=True)

    def _on(self, evaluation: Evaluation, empty: Evaluated, known: MaterializedSource | None) -> StatementOutcome:
        """``empty``: evaluated on no rows."""
        predicate = empty.predicate if known is None else known.keys.predicate
        new = frozenset[bytes]() if known is None else known.inserted
        selection = self._selection(predicate, known)
        plan = self.target.of(selection)
        refuse_rows_of_other(plan, predicate)
        canonical = StoredPartitions(plan.schema).canonical
        only = None if selection is None else new | {canonical(s.partition) for s in plan.splits}
        write = replace(self._write(plan, only), schema=with_stored_chars(without_merging(plan.schema)))
        if takes_whole_partitions(self.statement, plan, empty) and not writes_changelog(plan.table, plan.schema):
            return drop_partitions(self.spark, self.statement, plan, write, predicate, dry_run=self.dry_run)
        layer = plan_read(plan, predicate=predicate, layered=True, whole_buckets=True)
        rows = _with_kinds(evaluation.run(stored_frame(self.spark, plan_of(layer))).rows)
        few = few_rows(rows, kept=known is not None)
        return self._written(rows, few, plan, write, selection, merges=False)

    def _selection(self, predicate: Predicate | None, known: MaterializedSource | None) -> Selection | None:
        """Return the partitions of rows that can change, and those of rows that can be inserted."""
        if known is None:
            anywhere = any(c.action == "insert" for c in self.statement.clauses)
            return None if anywhere else self.target.selection(predicate)
        changed, inserted = self.target.selection(predicate), self.target.those(known.inserted)
        if known.keys.nothing or changed is None or inserted is None:
            return inserted if known.keys.nothing else None
        return either_of(changed, inserted)

    def _write(self, plan: ScanPlan, only: frozenset[bytes] | None) -> TableWrite:
        table = plan.table
        return plan_write(
            table,
            tasks=cores_of(self.spark),
            scan=plan,
            partitions=lambda _: only,
            by_buckets=True,
            chained=is_chain_rows(table),
        )

    def _written(
        self,
        rows: DataFrame,
        few: pa.Table | None,
        plan: ScanPlan,
        write: TableWrite,
        selection: Selection | None,
        *,
        merges: bool,
    ) -> StatementOutcome:
        limits = None if self.limits is None else self.limits(selection)
        correction = correction_on(plan, write, limits, self.dry_run)
        correction = replace(correction, writes_changelog=writes_changelog(plan.table, plan.schema), merges=merges)
        return outcome_of(plan, write, run_buckets(rows, few, plan, correction))


def writes_changelog(table: Table, schema: TableSchema) -> bool:
    """Whether streaming readers get the changes with the commit. What a branch changes those of main get by its
    publish; for its own readers the table's option decides.
    """
    readers = table.branch_name == MAIN or TableOptions(schema.options).flag(BRANCH_CHANGELOG_OPTION)
    return readers and producer_of(schema) is not None


def without_merging(schema: TableSchema) -> TableSchema:
    """Return the schema by which a change replaces the row that is there, whatever the table's options say."""
    options = {k: v for k, v in schema.options.items() if not any(part in k for part in _MERGE_OPTIONS)}
    return replace(schema.without_defaults(), options=options)


def with_stored_chars(schema: TableSchema) -> TableSchema:
    """Return the schema by which rows that are changed keep CHARs as they are stored: none is filled up."""
    chars = stored_chars(schema)
    text = (replace(f, type=AtomicType("STRING", (), f.type.nullable)) if f.name in chars else f for f in schema.fields)
    return replace(schema, fields=tuple(text)) if chars else schema


def _with_kinds(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as sf

    moved = sf.raise_error(sf.lit("a MERGE can't change the key, partition or bucket of a row"))
    kind = sf.when(sf.col(CHANGE) == MOVED, moved.cast("string"))
    for name, text in _KINDS.items():
        kind = kind.when(sf.col(CHANGE) == name, sf.lit(text))
    return rows.withColumn(ROW_KIND, kind).drop(CHANGE)


def correction_on(
    plan: ScanPlan, write: TableWrite, limits: Mapping[BucketKey, int] | None, dry_run: bool
) -> BucketCorrection:
    """Return what the tasks that write buckets again have in common."""
    read, splits = plan_read(plan, layered=True, whole_buckets=True)
    everywhere = choose_partitions(plan.schema, (), plan.table.label)
    return BucketCorrection(
        write=write,
        choice=everywhere,
        live=live_buckets(plan, write, splits, limits),
        read=read,
        dry_run=dry_run,
        drops_matches=True,
        new_bucket=new_bucket_number(plan.table),
    )


def outcome_of(plan: ScanPlan, write: TableWrite, results: Sequence[BucketResult]) -> StatementOutcome:
    """Return what these buckets come to."""
    key_of = StoredPartitions(plan.schema).bucket
    live = {key_of(s): s for s in plan.splits}
    kinds: Counter[str] = Counter()
    messages: list[CommitMessage] = []
    for result in results:
        kinds.update(result.kinds)
        split = live.get(result.key)
        found = result.message
        if found is not None and split is not None:
            found = replace(found, partition=split.partition, replaced=split.files)
        if found is not None:
            messages.append(found)
    return StatementOutcome(
        read=plan,
        write=write,
        messages=tuple(with_hash_indexes(write.dynamic, messages)),
        updated=kinds["+U"],
        deleted=kinds["-D"],
        inserted=kinds["+I"],
        rewritten=frozenset(
            f.file_name for r in results if r.kinds.keys() - {"-U"} and r.key in live for f in live[r.key].files
        ),
    )
