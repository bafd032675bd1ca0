"""Checks rows to be written against the table's columns, and converts them to the types of data files.

Nothing is changed silently, but for blanks at the end of CHAR and VARCHAR (``char_values``): a value that does not fit
is an error that names the column.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.arrow_values import date_beyond_python, is_bytes, is_text
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.types import ArrayType, AtomicType, DataField, DataType, MapType, RowType
from airflow_paimon.core.table.masking import masked_names
from airflow_paimon.data.files.arrow_types import ROW_KIND, VALUE_KIND, arrow_type, one_array
from airflow_paimon.data.files.char_values import for_storage

ROW_KINDS = ("+I", "-U", "+U", "-D")
"""The texts of ``_row_kind``, by their number in ``_VALUE_KIND``."""
_RETRACTS = pa.array([1, 3], pa.int8())
_WIDE = 76
_TEXT = ("CHAR", "VARCHAR", "STRING")
_SQL_NAMES = ("TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "STRING", "DATE")
_BYTES = ("BINARY", "VARBINARY", "BYTES")


def conform_rows(
    rows: pa.Table | pa.RecordBatch, schema: TableSchema, label: str, *, partial: bool = False
) -> pa.RecordBatch:
    """Return one batch with the table's columns in order and ``_VALUE_KIND`` after them.

    A column ``_row_kind`` (``+I -U +U -D``) gives the kind, else the column that ``rowkind.field`` names; without both
    all rows are inserts. Nulls of a column with a default value become that value, and a column with one may be
    missing. ``partial``: so may every column that can be null, but those of the primary key and the partition; it is
    null then.

    Raises:
        InvalidInputError: a column is unknown, missing, of another type, null where NOT NULL, too long or out of range;
            or rows of a table without primary key are retracted.
    """
    given = set(rows.schema.names)
    if len(given) != len(rows.schema.names):
        raise InvalidInputError(f"{label}: the rows to write have two columns of the same name")
    unknown = [n for n in rows.schema.names if n not in schema.field_names and n != ROW_KIND]
    needed = {*schema.primary_keys, *schema.partition_keys}
    missing = [
        f.name
        for f in schema.fields
        if f.name not in given and f.default_value is None
        if not partial or f.name in needed or not f.type.nullable
    ]
    if unknown or missing:
        what = [f"unknown columns {', '.join(unknown)}"] if unknown else []
        what += [f"missing columns {', '.join(missing)}"] if missing else []
        raise InvalidInputError(
            f"{label}: the rows to write have {' and '.join(what)}; the table has {', '.join(schema.field_names)}",
            code="wrong-columns",
        )
    keys = set(schema.primary_keys)
    masked = {name.lower() for name in masked_names(schema)}
    columns = [_column(rows, f, label, required=f.name in keys, masked=f.name.lower() in masked) for f in schema.fields]
    for field, column in zip(schema.fields, columns, strict=True):
        if field.name in needed:
            _check_date(column, field, label)
    columns.append(_kinds(rows, schema, columns, label))
    names = [*schema.field_names, VALUE_KIND]
    types = [*(arrow_type(f.type) for f in schema.fields), pa.int8()]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(list(zip(names, types, strict=True))))


def partition_columns(rows: pa.RecordBatch, schema: TableSchema, label: str) -> pa.RecordBatch:
    """Return the partition columns as ``conform_rows`` does; what the other columns lack is not looked at."""
    masked = {name.lower() for name in masked_names(schema)}
    fields, keys = schema.partition_fields, set(schema.primary_keys)
    columns = [_column(rows, f, label, required=f.name in keys, masked=f.name.lower() in masked) for f in fields]
    for field, column in zip(fields, columns, strict=True):
        _check_date(column, field, label)
    return pa.RecordBatch.from_arrays(columns, names=list(schema.partition_keys))


def _kinds(rows: pa.Table | pa.RecordBatch, schema: TableSchema, columns: Sequence[pa.Array], label: str) -> pa.Array:
    """``columns``: those of the schema, in order."""
    named = schema.options.get("rowkind.field") if schema.primary_keys else None
    name = ROW_KIND
    if ROW_KIND in rows.schema.names:
        texts = one_array(rows.column(ROW_KIND))
        if pa.types.is_dictionary(texts.type):
            texts = texts.dictionary_decode()
    elif named is not None and named in schema.field_names:
        name, texts = f"column {named!r} (rowkind.field)", pc.utf8_upper(columns[schema.field_names.index(named)])
    else:
        return pa.array(np.zeros(rows.num_rows, np.int8))
    known = pa.array(ROW_KINDS)
    kinds = pc.index_in(texts.cast(pa.string()), value_set=known).cast(pa.int8())
    if kinds.null_count:
        strange = texts.filter(kinds.is_null())[0].as_py()
        raise InvalidInputError(f"{label}: {name} must be one of {' '.join(ROW_KINDS)}, not {strange!r}")
    if not schema.primary_keys and pc.any(pc.is_in(kinds, value_set=_RETRACTS)).as_py():
        raise InvalidInputError(
            f"{label} has no primary key, so rows can't be deleted by {ROW_KIND}: overwrite the partition instead"
        )
    return kinds


def _column(rows: pa.Table | pa.RecordBatch, field: DataField, label: str, required: bool, masked: bool) -> pa.Array:
    where = f"{label}: column {field.name!r}"
    if field.name in rows.schema.names:
        column = _fitted(one_array(rows.column(field.name)), field.type, where, masked)
    else:
        column = pa.nulls(rows.num_rows, arrow_type(field.type))
    if field.default_value is not None and column.null_count:
        column = pc.fill_null(column, _default(field, where))
    if required and column.null_count:
        raise InvalidInputError(f"{where} is part of the primary key and must not be null")
    _check_nulls(column, field.type, where)
    return column


def _check_date(column: pa.Array, field: DataField, label: str) -> None:
    """Refuse a key or partition that could not be read again from metadata."""
    days = date_beyond_python(column) if field.type.root == "DATE" else None
    if days is not None:
        raise InvalidInputError(
            f"{label}: column {field.name!r} is part of the key or partition and has a date beyond the years 1 to "
            f"9999, which is not supported there: write another date, or use a column of type INT or TIMESTAMP"
        )


def _default(field: DataField, where: str) -> pa.Scalar:
    try:
        value = pa.array([field.default_value]).cast(arrow_type(field.type))
        return for_storage(value, field.type, where)[0]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise InvalidInputError(f"{where} has the default value {field.default_value!r}, which is not a {field.type}; "
                                f"give the column's values") from None  # fmt: skip


def _check_nulls(column: pa.Array, data_type: DataType, where: str) -> None:
    if not data_type.nullable and column.null_count:
        raise InvalidInputError(f"{where} is NOT NULL, but a row has null there")
    if isinstance(data_type, RowType):
        for i, child in enumerate(data_type.fields):
            # flatten() would add the parent's nulls: if the whole ROW is null its fields don't count
            values = column.field(i) if not column.null_count else column.drop_null().field(i)
            _check_nulls(values, child.type, f"{where}.{child.name}")
    elif isinstance(data_type, ArrayType):
        _check_nulls(column.flatten(), data_type.element, f"{where}.element")
    elif isinstance(data_type, MapType):
        present = column.drop_null() if column.null_count else column
        first, last = (present.offsets[0].as_py(), present.offsets[-1].as_py()) if len(present) else (0, 0)
        _check_nulls(present.items.slice(first, last - first), data_type.value, f"{where}.value")


def _fitted(column: pa.Array, data_type: DataType, where: str, masked: bool) -> pa.Array:
    """Cast to the type in the file, if no value changes. ``masked``: no error shows a value."""
    target = arrow_type(data_type)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if not _fits(column.type, data_type):
        raise InvalidInputError(
            f"{where} is {_name(data_type)}; a column of Arrow type {column.type} does not fit{_way_out(data_type)}"
        )
    if column.type != target:
        try:
            if pa.types.is_decimal(target) and pa.types.is_integer(column.type):
                column = column.cast(pa.decimal256(_WIDE, target.scale))  # else Arrow goes by the type, not the values
            fitted = column.cast(target)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            raise InvalidInputError(_misfit(column, data_type, where, "" if masked else f": {error}")) from None
        if pa.types.is_float64(column.type) and not fitted.cast(pa.float64()).equals(column):
            _check_float(column, fitted, where, masked)
        column = fitted
    _check_length(column, data_type, where)
    return for_storage(column, data_type, where)


def _misfit(column: pa.Array, data_type: DataType, where: str, said: str) -> str:
    target = arrow_type(data_type)
    if pa.types.is_decimal(target) and pa.types.is_decimal(column.type) and column.type.scale > target.scale:
        return (
            f"{where} is {_name(data_type)}; a value has more digits after the point, or is too large. In SQL: "
            f"CAST(... AS {_name(data_type)}) rounds it"
        )
    return f"{where} is {_name(data_type)}; a value does not fit{said}"


def _way_out(data_type: DataType) -> str:
    """Return advice to CAST a query's column to this type, if Spark has the type under the same name."""
    return f". In SQL: CAST(... AS {data_type.root})" if data_type.root in _SQL_NAMES else ""


