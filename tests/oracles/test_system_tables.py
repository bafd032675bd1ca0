"""$audit_log and $ro of main and of a branch: the rows, kinds and columns that Java gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.inspect import inspect
from airflow_paimon.core.table.manifest_lists import all_manifests
from airflow_paimon.data import read_system_table, write_arrow
from tests.oracles.canonical import canonical_rows
from tests.oracles.drivers import JavaOracle
from tests.oracles.interop import World

pytestmark = pytest.mark.oracle

KINDS: dict[str, dict[str, str]] = {
    "deduplicate": {},
    "sequence": {"sequence.field": "v"},
    "partial-update": {"merge-engine": "partial-update", "partial-update.remove-record-on-delete": "true"},
    "vectors": {"deletion-vectors.enabled": "true"},
    "first-row": {"merge-engine": "first-row"},
    "no keys": {"bucket": "-1"},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.every(2)
def test_the_rows_of_a_branch_are_those_of_java(java_oracle: JavaOracle, tmp_path: Path, kind: str) -> None:
    world, options = World(tmp_path, java_oracle), KINDS[kind]
    world.create(primary_keys=[] if kind == "no keys" else ("p", "k"), **options)
    world.write("x1=a x2=b x3=c y1=d")
    world.write("x1=A y1=D")
    world.do("compact", full=True)
    world.run("create_branch", branch="fix", snapshot=world.main.latest_snapshot_id())
    same(world, "main")
    rows: list[dict[str, Any]] = [{"p": "x", "k": 4, "v": "new"}, {"p": "y", "k": 1, "v": "Z"}]
    if kind not in ("no keys", "first-row"):
        rows = [*({**r, "_row_kind": "+I"} for r in rows), {"p": "x", "k": 2, "v": "b", "_row_kind": "-D"}]
        rows.append({"p": "x", "k": 3, "v": "c3", "_row_kind": "+U"})
    world.write(rows, branch="fix")
    same(world, "fix")
    write_arrow(world.branch("fix"), pa.table({"p": ["x"], "k": pa.array([9], pa.int32()), "v": ["ours"]}))
    same(world, "fix")
    same(world, "main")


def same(world: World, branch: str) -> None:
    view = world.branch(branch)
    name = "d.t" if branch == "main" else f"d.t$branch_{branch}"
    for system, columns in (("audit_log", ("rowkind", "p", "k", "v")), ("ro", ("p", "k", "v"))):
        java = world.java.read(world.warehouse, f"{name}${system}", columns=None)
        ours = read_system_table(view, system)
        assert set(ours.column_names) == set(java.column_names) == set(columns)
        assert canonical_rows(ours, columns) == canonical_rows(java, columns), system
    assert read_system_table(view, "$audit_log").column_names[0] == "rowkind"
    buckets, java = inspect(view, "buckets"), world.java.read(world.warehouse, f"{name}$buckets", columns=None)
    assert buckets.column_names == java.column_names
    shown = ("partition", "bucket", "record_count", "file_size_in_bytes", "file_count")
    assert canonical_rows(buckets, shown) == canonical_rows(java, shown)


def test_the_ids_of_rows_are_those_of_java(java_oracle: JavaOracle, tmp_path: Path) -> None:
    world = World(tmp_path, java_oracle)
    world.create(primary_keys=[], bucket="-1", **{"row-tracking.enabled": "true"})
    world.write("x1=a x2=b y1=d")
    write_arrow(world.main, pa.table({"p": ["x"], "k": pa.array([9], pa.int32()), "v": ["ours"]}))
    ours, java = (
        read_system_table(world.main, "row_tracking"),
        world.java.read(tmp_path, "d.t$row_tracking", columns=None),
    )
    assert ours.column_names == java.column_names
    assert canonical_rows(ours, ours.column_names) == canonical_rows(java, ours.column_names)
    plain = create_table(str(tmp_path), "d.plain", [("k", "BIGINT")])
    with pytest.raises(InvalidInputError, match=r"row-tracking\.enabled"):
        read_system_table(plain, "row_tracking")


def test_the_manifests_of_a_changelog_are_among_the_manifests(java_oracle: JavaOracle, tmp_path: Path) -> None:
    world = World(tmp_path, java_oracle)
    world.create(**{"changelog-producer": "input"})
    world.write("x1=a y1=b")
    world.write("x2=c")
    ours, java = inspect(world.main, "manifests"), world.java.read(tmp_path, "d.t$manifests", columns=None)
    assert ours["file_name"].to_pylist() == java["file_name"].to_pylist()
    head = world.main.latest_snapshot()
    assert head is not None and len(ours) == len(all_manifests(world.main, head)) + 1
