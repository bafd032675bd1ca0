"""Types as people write them, and the options that a new table is refused for."""

import uuid
from typing import Any

import pytest

from airflow_paimon import create_table, open_table
from airflow_paimon.core.errors import InvalidInputError, PaimonError
from airflow_paimon.core.format.types import parse_type_text, type_to_json
from airflow_paimon.core.schema.schema_plan import AddColumn, RenameColumn, SetOption
from tests.core.tables import alter_table


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("bigint not null", "BIGINT NOT NULL"),
        ("Decimal(10)", "DECIMAL(10, 0)"),
        ("ARRAY<INT>", {"type": "ARRAY", "element": "INT"}),
        (
            "map<STRING NOT NULL, array<decimal(10, 2)>> not null",
            {
                "type": "MAP NOT NULL",
                "key": "STRING NOT NULL",
                "value": {"type": "ARRAY", "element": "DECIMAL(10, 2)"},
            },
        ),
        (
            "ROW<a INT 'it''s, a', `b c` ROW<d STRING>>",
            {
                "type": "ROW",
                "fields": [
                    {"id": 0, "name": "a", "type": "INT", "description": "it's, a"},
                    {
                        "id": 1,
                        "name": "b c",
                        "type": {"type": "ROW", "fields": [{"id": 0, "name": "d", "type": "STRING"}]},
                    },
                ],
            },
        ),
    ],
)
def test_a_type_is_stored_as_paimon_spells_it(text: str, stored: object) -> None:
    assert type_to_json(parse_type_text(text, "c")) == stored


@pytest.mark.parametrize(
    "text",
    [
        "ARRAY<INT NOT NULL> NOT NULL",
        "MAP<STRING NOT NULL, ARRAY<DECIMAL(10, 2)>>",
        "MULTISET<STRING>",
        "ROW<a INT, `b c` ROW<d TIMESTAMP(3) WITH LOCAL TIME ZONE NOT NULL>> NOT NULL",
    ],
)
def test_a_nested_type_is_shown_as_it_is_written(text: str) -> None:
    assert str(parse_type_text(text, "c")) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("UUID", "Column c: 'UUID' is not a type of Paimon; write e.g. BIGINT"),
        ("", "'' is not a type"),
        (None, "must be a string, got None"),
        ("ARRAY<UUID>", "'UUID' is not a type"),
        ("ARRAY<INT, INT>", "takes 1 type;"),
        ("MAP<INT>", "takes 2 types;"),
        ("ROW<INT>", "not of the form: name TYPE"),
        ("DECIMAL(39, 2)", "1 to 38"),
        ("DECIMAL(5, 6)", "scale above its precision"),
        ("TIMESTAMP(10)", "0 to 9"),
        ("VARCHAR(0)", "out of bounds"),
    ],
)
def test_a_type_that_paimon_does_not_have_is_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        parse_type_text(text, "c")
    assert message in caught.value.message


COLUMNS = [("k", "BIGINT NOT NULL"), ("v", "STRING")]


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ([("k", "BIGNIT")], {}, "Column k: 'BIGNIT'"),
        ([("k", "INT"), ("K", "INT")], {}, "differ in case only"),
        ([("k", "INT"), ("k", "INT")], {}, "'k' is given twice"),
        ([("", "INT")], {}, "Every column needs a name"),
        ([], {}, "(name, type) pairs"),
        ("k INT", {}, "(name, type) pairs"),
        ({"k": "INT"}, {}, "(name, type) pairs"),
        ([("k", "INT", "the key")], {}, "(name, type) pairs"),
        ([("k", int)], {}, "Column k: a type is a string such as 'BIGINT NOT NULL'"),
        (COLUMNS, {"file.format": "parket"}, "one of parquet, orc, avro"),
        (COLUMNS, {"bucket": "-5"}, "bucket=-5 is neither a number of buckets from 1 on"),
        (COLUMNS, {"bucket": "0"}, "bucket=0 is neither"),
        (COLUMNS, {"bucket": "two"}, "whole number"),
        (COLUMNS, {"bucket": "2"}, "needs bucket-key as well"),
        (COLUMNS, {"bucket": "2", "bucket-key": "K"}, "bucket-key=K names 'K', which is not a column"),
        (COLUMNS, {"merge-engine": "dedupe"}, "one of deduplicate, partial-update"),
        (COLUMNS, {"write-only": "yes"}, "true or false"),
        (COLUMNS, {"row-tracking.enabled": "true", "bucket": "2", "bucket-key": "k"}, "needs bucket=-1, not 2"),
        (COLUMNS, {"data-evolution.enabled": "true"}, "needs row-tracking.enabled=true as well"),
        ([("_ROW_ID", "INT")], {"row-tracking.enabled": "true"}, "_ROW_ID is a column name that Paimon keeps"),
        (COLUMNS, {"target-file-size": "big"}, "128 mb"),
        (COLUMNS, {"snapshot.time-retained": "soon"}, "7 d"),
    ],
)
def test_a_table_that_no_engine_can_read_is_not_created(columns: Any, options: dict[str, str], message: str) -> None:
    warehouse = f"memory://{uuid.uuid4()}/wh"
    with pytest.raises(PaimonError) as caught:
        create_table(warehouse, "d.t", columns, options=options)
    assert message in caught.value.message
    assert caught.value.exit_code == 2
    assert open_table(warehouse, "d.t").store.walk("") == []


def test_what_is_altered_is_checked_too() -> None:
    table = create_table(f"memory://{uuid.uuid4()}/wh", "d.t", COLUMNS)
    for change in (
        SetOption(key="bucket", value="-5"),
        AddColumn(name="V", type="INT"),
        AddColumn(name="w", type="LONG"),
        RenameColumn(name="v", to_name="K"),
    ):
        with pytest.raises(InvalidInputError):
            alter_table(table, [change])
    assert table.schema_ids() == [0]
    renamed = alter_table(table, [RenameColumn(name="v", to_name="V"), SetOption(key="future.option", value="x")])
    assert (renamed.field_names, renamed.options) == (("k", "V"), {"future.option": "x"})


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"primary_keys": "k"}, "primary_keys is a list of column names, not the string 'k'; write ['k']"),
        ({"partition_keys": "v"}, "partition_keys is a list of column names, not the string 'v'"),
        ({"primary_keys": ["key"]}, "The primary key key must name columns of the table, each once; they are k, v"),
        ({"partition_keys": ["v", "v"]}, "The partition key v, v must name columns of the table, each once"),
        ({"primary_keys": ["k"], "partition_keys": ["k"]}, "is the partition key as well"),
        ({"comments": {"key": "the key"}}, "no column 'key' to comment; there are: k, v"),
    ],
)
def test_keys_and_comments_name_columns(keys: dict[str, Any], message: str) -> None:
    warehouse = f"memory://{uuid.uuid4()}/wh"
    with pytest.raises(InvalidInputError) as caught:
        create_table(warehouse, "d.t", COLUMNS, **keys)
    assert message in caught.value.message
    assert open_table(warehouse, "d.t").store.walk("") == []
