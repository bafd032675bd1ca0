"""The bucket of a row, computed by Spark's own operators, so that no row goes to Python to find its place.

It is the hash of ``core/table/bucket.py`` for keys of whole numbers and dates: the bytes of their BinaryRow are put
together, and Spark's ``hash`` of them is Paimon's: the same Murmur hash and seed, where there are 4, 8, 12 ... bytes.
It is one expression, given as SQL: a long chain of columns takes half a second to plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from airflow_paimon.core.format.types import DataField
from airflow_paimon.core.table.bucket import DEFAULT
from airflow_paimon.spark.spark_types import sql_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_BYTES = {"TINYINT": 1, "SMALLINT": 2, "INT": 4, "BIGINT": 8, "DATE": 4}
_WHOLE_NUMBERS = ("tinyint", "smallint", "int", "bigint")
_MOST_FIELDS = 8
"""The null bits of so many are one byte, the second of the row."""

_EVERY_BYTE = f"X'{bytes(range(256)).hex()}'"


def can_compute(frame: DataFrame, fields: Sequence[DataField], function: str) -> bool:
    """Return whether ``with_bucket`` can be called for such a bucket key: its fields, and ``bucket-function.type``."""
    types = {f.name: f.dataType.simpleString() for f in frame.schema.fields}
    return (
        function == DEFAULT
        and len(fields) <= _MOST_FIELDS
        and all(f.type.root in _BYTES and f.default_value is None for f in fields)
        and all(types.get(f.name) in (("date",) if f.type.root == "DATE" else _WHOLE_NUMBERS) for f in fields)
    )


def with_bucket(frame: DataFrame, fields: Sequence[DataField], buckets: int, name: str) -> DataFrame:
    """Add the column ``name`` (BIGINT) with each row's bucket. Values that don't fit a field get any bucket."""
    from pyspark.sql import functions as sf

    nulls = " + ".join(
        f"if({sql_name(f.name)} IS NULL, {1 << at}, 0)" for at, f in enumerate(fields) if f.type.nullable
    )
    header = f"X'00', {_bytes(f'({nulls})', 1)}, {_zeros(6)}" if nulls else _zeros(8)
    row = f"concat({', '.join([header, *map(_slot, fields)])})"
    return frame.withColumn(name, sf.expr(f"cast(abs(hash({row}) % {buckets}) AS BIGINT)"))


def _slot(field: DataField) -> str:
    """Return the 8 bytes of a field."""
    number = f"unix_date({sql_name(field.name)})" if field.type.root == "DATE" else sql_name(field.name)
    size = _BYTES[field.type.root]
    found = _bytes(f"coalesce(cast({number} AS BIGINT), 0L)", size)
    return found if size == 8 else f"{found}, {_zeros(8 - size)}"


def _bytes(number: str, count: int) -> str:
    """Return the lower bytes of a number, the lowest first. In ANSI mode Spark doesn't cast a number to bytes."""
    shifted = [number, *(f"shiftright({number}, {8 * at})" for at in range(1, count))]
    return ", ".join(f"substring({_EVERY_BYTE}, cast({one} & 255 AS INT) + 1, 1)" for one in shifted)


def _zeros(count: int) -> str:
    return f"X'{bytes(count).hex()}'"
