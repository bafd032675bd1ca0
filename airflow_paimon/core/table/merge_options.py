"""The options of merge engines: sequence groups of columns, the look-up rule, options that name columns, and the
aggregate function of each column: its name, its options, and which combinations are refused.

See docs/contributing/format.md, Merging.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from airflow_paimon.core.errors import InvalidInputError, UnsupportedFeatureError
from airflow_paimon.core.format.option_lists import split_names
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.types import ArrayType, AtomicType, DataField, DataType, MapType, RowType
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.predicate import AllOf, AnyOf, Predicate, columns_of

_PREFIX, _GROUP = "fields.", ".sequence-group"
_SORT_ORDER = "sequence.field.sort-order"
_NAMING = {
    "sequence.field": "sequence.field",
    _SORT_ORDER: "sequence.field",
    "bucket-key": "bucket-key",
    "partial-update.remove-record-on-sequence-group": _GROUP,
}
"""Options that name columns, and the set that each belongs to."""


def sequence_groups(schema: TableSchema) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Return the sequence fields and the other columns of each group (``fields.g1,g2.sequence-group = a,b``).

    Columns that the schema doesn't have (in an older version) are left out; that the newest one doesn't have,
    ``group_faults`` says.
    """
    known = set(schema.field_names)
    for key, text in sorted(schema.options.items()):
        if _is_group(key):
            fields = tuple(group_fields(key))
            if known.issuperset(fields):
                yield fields, tuple(c for c in split_names(key, text) if c in known)


def protected_columns(schema: TableSchema) -> dict[str, str]:
    """Return the columns that sequence groups list, and the option of each; a column's first group counts."""
    groups = [
        (key, split_names(key, text)) for key, text in sorted(schema.options.items(), reverse=True) if _is_group(key)
    ]
    return {name: key for key, names in groups for name in reversed(names)}


def group_faults(schema: TableSchema) -> Iterator[str]:
    """Yield what is wrong with the sequence groups of a table's newest schema: Paimon can't open it with one of these.

    A blank is part of a name, so the column behind it would silently be out of the group.
    """
    protected = protected_columns(schema)
    for key, text in sorted(schema.options.items()):
        if not _is_group(key):
            if key.startswith(_PREFIX[:-1]) and key.endswith(_GROUP[1:]):
                yield f"{key} is not of the form {_PREFIX}<columns>{_GROUP}"
            continue
        ordering, names = group_fields(key), split_names(key, text)
        for name in (*ordering, *names):
            if name not in schema.field_names:
                yield f"{key} names {name!r}, which is not a column{without_blanks(name, schema)}"
            elif name in schema.primary_keys:
                yield f"{key} names {name!r}, which is a column of the primary key"
        others = {name for other in schema.options if other != key for name in group_fields(other)}
        for name in names:
            if protected[name] != key or names.count(name) > 1 or name in others:
                yield f"{key} names {name!r}, which is in a sequence group twice; a column is in one group"


def without_blanks(name: str, schema: TableSchema) -> str:
    return f"; write {name.strip()} without blanks" if name.strip() in schema.field_names else ""


def combines_rows(schema: TableSchema) -> bool:
    """Whether the merge engine makes one row of several with a key, with something of each.

    So a row may lack columns, of which the table keeps the values, and a key may come twice in a write.
    """
    return bool(schema.primary_keys) and TableOptions(schema.options).merge_engine in ("partial-update", "aggregation")


def keeps_values(condition: Predicate, schema: TableSchema) -> bool:
    """Whether a condition that holds for a merged row holds for one of the rows that it is made of, too.

    ``schema``: of a table that combines rows. Sums and lists are no row's value, and retracts make null of one.
    """
    if isinstance(condition, AnyOf):
        return all(keeps_values(part, schema) for part in condition.parts)
    others = columns_of(condition) - set(schema.primary_keys)
    if isinstance(condition, AllOf):
        return len(others) <= 1 and all(keeps_values(part, schema) for part in condition.parts)
    options = TableOptions(schema.options)
    functions = {configured_function(options, name) or DEFAULT_FUNCTION for name in others}
    return not others or (condition.op != "is null" and functions <= _KEEPING)


def looks_up(schema: TableSchema) -> bool:
    """Whether of a key's versions above level 0 only that on the lowest level counts: it contains those below it.

    Paimon's look-up compactions, by which a table is compacted with these options, write complete rows.
    """
    options = TableOptions(schema.options)
    producer = options.text("changelog-producer", "none").lower()
    wanted = producer == "lookup" or options.deletion_vectors or options.flag("force-lookup")
    return wanted and options.merge_engine != "first-row"


