"""remove_orphan_files on tables that Paimon wrote: all files are old, planted orphans go, every read stays the same."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from airflow_paimon.core.errors import UnsupportedFeatureError
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import open_context
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.manifest_entries import read_index_entries
from airflow_paimon.core.table.manifest_lists import all_manifests
from airflow_paimon.core.table.reachability import entry_paths
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.execution import perform
from tests.core.metadata_expiry.test_remove_orphan_files import ORPHANS, Aged
from tests.golden.test_reads import CASES, REFUSED, UNKNOWN_OPTION, _read
from tests.oracles.canonical import assert_same_rows

ARCHIVES = ("paimon-2.0.0", "paimon-0.9.0")


def referenced(main: Table) -> set[str]:
    """What snapshots and tags of all branches refer to, file by file."""
    found: set[str] = set()
    for view in (main, *(main.branch(name) for name in main.branch_names())):
        for snapshot in (*view.snapshots(), *(t.snapshot for t in view.tags())):
            schema = view.schema(snapshot.schema_id)
            found |= set(entry_paths(schema, live_entries(view, snapshot).values()))
            names = [m.file_name for m in all_manifests(view, snapshot)]
            names += [snapshot.base_manifest_list, snapshot.delta_manifest_list, snapshot.index_manifest or ""]
            found |= {f"manifest/{name}" for name in names if name}
            found |= {f"index/{e.file_name}" for e in read_index_entries(view, snapshot)}
            found |= {f"statistics/{snapshot.statistics}"} if snapshot.statistics else set()
    return found


@pytest.mark.parametrize("archive", ARCHIVES)
@pytest.mark.every(2)
def test_golden_tables_read_the_same(golden: Callable[[str], Path], tmp_path: Path, archive: str) -> None:
    stored = golden(archive)
    shutil.copytree(stored / "wh", tmp_path / "wh", symlinks=True)
    cases = [c for c in CASES if c.archive == archive and c.id not in {*REFUSED, UNKNOWN_OPTION}]
    names = sorted(f"d.{path.name}" for path in (tmp_path / "wh" / "d.db").iterdir() if (path / "schema").is_dir())
    assert len(names) > 20
    cleaned = 0
    for name in names:
        main = open_table(str(tmp_path / "wh"), name)
        needed = referenced(main)
        on_disk = needed & set(main.store.walk(""))
        for path in ORPHANS:
            os.makedirs((tmp_path / "wh" / "d.db" / name[2:] / path).parent, exist_ok=True)
            main.store.create(path, b"")
        context = open_context(
            build_request(
                "remove_orphan_files", {"warehouse": str(tmp_path / "wh"), "table": name, "older_than": "1 h"}
            )
        )
        result = perform(replace(context, table=replace(main, store=Aged(main.store))), context.request)
        left = set(main.store.walk(""))
        assert on_disk <= left, f"{name}: {sorted(on_disk - left)[:3]}"
        assert left.isdisjoint(ORPHANS), name
        assert result.details["unknown"]["files"] == 0, (name, result.details["unknown"])
        cleaned += 1
    assert cleaned == len(names)
    for case in cases:
        table = open_table(str(tmp_path / "wh"), case.table, branch=case.branch)
        try:
            assert_same_rows(_read(table, case), pq.read_table(stored / case.expected))
        except UnsupportedFeatureError:
            continue
