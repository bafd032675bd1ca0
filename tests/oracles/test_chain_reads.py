"""Chain tables that we write, read by Paimon's Java engine 1.4.2 where it is right: daily, one anchor, no equal
sequence values (it picks wrong anchors among several, and ties are accidents there)."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from airflow_paimon.data import read_arrow
from tests.data.chain.tables import Row, Writes, chain_table
from tests.oracles.drivers import JavaOracle
from tests.randomness import chance as chance_of

pytestmark = pytest.mark.oracle


def random_writes(chance: random.Random) -> Writes:
    """Deltas of eight days around one anchor, some days twice; no value of the sequence field comes again."""
    anchor = chance.randint(10, 14)
    numbers = iter(chance.sample(range(1000), 400))

    def rows(width: int) -> list[Row]:
        keys = chance.sample(range(15), width)
        return [(k, next(numbers), f"v{k}", chance.choice(["+I", "+I", "+U", "-D"])) for k in keys]

    writes = [("snapshot", f"202508{anchor}", rows(10))]
    for _ in range(chance.randint(4, 9)):
        writes.append(("delta", f"202508{chance.randint(10, 17)}", rows(chance.randint(1, 6))))
    return writes


def test_java_reads_the_same_rows_of_our_chain_tables(java_oracle: JavaOracle, tmp_path: Path) -> None:
    for seed in range(8):
        folder = tmp_path / str(seed)
        chance = chance_of(seed)
        table = chain_table(folder, random_writes(chance), buckets=chance.randint(1, 3))
        for branch in ("main", "snapshot", "delta"):
            ours = read_arrow(table.branch(branch)).to_pylist()
            theirs = java_oracle.read(folder, "d.t", branch=None if branch == "main" else branch).to_pylist()
            assert sorted(map(repr, ours)) == sorted(map(repr, theirs)), (seed, branch)