def options_in_older_names(latest: TableSchema, older: TableSchema) -> dict[str, str]:
    """Return the latest options, with each column named as in an older version of the schema: field ids match them.

    The sequence fields, the sequence groups and the bucket key are each replaced by the older version's if a column
    that either version names there is missing in the other one. Columns dropped since keep their own ``fields.*``.
    """
    names = {f.id: f.name for f in older.fields}
    older_name = {f.name: names[f.id] for f in latest.fields if f.id in names}
    dropped = set(names.values()).difference(older_name.values())
    others = {k: v for k, v in latest.options.items() if _set_of(k) is None}
    column_of = {k: _column_of(k, latest.field_names) for k in others}
    return {
        **{k: v for k, v in others.items() if column_of[k] is None},
        **{k: v for k, v in older.options.items() if _set_of(k) is None and _column_of(k, names.values()) in dropped},
        **{_renamed_key(k, c, older_name[c]): v for k, v in others.items() if (c := column_of[k]) in older_name},
        **{k: v for name in set(_NAMING.values()) for k, v in _one_set(name, latest, older, older_name).items()},
    }


def _one_set(name: str, latest: TableSchema, older: TableSchema, older_name: Mapping[str, str]) -> dict[str, str]:
    now, then = ({k: v for k, v in s.options.items() if _set_of(k) == name} for s in (latest, older))
    if not (_named(now) <= older_name.keys() and _named(then) <= set(older_name.values())):
        return then
    renamed = {}
    for key, text in now.items():
        names = ",".join(older_name[n] for n in group_fields(key))
        own = f"{_PREFIX}{names}{_GROUP}" if _is_group(key) else key
        renamed[own] = text if key == _SORT_ORDER else ",".join(older_name[n] for n in _list_of(key, text))
    return renamed


def _set_of(key: str) -> str | None:
    return _GROUP if _is_group(key) else _NAMING.get(key)


def _is_group(key: str) -> bool:
    return key.startswith(_PREFIX) and key.endswith(_GROUP)


def _named(options: Mapping[str, str]) -> set[str]:
    """Return the columns that options of a set name, in their keys and values."""
    return {n for k, v in options.items() for n in (*group_fields(k), *_list_of(k, v))}


def group_fields(key: str) -> list[str]:
    """Return the columns by which a sequence group is ordered; none: the option is no group."""
    return list(split_names(key, key[len(_PREFIX) : -len(_GROUP)])) if _is_group(key) else []


def _list_of(key: str, text: str) -> list[str]:
    if key == _SORT_ORDER:
        return []
    return [name for name in split_names(key, text) if name]


def _column_of(key: str, columns: Collection[str]) -> str | None:
    """Return the column of ``fields.<column>.<property>``; a name may have dots itself."""
    return max((c for c in columns if key.startswith(f"{_PREFIX}{c}.")), key=len, default=None)


def _renamed_key(key: str, column: str, name: str) -> str:
    return f"{_PREFIX}{name}{key[len(_PREFIX) + len(column) :]}"


DEFAULT_FUNCTION = "last_non_null_value"
LAST_VALUE = "last_value"
PRIMARY_KEY = "primary-key"
"""Paimon's pseudo function of the key columns."""
SKETCHES = frozenset({"theta_sketch", "hll_sketch", "rbm32", "rbm64"})
"""Functions on serialised sketches: a value is passed on unchanged, two of one key are not merged here."""
UNLIMITED = 2**31 - 1

