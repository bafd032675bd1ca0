"""What a condition as text becomes, and what is refused; tests/spark/test_conditions.py compares it with Spark."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.types import ArrayType, DataField, parse_type
from airflow_paimon.core.sql_text.condition import parse_condition
from airflow_paimon.core.sql_text.statement import read_sql
from airflow_paimon.core.table.predicate import AllOf, AnyOf, Condition, like_pattern

TYPES = {"k": "INT", "l": "BIGINT", "s": "STRING", "e": "DECIMAL(6, 2)", "w": "DECIMAL(20, 3)", "day": "DATE",
         "b": "BOOLEAN", "f": "DOUBLE", "at": "TIMESTAMP(3)", "fine": "TIMESTAMP(9)", "odd name": "BIGINT",
         "c": "CHAR(3)", "zoned": "TIMESTAMP(6) WITH LOCAL TIME ZONE", "x": "INT", "X": "INT",
         "Y": "INT", "y2": "INT", "Y2": "INT"}  # fmt: skip
FIELDS = tuple(DataField(i, name, parse_type(kind)) for i, (name, kind) in enumerate(TYPES.items()))
TAGS = DataField(len(TYPES), "tags", ArrayType(parse_type("INT")))
SCHEMA = TableSchema(id=0, fields=(*FIELDS, TAGS), highest_field_id=len(TYPES))
ONE, TWO = Condition("k", "=", 1), Condition("k", "=", 2)


@pytest.mark.parametrize(
    ("text", "predicate"),
    [
        ("k = 1 or `odd name` between -2 and 3 and s <> 'it''s'", AnyOf((ONE, AllOf((
            AllOf((Condition("odd name", ">=", -2), Condition("odd name", "<=", 3))), Condition("s", "!=", "it's")))))),
        ("NOT (k = 1 AND (k = 2 OR s IS NULL))", AnyOf((
            Condition("k", "!=", 1), AllOf((Condition("k", "!=", 2), Condition("s", "is not null")))))),
        ("NOT NOT k == 1", ONE),
        ("NOT k = 1 AND k = 2", AllOf((Condition("k", "!=", 1), TWO))),
        ("K NOT BETWEEN 1 AND 2", AnyOf((Condition("k", "<", 1), Condition("k", ">", 2)))),
        ("not s not in ('a', \"b\")", Condition("s", "in", ("a", "b"))),
        ("s NOT LIKE 'a\\_%'", Condition("s", "not like", "a\\_%")),
        ("7 > k -- and more \\\n of it", Condition("k", "<", 7)),
        ("tags IS NOT NULL", Condition("tags", "is not null")),
        ("X = 1 AND y = 2", AllOf((Condition("X", "=", 1), Condition("Y", "=", 2)))),
    ],
)  # fmt: skip
def test_conditions(text: str, predicate: object) -> None:
    assert parse_condition(text, SCHEMA) == predicate


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("k", "ends too early: a comparison expected (line 1, position 2)"), ("k = ", "ends too early: a literal"),
        ("", "ends too early"), ("k = 'x'", "'x' is not a value of column 'k' (INT): give a whole number"),
        ("no = 1", "no column 'no' (columns: k, l"), ("f = 'x'", "not a value"),
        ("Y2 = 1 OR Y = NULL", "IS NULL"),
        ("k = 1 k", "AND, OR or the end expected, not 'k' (line 1, position 7)"), ("upper(s) = 'A'", "no function"),
        ("k = 1;\ndrop", "not ';' (line 1, position 6)"), ("k in (1", ") expected"),
        ("k = 1\n  AND )", "line 2, position 7"),
        ("k = 2147483648", "not a value"), ("l = 1e3", "without an exponent"), ("k = 1.5", "not a value"),
        ("s = 5", "a string in quotes"),
        ("s = DATE '2024-01-01'", "a string in quotes"),
        ("day = 20240101", "DATE 'yyyy"),
        ("w = '1.5'", "up to 15 digits"), ("e = 1.234", "without more digits"), ("e = 12345", "not a value"),
        ("at = '2024-01-01 00:00:00.1234'", "no more digits"), ("at = '2024-01-01 00:00:00Z'", "without a zone"),
        ("zoned = TIMESTAMP '2024-01-01 00:00:00'", "a time with a zone"), ("fine > '2300-01-01'", "not a value"),
        ("zoned = DATE '2024-01-01'", "with a zone"), ("c = 'abcd'", "not longer"),
        ("c BETWEEN 'a' AND 'b'", "use these"), ("tags = 1", "can't be compared"),
        ("k <=> 1", "a comparison expected, not '<=>'"), ("k = l", "a literal expected, not 'l'"),
        ("t.k = 1", "without its table"),
        ("k = 1e999", "not a value"), ("w = 1e9999999999999999999", "not a number"),
        ("f = '1e9999999999999999999'", "a number"), ("f = 1e999999999", "not a value"),
        ("w = '1e999999999'", "not a value"), ("k = 1F", "not a number"), ("k = 99999999999999999999L", "not a BIGINT"),
        (f"e = {'9' * 39}", "more than 38 digits"), ("k = 1 = true", "not '='"), ("(k) = 1", "a comparison expected"),
        ("k NOT = 1", "IN, BETWEEN or LIKE"), ("s LIKE 'a!%' ESCAPE '!'", "no ESCAPE"), ("k LIKE '1'", "string column"),
        ("s LIKE 'a\\\\'", "a backslash is allowed only"), ("k /*+ BROADCAST */ = 1", "not a hint"),
        ("k = 1 */", "not '*/'"),
        ("s = 'torn", "a literal expected"), ("s = '\\U00110000'", "no character"), ("y2X = 1", "no column"),
        ("k = ${limit}", "a literal expected, not '$'"), ("k IN ()", "a literal"), ("s = 'a' 'b'", "the end expected"),
        ("(" * 101 + "k = 1" + ")" * 101, "nested too deeply"),
    ],
)  # fmt: skip
def test_what_is_no_condition_says_where_and_why(text: str, why: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        parse_condition(text, SCHEMA)
    assert why in refused.value.message
    assert "a condition takes" in refused.value.message


def test_a_name_that_several_columns_have_is_refused_and_the_same_case_is_none() -> None:
    assert parse_condition("y2 = 1", SCHEMA) == Condition("y2", "=", 1)
    fields = tuple(DataField(i, name, parse_type("INT")) for i, name in enumerate(("ab", "AB")))
    with pytest.raises(InvalidInputError, match="several columns 'Ab'"):
        parse_condition("Ab = 1", TableSchema(id=0, fields=fields, highest_field_id=1))


@pytest.mark.parametrize("text", ["k = 'ann'", "s = 17", "s = 'ann' 'ann'", "k = 17F", "s LIKE 'ann\\\\", "k = ann"])
def test_an_error_that_may_name_a_person_repeats_no_value(text: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        parse_condition(text, SCHEMA, hidden=True)
    assert "ann" not in refused.value.message and "17" not in refused.value.message


def test_digits_below_a_microsecond_are_compared_where_the_column_has_them() -> None:
    found = parse_condition("fine = '2024-01-01 00:00:00.000000001'", SCHEMA)
    assert isinstance(found, Condition) and found.value.nanos_of_milli == 1


_WORDS = st.sampled_from(
    r"""
