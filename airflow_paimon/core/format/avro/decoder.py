"""Decoders of Avro records, generated as Python source for each writer schema.

A manifest entry has thirty fields; interpreting the schema for each of them, or building dictionaries first, is what
makes generic Avro readers slow. The generated function reads straight into the named tuples. No text of the schema
reaches the source but through ``repr``.

What makes it fast: consecutive records repeat themselves. Where the bytes of a group of fields start like the ones read
last, the values read last are taken (Avro values are self-delimiting, so equal bytes are equal values).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import count, groupby
from typing import Any

from airflow_paimon.core.errors import FormatError, UnsupportedFeatureError
from airflow_paimon.core.format.avro.container import read_long
from airflow_paimon.core.format.avro.types import AvroType, parse_avro_schema

_MOST_PARTS = 10_000
Decoder = Callable[[bytes, int, list[Any]], None]
Columns = tuple[tuple[str, tuple[str, ...]], ...]
"""Fields to read: the name of each record with the names of its fields, or ``END``."""
END = ""
"""Stands for where the outermost record ends in its block."""


@dataclass(frozen=True)
class RecordForm:
    """How stored records are converted to values.

    ``schema``: what we expect, as Avro schema in JSON. What a file lacks is None.
    ``classes``: the named tuple of each record, by name; its fields come in the order of the schema, then ``Unknown``:
    the fields that a later release has added and that have a value.
    ``allowed``: the only values that a number may have, by field. ``_VERSION`` has no place in the tuple.
    """

    schema: str
    classes: Mapping[str, type[tuple[Any, ...]]]
    allowed: Mapping[str, tuple[int, ...]]

    def __hash__(self) -> int:
        return hash(self.schema)

    def stored_fields(self, record: AvroType) -> list[tuple[str, AvroType]]:
        """Return the fields of a record that its named tuple has, in order."""
        return [f for f in record.fields if f[0] != "_VERSION"]


def decode_records(schema: str, blocks: Iterable[tuple[int, bytes]], form: RecordForm) -> list[Any]:
    """Decode blocks of a container file with this schema: (number of records, their bytes).

    To be called within ``naming``.

    Raises:
        FormatError: truncated, corrupt, or without a field that must be there.
        UnsupportedFeatureError: a later format version.
    """
    records: list[Any] = []
    decode = _decoder(schema, form)
    for number, block in blocks:
        decode(block, number, records)
    return records


def decode_columns(
    schema: str, blocks: Iterable[tuple[int, bytes]], form: RecordForm, columns: Columns
) -> list[list[Any]]:
    """Decode some fields of blocks of a container file: a list of each, in the order of ``columns``.

    The other fields are stepped over, and no tuples are built, which the garbage collector would follow. Otherwise as
    ``decode_records``.
    """
    out: list[list[Any]] = [[] for _, names in columns for _ in names]
    decode = _decoder(schema, form, columns)
    for number, block in blocks:
        decode(block, number, out)
    return out


@contextmanager
def naming(name: str | None) -> Iterator[None]:
    """Give the errors within the name of the file, and all that damage can cause one class."""
    prefix = f"{name}: " if name else ""
    try:
        yield
    except FormatError as e:
        raise FormatError(prefix + e.message) from None
    except UnsupportedFeatureError as e:
        raise UnsupportedFeatureError(prefix + e.message) from None
    except (IndexError, struct.error):
        raise FormatError(f"{prefix}it is truncated or corrupt") from None
    except ValueError as e:
        # Invalid UTF-8, or bytes equal to the initial placeholder of a repeated group (see ``memos``).
        raise FormatError(f"{prefix}it is corrupt: {e}") from None


@lru_cache(maxsize=64)
def _decoder(writer_schema: str, form: RecordForm, columns: Columns | None = None) -> Decoder:
    source, wanted = _Source(form), parse_avro_schema(form.schema)
    if columns is not None:
        source.columns = {record: dict.fromkeys(names, "") for record, names in columns}
        wanted = _only(wanted, {*form.allowed, *(n for _, names in columns for n in names)}, source.columns)
    source.record_loop(parse_avro_schema(writer_schema), wanted)
    decode: Decoder = source.compile()["decode"]
    return decode


def _only(record: AvroType, names: Collection[str], records: Collection[str]) -> AvroType:
    """Return the type without the fields and nested records that are not asked for."""
    fields = [(n, _only(t, names, records)) for n, t in record.fields if n in names or t.name in records]
    return replace(record, fields=tuple(fields))


@dataclass
class _Source:
    """``columns``: the variables that hold the fields to read, by record and field; None where records are built."""

    form: RecordForm
    columns: dict[str, dict[str, str]] | None = None
    lines: list[str] = field(default_factory=list)
    constants: dict[str, Any] = field(default_factory=dict)
    memos: list[str] = field(default_factory=list)
    depth: int = 2
    numbers: Iterator[int] = field(default_factory=count)

    def new(self, prefix: str = "v") -> str:
        return f"{prefix}{next(self.numbers)}"

    def constant(self, value: Any) -> str:
        name = self.new("c")
        self.constants[name] = value
        return name

    def emit(self, *lines: str) -> None:
        self.lines += ["    " * self.depth + line for line in lines]

    def null_in_required(self, name: str) -> None:
        self.emit(f"raise FormatError({f'its field {name} is null'!r})")

    def compile(self) -> dict[str, Any]:
        namespace: dict[str, Any] = {
            "tail": _long_tail, "array_size": _array_size, "FormatError": FormatError, "refuse": _refuse,
            "float": struct.Struct("<f").unpack_from, "double": struct.Struct("<d").unpack_from,
            **self.constants,
        }  # fmt: skip
        exec("\n".join(self.lines), namespace)
        return namespace

    def record_loop(self, stored: AvroType, wanted: AvroType) -> None:
        if stored.kind != "record":
            raise FormatError("its Avro schema is not a record")
        if stored.parts > _MOST_PARTS:
            raise FormatError(f"its Avro schema has {stored.parts:,} parts, where metadata has less than a hundred")
        if stored.union:
            self.branch(stored, lambda: self.null_in_required("record"), lambda: None)
        value = self.record(stored, wanted, outermost=True)
        start = [f"{m}, {m}_values = b'\\xff' * 99, ()" for m in self.memos]
        if self.columns is None:
            self.emit(f"append({value})")
            start += ["new = tuple.__new__", "append = out.append"]
        for i, variable in enumerate(v for names in (self.columns or {}).values() for v in names.values()):
            self.emit(f"append{i}({variable})")
            start.append(f"append{i} = out[{i}].append")
        body, self.lines, self.depth = self.lines, ["def decode(b, number, out):"], 1
        self.emit("p = 0", *start, "for _ in range(number):")
        self.lines += body
        torn = "it is truncated or corrupt: an Avro block doesn't end with its last record"
        self.emit(f"if p != len(b): raise FormatError({torn!r})")

    def record(self, stored: AvroType, wanted: AvroType, *, outermost: bool = False) -> str:
        """Emit code that reads a record; returns the expression of its named tuple."""
        own = dict(wanted.fields)
        got = self.fields(stored, own, keep=self.columns is None)
        values = {name: self.field_of(name, t, got, wanted.name) for name, t in self.form.stored_fields(wanted)}
        if outermost:
            for name, allowed in self.form.allowed.items():
                if name in got:
                    self.emit(f"if {got[name]} not in {allowed!r}: refuse({name!r}, {got[name]}, {allowed!r})")
        if self.columns is not None:
            values[END] = "p"
            self.columns[wanted.name] = {name: values[name] for name in self.columns[wanted.name]}
            return "None"
        texts = dict(zip((n for n, _ in stored.fields), stored.texts, strict=True))
        unknown = [
            f"((({self.constant(texts[n])}, {value}),) if {value} is not None else ())"
            for n, value in got.items()
            if n not in own
        ]
        values[""] = "+".join(unknown) or "()"
        return f"new({self.constant(self.form.classes[wanted.name])}, ({', '.join(values.values())},))"

    def fields(self, stored: AvroType, own: Mapping[str, AvroType], *, keep: bool) -> dict[str, str]:
        """Emit code that reads the fields of a record. Of those that are not in ``own`` it keeps the bytes, or it
        steps over them.
        """
        got: dict[str, str] = {}
        for grouped, group in groupby(stored.fields, key=lambda f: _memorable(f[1])):
            members = list(group)
            if grouped:
                read = self.memo(members, own, keep)
            else:
                read = [self.member(t, own.get(n), n, keep) for n, t in members]
            got.update(zip((name for name, _ in members), read, strict=True))
        return got

    def field_of(self, name: str, wanted: AvroType, got: dict[str, str], record: str) -> str:
        if name in got:
            return got[name]
        if not wanted.nullable:
            raise FormatError(f"its records lack the field {name} of {record}")
        return "None"

    def memo(self, members: list[tuple[str, AvroType]], own: Mapping[str, AvroType], keep: bool) -> list[str]:
        """Read fields that tend to repeat: if the bytes equal the previous record's, its values are reused."""
        memo = self.new("m")
        self.memos.append(memo)
        names = [self.new() for _ in members]
        joined = ", ".join(names) + ","
        self.emit(f"if b.startswith({memo}, p):", f"    p += len({memo})", f"    {joined} = {memo}_values", "else:")
        self.depth += 1
        start = self.new("start")  # a new name: a group may hold a record with groups inside
        self.emit(f"{start} = p")
        for variable, (name, stored) in zip(names, members, strict=True):
            self.emit(f"{variable} = {self.member(stored, own.get(name), name, keep)}")
        self.emit(f"{memo} = b[{start}:p]", f"{memo}_values = ({joined})")
        self.depth -= 1
        return names

    def member(self, stored: AvroType, wanted: AvroType | None, name: str, keep: bool) -> str:
        return self.kept(stored, name) if wanted is None and keep else self.value(stored, wanted, name)

    def kept(self, stored: AvroType, name: str) -> str:
        """Emit code that takes a value as it is stored, None for a null; returns the variable that holds it."""
        start, variable = self.new("start"), self.new()
        self.emit(f"{start} = p")

        def take() -> None:
            self.skip(stored, name)
            self.emit(f"{variable} = b[{start}:p]")

        if stored.union:
            self.branch(stored, lambda: self.emit(f"{variable} = None"), take)
        else:
            take()
        return variable

    def value(self, stored: AvroType, wanted: AvroType | None, name: str) -> str:
        """Emit code that reads one value, or steps over it; returns the expression that holds it."""
        if wanted is not None and stored.kind != wanted.kind:
            raise FormatError(f"its field {name} is of type {stored.kind}, {wanted.kind} expected")
        if wanted is None:
            if stored.union:
                self.branch(stored, lambda: self.emit("pass"), lambda: self.skip(stored, name))
            else:
                self.skip(stored, name)
            return "None"
        if not stored.union:
            return self.plain(stored, wanted, name)
        variable = self.new()

        def null() -> None:
            if wanted.nullable:
                self.emit(f"{variable} = None")
            else:
                self.null_in_required(name)

        def other() -> None:
            self.emit(f"{variable} = {self.plain(stored, wanted, name)}")

        self.branch(stored, null, other)
        return variable

    def skip(self, stored: AvroType, name: str) -> None:
        """Emit code that steps over a value without making it."""
        if stored.kind == "record":
            self.fields(stored, {}, keep=False)
        elif stored.kind == "map":  # stored as an array of pairs
            assert stored.items is not None
            pair = AvroType("record", fields=(("key", AvroType("string")), ("value", stored.items)))
            self.plain(AvroType("array", items=pair), None, name)
        elif stored.kind == "long":
            self.emit("while b[p] > 127:", "    p += 1", "p += 1")
        elif stored.kind in ("bytes", "string"):
            size = self.new()
            self.long(size)
            self.emit(f"p += {size} >> 1")
        else:
            self.plain(stored, None, name)

    def branch(self, stored: AvroType, null: Callable[[], None], other: Callable[[], None]) -> None:
        """Emit code that reads the branch number of a union (zigzag: 0 is stored as 0, 1 as 2)."""
        self.emit("y = b[p]", "p += 1")
        value_code = 0 if stored.null_branch != 0 else 2
        self.emit(f"if y == {value_code}:")
        self.depth += 1
        before = len(self.lines)
        other()
        if len(self.lines) == before:
            self.emit("pass")
        self.depth -= 1
        if stored.nullable:
            self.emit(f"elif y == {2 - value_code}:")
            self.depth += 1
            null()
            self.depth -= 1
        self.emit("else:", "    raise IndexError")

    def plain(self, stored: AvroType, wanted: AvroType | None, name: str) -> str:
        if stored.kind == "record":
            assert wanted is not None
            return self.record(stored, wanted)
        variable = self.new()
        if stored.kind == "long":
            self.long(variable)
            self.emit(f"{variable} = ({variable} >> 1) ^ -({variable} & 1)")
        elif stored.kind in ("bytes", "string"):
            self.long(variable)
            decode = ".decode()" if stored.kind == "string" else ""
            self.emit(f"q = p + ({variable} >> 1)", f"{variable} = b[p:q]{decode}", "p = q")
        elif stored.kind == "array":
            read = self.constant(_array_reader(stored, wanted, self.form))
            self.emit("if b[p] == 0:", f"    {variable} = ()", "    p += 1", "else:",
                      f"    {variable}, p = {read}(b, p)")  # fmt: skip
        else:
            self.fixed(variable, stored, name)
        return variable

    def long(self, variable: str) -> None:
        self.emit(f"{variable} = b[p]", "p += 1")
        self.emit(f"if {variable} > 127:", f"    {variable}, p = tail(b, p, {variable})")

    def fixed(self, variable: str, stored: AvroType, name: str) -> None:
        sizes = {"null": 0, "boolean": 1, "float": 4, "double": 8, "fixed": stored.size}
        if stored.kind not in sizes:
            raise FormatError(f"its field {name} is of type {stored.kind}, which is not supported")
        reads = {"null": "None", "boolean": "b[p] != 0", "fixed": f"b[p:p + {stored.size}]"}
        read = reads.get(stored.kind, f"{stored.kind}(b, p)[0]")
        self.emit(f"{variable} = {read}", f"p += {sizes[stored.kind]}")


