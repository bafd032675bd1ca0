"""Chain tables that we write, read by Paimon's Java engine 1.4.2 where it is right: daily, one anchor, no equal
sequence values (it picks wrong anchors among several, and ties are accidents there)."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from airflow_paimon.core.table.table import Table
from airflow_paimon.data import read_arrow
from tests.data.chain.tables import TWO_VALUES, Row, Writes, chain_table
from tests.oracles.drivers import JavaOracle
from tests.randomness import chance as chance_of
from tests.randomness import lives

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


@pytest.mark.random
def test_java_reads_the_same_rows_of_our_chain_tables(java_oracle: JavaOracle, tmp_path: Path) -> None:
    for seed in range(lives(4, 8)):
        folder = tmp_path / str(seed)
        chance = chance_of(seed)
        table = chain_table(folder, random_writes(chance), buckets=chance.randint(1, 3))
        for branch in ("main", "snapshot", "delta"):
            ours = read_arrow(table.branch(branch)).to_pylist()
            theirs = java_oracle.read(folder, "d.t", branch=None if branch == "main" else branch).to_pylist()
            assert sorted(map(repr, ours)) == sorted(map(repr, theirs)), (seed, branch)


def partial_writes(chance: random.Random, kinds: str) -> Writes:
    """The same with two values, either of which may be missing."""
    anchor, numbers = chance.randint(10, 14), iter(chance.sample(range(1000), 400))

    def rows(width: int) -> list[Row]:
        return [
            (k, next(numbers), *(chance.choice([None, f"{v}{k}"]) for v in "ab"), chance.choice(kinds.split()))
            for k in chance.sample(range(12), width)
        ]

    days = [f"202508{chance.randint(10, 17)}" for _ in range(chance.randint(4, 9))]
    return [("snapshot", f"202508{anchor}", rows(8)), *(("delta", day, rows(chance.randint(1, 6))) for day in days)]


@pytest.mark.random
def test_java_reads_the_same_partial_updates(java_oracle: JavaOracle, tmp_path: Path) -> None:
    for seed in range(lives(3, 6)):
        writes = partial_writes(chance_of(f"partial {seed}"), "+I +U")
        table = chain_table(tmp_path / str(seed), writes, values=TWO_VALUES, merge_engine="partial-update", buckets=1)
        for branch in ("main", "snapshot", "delta"):
            assert rows_of(java_oracle, tmp_path / str(seed), branch) == ours_of(table, branch), (seed, branch)


def test_values_of_a_delete_come_back_in_java_alone(java_oracle: JavaOracle, tmp_path: Path) -> None:
    """Why partial updates with deletes differ: Java fills the nulls of a later row with what the delete itself held."""
    row = (1, 2, None, "new")
    writes: Writes = [
        ("snapshot", "20250810", [(2, 1, "b", "B")]),
        ("delta", "20250811", [(1, 1, "deleted", None, "-D")]),
        ("delta", "20250811", [row]),
    ]
    options = {"merge_engine": "partial-update", "partial-update__remove-record-on-delete": "true"}
    table = chain_table(tmp_path, writes, values=TWO_VALUES, buckets=1, **options)
    assert ours_of(table, "delta") == [repr(dict(zip(["k", "s", "v1", "v2", "dt"], (*row, "20250811"), strict=True)))]
    assert "'v1': 'deleted', 'v2': 'new'" in rows_of(java_oracle, tmp_path, "delta")[0]


def ours_of(table: Table, branch: str) -> list[str]:
    return sorted(map(repr, read_arrow(table.branch(branch)).to_pylist()))


def rows_of(java: JavaOracle, warehouse: Path, branch: str) -> list[str]:
    return sorted(map(repr, java.read(warehouse, "d.t", branch=None if branch == "main" else branch).to_pylist()))
