"""Skips partitions, files and row groups that a filter can't match. Conservative: if unknown, they are read.

A filter is a ``Predicate`` or an Arrow expression. The latter is opaque, so Arrow decides whether it can be true given
``column == value`` or ``low <= column <= high``, as for its own data sets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_paimon.core.errors import FormatError, InvalidInputError, UnsupportedFeatureError
from airflow_paimon.core.format.binary_row import decode_row
from airflow_paimon.core.format.char_text import compared_text
from airflow_paimon.core.format.manifest import DataFile, Stats
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.types import AtomicType, DataField, DataType
from airflow_paimon.core.table.predicate import Bounds, Predicate, exactly, filled_bound, may_match
from airflow_paimon.data.files.arrow_types import (
    ROW_ID_FIELD,
    SEQUENCE_FIELD,
    arrow_schema,
    arrow_type,
    scalar_of,
    value_of,
)
from airflow_paimon.data.files.key_lookup import Points, expression_text, possible


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """The filter of a read: both parts must hold. ``predicate`` is for pruning only, ``where`` is also applied.

    ``columns``: the columns that ``where`` may use; ``points``: see ``key_lookup``.
    """

    where: pc.Expression | None = None
    predicate: Predicate | None = None
    columns: frozenset[str] = frozenset()
    points: Points = dataclass_field(default_factory=dict)


NO_FILTER = Filter()
_ROW_FIELDS = (ROW_ID_FIELD, SEQUENCE_FIELD)


def bind_where(
    where: pc.Expression | None, predicate: Predicate | None, fields: Sequence[DataField], label: str
) -> Filter:
    """Check, before anything is read, whether an expression fits the table, and which columns it needs. Its literals
    are compared with CHARs as SQL does.

    Raises:
        InvalidInputError: not an expression, an unknown column, or a comparison of incompatible types.
    """
    if where is None:
        return Filter(predicate=predicate)
    if not isinstance(where, pc.Expression):
        raise InvalidInputError(
            f"{label}: where must be an Arrow expression (pyarrow.compute.field('k') == 1), not {where!r}; "
            f"airflow_paimon.spark.read_table takes SQL"
        )
    schema = arrow_schema(fields)
    problem = _binding_problem(where, schema)
    if problem is not None:
        known = f"(columns: {', '.join(schema.names)})"
        unknown = re.match(r"No match for FieldRef\.Name\((.*?)\) in ", problem)
        what = f"names column {unknown[1]!r}, which the table does not have" if unknown else "does not fit the table"
        why = "" if unknown else f": {problem.splitlines()[0]}{_zones(where, schema) if 'timezone' in problem else ''}"
        raise InvalidInputError(f"{label}: where {what}{why} {known}")
    where = with_filled_literals(where, fields)
    text = expression_text(where)  # it has the names of all columns that are used, which Arrow doesn't tell
    some = pa.schema([f for f in schema if f.name in text])
    names = some.names if _binding_problem(where, some) is None else schema.names
    return Filter(where=where, predicate=predicate, columns=frozenset(names))


def _zones(where: pc.Expression, schema: pa.Schema) -> str:
    """Say with which times the columns that an expression names are compared."""
    text = expression_text(where)
    times = [f for f in schema if pa.types.is_timestamp(f.type) and f.name in text]
    said = [f"{f.name} takes times {'without' if f.type.tz is None else 'with'} a time zone" for f in times]
    return f"; {', '.join(said)}" if said else ""


def _binding_problem(where: pc.Expression, schema: pa.Schema) -> str | None:
    row = [pa.nulls(1, f.type) for f in schema]  # of no row Arrow asks less: not whether both times have a zone
    try:
        pa.Table.from_arrays(row, names=schema.names).filter(where)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowKeyError, pa.ArrowTypeError) as error:
        return str(error)
    return None


def keep(rows: Filter, known: Sequence[Mapping[str, Bounds]], schema: TableSchema) -> list[bool]:
    """Return for each group of rows, given its bounds, whether any of its rows can match."""
    types = {f.name: f.type for f in schema.fields}
    kept = [may_match(rows.predicate, bounds, types) for bounds in known]
    if rows.where is None or not any(kept):
        return kept
    candidates = [i for i, k in enumerate(kept) if k]
    facts: Facts = {}
    guarantees = [_guarantee(known[i], types, facts) for i in candidates]
    left = dict(zip(candidates, possible(rows.where, guarantees, arrow_schema(schema.fields)), strict=True))
    return [k and left[i] for i, k in enumerate(kept)]


_TRUE = pc.scalar(True)
Facts = dict[tuple[str, Bounds], pc.Expression | None]


def _guarantee(known: Mapping[str, Bounds], types: Mapping[str, DataType], facts: Facts) -> pc.Expression:
    """Express the bounds as an Arrow expression, in the form that its simplification understands.

    ``facts``: a cache, as the values of partitions occur repeatedly.
    """
    guarantee = _TRUE
    for name, bounds in known.items():
        if (name, bounds) not in facts:
            data_type = types.get(name)
            facts[name, bounds] = _fact(pc.field(name), bounds, data_type) if data_type is not None else None
        fact = facts[name, bounds]
        if fact is not None:
            guarantee = fact if guarantee is _TRUE else guarantee & fact
    return guarantee


def _fact(field: pc.Expression, bounds: Bounds, data_type: DataType) -> pc.Expression | None:
    if bounds.all_null:
        return field.is_null()
    if bounds.low is None or bounds.high is None or not isinstance(data_type, AtomicType):
        return None
    if data_type.root in ("FLOAT", "DOUBLE"):
        return None  # bounds may leave NaN out, and -0.0 is equal to 0.0
    if data_type.root == "CHAR":
        bounds = _filled(bounds, data_type)
        if bounds.high is None:
            return None
    try:
        low, high = scalar_of(bounds.low, data_type), scalar_of(bounds.high, data_type)
    except (UnsupportedFeatureError, pa.ArrowInvalid):  # a sum may have more digits than its DECIMAL
        return None
    if bounds.nulls == 0:
        return field == low if bounds.low == bounds.high else (field >= low) & (field <= high)
    return ((field >= low) | field.is_null()) & ((field <= high) | field.is_null())


def _filled(bounds: Bounds, data_type: AtomicType) -> Bounds:
    """Return the bounds of the values as they are read, and so compared."""
    high = filled_bound(bounds.high, data_type)
    low = high if bounds.low == bounds.high else bounds.low
    return replace(bounds, low=low, high=high)


def partition_bounds(schema: TableSchema, values: Sequence[Any]) -> dict[str, Bounds]:
    """Return the bounds that the partition's values give for its rows."""
    return dict(zip(schema.partition_keys, map(exactly, values), strict=True))


