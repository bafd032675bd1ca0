"""Values of timestamps finer than microseconds, which Spark has cut off, are not written as if they were whole.

The columns that this package gives to Spark carry a mark (``TRUNCATED``) if they lose digits so. Here it is followed
through the plan of the rows that are to be written.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from airflow_paimon.core.errors import UnsupportedFeatureError
from airflow_paimon.core.format.types import DataField
from airflow_paimon.data.files.arrow_types import is_finer_than_micros
from airflow_paimon.spark.jvm import analyzed, has_jvm, id_of, kind_of, references, sequence_items
from airflow_paimon.spark.spark_types import TRUNCATED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

_ON_PURPOSE = {
    "TIMESTAMP": "CAST(CAST(... AS STRING) AS TIMESTAMP_NTZ), which cuts them off on purpose",
    "TIMESTAMP_LTZ": "timestamp_micros(unix_micros(...)), which cuts them off on purpose",
}
_EXACT = {
    "GreaterThanOrEqual": [True, False],
    "LessThan": [True, False],
    "LessThanOrEqual": [False, True],
    "GreaterThan": [False, True],
}
"""Comparisons that are true for a value if they are for the cut-off one, and which side that may be."""
_COMPARED = (*_EXACT, "EqualTo", "EqualNullSafe", "Between", "In", "InSet", "InSubquery")
_QUERIES = ("ScalarSubquery", "LateralSubquery", "ListQuery")
_BY_PLACE = ("Union", "CTERelationRef")
"""Plans whose columns are those of others, place by place."""


def refuse_truncated_times(
    frame: DataFrame, fields: Iterable[DataField], label: str, fixed: Collection[str] = ()
) -> None:
    """Refuse rows that have, for one of these columns, values that Spark has cut off. The others are exact.

    ``fixed``: columns to which a statement can't give other values.

    Raises:
        UnsupportedFeatureError: names the column.
    """
    finer = {f.name: f.type.root for f in fields if is_finer_than_micros(f.type)}
    for name in truncated_columns(frame, finer):
        raise lossy(label, name, None if name in fixed else _ON_PURPOSE.get(finer[name]))


def refuse_marked(found: StructType, fields: Iterable[DataField], label: str) -> None:
    """Do that where of the rows only their columns are known: of those that are passed on as they were read.

    Raises:
        UnsupportedFeatureError: names the column.
    """
    marked = {f.name for f in found.fields if (f.metadata or {}).get(TRUNCATED)}
    for field in fields:
        if field.name in marked and is_finer_than_micros(field.type):
            raise lossy(label, field.name, "airflow_paimon.spark.write_table, which checks where each value comes from")


def lossy(label: str, column: str, other_way: str | None = None) -> UnsupportedFeatureError:
    """Return the refusal to write a column that was cut off. ``other_way``: than the one that always works."""
    return UnsupportedFeatureError(
        f"{label}: column {column!r} is finer than microseconds, the finest that Spark has, and would lose digits. "
        "Read the rows with airflow_paimon.data.read_arrow and write them with write_arrow, which keep all "
        f"digits{f', or use {other_way}' if other_way else ''}",
        details={"column": column},
    )


def truncated_columns(frame: DataFrame, names: Collection[str]) -> list[str]:
    """Return which of these columns of a DataFrame have values that Spark has cut off.

    What is no timestamp is none of theirs any more: an hour, a day, a text. Without a JVM of its own (Spark Connect)
    only columns are known that are passed on as they were read.
    """
    among = [n for n in frame.columns if n in names]
    if not among:
        return []
    if not has_jvm(frame.sparkSession):
        return [f.name for f in frame.schema.fields if f.name in among and (f.metadata or {}).get(TRUNCATED)]
    columns = _TruncatedColumns()
    numbers = columns.read(analyzed(frame))
    return [name for name, n in zip(frame.columns, numbers, strict=True) if name in among and n in columns.ids]


def inexact_column(condition: Any, plan: Any) -> str | None:
    """Return a cut-off column that a resolved condition on rows of a plan compares, where whole values could give
    another answer. They can't with ``>=`` and ``<`` and a value that is whole.
    """
    times = [a for a in references(condition) if _holds_times(a)]
    if not times:
        return None
    columns = _TruncatedColumns()
    columns.read(plan)
    cut_off = {id_of(a): str(a.name()) for a in times if id_of(a) in columns.ids}
    if not cut_off:
        return None

    def used_by(side: Any) -> set[int]:
        return {id_of(a) for a in _passed_on(side) if not _is_query(a)} & cut_off.keys()

    for comparison in _comparisons(condition):
        parts = _children(comparison)
        if kind_of(comparison) == "Between":  # below it Spark refers to its input by a number
            parts = [comparison.input(), comparison.lower(), comparison.upper()]
        sides = [used_by(side) for side in parts]
        if any(sides) and list(map(bool, sides)) != _EXACT.get(kind_of(comparison)):
            return cut_off[min(set().union(*sides))]
    return None


def _comparisons(expression: Any) -> Iterator[Any]:
    if kind_of(expression) in _COMPARED:
        yield expression
    for child in _children(expression):
        yield from _comparisons(child)


class _TruncatedColumns:
    """Follows marked columns through a plan, by the ids that Spark gives them."""

    def __init__(self) -> None:
        self.ids: set[int] = set()
        self._common: dict[int, list[int]] = {}

    def read(self, plan: Any) -> list[int]:
        """Find the cut-off columns of a plan, the lowest first; return the ids of all of its own."""
        kind, output = kind_of(plan), sequence_items(plan.output())
        numbers = [id_of(column) for column in output]
        self.ids |= {id_of(column) for column in output if column.metadata().contains(TRUNCATED)}
        below = [self.read(child) for child in _children(plan)]
        if kind == "CTERelationDef":
            self._common[int(plan.id())] = numbers
        if kind == "CTERelationRef":
            below = [self._common.get(int(plan.cteId()), [])]  # nothing: of one that reads itself
        if kind in _BY_PLACE:
            self.ids |= {number for number, *same in zip(numbers, *below, strict=False) if self.ids & {*same}}
            return numbers
        expressions, given = sequence_items(plan.expressions()), {number for child in below for number in child}
        made = {id_of(e): e.child() for e in expressions if kind_of(e) == "Alias"}
        self.ids |= {number for number, value in made.items() if self._is_cut_off(_passed_on(value))}
        if self.ids & given or self._is_cut_off(query for e in expressions for query in _queries(e)):
            self.ids |= {*numbers} - made.keys() - given  # made in a way of its own, of all that the plan gets
        return numbers

    def _is_cut_off(self, found: Iterable[Any]) -> bool:
        """Whether one of these columns and subqueries is."""
        return any(self.ids & {*(self.read(f.plan()) if _is_query(f) else [id_of(f)])} for f in found)


def _children(node: Any) -> list[Any]:
    return sequence_items(node.children())


def _is_query(expression: Any) -> bool:
    return kind_of(expression).endswith(_QUERIES)


def _queries(expression: Any) -> Iterator[Any]:
    if _is_query(expression):
        yield expression
    for child in _children(expression):
        yield from _queries(child)


def _passed_on(expression: Any) -> Iterator[Any]:
    """Yield the columns and subqueries whose timestamps an expression passes on."""
    if not _holds_times(expression):
        return
    if kind_of(expression) in ("AttributeReference", "OuterReference") or _is_query(expression):
        yield expression
    for child in _children(expression):
        yield from _passed_on(child)


def _holds_times(expression: Any) -> bool:
    from py4j.protocol import Py4JJavaError

    try:
        return "timestamp" in str(expression.dataType().catalogString())
    except Py4JJavaError:  # the frame of a window, which has no value
        return False
