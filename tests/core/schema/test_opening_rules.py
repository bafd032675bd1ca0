"""Each rule of what Paimon opens, on both sides of it: a new rule fails here until it has examples."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.format.schema import TableSchema, parse_schema
from airflow_paimon.core.schema.opening_rules import OPENING_RULES, opening_faults
from airflow_paimon.core.schema.schema_plan import new_schema
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.table import open_table
from tests.core.schema.opening_examples import REFUSED, TAKEN, Example
from tests.core.tables import run


def schema_of(example: Example) -> TableSchema:
    """The keys are set afterwards: those that are refused would be refused before."""
    made = new_schema(list(example.types().items()), options=example.options)
    return replace(made, primary_keys=example.primary, partition_keys=example.partition)


def test_every_rule_has_examples_on_both_sides() -> None:
    assert OPENING_RULES.keys() == REFUSED.keys() == TAKEN.keys()
    assert all(REFUSED.values()) and all(TAKEN.values())


@pytest.mark.parametrize("name", OPENING_RULES)
def test_each_rule_refuses_its_examples(name: str) -> None:
    for example in REFUSED[name]:
        schema = schema_of(example)
        found = list(OPENING_RULES[name](schema, TableOptions(schema.options)))
        assert found, example
        assert set(found) <= set(opening_faults(schema))
        assert all(fault[0].isalnum() or fault[0] == "_" for fault in found)  # an option or a column


@pytest.mark.parametrize("name", OPENING_RULES)
def test_such_a_table_is_neither_made_nor_overlooked(name: str) -> None:
    for example in REFUSED[name]:
        warehouse = f"memory://{uuid.uuid4()}/wh"
        with pytest.raises(InvalidInputError):
            create_table(
                warehouse, "d.t", list(example.types().items()), primary_keys=example.primary,
                partition_keys=example.partition, options=example.options,
            )  # fmt: skip
        table = open_table(warehouse, "d.t")
        assert table.store.walk("") == []
        table.store.create("schema/schema-0", schema_of(example).to_bytes())
        findings = run(open_table(warehouse, "d.t"), "check_table").details["findings"]
        assert "unopenable-schema" in {f["id"].partition(":")[0] for f in findings}, example


@pytest.mark.parametrize("name", OPENING_RULES)
def test_what_paimon_takes_has_no_fault(name: str) -> None:
    for example in TAKEN[name]:
        assert opening_faults(schema_of(example)) == [], example


def test_tables_of_other_engines_have_no_fault(golden: Callable[[str], Path]) -> None:
    found = {}
    for archive in ("paimon-2.0.0", "paimon-0.9.0"):
        for path in golden(archive).rglob("schema/schema-*"):
            faults = opening_faults(parse_schema(path.read_bytes(), str(path)))
            found |= {str(path): faults} if faults else {}
    assert found == {}
