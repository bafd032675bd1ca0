"""Conditions on rows as Arrow expressions: of a ``Predicate``, or of a text such as look-ups and notebooks take."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from operator import or_

import pyarrow as pa
import pyarrow.compute as pc

from airflow_paimon.core.errors import InvalidInputError, naming_table
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.sql_text.condition import parse_condition
from airflow_paimon.core.table.predicate import AllOf, AnyOf, Condition, Predicate
from airflow_paimon.core.table.table import Table
from airflow_paimon.data.files.arrow_types import repeated, scalar_of
from airflow_paimon.data.planner import read_schema
from airflow_paimon.data.row_columns import with_row_columns

_EXPRESSIONS: dict[str, Callable[[pc.Expression, pc.Expression], pc.Expression]] = {
    "=": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}
_FLOATS = ("FLOAT", "DOUBLE")


def to_expression(predicate: Predicate, schema: TableSchema) -> pc.Expression:
    """Return the Arrow expression that is true for exactly the rows that a predicate of ``parse_condition`` selects."""
    if isinstance(predicate, AllOf | AnyOf):
        out = to_expression(predicate.parts[0], schema)
        for part in predicate.parts[1:]:
            other = to_expression(part, schema)
            out = out & other if isinstance(predicate, AllOf) else out | other
        return out
    field = pc.field(predicate.column)
    if predicate.op == "is null":
        return field.is_null()
    if predicate.op == "is not null":
        return field.is_valid()
    if predicate.op in ("like", "not like"):
        is_like = pc.match_like(field, predicate.value)
        return is_like if predicate.op == "like" else ~is_like
    data_type = schema.field(predicate.column).type
    if data_type.root in _FLOATS:
        return _of_float(field.cast(pa.float64()), predicate)
    if predicate.op in ("in", "not in"):
        is_in = field.isin(pa.concat_arrays([repeated(v, data_type, 1) for v in predicate.value]))
        return is_in if predicate.op == "in" else ~is_in & field.is_valid()
    return _EXPRESSIONS[predicate.op](field, pc.scalar(scalar_of(predicate.value, data_type)))


def _of_float(field: pc.Expression, condition: Condition) -> pc.Expression:
    """Compare as Spark and Paimon do: NaN is equal to itself and above all other numbers, -0.0 is 0.0. A FLOAT is
    compared as a DOUBLE.
    """
    if condition.op in ("in", "not in"):  # Arrow looks values up by their bits
        is_in = reduce(or_, (_of_float(field, Condition(condition.column, "=", v)) for v in condition.value))
        return is_in if condition.op == "in" else ~is_in
    value, is_nan = pc.scalar(float(condition.value)), field.is_nan()
    equal, less = (is_nan, ~is_nan) if math.isnan(condition.value) else (field == value, field < value)
    return {"=": equal, "!=": ~equal, "<": less, "<=": less | equal, ">": ~(less | equal), ">=": ~less}[condition.op]


def where_argument(
    table: Table,
    where: str | pc.Expression | None,
    version: int | str | None = None,
    timestamp: int | str | None = None,
) -> pc.Expression | None:
    """Return a filter as an expression: a text is parsed with the columns of the version that is read.

    Raises:
        InvalidInputError: neither an expression nor a text that ``parse_condition`` takes.
    """
    if where is None or isinstance(where, pc.Expression):
        return where
    if not isinstance(where, str):
        raise InvalidInputError(
            f"{table.label}: where is a condition (string) or a pyarrow expression, not {type(where).__name__}"
        )
    schema = with_row_columns(read_schema(table, version, timestamp))
    with naming_table(table.label):
        return to_expression(parse_condition(where, schema), schema)
