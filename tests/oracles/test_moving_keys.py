"""Tables with one row of a key in all partitions, both ways: Java's writers and ours take turns.

Java reads the keys of the whole table before each of its writes, and fails when it finds one twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_paimon.data import write_arrow
from tests.data.tables import rows_of
from tests.oracles.drivers import JavaOracle
from tests.oracles.interop import COLUMNS, World
from tests.randomness import chance, lives

pytestmark = [pytest.mark.oracle, pytest.mark.random]


@pytest.fixture
def world(java_oracle: JavaOracle, tmp_path: Path) -> World:
    return World(tmp_path, java_oracle)


def make(world: World, **options: str) -> None:
    given = {"bucket": "-1", "dynamic-bucket.target-row-num": "3", **options}
    world.create(COLUMNS, primary_keys=("k",), partition_keys=("p",), **given)


def arrow(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    found = rows_of(COLUMNS, [{n: r[n] for n in COLUMNS} for r in rows])
    return found.append_column("_row_kind", pa.array([r.get("_row_kind", "+I") for r in rows], pa.string()))


def distinct(world: World) -> dict[int, tuple[str, str]]:
    """What both read, each key once."""
    found = world.same()
    assert len(found) == len({k for _, k, _ in found})
    return {k: (p, v) for p, k, v in found}


LIVES: list[dict[str, str]] = [{}, {"write-only": "true"}, {"deletion-vectors.enabled": "true"}]


@pytest.mark.parametrize("case", range(lives(1, 3)))
def test_lives_in_which_both_write(world: World, case: int) -> None:
    random = chance(f"moving keys with Java {case}")
    make(world, **LIVES[case])
    model: dict[int, tuple[str, str]] = {}
    for step in range(12):
        given = [
            {"p": random.choice("xyz"), "k": k, "v": f"v{step}", "_row_kind": random.choice(["+I", "+I", "+I", "-D"])}
            for k in random.sample(range(15), random.randint(1, 6))
        ]
        act = random.choice(["java", "ours", "ours", "overwrite", "correct", "compact"])
        if act == "java":
            world.write(given)
        elif act == "ours":
            write_arrow(world.main, arrow(given))
        elif act == "overwrite":
            model = {}
            write_arrow(world.main, arrow(given), mode="overwrite")
        elif act == "compact":
            world.do("compact", full=True)
            given = []
        else:
            head = world.main.latest_snapshot()
            given = [r | {"p": model[r["k"]][0]} for r in given if r["k"] in model]
            if head is None or not given:
                continue
            world.run("create_branch", branch=f"fix{step}", snapshot=head.id)
            world.correct(f"fix{step}", given)
            world.run("merge_branch", branch=f"fix{step}", writers_stopped=True)
        for row in given:
            model.pop(row["k"], None)
            if row["_row_kind"] != "-D":
                model[row["k"]] = (row["p"], row["v"])
        assert distinct(world) == model, (case, step, act)
    world.write([{"p": "q", "k": k, "v": "last"} for k in range(15)])
    assert set(distinct(world).values()) == {("q", "last")}
    assert world.is_sound()


def test_fixed_buckets(world: World) -> None:
    """Java looks for a key in one partition only."""
    make(world, bucket="2")
    world.write("x1=a y1=a x2=a")
    write_arrow(world.main, arrow([{"p": "y", "k": 1, "v": "b"}, {"p": "z", "k": 1, "v": "b"}]))
    world.write("x1=c z1=c")
    assert world.both() == "x1=c x2=a y1=b z1=c"
    assert world.is_sound()
