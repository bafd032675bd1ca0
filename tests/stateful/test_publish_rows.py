"""Rows of a primary-key table through random writes, publishes and undos: three-way merges of a dictionary by key.

The other machines compare sets of placeholder files; here the rows that readers get are compared.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from random import Random

import pyarrow as pa
import pytest

from airflow_paimon.core.errors import ConflictError, UnsafeOperationError
from airflow_paimon.core.maintenance.check import find_all
from airflow_paimon.core.requests.result import OperationResult
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import read_arrow, write_arrow
from tests.core.tables import run
from tests.randomness import chance

pytestmark = pytest.mark.random

Key = tuple[str, int]
Rows = dict[Key, int]
DAYS = ("a", "b")
BRANCHES = ("fix", "alt")


@dataclass
class Branch:
    """``base``: the branch's rows when main last took over from it (at first: its branch point)."""

    base: Rows
    now: Rows


@dataclass
class Life:
    random: Random
    table: Table
    main: Rows
    branches: dict[str, Branch]
    published: list[tuple[str, Rows, Branch, Rows]]
    written: int = 0

    def rows(self) -> tuple[pa.Table, Rows, set[Key]]:
        random = self.random
        keys = [(random.choice(DAYS), random.randrange(8)) for _ in range(random.randrange(1, 6))]
        kinds = [random.choice(["+I", "+U", "-D"]) for _ in keys]
        values = list(range(self.written, self.written + len(keys)))
        self.written += len(keys)
        data = pa.table(
            {
                "dt": [d for d, _ in keys],
                "k": pa.array([k for _, k in keys], pa.int32()),
                "v": pa.array(values, pa.int64()),
                "_row_kind": kinds,
            }
        )
        put: Rows = {}
        for key, kind, value in zip(keys, kinds, values, strict=True):
            put.pop(key, None)
            if kind != "-D":
                put[key] = value
        return data, put, set(keys)

    def write(self, view: Table, before: Rows) -> Rows:
        data, put, touched = self.rows()
        mode = self.random.choice(["append", "append", "append", "dynamic_overwrite", "again"])
        operation = f"write-{self.written}"
        write_arrow(view, data, mode="append" if mode == "again" else mode, operation_id=operation)
        if mode == "again":
            write_arrow(view, data, operation_id=operation)
        days = {d for d, _ in touched} if mode == "dynamic_overwrite" else set()
        left = {k: v for k, v in before.items() if k not in touched and k[0] not in days}
        return left | put

    def step(self) -> None:
        name = self.random.choice(BRANCHES)
        branch = self.branches.get(name)
        if branch is None:
            run(self.table, "create_branch", branch=name, snapshot=self.table.latest_snapshot_id())
            self.branches[name] = Branch(dict(self.main), dict(self.main))
            return
        match self.random.choice(["main", "branch", "branch", "merge", "merge", "fast", "undo", "delete"]):
            case "main":
                self.main = self.write(self.table, self.main)
            case "branch":
                branch.now = self.write(self.table.branch(name), branch.now)
            case "merge":
                self.merge(name, branch)
            case "fast":
                self.fast_forward(name, branch)
            case "undo" if self.published:
                tag, self.main, undone, base = self.published.pop()
                undone.base = base
                run(self.table, "rollback_to", tag=tag)
            case "delete" if self.random.random() < 0.3:
                run(self.table, "delete_branch", branch=name)
                del self.branches[name]

    def publish(self, operation: str, name: str, **values: bool) -> OperationResult | None:
        identity = f"publish-{uuid.UUID(int=self.random.getrandbits(128))}"
        try:
            result = run(self.table, operation, branch=name, writers_stopped=True, operation_id=identity, **values)
        except (ConflictError, UnsafeOperationError):
            return None
        again = run(self.table, operation, branch=name, writers_stopped=True, operation_id=identity, **values)
        assert again.snapshot_after == result.snapshot_after, "a retry published once more"
        if result.changed:
            branch = self.branches[name]
            self.published.append((result.details["undo_tag"], dict(self.main), branch, branch.base))
        return result

    def merge(self, name: str, branch: Branch) -> None:
        result = self.publish("merge_branch", name)
        if result is None:
            return
        expected = dict(self.main)
        for key in branch.base.keys() | branch.now.keys():
            if branch.base.get(key) != branch.now.get(key):
                expected.pop(key, None)
                if key in branch.now:
                    expected[key] = branch.now[key]
        self.main = expected
        branch.base = dict(branch.now) if result.changed else branch.base

    def fast_forward(self, name: str, branch: Branch) -> None:
        if self.publish("fast_forward", name, discard_main=True) is not None:
            self.main, branch.base = dict(branch.now), dict(branch.now)

    def check(self) -> None:
        views = {"main": (self.table, self.main)}
        views |= {n: (self.table.branch(n), b.now) for n, b in self.branches.items()}
        for name, (view, expected) in views.items():
            found = {(r["dt"], r["k"]): r["v"] for r in read_arrow(view).to_pylist()}
            assert found == expected, name
        assert [f for f in find_all(self.table, 0, verify_files=True) if f.severity != "info"] == []


@pytest.mark.parametrize("case", range(3))
def test_rows_are_those_of_a_three_way_merge(case: int) -> None:
    random = chance(f"publish rows {case}")
    options = {"bucket": random.choice(["1", "2"]), "manifest.merge-min-count": "4"}
    table = create_table(
        f"memory://{uuid.uuid4()}/wh",
        "d.t",
        [("dt", "STRING NOT NULL"), ("k", "INT NOT NULL"), ("v", "BIGINT")],
        partition_keys=["dt"],
        primary_keys=["dt", "k"],
        options=options,
    )
    life = Life(random, table, {}, {}, [])
    life.main = life.write(table, {})
    try:
        for _ in range(25):
            life.step()
            life.check()
    finally:
        for path in table.store.walk(""):
            table.store.delete(path)
