"""Chain tables that we set up and alter, in the hands of Paimon's Java engine, at every moment in between too."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from airflow_paimon.core.chain.setup_plan import wanted_options
from airflow_paimon.core.requests.requests import CreateChainTable
from airflow_paimon.core.schema.schema_plan import SetOption
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.table import open_table
from tests.core.chain.setups import made, setup
from tests.core.chain.tables import alter_alone
from tests.core.chain.test_alter import faulty as cut_off_alter
from tests.core.chain.test_setup_races import faulty
from tests.core.tables import run
from tests.oracles.drivers import JavaOracle
from tests.oracles.processes import OracleError
from tests.stores import Crash, FaultStore

pytestmark = pytest.mark.oracle

COLUMNS = [("k", "INT"), ("s", "INT"), ("v", "STRING"), ("dt", "STRING")]
CONVERT: dict[str, Any] = {"timestamp_pattern": "$dt", "timestamp_formatter": "yyyyMMdd"}
NEW: dict[str, Any] = {
    **CONVERT,
    "sequence_field": ("s",),
    "option": ("bucket=2",),
    "column": tuple(map(" ".join, COLUMNS)),
    "primary_key": ("dt", "k"),
    "partition_key": ("dt",),
}


def row(k: int, s: int, v: str, day: str, **more: Any) -> dict[str, Any]:
    return {"k": k, "s": s, "v": v, "dt": f"202501{day}", **more}


def rows(java: JavaOracle, folder: Path, branch: str | None = None) -> list[dict[str, Any]]:
    found = java.read(folder, "d.t", branch=branch).to_pylist()
    return sorted(found, key=lambda r: (r["dt"], r["k"]))


def test_java_writes_and_reads_a_table_that_we_set_up(java_oracle: JavaOracle, tmp_path: Path) -> None:
    table = made(str(tmp_path), **NEW)
    java_oracle.write(tmp_path, "d.t", [row(1, 1, "a", "01"), row(2, 1, "b", "01")], branch="snapshot")
    java_oracle.write(tmp_path, "d.t", [row(1, 2, "a2", "02"), row(3, 1, "c", "02")], branch="delta")
    expected = [row(1, 1, "a", "01"), row(2, 1, "b", "01"), row(1, 2, "a2", "02"), row(2, 1, "b", "02")]
    assert rows(java_oracle, tmp_path) == [*expected, row(3, 1, "c", "02")]
    assert run(table, "check_chain_table").details["findings"] == []
    run(table, "alter_chain_table", change=["add column w INT"])
    java_oracle.write(tmp_path, "d.t", [row(2, 2, "b2", "02", w=7)], branch="delta")
    assert [(r["k"], r["v"], r["w"]) for r in rows(java_oracle, tmp_path)[2:]] == [
        (1, "a2", None),
        (2, "b2", 7),
        (3, "c", None),
    ]


def test_java_reads_and_writes_every_state_of_a_set_up_in_between(java_oracle: JavaOracle, tmp_path: Path) -> None:
    """Main is what it was until the last write, and every branch that is there is a table to Java."""
    template = tmp_path / "template"
    plain = create_table(
        str(template),
        "d.t",
        COLUMNS,
        primary_keys=["dt", "k"],
        partition_keys=["dt"],
        options={"bucket": "2", "sequence.field": "s"},
    )
    java_oracle.write(template, "d.t", [row(1, 1, "a", "01")])
    plan = run(plain, "create_chain_table", dry_run=True, **CONVERT).details["plan"]
    for step in range(1, len(plan["actions"]) + 1):
        folder = tmp_path / f"step{step}"
        shutil.copytree(template, folder)
        table = open_table(str(folder), "d.t")
        with pytest.raises(Crash):
            faulty(table, CONVERT, FaultStore(table.store, step))
        java_oracle.write(folder, "d.t", [row(2, 1, "b", "01")])
        for branch in table.branch_names():
            if table.branch(branch).exists():
                java_oracle.write(folder, "d.t", [row(9, 1, branch, "03")], branch=branch)
                assert rows(java_oracle, folder, branch) == [row(9, 1, branch, "03")]
        assert rows(java_oracle, folder)[:2] == [row(1, 1, "a", "01"), row(2, 1, "b", "01")]
        setup(str(folder), **CONVERT)
        java_oracle.write(folder, "d.t", [row(3, 1, "c", "02")], branch="delta")
        assert [r["k"] for r in rows(java_oracle, folder)][:3] == [1, 2, 3]


@pytest.mark.parametrize("missing", ["branches", "options"])
def test_java_fails_in_the_states_that_our_order_avoids(java_oracle: JavaOracle, tmp_path: Path, missing: str) -> None:
    plain = {"bucket": "2", "sequence.field": "s"}
    options = wanted_options(CreateChainTable(table="d.t", **NEW), {})
    options = {k: v for k, v in options.items() if k not in plain}
    if missing == "options":
        options = {k: v for k, v in options.items() if not k.startswith("scan.fallback")}
    table = create_table(str(tmp_path), "d.t", COLUMNS, primary_keys=["dt", "k"], partition_keys=["dt"], options=plain)
    alter_alone(table, *(SetOption(key=k, value=v) for k, v in options.items()))
    with pytest.raises(OracleError):
        java_oracle.write(tmp_path, "d.t", [row(1, 1, "a", "01")])
        rows(java_oracle, tmp_path)


@pytest.mark.parametrize("changes", [["add column w INT"], ["set target-file-size=64 mb"]])
def test_java_between_the_branches_of_an_alter(java_oracle: JavaOracle, tmp_path: Path, changes: list[str]) -> None:
    """The branches can be read and written; main when columns agree. Repeating the alter mends it."""
    table = made(str(tmp_path), **NEW)
    java_oracle.write(tmp_path, "d.t", [row(1, 1, "a", "01")], branch="snapshot")
    with pytest.raises(Crash):
        cut_off_alter(table, {"change": changes}, FaultStore(table.store, 1, after=True))
    assert [table.branch(b).schema_ids() for b in ("snapshot", "delta", "main")] == [[0, 1], [0], [0]]
    java_oracle.write(tmp_path, "d.t", [row(2, 2, "b", "02")], branch="delta")
    assert [r["k"] for r in rows(java_oracle, tmp_path, "snapshot")] == [1]
    assert [r["k"] for r in rows(java_oracle, tmp_path, "delta")] == [2]
    if changes[0].startswith("add"):
        with pytest.raises(OracleError):
            rows(java_oracle, tmp_path)
    else:
        assert [r["k"] for r in rows(java_oracle, tmp_path)] == [1, 1, 2]
    assert run(table, "alter_chain_table", change=changes).changed
    assert [r["k"] for r in rows(java_oracle, tmp_path)] == [1, 1, 2]
