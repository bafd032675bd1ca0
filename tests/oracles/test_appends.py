"""Appends to tables whose readers wait for a compaction, beside O3, Paimon's Java engine: it reads what it would have
read had it written and compacted itself, its stream tells every change once, and it goes on.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.data import read_arrow, write_arrow
from airflow_paimon.data.files.arrow_types import arrow_schema
from tests.core.tables import run as operate
from tests.data.corrections import correct
from tests.oracles.drivers import JavaOracle
from tests.oracles.merge_lives import Life, a_life
from tests.oracles.processes import OracleError
from tests.oracles.test_key_compaction import told_rows
from tests.oracles.test_merge_lives import rows_in_one_form, step
from tests.randomness import chance as chance_of
from tests.randomness import every

pytestmark = [pytest.mark.oracle, pytest.mark.random]

VECTORS = {"deletion-vectors.enabled": "true"}
LOOKUP, FULL = {"changelog-producer": "lookup"}, {"changelog-producer": "full-compaction"}
CASES: list[tuple[str, dict[str, str]]] = [
    ("deduplicate", {**VECTORS, "bucket": "-1"}),
    ("deduplicate", {**LOOKUP, "bucket": "2"}),
    ("deduplicate", {**FULL, "bucket": "-1", "file.format": "orc"}),
    ("first-row", {"bucket": "2"}),
    ("first-row", {**LOOKUP, "bucket": "-1"}),
    ("partial-update", {**VECTORS, **LOOKUP, "bucket": "2"}),
    ("partial-update", {**FULL, "bucket": "-1"}),
    ("aggregation", {**VECTORS, "bucket": "2", "file.format": "avro"}),
    ("aggregation", {**LOOKUP, "bucket": "-1"}),
]


def engine_and_bucket(case: tuple[str, dict[str, str]]) -> tuple[str, str]:
    return case[0], case[1]["bucket"]


def life_of(chance: Any, engine: str, options: dict[str, str]) -> Life:
    """A random table; see ``test_key_compaction`` for what Java's lookups do with lone deletes and nulls."""
    life = a_life(chance, "partial-update" if engine == "deduplicate" else engine)
    if engine == "deduplicate":
        life = replace(life, columns={"k": "INT NOT NULL", "a": "STRING", "b": "INT"}, options={}, kinds="+++-",
                       values={n: life.values[n] for n in ("a", "b")})  # fmt: skip
    own = {k: v for k, v in life.options.items() if k not in ("deletion-vectors.enabled", "changelog-producer")}
    life = replace(life, options={**own, "merge-engine": engine, "write-only": "false", **options}, steps=8)
    if engine == "first-row" or "deletion-vectors.enabled" in options or options.get("changelog-producer") == "lookup":
        life = replace(life, nulls=0.0, kinds="+" if engine == "aggregation" else life.kinds)
    return life


def by_java_alone(
    java: JavaOracle, folder: Path, rows: list[dict[str, Any]], *, compacted: bool = False
) -> list[Any] | str:
    """What a copy of the table reads as when Java writes the rows and compacts, ``compacted``: before as well."""
    copy = folder / "d.db" / "twin"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder / "d.db" / "t", copy)
    try:
        if compacted:
            java.do("compact", folder, "d.twin", full=True, options={"write-only": "false"})
        java.write(folder, "d.twin", rows, options={"write-only": "true"})
        java.do("compact", folder, "d.twin", full=True)
        return rows_in_one_form(java.read(folder, "d.twin"))
    except OracleError:
        return "refused"


def put(table: Table, rows: list[dict[str, Any]]) -> None:
    data = pa.Table.from_pylist(rows, arrow_schema(table.schema().fields))
    write_arrow(table, data.append_column("_row_kind", pa.array([r["_row_kind"] for r in rows])))


@pytest.mark.parametrize(("engine", "options"), every(2, CASES), ids=str)
@pytest.mark.every(2)
def test_our_appends_are_javas(java_oracle: JavaOracle, tmp_path: Path, engine: str, options: dict[str, str]) -> None:
    chance = chance_of(f"appends/{engine}/{options}")
    life = life_of(chance, engine, options)
    java_oracle.create_table(tmp_path, "d.t", life.columns, primary_keys=["k"], options=life.options)
    table = open_table(str(tmp_path), "d.t")
    known: dict[int, dict[str, Any]] = {}
    reader, told = str(tmp_path), "changelog-producer" in options
    done: list[Any] = []
    written = 0
    for number in range(life.steps):
        if number % 3 == 2:
            done.append(step(java_oracle, tmp_path, "d.t", life, chance))
            if options.get("bucket") == "-1":  # what it leaves in a bucket that the next write does not touch
                java_oracle.do("compact", tmp_path, "d.t", full=True)
            continue
        rows = life.rows(chance)
        rows = list({r["k"]: r for r in rows}.values()) if engine == "first-row" else rows
        expected = by_java_alone(java_oracle, tmp_path, rows)
        done.append(rows)
        try:
            put(table, rows)
        except InvalidInputError as error:
            assert "have no meaning" in error.message
            continue
        written += 1
        assert expected == rows_in_one_form(java_oracle.read(tmp_path, "d.t")), (life.options, done)
        assert expected == rows_in_one_form(read_arrow(table)), (life.options, done)
        assert all(e.file.level for e in live_entries(table, table.latest_snapshot()).values())
        if told:
            if written == 1:
                java_oracle.open_stream_reader(tmp_path, "d.t", reader)
            assert expected == told_rows(java_oracle, reader, known, read_arrow(table).schema), (life.options, done)
    assert written > 1


