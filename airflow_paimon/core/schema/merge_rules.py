"""What Paimon checks of merge engines when it opens a table with a primary key, and when it first merges rows (pure).

Each rule yields a sentence for each fault. See ``opening_rules``.
"""

from __future__ import annotations

from collections.abc import Iterator

from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.table.merge_options import (
    DEFAULT_FUNCTION,
    FUNCTIONS,
    configured_function,
    group_faults,
    group_fields,
    option_faults,
    protected_columns,
    takes,
    what_it_takes,
)
from airflow_paimon.core.table.options import TableOptions

_IGNORE, _REMOVE = "ignore-delete", "partial-update.remove-record-on-delete"
_REMOVE_BY_GROUP = "partial-update.remove-record-on-sequence-group"


def sequence_groups(schema: TableSchema, options: TableOptions) -> Iterator[str]:
    if _is_partial_update(schema, options):
        yield from group_faults(schema)


def removals(schema: TableSchema, options: TableOptions) -> Iterator[str]:
    """What a delete does in a partial update: one of several things."""
    if not _is_partial_update(schema, options):
        return
    by_group = options.given(_REMOVE_BY_GROUP)
    ordering = {name for key in options.raw for name in group_fields(key)}
    for key in (_REMOVE, _REMOVE_BY_GROUP):
        if options.ignore_delete and (options.flag(key) if key == _REMOVE else by_group is not None):
            yield f"{_IGNORE}=true contradicts {key}; reset one of them"
    if options.flag(_REMOVE) and ordering:
        yield f"{_REMOVE}=true doesn't go with sequence groups; reset it, or set {_REMOVE_BY_GROUP}"
    missing = [] if by_group is None else [n for n in options.split_names(_REMOVE_BY_GROUP) if n not in ordering]
    if missing:
        yield f"{_REMOVE_BY_GROUP}={by_group} names {missing[0]!r}, by which no sequence group is ordered"


def functions(schema: TableSchema, options: TableOptions) -> Iterator[str]:
    """Functions that Paimon doesn't have, or that a column's type doesn't take: Paimon makes such a table, and fails
    with its first merge or read. Partial updates give a column a function only within a sequence group.
    """
    if not schema.primary_keys or options.merge_engine not in ("partial-update", "aggregation"):
        return
    in_groups = options.merge_engine == "partial-update"
    grouped = {name for key in options.raw for name in group_fields(key)}
    unmerged = {*schema.primary_keys, *(grouped if in_groups else options.sequence_fields)}
    for field in schema.fields:
        function = configured_function(options, field.name)
        own = f"fields.{field.name}.aggregate-function"
        key = own if options.given(own) is not None else "fields.default-aggregate-function"
        if function is not None and function not in FUNCTIONS:
            yield f"{key}={function!r} is not one of Paimon's functions: {', '.join(sorted(FUNCTIONS))}"
        elif function is None or field.name in unmerged:
            continue
        elif not takes(function, field.type):
            yield f"{key}={function} for column {field.name!r} of type {field.type}: {what_it_takes(function)}"
        else:
            yield from option_faults(options, field, function)
        if in_groups and function != DEFAULT_FUNCTION and field.name not in {*unmerged, *protected_columns(schema)}:
            yield f"{key}={function} needs a sequence group that has column {field.name!r}"


def _is_partial_update(schema: TableSchema, options: TableOptions) -> bool:
    return bool(schema.primary_keys) and options.merge_engine == "partial-update"