_DEFAULT_KEY = "fields.default-aggregate-function"
_NUMBERS = frozenset({"TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL"})
_BYTES = frozenset({"BINARY", "VARBINARY", "BYTES"})
_TEXT = frozenset({"CHAR", "VARCHAR", "STRING"})
_ORDERED = _NUMBERS | _BYTES | _TEXT | {"DATE", "TIME", "TIMESTAMP", "TIMESTAMP_LTZ"}
"""Types of max and min. Paimon takes BOOLEAN as well, and fails at the second row of a key."""
_ROOTS = {
    **dict.fromkeys(("sum", "product"), _NUMBERS),
    **dict.fromkeys(("max", "min"), _ORDERED),
    **dict.fromkeys(("bool_and", "bool_or"), frozenset({"BOOLEAN"})),
    **dict.fromkeys(SKETCHES, frozenset({"VARBINARY", "BYTES"})),
}
_ANY = ("first_value", "first_non_null_value", "first_not_null_value", LAST_VALUE, DEFAULT_FUNCTION, PRIMARY_KEY)
_KEEPING = frozenset((*_ANY, "min", "max", "bool_and", "bool_or"))
"""Functions whose result is one of the values."""
_REMOVE = "aggregation.remove-record-on-delete"
_TYPES = {
    **dict.fromkeys(("sum", "product"), "a number"),
    **dict.fromkeys(("max", "min"), "a number, text, bytes, a date or a time"),
    **dict.fromkeys(("bool_and", "bool_or"), "BOOLEAN"),
    "listagg": "STRING",
    "collect": "ARRAY",
    "merge_map": "MAP with keys that are not binary",
    "merge_map_with_keytime": "MAP<key, ROW> with keys that are not binary and a time field of type STRING",
    **dict.fromkeys(("nested_update", "nested_partial_update"), "ARRAY<ROW>"),
    **dict.fromkeys(SKETCHES, "VARBINARY or BYTES"),
}
"""What each function accepts, for messages; the functions that are missing accept every type."""
FUNCTIONS = frozenset((*_TYPES, *_ANY))


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregateOptions:
    """One column's function. ``time_field``, ``nested_key`` and ``nested_sequence`` are fields of the ROW inside it."""

    column: str
    function: str
    ignore_retract: bool = False
    delimiter: str = ","
    distinct: bool = False
    time_field: str = ""
    nested_key: tuple[str, ...] = ()
    nested_sequence: tuple[str, ...] = ()
    null_strategy: str = "merge"
    count_limit: int = UNLIMITED

    def option(self, name: str) -> str:
        """Return the table option that sets this property of the column."""
        return f"fields.{self.column}.{name}"


def configured_function(options: TableOptions, column: str) -> str | None:
    """Return the function that the table options give to a column, or to all columns."""
    own = options.given(f"fields.{column}.aggregate-function")
    return options.given(_DEFAULT_KEY) if own is None else own


def function_of(options: TableOptions, column: str, *, keys: Collection[str], sequence_fields: Collection[str]) -> str:
    """Return the function of a column of a table with ``merge-engine=aggregation``."""
    if column in sequence_fields:
        return LAST_VALUE
    if column in keys:
        return PRIMARY_KEY
    return configured_function(options, column) or DEFAULT_FUNCTION


def aggregate_options(options: TableOptions, field: DataField, function: str) -> AggregateOptions:
    """Parse and check the options of one column with this function.

    Raises:
        UnsupportedFeatureError: an unknown function, or one that the column's type does not allow.
        InvalidInputError: an option has a value that Paimon refuses, too.
    """
    prefix = f"fields.{field.name}."
    parsed = AggregateOptions(
        column=field.name,
        function=function,
        ignore_retract=options.flag(f"{prefix}ignore-retract"),
        delimiter=options.raw.get(f"{prefix}list-agg-delimiter", ","),
        distinct=options.flag(f"{prefix}distinct"),
        time_field=options.text(f"{prefix}ts-field") or next(reversed(_fields_within(field.type)), ""),
        nested_key=options.names(f"{prefix}nested-key"),
        nested_sequence=options.names(f"{prefix}nested-sequence-field"),
        null_strategy=options.text(f"{prefix}nested-key-null-strategy", "merge").lower(),
        count_limit=options.number(f"{prefix}count-limit", UNLIMITED),
    )
    _check_type(options, field, function)
    if fault := next(option_faults(options, field, function), None):
        raise InvalidInputError(fault)
    if function == "listagg" and parsed.distinct and not parsed.delimiter:
        raise _refused(f"{parsed.option('distinct')} with an empty delimiter", "set a delimiter")
    inner = _fields_within(field.type)
    if function == "merge_map_with_keytime" and inner[parsed.time_field].root not in _TEXT:
        option = f"{parsed.option('ts-field')}={parsed.time_field} of column {field.name!r}"
        raise _refused(option, "name a field of type STRING of the map's ROW")
    for name in parsed.nested_sequence:
        if not isinstance(inner[name], AtomicType):
            raise _refused(f"{parsed.option('nested-sequence-field')}={name}", "name a field that is not nested")
    return parsed


