"""What a snapshot says of the statement or function that made its rows, and of who wrote it."""

from __future__ import annotations

import getpass
import json
import re
import uuid
from collections.abc import Sequence
from pathlib import Path

import pytest

from airflow_paimon.core.commit.draft import new_commit_user
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.schema import TableSchema
from airflow_paimon.core.format.types import DataField, parse_type
from airflow_paimon.core.schema.opening_rules import opening_faults
from airflow_paimon.core.schema.schema_plan import SetOption
from airflow_paimon.core.sql_text.recorded import sql_properties, statement_properties
from airflow_paimon.core.table.made_by import MAX_TEXT, function_properties, made_by
from tests.core.tables import alter_table, append, make_table, run


def versions(**options: str) -> Sequence[TableSchema]:
    named = {f"airflow-paimon.{k.replace('_', '-')}": v for k, v in options.items()}
    fields = tuple(DataField(i, name, parse_type("STRING")) for i, name in enumerate(("k", "email")))
    return [TableSchema(id=0, fields=fields, highest_field_id=1, options=named)]


def test_a_statement_is_recorded_as_the_table_says() -> None:
    text = "DELETE FROM branch WHERE email = 'ann@x.org'"
    full = sql_properties(versions(), text, ["p=d.prices@3"])
    assert made_by(full)["sql"] == text
    assert json.loads(made_by(full)["views"]) == ["p=d.prices@3"]
    masked = "DELETE FROM branch WHERE email = '***'"
    for schemas in (versions(masked_columns="email"), versions(record_sql="masked")):
        said = sql_properties(schemas, text)
        assert made_by(said)["sql"] == masked
        same_but_the_value = sql_properties(schemas, text.replace("ann", "bob"))
        assert said == same_but_the_value, "not even a digest tells the value"
    assert made_by(sql_properties(versions(masked_columns="email", record_sql="full"), text))["sql"] == text
    assert sql_properties(versions(record_sql="none"), text) == {}
    earlier = [*versions(masked_columns="email"), *versions()]
    assert made_by(sql_properties(earlier, text))["sql"] == masked, "an earlier version masks as well"


def test_a_branch_with_an_older_schema_records_as_main_says(tmp_path: Path) -> None:
    table = make_table(tmp_path / "wh", primary=False)
    append(table, "a")
    alter_table(table, [SetOption(key="airflow-paimon.masked-columns", value="v")])
    run(table, "create_branch", branch="fix", snapshot=1)
    fix, sql = table.branch("fix"), "UPDATE branch SET v = 'x'"
    assert "airflow-paimon.masked-columns" not in fix.schema().options
    assert statement_properties(fix, sql)["airflow-paimon.sql"] == "UPDATE branch SET v = '***'"
    alter_table(fix, [SetOption(key="airflow-paimon.record-sql", value="none")])
    assert statement_properties(fix, sql) == {}
    assert statement_properties(table, sql)["airflow-paimon.sql"] == "UPDATE branch SET v = '***'"


def test_an_unknown_value_is_refused_when_it_is_set_and_when_another_engine_has_set_it() -> None:
    schemas = versions(record_sql="yes")
    assert any("record-sql='yes' is not one of full, masked, none" in fault for fault in opening_faults(schemas[0]))
    with pytest.raises(InvalidInputError, match="record-sql is full, masked or none, not 'yes'"):
        sql_properties(schemas, "SELECT 1")


def test_a_long_text_is_cut_and_its_digest_is_of_all_of_it() -> None:
    one, other = (sql_properties(versions(), f"SELECT {'x' * 9000}{end}") for end in "ab")
    assert len(made_by(one)["sql"]) == MAX_TEXT
    assert made_by(one)["sql"] == made_by(other)["sql"]
    assert made_by(one)["sql_digest"] != made_by(other)["sql_digest"]


def test_a_function_is_recorded_with_its_version() -> None:
    said = made_by(function_properties("fixes.rates:fixed", "sha256:12 of fixes 1.4"))
    assert said == {"function": "fixes.rates:fixed", "function_version": "sha256:12 of fixes 1.4"}
    assert "function_version" not in made_by(function_properties("f:g", None))


def test_a_write_without_an_operation_id_says_who_made_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "ann smith_1")
    login, _, rest = new_commit_user().rpartition("_")
    assert (login, str(uuid.UUID(rest))) == ("ann-smith-1", rest)
    assert new_commit_user() != new_commit_user()

    def nobody() -> str:
        raise OSError("no such user")

    monkeypatch.setattr(getpass, "getuser", nobody)
    assert re.fullmatch(r"[0-9a-f-]{36}", new_commit_user())
