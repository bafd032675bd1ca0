"""Random lives of tables with data evolution and deletion vectors, written by pypaimon: our reads against a model."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.data import read_arrow
from airflow_paimon.data.read import read_split
from airflow_paimon.data.read_splits import plan_read
from airflow_paimon.spark.shares import slim_split
from tests.oracles.drivers import PypaimonOracle
from tests.randomness import chance, lives

Rows = dict[int, dict[str, Any]]

NAME = "d.t"
TYPES = {"k": pa.int64(), "a": pa.string(), "b": pa.int64(), "c": pa.string()}
OPTIONS = {
    "bucket": "-1",
    "row-tracking.enabled": "true",
    "data-evolution.enabled": "true",
    "deletion-vectors.enabled": "true",
    "file.block-size": "256 b",
}


class Life:
    """A table and the rows that it should have, by ``k``."""

    def __init__(self, oracle: PypaimonOracle, warehouse: Path, chance: random.Random, kind: str) -> None:
        self.oracle, self.warehouse, self.chance = oracle, warehouse, chance
        self.rows: Rows = {}
        self.ids: dict[int, int] = {}
        self.columns = ["k", "a", "b"]
        columns = {"k": "BIGINT", "a": "STRING", "b": "BIGINT"}
        oracle.create_table(warehouse, NAME, columns, options={**OPTIONS, "file.format": kind})

    @property
    def table(self) -> Table:
        return open_table(str(self.warehouse), NAME)

    def step(self) -> None:
        what = self.chance.choice(["insert", "update", "update", "update", "delete", "column"])
        if what == "insert" or not self.rows:
            self.insert()
        elif what == "update":
            self.update()
        elif what == "delete":
            gone = self.chance.sample(sorted(self.rows), self.chance.randint(1, max(1, len(self.rows) // 6)))
            self.oracle.delete_rows(self.warehouse, NAME, [self.ids[k] for k in gone])
            self.rows = {k: row for k, row in self.rows.items() if k not in gone}
        elif "c" not in self.columns:
            change = [{"change": "add_column", "name": "c", "type": "STRING"}]
            self.oracle.alter_table(self.warehouse, NAME, change)  # type: ignore[arg-type]
            self.columns.append("c")
            self.rows = {k: {**row, "c": None} for k, row in self.rows.items()}

    def insert(self) -> None:
        first = max(self.ids, default=-1) + 1
        new = {k: {n: self.value(n, k) for n in self.columns} for k in range(first, first + self.chance.randint(1, 60))}
        rows = list(new.values())
        self.oracle.write(
            self.warehouse, NAME, pa.table({n: pa.array([r[n] for r in rows], TYPES[n]) for n in self.columns})
        )
        self.rows |= new

    def update(self) -> None:
        assigned = self.chance.sample(self.columns[1:], self.chance.randint(1, len(self.columns) - 1))
        keys = self.chance.sample(sorted(self.rows), self.chance.randint(1, len(self.rows)))
        values = {n: [self.value(n, k) for k in keys] for n in assigned}
        for at, k in enumerate(keys):
            self.rows[k] = {**self.rows[k], **{n: values[n][at] for n in assigned}}
        ids = pa.array([self.ids[k] for k in keys], pa.int64())
        new = {"_ROW_ID": ids, **{n: pa.array(values[n], TYPES[n]) for n in assigned}}
        self.oracle.update_rows(self.warehouse, NAME, pa.table(new))

    def value(self, name: str, k: int) -> Any:
        if name == "k":
            return k
        if self.chance.random() < 0.1:
            return None
        number = self.chance.randrange(10_000)
        return number if TYPES[name] == pa.int64() else f"{name}{number}"

    def check(self) -> None:
        columns = self.table.schema().field_names
        found = read_arrow(self.table, columns=[*columns, "_ROW_ID", "_SEQUENCE_NUMBER"]).to_pylist()
        ids = {row["k"]: row.pop("_ROW_ID") for row in found}
        versions = [row.pop("_SEQUENCE_NUMBER") for row in found]
        head = self.table.latest_snapshot_id() or 0
        assert {row["k"]: row for row in found} == self.rows and len(found) == len(self.rows)
        assert len(set(ids.values())) == len(ids)
        assert {k: i for k, i in self.ids.items() if k in ids} == {k: i for k, i in ids.items() if k in self.ids}
        assert all(0 < version <= head for version in versions)
        self.ids |= ids
        self.check_parts()

    def check_parts(self) -> None:
        """Some columns, a filter on values that may have been replaced, and small batches."""
        name = self.chance.choice(self.columns)
        assert _sorted(read_arrow(self.table, columns=[name])[name]) == _sorted(r[name] for r in self.rows.values())
        value = self.chance.choice([row[name] for row in self.rows.values()] or [None])
        if value is not None:
            found = read_arrow(self.table, columns=["k"], where=pc.field(name) == pa.scalar(value, TYPES[name]))
            assert _sorted(found["k"]) == _sorted(k for k, row in self.rows.items() if row[name] == value)
        read, splits = plan_read(plan_scan(self.table), columns=list({"k": 0, name: 0}))
        read = replace(read, batch_rows=self.chance.randint(1, 9))
        batches = [b for split in splits for b in read_split(read, slim_split(split))]
        pairs = [(r["k"], r[name]) for b in batches for r in b.to_pylist()]
        assert sorted(pairs, key=repr) == sorted(((k, r[name]) for k, r in self.rows.items()), key=repr)


def _sorted(values: Any) -> list[str]:
    return sorted(repr(v.as_py() if isinstance(v, pa.Scalar) else v) for v in values)


@pytest.mark.random
@pytest.mark.parametrize("kind", ["parquet", "orc"])
def test_random_lives(pypaimon_oracle: PypaimonOracle, tmp_path: Path, kind: str) -> None:
    for number in range(lives(1, 3)):
        life = Life(pypaimon_oracle, tmp_path / str(number), chance(f"{kind}{number}"), kind)
        for _ in range(12):
            life.step()
            life.check()
