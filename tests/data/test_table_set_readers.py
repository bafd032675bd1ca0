"""Processes that read a table set while it is published again and again, and snapshots expire: they see no mixture."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_paimon import open_table_set
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.core.table.table_sets import same_versions
from airflow_paimon.data import read_arrow, write_arrow
from tests.core.tables import run
from tests.environment import REPO_ROOT

NAMES = ("d.keyed", "d.plain")
MANY = 1000
PUBLISHES = MANY if os.environ.get("AIRFLOW_PAIMON_SOAK") else 40
EXPIRE_EVERY = 20


def publish(tables: list[Table], number: int) -> None:
    """Write the number into one table, then into the other, then make the version; a reader may look at any moment."""
    for table in tables:
        write_arrow(table, pa.table({"k": pa.array([1], pa.int64()), "n": [number]}), mode="overwrite")
    made = run(tables[0], "create_table_set", table_set="pair", member=[NAMES[1]], keep=3, retention="2 min")
    assert made.details["number"] == number
    if number % EXPIRE_EVERY == 0:
        for table in tables:
            run(table, "expire_snapshots", retain_max=1, older_than="0 s", grace="0 s", writers_stopped=True,
                retry_window="0 s", keep_undo=False)  # fmt: skip


def numbers(tables: list[pa.Table]) -> tuple[int, ...]:
    return tuple(one for table in tables for one in table.column("n").to_pylist())


def read_until(warehouse: str, last: int) -> dict[str, Any]:
    """Read both tables in each way until the last version is there; the number written must be the version's own."""
    reads, heads_apart, newest, wrong = 0, 0, 0, []
    tables = [open_table(warehouse, name) for name in NAMES]
    while newest < last:
        found = open_table_set(warehouse, "pair")
        with same_versions():
            by_version = numbers([read_arrow(table, "set:pair") for table in tables])
        by_set = numbers([found[name].to_arrow() for name in NAMES])
        by_tag = numbers([read_arrow(table, found.tag) for table in tables])
        if by_set != by_tag or by_set != (found.number,) * 2 or len(set(by_version)) != 1 or by_version[0] < newest:
            wrong.append((found.number, by_set, by_tag, by_version))
        heads = [table.latest_snapshot() for table in tables]
        heads_apart += len({head.id for head in heads if head is not None}) != 1
        newest, reads = max(newest, found.number), reads + 1
    return {"reads": reads, "heads_apart": heads_apart, "wrong": wrong}


@pytest.mark.random
def test_readers_over_many_publishes_see_no_mixture(tmp_path: Path) -> None:
    columns = [("k", "BIGINT NOT NULL"), ("n", "BIGINT")]
    keyed = create_table(str(tmp_path), NAMES[0], columns, primary_keys=["k"], options={"bucket": "1"})
    tables = [keyed, create_table(str(tmp_path), NAMES[1], columns)]
    publish(tables, 1)
    command = [sys.executable, "-m", __spec__.name, str(tmp_path), str(PUBLISHES)]
    readers = [subprocess.Popen(command, cwd=REPO_ROOT, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        for number in range(2, PUBLISHES + 1):
            publish(tables, number)
        found = [json.loads(reader.communicate(timeout=500)[0]) for reader in readers]
    finally:
        for reader in readers:
            reader.kill()
            reader.communicate()
    assert [one["wrong"] for one in found] == [[], []]
    assert all(one["reads"] > 0 for one in found)
    if PUBLISHES == MANY:
        assert sum(one["heads_apart"] for one in found) > 0, "no reader has looked while a publish was under way"


if __name__ == "__main__":
    print(json.dumps(read_until(sys.argv[1], int(sys.argv[2]))))
