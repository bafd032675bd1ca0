"""Rules about columns without Spark, where they are kept: no row has to be shown then.

A rule that is broken, or may mean something else to Spark, is left to Spark. Imports no pyspark.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_paimon.core.checks.rules import ALL, AcceptedValues, NotNull, Rule, Unique
from airflow_paimon.core.format.types import AtomicType
from airflow_paimon.core.table.partitions import Selection, StoredPartitions
from airflow_paimon.core.table.scan import ScanPlan, plan_state
from airflow_paimon.data.diff.scan import DiffPlan
from airflow_paimon.data.memory_plan import fits
from airflow_paimon.data.read import read_split
from airflow_paimon.data.scan import plan_read

_INTEGERS = ("TINYINT", "SMALLINT", "INT", "BIGINT")
_TEXTS = ("STRING", "VARCHAR")
_EQUAL_ALIKE = frozenset({"BOOLEAN", "DATE", "DECIMAL", *_INTEGERS, *_TEXTS})
"""Types whose values are equal to Arrow when they are to Spark."""


def is_kept(rule: Rule, plan: DiffPlan, memory_bytes: int) -> bool:
    """Whether a rule is kept for certain, by rows that take no more memory; False: that is for Spark to say."""
    if isinstance(rule, NotNull):
        return _holds(_rows_of(rule, plan), rule.columns, memory_bytes, _has_no_nulls)
    if isinstance(rule, AcceptedValues):
        known = _value_set(rule, plan)
        return known is not None and _holds(
            _rows_of(rule, plan), (rule.column,), memory_bytes, lambda rows: _are_among(rows, known)
        )
    if not isinstance(rule, Unique):
        return False
    schema = plan.after.scan.schema
    types = [schema.field(name).type for name in rule.columns]
    if not all(isinstance(t, AtomicType) and t.root in _EQUAL_ALIKE for t in types):
        return False
    chosen = None if rule.rows == ALL else touched_partitions(rule.columns, plan)
    return _holds(_branch(plan, chosen), rule.columns, memory_bytes, _are_unique)


def touched_partitions(columns: Collection[str], plan: DiffPlan) -> Selection | None:
    """Select the partitions that differ, where rows of others can't have the same values in these columns."""
    schema = plan.after.scan.schema
    if not schema.partition_keys or not set(schema.partition_keys) <= set(columns):
        return None
    sides = (plan.before, plan.after)
    return StoredPartitions(schema).those({s.partition for side in sides for s in side.scan.splits})


def _rows_of(rule: NotNull | AcceptedValues, plan: DiffPlan) -> ScanPlan:
    """Return the rows that a rule looks at, or more: those of all buckets, or files without keys, that differ."""
    return _branch(plan, None) if rule.rows == ALL else plan.after.scan


def _branch(plan: DiffPlan, chosen: Selection | None) -> ScanPlan:
    return plan_state(plan.after.scan, chosen)


def _holds(scan: ScanPlan, names: Sequence[str], memory_bytes: int, test: Callable[[pa.Table], bool]) -> bool:
    if not fits((f for s in scan.splits for f in s.files), scan.schema, memory_bytes):
        return False
    columns = list(dict.fromkeys(names))
    read, splits = plan_read(scan, columns=columns, time_travel=True)
    batches = [batch for split in splits for batch in read_split(read, split)]
    return test(pa.Table.from_batches(batches, read.output_schema))


def _has_no_nulls(rows: pa.Table) -> bool:
    return all(column.null_count == 0 for column in rows.columns)


def _value_set(rule: AcceptedValues, plan: DiffPlan) -> pa.Array | None:
    """Return the accepted values in the column's type; None where Spark would convert one side of the comparison."""
    data_type = plan.after.scan.schema.field(rule.column).type
    if not isinstance(data_type, AtomicType):
        return None
    values: list[Any] = list(rule.values)
    if data_type.root in _TEXTS and all(isinstance(v, str) for v in values):
        return pa.array(values, pa.string())
    if data_type.root == "BOOLEAN" and all(isinstance(v, bool) for v in values):
        return pa.array(values, pa.bool_())
    if data_type.root in _INTEGERS and all(type(v) is int and -(1 << 63) <= v < 1 << 63 for v in values):
        return pa.array(values, pa.int64())
    return None


def _are_among(rows: pa.Table, known: pa.Array) -> bool:
    found = pc.is_in(pc.drop_null(rows.column(0)).cast(known.type), value_set=known)
    return bool(pc.all(found, min_count=0).as_py())


def _are_unique(rows: pa.Table) -> bool:
    whole = rows.drop_null()
    groups = whole.group_by(whole.column_names).aggregate([])
    return bool(groups.num_rows == whole.num_rows)