def key_bounds(file: DataFile, schema: TableSchema) -> dict[str, Bounds]:
    """Return the bounds of the key columns in a file of a primary-key table."""
    fields = schema.key_fields
    try:
        decoded = _decoded(file.key_stats, [f.type for f in fields])
    except (FormatError, UnsupportedFeatureError):
        return {}
    return {
        f.name: Bounds(low, high, 0, file.row_count)
        for f, (low, high, _) in zip(fields, decoded, strict=True)
        if low is not None and high is not None
    }


def value_bounds(file: DataFile, written: TableSchema, wanted: TableSchema) -> dict[str, Bounds]:
    """Return the bounds of a file's columns, by their names in the read schema.

    Columns with an altered type, or without statistics, are left out.
    """
    collected = file.value_stats_cols
    names = list(collected if collected is not None else file.write_cols or written.field_names)
    by_name = {f.name: f for f in (*_ROW_FIELDS, *written.fields)}  # a rewritten file has statistics of those as well
    if not names or any(n not in by_name for n in names):
        return {}
    fields = [by_name[n] for n in names]
    try:
        decoded = _decoded(file.value_stats, [f.type for f in fields])
    except (FormatError, UnsupportedFeatureError):
        return {}
    read_as = {f.id: f for f in wanted.fields}
    out = {}
    for field, (low, high, nulls) in zip(fields, decoded, strict=True):
        target = read_as.get(field.id)
        if target is None or arrow_type(target.type) != arrow_type(field.type):
            continue
        if field.type.root in ("FLOAT", "DOUBLE"):  # engines leave NaN out of them, which is above all others
            low, high = None, None
        out[target.name] = Bounds(low, high, nulls, file.row_count)
    return out


