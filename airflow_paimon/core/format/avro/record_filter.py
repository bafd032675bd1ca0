"""Steps over Avro records that nobody asked for, several times as fast as decoding them.

A record's end has to be found to find the next one, and its fields have no fixed sizes. A regular expression finds it
in one call: a number is ``[\\x80-\\xff]*[\\x00-\\x7f]``, and a text or an array is one of the sizes that this field had
so far. Avro values are self-delimiting, so a match has the bytes of exactly one record, and no other reading of these
bytes exists. A record that doesn't match is measured field by field, which adds its sizes to the expression, and is
kept: whatever the filter is unsure of is left to the decoder and its checks.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from airflow_paimon.core.errors import FormatError
from airflow_paimon.core.format.avro.container import read_long, write_long
from airflow_paimon.core.format.avro.types import AvroType, parse_avro_schema

_LONG: Final = rb"[\x80-\xff]{0,9}[\x00-\x7f]"
# Before Python 3.11.5 a possessive repetition may end in the middle of what it repeats (python/cpython#106052): here,
# of a record. The other one gives the same match, and keeps what it would need to go back.
_MANY: Final = b"*+" if sys.version_info >= (3, 11, 5) else b"*"
_SAMPLE = 50
"""Records to measure when one doesn't match: the sizes of its neighbours come into the same new expression."""
_MOST_PATTERNS = 24
"""Compiling takes milliseconds: with so many different sizes, decoding is as fast."""
_ENOUGH = 2000
"""Records after which it is known whether most of them are kept; then stepping costs more than it saves."""

Path = tuple[str, ...]
Match = Callable[[bytes, int], "re.Match[bytes] | None"]


class RecordFilter:
    """Keeps the records whose fields ``names`` have ``wanted`` values, and those that it can't step over.

    For the files of one read, as it learns the sizes of their fields. The fields are bytes or numbers, one after
    another; ``wanted`` is asked once for their values. A field in ``fixed`` must have one of these numbers in a record
    that is stepped over. The first ``few`` records are all kept, as it takes time to learn.
    """

    def __init__(
        self, names: Sequence[str], wanted: Callable[..., bool], fixed: Mapping[str, tuple[int, ...]], few: int = 0
    ) -> None:
        self._few = few
        self._names = tuple(names)
        self._wanted = wanted
        self._fixed = fixed
        self._by_schema: dict[str, RecordShape] = {}
        self._verdicts: dict[bytes, bool] = {}
        self._seen = self._kept = self._steps = 0

    def kept(self, schema: str, number: int, block: bytes) -> tuple[int, bytes]:
        """Return how many records of a block are kept, and their bytes.

        Raises:
            FormatError: the block is corrupt. IndexError means that it ends within a record.
        """
        shape = self._by_schema.get(schema)
        if shape is None:
            shape = self._by_schema[schema] = RecordShape(parse_avro_schema(schema), self._names, self._fixed)
        if not shape.is_known or (self._seen > _ENOUGH and self._kept * 2 > self._seen):
            return number, block
        if self._few >= number:
            self._few -= number
            return number, block
        parts: list[bytes] = []
        at, end, verdicts = 0, len(block), self._verdicts
        in_runs = self._steps * 2 <= self._seen
        find = shape.run if in_runs else shape.one
        while at < end:
            found = find(block, at)
            if found is None:
                stop = shape.learn(block, at)
                parts.append(block[at:stop])
                find = shape.run if in_runs else shape.one
            elif verdicts.get(found[1]) is False or not self._verdict(shape, found[1]):
                stop = found.end()
                self._steps += 1
            else:
                stop = found.end()
                parts += shape.split(block, at, stop) if in_runs else [found[0]]
            at = stop
        if at != end or len(parts) > number:
            raise FormatError("it is truncated or corrupt: an Avro block doesn't end with its last record")
        self._seen += number
        self._kept += len(parts)
        return len(parts), b"".join(parts)

    def _verdict(self, shape: RecordShape, stored: bytes) -> bool:
        known = self._verdicts.get(stored)
        if known is None:
            known = self._verdicts[stored] = self._wanted(*shape.values(stored))
        return known


