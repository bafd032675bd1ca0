"""Translates conditions of Spark into a ``Predicate`` for pruning.

It is equivalent to the condition or weaker.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.timestamp import Timestamp
from airflow_paimon.core.table.predicate import MIRRORED, Condition, Operator, Predicate, all_of, any_of, negation
from airflow_paimon.data.files.arrow_types import finer_than_micros
from airflow_paimon.spark.jvm import analyzed, has_jvm, id_of, kind_of, references, sequence_items
from airflow_paimon.spark.spark_types import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

    from airflow_paimon.core.format.schema import TableSchema

_EPOCH = date(1970, 1, 1)


@dataclass(frozen=True, slots=True)
class Where:
    """``columns``: those that the condition uses; None = unknown."""

    predicate: Predicate | None
    columns: frozenset[str] | None


def parse_where(spark: SparkSession, where: str | Column, schema: TableSchema) -> Where:
    """Let Spark resolve a condition against the table's columns, and extract the part that can prune.

    Raises:
        InvalidInputError: an unknown column or bad SQL, in Spark's words.
    """
    from pyspark.errors import AnalysisException

    try:
        frame = spark.createDataFrame([], spark_schema(schema.fields)).where(where)
        frame.schema  # noqa: B018 - resolves, and so raises what is wrong with it
    except AnalysisException as error:  # its text continues with a page of plan
        why = str(error).strip().splitlines()[0]
        raise InvalidInputError(f"where: {why} (columns: {', '.join(schema.field_names)})") from None
    if not has_jvm(spark):
        return Where(None, None)
    plan = analyzed(frame)
    if kind_of(plan) != "Filter":
        return Where(None, None)
    condition = plan.condition()
    known = frozenset(schema.field_names)
    found = frozenset(a.name() for a in references(condition))
    blurred = frozenset(finer_than_micros(schema.fields))
    return Where(_predicate(condition, known - blurred), found if found <= known else None)


def condition_predicate(condition: Any, schema: TableSchema, ids: frozenset[int]) -> Predicate | None:
    """Return what a resolved condition says of a table's rows, as far as it can prune.

    ``ids``: those of the table's columns in the plan; parts with columns of other tables are left out.
    """
    if kind_of(condition) == "And":
        return all_of(condition_predicate(side, schema, ids) for side in (condition.left(), condition.right()))
    if not all(id_of(a) in ids for a in references(condition)):
        return None
    return _predicate(condition, frozenset(schema.field_names) - frozenset(finer_than_micros(schema.fields)))


def equal_columns(condition: Any, schema: TableSchema, ids: frozenset[int]) -> list[tuple[str, Any]]:
    """Return the table's columns that a resolved condition of a join sets equal to an expression on the other side.

    ``ids``: those of the table's columns. Only types whose values are ordered alike in Python, Spark and statistics.
    """
    if kind_of(condition) == "And":
        return [p for side in (condition.left(), condition.right()) for p in equal_columns(side, schema, ids)]
    if kind_of(condition) != "EqualTo":
        return []
    known = frozenset(schema.field_names)
    for own, other in ((condition.left(), condition.right()), (condition.right(), condition.left())):
        name = _column(own, known)
        if name is None or id_of(own) not in ids or schema.field(name).type.root == "CHAR":
            continue  # what is stored of a CHAR may be shorter than what is compared
        theirs = list(map(id_of, references(other)))
        if theirs and not ids.intersection(theirs) and str(own.dataType().typeName()).partition("(")[0] in _ORDERED:
            return [(name, other)]
    return []


_ORDERED = ("byte", "short", "integer", "long", "string", "date", "decimal")


_COMPARISONS: dict[str, Operator] = {
    "EqualTo": "=",
    "EqualNullSafe": "=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
}


def _predicate(node: Any, columns: frozenset[str], negated: bool = False) -> Predicate | None:
    """Translate a resolved Catalyst expression; None = not supported."""
    kind = kind_of(node)
    if kind in ("And", "Or"):
        # not (a and b) is (not a) or (not b), and so the other way round
        parts = [_predicate(side, columns, negated) for side in (node.left(), node.right())]
        return all_of(parts) if (kind == "And") != negated else any_of(parts)
    if kind == "Not":
        return _predicate(node.child(), columns, not negated)
    if kind == "Between" and not negated:
        return all_of(_bounds(node, columns))
    found = _condition(node, kind, columns)
    if found is None or not negated:
        return found
    return None if kind == "EqualNullSafe" else negation(found)  # its negation is true for null


def _condition(node: Any, kind: str, columns: frozenset[str]) -> Condition | None:
    if kind in _COMPARISONS:
        return _comparison(node, _COMPARISONS[kind], columns)
    if kind in ("IsNull", "IsNotNull"):
        name = _column(node.child(), columns)
        return Condition(name, "is null" if kind == "IsNull" else "is not null") if name else None
    if kind == "In":
        name, values = _column(node.value(), columns), [_constant(option) for option in sequence_items(node.list())]
        return Condition(name, "in", tuple(values)) if name and values and None not in values else None
    if kind == "StartsWith":
        name, prefix = _column(node.left(), columns), _constant(node.right())
        return Condition(name, "starts with", prefix) if name and isinstance(prefix, str) else None
    return None


def _comparison(node: Any, operator: Operator, columns: frozenset[str]) -> Condition | None:
    for left, right, op in ((node.left(), node.right(), operator), (node.right(), node.left(), MIRRORED[operator])):
        name = _column(left, columns)
        value = _constant(right) if name else None
        if name and value is not None:
            return Condition(name, op, value)
    return None


def _bounds(node: Any, columns: frozenset[str]) -> list[Condition]:
    name, low, high = _column(node.input(), columns), _constant(node.lower()), _constant(node.upper())
    bounds: tuple[tuple[Operator, Any], ...] = ((">=", low), ("<=", high))
    return [Condition(name, op, value) for op, value in bounds if name is not None and value is not None]


def _column(node: Any, columns: frozenset[str]) -> str | None:
    if kind_of(node) != "AttributeReference" or str(node.dataType().simpleString()).startswith("string collate"):
        return None
    name = str(node.name())
    return name if name in columns else None


def _constant(node: Any) -> Any:
    """Evaluate literals and casts of literals; None for null and everything else.

    Not every foldable expression: ``current_date()`` may be another day when the query runs.
    """
    inner = node
    while kind_of(inner) in ("Cast", "AnsiCast"):
        inner = inner.child()
    if kind_of(inner) != "Literal":
        return None
    from py4j.protocol import Py4JJavaError

    try:
        value = node.eval(None)
    except Py4JJavaError:  # a cast that fails: it will, or won't, when the query runs
        return None
    kind = str(node.dataType().typeName()).partition("(")[0]
    convert = _VALUES.get(kind)
    return None if value is None or convert is None else convert(value)


def _day(days: int) -> date | None:
    try:
        return _EPOCH + timedelta(days=days)
    except OverflowError:
        return None


def _moment(micros: int) -> Timestamp:
    return Timestamp(micros // 1000, micros % 1000 * 1000)


_VALUES: dict[str, Callable[[Any], Any]] = {
    "boolean": bool,
    **dict.fromkeys(("byte", "short", "integer", "long"), int),
    "string": str,
    "date": _day,
    "timestamp": _moment,
    "timestamp_ntz": _moment,
    "binary": bytes,
    "decimal": lambda value: value.toJavaBigDecimal(),
}
