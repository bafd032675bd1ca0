"""The aggregate function of a column, from the table's options."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from airflow_paimon.core.format.types import DataField
from airflow_paimon.core.table.merge_options import SKETCHES, aggregate_options, function_of
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.data.merge.aggregates.aggregate import Aggregate
from airflow_paimon.data.merge.aggregates.nested import (
    Collect,
    MergeMap,
    MergeMapWithKeyTime,
    NestedPartialUpdate,
    NestedUpdate,
)
from airflow_paimon.data.merge.aggregates.numbers import Product, Sum
from airflow_paimon.data.merge.aggregates.text import ListAgg
from airflow_paimon.data.merge.aggregates.values import (
    Boolean,
    Extreme,
    FirstValue,
    LastNonNullValue,
    LastValue,
    PrimaryKey,
    Sketch,
)

CLASSES: Mapping[str, type[Aggregate]] = {
    "primary-key": PrimaryKey,
    "last_value": LastValue,
    "last_non_null_value": LastNonNullValue,
    **dict.fromkeys(("first_value", "first_non_null_value", "first_not_null_value"), FirstValue),
    "sum": Sum,
    "product": Product,
    **dict.fromkeys(("max", "min"), Extreme),
    **dict.fromkeys(("bool_and", "bool_or"), Boolean),
    "listagg": ListAgg,
    "collect": Collect,
    "merge_map": MergeMap,
    "merge_map_with_keytime": MergeMapWithKeyTime,
    "nested_update": NestedUpdate,
    "nested_partial_update": NestedPartialUpdate,
    **dict.fromkeys(SKETCHES, Sketch),
}


def aggregator(
    options: TableOptions,
    field: DataField,
    *,
    keys: Collection[str] = (),
    sequence_fields: Collection[str] = (),
    function: str | None = None,
) -> Aggregate:
    """Return the function of a column of a table with ``merge-engine=aggregation``, or the one that is named.

    Raises:
        UnsupportedFeatureError: an unknown function, or one that the column's type does not allow.
        InvalidInputError: one of its options has a wrong value.
    """
    name = function or function_of(options, field.name, keys=keys, sequence_fields=sequence_fields)
    parsed = aggregate_options(options, field, name)
    return CLASSES[name](parsed)
