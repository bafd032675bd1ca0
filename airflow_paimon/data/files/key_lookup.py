"""Reads of few keys: the key values that a filter allows, and so the buckets and rows that can match.

All versions of a key are in the same bucket, so other keys can be left out before versions are merged. Only for types
whose equal values have one stored form: whole numbers, texts and dates.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from itertools import pairwise, product
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as pafs

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.binary_row import encode_row
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.types import DataField, DataType
from airflow_paimon.core.table.bucket import bucket_of_rows, function_problem
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.partitions import BucketSelection, Selection
from airflow_paimon.core.table.predicate import AllOf, Condition, Predicate
from airflow_paimon.data.files.arrow_types import arrow_type

Points = Mapping[str, tuple[Any, ...]]
"""Column -> its only possible values. Columns without such a bound are missing."""

MAX_POINTS = 1000
"""With more values of a column, or more combinations of them, a filter is not treated as a key look-up."""

_MAX_PROVEN = 64
_TYPES: dict[str, type] = {
    **dict.fromkeys(("TINYINT", "SMALLINT", "INT", "BIGINT"), int),
    **dict.fromkeys(("VARCHAR", "STRING"), str),
    "DATE": date,
}
_FORMAT = ds.ParquetFileFormat()
_FILES = pafs.LocalFileSystem()


def possible(where: pc.Expression, guarantees: Sequence[pc.Expression], schema: pa.Schema) -> list[bool]:
    """Return for each of these guarantees about rows whether, according to Arrow, ``where`` can be true under it.

    True if unknown: Arrow fails where a bound has no exact value in the type of the comparison, e.g. 2147483647 in
    float.
    """
    fragments = [
        _FORMAT.make_fragment(str(i), filesystem=_FILES, partition_expression=g) for i, g in enumerate(guarantees)
    ]
    dataset = ds.FileSystemDataset(fragments, schema, _FORMAT, _FILES)
    try:
        left = {int(f.path) for f in dataset.get_fragments(filter=where)}
    except pa.ArrowInvalid:
        return [True] * len(guarantees)
    return [i in left for i in range(len(guarantees))]


def key_points(
    where: pc.Expression | None, columns: Iterable[str], predicate: Predicate | None, schema: TableSchema
) -> Points:
    """Find the values that a filter allows for the columns of the primary key and the bucket key.

    ``columns``: the columns that ``where`` may use.
    """
    fields = {f.name: f for f in _lookup_fields(schema) if f.type.root in _TYPES}
    found = _points_of(predicate, fields) if predicate is not None else {}
    if where is not None:
        types = pa.schema([(f.name, arrow_type(f.type)) for f in schema.fields])
        for name in columns:
            if name in fields and name not in found:
                proven = _proven_values(where, fields[name], types)
                if proven is not None:
                    found[name] = proven
    return {name: values for name, values in found.items() if len(values) <= MAX_POINTS}


def chosen_files(
    where: pc.Expression | None,
    columns: Iterable[str],
    predicate: Predicate | None,
    schema: TableSchema,
    partitions: Selection | None,
    *,
    by_bucket: bool,
) -> Selection | None:
    """Select some partitions (None = all), and with ``by_bucket`` of these the buckets whose rows a filter can keep,
    for the plan of a read; None = all files.
    """
    points = key_points(where, columns, predicate, schema) if by_bucket and schema.bucket_keys else {}
    if not points or any(name not in points for name in schema.bucket_keys):
        return partitions
    return BucketSelection(partitions, lambda total: buckets_of_points(points, schema, total))


def _lookup_fields(schema: TableSchema) -> list[DataField]:
    bucket_keys = schema.bucket_keys if TableOptions(schema.options).bucket > 0 else ()
    names = {*(schema.trimmed_primary_keys if schema.primary_keys else ()), *bucket_keys}
    return [f for f in schema.fields if f.name in names]


def _points_of(predicate: Predicate, fields: Mapping[str, DataField]) -> dict[str, tuple[Any, ...]]:
    if isinstance(predicate, Condition):
        field = fields.get(predicate.column)
        if field is None or predicate.op not in ("=", "in"):
            return {}
        given = predicate.value if predicate.op == "in" else (predicate.value,)
        values = tuple(dict.fromkeys(v for v in given if v is not None))
        return {field.name: values} if all(_is_value(v, field.type) for v in values) else {}
    parts = [_points_of(p, fields) for p in predicate.parts]
    out: dict[str, tuple[Any, ...]] = {}
    if isinstance(predicate, AllOf):
        for part in parts:
            for name, values in part.items():
                out[name] = tuple(v for v in out[name] if v in values) if name in out else values
        return out
    for name in set(parts[0]).intersection(*parts[1:]):
        out[name] = tuple(dict.fromkeys(v for part in parts for v in part[name]))
    return out


def _is_value(value: Any, data_type: DataType) -> bool:
    """Return whether a literal is a value of the column's type without an engine-specific cast."""
    kind = _TYPES[data_type.root]
    if not isinstance(value, kind) or isinstance(value, bool | datetime):
        return False
    try:
        encode_row((value,), (data_type,))
    except InvalidInputError:
        return False
    return True


