"""``correct_branch --mode upsert`` where rows are merged with those that are there: sums add, nulls keep, first rows
stay.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.table.table import Table
from tests.core.tables import run as operate
from tests.data.corrections import correct
from tests.data.test_compact import run as compact
from tests.data.test_compact_written import COLUMNS, ENGINES, VECTORS, Model, Row, keyed, levels, put, shown
from tests.randomness import chance as chance_of


def branched(table: Table) -> Table:
    operate(table, "create_branch", branch="fix", snapshot=table.latest_snapshot_id())
    return table.branch("fix")


def upsert(table: Table, *rows: Row) -> None:
    """Rows as those of ``put``."""
    given = [dict(zip((*COLUMNS, "_row_kind"), (*r, "+I") if len(r) == 4 else r, strict=True)) for r in rows]
    correct(table, "fix", given, mode="upsert")


UPSERTED = {
    "deduplicate": (None, "new"),
    "first-row": (5, "old"),
    "partial-update": (5, "new"),
    "aggregation": (5, "new"),
}


@pytest.mark.parametrize("bucket", ["1", "-1"])
@pytest.mark.parametrize("engine", ENGINES)
def test_rows_are_merged_by_the_engine(tmp_path: Path, engine: str, bucket: str) -> None:
    table = keyed(tmp_path, engine, bucket=bucket)
    put(table, ("x", 1, 5, "old"), ("x", 2, 1, "stays"))
    fix = branched(table)
    upsert(table, ("x", 1, None, "new"), ("x", 3, 3, None))
    assert shown(fix) == [("x", 1, *UPSERTED[engine]), ("x", 2, 1, "stays"), ("x", 3, 3, None)]
    assert set(levels(fix)) == {5}
    operate(table, "merge_branch", branch="fix", writers_stopped=bucket == "-1")
    assert shown(table) == shown(fix)
    put(table, ("x", 1, 7, None))
    later = {"deduplicate": (7, None), "partial-update": (7, "new"), "aggregation": (12, "new")}
    assert shown(table)[0] == ("x", 1, *later.get(engine, UPSERTED[engine]))


def test_a_sum_takes_back_and_goes(tmp_path: Path) -> None:
    """A row that was deleted on the branch doesn't come back with an upsert of its key."""
    table = keyed(tmp_path, "aggregation")
    put(table, ("x", 1, 5, "old"), ("x", 2, 5, "old"))
    put(table, ("x", 2, 5, "old", "-D"))
    fix = branched(table)
    upsert(table, ("x", 1, 5, "old", "-D"), ("x", 2, 3, None))
    assert shown(fix) == [("x", 2, 3, None)]
    upsert(table, ("x", 1, 4, None))
    assert shown(fix) == [("x", 1, 4, None), ("x", 2, 3, None)]


def test_late_rows_are_merged_by_the_sequence(tmp_path: Path) -> None:
    options = {"merge_engine": "aggregation", "sequence__field": "a", "fields__b__aggregate_function": "listagg"}
    table = keyed(tmp_path, **options)  # no function for the column that orders rows
    put(table, ("x", 1, 5, "later"))
    fix = branched(table)
    upsert(table, ("x", 1, 3, "late"))
    assert shown(fix) == [("x", 1, 5, "late,later")]


@pytest.mark.parametrize("engine", ["first-row", "aggregation"])
def test_deletes_without_a_meaning_are_refused(tmp_path: Path, engine: str) -> None:
    options = {"fields__b__aggregate_function": "max", "aggregation__remove_record_on_delete": "false"}
    table = keyed(tmp_path, engine, **(options if engine == "aggregation" else {}))
    put(table, ("x", 1, 5, "old"))
    fix = branched(table)
    head = fix.latest_snapshot_id()
    for key in (1, 9):
        with pytest.raises(InvalidInputError, match=r"d\.t.*rows of kind -D have no meaning"):
            upsert(table, ("x", key, 5, "old", "-D"))
    assert (fix.latest_snapshot_id(), shown(fix)) == (head, [("x", 1, 5, "old")])


def test_rows_with_one_key_are_combined_where_none_is_lost(tmp_path: Path) -> None:
    """The engine takes rows in the order in which they come."""
    rows = [("x", 1, 1, "u"), ("x", 2, 1, None), ("x", 1, 2, None), ("x", 1, None, "v"), ("x", 2, 7, "w", "-D")]
    for engine, expected in (("aggregation", (8, "v")), ("partial-update", (2, "v"))):
        table = keyed(tmp_path / engine, engine)
        put(table, ("x", 1, 5, "old"), ("x", 2, 5, "old"), ("x", 3, 5, "old"))
        fix = branched(table)
        upsert(table, *rows)
        assert shown(fix) == [("x", 1, *expected), ("x", 3, 5, "old")]
    for engine in ("deduplicate", "first-row"):
        table = keyed(tmp_path / engine, engine)
        put(table, ("x", 1, 5, "old"))
        branched(table)
        with pytest.raises(InvalidInputError, match="a primary key more than once, such as k = 1"):
            upsert(table, *rows[:-1])


@pytest.mark.random
@pytest.mark.parametrize("options", [{}, VECTORS, {"changelog_producer": "lookup", "bucket": "2"}], ids=str)
@pytest.mark.parametrize("engine", list(ENGINES))
@pytest.mark.every(3)
def test_random_lives(tmp_path: Path, engine: str, options: dict[str, str]) -> None:
    """Appends, upserts on branches, publishes and compactions give the model's rows, as do appends after them."""
    if engine == "first-row" and options is VECTORS:
        options = {"bucket": "-1"}
    chance = chance_of(f"upserts/{engine}/{options}")
    table, model = keyed(tmp_path, engine, **options), Model(engine)
    for number in range(7):
        keys = chance.sample([(p, k) for p in "xy" for k in range(5)], chance.randrange(1, 7))
        rows: list[Any] = [(*key, chance.choice([None, 1, 2]), chance.choice([None, "u", "v"])) for key in keys]
        if engine != "first-row" and chance.random() < 0.4:
            rows[0] = (*rows[0], "-D")
        for row in rows:
            model.take(*row)
        if number % 2:
            fix = branched(table)
            upsert(table, *rows)
            assert shown(fix) == model.listed()
            operate(table, "merge_branch", branch="fix", writers_stopped=options.get("bucket") == "-1")
            operate(table, "delete_branch", branch="fix")
        else:
            put(table, *rows)
            if engine != "deduplicate":
                compact(table)  # a delete has no effect on later rows from here on
        assert shown(table) == model.listed()
