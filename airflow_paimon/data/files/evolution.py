"""Maps rows of a data file from the schema of the writer to the schema of the reader, by field id.

Columns whose type was altered are converted as Paimon's Java engine does (its CastExecutors).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_paimon.core.errors import UnsupportedFeatureError
from airflow_paimon.core.format.types import ArrayType, AtomicType, DataField, DataType, MapType, RowType, nested_ids
from airflow_paimon.data.files.arrow_types import arrow_schema, arrow_type

_INTEGERS: dict[str, type[np.generic[Any]]] = {
    "TINYINT": np.int8,
    "SMALLINT": np.int16,
    "INT": np.int32,
    "BIGINT": np.int64,
}
_FLOATS: dict[str, type[np.generic[Any]]] = {"FLOAT": np.float32, "DOUBLE": np.float64}
_STRINGS = ("CHAR", "VARCHAR", "STRING")
_BINARIES = ("BINARY", "VARBINARY", "BYTES")
_UNBOUNDED = 2**31 - 1


def cast_column(column: pa.Array, source: AtomicType, target: AtomicType, where: str) -> pa.Array:
    """Convert values of one type to another.

    Integers narrow by dropping high bits and floats saturate, as Java's casts do; a decimal that does not fit is null.

    Raises:
        UnsupportedFeatureError: a conversion that can't be done exactly as in Paimon.
    """
    if source.root == target.root and source.args == target.args:
        return column
    if source.root in _INTEGERS and target.root in (_INTEGERS | _FLOATS):
        return _numpy_cast(column, (_INTEGERS | _FLOATS)[target.root], target)
    if source.root in _FLOATS and target.root in _FLOATS:
        return _numpy_cast(column, _FLOATS[target.root], target)
    if source.root in _FLOATS and target.root in _INTEGERS:
        return _float_to_integer(column, target)
    if target.root == "DECIMAL" and (source.root in _INTEGERS or source.root == "DECIMAL"):
        converted = _to_decimal(column, source, target)
        if converted is not None:
            return converted
    if source.root == target.root and source.root in ("TIMESTAMP", "TIMESTAMP_LTZ") and source.args <= target.args:
        return column.cast(arrow_type(target))
    for family in (_STRINGS, _BINARIES):
        if source.root in family and target.root in family and _widens(source, target):
            return column
    raise UnsupportedFeatureError(
        f"Column {where!r} changed its type from {source} to {target}, which the built-in engine does not convert; "
        f"use Paimon's own Spark connector"
    )


def _widens(source: AtomicType, target: AtomicType) -> bool:
    """A longer CHAR or BINARY would be padded, a shorter VARCHAR cut: both change values."""
    if target.root in ("CHAR", "BINARY"):
        return False
    return _length(target) >= _length(source)


def _length(data_type: AtomicType) -> int:
    return data_type.args[0] if data_type.args else _UNBOUNDED


def _numpy_cast(column: pa.Array, dtype: type[np.generic[Any]], target: AtomicType) -> pa.Array:
    values = column.fill_null(0).to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore", invalid="ignore"):
        return pa.array(values.astype(dtype), arrow_type(target), mask=_null_array(column))


def _float_to_integer(column: pa.Array, target: AtomicType) -> pa.Array:
    """Java: NaN is 0, out of range saturates at int (long for BIGINT); then narrower ones drop high bits."""
    values = column.fill_null(0).to_numpy(zero_copy_only=False).astype(np.float64)
    wide = np.int64 if target.root == "BIGINT" else np.int32
    info = np.iinfo(wide)
    with np.errstate(invalid="ignore"):
        whole = np.where(np.isnan(values), 0, np.trunc(values)).astype(wide)
    # 2**63 is a float64, 2**63 - 1 is not: compare with >= instead of clipping
    whole = np.where(values >= float(info.max) + (0 if wide is np.int64 else 1), info.max, whole)
    whole = np.where(values <= float(info.min), info.min, whole)
    return pa.array(whole.astype(_INTEGERS[target.root]), arrow_type(target), mask=_null_array(column))


def _to_decimal(column: pa.Array, source: AtomicType, target: AtomicType) -> pa.Array | None:
    """Convert if no fractional digit is dropped (that would round); None if one might be."""
    precision, scale = target.args
    exact = column
    if source.root in _INTEGERS:
        exact = column.cast(pa.decimal128(19, 0))
        digits = {"TINYINT": 3, "SMALLINT": 5, "INT": 10, "BIGINT": 19}[source.root]
        source_scale = 0
    else:
        digits, source_scale = source.args[0] - source.args[1], source.args[1]
    if scale < source_scale:
        return None
    if precision - scale >= digits:
        return exact.cast(arrow_type(target))
    wide = exact.cast(pa.decimal256(76, scale))
    limit = pa.scalar(Decimal(10) ** (precision - scale), pa.decimal256(76, scale))
    fits = pc.less(pc.abs(wide), limit)
    return pc.if_else(fits, wide, None).cast(arrow_type(target))


def _null_array(column: pa.Array) -> np.ndarray | None:
    mask: np.ndarray | None = column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None
    return mask


@dataclass(frozen=True, slots=True)
class Mapping:
    """The columns to read from a file, and their mapping to the requested columns.

    ``sources[i]`` is the column of the file that becomes ``targets[i]``; None = added later: all null.
    ``file_fields``: the file's columns to read, at least one, which gives the number of rows.
    """

    targets: tuple[DataField, ...]
    sources: tuple[DataField | None, ...]
    file_fields: tuple[DataField, ...]

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Turn a batch of ``file_fields`` into a batch of ``targets``."""
        columns = []
        for source, target in zip(self.sources, self.targets, strict=True):
            if source is None:
                columns.append(pa.nulls(batch.num_rows, arrow_type(target.type)))
            else:
                columns.append(_evolve(batch.column(source.name), source.type, target.type, target.name))
        return pa.RecordBatch.from_arrays(columns, schema=arrow_schema(self.targets))


