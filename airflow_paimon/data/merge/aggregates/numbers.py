"""``sum`` and ``product``, exactly as Paimon computes them: an overflow is an error and never wraps.

Integers must fit their type after every record. Decimals of up to 18 digits are added as long integers, whatever
their precision says; a sum of longer ones with more digits than the precision becomes null, and the next record
starts anew. Floats are added in merge order, because the order shows in the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_paimon.data.merge.aggregates.aggregate import Aggregate
from airflow_paimon.data.merge.aggregates.records import Records, nothing, scatter
from airflow_paimon.data.merge.sort_keys import decimal_words
from airflow_paimon.data.merge.versions import Indices, Mask

WORD_DIGITS = 18
"""Digits that always fit one word: Paimon computes decimals of up to this precision as long integers."""
_MASK = 2**64 - 1


def low_words(values: pa.Array) -> Indices:
    """Return the unscaled values of a decimal column without nulls, each of which fits 64 bits."""
    return decimal_words(values)[:, 0]


def to_ints(values: pa.Array) -> list[int]:
    """Return the unscaled values of a decimal column; those of nulls are undefined."""
    words = decimal_words(values)
    return [(high << 64) | (low & _MASK) for low, high in words.tolist()]


def from_words(low: Indices, data_type: pa.DataType, valid: Mask) -> pa.Array:
    """Return decimals, of any number of digits, from unscaled values."""
    return _from_words(np.stack([low, low >> 63], axis=1), data_type, valid)


def from_ints(values: Sequence[int | None], data_type: pa.DataType) -> pa.Array:
    """Return decimals from unscaled values of up to 128 bits."""
    low = np.array([(v or 0) & _MASK for v in values], np.uint64).view(np.int64)
    high = np.array([(v or 0) >> 64 for v in values], np.int64)
    return _from_words(np.stack([low, high], axis=1), data_type, np.array([v is not None for v in values], bool))


def _from_words(words: Indices, data_type: pa.DataType, valid: Mask) -> pa.Array:
    bits = pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(data_type, len(valid), [bits, pa.py_buffer(np.ascontiguousarray(words))])


_INT_DIGITS = 9
"""Decimals of up to this precision are stored as 32-bit integers."""
_LONG_END = 2**63

Step = Callable[[Any, Any, Mask], Any]
"""One record of many groups: (accumulators, values, which are retracts) to accumulators."""


@dataclass(frozen=True, slots=True)
class Sum(Aggregate):
    """The sum of the values minus the retracted ones."""

    retracts: ClassVar[bool] = True
    skips_nulls: ClassVar[bool] = True

    def _fold(self, records: Records) -> pa.Array:
        kind = records.values.type
        if pa.types.is_floating(kind):
            return pa.array(_by_rank(records, np.asarray(records.values.to_numpy()), _add_floats, negate=True), kind)
        return self._sum_integers(records) if pa.types.is_integer(kind) else self._sum_decimals(records)

    def _sum_integers(self, valid: Records) -> pa.Array:
        kind = valid.values.type
        limits = np.iinfo(kind.to_pandas_dtype())
        prefix, overflows = _prefix_sums(valid, np.asarray(valid.values.to_numpy()).astype(np.int64))
        if (overflows | (prefix < limits.min) | (prefix > limits.max)).any():
            raise self._refused(f"overflows {kind} for a key", "widen the column's type (ALTER TABLE)")
        return pa.array(prefix[valid.ends].astype(limits.dtype), kind)

    def _sum_decimals(self, valid: Records) -> pa.Array:
        kind = valid.values.type
        if kind.precision > WORD_DIGITS:
            total, exact = _sum_long(valid)
        else:
            prefix, overflows = _prefix_sums(valid, low_words(valid.values))
            too_long = valid.retract & (np.abs(low_words(valid.values)) >= 10**kind.precision)
            exact = ~valid.any_of(overflows | too_long)
            total = from_words(prefix[valid.ends], kind, np.ones(valid.groups, bool))
        if not exact.all():
            slow = _sum_rows(valid.of_groups(~exact))
            at = np.where(exact, np.arange(valid.groups), valid.groups + np.cumsum(~exact) - 1)
            total = pa.concat_arrays([total, slow]).take(pa.array(at))
        if kind.precision <= _INT_DIGITS:
            digits = low_words(pc.fill_null(total, pa.scalar(Decimal(0), kind)))
            if ((digits < -(2**31)) | (digits >= 2**31)).any():
                raise self._refused(f"overflows {kind} for a key", "increase the column's precision (ALTER TABLE)")
        return total


def _prefix_sums(valid: Records, values: Indices) -> tuple[Indices, Mask]:
    """Return the sum of each record's group up to this record, and where a step overflowed 64 bits.

    Sums wrap, so the first overflow of a group is found exactly; what comes after it is not used.
    """
    change = np.where(valid.retract, -values, values)
    running = np.cumsum(change)
    before = (running - change)[valid.starts]
    prefix = running - before[valid.group]
    previous = prefix - change
    other = np.where(valid.retract, ~values, values)
    return prefix, ((previous ^ prefix) & (other ^ prefix)) < 0


def _sum_long(valid: Records) -> tuple[pa.Array, Mask]:
    """Return sums of decimals of more than 18 digits, and which of them can't have overflowed on the way."""
    kind = valid.values.type
    wide = pc.cast(valid.values, pa.decimal256(76, kind.scale))
    signed = pc.if_else(pa.array(valid.retract), pc.negate(wide), wide)
    table = pa.table({"group": valid.group, "signed": signed, "size": pc.abs(wide)})
    sums = table.group_by("group", use_threads=False).aggregate([("signed", "sum"), ("size", "sum")])
    limit = pa.scalar(Decimal(1).scaleb(kind.precision - kind.scale), pa.decimal256(76, kind.scale))
    exact = np.asarray(pc.less(sums["size_sum"].combine_chunks(), limit).to_numpy(zero_copy_only=False))
    total = sums["signed_sum"].combine_chunks()
    held = pc.if_else(pa.array(exact), total, pa.scalar(None, total.type))
    return pc.cast(held, kind), exact


