"""Compares two versions of a table in Spark's own plan: by key, or without a key as multisets of rows.

Counts come by partition and kind; samples are the first rows of each by key.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.table.partitions import shown_partition
from airflow_paimon.data.diff.keyed import Findings, json_rows
from airflow_paimon.spark.arrow_frames import collect_arrow
from airflow_paimon.spark.connector.frames import (
    in_paimon_types,
    in_partitions,
    partition_values_of,
)
from airflow_paimon.spark.spark_types import sql_name

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql import types as st

_KINDS = ("added", "changed", "deleted", "unchanged")
_KIND, _COUNT, _OLD, _NEW, _RANK = "__kind", "__count", "__before", "__after", "__rank"

Found = list[tuple[tuple[Any, ...], Findings]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """``schema``: defines the partitions. ``columns``: the compared columns, of the same type in both frames."""

    schema: TableSchema
    keys: tuple[str, ...]
    columns: tuple[str, ...]
    sample: int


def compare_frames(comparison: Comparison, before: DataFrame, after: DataFrame, sampled: int) -> Found:
    """Count the differences, with samples for the first ``sampled`` differing partitions."""
    columns = list(map(sql_name, comparison.columns))
    before, after = before.select(*columns), after.select(*columns)
    rows = _by_key(comparison, before, after) if comparison.keys else _by_content(comparison, before, after)
    found = _counts(comparison, rows)
    differing = {shown_partition(comparison.schema, v): v for v, f in found if f.added or f.changed or f.deleted}
    if differing and comparison.sample:
        first = [differing[name] for name in sorted(differing)[:sampled]]
        here = in_partitions(comparison.schema, first, _partition_columns(comparison))
        _add_samples(comparison, rows.where(here), found)
    return found


def comparable(column: Column, kind: st.DataType) -> Column:
    """Return a value that ``<=>`` compares as diffs do: -0.0 is not 0.0, and a map's pairs have no order."""
    from pyspark.sql import functions as sf
    from pyspark.sql import types as st

    if isinstance(kind, st.FloatType | st.DoubleType):
        return sf.when(column == 0, column.cast("string")).otherwise(
            sf.when(sf.isnan(column), sf.lit("NaN")).otherwise(column.cast("double").cast("string"))
        )
    if isinstance(kind, st.ArrayType):
        element = kind.elementType
        return sf.transform(column, lambda x: comparable(x, element)) if _has_parts(element) else column
    if isinstance(kind, st.MapType):
        key, value = kind.keyType, kind.valueType
        pairs = sf.transform(
            sf.map_entries(column),
            lambda x: sf.struct(comparable(x["key"], key).alias("k"), comparable(x["value"], value).alias("v")),
        )
        return sf.array_sort(pairs)
    if isinstance(kind, st.StructType) and _has_parts(kind):
        parts = [comparable(column[f.name], f.dataType).alias(f"f{i}") for i, f in enumerate(kind.fields)]
        return sf.when(column.isNull(), sf.lit(None)).otherwise(sf.struct(*parts))
    return column


def _has_parts(kind: st.DataType) -> bool:
    """Whether the type may contain values that Spark compares differently."""
    from pyspark.sql import types as st

    if isinstance(kind, st.StructType):
        return any(_has_parts(f.dataType) for f in kind.fields)
    if isinstance(kind, st.ArrayType):
        return _has_parts(kind.elementType)
    return isinstance(kind, st.FloatType | st.DoubleType | st.MapType)


def _by_key(comparison: Comparison, before: DataFrame, after: DataFrame) -> DataFrame:
    """Return one row for each key: partition columns, kind, the row on either side."""
    from pyspark.sql import functions as sf

    rest = [f for f in after.schema.fields if f.name not in comparison.keys]
    sides = []
    for frame, row, mark in ((before, _OLD, "b"), (after, _NEW, "a")):
        values = [comparable(sf.col(sql_name(f.name)), f.dataType).alias(f"v{i}") for i, f in enumerate(rest)]
        keys = [sf.col(sql_name(k)).alias(f"__{mark}{i}") for i, k in enumerate(comparison.keys)]
        whole = sf.struct(*map(sql_name, comparison.columns)).alias(row)
        sides.append(frame.select(*keys, whole, sf.struct(sf.lit(1), *values).alias(f"__{mark}v")))
    same_key = reduce(
        lambda one, other: one & other,
        [sf.col(f"__b{i}").eqNullSafe(sf.col(f"__a{i}")) for i in range(len(comparison.keys))],
    )
    both = sides[0].join(sides[1], same_key, "full_outer")
    kind = (
        sf.when(sf.col(_OLD).isNull(), sf.lit("added"))
        .when(sf.col(_NEW).isNull(), sf.lit("deleted"))
        .when(sf.col("__bv").eqNullSafe(sf.col("__av")), sf.lit("unchanged"))
        .otherwise(sf.lit("changed"))
    )
    either = sf.coalesce(sf.col(_NEW), sf.col(_OLD))
    where = [either[k].alias(f"__p{i}") for i, k in enumerate(comparison.schema.partition_keys)]
    keys = [either[k].alias(f"__k{i}") for i, k in enumerate(comparison.keys)]
    return both.select(*where, *keys, kind.alias(_KIND), sf.lit(1).cast("long").alias(_COUNT), _OLD, _NEW)


