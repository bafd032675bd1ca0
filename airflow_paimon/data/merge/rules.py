"""The merge rules of a table, by its options."""

from __future__ import annotations

from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.table.merge_options import configured_function, sequence_groups
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.data.merge.aggregates.choose import aggregator
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
