"""How often an entry is merged again, and how long the list of manifests gets."""

from __future__ import annotations

from math import log2
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_paimon.core.commit.manifest_merge_plan import plan_manifest_merge

TARGET = 10**9


def manifest(entries: int, size: int = 1) -> Any:
    return SimpleNamespace(file_size=size, num_added_files=entries, num_deleted_files=0)


def planned(*entries: int, min_count: int = 3) -> slice | None:
    return plan_manifest_merge([manifest(n) for n in entries], min_count=min_count, target_bytes=TARGET)


def test_a_large_manifest_waits_until_as_much_has_come() -> None:
    assert planned(1, 1) is None
    assert planned(1, 1, 1) == slice(0, 3)
    assert planned(4, 1, 1) is None
    assert planned(4, 1, 1, 1) == slice(1, 4)
    assert planned(4, 3, 1) == slice(0, 3)
    assert planned(9, 4, 1, 1, 1) == slice(2, 5)
    assert planned(1, 9, 1, 1) == slice(0, 4), "what is large behind the beginning is in the way"


@pytest.mark.parametrize("min_count", [2, 30])
def test_many_small_commits_cost_the_same_each(min_count: int) -> None:
    commits, rewritten, longest = 5_000, 0, 0
    rows: list[Any] = []
    for _ in range(commits):
        rows.append(manifest(1))
        group = plan_manifest_merge(rows, min_count=min_count, target_bytes=TARGET)
        if group is not None:
            entries = sum(m.num_added_files for m in rows[group.start : group.stop])
            rewritten += entries
            rows[group.start : group.stop] = [manifest(entries)]
        longest = max(longest, len(rows))
    assert sum(m.num_added_files for m in rows) == commits
    assert rewritten <= commits * (log2(commits) + 1)
    assert longest <= min_count + log2(commits) + 1
