"""Orphan cleaning, storage accounts, checks of random tables: the same with little memory."""

from __future__ import annotations

import random
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from airflow_paimon.core.check.check import find_all
from airflow_paimon.core.metadata_expiry import listed_files, remove_orphan_files
from airflow_paimon.core.metadata_expiry.storage_usage import read_usage
from airflow_paimon.core.table.table import Table
from tests.core.metadata_expiry.test_remove_orphan_files import ORPHANS, UNKNOWN, clean, plant
from tests.core.tables import append, make_table, overwrite, rewrite, run
from tests.soundness import named_files

pytestmark = pytest.mark.damages_metadata  # planted files are no manifests

MUCH, LITTLE = 1 << 28, 4096


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


def answers(table: Table, memory_bytes: int, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the operations find. Orphans are judged two days later. With little memory folders are listed one by one."""
    with monkeypatch.context() as patch:
        patch.setattr(remove_orphan_files, "_MB", memory_bytes // 256)
        patch.setattr(listed_files, "_MANY", 0 if memory_bytes < 1 << 20 else 1 << 20)
        cleaned = clean(table, dry_run=True, now="2126-01-01T00:00:00Z")
        used = read_usage(table, 1_700_000_000_000, memory_bytes)
    return {
        "orphans": cleaned.details,
        "usage": [asdict(used.totals), *used.usages],
        "check": [f.to_json() for f in find_all(table, 0, verify_files=True, memory_bytes=memory_bytes)],
    }


@pytest.mark.parametrize("seed", [0, 1])
def test_the_same_with_little_memory(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    table = random_table(tmp_path, seed)
    needed = set().union(*named_files(table).values())
    expected = answers(table, MUCH, monkeypatch)
    assert expected["orphans"]["files"] >= 8
    assert needed.isdisjoint(a["path"] for a in expected["orphans"]["plan"]["actions"])
    assert answers(table, LITTLE, monkeypatch) == expected
    for path in random.Random(seed).sample(sorted(p for p in needed if "bucket-" in p), 3):
        table.store.delete(path)
    expected = answers(table, MUCH, monkeypatch)
    assert any(f["id"].startswith("missing-files") for f in expected["check"])
    assert answers(table, LITTLE, monkeypatch) == expected
