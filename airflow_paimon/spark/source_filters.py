"""Translates filters that Spark hands to a data source into a ``Predicate`` for pruning."""

from __future__ import annotations

from typing import Any

from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.table.predicate import Condition, Operator, Predicate, negation
from airflow_paimon.data.files.arrow_types import finer_than_micros

_OPERATORS: dict[str, Operator] = {
    "EqualTo": "=",
    "EqualNullSafe": "=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "In": "in",
    "StringStartsWith": "starts with",
    "IsNull": "is null",
    "IsNotNull": "is not null",
}
"""By the names of the classes in ``pyspark.sql.datasource``: Spark 4.0 doesn't have them."""


def to_predicate(found: Any, schema: TableSchema) -> Predicate | None:
    """Translate one filter; None = not supported."""
    kind = type(found).__name__
    if kind == "Not":
        inner = to_predicate(found.child, schema)
        null_safe = type(found.child).__name__ == "EqualNullSafe"  # its negation is true for null
        return None if inner is None or null_safe else negation(inner)
    op = _OPERATORS.get(kind)
    if op is None or len(found.attribute) != 1:
        return None
    name = found.attribute[0]
    if name not in schema.field_names or name in finer_than_micros(schema.fields):
        return None
    value = getattr(found, "value", None)
    if op in ("is null", "is not null"):
        return Condition(name, op)
    if value is None:
        return Condition(name, "is null") if kind == "EqualNullSafe" else None
    return Condition(name, op, tuple(value) if op == "in" else value)
