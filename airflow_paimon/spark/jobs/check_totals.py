"""Rules about totals: what they need to know of the branch, of its base and of earlier partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_paimon.core.checks.rules import WEEK_BEFORE, Drift
from airflow_paimon.core.checks.totals import moved_too_far, week_before
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.table.partition_text import partition_text
from airflow_paimon.core.table.partitions import DEFAULT_PARTITION, Selection, StoredPartitions
from airflow_paimon.spark.jobs.check_views import CheckViews

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_Measures = dict[tuple[Any, ...], Any]
"""A measure by the partition's values."""


def drifts(rule: Drift, views: CheckViews) -> tuple[list[dict[str, Any]], int]:
    """Return where a measure moved too far, and how many partitions had nothing to be compared with.

    Raises:
        InvalidInputError: a week before is asked for, and no partition column holds dates.
    """
    schema = views.plan.after.scan.schema
    stored = StoredPartitions(schema)
    touched = {s.partition for side in (views.plan.before, views.plan.after) for s in side.scan.splits}
    if not touched:
        return [], 0
    after = _measure(rule, views.branch(_columns(rule, views), stored.those(touched)), views)
    if rule.against != WEEK_BEFORE:
        before = _measure(rule, views.base(_columns(rule, views), stored.those(touched)), views)
        return moved_too_far(rule, _by_name(before, views), _by_name(after, views)), 0
    earlier = {values: week_before(values) for values in after}
    if after and not any(earlier.values()):
        raise InvalidInputError(
            f"{views.plan.after.scan.table.label}: rule {rule.name!r} compares with the week before, and no partition "
            f"column holds dates, as 2026-11-24 or 20261124"
        )
    found = _measure(rule, views.branch(_columns(rule, views), _selection(stored, earlier)), views)
    pairs = {values: found[then] for values, then in earlier.items() if then in found}
    compared = {values: value for values, value in after.items() if values in pairs}
    return moved_too_far(rule, _by_name(pairs, views), _by_name(compared, views)), len(after) - len(pairs)


def _selection(stored: StoredPartitions, earlier: dict[tuple[Any, ...], tuple[Any, ...] | None]) -> Selection:
    wanted = {tuple(map(str, then)) for then in earlier.values() if then is not None}
    return stored.where(lambda values: tuple(map(str, values)) in wanted)


def _columns(rule: Drift, views: CheckViews) -> list[str]:
    keys = list(views.plan.after.scan.schema.partition_keys)
    columns = list(dict.fromkeys([*keys, *([rule.column] if rule.column else [])]))
    return columns or [views.plan.columns[0]]


def _measure(rule: Drift, rows: DataFrame, views: CheckViews) -> _Measures:
    from pyspark.sql import functions as sf

    measured = sf.lit(1) if rule.column is None else rows[rule.column]
    function = {"sum": sf.sum, "mean": sf.avg, "count": sf.count, "min": sf.min, "max": sf.max}[rule.measure]
    keys = views.plan.after.scan.schema.partition_keys
    found = rows.groupBy(*keys).agg(function(measured).alias("_measure")).collect()
    return {tuple(row[key] for key in keys): row["_measure"] for row in found}


def _by_name(measures: _Measures, views: CheckViews) -> dict[str, Any]:
    keys = views.plan.after.scan.schema.partition_keys
    return {
        partition_text(
            {k: DEFAULT_PARTITION if v is None else str(v) for k, v in zip(keys, values, strict=True)}
        ): value
        for values, value in measures.items()
    }
