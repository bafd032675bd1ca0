"""Conditions as text beside Spark's answers: what the reader takes selects Spark's rows, and the rest is refused."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.timestamp import Timestamp
from airflow_paimon.core.format.types import DataField, parse_type
from airflow_paimon.core.sql_text.condition import parse_condition
from airflow_paimon.core.table.predicate import columns_of, exactly, may_match
from airflow_paimon.data.files.arrow_types import arrow_type
from airflow_paimon.data.where import to_expression
from tests.randomness import chance, lives

_NAN, _INF = float("nan"), float("inf")
_AT = datetime(2024, 1, 1, 12, 30)
VALUES: dict[str, tuple[str, list[Any]]] = {
    "y": ("TINYINT", [-128, 0, 7, 127]),
    "i": ("INT", [-5, 0, 5, 7, 2**31 - 1]),
    "l": ("BIGINT", [-(2**63), 2**53, 2**53 + 1, 7, 0]),
    "f": ("FLOAT", [0.5, 0.10000000149011612, -0.0, 16777216.0, _NAN, -_INF]),
    "d": ("DOUBLE", [0.5, 0.1, 0.0, 1e300, _NAN, _INF, 7.0]),
    "e": ("DECIMAL(6, 2)", [Decimal("-1.50"), Decimal("0.00"), Decimal("7.00"), Decimal("9999.99")]),
    "w": ("DECIMAL(20, 3)", [Decimal("12345678901234567.123"), Decimal("12345678901234567.124"), Decimal("7.000")]),
    "s": ("STRING", ["", "a", "ab", "a%b", "a_b", "A", "7", "07", "é\U0001f600", "it's", "a\nb", "\\", " a", "true"]),
    "c": ("CHAR(3)", ["a  ", "ab ", "abc", "   ", "7  ", "a\tb"]),
    "v": ("VARCHAR(4)", ["a", "a ", "ab", "", "2024"]),
    "b": ("BOOLEAN", [True, False]),
    "day": ("DATE", [date(2024, 1, 1), date(2023, 12, 31), date(1, 1, 1), date(2024, 2, 29)]),
    "at": ("TIMESTAMP(6)", [_AT, _AT + timedelta(microseconds=1), datetime(2024, 1, 1), datetime(1969, 12, 31, 23)]),
    "Zone d": ("TIMESTAMP_LTZ(6)", [_AT.replace(tzinfo=UTC), datetime(2024, 1, 1, tzinfo=UTC)]),
}
TYPES = {name: parse_type(kind.replace("TIMESTAMP_LTZ(6)", "TIMESTAMP(6) WITH LOCAL TIME ZONE"))
         for name, (kind, _) in VALUES.items()}  # fmt: skip
SCHEMA = TableSchema(
    id=0, fields=tuple(DataField(i, name, t) for i, (name, t) in enumerate(TYPES.items())), highest_field_id=len(TYPES)
)
ROWS = [
    {name: values[(row * step) % len(values)] if (row + at) % 5 else None for at, (name, (_, values)) in
     enumerate(VALUES.items()) for step in (1 + at % 3,)} for row in range(24)
]  # fmt: skip
NUMBERS = ["0", "7", "-5", "+7", "5", "127", "128", "2147483647", "9007199254740993", "-9223372036854775808", "7L",
           "0.1", "0.5", ".5", "7.", "7.00", "-1.5", "-1.50", "0.000", "1e0", "5e-1", "7E0", "7D", "1.5BD", "1e300",
           "12345678901234567.123", "9999.99", "10000", "0.001", "7.0E0", "1e999", "7F", "7S", "16777217", "16777216",
           "99999999999999999999", "0x7", "1_0", "- 7", "1e-400"]  # fmt: skip
TEXTS = ["''", "'a'", "'ab'", "'ab '", "'abc'", "'abcd'", "'a  '", "'7'", "'+7'", "' 7'", "'07'", "'7.0'", "'7e0'",
         "'NaN'", "'-Infinity'", "'inf'", "'it''s'", r"'it\'s'", r"'a\nb'", "r'\\'", r"'\\'", '"a"', "'é\U0001f600'",
         "'true'", "'FALSE'", "'t'", "'2024-01-01'", "'2024-1-1'", "'20240101'", "'2024-01-01 12:30:00'",
         "'2024-01-01 12:30'", "'2024-01-01T12:30:00.000001'", "'2024-01-01 12:30:00.0000010'",
         "'2024-01-01 12:30:00Z'", "'2024-01-01 13:30:00+01:00'", "'2024-01-01 00:00:00.0000001'", "'0.1'", "'1_0'",
         "'2024'", "'2024-02-30'", "'\u0667'", "'a' 'b'", "'\\u0061'", "' '", "'a\tb'", "'-1.5'",
         "'7.00'", "'99999.5'"]  # fmt: skip
TYPED = [f"{kind} {text}" for kind in ("DATE", "TIMESTAMP", "timestamp_ntz", "TIMESTAMP_LTZ") for text in (
    "'2024-01-01'", "'2024-01-01 12:30:00'", "'2024-01-01 12:30:00Z'", "'1969-12-31 23:00:00.000'",
    "'nope'")]  # fmt: skip
PATTERNS = ["'a%'", "'%b'", "'a_b'", r"'a\\_b'", r"'a\\%b'", "'%'", "''", "'_'", "'__'", "'a'", "'ab '", "'%a%b%'",
            r"'\\\\'", r"'%\\\\%'", "'é%'", "'é_'", "'a   %'", "r'a\\_b'", r"'a\_b'", r"'\\a'"]  # fmt: skip
FLOATS, LONGS = [*NUMBERS, *TEXTS[7:16]], [*NUMBERS, "'7'", "'9007199254740993'", "'+7'"]
TIMES = [*TYPED, *TEXTS[26:36]]
FITTING = {"y": NUMBERS, "i": NUMBERS, "l": LONGS, "f": FLOATS, "d": FLOATS, "e": NUMBERS, "w": NUMBERS, "s": TEXTS,
           "c": TEXTS, "v": TEXTS, "b": ["true", "FALSE", "'true'", "'t'"], "day": [*TYPED, *TEXTS[26:31]],
           "at": TIMES, "`Zone d`": TIMES}  # fmt: skip
SPACES = [" ", "  ", "\n", " /* a /* b */ c */ ", " -- ' AND 1\n"]


def condition(chances: random.Random, depth: int) -> str:
    space = chances.choice(SPACES) if chances.random() < 0.1 else " "
    if depth and chances.random() < 0.75:
        found = chances.choice((" AND ", " or ", " and ", "\nOR ")).join(
            condition(chances, depth - 1) for _ in range(chances.randint(1, 3))
        )
        found = f"({space}{found})" if chances.random() < 0.7 else found
        return f"NOT{space}{found}" if chances.random() < 0.3 else found
    name = chances.choice(list(FITTING))
    fits = chances.random() < 0.9

    def value() -> str:
        return chances.choice(FITTING[name] if fits else [*NUMBERS, *TEXTS, *TYPED, "true", "NULL", "i", "lower('a')"])

    shown = name if name[0] == "`" else chances.choice((name, name.upper(), f"`{name}`"))
    sign = chances.choice(("=", "==", "!=", "<>", "<", "<=", ">", ">=", "<=>"[: chances.choice((2, 2, 3))]))
    no = chances.choice(("", "NOT "))
    return chances.choice([
        f"{shown}{space}{sign}{space}{value()}", f"{value()}{space}{sign} {shown}", f"{shown} IS{space}{no}NULL",
        f"{shown} {no}IN{space}({', '.join(value() for _ in range(chances.randint(1, 3)))})",
        f"{shown} {no}BETWEEN {value()} AND{space}{value()}", f"NOT {shown} {sign} {value()}",
        f"{chances.choice(('s', 'c', 'v', shown))} {no}LIKE{space}{chances.choice(PATTERNS)}",
    ])  # fmt: skip


@pytest.fixture(scope="module")
def rows(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Spark's own table ``conditions`` with ``ROWS``, whose column ``n`` is their place."""
    columns = ", ".join(f"`{n}` {_spark_type(kind)}" for n, (kind, _) in VALUES.items())
    path: Path = tmp_path_factory.mktemp("conditions")
    spark.sql(f"CREATE TABLE conditions (n INT, {columns}) USING parquet LOCATION '{path}'")
    plain = columns.replace("CHAR(3)", "STRING").replace("VARSTRING", "STRING").replace("VARCHAR(4)", "STRING")
    frame = spark.createDataFrame([(n, *row.values()) for n, row in enumerate(ROWS)], f"n INT, {plain}")
    frame.coalesce(1).write.insertInto("conditions")
    yield spark
    spark.sql("DROP TABLE conditions")