def _memorable(stored: AvroType) -> bool:
    """Fields that are null or the same in most records, or costly to read."""
    return stored.kind == "array" or (stored.nullable and stored.logical is None)


ArrayReader = Callable[[bytes, int], tuple[tuple[Any, ...], int]]


def _array_reader(stored: AvroType, wanted: AvroType | None, form: RecordForm) -> ArrayReader:
    """Generate the reader of an array: blocks of items, each with its number, negative if its size follows."""
    assert stored.items is not None
    source = _Source(form, depth=3)
    value = source.value(stored.items, wanted.items if wanted else None, "items")
    source.emit(f"append({value})")
    body, source.lines, source.depth = source.lines, ["def read(b, p):"], 1
    source.emit("items = []", "append = items.append", "new = tuple.__new__")
    source.emit(*(f"{m}, {m}_values = b'\\xff' * 99, ()" for m in source.memos))
    source.emit("while True:")
    source.depth = 2
    # Fast path: a small number of items is one byte. Larger ones, and blocks with a size, take the slow path.
    source.emit("n = b[p]", "if n > 127 or n & 1:", "    n, p = array_size(b, p)", "else:", "    n >>= 1", "    p += 1")
    source.emit("if not n:", "    return tuple(items), p", "for _ in range(n):")
    source.lines += body
    read: ArrayReader = source.compile()["read"]
    return read


