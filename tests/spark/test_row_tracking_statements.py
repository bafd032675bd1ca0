"""Statements on tables with row tracking: Paimon's documented example, random lives, and a driver that is killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.store.local import LocalStore
from airflow_paimon.core.table.data_file_paths import data_file_path
from airflow_paimon.core.table.manifest_lists import read_both_manifest_lists
from airflow_paimon.core.table.scan import plan_snapshot
from airflow_paimon.core.table.table import Table
from airflow_paimon.spark import sql
from tests.data.row_statements import with_ids
from tests.randomness import every, lives
from tests.stateful.test_row_id_machine import MACHINE, RowIdMachine, Rows, Side

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TRACKED = {"row-tracking.enabled": "true"}


@pytest.mark.every(2, first=1)
@pytest.mark.parametrize("by", ["id = 11", "_ROW_ID = 0"])
def test_the_documented_example(spark: SparkSession, tmp_path: Path, by: str) -> None:
    """Create, insert, update, merge and delete as on Paimon's page *Row tracking*: all rows with ids and versions."""
    table = create_table(str(tmp_path), "d.t", [("id", "INT"), ("data", "STRING")], options=TRACKED)
    source = spark.createDataFrame([(22, "new-data-merge"), (33, "c")], "id int, data string")

    def after(statement: str, **more: Any) -> list[tuple[Any, ...]]:
        sql(spark, str(tmp_path), statement, **more)
        return [(i, data, row_id, version) for i, data, row_id, version in with_ids(table)]

    assert after("INSERT INTO d.t VALUES (11, 'a'), (22, 'b')") == [(11, "a", 0, 1), (22, "b", 1, 1)]
    assert after(f"UPDATE d.t SET data = 'new-data-update' WHERE {by}") == [
        (11, "new-data-update", 0, 2),
        (22, "b", 1, 1),
    ]
    merge = (
        "MERGE INTO d.t USING s ON t.id = s.id WHEN MATCHED THEN UPDATE SET t.data = s.data "
        "WHEN NOT MATCHED THEN INSERT *"
    )
    assert after(merge, views={"s": source}) == [
        (11, "new-data-update", 0, 2),
        (22, "new-data-merge", 1, 3),
        (33, "c", 2, 3),
    ]
    assert after(f"DELETE FROM d.t WHERE {by}") == [(22, "new-data-merge", 1, 3), (33, "c", 2, 3)]


@pytest.mark.random
def test_random_sequences_of_statements(spark: SparkSession, tmp_path: Path) -> None:
    """The state machine of row ids, with statements that Spark evaluates, on main and on the branch."""
    folders = iter(range(1000))

    class Statements(RowIdMachine):
        def new_warehouse(self) -> str:
            return str(tmp_path / str(next(folders)))

        def change(self, side: Side, kind: str, every: int, dt: str, word: str, new: Rows) -> None:
            name = "d.t" if side.view.branch_name == "main" else "d.`t$branch_fix`"
            touched = f"k % {every} = 0"
            source = (
                f"SELECT CAST(id AS INT) AS k, '{word}' AS v, '{dt}' AS dt FROM range(0, 500) "
                f"WHERE id % {every} = 0 OR id IN ({', '.join(map(str, new)) or 'NULL'})"
            )
            inserts = "WHEN NOT MATCHED AND s.k IN ({}) THEN INSERT (k, v, dt) VALUES (s.k, 'new', s.dt)"
            text = {
                "update": f"UPDATE {name} SET v = '{word}' WHERE {touched}",
                "delete": f"DELETE FROM {name} WHERE {touched}",
                "move": f"UPDATE {name} SET dt = '{dt}' WHERE {touched} AND dt <> '{dt}'",
                "merge": f"MERGE INTO {name} AS t USING ({source}) AS s ON t.k = s.k WHEN MATCHED AND s.{touched} "
                f"THEN UPDATE SET v = s.v {inserts.format(', '.join(map(str, new)))}",
            }[kind]
            sql(spark, self.warehouse, text)

    run_state_machine_as_test(Statements, settings=settings(MACHINE, max_examples=lives(1, 6), stateful_step_count=12))


