"""Every golden table that still gives its rows is read right, or refused by name: which are refused stands here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from airflow_paimon.core.errors import UnsupportedFeatureError
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.data import read_arrow
from airflow_paimon.data.read import read_split
from airflow_paimon.data.read_splits import plan_read
from tests.oracles.canonical import assert_same_rows
from tests.oracles.golden import Filter, GoldenCase, golden_cases

Golden = Callable[[str], Path]

ARCHIVES = ("paimon-2.0.0", "paimon-0.9.0", "table-fuzz", "chain-fuzz")
CASES = [case for archive in ARCHIVES for case in golden_cases(archive) if case.as_stored and not case.system_table]
REFUSED: dict[str, str] = {}
UNKNOWN_OPTION = "paimon-0.9.0:seq_descending"
"""Paimon 0.9 ignores `sequence.field.sort-order`, which came later; Java 1.4.2 reads that table as we do."""

_TESTS: dict[str, Callable[[pc.Expression, object], pc.Expression]] = {
    "=": lambda field, value: field == value,
    "<": lambda field, value: field < value,
    "in": lambda field, value: field.isin(list(value)),  # type: ignore[call-overload]
}


def test_the_list_of_refused_cases_names_cases_that_exist() -> None:
    assert {*REFUSED, UNKNOWN_OPTION} <= {case.id for case in CASES} or not CASES


@pytest.mark.parametrize("case", CASES or [None], ids=lambda case: case.id if case else "no-golden-tables")
@pytest.mark.every(2)
def test_golden_read(golden: Golden, case: GoldenCase | None) -> None:
    archive = golden(case.archive if case else ARCHIVES[0])
    assert case is not None
    table = open_table(str(archive / "wh"), case.table, branch=case.branch)
    if case.id in REFUSED:
        with pytest.raises(UnsupportedFeatureError, match=REFUSED[case.id]) as refused:
            _read(table, case)
        assert case.table in refused.value.message
        return
    actual = _read_as_0_9(table) if case.id == UNKNOWN_OPTION else _read(table, case)
    assert_same_rows(actual, pq.read_table(archive / case.expected))


def _read(table: Table, case: GoldenCase) -> pa.Table:
    columns = None
    if case.columns is not None:
        all_columns = table.schema().field_names
        columns = [name for one in case.columns for name in (all_columns if one == "*" else (one,))]
    return read_arrow(table, version=case.version, columns=columns, where=_where(case.where))


def _where(filters: tuple[Filter, ...]) -> pc.Expression | None:
    where = None
    for column, operator, value in filters:
        one = _TESTS[operator](pc.field(column), value)
        where = one if where is None else where & one
    return where


def _read_as_0_9(table: Table) -> pa.Table:
    plan = plan_scan(table)
    options = {k: v for k, v in plan.schema.options.items() if k != "sequence.field.sort-order"}
    read, splits = plan_read(replace(plan, schema=replace(plan.schema, options=options)))
    return pa.Table.from_batches([b for s in splits for b in read_split(read, s)], read.output_schema)
