"""A diff of a table with many files reads what differs, and gives the counts of the one that reads all of it."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_paimon.core.format.manifest_io import write_index_manifest
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import Context
from airflow_paimon.core.requests.requests import DiffBranches
from airflow_paimon.core.table.manifest_entries import read_index_entries
from airflow_paimon.core.table.manifest_lists import all_manifests
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import write_arrow
from airflow_paimon.data.diff import differing_buckets
from airflow_paimon.data.diff.run_diff import small_diff
from airflow_paimon.shown.diff_markdown import render_markdown
from tests.core.tables import run
from tests.data.tables import make_table
from tests.data.test_row_deletes import delete, make
from tests.stores import CountingStore

DAYS = ["a", "b", "c", "d"]


def diff(table: Table, against: str = "base", **values: Any) -> dict[str, Any]:
    request = build_request(
        "diff_branches", {"warehouse": "w", "table": table.name, "branch": "fix", "against": against, **values}
    )
    assert isinstance(request, DiffBranches)
    found = small_diff(Context(request, table, int(time.time() * 1000), time.monotonic()), request)
    assert found is not None
    return dict(found.details)


def write(table: Table, chance: random.Random) -> None:
    days = chance.sample(DAYS, chance.randint(1, 2))
    rows = [(chance.randint(0, 9), day) for day in days for _ in range(chance.randint(1, 4))]
    keys = dict.fromkeys(rows)
    data = pa.table(
        {
            "k": pa.array([k for k, _ in keys], pa.int32()),
            "v": pa.array([chance.randint(0, 3) for _ in keys], pa.int32()),
            "dt": [d for _, d in keys],
        }
    )
    mode = chance.choice(["append", "append", "dynamic_overwrite"])
    write_arrow(table, data, mode=mode)


@pytest.mark.parametrize("kind", ["keyed", "append", "row_tracking"])
@pytest.mark.parametrize("seed", range(3))
def test_same_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, seed: int) -> None:
    keyed = kind == "keyed"
    columns = {"k": "INT NOT NULL", "v": "INT", "dt": "STRING NOT NULL"}
    options = {"row_tracking__enabled": "true"} if kind == "row_tracking" else {"bucket": "2"} if keyed else {}
    table = make_table(tmp_path, columns, partition_keys=["dt"], primary_keys=["dt", "k"] if keyed else [], **options)
    chance = random.Random(seed)
    for _ in range(4):
        write(table, chance)
    run(table, "create_branch", branch="fix", snapshot=4)
    for on in chance.choices([table, table.branch("fix")], k=seed * 2):
        write(on, chance)
    for against in ("base", "main"):
        monkeypatch.setattr(differing_buckets, "COUNTED_FILES", 10**6)
        whole = diff(table, against)
        monkeypatch.setattr(differing_buckets, "COUNTED_FILES", 0)
        found = diff(table, against)
        assert found["partitions_unchanged"] is None and found["buckets"]["skipped"] is None
        assert whole["total"] == found["total"] | {"unchanged_exact": whole["total"]["unchanged_exact"]}
        assert found["total"]["unchanged_exact"] is (not keyed)
        for name in ("partitions", "partitions_differing", "different", "columns", "files_not_visible", "key"):
            assert found[name] == whole[name]
        assert found["buckets"]["compared"] == whole["buckets"]["compared"]
        assert any("were not counted" in note for note in found["notes"])
        text = render_markdown(found)
        assert "those with the same files were not read" in text
        assert "without: not counted" in text or not found["different"]
    chosen = diff(table, partitions="dt=a")
    assert chosen["partitions_unchanged"] is not None, "the partitions of a request are always counted"


def test_it_reads_no_shared_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {"k": "INT NOT NULL", "v": "INT", "dt": "STRING NOT NULL"}
    table = make_table(tmp_path, columns, partition_keys=["dt"], primary_keys=["dt", "k"], bucket="1")
    for day in DAYS:
        write_arrow(table, pa.table({"k": pa.array([1], pa.int32()), "v": pa.array([1], pa.int32()), "dt": [day]}))
    run(table, "create_branch", branch="fix", snapshot=len(DAYS))
    head = table.latest_snapshot()
    assert head is not None
    shared = {m.file_name for m in all_manifests(table, head)}
    monkeypatch.setattr(differing_buckets, "COUNTED_FILES", 0)

    def read() -> set[str]:
        store = CountingStore(table.store)
        diff(Table(store, table.name))
        return {name for name in shared if any(name in what for _, what in store.tally.log)}

    assert not read()
    write_arrow(
        table.branch("fix"), pa.table({"k": pa.array([1], pa.int32()), "v": pa.array([2], pa.int32()), "dt": ["b"]})
    )
    assert len(read()) == 1, "the manifest of the day that differs, for its other files"


def test_a_count_is_not_exact_where_vectors_do_not_say_how_many_rows_they_delete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in metadata of early releases: the count is of stored rows then, and doesn't pass for exact."""
    table = make(tmp_path)
    delete(table, 0, 1, 10)
    head = table.latest_snapshot()
    assert head is not None and head.index_manifest is not None
    entries = [
        entry._replace(deletion_vector_ranges=tuple(r and r._replace(cardinality=None) for r in ranges))
        for entry in read_index_entries(table, head)
        if (ranges := entry.deletion_vector_ranges) is not None
    ]
    assert len(entries) == 2
    table.store.replace(f"manifest/{head.index_manifest}", write_index_manifest(entries))
    run(table, "create_branch", branch="fix", snapshot=head.id)
    whole = diff(table)["total"]
    monkeypatch.setattr(differing_buckets, "COUNTED_FILES", 0)
    assert diff(table)["total"] == whole
    assert whole["unchanged"] == 40 and whole["unchanged_exact"] is False
