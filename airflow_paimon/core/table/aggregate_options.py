"""The aggregate function of each column: its name, its options, and which combinations are refused.

See docs/format.md, Merging.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from airflow_paimon.core.errors import InvalidInputError, UnsupportedFeatureError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.types import ArrayType, AtomicType, DataField, DataType, MapType, RowType
from airflow_paimon.core.table.options import TableOptions

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
_ROOTS = {
    **dict.fromkeys(("sum", "product"), _NUMBERS),
    **dict.fromkeys(("max", "min"), _ORDERED),
    **dict.fromkeys(("bool_and", "bool_or"), frozenset({"BOOLEAN"})),
    **dict.fromkeys(SKETCHES, frozenset({"VARBINARY", "BYTES"})),
}
_ANY = ("first_value", "first_non_null_value", "first_not_null_value", LAST_VALUE, DEFAULT_FUNCTION, PRIMARY_KEY)
_NULL_STRATEGIES = ("merge", "ignore", "error")
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
    return options.text(f"fields.{column}.aggregate-function") or options.text(_DEFAULT_KEY) or None


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
        time_field=_time_field(options, field),
        nested_key=options.names(f"{prefix}nested-key"),
        nested_sequence=options.names(f"{prefix}nested-sequence-field"),
        null_strategy=options.text(f"{prefix}nested-key-null-strategy", "merge").lower(),
        count_limit=options.number(f"{prefix}count-limit", UNLIMITED),
    )
    _check_type(options, field, function)
    _check_options(options, field, parsed)
    return parsed


def aggregate_problems(schema: TableSchema) -> Iterator[tuple[str, str]]:
    """Yield what the aggregate functions of a table can't do, as (feature, way out)."""
    options = TableOptions(schema.options)
    for field in schema.fields:
        function = _function_in(schema, options, field.name)
        if function is None:
            continue
        try:
            aggregate_options(options, field, function)
        except (UnsupportedFeatureError, InvalidInputError) as error:
            details = error.details
            yield str(details.get("feature", error.message)), str(details.get("way_out", "correct the option"))


def _function_in(schema: TableSchema, options: TableOptions, column: str) -> str | None:
    if options.merge_engine == "aggregation":
        return function_of(options, column, keys=schema.primary_keys, sequence_fields=options.sequence_fields)
    if options.merge_engine != "partial-update" or column in (*schema.primary_keys, *_sequence_columns(options)):
        return None
    return configured_function(options, column)


def _sequence_columns(options: TableOptions) -> set[str]:
    """Return the columns by which rows or sequence groups are ordered: no function applies to them."""
    start, end = "fields.", ".sequence-group"
    groups = (key[len(start) : -len(end)] for key in options.raw if key.startswith(start) and key.endswith(end))
    return {*options.sequence_fields, *(name for group in groups for name in group.split(","))}


def _refused(feature: str, way_out: str) -> UnsupportedFeatureError:
    return UnsupportedFeatureError(f"{feature}: {way_out}", details={"feature": feature, "way_out": way_out})


def _wrong(feature: str, way_out: str) -> InvalidInputError:
    return InvalidInputError(f"{feature}: {way_out}", details={"feature": feature, "way_out": way_out})


def _function_option(options: TableOptions, column: str) -> str:
    own = f"fields.{column}.aggregate-function"
    return own if options.text(own) else _DEFAULT_KEY


def _check_type(options: TableOptions, field: DataField, function: str) -> None:
    key = _function_option(options, field.name)
    if function not in _TYPES and function not in _ANY:
        raise _refused(
            f"the aggregate function {key}={function} of column {field.name!r}",
            f"set the option to one of {', '.join(sorted({*_TYPES, *_ANY} - {PRIMARY_KEY}))}",
        )
    if function in _TYPES and not _accepts(function, field.type):
        raise _refused(
            f"{key}={function} for column {field.name!r} of type {field.type}",
            f"the function takes {_TYPES[function]}: set another function, or change the column's type",
        )


