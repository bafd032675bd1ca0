"""compact of primary-key tables that O3, Paimon's Java engine, writes: it reads the same rows, goes on writing,
compacting and deleting, and its stream tells every change once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_paimon.core.table.table import open_table
from airflow_paimon.data import read_arrow
from tests.core.tables import run as operate
from tests.data.test_compact import run
from tests.oracles.canonical import assert_same_rows
from tests.oracles.drivers import JavaOracle
from tests.randomness import chance

pytestmark = pytest.mark.oracle

COLUMNS = {"p": "INT NOT NULL", "k": "INT NOT NULL", "v": "STRING"}
Rows = dict[tuple[int, int], str]

CASES: dict[str, dict[str, str]] = {
    "fixed": {"bucket": "2"},
    "dynamic-orc": {"bucket": "-1", "file.format": "orc", "dynamic-bucket.target-row-num": "7"},
    "vectors": {"bucket": "2", "deletion-vectors.enabled": "true"},
    "dynamic-vectors-avro": {"bucket": "-1", "deletion-vectors.enabled": "true", "file.format": "avro"},
    "input": {"bucket": "2", "changelog-producer": "input"},
    "sequence-parquet": {"bucket": "1", "sequence.field": "v"},
    "lookup": {"bucket": "2", "changelog-producer": "lookup"},
    "lookup-vectors": {"bucket": "1", "changelog-producer": "lookup", "deletion-vectors.enabled": "true"},
    "lookup-dynamic-equal": {
        "bucket": "-1",
        "changelog-producer": "lookup",
        "changelog-producer.row-deduplicate": "true",
    },
    "full-compaction": {"bucket": "2", "changelog-producer": "full-compaction"},
    "full-compaction-dynamic": {"bucket": "-1", "changelog-producer": "full-compaction"},
}


class Life:
    """A table, what is in it, and a stream that follows it."""

    def __init__(self, java: JavaOracle, folder: Path, options: dict[str, str]) -> None:
        self.java, self.folder, self.changelog = java, folder, options.get("changelog-producer", "none")
        java.create_table(
            *(folder, "d.t", COLUMNS), partition_keys=["p"], primary_keys=["p", "k"],
            options={**options, "write-only": "true"},
        )  # fmt: skip
        self.table = open_table(str(folder), "d.t")
        self.rows: Rows = {}
        self.told: Rows = {}
        self.number = 0
        self.put(self.some(range(6)))
        self.reader = str(folder)
        java.open_stream_reader(folder, "d.t", self.reader)

    def some(self, keys: Any) -> list[dict[str, Any]]:
        self.number += 1
        return [{"p": k % 2, "k": k, "v": f"{self.number:05}"} for k in keys]

    def put(self, rows: list[dict[str, Any]], kind: str = "+I", **more: Any) -> None:
        self.java.write(self.folder, "d.t", [{**r, "_row_kind": kind} for r in rows], **more)
        self.know(rows, kind)

    def know(self, rows: list[dict[str, Any]], kind: str) -> None:
        for row in rows:
            self.rows.pop((row["p"], row["k"]), None)
            if kind == "+I":
                self.rows[row["p"], row["k"]] = row["v"]

    def ours(self, **how: Any) -> None:
        run(self.table, **how)
        self.check()

    def theirs(self, *, full: bool) -> None:
        self.java.do("compact", self.folder, "d.t", full=full)
        self.check()

    def check(self) -> None:
        seen = {(r["p"], r["k"]): r["v"] for r in read_arrow(self.table).to_pylist()}
        assert seen == self.rows
        assert_same_rows(self.java.read(self.folder, "d.t"), read_arrow(self.table))
        assert operate(self.table, "check_table").details["ok"]

    def follow(self) -> None:
        """Apply what the stream tells, and check that each key is inserted once and deleted once."""
        while True:
            found, _ = self.java.stream_read(self.reader)
            if not found.num_rows:
                break
            for row in found.to_pylist():
                key, kind = (row["p"], row["k"]), row["_row_kind"]
                if self.changelog in ("lookup", "full-compaction"):  # exactly one change after the other
                    assert self.told.get(key) == (None if kind in ("+I", "+U") else row["v"]), (row, self.told.get(key))
                if kind in ("+I", "+U"):
                    self.told[key] = row["v"]
                else:
                    self.told.pop(key, None)


def random_life(life: Life, name: str, steps: int) -> None:
    random = chance(f"key-compaction-{name}")
    for _ in range(steps):
        keys = random.sample(range(40), random.randint(1, 12))
        what = random.choice(["put", "put", "put", "delete", "ours", "ours", "theirs"])
        if what == "put":
            life.put(life.some(keys))
        elif what == "delete":
            life.put(life.some(keys), "-D")
        elif what == "ours":
            life.ours()
        else:
            life.theirs(full=random.random() < 0.5)
        life.follow()
    life.ours()
    life.theirs(full=True)
    life.follow()
    assert life.told == life.rows


@pytest.mark.random
@pytest.mark.parametrize("name", CASES)
def test_random_lives(java_oracle: JavaOracle, tmp_path: Path, name: str) -> None:
    random_life(Life(java_oracle, tmp_path, CASES[name]), name, 14)


@pytest.mark.parametrize("name", ["fixed", "dynamic-orc", "vectors"])
def test_a_writer_that_stays_open_over_a_compaction(java_oracle: JavaOracle, tmp_path: Path, name: str) -> None:
    """A write-only writer goes on as if nothing had happened, also with what it had flushed before."""
    life = Life(java_oracle, tmp_path, CASES[name])
    if "bucket" in CASES[name] and CASES[name]["bucket"] == "-1":
        life.put(life.some(range(6, 12)))
        run(life.table)
        life.put(life.some(range(3, 20)))
        life.ours()
        return
    with java_oracle.open_stream_writer(tmp_path, "d.t") as writer:
        for flushed in (False, True):
            rows = life.some(range(3, 9))
            writer.write(rows)
            life.know(rows, "+I")
            if flushed:
                writer.prepare()
            run(life.table)
            writer.commit()
            gone = life.some([4, 5])
            writer.write([{**r, "_row_kind": "-D"} for r in gone])
            writer.commit()
            life.know(gone, "-D")
            life.ours()
