"""Sample rows of broken rules without the values of masked columns.

A SELECT and a function can give a value any name. So where a table that a rule sees has masked columns, only columns
are shown that are one of a view's, unchanged and under its own name, as Spark's analyzed plan says. It numbers columns,
and a computed one gets a new number; but where rows of two queries are put together (UNION), the first one's stand for
both.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_paimon.core.requests.requests import CheckBranchData
from airflow_paimon.core.table.masking import MASK, Masks, columns_to_mask, masks_of
from airflow_paimon.core.table.paths import MAIN
from airflow_paimon.core.table.table import Table, viewed_table
from airflow_paimon.data.diff.keyed import json_value
from airflow_paimon.data.planner import read_schema
from airflow_paimon.spark.jobs.diff_branches import BEFORE
from airflow_paimon.spark.jvm import analyzed, has_jvm, id_of, kind_of, sequence_items

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Show = Callable[[Mapping[str, Any]], dict[str, Any]]
"""Returns a sample row as JSON values, without what is masked."""

_PASSES_ON = frozenset({
    "Aggregate", "Deduplicate", "Distinct", "Except", "Filter", "Generate", "GlobalLimit", "Intersect", "Join",
    "LocalLimit", "Offset", "Project", "ResolvedHint", "Sample", "Sort", "SubqueryAlias", "Window",
})  # fmt: skip
"""Parts of an analyzed plan in which a column that keeps its number keeps its values."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Shows the rows of rules. ``own``: the masks of the checked table; ``further``: of further views, by name."""

    own: Masks
    further: Mapping[str, Masks]

    def of_columns(self, row: Mapping[str, Any], more: Collection[str] = ()) -> dict[str, Any]:
        """Show a row whose columns are the table's own, under their names; ``more``: hide these, too."""
        hidden = Masks(self.own.columns | {name.lower() for name in more})
        return _masked(hidden, row)

    def of_query(self, rows: DataFrame, frames: Mapping[str, DataFrame], named: Iterable[Masks] = ()) -> Show:
        """Return what shows the rows of a query over views; ``named``: masks of tables that it names itself."""
        if not self.hides(named):
            return lambda row: _masked(self.own, row)
        origins = _origins(rows, frames)

        def show(row: Mapping[str, Any]) -> dict[str, Any]:
            return {name: self._value(name, value, origins.get(name)) for name, value in row.items()}

        return show

    def of_list(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Show a row that a function made."""
        return {name: MASK if self.hides() else json_value(value) for name, value in row.items()}

    def hides(self, named: Iterable[Masks] = ()) -> bool:
        """Whether a table that a rule sees has masked columns."""
        return any(masks.columns for masks in (self.own, *self.further.values(), *named))

    def _value(self, name: str, value: Any, view: str | None) -> Any:
        return MASK if view is None else _masked(self.further.get(view, self.own), {name: value})[name]


def view_masks(request: CheckBranchData, text: str) -> Masks:
    """Return what ``db.t[$branch_b][@VERSION]`` and the request hide.

    Raises:
        NotFoundError: no such table, branch or version.
    """
    table, version = viewed_table(request.warehouse, text, request.storage_options)
    schemas = (table.branch(MAIN).schema(), table.schema(), read_schema(table, version))
    return masks_of(schemas, columns_to_mask(table.name, request.mask))


def table_masks(request: CheckBranchData, tables: Iterable[Table]) -> list[Masks]:
    """Return what the tables that a query names, and the request, hide."""
    return [
        masks_of((table.branch(MAIN).schema(), table.schema()), columns_to_mask(table.name, request.mask))
        for table in tables
    ]


def _masked(masks: Masks, row: Mapping[str, Any]) -> dict[str, Any]:
    shown = {name: json_value(value) for name, value in row.items()}
    before = shown.get(BEFORE)
    if isinstance(before, dict):
        shown[BEFORE] = masks.row(before)
    return masks.row(shown)


def _origins(rows: DataFrame, frames: Mapping[str, DataFrame]) -> dict[str, str]:
    """Return the view of each column that is one of a view's, unchanged and under its own name."""
    if not has_jvm(rows.sparkSession):  # over Spark Connect there is no plan to look at
        return {}
    plans = {view: analyzed(frame) for view, frame in frames.items()}
    known = {number: (view, name) for view, plan in plans.items() for number, name in _columns(plan)}
    plan = analyzed(rows)
    if not _passes_on(plan, known.keys(), list(plans.values())):
        return {}
    columns = _columns(plan)
    names = [name for _, name in columns]
    origins = {name: known[number][0] for number, name in columns if known.get(number, ("", ""))[1] == name}
    return {name: view for name, view in origins.items() if names.count(name) == 1}


def _columns(plan: Any) -> list[tuple[int, str]]:
    """Return number and name of the columns that a plan gives."""
    return [(id_of(column), str(column.name())) for column in sequence_items(plan.output())]


def _passes_on(plan: Any, known: Collection[int], views: Collection[Any]) -> bool:
    """Whether columns with known numbers have the values that they have in the views."""
    if not any(number in known for number, _ in _columns(plan)):
        return True
    if kind_of(plan) == "View":
        plan = plan.child()
    if any(plan.equals(view) for view in views):
        return True
    return kind_of(plan) in _PASSES_ON and all(_passes_on(c, known, views) for c in sequence_items(plan.children()))