def _sum_rows(valid: Records) -> pa.Array:
    """Add record by record: for the groups that may have become null on the way."""
    kind = valid.values.type
    is_word = kind.precision <= WORD_DIGITS
    end = 10**kind.precision
    values, retract = to_ints(valid.values), valid.retract.tolist()
    totals: list[int | None] = []
    for start, last in zip(valid.starts.tolist(), valid.ends.tolist(), strict=True):
        total: int | None = None
        for at in range(start, last + 1):
            change = -values[at] if retract[at] else values[at]
            if total is None:
                total = change if not retract[at] or abs(change) < end else None
                continue
            total += change
            fits = -_LONG_END <= total < _LONG_END if is_word else abs(total) < end
            total = total if fits else None
        totals.append(total)
    return from_ints(totals, kind)


@dataclass(frozen=True, slots=True)
class Product(Aggregate):
    """The product of the values, divided by the retracted ones; integers truncate."""

    retracts: ClassVar[bool] = True

    def _fold(self, records: Records) -> pa.Array:
        begin = records.first_of(records.valid & ~records.retract)[records.group]
        valid, groups = records.kept(records.valid & (begin >= 0) & (np.arange(len(begin)) >= begin))
        if not valid.groups:
            return nothing(records.values, records.groups)
        kind = records.values.type
        if pa.types.is_floating(kind):
            product = pa.array(_by_rank(valid, np.asarray(valid.values.to_numpy()), _multiply_floats), kind)
        else:
            product = self._multiply_exactly(valid)
        return scatter(product, groups, records.groups)

    def _multiply_exactly(self, valid: Records) -> pa.Array:
        """Multiply Python's integers, one call per record: numpy has no exact product of 64 bits."""
        kind = valid.values.type
        is_decimal = pa.types.is_decimal(kind)
        step = np.frompyfunc(self._decimal_step(kind) if is_decimal else self._integer_step(kind), 3, 1)
        raw = to_ints(valid.values) if is_decimal else valid.values.to_pylist()
        values = np.empty(len(raw), object)
        values[:] = raw
        product = _by_rank(valid, values, step).tolist()
        return from_ints(product, kind) if is_decimal else pa.array(product, kind)

    def _integer_step(self, kind: pa.DataType) -> Callable[[int, int, bool], int]:
        limits = np.iinfo(kind.to_pandas_dtype())
        low, high = int(limits.min), int(limits.max)

        def step(total: int, value: int, retract: bool) -> int:
            if retract and value == 0:
                raise self._refused("divides by zero: a record with the value 0 is retracted", "correct that record")
            sign = -1 if (total < 0) != (value < 0) else 1
            product = sign * (abs(total) // abs(value)) if retract else total * value
            if not low <= product <= high:
                raise self._refused(f"overflows {kind} for a key", "widen the column's type (ALTER TABLE)")
            return product

        return step

    def _decimal_step(self, kind: pa.DataType) -> Callable[[int | None, int, bool], int | None]:
        unit, end = 10**kind.scale, 10**kind.precision

        def step(total: int | None, value: int, retract: bool) -> int | None:
            if total is None:
                return None if retract else value
            if retract and not _terminates(total, value):
                raise self._refused("can't retract a record: the quotient has no end", "correct that record")
            product = _half_up(total * unit, value) if retract else _half_up(total * value, unit)
            return product if abs(product) < end else None

        return step


def _terminates(total: int, value: int) -> bool:
    """Return whether total / value has an end as a decimal: only twos and fives are left in the reduced divisor."""
    rest = abs(value) // math.gcd(total, value) if value else 0
    for prime in (2, 5):
        while rest and rest % prime == 0:
            rest //= prime
    return rest == 1


def _half_up(dividend: int, divisor: int) -> int:
    """Divide, rounding halves away from zero."""
    quotient, rest = divmod(abs(dividend), abs(divisor))
    quotient += 2 * rest >= abs(divisor)
    return -quotient if (dividend < 0) != (divisor < 0) else quotient


def _add_floats(total: Any, value: Any, retract: Mask) -> Any:
    return np.where(retract, total - value, total + value)


def _multiply_floats(total: Any, value: Any, retract: Mask) -> Any:
    return np.where(retract, total / value, total * value)


def _by_rank(valid: Records, values: npt.NDArray[Any], step: Step, *, negate: bool = False) -> npt.NDArray[Any]:
    """Fold the first records of all groups, then the second ones and so on: as many steps as the largest group has."""
    totals = values[valid.starts].copy()
    if negate:
        totals = np.where(valid.retract[valid.starts], -totals, totals)
    left = np.arange(valid.groups)
    with np.errstate(all="ignore"):
        for rank in range(1, int(valid.sizes.max())):
            left = left[valid.sizes[left] > rank]
            at = valid.starts[left] + rank
            totals[left] = step(totals[left], values[at], valid.retract[at])
    return totals