def _by_content(comparison: Comparison, before: DataFrame, after: DataFrame) -> DataFrame:
    """Return each distinct row up to twice: the surplus of one side, and the count common to both."""
    from pyspark.sql import functions as sf

    fields = after.schema.fields
    columns = [sf.col(sql_name(c)) for c in comparison.columns]
    content = [comparable(c, f.dataType).alias(f"__k{i}") for i, (c, f) in enumerate(zip(columns, fields, strict=True))]
    parts = [
        frame.select(*content, sf.struct(*columns).alias(_NEW), sf.lit(old).alias("__b"), sf.lit(1 - old).alias("__a"))
        for frame, old in ((before, 1), (after, 0))
    ]
    counted = (
        parts[0]
        .union(parts[1])
        .groupBy(*(f"__k{i}" for i in range(len(fields))))
        .agg(sf.first(_NEW).alias(_NEW), sf.sum("__b").alias("__b"), sf.sum("__a").alias("__a"))
    )
    more = sf.when(sf.col("__a") >= sf.col("__b"), sf.lit("added")).otherwise(sf.lit("deleted"))
    kinds = sf.array(
        sf.struct(more.alias("kind"), sf.abs(sf.col("__a") - sf.col("__b")).cast("long").alias("n")),
        sf.struct(sf.lit("unchanged").alias("kind"), sf.least("__a", "__b").cast("long").alias("n")),
    )
    each = counted.withColumn("__each", sf.explode(kinds)).where(sf.col("__each.n") > 0)
    where = [sf.col(_NEW)[k].alias(f"__p{i}") for i, k in enumerate(comparison.schema.partition_keys)]
    row = sf.col(_NEW)
    keys = [sf.col(f"__k{i}") for i in range(len(fields))]
    kind = sf.col("__each.kind")
    old = sf.when(kind == "deleted", row).alias(_OLD)
    new = sf.when(kind == "added", row).alias(_NEW)
    return each.select(*where, *keys, kind.alias(_KIND), sf.col("__each.n").alias(_COUNT), old, new)


def _partition_columns(comparison: Comparison) -> list[str]:
    return [f"__p{i}" for i in range(len(comparison.schema.partition_keys))]


def _counts(comparison: Comparison, rows: DataFrame) -> Found:
    from pyspark.sql import functions as sf

    by = [*_partition_columns(comparison), _KIND]
    counted = collect_arrow(rows.groupBy(*by).agg(sf.sum(_COUNT).alias(_COUNT)))
    found: Found = []
    kinds, numbers = counted.column(_KIND).to_pylist(), counted.column(_COUNT).to_pylist()
    for values, kind, number in zip(partition_values_of(counted, comparison.schema), kinds, numbers, strict=True):
        assert kind in _KINDS
        found.append((values, Findings(**{kind: number})))
    return found


def _add_samples(comparison: Comparison, rows: DataFrame, found: Found) -> None:
    from pyspark.sql import Window
    from pyspark.sql import functions as sf

    keys = [c for c in rows.columns if c.startswith("__k") and c != _KIND]
    window = Window.partitionBy(*_partition_columns(comparison), _KIND).orderBy(*keys)
    some = rows.where(sf.col(_KIND) != "unchanged").withColumn(_RANK, sf.row_number().over(window))
    kept = some.where(sf.col(_RANK) <= comparison.sample).select(
        *_partition_columns(comparison), _KIND, _RANK, _OLD, _NEW
    )
    shown = collect_arrow(kept).sort_by(_RANK)
    fields = [comparison.schema.field(c) for c in comparison.columns]
    old, new = (_json(shown.column(side), fields) for side in (_OLD, _NEW))
    kinds = shown.column(_KIND).to_pylist()
    for values, kind, before, after in zip(partition_values_of(shown, comparison.schema), kinds, old, new, strict=True):
        findings = Findings()
        row = {"before": before, "after": after} if kind == "changed" else after if kind == "added" else before
        findings.samples[kind] = [row]
        found.append((values, findings))


def _json(structs: pa.ChunkedArray, fields: Sequence[Any]) -> list[dict[str, Any]]:
    whole = structs.combine_chunks() if structs.num_chunks != 1 else structs.chunk(0)
    columns: Iterable[pa.Array] = whole.flatten()
    table = pa.table(list(columns), names=[f.name for f in fields])
    return json_rows(in_paimon_types(table, fields))