# What the storage is asked to do when the process dies, and whether it has done it.
POINTS = [
    ("create", "/operations/", True),
    ("open_output", "/bucket-0/", False),
    ("create", "/manifest/", False),
    ("create", "/manifest/", True),
    ("create", "/snapshot/snapshot-", False),
    ("create", "/snapshot/snapshot-", True),
    ("replace", "/snapshot/LATEST", False),
]
MERGE = (
    "MERGE INTO d.t USING (SELECT * FROM VALUES (1, 'changed'), (2, NULL), (9, 'new') AS s(k, v)) AS s ON t.k = s.k "
    "WHEN MATCHED AND s.v IS NULL THEN DELETE WHEN MATCHED THEN UPDATE SET v = s.v WHEN NOT MATCHED THEN INSERT *"
)


def die_at(method: str, part: str, done: bool) -> None:
    """Let this process be killed at such a call."""
    real = getattr(LocalStore, method)

    def call(self: LocalStore, path: str, *arguments: Any) -> Any:
        if part not in f"/{path}":
            return real(self, path, *arguments)
        if done:
            real(self, path, *arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    def many(self: LocalStore, files: Mapping[str, bytes]) -> None:
        for path, data in files.items():
            call(self, path, data)

    setattr(LocalStore, method, call)
    if method == "create":
        LocalStore.create_many = many  # type: ignore[method-assign]
    if method == "replace":
        LocalStore.hint = call  # type: ignore[method-assign]


def killed(spark: SparkSession, warehouse: str, point: tuple[str, str, bool]) -> None:
    """Run the statement in a process of its own, which shares the JVM and dies there."""
    child = os.fork()
    if child == 0:
        try:
            die_at(*point)
            sql(spark, warehouse, MERGE, operation_id="op")
        finally:
            os._exit(3)  # it should not get here
    end = time.monotonic() + 600
    found, status = os.waitpid(child, os.WNOHANG)
    while not found and time.monotonic() < end:
        time.sleep(0.02)
        found, status = os.waitpid(child, os.WNOHANG)
    if not found:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert found and os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, f"{point}: {status}"


def files_of(table: Table) -> set[str]:
    return {p for p in table.store.walk("") if p.startswith(("bucket-0/", "manifest/"))}


def referenced(table: Table) -> set[str]:
    out = set()
    for snapshot in table.snapshots():
        schema = table.schema(snapshot.schema_id)
        lists = [snapshot.base_manifest_list, snapshot.delta_manifest_list]
        lists += [m.file_name for part in read_both_manifest_lists(table, snapshot) for m in part]
        out |= {f"manifest/{name}" for name in lists}
        for split in plan_snapshot(table, snapshot, schema).splits:
            out |= {data_file_path(schema, split.values, split.bucket, f) for f in split.files}
    return out


def test_a_driver_that_is_killed_in_the_middle_of_a_statement(spark: SparkSession, tmp_path: Path) -> None:
    """A retry with the operation id does the work once, and leaves no file besides those of the killed process."""
    for number, point in every(3, enumerate(POINTS)):
        warehouse = str(tmp_path / str(number))
        table = create_table(warehouse, "d.t", [("k", "INT"), ("v", "STRING")], options=TRACKED)
        for first in (1, 3):
            sql(spark, warehouse, f"INSERT INTO d.t VALUES ({first}, 'old'), ({first + 1}, 'old')")
        before, clean = with_ids(table), files_of(table)
        assert clean == referenced(table)
        killed(spark, warehouse, point)
        committed = table.latest_snapshot_id() == 3
        assert committed == (number >= POINTS.index(("create", "/snapshot/snapshot-", True))), point
        wanted = [(1, "changed", 0, 3), (3, "old", 2, 2), (4, "old", 3, 2), (9, "new", 4, 3)]
        assert with_ids(table) == (wanted if committed else before)
        left = files_of(table) - referenced(table)
        assert committed <= (not left), "what is committed leaves nothing"
        result = sql(spark, warehouse, MERGE, operation_id="op")
        assert result["details"].get("replayed", False) == committed
        counts = {k: v for k, v in result["details"].items() if k.startswith("rows_")}
        assert counts == {"rows_updated": 1, "rows_deleted": 1, "rows_inserted": 1}
        assert (result["snapshot_before"], result["snapshot_after"], table.latest_snapshot_id()) == (2, 3, 3)
        assert with_ids(table) == wanted
        assert files_of(table) - referenced(table) == left and referenced(table) <= files_of(table)
        assert sql(spark, warehouse, MERGE, operation_id="op")["details"]["replayed"] and with_ids(table) == wanted
