"""The rows about chain tables in the list of what the reference engine does (measured on connector 2.0.0), one test
each: what it does is in the docstring, what ours does instead is asserted."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

import pyarrow.compute as pc
import pytest

from airflow_paimon.core.errors import InvalidInputError, UnsafeOperationError
from airflow_paimon.core.format.types import DataField, parse_type
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import write_arrow
from tests.data.chain.compactions import compact, outcomes
from tests.data.chain.tables import GAPPED, Writes, chain_table, day_is, on, seen
from tests.data.chain.test_writes import rows_of


def chain(writes: Writes) -> Table:
    return chain_table(f"memory://{uuid.uuid4()}/wh", writes, buckets=1)


def test_a_filter_on_a_value_that_a_delta_replaced() -> None:
    """Returns the stale anchor row."""
    table = chain([("snapshot", "20250810", [(1, 1, "old")]), ("delta", "20250811", [(1, 2, "new")])])
    assert seen(table, where=day_is("20250811") & (pc.field("v") == "old")) == []


def test_anchor_and_delta_with_the_same_sequence_value() -> None:
    """The anchor wins."""
    table = chain([("snapshot", "20250810", [(1, 1, "anchor")]), ("delta", "20250811", [(1, 1, "delta")])])
    assert seen(table, where=day_is("20250811")) == on("20250811", (1, 1, "delta"))


def test_a_row_appended_to_a_compacted_partition() -> None:
    """Invisible that day and every later day; compacting again returns false and changes nothing."""
    table = chain([("snapshot", "20250810", [(1, 1, "a")]), ("delta", "20250811", [(2, 1, "a")])])
    compact(table, "dt=20250811")
    late: Any = rows_of("20250811", (3, 1, "late"))
    with pytest.raises(UnsafeOperationError, match="would be invisible"):
        write_arrow(table.branch("delta"), late)
    write_arrow(table.branch("delta"), late, on_stale="record")  # as another engine would have it
    assert outcomes(compact(table, pending=True, max_chain_length=5)) == {"dt=20250811": "stale-rebuilt"}
    assert seen(table, where=day_is("20250811")) == on("20250811", (1, 1, "a"), (2, 1, "a"), (3, 1, "late"))


def test_a_gap_day() -> None:
    """No rows; compacting returns false. The same here, unless the caller says that the state is to be carried on."""
    table = chain(GAPPED)
    assert seen(table, where=day_is("20250812")) == []
    assert outcomes(compact(table, "dt=20250812")) == {"dt=20250812": "gap"}
    state = on("20250812", (1, 1, "a"), (2, 1, "a"))
    assert seen(table, where=day_is("20250812"), gap_policy="carry_forward") == state
    assert outcomes(compact(table, "dt=20250812", gap_policy="carry_forward")) == {"dt=20250812": "compacted"}
    assert seen(table, where=day_is("20250812")) == state


def test_overwriting_the_delta_of_the_first_anchor() -> None:
    """The statement fails after its data was committed, and the stale anchor still hides it."""
    writes: Writes = [("delta", "20250810", [(1, 1, "a")]), ("delta", "20250811", [(2, 1, "b")])]
    table = chain(writes)
    compact(table, "dt=20250810")
    new: Any = rows_of("20250810", (1, 2, "new"))
    done = write_arrow(table.branch("delta"), new, mode="overwrite", partition={"dt": "20250810"})
    assert [s["partition"] for s in done["details"]["stale"]] == ["dt=20250810"]
    assert outcomes(compact(table, pending=True, max_chain_length=5)) == {"dt=20250810": "stale-rebuilt"}
    assert seen(table, where=day_is("20250811")) == on("20250811", (1, 2, "new"), (2, 1, "b"))


def test_a_column_added_to_main_alone() -> None:
    """Every read of main fails until all three branches are altered. Here too, and the refusal says what to do; with
    ``alter_chain_table`` it does not come to that."""
    table = chain([("snapshot", "20250810", [(1, 1, "a")]), ("delta", "20250811", [(2, 1, "a")])])
    schema = table.schema()
    field = DataField(schema.highest_field_id + 1, "more", parse_type("INT"))
    wider = replace(schema, id=schema.id + 1, fields=(*schema.fields, field), highest_field_id=field.id)
    table.store.create(table.paths.schema(wider.id), wider.to_bytes())
    for use in (lambda: seen(table), lambda: write_arrow(table.branch("delta"), rows_of("20250812", (1, 2, "x")))):
        with pytest.raises(InvalidInputError, match="branch 'delta' has other columns than main: apply the same ALTER"):
            use()


def test_a_partition_value_without_quotes() -> None:
    """ClassCastException on a STRING column."""
    for text in ("dt=20250811", "dt='20250811'", 'dt="20250811"'):
        table = chain([("snapshot", "20250810", [(1, 1, "a")]), ("delta", "20250811", [(2, 1, "a")])])
        assert outcomes(compact(table, text)) == {"dt=20250811": "compacted"}
