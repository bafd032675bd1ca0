"""Corrections beside Flink jobs that never pause, also with a task manager that is killed; what Flink itself does wrong
there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa
import pytest

from airflow_paimon import check_table, compact, create_branch, expire_snapshots, merge_branch
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import write_arrow
from tests.flink_cluster import Flink
from tests.oracles.test_flink import KINDS, LATER, WRONG, Row, World, correct, expected, merged, rows_of, start

pytestmark = [pytest.mark.oracle, pytest.mark.slow, pytest.mark.thorough]

KEYS = range(1, 1001)


@contextmanager
def busy(world: World) -> Iterator[list[Row]]:
    """Feed rows of a partition of their own without a pause, and give what was fed in the end."""
    fed: list[Row] = []
    stop = threading.Event()

    def run() -> None:
        while not stop.wait(0.1):
            fed.extend(some := [("busy", n, n, n) for n in range(len(fed), len(fed) + 20)])
            world.flink.feed(f"feed_{world.database}", some)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield fed
    finally:
        stop.set()
        thread.join()


def shows(table: Table, wanted: list[Row]) -> bool:
    """Whether a table has these rows in their partition."""
    return [row for row in rows_of(table) if row[0] == wanted[0][0]] == sorted(wanted, key=repr)


def until_shown(flink: Flink, table: Table, wanted: list[Row]) -> None:
    flink._wait(lambda: shows(table, wanted), f"{len(wanted)} rows in {table.name}")


def left_alone(flink: Flink, table: Table) -> None:
    """Wait for three commits of the job."""
    then = table.latest_snapshot().commit_identifier  # type: ignore[union-attr]
    flink.committed(table, then + 3)


def test_tables_of_all_kinds_are_exact_while_jobs_write_them_and_die(flink: Flink) -> None:
    """The task manager is killed before the branch, the correction and the publish of a day, and after it."""
    world = start(flink, "beside", KINDS, settings={"execution.checkpointing.interval": "1s"})
    tables, model = world.tables, {kind: list[Row]() for kind in KINDS}
    with busy(world) as fed:
        for killed_before in range(4):
            day = f"d{killed_before}"
            wrong: list[Row] = [(day, n, n * 100, n) for n in KEYS]
            flink.feed(f"feed_{world.database}", wrong)
            for table in tables.values():
                until_shown(flink, table, wrong)
                left_alone(flink, table)
            right = pa.Table.from_pylist([dict(zip(("dt", "id", "v", "w"), (day, n, n, n), strict=True)) for n in KEYS])
            steps: list[Callable[[Table], object]] = [
                lambda t: create_branch(t, "fix", snapshot=t.latest_snapshot_id(), if_exists="replace"),
                lambda t, right=right, day=day: write_arrow(  # type: ignore[misc]
                    t.branch("fix"), right, mode="overwrite", partition={"dt": day}
                ),
                # The job merges small files of tables without keys when they are some seconds old.
                lambda t: merge_branch(t, "fix", revert_compaction=True),
            ]
            for number, step in enumerate(steps):
                if number == killed_before:
                    flink.kill_tasks()
                for table in tables.values():
                    step(table)
            if killed_before == len(steps):
                flink.kill_tasks()
            flink.start_tasks()
            late: list[Row] = [(day, 1, None, 55), (day, 2, 5, None), (day, 1000, 7, 7)]
            flink.feed(f"feed_{world.database}", late)
            for kind, table in tables.items():
                rows: list[Row] = [(day, n, n, n) for n in KEYS]
                for row in late:
                    rows = merged(kind, rows, row)
                model[kind] += rows
                until_shown(flink, table, rows)
                compact(table)
                expire_snapshots(table, retain_max=20, older_than="1 h")
    for kind, table in tables.items():
        until_shown(flink, table, fed)
        wanted = sorted([*model[kind], *fed], key=repr)
        assert rows_of(table) == wanted == flink.query(f"SELECT * FROM {table.name}"), kind
        assert not [one for one in check_table(table).details["findings"] if one["severity"] == "error"], kind
    world.end()


def test_flink_s_own_overwrite_is_taken_back_by_an_open_writer_too(flink: Flink) -> None:
    """What Paimon 1.4.2 does without this package; our publish refuses there."""
    world = start(flink, "own_overwrite", {kind: KINDS[kind] for kind in ("partial_lookup", "pk_vectors")})
    world.commit(*WRONG)
    for kind in world.tables:
        flink.batch(f"INSERT OVERWRITE {kind} PARTITION (dt = 'd0') SELECT id, id, w FROM {kind} WHERE dt = 'd0'")
    world.commit(*LATER)
    world.checkpoint()
    world.end()
    query = "SELECT id, v, w FROM {} WHERE id = 1"
    assert flink.query(query.format("partial_lookup")) == [(1, 100, 55)]  # (1, 1, 55) would be right
    assert sorted(flink.query(query.format("pk_vectors")), key=repr) == [(1, 1, 1), (1, None, 55)]  # one key, twice


def test_rows_that_a_job_has_read_and_not_committed_are_not_seen(flink: Flink) -> None:
    """A limit: the bucket is quiet by all snapshots, so the publish isn't refused, and its writer is open."""
    world = start(flink, "not_committed", {"pk": "", "partial_lookup": KINDS["partial_lookup"]})
    world.commit(*WRONG)
    for n in range(3):
        world.commit(("d1", n, n, n))
    world.feed(*LATER)
    for table in world.tables.values():
        correct(table)
        merge_branch(table, "fix")
    world.checkpoint()
    world.checkpoint()
    world.end()
    others: list[Row] = [("d1", n, n, n) for n in range(3)]
    assert rows_of(world.tables["pk"]) == expected("pk", *others, *LATER)
    wrong = set(rows_of(world.tables["partial_lookup"])) - set(expected("partial_lookup", *others, *LATER))
    assert wrong == {("d0", 1, 100, 55)}
