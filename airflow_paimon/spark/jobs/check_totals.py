"""Rules about totals: what they need to know of the branch, of its base and of earlier partitions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.timestamp import Timestamp, timestamp_of
from airflow_paimon.core.rules.rules import WEEK_BEFORE, Drift
from airflow_paimon.core.rules.totals import date_column, moved_too_far, week_before
from airflow_paimon.core.table.partition_values import comparable, shown_partition
from airflow_paimon.core.table.partitions import StoredPartitions
from airflow_paimon.spark.jobs.check_views import CheckViews

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_Partition = tuple[Any, ...]
"""A partition's values, as ``StoredPartitions.identity`` has them."""


def drifts(rule: Drift, views: CheckViews) -> tuple[list[dict[str, Any]], int]:
    """Return where a measure moved too far, and how many partitions had nothing to be compared with.

    Raises:
        InvalidInputError: a week before is asked for, and no partition column holds dates.
    """
    stored = StoredPartitions(views.plan.after.scan.schema)
    touched = {s.partition for side in (views.plan.before, views.plan.after) for s in side.scan.splits}
    if not touched:
        return [], 0
    columns, names = _columns(rule, views), _names(views, touched)
    after = _measured(rule, views.branch(columns, stored.those(touched)), views)
    if rule.against != WEEK_BEFORE:
        before = _measured(rule, views.base(columns, stored.those(touched)), views)
        return moved_too_far(rule, _named(before, names), _named(after, names)), 0
    earlier = _weeks_before(rule, views, [stored.values(p) for p in touched])
    wanted = set(earlier.values())
    selected = stored.where(lambda values: tuple(map(comparable, values)) in wanted)
    found = _measured(rule, views.branch(columns, selected), views)
    pairs = {partition: found[then] for partition, then in earlier.items() if then in found}
    compared = {partition: after.get(partition) for partition in pairs}
    return moved_too_far(rule, _named(pairs, names), _named(compared, names)), len(names) - len(pairs)


def rows_before(views: CheckViews, partitions: Collection[bytes]) -> dict[str, int]:
    """Count the rows that partitions had before, by their names, as a read gives them."""
    from pyspark.sql import functions as sf

    stored = StoredPartitions(views.plan.after.scan.schema)
    keys = views.plan.after.scan.schema.partition_keys or views.plan.columns[:1]
    counts = _grouped(views.base(list(keys), stored.those(partitions)), sf.count(sf.lit(1)), views)
    return _named(counts, _names(views, partitions))


def _names(views: CheckViews, partitions: Collection[bytes]) -> dict[_Partition, str]:
    schema = views.plan.after.scan.schema
    stored = StoredPartitions(schema)
    return {tuple(map(comparable, stored.values(p))): shown_partition(schema, stored.values(p)) for p in partitions}


def _named(measures: Mapping[_Partition, Any], names: Mapping[_Partition, str]) -> dict[str, Any]:
    return {names[partition]: value for partition, value in measures.items()}


def _weeks_before(
    rule: Drift, views: CheckViews, partitions: list[tuple[Any, ...]]
) -> dict[_Partition, _Partition | None]:
    keys, label = views.plan.after.scan.schema.partition_keys, views.plan.after.scan.table.label
    try:
        at = date_column(keys, partitions, rule.date)
    except InvalidInputError as error:
        error.set_message(f"{label}: rule {rule.name!r}: {error.message}")
        raise
    if at is None:
        raise InvalidInputError(
            f"{label}: rule {rule.name!r} compares with the week before, and no partition column has dates, as "
            "2026-11-24 or 20261124"
        )
    then = {values: week_before(values, at) for values in partitions}
    return {
        tuple(map(comparable, values)): None if day is None else tuple(map(comparable, day))
        for values, day in then.items()
    }


def _columns(rule: Drift, views: CheckViews) -> list[str]:
    keys = list(views.plan.after.scan.schema.partition_keys)
    columns = list(dict.fromkeys([*keys, *([rule.column] if rule.column else [])]))
    return columns or [views.plan.columns[0]]


def _measured(rule: Drift, rows: DataFrame, views: CheckViews) -> dict[_Partition, Any]:
    from pyspark.sql import functions as sf

    measured = sf.lit(1) if rule.column is None else rows[rule.column]
    function = {"sum": sf.sum, "mean": sf.avg, "count": sf.count, "min": sf.min, "max": sf.max}[rule.measure]
    return _grouped(rows, function(measured), views)


def _grouped(rows: DataFrame, measure: Column, views: CheckViews) -> dict[_Partition, Any]:
    """Return a measure of each partition."""
    from pyspark.sql import functions as sf

    stored = StoredPartitions(views.plan.after.scan.schema)
    instants = [t.root == "TIMESTAMP_LTZ" for t in stored.types]
    keys = [
        (sf.unix_micros(rows[key]) if instant else rows[key]).alias(f"_key{i}")
        for i, (key, instant) in enumerate(zip(stored.keys, instants, strict=True))
    ]
    found = rows.groupBy(*keys).agg(measure.alias("_measure")).collect()
    return {
        tuple(comparable(_stored(row[f"_key{i}"], t.root)) for i, t in enumerate(stored.types)): row["_measure"]
        for row in found
    }


def _stored(value: Any, root: str) -> Any:
    """Return a partition column's value of Spark's as manifests have it."""
    if value is None:
        return None
    if root == "TIMESTAMP_LTZ":
        return Timestamp.from_nanos(value * 1000)
    return timestamp_of(value, local_zone=False) if root == "TIMESTAMP" else value
