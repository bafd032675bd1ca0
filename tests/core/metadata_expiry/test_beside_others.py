"""Maintenance gets through beside processes that never pause, and takes nothing away that any of them needs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from airflow_paimon.core.table.table import Table
from tests.core.metadata_expiry.beside import AT_ONCE, NOW
from tests.core.tables import append, make_table, run
from tests.environment import REPO_ROOT
from tests.randomness import choose_seed, lives
from tests.soundness import assert_sound

pytestmark = pytest.mark.random


@contextmanager
def active_writers(warehouse: Path, *roles: str) -> Iterator[None]:
    """Processes that do their work until the end of the block; they are killed then."""
    logs = {f"{role}-{at}": warehouse / f"{role}-{at}.log" for at, role in enumerate(roles)}
    command = [sys.executable, "-m", "tests.core.metadata_expiry.beside", str(warehouse)]
    processes = []
    for name, log in logs.items():
        with log.open("wb") as out:
            asked = [*command, name.partition("-")[0], f"{choose_seed()}/{name}"]
            processes.append(subprocess.Popen(asked, cwd=REPO_ROOT, stdout=out, stderr=subprocess.STDOUT))
    try:
        yield
        assert [p.poll() for p in processes] == [None] * len(roles), "one has ended"
    finally:
        for process in processes:
            process.kill()
            process.wait()
        said = {name: log.read_text() for name, log in logs.items() if log.stat().st_size}
        assert not said


def wait_for_writers(table: Table, commits: int) -> None:
    first = table.latest_snapshot_id() or 0
    for _ in range(12_000):
        if (table.latest_snapshot_id() or 0) >= first + commits:
            return
        time.sleep(0.05)
    raise AssertionError("the writer doesn't write")


def plant_orphans(folder: Path) -> list[Path]:
    found = [folder / f"manifest/manifest-{uuid.uuid4()}-{n}" for n in range(3)]
    for path in found:
        path.write_bytes(b"left over")
        os.utime(path, (1, 1))
    return found


def test_each_run_gets_through_beside_writers_tags_and_branches(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    for dt in "abc":
        append(table, dt)
    with active_writers(tmp_path, "write", "tag", "branch"):
        wait_for_writers(table, 5)
        for number in range(lives(2, 5)):
            wait_for_writers(table, 2)
            asked = {**NOW, **(AT_ONCE if number % 2 else {}), "now": str(int(time.time() * 1000) + 1000)}
            assert run(table, "expire_snapshots", **asked).details["expired"]["main"]["snapshots"] > 0
            tag = f"old{number}"
            run(table, "create_tag", tag=tag, time_retained="1 ms")
            later = str(int(time.time() * 1000) + 1000)
            assert run(table, "expire_tags", **AT_ONCE, now=later).details["expired"]["main"] == [tag]
            run(table, "create_branch", branch=tag, retention="1 s")
            later = str(int(time.time() * 1000) + 5000)
            assert tag in {b["branch"] for b in run(table, "expire_branches", now=later).details["expired"]}
            orphans = plant_orphans(tmp_path / "d.db/t")
            run(table, "remove_orphan_files", older_than="1 h")
            assert not [path for path in orphans if path.exists()]
    run(table, "expire_snapshots", **NOW, **AT_ONCE, all_branches=True)
    assert_sound(table, leaks=True)


def test_expiries_at_once_end_as_one(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    for dt in "abc":
        append(table, dt)
    with active_writers(tmp_path, "write", "expire", "tag"):
        wait_for_writers(table, 5)
        for _ in range(lives(4, 10)):
            run(table, "expire_snapshots", **NOW, **AT_ONCE, now=str(int(time.time() * 1000) + 1000))
    run(table, "expire_snapshots", **NOW, **AT_ONCE)
    assert_sound(table, leaks=True)