def plan_mapping(written: Sequence[DataField], wanted: Sequence[DataField]) -> Mapping:
    """Match columns by field id, so that a renamed one is found and a reused name is not mistaken.

    Raises:
        UnsupportedFeatureError: a type change that is not converted. Raised before any row is read.
    """
    by_id = {f.id: f for f in written}
    sources = tuple(by_id.get(f.id) for f in wanted)
    file_fields = tuple(dict.fromkeys(s for s in sources if s is not None)) or tuple(written[:1])
    mapping = Mapping(tuple(wanted), sources, file_fields)
    empty = [pa.nulls(0, arrow_type(f.type)) for f in file_fields]
    mapping.apply(pa.RecordBatch.from_arrays(empty, schema=arrow_schema(file_fields)))
    return mapping


def _evolve(column: pa.Array, source: DataType, target: DataType, where: str) -> pa.Array:
    if isinstance(source, RowType) and isinstance(target, RowType):
        return _evolve_row(column, source, target, where)
    if isinstance(source, ArrayType) and isinstance(target, ArrayType):
        if arrow_type(source) == arrow_type(target) and nested_ids(source) == nested_ids(target):
            return column
        values = _evolve(column.values, source.element, target.element, f"{where}.element")
        return pa.ListArray.from_arrays(_offsets(column), values, type=arrow_type(target), mask=null_mask(column))
    if isinstance(source, MapType) and isinstance(target, MapType):
        if arrow_type(source) == arrow_type(target) and nested_ids(source) == nested_ids(target):
            return column
        keys = _evolve(column.keys, source.key, target.key, f"{where}.key")
        items = _evolve(column.items, source.value, target.value, f"{where}.value")
        return pa.MapArray.from_arrays(_offsets(column), keys, items, type=arrow_type(target), mask=null_mask(column))
    if isinstance(source, AtomicType) and isinstance(target, AtomicType):
        return cast_column(column, source, target, where)
    raise UnsupportedFeatureError(
        f"Column {where!r} changed its type from {source.root} to {target.root}, which the built-in engine does not "
        f"convert; use Paimon's own Spark connector"
    )


def _evolve_row(column: pa.Array, source: RowType, target: RowType, where: str) -> pa.Array:
    wanted = arrow_type(target)
    if arrow_type(source) == wanted and nested_ids(source) == nested_ids(target):
        return column
    by_id = {f.id: (i, f) for i, f in enumerate(source.fields)}
    children = []
    for field in target.fields:
        found = by_id.get(field.id)
        if found is None:
            children.append(pa.nulls(len(column), arrow_type(field.type)))
        else:
            children.append(_evolve(column.field(found[0]), found[1].type, field.type, f"{where}.{field.name}"))
    if not children:
        return pa.nulls(len(column), wanted)
    fields = [wanted.field(i) for i in range(wanted.num_fields)]
    return pa.StructArray.from_arrays(children, fields=fields, mask=null_mask(column))


def _offsets(column: pa.Array) -> pa.Array:
    """Return the offsets as an array that is not a slice: rebuilding with a null mask refuses slices."""
    return pa.array(column.offsets.to_numpy(), pa.int32())


def null_mask(column: pa.Array) -> pa.Array | None:
    """Return the nulls of a nested column as the mask that rebuilding it from its children takes."""
    return column.is_null() if column.null_count else None