@pytest.mark.parametrize(("engine", "options"), every(2, CASES[3:]), ids=str)
@pytest.mark.every(2)
def test_our_upserts_on_branches_are_javas_writes(
    java_oracle: JavaOracle, tmp_path: Path, engine: str, options: dict[str, str]
) -> None:
    """A published upsert gives the rows that Java would have written onto a compacted main, and Java goes on."""
    chance = chance_of(f"upserts/{engine}/{options}")
    life = life_of(chance, engine, options)
    java_oracle.create_table(tmp_path, "d.t", life.columns, primary_keys=["k"], options=life.options)
    table = open_table(str(tmp_path), "d.t")
    put(table, [{**row, "_row_kind": "+I"} for row in life.rows(chance)])
    written = 0
    for _ in range(4):
        step(java_oracle, tmp_path, "d.t", life, chance)
        rows = list({r["k"]: r for r in life.rows(chance)}.values())
        expected = by_java_alone(java_oracle, tmp_path, rows, compacted=True)
        operate(table, "create_branch", branch="fix", snapshot=table.latest_snapshot_id())
        try:
            correct(table, "fix", rows, mode="upsert")
        except InvalidInputError as error:
            assert "have no meaning" in error.message
            operate(table, "delete_branch", branch="fix")
            continue
        written += 1
        operate(table, "merge_branch", branch="fix", writers_stopped=True)
        operate(table, "delete_branch", branch="fix")
        touched = {r["k"] for r in rows}
        assert of_keys(expected, touched) == of_keys(rows_in_one_form(java_oracle.read(tmp_path, "d.t")), touched)
        assert rows_in_one_form(java_oracle.read(tmp_path, "d.t")) == rows_in_one_form(read_arrow(table))
    assert written


def of_keys(rows: list[Any] | str, keys: set[int]) -> Any:
    return [r for r in rows if r[0] in keys] if not isinstance(rows, str) else rows


INPUT = {"changelog-producer": "input", "bucket": "2"}


def stream(java: JavaOracle, reader: str) -> list[tuple[Any, ...]]:
    """What the stream tells next: the changes of each key in order."""
    found: list[Any] = []
    while (told := java.stream_read(reader)[0]).num_rows:
        found += [tuple(r.values()) for r in told.to_pylist()]
    return sorted(found, key=lambda row: row[0])


@pytest.mark.parametrize(
    "options",
    [INPUT, {**INPUT, **VECTORS, "bucket": "-1"}, {**INPUT, "sequence.field": "b", "ignore-delete": "true"}],
    ids=str,
)
@pytest.mark.every(2)
def test_our_changelog_of_the_input_is_javas(java_oracle: JavaOracle, tmp_path: Path, options: dict[str, str]) -> None:
    """Of the same rows in two tables, one written by us, Java's streams tell the same changes in the same order."""
    chance = chance_of(f"input/{options}")
    life = life_of(chance, "deduplicate", options)
    tables = {name: tmp_path / name for name in ("d.ours", "d.theirs")}
    for name, folder in tables.items():
        java_oracle.create_table(folder, name, life.columns, primary_keys=["k"], options=life.options)
    ours, theirs = tables
    for number in range(6):
        rows = life.rows(chance)
        put(open_table(str(tables[ours]), ours), rows)
        java_oracle.write(tables[theirs], theirs, rows)
        if number == 0:
            for name, folder in tables.items():
                java_oracle.open_stream_reader(folder, name, str(folder))
        told = [stream(java_oracle, str(folder)) for folder in tables.values()]
        assert told[0] == told[1]
        assert told[0] or "ignore-delete" in options or number == 0
        assert rows_in_one_form(java_oracle.read(tables[ours], ours)) == rows_in_one_form(
            java_oracle.read(tables[theirs], theirs)
        )
