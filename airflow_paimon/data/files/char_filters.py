"""Literals of an Arrow expression that are compared with CHAR columns, filled up as the columns are.

Arrow shows the parts of an expression only in its pickled form: an IPC file whose schema's metadata lists the calls in
order, with the literals as columns. What is not in this form is left as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_paimon.core.format.char_text import compared_text
from airflow_paimon.core.format.types import AtomicType, DataField

_PART = re.compile(r"^(call|end|literal|field_ref|nested_field_ref|options): '(.*)'$", re.MULTILINE)
_COMPARISONS = frozenset({"equal", "not_equal", "less", "less_equal", "greater", "greater_equal"})
_MEMBERSHIPS = frozenset({"is_in", "index_in"})


def with_filled_literals(where: pc.Expression, fields: Sequence[DataField]) -> pc.Expression:
    """Return an expression that finds a CHAR by a text with blanks at its end or without."""
    lengths = {f.name: f.type.args[0] for f in fields if isinstance(f.type, AtomicType) and f.type.root == "CHAR"}
    if not lengths:
        return where
    rebuild, (pickled,) = where.__reduce__()
    batch = pa.ipc.open_file(pickled).get_batch(0)
    text = batch.schema.to_string(show_schema_metadata=True, truncate_metadata=False)
    found = dict(_compared(_PART.findall(text.partition("-- schema metadata --")[2]), lengths))
    if not found:
        return where
    columns = [_filled(column, found[i]) if i in found else column for i, column in enumerate(batch.columns)]
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


def _filled(column: pa.Array, length: int) -> pa.Array:
    return pa.array([_value(v, length) for v in column.to_pylist()], column.type)


def _value(value: Any, length: int) -> Any:
    """Fill a text up, or those of an option ``value_set``."""
    if isinstance(value, str):
        return compared_text(value, length)
    if isinstance(value, dict) and "value_set" in value:
        return {**value, "value_set": [_value(v, length) for v in value["value_set"]]}
    return value