k l s e w day b f at fine `odd` c zoned tags x = <> < <= NOT IN BETWEEN AND OR IS NULL LIKE ( ) , . - + ; 1 -5 1e3 7L
1e99999999999999999999 1BD 0x1 'a' 'a%' '\\' '\U00110000' "z" r'\' 'NaN' '1e99999999999999999999' '2024-01-01' DATE
TIMESTAMP TIMESTAMP_LTZ '0000-00-00' '2024-01-01T24:00:00Z' TRUE CASE END /* */ -- /*+ ${v} $$ ' ` WHERE branch FROM
SELECT UPDATE SET MERGE
""".split()  # noqa: SIM905
)


@given(st.lists(_WORDS, max_size=12))
def test_whatever_is_no_condition_is_refused_and_no_other_error(words: list[str]) -> None:
    text = " ".join(words)
    with suppress(InvalidInputError):
        parse_condition(text, SCHEMA)
    read_sql(f"UPDATE branch SET k = 1 WHERE {text}", SCHEMA)
    read_sql(text, SCHEMA)


@pytest.mark.timeout(20)
def test_a_pattern_of_many_parts_is_matched_in_a_moment() -> None:
    expression, prefix = like_pattern("ab%" + "a%" * 30 + "b")
    assert expression.fullmatch("ab" + "a" * 300) is None
    assert expression.fullmatch("ab" + "a" * 300 + "b") is not None
    assert prefix == "ab"