def _array_size(data: bytes, position: int) -> tuple[int, int]:
    number, position = read_long(data, position)
    if number < 0:
        number = -number
        _, position = read_long(data, position)
    if number > len(data) - position:
        raise IndexError
    return number, position


def _long_tail(data: bytes, position: int, value: int) -> tuple[int, int]:
    """Read the rest of a number whose first byte, ``value``, has the continuation bit; not yet zigzag-decoded.

    Unrolled for typical sizes, row counts and times; the continuation bits are removed in one subtraction.
    """
    b = data[position]
    if b < 0x80:
        return value + (b << 7) - 0x80, position + 1
    c = data[position + 1]
    if c < 0x80:
        return value + (b << 7) + (c << 14) - 0x4080, position + 2
    d = data[position + 2]
    if d < 0x80:
        return value + (b << 7) + (c << 14) + (d << 21) - 0x204080, position + 3
    e = data[position + 3]
    if e < 0x80:
        return value + (b << 7) + (c << 14) + (d << 21) + (e << 28) - 0x10204080, position + 4
    zigzag, position = read_long(data, position - 1)
    return (zigzag << 1) ^ (zigzag >> 63), position


def _refuse(name: str, value: int, allowed: tuple[int, ...]) -> None:
    known = " or ".join(map(str, allowed))
    if name == "_VERSION":
        raise UnsupportedFeatureError(f"its records are of format version {value}, only {known} is known")
    raise FormatError(f"its field {name} is {value}, {known} expected")
