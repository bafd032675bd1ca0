"""Find which columns of which views each column of a query is computed from, in Spark's analyzed plan.

What this does not understand (a subquery in an expression, a table that is no view) makes a column unknown, which is
left out: a source is never guessed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_paimon.spark.jvm import analyzed, has_jvm, holds_query, id_of, kind_of, references, sequence_items

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_MOST_COLUMNS, _MOST_SOURCES = 200, 20
_COMPUTES = ("Project", "Aggregate", "Window")


def column_sources(rows: DataFrame, views: Collection[str]) -> dict[str, list[str]]:
    """Return for each column of a query the columns it is computed from, as ``view.column``; those that are known.

    Empty where Spark shows no plan (Spark Connect), and where there are very many columns.
    """
    names = rows.columns
    if not has_jvm(rows.sparkSession) or len(names) > _MOST_COLUMNS:
        return {}
    plan = _ColumnPlan(views)
    found = {name: plan.sources.get(number) for name, number in zip(names, plan.read(analyzed(rows)), strict=True)}
    return {name: sorted(some) for name, some in found.items() if some and len(some) <= _MOST_SOURCES}


@dataclass(frozen=True, slots=True)
class _ColumnPlan:
    """``sources``: of each column, by Spark's number of it; None = unknown. ``common``: the numbers of the columns of
    each query of WITH.
    """

    views: Collection[str]
    sources: dict[int, frozenset[str] | None] = field(default_factory=dict)
    common: dict[int, list[int]] = field(default_factory=dict)

    def read(self, plan: Any) -> list[int]:
        """Find the sources of all columns of a plan, the lowest first; return the numbers of its own."""
        kind, output = kind_of(plan), sequence_items(plan.output())
        numbers = [id_of(column) for column in output]
        if kind == "View":
            view = str(plan.desc().identifier().table())
            known = zip(numbers, output, strict=True) if view in self.views else ()
            self.sources.update({number: frozenset((f"{view}.{column.name()}",)) for number, column in known})
            return numbers
        children = [self.read(child) for child in sequence_items(plan.children())]
        if kind in _COMPUTES:
            made = {id_of(e): self._of(e.child()) for e in sequence_items(plan.expressions()) if kind_of(e) == "Alias"}
            self.sources.update(made)
        elif kind == "Generate":
            self.sources.update(dict.fromkeys(map(id_of, sequence_items(plan.generatorOutput())),
                                              self._of(plan.generator())))  # fmt: skip
        elif kind == "Union":
            self.sources.update({number: self._all(same) for number, *same in zip(numbers, *children, strict=True)})
        elif kind == "CTERelationDef":
            self.common[int(plan.id())] = numbers
        elif kind == "CTERelationRef":
            theirs = self.common.get(int(plan.cteId()), ())  # none: of one that reads itself
            self.sources.update({n: self.sources.get(other) for n, other in zip(numbers, theirs, strict=False)})
        return numbers

    def _of(self, expression: Any) -> frozenset[str] | None:
        return None if holds_query(expression) else self._all(map(id_of, references(expression)))

    def _all(self, numbers: Iterable[int]) -> frozenset[str] | None:
        found = [self.sources.get(number) for number in numbers]
        known = [some for some in found if some is not None]
        return frozenset[str]().union(*known) if len(known) == len(found) else None
