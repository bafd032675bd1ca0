"""compact of the golden primary-key tables, with deletion vectors and dynamic buckets: their rows stay the same."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_paimon.core.errors import UnsupportedFeatureError
from airflow_paimon.core.table.manifest_entries import read_index_entries
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.data import read_arrow
from airflow_paimon.data.read import read_split
from airflow_paimon.data.read_splits import plan_read
from tests.data.test_compact import run
from tests.oracles.canonical import assert_same_rows
from tests.oracles.golden import golden_index

Golden = Callable[[str], Path]

ARCHIVES = ("merge-fuzz", "table-fuzz", "paimon-2.0.0", "paimon-0.9.0")


def all_rows(table: Table) -> Counter[str]:
    """What a full compaction reads: also the rows that readers of deletion vectors don't see yet."""
    plan = plan_scan(table)
    read, splits = plan_read(plan, layered=True, chained=True, whole_buckets=True)
    return Counter(repr(r) for s in splits for b in read_split(read, s) for r in b.to_pylist())


def keyed_tables(archive: Path, name: str) -> list[Table]:
    names = sorted({entry["table"] for entry in golden_index(name)})
    found = [open_table(str(archive / "wh"), n) for n in names]
    return [t for t in found if t.schema_ids() and t.schema().primary_keys]


def hashes(table: Table) -> set[str]:
    return {i.file_name for i in read_index_entries(table, table.latest_snapshot()) if i.index_type == "HASH"}


@pytest.mark.parametrize("name", ARCHIVES)
@pytest.mark.every(2)
def test_rows_stay(golden: Golden, tmp_path: Path, name: str) -> None:
    shutil.copytree(golden(name) / "wh", tmp_path / "wh", symlinks=True)
    done: Counter[str] = Counter()
    for table in keyed_tables(tmp_path, name):
        try:
            before, whole, index = read_arrow(table), all_rows(table), hashes(table)
            changed = run(table).changed
        except UnsupportedFeatureError as refused:
            done[str(refused.details.get("feature", refused.message))] += 1
            continue
        assert all_rows(table) == whole
        if whole.total() == before.num_rows:
            assert_same_rows(read_arrow(table), before)
        assert not run(table).changed
        assert hashes(table) == index
        assert not any(i.deletion_vector_ranges for i in read_index_entries(table, table.latest_snapshot()))
        if not TableOptions(table.schema().options).chain_table:
            assert all(s.is_raw for s in plan_read(plan_scan(table), layered=True)[1])
        done["changed" if changed else "unchanged"] += 1
    assert done["changed"] >= 1