def _decoded(stats: Stats, types: Sequence[DataType]) -> list[tuple[Any, Any, int | None]]:
    counts = stats.null_counts or (None,) * len(types)
    low, high = decode_row(stats.min_values, types), decode_row(stats.max_values, types)
    return list(zip(low, high, counts, strict=True))


def row_group_bounds(
    metadata: pq.FileMetaData, group: int, columns: Mapping[str, tuple[str, DataType]]
) -> dict[str, Bounds]:
    """Return the bounds of a row group; ``columns``: the file's columns with their name and type in the read schema."""
    out: dict[str, Bounds] = {}
    chunk = metadata.row_group(group)
    for at in range(chunk.num_columns):
        column = chunk.column(at)
        path = column.path_in_schema
        target = columns.get(path)
        found = column.statistics
        if target is None or found is None:
            continue
        if "." in path and metadata.schema.column(at).name != path:
            continue  # a field of a ROW, whose path is also the name of a column
        nulls = found.null_count if found.has_null_count else None
        low, high = None, None
        if found.has_min_max:
            try:
                kind = arrow_type(target[1])
                low, high = value_of(pa.scalar(found.min, kind)), value_of(pa.scalar(found.max, kind))
            except (ValueError, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError):  # or text that is none
                low, high = None, None
        out[target[0]] = Bounds(low, high, nulls, chunk.num_rows)
    return out


_PART = re.compile(r"^(call|end|literal|field_ref|nested_field_ref|options): '(.*)'$", re.MULTILINE)
_COMPARISONS = frozenset({"equal", "not_equal", "less", "less_equal", "greater", "greater_equal"})
_MEMBERSHIPS = frozenset({"is_in", "index_in"})


def with_filled_literals(where: pc.Expression, fields: Sequence[DataField]) -> pc.Expression:
    """Return an expression that finds a CHAR by a text with blanks at its end or without: literals that are compared
    with CHAR columns are filled up as the columns are.

    Arrow shows the parts of an expression only in its pickled form: an IPC file whose schema's metadata lists the calls
    in order, with the literals as columns. What is not in this form is left as it is.
    """
    lengths = {f.name: f.type.args[0] for f in fields if isinstance(f.type, AtomicType) and f.type.root == "CHAR"}
    if not lengths:
        return where
    rebuild, (pickled,) = where.__reduce__()
    batch = pa.ipc.open_file(pickled).get_batch(0)
    text = batch.schema.to_string(show_schema_metadata=True, truncate_metadata=False)
    found = dict(_compared(_PART.findall(text.partition("-- schema metadata --")[2]), lengths))
    if not found:
        return where
    columns = [
        pa.array([_value(v, found[i]) for v in column.to_pylist()], column.type) if i in found else column
        for i, column in enumerate(batch.columns)
    ]
    out = pa.BufferOutputStream()
    with pa.ipc.new_file(out, batch.schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=batch.schema))
    again: pc.Expression = rebuild(out.getvalue())
    return again


def _compared(parts: Sequence[tuple[str, str]], lengths: Mapping[str, int]) -> Iterator[tuple[int, int]]:
    """Yield the columns with literals that are compared with a CHAR, and its length."""
    calls: list[tuple[str, list[str], list[int]]] = [("", [], [])]
    nested = 0
    for kind, value in parts:
        name, columns, literals = calls[-1]
        if kind == "call":
            calls.append((value, [], []))
        elif kind == "nested_field_ref":
            nested = int(value)
        elif kind == "field_ref":
            if not nested:
                columns.append(value)
            nested = max(nested - 1, 0)
        elif kind in ("literal", "options"):
            literals.append(int(value))
        elif kind == "end":
            calls.pop()
            known = [lengths[c] for c in columns if c in lengths]
            if known and name in _COMPARISONS | _MEMBERSHIPS:
                yield from ((i, known[0]) for i in literals)


def _value(value: Any, length: int) -> Any:
    """Fill a text up, or those of an option ``value_set``."""
    if isinstance(value, str):
        return compared_text(value, length)
    if isinstance(value, dict) and "value_set" in value:
        return {**value, "value_set": [_value(v, length) for v in value["value_set"]]}
    return value
