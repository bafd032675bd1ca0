"""Encoders of Avro records, generated as Python source for our own schemas (why: see ``decoder``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count
from typing import Any

from airflow_paimon.core.format.avro.container import write_container, write_long
from airflow_paimon.core.format.avro.decoder import RecordForm
from airflow_paimon.core.format.avro.types import AvroType, parse_avro_schema

BLOCK_BYTES = 64 * 1024
"""Avro's default is 16,000 bytes; larger blocks compress better, and every reader accepts them."""

Encoder = Callable[[bytearray, Any], None]


def encode_records(records: Iterable[Any], form: RecordForm) -> bytes:
    """Return a container file of records, given as named tuples. The same records give the same bytes.

    Raises:
        OverflowError: a number of more than 64 bits.
    """
    return write_container(form.schema, _blocks(records, _encoder(form)))


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
def _encoder(form: RecordForm) -> Encoder:
    source = _Source(form, parse_avro_schema(form.schema))
    source.lines = ["def encode(out, r):", "    append = out.append"]
    source.record(source.outermost, "r")
    namespace: dict[str, Any] = {"long": write_long, "table": [write_long(n) for n in range(8192)]}
    exec("\n".join(source.lines), namespace)
    encode: Encoder = namespace["encode"]
    return encode


@dataclass
class _Source:
    form: RecordForm
    outermost: AvroType
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
        extra = ", _" if self.form.report_unknown and stored is self.outermost else ""
        self.emit(f"{', '.join(names)}{extra}, = {value}")
        if len(fields) < len(stored.fields):
            self.emit(f"out += {write_long(self.form.allowed['_VERSION'][0])!r}")
        for name, (_, avro_type) in zip(names, fields, strict=True):
            self.value(avro_type, name)

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
