"""Columns of CHAR(n) and VARCHAR(n), at any depth: as they are stored, and as they are read.

Every writer stores them by ``for_storage``. What other engines stored shorter is read filled up, as by Spark
(``as_read``); merges, compactions and everything else that writes stored rows again keeps it as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pyarrow as pa
import pyarrow.compute as pc

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.types import ArrayType, AtomicType, DataField, DataType, MapType, RowType, types_within

_OfText = Callable[[pa.Array, AtomicType], pa.Array]


def for_storage(column: pa.Array, data_type: DataType, where: str) -> pa.Array:
    """Fill CHARs up with blanks, and cut blanks beyond the length off; ``where`` names the column in errors.

    Raises:
        InvalidInputError: a value is too long.
    """

    def stored(texts: pa.Array, kind: AtomicType) -> pa.Array:
        (length,) = kind.args
        longest = pc.max(pc.utf8_length(texts)).as_py() or 0
        if longest > length:
            kept = pc.max(pc.utf8_length(pc.utf8_rtrim(texts, " "))).as_py()
            if kept > length:
                raise InvalidInputError(f"{where} is {kind}; a value has a length of {kept}")
            texts = pc.utf8_slice_codeunits(texts, 0, length)
        return pc.utf8_rpad(texts, length) if kind.root == "CHAR" else texts

    return _each(column, data_type, ("CHAR", "VARCHAR"), stored)


def as_read(column: pa.Array, data_type: DataType) -> pa.Array:
    """Fill shorter CHARs up with blanks."""
    return _each(column, data_type, ("CHAR",), lambda texts, kind: pc.utf8_rpad(texts, kind.args[0]))


def holds_char(fields: Iterable[DataField]) -> bool:
    """Whether a column is, or contains, a CHAR."""
    return any(_holds(f.type, ("CHAR",)) for f in fields)


def _holds(data_type: DataType, roots: tuple[str, ...]) -> bool:
    return any(isinstance(one, AtomicType) and one.root in roots for one in types_within(data_type))


def _each(column: pa.Array, data_type: DataType, roots: tuple[str, ...], of_text: _OfText) -> pa.Array:
    """Return a column with these types in it replaced; the others are not copied."""
    if not _holds(data_type, roots):
        return column
    if isinstance(data_type, AtomicType):
        return of_text(column, data_type)
    nulls = column.is_null() if column.null_count else None
    if isinstance(data_type, RowType):
        fields = [column.type.field(i) for i in range(column.type.num_fields)]
        children = [_each(column.field(i), f.type, roots, of_text) for i, f in enumerate(data_type.fields)]
        return pa.StructArray.from_arrays(children, fields=fields, mask=nulls)
    offsets = column.offsets
    first, last = (offsets[0].as_py(), offsets[-1].as_py()) if len(column) else (0, 0)
    moved = pc.subtract(offsets, pa.scalar(first, offsets.type))
    if isinstance(data_type, MapType):
        keys, items = (part.slice(first, last - first) for part in (column.keys, column.items))
        return pa.MapArray.from_arrays(
            moved,
            _each(keys, data_type.key, roots, of_text),
            _each(items, data_type.value, roots, of_text),
            type=column.type,
            mask=nulls,
        )
    assert isinstance(data_type, ArrayType)
    values = _each(column.values.slice(first, last - first), data_type.element, roots, of_text)
    return pa.ListArray.from_arrays(moved, values, type=column.type, mask=nulls)
