"""Columns and schema changes as people write them."""

from __future__ import annotations

import pytest

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.types import parse_type
from airflow_paimon.core.schema.schema_plan import (
    AddColumn,
    CommentColumn,
    DropColumn,
    MoveColumn,
    RemoveOption,
    RenameColumn,
    SchemaChange,
    SetOption,
    WidenColumn,
)
from airflow_paimon.core.schema.text import parse_change, parse_column


def test_columns_as_text() -> None:
    assert [str(p) for p in parse_column("`the k` DECIMAL(10, 2) NOT NULL COMMENT 'a b'")] == [
        "the k",
        "DECIMAL(10, 2) NOT NULL",
        "a b",
    ]
    assert str(parse_column("t TIMESTAMP(3) WITH LOCAL TIME ZONE")[1]) == "TIMESTAMP(3) WITH LOCAL TIME ZONE"
    for bad in ("k", "k INT 'a' 'b'", "k INT comment", "", "k INT 'open"):
        with pytest.raises(InvalidInputError):
            parse_column(bad)


@pytest.mark.parametrize(
    ("text", "change"),
    [
        ("add column v INT", AddColumn(name="v", type=parse_type("INT"))),
        (
            "ADD  COLUMN `a b` decimal(10, 2) 'it''s' first",
            AddColumn(name="a b", type=parse_type("DECIMAL(10, 2)"), comment="it's", after=""),
        ),
        ("add column v STRING after `a b`", AddColumn(name="v", type=parse_type("STRING"), after="a b")),
        ("add column after INT after first", AddColumn(name="after", type=parse_type("INT"), after="first")),
        ("drop column v", DropColumn(name="v")),
        ("rename column a to to", RenameColumn(name="a", to_name="to")),
        ("alter column v type BIGINT", WidenColumn(name="v", type=parse_type("BIGINT"))),
        ("alter column v comment 'x=y'", CommentColumn(name="v", comment="x=y")),
        ("alter column v after w", MoveColumn(name="v", after="w")),
        ("alter column v first", MoveColumn(name="v", after="")),
        ("set a.b=c = d ", SetOption(key="a.b", value="c = d")),
        ("set a.b = ", SetOption(key="a.b", value="")),
        ("reset a.b", RemoveOption(key="a.b")),
    ],
)
def test_changes(text: str, change: SchemaChange) -> None:
    assert parse_change(text) == change


@pytest.mark.parametrize(
    "text",
    [
        "",
        "add column v",
        "add v INT",
        "add column v INT, w INT",
        "add column v WHATEVER",
        "drop column a b",
        "drop column a; drop column b",
        "rename column a b",
        "alter column v BIGINT",
        "alter column v type BIGINT 'x'",
        "alter column v comment open",
        "set a",
        "reset a=b",
        "reset",
    ],
)
def test_what_is_not_understood_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match=r"is not understood|is not a type|not of the form"):
        parse_change(text)
