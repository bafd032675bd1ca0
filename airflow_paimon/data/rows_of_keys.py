"""Rows of files by the values of their keys: other columns are decoded only where a file has such rows.

For files whose rows are not merged. Membership is what Spark's ``=`` says for whole numbers, decimals, dates and texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_paimon.core.format.hash_index import Hashes, distinct, sorting_order
from airflow_paimon.core.format.types import parse_type
from airflow_paimon.core.table.bucket import hash_rows
from airflow_paimon.data.files.arrow_types import FILE_POSITION
from airflow_paimon.data.merge.versions import Indices
from airflow_paimon.data.read import read_split
from airflow_paimon.data.row_columns import POSITION_COLUMNS
from airflow_paimon.data.scan import ReadSplit, TableRead

_TEXT = parse_type("STRING")
_FEW = 4
"""A batch with so many times fewer rows than there are values is looked up by hashes that are kept."""
_MOST_KEPT = 128 << 20

KeyValues = Mapping[str, pa.Array]
"""Column -> the values that are looked for, each once, without null, of the column's type."""

_MASK_ROWS = 1 << 19
"""Arrow hashes all values anew for each batch that they are looked up in."""
_MOST_SPAN = 1 << 26
"""Whole numbers no farther apart are looked up in a table, of a byte for each number between them."""


def rows_of_keys(read: TableRead, split: ReadSplit, keys: KeyValues) -> Iterator[pa.RecordBatch]:
    """Read the rows that have, in each of these columns, one of its values. ``read``: with ``POSITION_COLUMNS``."""
    tests = _members_of(keys)
    large = replace(read, batch_rows=max(read.batch_rows, _MASK_ROWS))
    alone = set(keys) <= set(read.columns) <= {*keys, *POSITION_COLUMNS}
    for part in split.divided():
        if alone:
            for batch in read_split(large, part):
                yield batch.filter(pa.array(_mask(tests, batch)))
        else:
            yield from _rows_at(read, part, _positions(large, part, tests))


def share_of_rows(read: TableRead, split: ReadSplit, keys: KeyValues) -> float:
    """Return how many of the first rows of a split have one of the values of each column, as a share of them."""
    tests = _members_of(keys)
    first = next(read_split(replace(read, columns=tuple(keys)), split), None)
    return float(_mask(tests, first).mean()) if first is not None and first.num_rows else 0.0


_kept: tuple[KeyValues, Mapping[str, _Members]] | None = None
"""Those of the last call: a task reads many splits with the same keys. They take at most ``_MOST_KEPT`` bytes."""


def _members_of(keys: KeyValues) -> Mapping[str, _Members]:
    global _kept
    kept = _kept
    if kept is not None and kept[0] is keys:
        return kept[1]
    made = {name: _Members(values) for name, values in keys.items()}
    _kept = (keys, made) if sum(m.nbytes for m in made.values()) <= _MOST_KEPT else None
    return made


class _Members:
    """A set of values."""

    def __init__(self, values: pa.Array) -> None:
        self._values = values
        self._hashes: Hashes | None = None
        self._order = np.empty(0, np.int64)
        self._table: npt.NDArray[np.bool_] | None = None
        self._low = 0
        if not _is_numbered(values.type) or not len(values):
            return
        numbers = _numbers(values)
        low, high = int(numbers.min()), int(numbers.max())
        if high - low < _MOST_SPAN:
            self._low, self._table = low, np.zeros(high - low + 2, bool)  # the last one is for all other numbers
            self._table[numbers - low] = True

    def have(self, column: pa.Array) -> npt.NDArray[np.bool_]:
        """Return for each value of a column whether it is in the set; null never is."""
        if self._table is None and len(column) * _FEW < len(self._values) and _is_text(column.type):
            return self._have_few(column)
        if self._table is None:
            found: npt.NDArray[np.bool_] = pc.is_in(column, value_set=self._values).to_numpy(zero_copy_only=False)
            return found
        valid = None if not column.null_count else column.is_valid().to_numpy(zero_copy_only=False)
        numbers = _numbers(column if valid is None else column.fill_null(pa.scalar(0, pa.int32()).cast(column.type)))
        with np.errstate(over="ignore"):  # what wraps around is beyond the table, too
            at = (numbers - np.int64(self._low)).view(np.uint64)
        held = self._table[np.minimum(at, np.uint64(len(self._table) - 1)).view(np.int64)]
        return held if valid is None else held & valid

    @property
    def nbytes(self) -> int:
        return int(self._values.nbytes) * 2 + (self._table.nbytes if self._table is not None else 0)

    def _have_few(self, column: pa.Array) -> npt.NDArray[np.bool_]:
        """Let Arrow compare only the values that have the hash of one in the column: it hashes all that it gets."""
        if self._hashes is None:
            hashes = _hashes(self._values)
            self._order = sorting_order(hashes)
            self._hashes = hashes[self._order]
        asked = distinct(_hashes(column))
        low, high = (np.searchsorted(self._hashes, asked, side) for side in ("left", "right"))
        chosen = [self._order[a:b] for a, b in zip(low.tolist(), high.tolist(), strict=True) if a < b]
        some = self._values.take(pa.array(np.concatenate([np.empty(0, np.int64), *chosen])))
        found: npt.NDArray[np.bool_] = pc.is_in(column, value_set=some).to_numpy(zero_copy_only=False)
        return found


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _hashes(column: pa.Array) -> Hashes:
    return hash_rows([column], [_TEXT])


def _is_numbered(kind: pa.DataType) -> bool:
    return bool(pa.types.is_signed_integer(kind) or pa.types.is_date32(kind))


def _numbers(column: pa.Array) -> npt.NDArray[np.int64]:
    own = column.view(pa.int32()) if pa.types.is_date32(column.type) else column
    return np.asarray(own.to_numpy(zero_copy_only=False), np.int64)


def _mask(tests: Mapping[str, _Members], batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    out = np.ones(batch.num_rows, bool)
    for name, members in tests.items():
        out &= members.have(batch.column(name))
    return out


def _positions(read: TableRead, part: ReadSplit, tests: Mapping[str, _Members]) -> Indices:
    """Return where the rows are, ascending; only the columns of the keys are decoded."""
    found = [np.empty(0, np.int64)]
    for batch in read_split(replace(read, columns=(FILE_POSITION, *tests)), part):
        found.append(batch.column(FILE_POSITION).to_numpy()[_mask(tests, batch)])
    return np.concatenate(found)


def _rows_at(read: TableRead, part: ReadSplit, positions: Indices) -> Iterator[pa.RecordBatch]:
    """Read the rows of one file at these positions, but those that the filter of the read leaves out."""
    if not len(positions):
        return
    for batch in read_split(read, part):
        own = batch.column(FILE_POSITION).to_numpy()
        if not len(own):
            continue
        first, last = np.searchsorted(positions, [own[0], own[-1] + 1])
        wanted = positions[first:last]
        at = np.searchsorted(own, wanted)
        yield batch.take(pa.array(at[own[at] == wanted]))
