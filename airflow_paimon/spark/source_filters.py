"""Translates filters that Spark hands to a data source into a ``Predicate`` for pruning."""

from __future__ import annotations

from typing import Any

from pyspark.sql import datasource as ds

from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.table.predicate import Condition, Operator, Predicate
from airflow_paimon.data.files.arrow_types import finer_than_micros

_OPERATORS: dict[type, Operator] = {
    ds.EqualTo: "=",
    ds.EqualNullSafe: "=",
    ds.GreaterThan: ">",
    ds.GreaterThanOrEqual: ">=",
    ds.LessThan: "<",
    ds.LessThanOrEqual: "<=",
    ds.In: "in",
    ds.StringStartsWith: "starts with",
    ds.IsNull: "is null",
    ds.IsNotNull: "is not null",
}
_OPPOSITES: dict[Operator, Operator] = {
    "=": "!=",
    ">": "<=",
    ">=": "<",
    "<": ">=",
    "<=": ">",
    "is null": "is not null",
    "is not null": "is null",
}


def to_predicate(found: Any, schema: TableSchema) -> Predicate | None:
    """Translate one filter; None = not supported."""
    if isinstance(found, ds.Not):
        inner = to_predicate(found.child, schema)
        opposite = _OPPOSITES.get(inner.op) if isinstance(inner, Condition) else None
        null_safe = isinstance(found.child, ds.EqualNullSafe)  # its negation is true for null
        return Condition(inner.column, opposite, inner.value) if opposite and not null_safe else None  # type: ignore[union-attr]
    op = _OPERATORS.get(type(found))
    if op is None or len(found.attribute) != 1:
        return None
    name = found.attribute[0]
    if name not in schema.field_names or name in finer_than_micros(schema.fields):
        return None
    value = getattr(found, "value", None)
    if op in ("is null", "is not null"):
        return Condition(name, op)
    if value is None:
        return Condition(name, "is null") if isinstance(found, ds.EqualNullSafe) else None
    return Condition(name, op, tuple(value) if op == "in" else value)
