"""Rules about rows: the DataFrame of those that break one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING, Any, assert_never

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.rules.columns import columns_of
from airflow_paimon.core.rules.rules import (
    ALL,
    VIEWS,
    AcceptedValues,
    ColumnRule,
    Function,
    NotNull,
    Relationships,
    Sql,
    Unique,
)
from airflow_paimon.core.table.internal_columns import internal_column
from airflow_paimon.core.table.partitions import Selection, StoredPartitions
from airflow_paimon.core.table.table import Table
from airflow_paimon.spark.failures import without_values
from airflow_paimon.spark.jobs.check_views import DIFF_VIEW, CheckViews
from airflow_paimon.spark.jobs.correction_sources import call_function, import_function, spark_query
from airflow_paimon.spark.jobs.diff_branches import CHANGE
from airflow_paimon.spark.jvm import has_jvm
from airflow_paimon.spark.statements.tables import NamedTables

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_COUNT = internal_column("count")


def broken_by_columns(rule: ColumnRule, views: CheckViews) -> DataFrame | None:
    """Return the rows that break a rule about columns; of ``unique`` the values with their number; None: there is none.

    To know which rows differ costs far more than to look at a few columns of all that may: so that is done first.

    Raises:
        PaimonError: the other table is not there, or can't be read.
    """
    if isinstance(rule, Unique):
        return _repeated(rule, views)
    breaks = _breaking(rule, views)
    if rule.rows == ALL:
        return breaks(views.branch())
    if breaks(views.differing_buckets(list(dict.fromkeys(columns_of(rule))))).isEmpty():
        return None
    return breaks(_changed(views))


def _breaking(rule: NotNull | AcceptedValues | Relationships, views: CheckViews) -> Callable[[DataFrame], DataFrame]:
    """Return what leaves the rows that break a rule."""
    if isinstance(rule, NotNull):
        return lambda rows: rows.where(reduce(or_, [rows[c].isNull() for c in rule.columns]))
    if isinstance(rule, AcceptedValues):
        return lambda rows: rows.where(~rows[rule.column].isin(list(rule.values)))
    if not isinstance(rule, Relationships):
        assert_never(rule)
    other = views.other(rule.to)
    if unknown := [f for f in rule.fields if f not in other.columns]:
        raise InvalidInputError(f"Rule {rule.name!r}: {rule.to} has no column {', '.join(unknown)}")
    known = other.select(*(other[f].alias(f"_other_{i}") for i, f in enumerate(rule.fields))).distinct()

    def without_other(rows: DataFrame) -> DataFrame:
        same = _all([rows[c].eqNullSafe(known[f"_other_{i}"]) for i, c in enumerate(rule.columns)])
        return rows.where(_all([rows[c].isNotNull() for c in rule.columns])).join(known, same, "left_anti")

    return without_other


def broken_by_sql(rule: Sql, views: CheckViews, *, restricted: bool) -> tuple[DataFrame, Sequence[Table]]:
    """Return the rows that a rule's SELECT gives, to be run while its views are registered; and the tables it names.

    ``restricted``: refuse what reaches beyond the tables.
    """
    spark, branch = views.spark, views.plan.after.scan.table
    if not has_jvm(spark):
        return spark_query(spark, rule.sql), ()
    tables = NamedTables(spark, views.request, rule.sql, branch, restricted=restricted)
    return tables.query(rule.sql, lambda: views.named("branch", rule.sql)), tables.named


def broken_by_function(rule: Function, views: CheckViews, *, hides: bool) -> tuple[Any, Mapping[str, DataFrame]]:
    """Return what the user's function gives, a DataFrame or rows as mappings; and the views that it had.

    ``hides``: what it raises is not to be quoted.

    Raises:
        InvalidInputError: it is not there, raises, or gives something else.
    """
    frames = {name: views.named(name, None) for name in (*VIEWS, *views.further) if name != DIFF_VIEW}
    seen = _WithDiff(frames, views)
    function = import_function(rule.function)

    def guarded(*arguments: Any) -> Any:
        with without_values(hides):
            return function(*arguments)

    given = call_function(rule.function, guarded, views.spark, seen)
    frames |= {DIFF_VIEW: seen[DIFF_VIEW]} if DIFF_VIEW in seen else {}
    if type(given).__name__ == "DataFrame" and hasattr(given, "limit"):
        return given, frames
    rows = list(given) if isinstance(given, Iterable) and not isinstance(given, str | Mapping) else None
    if rows is None or not all(isinstance(row, Mapping) for row in rows):
        raise InvalidInputError(
            f"Rule {rule.name!r}: {rule.function} returns a DataFrame or a list of dicts, of the rows that break the "
            f"rule; it returned {type(given).__name__}"
        )
    return [dict(row) for row in rows], frames


class _WithDiff(dict[str, Any]):
    """The views of a function, of which ``diff`` is made when it is asked for: some tables can't have it."""

    def __init__(self, frames: Mapping[str, Any], views: CheckViews) -> None:
        super().__init__(frames)
        self._views = views

    def __missing__(self, name: str) -> Any:
        if name != DIFF_VIEW:
            raise KeyError(name)
        self[name] = self._views.diff()
        return self[name]


def _changed(views: CheckViews) -> DataFrame:
    """Return the rows that differ and are on the branch."""
    diff = views.diff()
    return diff.where(diff[CHANGE] != "deleted")


def _touched_partitions(rule: Unique, views: CheckViews) -> Selection | None:
    """Select the partitions that differ, where rows of others can't have the same values in the rule's columns."""
    plan = views.plan
    schema = plan.after.scan.schema
    if not schema.partition_keys or not set(schema.partition_keys) <= set(rule.columns):
        return None
    return StoredPartitions(schema).those({s.partition for side in (plan.before, plan.after) for s in side.scan.splits})


def _repeated(rule: Unique, views: CheckViews) -> DataFrame | None:
    from pyspark.sql import functions as sf

    rows = views.branch(rule.columns, None if rule.rows == ALL else _touched_partitions(rule, views))
    rows = rows.where(_all([rows[c].isNotNull() for c in rule.columns]))
    counts = rows.groupBy(*rule.columns).agg(sf.count(sf.lit(1)).alias(_COUNT))
    repeated = counts.where(counts[_COUNT] > 1)
    if rule.rows == ALL:
        return repeated
    if repeated.isEmpty():
        return None
    changed = _changed(views).select(*rule.columns).distinct()
    return repeated.join(changed, list(rule.columns), "left_semi")


def _all(conditions: list[Column]) -> Column:
    return reduce(and_, conditions)
