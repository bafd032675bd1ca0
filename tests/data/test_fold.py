"""A branch that was upserted publishes after a fold: same rows, and no number above those at the branch point."""

from pathlib import Path

import pyarrow as pa
import pytest

from airflow_paimon.core.errors import UnsafeOperationError, UnsupportedFeatureError
from airflow_paimon.core.operations.registry import run_operation
from airflow_paimon.core.operations.request import build_request
from airflow_paimon.core.operations.tables import create_table
from airflow_paimon.core.scan import live_entries
from airflow_paimon.core.table import Table
from airflow_paimon.data import read_arrow, write_arrow
from airflow_paimon.data.fold import fold


def _rows(table: Table) -> list[tuple[object, ...]]:
    return sorted(tuple(r.values()) for r in read_arrow(table).to_pylist())


def test_rewrite_folds_an_upserted_branch(tmp_path: Path) -> None:
    table = create_table(
        str(tmp_path), "d.t", [("dt", "STRING NOT NULL"), ("k", "INT NOT NULL"), ("v", "STRING")],
        partition_keys=["dt"], primary_keys=["dt", "k"], options={"bucket": "2"},
    )  # fmt: skip

    def rows(*values: tuple[str, int, str]) -> pa.Table:
        return pa.table({"dt": [v[0] for v in values], "k": [v[1] for v in values], "v": [v[2] for v in values]})

    def run(operation: str, **values: object):
        request = build_request(operation, {"warehouse": str(tmp_path), "table": "d.t", **values})
        return run_operation(request, fold=fold if values.get("rewrite") else None)

    write_arrow(table, rows(*(("a", k, "old") for k in range(20))))
    run("create_branch", branch="fix", snapshot=1)
    branch = table.branch("fix")
    write_arrow(branch, rows(*(("a", k, "new") for k in range(5)), ("b", 1, "fresh")))
    wanted = _rows(branch)
    with pytest.raises(UnsafeOperationError, match="--rewrite"):
        run("merge_branch", branch="fix")
    result = run("merge_branch", branch="fix", rewrite=True)
    assert result.changed
    assert _rows(table) == _rows(branch) == wanted
    before = {
        (e.partition, e.bucket): e.file.max_sequence_number for e in live_entries(table, table.snapshot(1)).values()
    }
    for entry in live_entries(table, table.latest_snapshot()).values():
        assert entry.file.max_sequence_number <= before.get((entry.partition, entry.bucket), -1)


def test_rewrite_needs_somebody_who_can(tmp_path: Path) -> None:
    table = create_table(str(tmp_path), "d.t", [("k", "INT NOT NULL")], primary_keys=["k"], options={"bucket": "1"})
    write_arrow(table, pa.table({"k": [1]}))
    base = {"warehouse": str(tmp_path), "table": "d.t"}
    run_operation(build_request("create_branch", {**base, "branch": "fix", "snapshot": 1}))
    write_arrow(table.branch("fix"), pa.table({"k": [2]}))
    with pytest.raises(UnsupportedFeatureError, match="run_on='spark'"):
        run_operation(build_request("merge_branch", {**base, "branch": "fix", "rewrite": True}))
