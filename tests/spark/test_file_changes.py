"""Files written again by positions: random changes against a model. And statements as values, without Spark."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_paimon.core.commit.rewrites import commit_rewrite
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.live_files import BucketSplit
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import copy_on_write, read_arrow
from airflow_paimon.data.arrow_write import write_arrow
from airflow_paimon.data.copy_on_write import plan_copy_on_write
from airflow_paimon.data.files import write
from airflow_paimon.data.files.arrow_types import FILE_NAME, FILE_POSITION, ROW_ID
from airflow_paimon.data.files.pruning import value_bounds
from airflow_paimon.data.read import read_split
from airflow_paimon.data.read_splits import plan_read, with_positions
from airflow_paimon.spark.statements.append import file_parts, outcome_of, plan_rewrite
from airflow_paimon.spark.statements.evaluate import CHANGE, DELETED, INSERTED, MATCHED, UPDATED
from airflow_paimon.spark.statements.file_changes import rewrite_files
from airflow_paimon.spark.statements.row_deletions import delete_marked_rows, deletion_outcome, row_deletion_of
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
from tests.data.row_statements import IDS
from tests.randomness import chance

SEEDS = 6


def a_table(warehouse: Path, **options: str) -> Table:
    columns = [("id", "INT"), ("s", "STRING"), ("r", "ROW<a INT, b STRING>"), ("dt", "STRING")]
    return create_table(str(warehouse), "d.t", columns, partition_keys=["dt"], options={"bucket": "-1", **options})


def update(*columns: str, kind: Any = "MERGE") -> Statement:
    clauses = (
        Clause(
            action="update",
            assignments=tuple(Assignment(key=(c,), value=Fragment(line=1, column=9)) for c in columns),
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
@pytest.mark.every(2)
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


def keyed_rows(chance: random.Random, first: int, count: int) -> list[dict[str, Any]]:
    return [{**_row(chance), "id": first + i} for i in range(count)]


def twins(warehouse: Path, chance: random.Random, one: dict[str, str], other: dict[str, str]) -> list[Table]:
    """Two tables with the same rows in the same files, of several row groups."""
    tables = [a_table(warehouse / str(number), **options) for number, options in enumerate((one, other))]
    for first in (0, 100, 200):
        rows = keyed_rows(chance, first, chance.randint(1, 40))
        for table in tables:
            write_arrow(table, pa.Table.from_pylist(rows, read_arrow(table).schema))
    return tables


def changes_of(table: Table, fates: dict[int, tuple[str, dict[str, Any]]], columns: list[str]) -> pa.Table:
    """What Spark gives for these fates of rows, by their ids, in the order of files and positions."""
    tracked = TableOptions(table.schema().options).row_tracking
    read, splits = plan_read(plan_copy_on_write(table).scan, columns=[*columns, *([ROW_ID] if tracked else [])])
    rows = [r for s in splits for b in read_split(with_positions(read), s) for r in b.to_pylist()]
    rows = [{**r, CHANGE: fates[r["id"]][0], **fates[r["id"]][1]} for r in rows if r["id"] in fates]
    order = sorted(rows, key=lambda r: (r[FILE_NAME], r[FILE_POSITION]))
    schema = with_positions(read).output_schema.insert(2, pa.field(CHANGE, pa.string()))
    return pa.Table.from_pylist(order, schema)


@pytest.mark.parametrize("tracked", [False, True])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.every(3)
def test_copied_columns_are_those_of_files_that_are_written_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, tracked: bool
) -> None:
    """Rows, ids and versions; and the statistics are those of the rows."""
    draw = chance(f"copied columns {seed} {tracked}")
    monkeypatch.setattr(write, "ROW_GROUP_ROWS", 9)
    options = {"row-tracking.enabled": "true"} if tracked else {}
    copying, whole = twins(tmp_path, draw, options, options)
    for _ in range(4):
        columns = draw.choice([["s"], ["r"], ["s", "r"]])
        ids = [row["id"] for row in read_arrow(whole).to_pylist()]
        fates = {i: (draw.choice([UPDATED, MATCHED]), _row(draw)) for i in draw.sample(ids, draw.randint(1, 9))}
        fates = {i: (kind, {n: row[n] for n in columns} if kind == UPDATED else {}) for i, (kind, row) in fates.items()}
        for table in (copying, whole):
            monkeypatch.setattr(copy_on_write, "COPIED_BYTES", 0 if table is copying else 1 << 40)
            changes = changes_of(table, fates, ["id", *columns]).drop(["id"])
            plan = plan_copy_on_write(table)
            read, splits = plan_read(plan.scan)
            rewrite = plan_rewrite(update(*columns), plan, with_positions(read), file_parts(splits), False)
            done = rewrite_files(rewrite, changes.to_batches())
            commit_rewrite(table, done.messages, read=plan.scan, operation="MERGE")
            if table is copying:
                added = [f for m in done.messages for f in m.new_files]
                assert len(added) == len(done.files), "each file has a successor of its own"
        columns_read = [*copying.schema().field_names, *(IDS if tracked else [])]
        assert _sorted(read_arrow(copying, columns=columns_read).to_pylist()) == _sorted(
            read_arrow(whole, columns=columns_read).to_pylist()
        )
    for split in plan_scan(copying).splits:
        for file in split.files:
            _check_statistics(copying, replace(split, files=(file,)))


def _check_statistics(table: Table, split: BucketSplit) -> None:
    [file] = split.files
    read, parts = plan_read(replace(plan_scan(table), splits=(split,)))
    rows = pa.Table.from_batches([b for part in parts for b in read_split(read, part)])
    found = value_bounds(file, table.schema(), table.schema())
    assert found.keys() >= {"id", "s", "dt"} and file.row_count == rows.num_rows
    for name, bounds in found.items():
        values = [v for v in rows.column(name).to_pylist() if v is not None]
        assert (bounds.nulls, bounds.low, bounds.high) == (
            rows.num_rows - len(values),
            min(values, default=None),
            max(values, default=None),
        )


@pytest.mark.parametrize("tracked", [False, True])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.every(3)
def test_marked_rows_are_those_of_files_that_are_written_again(tmp_path: Path, seed: int, tracked: bool) -> None:
    """By deletion vectors: the same rows, ids and versions, in several tasks as well, and no file is read again."""
    draw = chance(f"marked rows {seed} {tracked}")
    options = {"row-tracking.enabled": "true"} if tracked else {}
    marking, rewriting = twins(tmp_path, draw, {**options, "deletion-vectors.enabled": "true"}, options)
    names = list(marking.schema().field_names)
    for number in range(4):
        ids = [row["id"] for row in read_arrow(rewriting).to_pylist()]
        kinds = {i: draw.choice([UPDATED, DELETED, MATCHED]) for i in draw.sample(ids, min(len(ids), 25))}
        fates = {i: (k, {**_row(draw), "id": i} if k == UPDATED else {}) for i, k in kinds.items()}
        fresh = keyed_rows(draw, 1000 * (number + 1), draw.randint(0, 4))
        own = [{FILE_NAME: None, FILE_POSITION: None, CHANGE: INSERTED, **row} for row in fresh]
        found = {}
        for table in (marking, rewriting):
            changes = changes_of(table, fates, names)
            changes = pa.concat_tables([pa.Table.from_pylist(own, changes.schema), changes])
            plan = plan_copy_on_write(table)
            if table is marking:
                plan_of_tasks = row_deletion_of(plan, counts_matches=True, dry_run=False)
                cut = draw.randint(len(own), changes.num_rows)
                parts = [changes.slice(0, cut), changes.slice(cut)]
                results = [delete_marked_rows(plan_of_tasks, part.to_batches(max_chunksize=10)) for part in parts]
                outcome = deletion_outcome(plan_of_tasks, plan, results)
            else:
                read, splits = plan_read(plan.scan)
                rewrite = plan_rewrite(update(*names), plan, with_positions(read), file_parts(splits), False)
                outcome = outcome_of(plan, [rewrite_files(rewrite, changes.to_batches())])
            found[table is marking] = (outcome.updated, outcome.deleted, outcome.inserted)
            commit_rewrite(table, outcome.messages, read=plan.scan, operation="MERGE")
        assert found[True] == found[False]
        columns = [*names, *(IDS if tracked else [])]
        assert _sorted(read_arrow(marking, columns=columns).to_pylist()) == _sorted(
            read_arrow(rewriting, columns=columns).to_pylist()
        )


def test_a_row_that_is_matched_twice_is_found_in_one_task_and_in_two(tmp_path: Path) -> None:
    table = a_table(tmp_path, **{"deletion-vectors.enabled": "true"})
    rows = [{"id": 1, "s": "a", "r": None, "dt": "p"}, {"id": 2, "s": "b", "r": None, "dt": "p"}]
    write_arrow(table, pa.Table.from_pylist(rows, read_arrow(table).schema))
    files = sorted(table.store.walk(""))
    plan = plan_copy_on_write(table)
    marking = row_deletion_of(plan, counts_matches=True, dry_run=False)
    first = changes_of(table, {1: (UPDATED, {"s": "x"}), 2: (MATCHED, {})}, ["id", "s", "r", "dt"])
    second = changes_of(table, {2: (UPDATED, {"s": "y"})}, ["id", "s", "r", "dt"])
    with pytest.raises(InvalidInputError, match=r"MERGE_CARDINALITY_VIOLATION.*row 1 of"):
        delete_marked_rows(marking, [*first.to_batches(), *second.to_batches()])
    results = [delete_marked_rows(marking, rows.to_batches()) for rows in (first, second)]
    with pytest.raises(InvalidInputError, match=r"MERGE_CARDINALITY_VIOLATION.*row 1 of"):
        deletion_outcome(marking, plan, results)
    assert sorted(table.store.walk("")) == files, "what was written is deleted"


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
        return column_of(statement, Assignment(key=key, value=Fragment(line=2, column=5)), schema)

    assert [found("s"), found("T", "S"), found("d", "t", "dt")] == ["s", "s", "dt"]
    with pytest.raises(InvalidInputError, match=r"no column 'x\.s' \(line 2, position 5\)"):
        found("x", "s")
    assert path_of(statement, Assignment(key=("T", "r", "A"), value=Fragment()), schema) == ("r", "a")
    for refused, message in {("r", "x"): "'r' has no field 'x' .line 2.*fields: a", ("s", "a"): "it is a"}.items():
        with pytest.raises(InvalidInputError, match=message):
            found(*refused)
    with pytest.raises(InvalidInputError, match="assigned twice"):
        check_statement(update("s", "S"), schema, all_rows=True, flag="--all-rows")
