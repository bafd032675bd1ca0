"""A stream from a branch that is killed with all its processes and started again, on each storage and through each
catalog: every row comes once."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_paimon.core.table.table import Table
from airflow_paimon.data import read_arrow, write_arrow
from tests.core.tables import run
from tests.places import PLACES, Servers
from tests.randomness import choose_seed
from tests.reach import copying
from tests.stream_kills import end

KILLS = 2
_SECONDS = 240.0
COLUMNS = [("k", "BIGINT NOT NULL"), ("v", "STRING")]


def feed(table: Table, number: int) -> None:
    write_arrow(
        table, pa.table({"k": pa.array(range(number * 3, number * 3 + 3), pa.int64()), "v": [f"v{number}"] * 3})
    )


def keys(table: Table) -> list[int]:
    return sorted(read_arrow(table)["k"].to_pylist())


@pytest.mark.parametrize("name", PLACES)
def test_every_row_of_a_branch_comes_once(servers: Servers, name: str, tmp_path: Path, java_home: Path) -> None:
    draw = random.Random(f"{choose_seed()} {name}")
    place = servers.place(name)
    main = place.create("source", COLUMNS)
    copy = place.create("copy", COLUMNS)
    feed(main, 0)
    run(main, "create_branch", **place.request("source", branch="fix", snapshot=1))
    fix, fed = main.branch("fix"), 1
    # A stream that dies with a catalog's lock leaves it for as long as that.
    brief = {"lock-acquire-timeout": "20 s"} if place.catalog else {}
    (tmp_path / "options.json").write_text(json.dumps({**place.options, **brief}))
    shared = {"warehouse": place.warehouse, "storage-options": str(tmp_path / "options.json")}
    source = {
        **shared,
        "table": place.full("source"),
        "branch": "fix",
        "maxFilesPerTrigger": "1",
        "poll-interval": "100 ms",
    }
    target = {**shared, "table": place.full("copy")}
    for life in range(KILLS + 1):
        stream = copying.start(source, target, tmp_path)
        try:
            before = copy.latest_snapshot_id() or 0
            for _ in range(3):
                feed(fix, fed)
                fed += 1
            wait_until(lambda before=before: (copy.latest_snapshot_id() or 0) > before, tmp_path)
            if life < KILLS:
                time.sleep(draw.uniform(0, 2))
            else:
                wait_until(lambda: len(keys(copy)) >= len(keys(fix)), tmp_path)
        finally:
            end(stream)
    assert keys(copy) == keys(fix) == list(range(fed * 3))
    assert keys(main) == [0, 1, 2]
    for table in ("source", "copy"):
        assert run(main, "check_table", **place.request(table)).details["errors"] == 0


def wait_until(seen: Callable[[], bool], folder: Path) -> None:
    until = time.monotonic() + _SECONDS
    while not seen():
        said = (folder / "copying.txt").read_text()[-2000:]
        assert time.monotonic() < until, f"the stream wrote nothing: {said}"
        time.sleep(0.2)