class RecordShape:
    """The sizes that the fields of one schema's records had so far. ``names``: the fields to return."""

    def __init__(self, record: AvroType, names: tuple[str, ...], fixed: Mapping[str, tuple[int, ...]]) -> None:
        self._record = record
        self._fixed = fixed
        self._sizes: dict[Path, dict[int, None]] = {}
        self.one: Match = lambda block, at: None
        """Finds the record that begins at a position; its first group are the fields, as they are stored."""
        self.run: Match = lambda block, at: None
        """Finds it, and those after it with the same values of the fields."""
        self._compiled = 0
        all_names = [name for name, _ in record.fields]
        self._first = all_names.index(names[0]) if names[0] in all_names else 0
        self._wanted = record.fields[self._first : self._first + len(names)]
        plain = not record.union and all(t.kind in ("bytes", "long") and not t.union for _, t in self._wanted)
        self.is_known = (
            plain and tuple(n for n, _ in self._wanted) == names and all(_is_known(t) for _, t in record.fields)
        )

    def values(self, stored: bytes) -> list[bytes | int]:
        """Return the values of the fields."""
        found: list[bytes | int] = []
        at = 0
        for _, kind in self._wanted:
            number, at = read_long(stored, at)
            if kind.kind == "bytes":
                found.append(stored[at : at + number])
                at += number
            else:
                found.append(number)
        return found

    def learn(self, block: bytes, at: int) -> int:
        """Measure the record that begins at ``at``, and return where it ends; its sizes are known from then."""
        end = self._measure(self._record, block, at, ())
        if self._compiled < _MOST_PATTERNS:
            ahead = end
            for _ in range(_SAMPLE):
                if ahead < len(block):
                    ahead = self._measure(self._record, block, ahead, ())
            self._compile()
        return end

    def split(self, block: bytes, at: int, stop: int) -> Iterator[bytes]:
        """Return the records of a run."""
        while at < stop:
            found = self.one(block, at)
            assert found is not None
            yield found[0]
            at = found.end()

    def _compile(self) -> None:
        fields = [self._field(name, stored, (name,)) for name, stored in self._record.fields]
        last = self._first + len(self._wanted)
        before, wanted, after = (
            b"".join(p) for p in (fields[: self._first], fields[self._first : last], fields[last:])
        )
        self.one = re.compile(b"%b(%b)%b" % (before, wanted, after), re.DOTALL).match
        again = b"(?:%b\\1%b)%b" % (before, after, _MANY)
        self.run = re.compile(b"%b(%b)%b%b" % (before, wanted, after, again), re.DOTALL).match
        self._compiled += 1

    def _measure(self, stored: AvroType, block: bytes, at: int, path: Path) -> int:
        """Return where a value ends, and note its size."""
        if stored.union:
            branch, at = block[at], at + 1
            if stored.nullable and branch == (0 if stored.null_branch == 0 else 2):
                return at
        if stored.kind == "record":
            for name, field in stored.fields:
                at = self._measure(field, block, at, (*path, name))
            return at
        if stored.kind == "long":
            return read_long(block, at)[1]
        if stored.kind == "array":
            return self._measure_array(stored, block, at, path)
        size, at = read_long(block, at)
        if not 0 <= size <= len(block) - at:
            raise IndexError
        self._note(path, size)
        return at + size

    def _measure_array(self, stored: AvroType, block: bytes, at: int, path: Path) -> int:
        assert stored.items is not None
        while True:
            size, at = read_long(block, at)
            if size < 0:  # the number of bytes follows; the expression never matches such an array
                size, (_, at) = -size, read_long(block, at)
            if size > len(block) - at:
                raise IndexError
            self._note(path, size)
            if not size:
                return at
            for _ in range(size):
                at = self._measure(stored.items, block, at, (*path, "[]"))

    def _note(self, path: Path, size: int) -> None:
        self._sizes.setdefault(path, {})[size] = None

    def _fields(self, record: AvroType, path: Path) -> bytes:
        return b"".join(self._field(name, stored, (*path, name)) for name, stored in record.fields)

    def _field(self, name: str, stored: AvroType, path: Path) -> bytes:
        if len(path) == 1 and name in self._fixed and not stored.union:
            return b"(?:" + b"|".join(re.escape(write_long(n)) for n in self._fixed[name]) + b")"
        return self._value(stored, path)

    def _value(self, stored: AvroType, path: Path) -> bytes:
        value = self._plain(stored, path)
        if not stored.union:
            return value
        branch, null = (rb"\x02", rb"\x00") if stored.null_branch == 0 else (rb"\x00", rb"\x02")
        return b"(?:" + null + b"|" + branch + value + b")" if stored.nullable else branch + value

    def _plain(self, stored: AvroType, path: Path) -> bytes:
        if stored.kind == "record":
            return self._fields(stored, path)
        if stored.kind == "long":
            return _LONG
        sizes = self._sizes.get(path, {})
        if stored.kind != "array":
            return _any_of(re.escape(write_long(n)) + b".{%d}" % n for n in sizes)
        assert stored.items is not None
        item = self._value(stored.items, (*path, "[]"))
        return _any_of(re.escape(write_long(n)) + (b"(?:%b){%d}\\x00" % (item, n) if n else b"") for n in sizes)


def _any_of(patterns: Iterable[bytes]) -> bytes:
    """Return an expression for one of them; of none, one that never matches (so far, the field was always null)."""
    listed = list(patterns)
    return b"(?:" + b"|".join(listed) + b")" if listed else rb"(?!)"


def _is_known(stored: AvroType) -> bool:
    if stored.kind == "record":
        return all(_is_known(t) for _, t in stored.fields)
    if stored.kind == "array":
        return stored.items is not None and stored.items.kind != "array" and _is_known(stored.items)
    return stored.kind in ("long", "bytes", "string")