def _name(data_type: DataType) -> str:
    return str(data_type) if isinstance(data_type, AtomicType) else data_type.root


def _check_float(column: pa.Array, fitted: pa.Array, where: str, masked: bool) -> None:
    before = column.fill_null(0).to_numpy(zero_copy_only=False)
    after = fitted.cast(pa.float64()).fill_null(0).to_numpy(zero_copy_only=False)
    lost = (before != after) & ~(np.isnan(before) & np.isnan(after))
    if lost.any():
        shown = "a double" if masked else f"the double {before[lost][0]!r}"
        raise InvalidInputError(f"{where} is FLOAT; {shown} would lose digits: cast it to FLOAT first")


def _check_length(column: pa.Array, data_type: DataType, where: str) -> None:
    if not isinstance(data_type, AtomicType) or not data_type.args or data_type.root not in _BYTES:
        return
    longest = pc.max(pc.binary_length(column)).as_py()
    if longest is not None and longest > data_type.args[0]:
        raise InvalidInputError(f"{where} is {data_type}; a value has a length of {longest}")


def _fits(source: pa.DataType, data_type: DataType) -> bool:
    """Return whether values of an Arrow type are values of a Paimon type, so that a cast keeps their meaning."""
    if pa.types.is_null(source):
        return True
    if isinstance(data_type, RowType):
        if not pa.types.is_struct(source):
            return False
        children = [source.field(i) for i in range(source.num_fields)]
        same = [c.name for c in children] == [f.name for f in data_type.fields]
        return same and all(_fits(c.type, f.type) for c, f in zip(children, data_type.fields, strict=True))
    if isinstance(data_type, ArrayType):
        is_list = pa.types.is_list(source) or pa.types.is_large_list(source) or pa.types.is_fixed_size_list(source)
        return is_list and _fits(source.value_type, data_type.element)
    if isinstance(data_type, MapType):
        if not pa.types.is_map(source):
            return False
        return _fits(source.key_type, data_type.key) and _fits(source.item_type, data_type.value)
    return _fits_atomic(source, data_type)


def _fits_atomic(source: pa.DataType, data_type: AtomicType) -> bool:
    root = data_type.root
    if root == "TIMESTAMP_LTZ":
        return bool(pa.types.is_timestamp(source) and source.tz is not None)
    if root == "TIMESTAMP":
        return bool(pa.types.is_timestamp(source) and source.tz is None)
    if root in _TEXT:
        return is_text(source)
    if root in _BYTES:
        return is_bytes(source)
    if root == "DECIMAL":
        return bool(pa.types.is_decimal(source) or pa.types.is_integer(source))
    if root in ("FLOAT", "DOUBLE"):
        return bool(pa.types.is_floating(source) or pa.types.is_integer(source))
    tests = {"BOOLEAN": pa.types.is_boolean, "DATE": pa.types.is_date, "TIME": pa.types.is_time}
    return bool(tests.get(root, pa.types.is_integer)(source))
