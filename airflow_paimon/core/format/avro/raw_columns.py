"""Takes some fields of all records of a block with one regular expression, several times as fast as decoding them.

It is the expression by which ``record_filter`` steps over records, with a group for each field to take: the regular
expression engine makes a column of each, as bytes, and equal bytes are converted once. A block is taken only if the
matches fill it, from its first byte to its last; any other is left to the decoder and its checks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from airflow_paimon.core.errors import FormatError
from airflow_paimon.core.format.avro.container import read_long
from airflow_paimon.core.format.avro.record_filter import Path, RecordShape
from airflow_paimon.core.format.avro.types import AvroType

LEARN_BYTES = 16 << 10
"""Smaller blocks are decoded before an expression for them is made."""
_LEARN_FROM = 400
"""Records of a block that are measured when it doesn't match."""
_MOST_PATTERNS = 12
_MANY = 1 << 16
_SHORT = 64
"""Up to this many bytes with the size before them, a text has a size of one byte."""


class RawColumns:
    """Takes fields of the records of one file. ``stored``: their type there; ``wanted``: the type that is expected.

    ``paths``: of the fields, none within another; ``fixed``: numbers that a top-level field must have.
    """

    def __init__(
        self, stored: AvroType, wanted: AvroType, paths: Sequence[Path], fixed: Mapping[str, tuple[int, ...]]
    ) -> None:
        self._shape = _Groups(stored, paths, fixed)
        self._converters = [_converter(_type_at(stored, path), _type_at(wanted, path)) for path in paths]
        self._order = [sorted(paths, key=_position(stored)).index(path) + 1 for path in paths]
        self._misses = 0
        self._taken = self._shape.is_known and None not in self._converters

    def take(self, number: int, block: bytes, out: Sequence[list[Any]]) -> bool:
        """Append the fields of all records of a block to ``out``, or nothing: False = it has to be decoded."""
        if not self._taken:
            return False
        rows = self._rows(number, block)
        if rows is None:
            return False
        columns = list(zip(*rows, strict=True)) if rows else [()] * (len(out) + 1)
        try:
            values = [c(columns[at]) for c, at in zip(self._converters, self._order, strict=True) if c is not None]
        except ValueError:  # no UTF-8
            return False
        for column, found in zip(out, values, strict=True):
            column += found
        return True

    def _rows(self, number: int, block: bytes) -> list[tuple[bytes, ...]] | None:
        rows = self._shape.rows(number, block)
        if rows is None and self._misses < _MOST_PATTERNS and len(block) >= LEARN_BYTES:
            self._misses += 1
            self._shape.learn_block(block)
            rows = self._shape.rows(number, block)
        elif rows is None and len(block) >= LEARN_BYTES:
            self._taken = False  # its sizes differ too much
        return rows


class _Groups(RecordShape):
    """The expression of a record, with a group around it and one around each field to take."""

    def __init__(self, record: AvroType, wanted: Collection[Path], fixed: Mapping[str, tuple[int, ...]]) -> None:
        super().__init__(record, (record.fields[0][0],), fixed)
        self._grouped = set(wanted)
        self._all: re.Pattern[bytes] | None = None
        self.is_known = not record.union and all(_is_stepped(t) for _, t in record.fields)

    def rows(self, number: int, block: bytes) -> list[tuple[bytes, ...]] | None:
        """Return of each record its bytes and those of the fields, in stored order; None: it doesn't match."""
        if self._all is None:
            return None
        found: list[tuple[bytes, ...]] = self._all.findall(block)
        return found if len(found) == number and sum(len(row[0]) for row in found) == len(block) else None

    def learn_block(self, block: bytes) -> None:
        """Measure the records of a block and make the expression anew."""
        at = 0
        try:
            for _ in range(_LEARN_FROM):
                if at >= len(block):
                    break
                at = self._measure(self._record, block, at, ())
        except (IndexError, FormatError):
            return  # damaged: the decoder says how
        self._all = re.compile(b"(" + self._fields(self._record, ()) + b")", re.DOTALL)

    def _field(self, name: str, stored: AvroType, path: Path) -> bytes:
        pattern = super()._field(name, stored, path)
        return b"(" + pattern + b")" if path in self._grouped else pattern


def _is_stepped(stored: AvroType) -> bool:
    if stored.kind == "record":
        return all(_is_stepped(t) for _, t in stored.fields)
    if stored.kind == "array":
        return stored.items is not None and stored.items.kind not in ("array", "record") and _is_stepped(stored.items)
    return stored.kind in ("long", "bytes", "string")


def _type_at(record: AvroType, path: Path) -> AvroType | None:
    found: AvroType | None = record
    for name in path:
        found = None if found is None else dict(found.fields).get(name)
    return found


def _position(record: AvroType) -> Callable[[Path], tuple[int, ...]]:
    """Return what orders paths as their fields are stored."""

    def position(path: Path) -> tuple[int, ...]:
        where: list[int] = []
        at: AvroType | None = record
        for name in path:
            names = [n for n, _ in at.fields] if at is not None else []
            where.append(names.index(name) if name in names else -1)
            at = dict(at.fields).get(name) if at is not None else None
        return tuple(where)

    return position


_Convert = Callable[[Sequence[bytes]], list[Any]]


def _converter(stored: AvroType | None, wanted: AvroType | None) -> _Convert | None:
    """Return what makes values of a column's bytes; None: such values are not taken."""
    if stored is None or wanted is None or stored.kind != wanted.kind or (stored.nullable and not wanted.nullable):
        return None
    if stored.kind == "string" and not stored.union:
        return _texts
    if stored.kind in ("long", "bytes", "string") or (
        stored.kind == "array" and stored.items is not None and stored.items.kind == "string" and not stored.items.union
    ):
        return _Known(stored).convert
    return None


def _texts(column: Sequence[bytes]) -> list[Any]:
    """Texts that differ from record to record."""
    if max(map(len, column), default=0) <= _SHORT:
        return [raw[1:].decode() for raw in column]
    return [raw[read_long(raw, 0)[1] :].decode() for raw in column]


class _Known(dict[bytes, Any]):
    """Values by their bytes, each made once: most fields have few different ones."""

    def __init__(self, stored: AvroType) -> None:
        super().__init__()
        self._stored = stored

    def convert(self, column: Sequence[bytes]) -> list[Any]:
        """Return the value of each."""
        if len(self) > _MANY:
            self.clear()
        return list(map(self.__getitem__, column))

    def __missing__(self, raw: bytes) -> Any:
        value = self[raw] = self._value(raw)
        return value

    def _value(self, raw: bytes) -> Any:
        stored, at = self._stored, 0
        if stored.union:
            if stored.nullable and raw[0] == (0 if stored.null_branch == 0 else 2):
                return None
            at = 1
        if stored.kind == "long":
            return read_long(raw, at)[0]
        if stored.kind == "array":
            return _array(raw, at)
        value = raw[read_long(raw, at)[1] :]
        return value.decode() if stored.kind == "string" else value


def _array(raw: bytes, at: int) -> tuple[str, ...]:
    items: list[str] = []
    while True:
        size, at = read_long(raw, at)
        if not size:
            return tuple(items)
        for _ in range(size):
            length, at = read_long(raw, at)
            items.append(raw[at : at + length].decode())
            at += length
