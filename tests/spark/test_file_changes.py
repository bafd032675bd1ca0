"""Files written again by positions: random changes against a model. And statements as values, without Spark."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_paimon.core.commit.copy_on_write import commit_rewrite
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import read_arrow
from airflow_paimon.data.arrow_write import write_arrow
from airflow_paimon.data.copy_on_write import plan_copy_on_write
from airflow_paimon.data.files.arrow_types import FILE_NAME, FILE_POSITION
from airflow_paimon.data.read import read_split
from airflow_paimon.data.scan import plan_read, with_positions
from airflow_paimon.spark.statements.append import plan_rewrite
from airflow_paimon.spark.statements.evaluate import CHANGE, DELETED, INSERTED, MATCHED, UPDATED
from airflow_paimon.spark.statements.file_changes import rewrite_files
from airflow_paimon.spark.statements.statement_plan import (
    Assignment,
    Clause,
    Fragment,
    Statement,
    Target,
    check_statement,
    column_of,
    path_of,
)

SEEDS = 6


def a_table(warehouse: Path, **options: str) -> Table:
    columns = [("id", "INT"), ("s", "STRING"), ("r", "ROW<a INT, b STRING>"), ("dt", "STRING")]
    return create_table(str(warehouse), "d.t", columns, partition_keys=["dt"], options={"bucket": "-1", **options})


def update(*columns: str, kind: Any = "MERGE") -> Statement:
    clauses = (
        Clause(
            action="update",
            assignments=tuple(Assignment(key=(c,), at=Fragment(line=1, column=9), value=Fragment()) for c in columns),
        ),
        Clause(action="delete"),
    )
    return Statement(
        kind=kind,
        text="",
        target=Target(name=("d", "t"), alias=None, at=Fragment()),
        condition=Fragment(),
        matched=clauses,
    )


def positions_of(table: Table) -> list[dict[str, Any]]:
    read, splits = plan_read(plan_copy_on_write(table).scan)
    return [row for split in splits for batch in read_split(with_positions(read), split) for row in batch.to_pylist()]


@pytest.mark.parametrize("tracked", [False, True])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_changes_are_those_of_a_model(tmp_path: Path, seed: int, tracked: bool) -> None:
    chance = random.Random(seed)
    table = a_table(tmp_path, **({"row-tracking.enabled": "true"} if tracked else {}))
    schema = read_arrow(table).schema
    for _ in range(3):
        rows = [_row(chance) for _ in range(chance.randint(1, 40))]
        write_arrow(table, pa.Table.from_pylist(rows, schema))
    for _ in range(3):
        before = positions_of(table)
        changes, after = [], []
        for row in before:
            fate = chance.choice([UPDATED, DELETED, MATCHED, None, None])
            own = {FILE_NAME: row[FILE_NAME], FILE_POSITION: row[FILE_POSITION], CHANGE: fate}
            values = {k: row[k] for k in ("id", "s", "r", "dt")}
            if fate == UPDATED:
                values = {**values, **{k: v for k, v in _row(chance).items() if k != "id"}}
            changes += [{**own, **values}] if fate else []
            after += [] if fate == DELETED else [values]
        fresh = [_row(chance) for _ in range(chance.randint(0, 5))]
        changes = [{FILE_NAME: None, FILE_POSITION: None, CHANGE: INSERTED, **row} for row in fresh] + sorted(
            changes, key=lambda c: (c[FILE_NAME], c[FILE_POSITION])
        )
        _apply(table, changes, schema, chance.choice([1, 3, 1000]))
        assert _sorted(read_arrow(table).to_pylist()) == _sorted([*after, *fresh])


def _row(chance: random.Random) -> dict[str, Any]:
    nested = chance.choice([None, {"a": chance.randint(0, 9), "b": chance.choice([None, "x"])}])
    return {"id": chance.randint(0, 99), "s": chance.choice([None, "a", "bb"]), "r": nested, "dt": chance.choice("pq")}


def _sorted(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(map(repr, rows))


def _apply(table: Table, changes: list[dict[str, Any]], schema: pa.Schema, batch_rows: int) -> None:
    plan = plan_copy_on_write(table)
    read, splits = plan_read(plan.scan)
    parts = [part for split in splits for part in split.divided()]
    rewrite = plan_rewrite(update("s", "r", "dt"), plan, with_positions(read), parts, False)
    own = [(FILE_NAME, pa.string()), (FILE_POSITION, pa.int64()), (CHANGE, pa.string())]
    rows = pa.Table.from_pylist(changes, pa.schema([*map(pa.field, *zip(*own, strict=True)), *schema]))
    done = rewrite_files(rewrite, rows.to_batches(max_chunksize=batch_rows))
    kinds = [c[CHANGE] for c in changes]
    assert (done.updated, done.deleted, done.inserted) == tuple(kinds.count(k) for k in (UPDATED, DELETED, INSERTED))
    assert done.files == {c[FILE_NAME] for c in changes if c[CHANGE] in (UPDATED, DELETED)}
    commit_rewrite(table, done.messages, read=plan.scan, operation="MERGE")


def test_columns_are_found_with_the_targets_name_before_them_and_nothing_else(tmp_path: Path) -> None:
    schema = a_table(tmp_path).schema()
    statement = update("s", kind="UPDATE")

    def found(*key: str) -> str:
        return column_of(statement, Assignment(key=key, at=Fragment(line=2, column=5), value=Fragment()), schema)

    assert [found("s"), found("T", "S"), found("d", "t", "dt")] == ["s", "s", "dt"]
    with pytest.raises(InvalidInputError, match=r"no column 'x\.s' \(line 2, position 5\)"):
        found("x", "s")
    assert path_of(statement, Assignment(key=("T", "r", "A"), at=Fragment(), value=Fragment()), schema) == ("r", "a")
    for refused, message in {("r", "x"): "'r' has no field 'x' .line 2.*fields: a", ("s", "a"): "it is a"}.items():
        with pytest.raises(InvalidInputError, match=message):
            found(*refused)
    with pytest.raises(InvalidInputError, match="assigned twice"):
        check_statement(update("s", "S"), schema, all_rows=True, flag="--all-rows")
