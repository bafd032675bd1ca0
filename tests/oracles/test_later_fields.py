"""Metadata with fields of a later release, kept by our commits: pypaimon reads what we have written again."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.data import write_arrow
from tests.core.later_fields import plant
from tests.core.tables import run
from tests.oracles.drivers import PypaimonOracle


def test_read_after_our_commits(pypaimon_oracle: PypaimonOracle, tmp_path: Path) -> None:
    options = {"bucket": "-1", "manifest.merge-min-count": "2"}
    table = create_table(str(tmp_path), "d.t", [("k", "INT"), ("v", "STRING")], options=options)

    def insert(branch: str, *keys: int) -> None:
        write_arrow(table.branch(branch), pa.table({"k": pa.array(keys, pa.int32()), "v": [f"v{k}" for k in keys]}))

    insert("main", 1)
    insert("main", 2)
    plant(table)
    run(table, "create_branch", branch="fix", snapshot=2)
    insert("fix", 3)
    insert("main", 4)
    run(table, "merge_branch", branch="fix")
    insert("main", 5)
    assert sorted(pypaimon_oracle.read(tmp_path, "d.t")["k"].to_pylist()) == [1, 2, 3, 4, 5]
