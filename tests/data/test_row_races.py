"""Six processes update, delete, merge, append and compact one row-tracking table: nothing is lost, no id is reused."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_paimon.core.errors import ConflictError
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import open_context
from airflow_paimon.core.requests.requests import Compact
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.data import write_arrow
from airflow_paimon.data.compact import compact
from tests.core.tables import run
from tests.data.row_statements import Row, statement, with_ids
from tests.oracles.layout import REPO_ROOT
from tests.randomness import chance

pytestmark = pytest.mark.random

PROCESSES, STATEMENTS = 6, 8
TRIES = 200
Done = list[tuple[str, int]]
"""What a process has written: kind and key."""


Do = Callable[[Table, str, str, int, int], object]


def work(folder: str, number: int, seed: int, do: Do | None = None, statements: int = STATEMENTS) -> Done:
    """Count up the process's own rows, delete some, insert others; every change is made until it lands."""
    chance_ = random.Random(seed)
    table = open_table(f"{folder}/wh", "d.t")
    done: Done = []
    for turn in range(statements):
        key = 100 * number + chance_.randrange(10)
        new = 100 * number + 10 + turn
        kind = chance_.choice(["update", "update", "delete", "merge", "append", "compact"])
        for _ in range(TRIES):
            try:
                (do or change_rows)(table, folder, kind, key, new)
                break
            except ConflictError:
                continue
        else:
            raise AssertionError(f"{kind} never landed")
        done.append((kind, new if kind == "append" else key))
        if kind == "merge":
            done.append(("append", new))
    return done


def change_rows(table: Table, folder: str, kind: str, key: int, new: int) -> None:
    def change(row: Row) -> Row | None:
        if row["k"] != key:
            return row
        return None if kind == "delete" else {**row, "n": row["n"] + 1}

    if kind == "append":
        write_arrow(table, rows_of([new]))
    elif kind == "compact":
        request = build_request("compact", {"warehouse": f"{folder}/wh", "table": "d.t", "min_files": 2})
        assert isinstance(request, Compact)
        compact(open_context(request), request)
    else:
        statement(table, change, [{"k": new, "n": 0}] if kind == "merge" else [])


def rows_of(keys: list[int]) -> pa.Table:
    return pa.table({"k": pa.array(keys, pa.int32()), "n": pa.array([0] * len(keys), pa.int32())})


def race(folder: Path, modules: Sequence[str]) -> None:
    """Run one process of each module beside the others, and check what they leave."""
    options = {"bucket": "-1", "row-tracking.enabled": "true"}
    table = create_table(str(folder / "wh"), "d.t", [("k", "INT"), ("n", "INT")], options=options)
    for number in range(len(modules)):
        write_arrow(table, rows_of([100 * number + i for i in range(10)]))
    first = {row[0]: row[-2] for row in with_ids(table)}
    seeds = [chance(f"rows/{n}").randrange(10**9) for n in range(len(modules))]
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", module, str(folder), str(number), str(seed)],
            cwd=REPO_ROOT,
            stdout=subprocess.PIPE,
        )
        for number, (module, seed) in enumerate(zip(modules, seeds, strict=True))
    ]
    done = [json.loads(worker.communicate(timeout=500)[0].splitlines()[-1]) for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * len(modules)
    expected = dict.fromkeys(first, 0)
    for steps in done:
        for kind, key in steps:
            if kind == "append":
                expected[key] = 0
            elif kind == "delete":
                expected.pop(key, None)
            elif kind in ("update", "merge") and key in expected:
                expected[key] += 1
    found = with_ids(table)
    assert {row[0]: row[1] for row in found} == expected
    assert len({row[-2] for row in found}) == len(found)
    assert {row[0]: row[-2] for row in found if row[0] in first} == {k: i for k, i in first.items() if k in expected}
    head = table.latest_snapshot()
    assert head is not None and max(row[-1] for row in found) <= head.id
    assert table.snapshot_ids() == list(range(1, head.id + 1))
    assert not [f for f in run(table, "check_table").details["findings"] if "row-ids" in f["id"]]


def test_processes_beside_each_other(tmp_path: Path) -> None:
    race(tmp_path, ["tests.data.test_row_races"] * PROCESSES)


if __name__ == "__main__":
    print(json.dumps(work(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