def _proven_values(where: pc.Expression, field: DataField, schema: pa.Schema) -> tuple[Any, ...] | None:
    """Return the only values of a column for which an Arrow expression can be true; None: unknown.

    An expression is opaque. The literals in its text are only candidates; Arrow decides whether the expression can
    match below, between and above them.
    """
    guesses = sorted(v for v in _literals(expression_text(where), field.type) if _is_value(v, field.type))
    if not guesses or len(guesses) > _MAX_PROVEN:
        return None
    column = pc.field(field.name)
    values = [pa.scalar(v, arrow_type(field.type)) for v in guesses]
    gaps = [column < values[0], column > values[-1], column.is_null()]
    gaps += [(column > low) & (column < high) for low, high in pairwise(values)]
    if any(possible(where, gaps, schema)):
        return None
    kept = possible(where, [column == v for v in values], schema)
    return tuple(v for v, k in zip(guesses, kept, strict=True) if k)


def expression_text(where: pc.Expression) -> str:
    """Return what Arrow shows of an expression. It leaves out a part of long literals."""
    try:
        return str(where)
    except UnicodeDecodeError as error:  # it may cut them within a character
        return bytes(error.object).decode(errors="replace")


_TEXT = re.compile(r'"((?:[^"\\]|\\.)*)"')


def _literals(text: str, data_type: DataType) -> set[Any]:
    kind = _TYPES[data_type.root]
    if kind is str:
        return {re.sub(r"\\(.)", r"\1", t) for t in _TEXT.findall(text)}
    if kind is int:
        return {int(t) for t in re.findall(r"-?\d{1,19}", text)}
    return {day for t in re.findall(r"\d{4}-\d\d-\d\d", text) if (day := _day(t)) is not None}


def _day(text: str) -> date | None:
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None


def buckets_of_points(points: Points, schema: TableSchema, total_buckets: int) -> frozenset[int] | None:
    """Return the buckets of rows with these values, out of ``total_buckets``; None = all."""
    keys = schema.bucket_keys
    if not keys or any(name not in points for name in keys) or total_buckets < 1:
        return None
    types = [schema.field(name).type for name in keys]
    function = TableOptions(schema.options).bucket_function
    if function_problem(function, types) is not None:
        return None
    if math.prod(len(points[name]) for name in keys) > MAX_POINTS:
        return None
    rows = list(product(*(points[name] for name in keys)))
    columns = [pa.array([row[at] for row in rows], arrow_type(t)) for at, t in enumerate(types)]
    return frozenset(bucket_of_rows(columns, types, total_buckets, function).tolist())


def matching_rows(points: Points, rows: pa.RecordBatch | pa.Table) -> pa.Array | pa.ChunkedArray | None:
    """Return which rows have these values, by the existing columns of ``points``; None = no such column."""
    mask = None
    for name, values in points.items():
        at = rows.schema.get_field_index(name)
        if at < 0:
            continue
        column = rows.column(at)
        own = pc.is_in(column, value_set=pa.array(values, column.type))
        mask = own if mask is None else pc.and_(mask, own)
    return mask
