"""The bucket of a row, computed by Spark's own operators, so that no row goes to Python to find its place.

It is the hash of ``core/table/bucket.py`` for keys of whole numbers and dates, which take 8 bytes of a BinaryRow each.
The 32-bit arithmetic is done in BIGINT, in parts that never exceed it: in ANSI mode Spark refuses what overflows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from airflow_paimon.core.format.binary_row import header_bytes
from airflow_paimon.core.format.types import DataField
from airflow_paimon.core.table.bucket import DEFAULT

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_LOW = 0xFFFFFFFF
_SEED = 42
_BITS = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "BIGINT": 64, "DATE": 32}
_WHOLE_NUMBERS = ("tinyint", "smallint", "int", "bigint")
_MOST_FIELDS = 8
"""Each field is a few more steps of the query's plan."""


def can_compute(frame: DataFrame, fields: Sequence[DataField], function: str) -> bool:
    """Return whether ``with_bucket`` can be called for such a bucket key: its fields, and ``bucket-function.type``."""
    types = {f.name: f.dataType.simpleString() for f in frame.schema.fields}
    return (
        function == DEFAULT
        and len(fields) <= _MOST_FIELDS
        and all(f.type.root in _BITS and f.default_value is None for f in fields)
        and all(types.get(f.name) in (("date",) if f.type.root == "DATE" else _WHOLE_NUMBERS) for f in fields)
    )


def with_bucket(frame: DataFrame, fields: Sequence[DataField], buckets: int, name: str) -> DataFrame:
    """Add the column ``name`` (BIGINT) with each row's bucket. Values that don't fit a field get any bucket.

    Each step is a column of its own: Spark then computes it once, however often the next one refers to it.
    """
    from pyspark.sql import functions as sf

    state = sf.lit(_SEED).cast("bigint")
    for word in _words(fields):
        frame = frame.withColumn(name, state.bitwiseXOR(_mixed(word)))
        rotated = _rotated(sf.col(name), 13)
        frame = frame.withColumn(name, (rotated * sf.lit(5) + sf.lit(0xE6546B64)).bitwiseAND(sf.lit(_LOW)))
        state = sf.col(name)
    size = header_bytes(len(fields)) + 8 * len(fields)
    for shift, factor, before in ((16, 0x85EBCA6B, size), (13, 0xC2B2AE35, 0)):
        frame = frame.withColumn(name, _times(_folded(state.bitwiseXOR(sf.lit(before)), shift), factor))
    frame = frame.withColumn(name, _folded(state, 16))
    magnitude = sf.when(state >= sf.lit(1 << 31), sf.lit(1 << 32) - state).otherwise(state)  # of a signed INT
    return frame.withColumn(name, magnitude % sf.lit(buckets))


def _words(fields: Sequence[DataField]) -> list[Column]:
    """Return the 32-bit words of the row: its header, which tells where null is, and 2 of each field."""
    from pyspark.sql import functions as sf

    columns = [sf.col(f"`{f.name}`") for f in fields]
    zero = sf.lit(0).cast("bigint")
    nulls = zero
    for at, (field, column) in enumerate(zip(fields, columns, strict=True)):
        if field.type.nullable:
            nulls = nulls + sf.when(column.isNull(), sf.lit(1 << (8 + at))).otherwise(zero)
    words = [nulls, zero]
    for field, column in zip(fields, columns, strict=True):
        bits = _BITS[field.type.root]
        number = (sf.unix_date(column) if field.type.root == "DATE" else column).cast("bigint")
        number = sf.coalesce(number, zero)
        words.append(number.bitwiseAND(sf.lit(_LOW if bits >= 32 else (1 << bits) - 1)))
        words.append(sf.shiftrightunsigned(number, 32) if bits == 64 else zero)
    return words


def _mixed(word: Column) -> Column:
    return _times(_rotated(_times(word, 0xCC9E2D51), 15), 0x1B873593)


def _rotated(word: Column, by: int) -> Column:
    from pyspark.sql import functions as sf

    return sf.shiftleft(word, by).bitwiseAND(sf.lit(_LOW)).bitwiseOR(sf.shiftright(word, 32 - by))


def _folded(word: Column, by: int) -> Column:
    from pyspark.sql import functions as sf

    return word.bitwiseXOR(sf.shiftright(word, by))


def _times(word: Column, factor: int) -> Column:
    """The product modulo 2^32."""
    from pyspark.sql import functions as sf

    low, high = sf.lit(factor & 0xFFFF), sf.lit(factor >> 16)
    carried = sf.shiftleft((word * high).bitwiseAND(sf.lit(0xFFFF)), 16)
    return (word * low + carried).bitwiseAND(sf.lit(_LOW))
