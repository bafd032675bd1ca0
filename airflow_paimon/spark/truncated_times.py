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
from airflow_paimon.spark.jvm import analyzed, has_jvm, id_of, ids_of, kind_of, references, sequence_items
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
    plan = analyzed(frame)
    output = [id_of(a) for a in sequence_items(plan.output())]
    origins = _Origins()
    return [n for n, at in zip(frame.columns, output, strict=True) if n in among and origins.marked(plan, {at})]


def inexact_column(condition: Any, plan: Any) -> str | None:
    """Return a cut-off column that a resolved condition on rows of a plan compares, where whole values could give
    another answer. They can't with ``>=`` and ``<`` and a value that is whole.
    """
    origins = _Origins()
    times = [a for a in references(condition) if _holds_times(a)]
    cut_off = {id_of(a): str(a.name()) for a in times if origins.marked(plan, {id_of(a)})}
    if not cut_off:
        return None

    def used_by(side: Any) -> set[int]:
        columns, queries = set[int](), list[Any]()
        _use(side, columns, queries)
        return columns & cut_off.keys()

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


class _Origins:
    """Follows columns, by the ids that Spark gives them, to the plans that read them."""

    def __init__(self) -> None:
        self._common: dict[int, Any] = {}
        self._seen: set[tuple[int, frozenset[int]]] = set()

    def marked(self, plan: Any, wanted: set[int]) -> bool:
        """Whether one of these columns of a plan comes from a marked one."""
        output = sequence_items(plan.output())
        if any(id_of(a) in wanted and a.metadata().contains(TRUNCATED) for a in output):
            return True
        kind = kind_of(plan)
        if kind == "WithCTE":
            self._common |= {int(d.id()): d.child() for d in sequence_items(plan.cteDefs())}
        if kind in _BY_PLACE:
            places = {i for i, a in enumerate(output) if id_of(a) in wanted}
            return any(self._at_places(other, places) for other in self._others(plan, kind, places))
        return self._below(plan, wanted)

    def _others(self, plan: Any, kind: str, places: set[int]) -> list[Any]:
        if kind == "Union":
            return sequence_items(plan.children())
        key = int(plan.cteId()), frozenset(places)
        if key in self._seen or key[0] not in self._common:  # one that reads itself
            return []
        self._seen.add(key)
        return [self._common[key[0]]]

    def _at_places(self, plan: Any, places: set[int]) -> bool:
        output = [id_of(a) for a in sequence_items(plan.output())]
        return self.marked(plan, {output[i] for i in places})

    def _below(self, plan: Any, wanted: set[int]) -> bool:
        children = [(c, ids_of(c.output())) for c in _children(plan)]
        given = set().union(*(ids for _, ids in children))
        expressions = sequence_items(plan.expressions())
        made = {id_of(e): e for e in expressions if kind_of(e) == "Alias"}
        below, queries = wanted & given, list[Any]()
        for at in wanted & made.keys():
            _use(made[at].child(), below, queries)
        if wanted - made.keys() - given:  # a plan with columns of its own: they may come from all that it gets
            below |= given
            for expression in expressions:
                _queries(expression, queries)
        if any(self._at_places(q, set(range(q.output().size()))) for q in queries):
            return True
        return any(self.marked(child, below & ids) for child, ids in children if below & ids)


def _children(node: Any) -> list[Any]:
    return sequence_items(node.children())


def _use(expression: Any, columns: set[int], queries: list[Any]) -> None:
    """Add the columns and subqueries whose timestamps an expression passes on."""
    if not _holds_times(expression):
        return
    kind = kind_of(expression)
    if kind in ("AttributeReference", "OuterReference"):
        columns.add(id_of(expression))
    if kind.endswith(_QUERIES):
        queries.append(expression.plan())
    for child in _children(expression):
        _use(child, columns, queries)


def _holds_times(expression: Any) -> bool:
    from py4j.protocol import Py4JJavaError

    try:
        return "timestamp" in str(expression.dataType().catalogString())
    except Py4JJavaError:  # the frame of a window, which has no value
        return False


def _queries(expression: Any, queries: list[Any]) -> None:
    if kind_of(expression).endswith(_QUERIES):
        queries.append(expression.plan())
    for child in _children(expression):
        _queries(child, queries)
