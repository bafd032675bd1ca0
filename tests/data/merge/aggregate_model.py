"""Paimon's aggregate functions, one record after the other, in plain Python: what the vectorised ones must equal."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_paimon.core.table.merge_options import AggregateOptions

EXACT = Context(prec=100)


class Refused(Exception):
    """Paimon, or this package, refuses the fold."""


@dataclass
class Model:
    options: AggregateOptions
    kind: pa.DataType
    initialized: bool = False

    def fold(self, records: Sequence[tuple[Any, str]]) -> Any:
        """Each record is its value and what happens to it: add, late, retract, initial, skip."""
        self.initialized = False
        held: Any = None
        for value, action in records:
            if action == "initial":
                held = value
            elif action == "retract":
                if not self.options.ignore_retract:
                    held = self.retract(held, value)
            elif action == "late" and (self.options.function != "collect" or self.options.ignore_retract):
                held = self.add(value, held)
            elif action != "skip":
                held = self.add(held, value)
        if pa.types.is_decimal(self.kind) and self.kind.precision <= 9 and held is not None:
            self._check(-(2**31) <= unscaled(held) < 2**31)
        return held

    def add(self, held: Any, value: Any) -> Any:
        return getattr(self, f"add_{self.options.function}")(held, value)

    def retract(self, held: Any, value: Any) -> Any:
        function: Callable[[Any, Any], Any] | None = getattr(self, f"retract_{self.options.function}", None)
        if function is None:
            raise Refused
        return function(held, value)

    @staticmethod
    def _check(condition: bool) -> None:
        if not condition:
            raise Refused

    # Numbers

    def add_sum(self, held: Any, value: Any) -> Any:
        if held is None or value is None:
            return value if held is None else held
        return self._number(held, value, lambda a, b: a + b)

    def retract_sum(self, held: Any, value: Any) -> Any:
        if value is None:
            return held
        if held is None:
            if pa.types.is_decimal(self.kind):
                return self._precise(EXACT.minus(value))
            return self._fits(-value)
        return self._number(held, value, lambda a, b: a - b)

    def add_product(self, held: Any, value: Any) -> Any:
        if held is None or value is None:
            return value if held is None else held
        if pa.types.is_decimal(self.kind):
            return self._precise(EXACT.multiply(held, value))
        return self._number(held, value, lambda a, b: a * b)

    def retract_product(self, held: Any, value: Any) -> Any:
        if held is None or value is None:
            return held
        if pa.types.is_floating(self.kind):
            width = np.float32 if self.kind == pa.float32() else np.float64
            with np.errstate(all="ignore"):
                return float(width(held) / width(value))
        self._check(value != 0)
        if pa.types.is_decimal(self.kind):
            rest = (Fraction(held) / Fraction(value)).denominator
            while rest % 10 in (2, 4, 5, 6, 8, 0):
                rest //= 5 if rest % 5 == 0 else 2
            self._check(rest == 1)
            return self._precise(EXACT.divide(held, value))
        return self._fits(int(Decimal(held) / Decimal(value)) if abs(held) < 2**50 else _truncated(held, value))

    def _number(self, held: Any, value: Any, operation: Callable[[Any, Any], Any]) -> Any:
        if pa.types.is_floating(self.kind):
            width = np.float32 if self.kind == pa.float32() else np.float64
            with np.errstate(all="ignore"):
                return float(operation(width(held), width(value)))
        if pa.types.is_decimal(self.kind):
            result = Decimal(operation(unscaled(held), unscaled(value))).scaleb(-self.kind.scale, EXACT)
            if self.kind.precision <= 18:
                return result if -(2**63) <= unscaled(result) < 2**63 else None
            return self._precise(result)
        return self._fits(operation(held, value))

    def _fits(self, value: Any) -> Any:
        if pa.types.is_floating(self.kind):
            return value
        bits = self.kind.bit_width
        self._check(-(2 ** (bits - 1)) <= value < 2 ** (bits - 1))
        return value

    def _precise(self, value: Decimal) -> Decimal | None:
        rounded = value.quantize(Decimal(1).scaleb(-self.kind.scale), ROUND_HALF_UP, EXACT)
        return rounded if abs(unscaled(rounded)) < 10**self.kind.precision else None

    # Choosing

    def add_max(self, held: Any, value: Any) -> Any:
        if held is None or value is None:
            return value if held is None else held
        return value if order(held) < order(value) else held

    def add_min(self, held: Any, value: Any) -> Any:
        if held is None or value is None:
            return value if held is None else held
        return held if order(held) < order(value) else value

    def add_last_value(self, held: Any, value: Any) -> Any:
        return value

    def retract_last_value(self, held: Any, value: Any) -> Any:
        return None

    def add_last_non_null_value(self, held: Any, value: Any) -> Any:
        return held if value is None else value

    def retract_last_non_null_value(self, held: Any, value: Any) -> Any:
        return held if value is None else None

    def add_first_value(self, held: Any, value: Any) -> Any:
        if not self.initialized:
            self.initialized = True
            return value
        return held

    def add_first_non_null_value(self, held: Any, value: Any) -> Any:
        if not self.initialized and value is not None:
            self.initialized = True
            return value
        return held

    def add_bool_and(self, held: Any, value: Any) -> Any:
        if held is None or value is None:
            return value if held is None else held
        return held and value

    def add_bool_or(self, held: Any, value: Any) -> Any:
        if held is None or value is None:
            return value if held is None else held
        return held or value

    # Text

    def add_listagg(self, held: Any, value: Any) -> Any:
        if is_blank(value):
            return held
        if is_blank(held):
            return value
        delimiter = self.options.delimiter
        if not self.options.distinct:
            return held + delimiter + value
        known = held.split(delimiter)
        for part in value.split(delimiter):
            if not is_blank(part) and part not in known:
                known.append(part)
                held += delimiter + part
        return held

    # Collections

    def add_collect(self, held: Any, value: Any) -> Any:
        if held is None and value is None:
            return None
        if not self.options.distinct:
            return (held or []) + (value or [])
        if pa.types.is_nested(self.kind.value_type):
            out = list(held or [])
            for one in value or []:
                if one not in out:
                    out.append(one)
            return out
        out = []
        for one in (held or []) + (value or []):
            if isinstance(one, bytes) or one not in out:
                out.append(one)
        return out

    def retract_collect(self, held: Any, value: Any) -> Any:
        if held is None:
            return None
        gone = [one for one in value or [] if not isinstance(one, bytes)]
        out = []
        for one in held:
            if one in gone:
                gone.remove(one)
            else:
                out.append(one)
        return out

    def add_merge_map(self, held: Any, value: Any) -> Any:
        if held is None or value is None:
            return value if held is None else held
        return list((dict(held) | dict(value)).items())

    def retract_merge_map(self, held: Any, value: Any) -> Any:
        if held is None or not value:
            return held
        return [(k, v) for k, v in held if k not in dict(value)]

    def add_merge_map_with_keytime(self, held: Any, value: Any) -> Any:
        if held is None or value is None:
            return value if held is None else held
        out, time = dict(held), self.options.time_field
        for key, row in value:
            if row is None:
                out.pop(key, None)
                continue
            if row[time] is None:
                continue
            known = out.get(key)
            if known is None or known[time] is None or utf16(row[time]) > utf16(known[time]):
                out[key] = row
        return list(out.items())

    def _keyed(self, row: Any) -> tuple[Any, ...] | None:
        key = tuple(row[name] for name in self.options.nested_key)
        if None in key and self.options.null_strategy == "error":
            raise Refused
        return None if None in key and self.options.null_strategy == "ignore" else key

    def add_nested_update(self, held: Any, value: Any) -> Any:
        if value is None:
            return held
        limit = self.options.count_limit
        if not self.options.nested_key:
            if held is None:
                return [r for r in value if r is not None][:limit]
            if len(held) >= limit:
                return held
            return [r for r in held if r is not None] + [r for r in value if r is not None][: limit - len(held)]
        out: dict[Any, Any] = {}
        for row, limited in [*((r, False) for r in held or []), *((r, True) for r in value)]:
            key = None if row is None else self._keyed(row)
            if key is None:
                continue
            if key in out:
                if self._sequence(row) >= self._sequence(out[key]):
                    out[key] = row
            elif not limited or len(out) < limit:
                out[key] = row
        return list(out.values())

    def _sequence(self, row: Any) -> Any:
        return [(row[n] is not None, row[n] or 0) for n in self.options.nested_sequence]

    def retract_nested_update(self, held: Any, value: Any) -> Any:
        if held is None or value is None:
            return held
        rows = [r for r in held if r is not None]
        gone = [r for r in value if r is not None]
        if not self.options.nested_key:
            return [r for r in rows if r not in gone]
        keyed = {k: r for r in rows if (k := self._keyed(r)) is not None}
        for row in gone:
            key = self._keyed(row)
            if key is not None:
                keyed.pop(key, None)
        return list(keyed.values())

    def add_nested_partial_update(self, held: Any, value: Any) -> Any:
        if value is None:
            return held
        out: dict[Any, Any] = {}
        for row in [r for r in (held or []) + value if r is not None]:
            key = self._keyed(row)
            if key is not None:
                known = out.setdefault(key, dict.fromkeys(row))
                known.update({k: v for k, v in row.items() if v is not None})
        return list(out.values())


def unscaled(value: Decimal) -> int:
    sign, digits, _ = value.as_tuple()
    number = int("".join(map(str, digits)))
    return -number if sign else number


def utf16(text: str) -> bytes:
    """What Java compares of strings."""
    return text.encode("utf-16-be")


def is_blank(text: str | None) -> bool:
    """By Java's Character.isWhitespace, of the characters that the tests use."""
    return text is None or not text.strip(" \t\n\u2003")


def order(value: Any) -> Any:
    """Order by Java's rules: NaN is the greatest float, -0.0 below 0.0, text and bytes by unsigned bytes."""
    if isinstance(value, float):
        return (1, 0.0, 0.0) if math.isnan(value) else (0, value, math.copysign(1.0, value))
    return value.encode() if isinstance(value, str) else value


def _truncated(held: int, value: int) -> int:
    quotient = abs(held) // abs(value)
    return -quotient if (held < 0) != (value < 0) else quotient


def comparable(value: Any, *, ordered: bool = True) -> Any:
    """Return a value that tests can compare: floats by their bits, lists without order where Paimon has none."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else struct.pack(">d", value)
    if isinstance(value, list):
        return value if ordered else sorted(map(repr, value))
    return value
