"""Orphan cleaning, storage accounts, checks of random tables: the same with little memory, in tasks and processes."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from airflow_paimon.core.check.check import find_all
from airflow_paimon.core.errors import StorageError
from airflow_paimon.core.metadata_expiry.storage_usage import read_usage
from airflow_paimon.core.parallel.workers import Workers
from airflow_paimon.core.requests.context import Context
from airflow_paimon.core.store import Store
from airflow_paimon.core.table.paths import PRIVATE_DIR
from airflow_paimon.core.table.table import Table
from tests.core.metadata_expiry.test_remove_orphan_files import ORPHANS, UNKNOWN, Aged, clean, plant
from tests.core.parallel.pieces import shuffled
from tests.core.tables import append, make_table, overwrite, rewrite, run
from tests.soundness import named_files
from tests.stores import _Wrapper

pytestmark = pytest.mark.damages_metadata  # planted files are no manifests

HERE = Workers()
LITTLE = Workers(memory_bytes=4000)
TASKS = Workers(memory_bytes=4000, in_tasks=shuffled, worth_it=0)
PROCESSES = Workers(memory_bytes=4000, processes=2, worth_it=0)


def random_table(tmp_path: Path, seed: int) -> Table:
    """Branches, tags, rewritten, dropped and lost files, orphans of all kinds, and names that nobody knows."""
    chance = random.Random(seed)
    table = make_table(tmp_path / "warehouse", **{"manifest.merge-min-count": "3"})
    for number in range(10):
        write = chance.choice([append, append, overwrite, rewrite])
        write(table, chance.choice("abc"), chance.randint(0, 1))
        if chance.random() < 0.3:
            run(table, "create_tag", tag=f"t{number}")
    run(table, "create_branch", branch="fix", snapshot=table.latest_snapshot_id())
    rewrite(table.branch("fix"), "b")
    append(table.branch("fix"), "d")
    plant(table, chance.sample(sorted(ORPHANS), 8))
    plant(table, chance.sample(UNKNOWN, 2))
    return table


def answers(table: Table, workers: Workers, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the operations find. Orphans are judged two days later."""
    with monkeypatch.context() as patch:
        patch.setattr(Context, "workers", lambda *_: workers)
        cleaned = clean(table, dry_run=True, now="2126-01-01T00:00:00Z")
    used = read_usage(table, 1_700_000_000_000, workers)
    return {
        "orphans": cleaned.details,
        "usage": [asdict(used.totals), *(replace(u, holder=replace(u.holder, own=None)) for u in used.holders)],  # type: ignore[arg-type]
        "check": [f.to_json() for f in find_all(table, 0, verify_files=True, workers=workers)],
    }


@pytest.mark.parametrize(("seed", "workers"), [(0, LITTLE), (1, LITTLE), (2, TASKS), (3, TASKS)])
def test_the_same_whoever_does_it(tmp_path: Path, seed: int, workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    table = random_table(tmp_path, seed)
    needed = set().union(*named_files(table).values())
    expected = answers(table, HERE, monkeypatch)
    assert expected["orphans"]["files"] >= 8
    assert needed.isdisjoint(a["path"] for a in expected["orphans"]["plan"]["actions"])
    assert answers(table, workers, monkeypatch) == expected
    for path in random.Random(seed).sample(sorted(p for p in needed if "bucket-" in p), 3):
        table.store.delete(path)
    expected = answers(table, HERE, monkeypatch)
    assert any(f["id"].startswith("missing-files") for f in expected["check"])
    assert answers(table, workers, monkeypatch) == expected


def test_what_processes_find_goes_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = random_table(tmp_path, 7)
    needed, others = set().union(*named_files(table).values()), set(table.store.walk("")) & ORPHANS.keys()
    monkeypatch.setattr(Context, "workers", lambda *_: PROCESSES)
    clean(table)
    left = set(table.store.walk(""))
    assert len(others) == 8 and needed <= left and left.isdisjoint(others)


class Deadly(_Wrapper):
    """Kills every other process that calls a method."""

    def __init__(self, inner: Store, home: int, method: str) -> None:
        super().__init__(inner)
        self.home, self.method = home, method

    def __reduce__(self) -> tuple[Any, ...]:
        return Deadly, (self.inner, self.home, self.method)

    def _call(self, method: str, path: str, action: Callable[[], Any]) -> Any:
        if method == self.method and os.getpid() != self.home:
            os.kill(os.getpid(), signal.SIGKILL)
        return action()


def test_nothing_is_deleted_when_a_process_dies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = random_table(tmp_path, 8)
    all_files = [path for path in table.store.walk("") if not path.startswith(f"{PRIVATE_DIR}/")]
    monkeypatch.setattr(Context, "workers", lambda *_: PROCESSES)
    with pytest.raises(StorageError, match="ended early"):
        clean(table, Aged(Deadly(table.store, os.getpid(), "read_many")))
    assert [path for path in table.store.walk("") if not path.startswith(f"{PRIVATE_DIR}/")] == all_files