def _spark_type(kind: str) -> str:
    return {"TIMESTAMP(6)": "TIMESTAMP_NTZ", "TIMESTAMP_LTZ(6)": "TIMESTAMP"}.get(kind, kind)


def test_spark_selects_the_same_rows(rows: SparkSession) -> None:
    chances = chance("conditions")
    texts = list(dict.fromkeys(condition(chances, 2) for _ in range(lives(900, 9000))))
    texts += [f"{name} {sign} {value}" for name, fitting in FITTING.items() for value in fitting for sign in ("=", "<")]
    taken, refused = {}, 0
    for text in texts:
        try:
            taken[text] = parse_condition(text, SCHEMA)
        except InvalidInputError as error:
            refused += 1
            assert "line" in error.message and "a condition takes" in error.message
    assert len(taken) > 500 < refused + 400
    table = pa.table({name: pa.array([row[name] for row in ROWS], arrow_type(t)) for name, t in TYPES.items()})
    table = table.append_column("n", pa.array(range(len(ROWS)), pa.int32()))
    wrong = []
    asked = list(taken)
    for start in range(0, len(asked), 250):
        part = asked[start : start + 250]
        columns = ", ".join(f"(\n{text}\n) IS TRUE" for text in part)
        answers = rows.sql(f"SELECT n, {columns} FROM conditions").collect()
        for at, text in enumerate(part, 1):
            expected = {row[0] for row in answers if row[at]}
            found = set(table.filter(to_expression(taken[text], SCHEMA)).column("n").to_pylist())
            kept = {n for n, row in enumerate(ROWS) if may_match(taken[text], _bounds(row), TYPES)}
            is_exact = not columns_of(taken[text]) & {"f", "d", "c"}
            if found != expected or not expected <= kept or (is_exact and kept != expected):
                wrong.append((text, taken[text], sorted(expected), sorted(found), sorted(kept)))
    assert not wrong, wrong[:5]


def _bounds(row: dict[str, Any]) -> dict[str, Any]:
    return {n: exactly(Timestamp.from_datetime(v) if isinstance(v, datetime) else v) for n, v in row.items()}
