"""The merge rules of a table, by its options: its engine, and the aggregate function of each column."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.types import DataField
from airflow_paimon.core.table.merge_options import (
    SKETCHES,
    aggregate_options,
    configured_function,
    function_of,
    sequence_groups,
)
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
from airflow_paimon.data.merge.engine import Aggregation, Deduplicate, FirstRow, MergeEngine, MergeRules
from airflow_paimon.data.merge.partial_update import PartialUpdate, SequenceGroup


def merge_rules(schema: TableSchema) -> MergeRules:
    """Return the merge rules of a table."""
    return _rules(schema, _engine(schema))


def replacing_rules(schema: TableSchema) -> MergeRules:
    """Return the rules by which a row as a whole replaces the older one, whatever the table's merge engine is."""
    return _rules(schema, Deduplicate(skips_retracts=TableOptions(schema.options).ignore_delete))


def _rules(schema: TableSchema, engine: MergeEngine) -> MergeRules:
    options = TableOptions(schema.options)
    return MergeRules(
        keys=schema.trimmed_primary_keys,
        sequence=tuple(n for n in options.sequence_fields if n in schema.field_names),
        descending=options.sequence_descending,
        engine=engine,
    )


def _engine(schema: TableSchema) -> MergeEngine:
    options = TableOptions(schema.options)
    match options.merge_engine:
        case "partial-update":
            return _partial_update(schema, options)
        case "aggregation":
            return _aggregation(schema, options)
        case "first-row":
            return FirstRow(skips_retracts=options.ignore_delete)
        case _:
            return Deduplicate(skips_retracts=options.ignore_delete)


def _partial_update(schema: TableSchema, options: TableOptions) -> PartialUpdate:
    removing = set(options.names("partial-update.remove-record-on-sequence-group"))
    groups = tuple(
        SequenceGroup(fields, tuple(columns), removes=not removing.isdisjoint(fields))
        for fields, columns in sequence_groups(schema)
    )
    return PartialUpdate(
        keys=schema.trimmed_primary_keys,
        groups=groups,
        aggregates={
            name: aggregator(options, schema.field(name), function=function)
            for group in groups
            for name in group.columns
            if (function := configured_function(options, name)) is not None
        },
        ignore_delete=options.ignore_delete,
        remove_on_delete=options.flag("partial-update.remove-record-on-delete"),
        forgets=options.chain_table,
    )


def _aggregation(schema: TableSchema, options: TableOptions) -> Aggregation:
    fields = [f for f in schema.fields if f.name not in schema.primary_keys]
    return Aggregation(
        functions={f.name: aggregator(options, f, sequence_fields=options.sequence_fields) for f in fields},
        remove_on_delete=options.flag("aggregation.remove-record-on-delete"),
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