def aggregate_problems(schema: TableSchema) -> Iterator[tuple[str, str]]:
    """Yield what the aggregate functions of a table can't do, as (feature, way out)."""
    options = TableOptions(schema.options)
    grouped = (name for key in options.raw for name in group_fields(key))
    unmerged = {*schema.primary_keys, *options.sequence_fields, *grouped}
    for field in schema.fields:
        if options.merge_engine == "aggregation":
            keys, ordering = schema.primary_keys, options.sequence_fields
            function: str | None = function_of(options, field.name, keys=keys, sequence_fields=ordering)
        elif options.merge_engine == "partial-update" and field.name not in unmerged:
            function = configured_function(options, field.name)
        else:
            continue
        if function is None:
            continue
        try:
            aggregate_options(options, field, function)
        except (UnsupportedFeatureError, InvalidInputError) as error:
            details = error.details
            yield str(details.get("feature", error.message)), str(details.get("way_out", "correct the option"))


def _refused(feature: str, way_out: str) -> UnsupportedFeatureError:
    return UnsupportedFeatureError(f"{feature}: {way_out}", details={"feature": feature, "way_out": way_out})


def _check_type(options: TableOptions, field: DataField, function: str) -> None:
    own = f"fields.{field.name}.aggregate-function"
    key = own if options.given(own) is not None else _DEFAULT_KEY
    if function not in FUNCTIONS:
        known = f"set the option to one of {', '.join(sorted(FUNCTIONS - {PRIMARY_KEY}))}"
        raise _refused(f"the aggregate function {key}={function} of column {field.name!r}", known)
    if not takes(function, field.type) or not _merges(function, field.type):
        raise _refused(f"{key}={function} for column {field.name!r} of type {field.type}", what_it_takes(function))


def what_it_takes(function: str) -> str:
    """Say which types a function takes that doesn't take all."""
    return f"the function takes {_TYPES[function]}: set another function, or change the column's type"


def takes(function: str, data_type: DataType) -> bool:
    """Whether Paimon gives a column of this type the function, which is one of ``FUNCTIONS``."""
    root = data_type.root if isinstance(data_type, AtomicType) else ""
    if function in _ANY:
        return True
    if function in _ROOTS:
        return root in _ROOTS[function]
    if function == "listagg":
        return root == "STRING" or (
            isinstance(data_type, AtomicType) and root == "VARCHAR" and data_type.args[:1] == (UNLIMITED,)
        )
    if function.startswith("merge_map"):
        value = data_type.value if isinstance(data_type, MapType) else None
        timed = isinstance(value, RowType) and len(value.fields) > 1
        return timed or (function == "merge_map" and value is not None)
    if not isinstance(data_type, ArrayType) or data_type.root != "ARRAY":
        return False
    return function == "collect" or isinstance(data_type.element, RowType)


def _merges(function: str, data_type: DataType) -> bool:
    """Whether values of a type that the function takes are merged here as well.

    Paimon compares binary keys of a map by object identity: equal keys would stand in the map twice.
    """
    key = data_type.key if isinstance(data_type, MapType) and function.startswith("merge_map") else None
    return not (isinstance(key, AtomicType) and key.root in _BYTES)


def _fields_within(data_type: DataType) -> dict[str, DataType]:
    """Return the fields of the ROW in an array or a map, with their types."""
    inner = data_type.element if isinstance(data_type, ArrayType) else None
    inner = data_type.value if isinstance(data_type, MapType) else inner
    return {f.name: f.type for f in inner.fields} if isinstance(inner, RowType) else {}


def option_faults(options: TableOptions, field: DataField, function: str) -> Iterator[str]:
    """Yield what is wrong with the options of a column's function: Paimon takes none of these."""
    prefix = f"fields.{field.name}."
    inner = _fields_within(field.type)
    if options.flag(_REMOVE) and options.flag(f"{prefix}ignore-retract"):
        yield f"{prefix}ignore-retract=true contradicts {_REMOVE}; reset one of them"
    if function == "merge_map_with_keytime":
        time = options.given(f"{prefix}ts-field")
        if time is not None and time not in inner:
            yield f"{prefix}ts-field={time!r} is not a field of the ROW in the map"
    if function not in ("nested_update", "nested_partial_update"):
        return
    strategy, key, order = (f"{prefix}{n}" for n in ("nested-key-null-strategy", "nested-key", "nested-sequence-field"))
    if options.text(strategy, "merge").lower() not in ("merge", "ignore", "error"):
        yield f"{strategy}={options.text(strategy)!r} is not one of merge, ignore, error"
    needs = [k for k in (strategy, order) if function == "nested_update" and options.given(k) is not None]
    if options.given(key) is None and (needs or function == "nested_partial_update"):
        yield f"{(needs or [f'{prefix}aggregate-function'])[0]} needs {key}"
    for option in (key, order):
        for name in options.split_names(option):
            if name not in inner:
                yield f"{option} names {name!r}, which the ROW in column {field.name!r} doesn't have"
