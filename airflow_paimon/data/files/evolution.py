"""Maps rows of a data file from the schema of the writer to the schema of the reader, by field id."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from airflow_paimon.core.errors import UnsupportedFeatureError
from airflow_paimon.core.format.types import ArrayType, AtomicType, DataField, DataType, MapType, RowType
from airflow_paimon.data.files.arrow_types import arrow_schema, arrow_type
from airflow_paimon.data.files.casts import cast_column


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


def _same(source: DataField, target: DataField) -> bool:
    return (
        source.name == target.name and arrow_type(source.type) == arrow_type(target.type) and _same_ids(source, target)
    )


def _same_ids(source: DataField, target: DataField) -> bool:
    return source.id == target.id and nested_ids(source.type) == nested_ids(target.type)


def nested_ids(data_type: DataType) -> tuple[int, ...]:
    """Return the field ids of all ROWs inside a type, in order: equal types with other ids are other columns."""
    if isinstance(data_type, RowType):
        return tuple(i for f in data_type.fields for i in (f.id, *nested_ids(f.type)))
    if isinstance(data_type, ArrayType):
        return nested_ids(data_type.element)
    if isinstance(data_type, MapType):
        return nested_ids(data_type.key) + nested_ids(data_type.value)
    return ()


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
        f"Column {where!r} changed its type from {source.root} to {target.root}, which the embedded engine does not "
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
