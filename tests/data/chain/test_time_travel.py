"""Chain tables as they were, after their columns were altered."""

from __future__ import annotations

import uuid

import pyarrow as pa
import pytest

from airflow_paimon.data import read_arrow, write_arrow
from tests.core.tables import run
from tests.data.chain.tables import Writes, chain_table, seen


@pytest.mark.parametrize("main_has_rows", [False, True])
def test_time_travel_across_an_alter_of_the_three_branches(main_has_rows: bool) -> None:
    """Each branch's snapshot has the columns of its own commit, and most tables' main is empty."""
    writes: Writes = [("snapshot", "20250810", [(1, 1, "a")]), ("delta", "20250811", [(2, 1, "b")])]
    if main_has_rows:
        writes = [*writes, ("main", "20250801", [(9, 9, "m")])]
    table = chain_table(f"memory://{uuid.uuid4()}/wh", writes)
    before = seen(table)
    moment = max(table.branch(branch).snapshot(1).time_millis for branch, _, _ in writes)
    run(table, "alter_chain_table", change=["add column w STRING", "rename column v to x"])
    assert seen(table, timestamp=moment) == before
    schema = read_arrow(table).schema
    row = {"k": 3, "s": 1, "x": "c", "w": "w", "dt": "20250812"}
    write_arrow(table.branch("delta"), pa.Table.from_pylist([row], schema))
    assert seen(table, timestamp="2100-01-01T00:00:00Z") == seen(table)
    if main_has_rows:
        write_arrow(table, pa.Table.from_pylist([row | {"dt": "20250802"}], schema))
        assert seen(table, version=1) == before
        assert seen(table, version=2) == seen(table)
