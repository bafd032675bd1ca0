"""Encoders of Avro records, generated as Python source for our own schemas (why: see ``decoder``)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count
from typing import Any

from airflow_paimon.core.errors import FormatError, UnsupportedFeatureError
from airflow_paimon.core.format.avro.container import BlockSize, no_keys, write_container, write_long
from airflow_paimon.core.format.avro.decoder import RecordForm
from airflow_paimon.core.format.avro.types import AvroType, Unknown, avro_text, parse_avro_schema

BLOCK_BYTES = 64 * 1024
"""Avro's default is 16,000 bytes; larger blocks compress better, and every reader accepts them."""

Encoder = Callable[[bytearray, Any], None]
Further = tuple[tuple[str, str], ...]
"""Fields of later releases that are written too: the name of the record, and the field's JSON."""


class _OneMore(Exception):
    """A record has a field that the schema lacks so far."""

    def __init__(self, record: str, unknown: Unknown) -> None:
        self.record, self.unknown = record, unknown


def encode_records(
    records: Iterable[Any], form: RecordForm, describe: Callable[[list[BlockSize]], Mapping[str, bytes]] = no_keys
) -> bytes:
    """Return a container file of records, given as named tuples. The same records give the same bytes.

    ``describe``: see ``write_container``.

    Fields that a later release has added to some of them become part of the schema; the other records have none there.

    Raises:
        OverflowError: a number of more than 64 bits.
        UnsupportedFeatureError: a field of a later release that can't be kept.
    """
    rows = list(records)
    further: Further = ()
    while True:
        try:
            return write_container(_schema(form, further), _blocks(rows, _encoder(form, further)), describe)
        except _OneMore as more:
            further += tuple((more.record, text) for text, _ in more.unknown)


def _schema(form: RecordForm, further: Further) -> str:
    if not further:
        return form.schema
    whole = json.loads(form.schema)
    for record, text in further:
        fields = _record(whole, record)["fields"]
        field_ = json.loads(text)
        if field_["name"] in {f["name"] for f in fields}:
            raise _lost(field_["name"], "has two types in the files to join")
        fields.append(field_)
    schema = avro_text(whole)
    try:
        parse_avro_schema(schema)
    except FormatError as error:
        raise _lost(json.loads(further[-1][1])["name"], f"can't be rewritten ({error.message})") from None
    return schema


def _record(schema: Any, name: str) -> Any:
    """Find a record by its name, None if it is not within this schema."""
    if isinstance(schema, list):
        return next((found for part in schema if (found := _record(part, name)) is not None), None)
    if not isinstance(schema, dict):
        return None
    if schema.get("type") == "record":
        if schema["name"] == name:
            return schema
        return _record([f["type"] for f in schema["fields"]], name)
    return _record([schema.get("type"), schema.get("items")], name)


def _lost(name: str, why: str) -> UnsupportedFeatureError:
    return UnsupportedFeatureError(
        f"The field {name} of a later Paimon release {why}; change this table with that release"
    )


def _blocks(records: Iterable[Any], encode: Encoder) -> Iterator[tuple[int, bytes]]:
    out = bytearray()
    number = 0
    for record in records:
        encode(out, record)
        number += 1
        if len(out) >= BLOCK_BYTES:
            yield number, bytes(out)
            out.clear()
            number = 0
    if number:
        yield number, bytes(out)


@lru_cache(maxsize=16)
def _encoder(form: RecordForm, further: Further) -> Encoder:
    source = _Source(form, further)
    source.lines = ["def encode(out, r):", "    append = out.append"]
    source.record(parse_avro_schema(form.schema), "r")
    namespace: dict[str, Any] = {
        "long": write_long, "table": _small_numbers(), "OneMore": _OneMore, "lost": _lost,
    }  # fmt: skip
    exec("\n".join(source.lines), namespace)
    encode: Encoder = namespace["encode"]
    return encode


@lru_cache(maxsize=1)
def _small_numbers() -> list[bytes]:
    return [write_long(n) for n in range(8192)]


@dataclass
class _Source:
    form: RecordForm
    further: Further
    lines: list[str] = field(default_factory=list)
    depth: int = 1
    numbers: Iterator[int] = field(default_factory=count)

    def emit(self, *lines: str) -> None:
        self.lines += ["    " * self.depth + line for line in lines]

    def new(self) -> str:
        return f"v{next(self.numbers)}"

    def record(self, stored: AvroType, value: str) -> None:
        fields = self.form.stored_fields(stored)
        names = [self.new() for _ in fields]
        unknown = self.new()
        self.emit(f"{', '.join(names)}, {unknown}, = {value}")
        if len(fields) < len(stored.fields):
            self.emit(f"out += {write_long(self.form.allowed['_VERSION'][0])!r}")
        for name, (_, avro_type) in zip(names, fields, strict=True):
            self.value(avro_type, name)
        added = [text for record, text in self.further if record == stored.name]
        if not added:
            self.emit(f"if {unknown}: raise OneMore({stored.name!r}, {unknown})")
            return
        self.emit(f"{unknown} = dict({unknown})")
        for text in added:
            stored_value = self.new()
            why = "has a value in every record, which those of this release have not"
            self.emit(f"{stored_value} = {unknown}.pop({text!r}, {_null_of(text)!r})")
            self.emit(f"if {stored_value} is None: raise lost({json.loads(text)['name']!r}, {why!r})")
            self.emit(f"out += {stored_value}")
        self.emit(f"if {unknown}: raise OneMore({stored.name!r}, tuple({unknown}.items()))")

    def value(self, stored: AvroType, value: str) -> None:
        if not stored.nullable:
            self.plain(stored, value)
            return
        null, other = (0, 2) if stored.null_branch == 0 else (2, 0)
        self.emit(f"if {value} is None:", f"    append({null})", "else:", f"    append({other})")
        self.depth += 1
        self.plain(stored, value)
        self.depth -= 1

    def plain(self, stored: AvroType, value: str) -> None:
        if stored.kind == "long":
            self.emit(f"out += table[{value}] if 0 <= {value} < 8192 else long({value})")
        elif stored.kind in ("bytes", "string"):
            if stored.kind == "string":
                self.emit(f"{value} = {value}.encode()")
            self.emit(f"n = len({value})", "out += table[n] if n < 8192 else long(n)", f"out += {value}")
        elif stored.kind == "record":
            self.record(stored, value)
        else:
            assert stored.kind == "array" and stored.items is not None
            item = self.new()
            self.emit(f"if {value}:", f"    out += long(len({value}))", f"    for {item} in {value}:")
            self.depth += 2
            self.value(stored.items, item)
            self.depth -= 2
            self.emit("append(0)")


def _null_of(text: str) -> bytes | None:
    """Return how a field stores that it has no value; None: it always has one."""
    whole = parse_avro_schema(avro_text({"type": "record", "name": "one", "fields": [json.loads(text)]}))
    avro_type = whole.fields[0][1]
    if avro_type.kind == "null":
        return b""
    return None if avro_type.null_branch is None else write_long(avro_type.null_branch)