def _accepts(function: str, data_type: DataType) -> bool:
    root = data_type.root if isinstance(data_type, AtomicType) else ""
    if function in _ROOTS:
        return root in _ROOTS[function]
    if function == "listagg":
        return root == "STRING" or (
            isinstance(data_type, AtomicType) and root == "VARCHAR" and data_type.args[:1] == (UNLIMITED,)
        )
    if function.startswith("merge_map"):
        return _is_mergeable_map(data_type, timed=function != "merge_map")
    is_array = isinstance(data_type, ArrayType) and data_type.root == "ARRAY"
    return is_array and (function == "collect" or _nested_row(data_type) is not None)


def _is_mergeable_map(data_type: DataType, *, timed: bool) -> bool:
    if not isinstance(data_type, MapType):
        return False
    # Paimon compares binary keys of a map by object identity: equal keys would stand in the map twice.
    has_bytes = isinstance(data_type.key, AtomicType) and data_type.key.root in _BYTES
    return not has_bytes and (not timed or (isinstance(data_type.value, RowType) and len(data_type.value.fields) > 1))


def _nested_row(data_type: DataType) -> RowType | None:
    inner = data_type.element if isinstance(data_type, ArrayType) else None
    return inner if isinstance(inner, RowType) else None


def _time_field(options: TableOptions, field: DataField) -> str:
    value = field.type.value if isinstance(field.type, MapType) else None
    last = value.fields[-1].name if isinstance(value, RowType) and value.fields else ""
    return options.text(f"fields.{field.name}.ts-field") or last


def _check_options(options: TableOptions, field: DataField, parsed: AggregateOptions) -> None:
    removes = options.flag("aggregation.remove-record-on-delete") and options.merge_engine == "aggregation"
    if removes and parsed.ignore_retract:
        key = parsed.option("ignore-retract")
        raise _wrong(
            f"{key} together with aggregation.remove-record-on-delete", "Paimon allows one of them: reset the other"
        )
    if parsed.function == "listagg" and parsed.distinct and not parsed.delimiter:
        raise _refused(f"{parsed.option('distinct')} with an empty delimiter", "set a delimiter")
    if parsed.function == "merge_map_with_keytime":
        _check_time_field(field, parsed)
    if parsed.function in ("nested_update", "nested_partial_update"):
        _check_nested(options, field, parsed)


def _check_time_field(field: DataField, parsed: AggregateOptions) -> None:
    value = field.type.value if isinstance(field.type, MapType) else None
    fields = {f.name: f.type for f in value.fields} if isinstance(value, RowType) else {}
    found = fields.get(parsed.time_field)
    if not isinstance(found, AtomicType) or found.root not in _TEXT:
        raise _refused(
            f"{parsed.option('ts-field')}={parsed.time_field} of column {field.name!r}",
            "name a field of type STRING of the map's ROW",
        )


def _check_nested(options: TableOptions, field: DataField, parsed: AggregateOptions) -> None:
    row = _nested_row(field.type)
    fields = {f.name: f.type for f in row.fields} if row else {}
    named = {"nested-key": parsed.nested_key, "nested-sequence-field": parsed.nested_sequence}
    for option, names in named.items():
        for name in names:
            if name not in fields:
                raise _wrong(f"{parsed.option(option)}={name}", f"the ROW in column {field.name!r} has no such field")
    for name in parsed.nested_sequence:
        if not isinstance(fields[name], AtomicType):
            raise _refused(f"{parsed.option('nested-sequence-field')}={name}", "name a field that is not nested")
    key = parsed.option("nested-key-null-strategy")
    if parsed.null_strategy not in _NULL_STRATEGIES:
        raise _wrong(f"{key}={parsed.null_strategy}", f"set one of {', '.join(_NULL_STRATEGIES)}")
    needs_key = parsed.function == "nested_partial_update" or parsed.nested_sequence or key in options.raw
    if needs_key and not parsed.nested_key:
        raise _wrong(f"column {field.name!r} without {parsed.option('nested-key')}", "set it: other options need it")
