"""A writer of Java that stays open over our publish, for each merge engine: its newer rows are merged onto ours.

It numbers its rows before the publish and commits them after it. Where it can't go on, it is refused: by us, naming the
reason, or by Java, whose job then starts anew; then its rows are written again, and nothing is lost.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from airflow_paimon.core.errors import UnsafeOperationError
from airflow_paimon.core.table.scan import plan_scan
from airflow_paimon.core.table.table import Table
from tests.data.corrections import change, correct
from tests.oracles.drivers import JavaOracle
from tests.oracles.interop import World
from tests.oracles.processes import OracleError
from tests.oracles.product import AXES, Model, Row, some_rows
from tests.oracles.test_engine_product import COLUMNS, Case
from tests.randomness import chance as chance_of
from tests.randomness import every

pytestmark = [pytest.mark.oracle, pytest.mark.random]

WRITE_ONLY = {"write-only": "true"}
TABLES: dict[str, dict[str, str]] = {
    "plain": WRITE_ONLY,
    "vectors": {"deletion-vectors.enabled": "true", **WRITE_ONLY},
    "vectors-compacting": {"deletion-vectors.enabled": "true"},
    "input": {"changelog-producer": "input", **WRITE_ONLY},
    "lookup": {"changelog-producer": "lookup", **WRITE_ONLY},
    "lookup-compacting": {"changelog-producer": "lookup"},
    "full-compaction": {"changelog-producer": "full-compaction", **WRITE_ONLY},
}


def rows(*texts: str) -> list[Row]:
    """``"x1 5 u"``: partition x, key 1, a 5, b u; - is null."""
    found = []
    for text in texts:
        key, a, b = text.split()
        found.append({"p": key[0], "k": int(key[1:]), "a": None if a == "-" else int(a), "b": None if b == "-" else b})
    return found


def start(java: JavaOracle, folder: Path, engine: str, kind: str) -> Case:
    world = World(folder, java)
    table = TABLES[kind]
    world.create(COLUMNS, **{"bucket": "2", **AXES["engine"][engine], **table})
    changelog = table.get("changelog-producer", "none")
    vectors = "32" if "deletion-vectors.enabled" in table else "none"
    combination = {"engine": engine, "buckets": "fixed", "vectors": vectors, "changelog": changelog}
    case = Case(world, combination, chance_of(f"writer {engine} {kind}"), Model(engine), "unused")
    first = rows("x1 1 a", "x2 2 b", "x3 3 c", "y1 4 d", "y2 5 e")
    case.java_writes(first, write_only=False)
    case.model.upsert(first)
    world.run("create_tag", tag="base")
    world.run("create_branch", branch="fix", tag="base")
    return case


def corrected(case: Case, branch: str) -> Model:
    """Partition x by a query, a row of y by a statement."""
    model, table = case.model.copy(), case.world.main
    given = rows("x1 100 fix", "x3 - fix", "x4 400 new")
    correct(table, branch, given, partitions=("p=x",))
    model.drop("x")
    model.put(given)
    changed = rows("y1 - set", "y3 7 new")
    change(table, [{**r, "_row_kind": "+U"} for r in changed], branch)
    model.put(changed)
    return model


def theirs(case: Case) -> list[Row]:
    """What the writer holds during the publish: of rows that we change, delete, leave alone, and add."""
    return rows("x1 - stream", "x2 20 -", "x4 4 stream", "y1 40 -", "y2 50 stream", "y9 1 s")


COMBINATIONS = [
    (engine, kind)
    for engine in AXES["engine"]
    for kind in TABLES
    if engine != "first-row" or kind in ("plain", "lookup", "lookup-compacting")
]


@pytest.mark.parametrize(("engine", "kind"), every(5, COMBINATIONS), ids=lambda part: str(part))
@pytest.mark.every(2)
def test_a_writer_goes_on_over_a_publish(java_oracle: JavaOracle, tmp_path: Path, engine: str, kind: str) -> None:
    case = start(java_oracle, tmp_path, engine, kind)
    world, given = case.world, theirs(case)
    with java_oracle.open_stream_writer(tmp_path, "d.t", commit_user="stream") as writer:
        writer.write(given)
        published = corrected(case, "fix")
        world.run("merge_branch", branch="fix")
        case.model = published
        case.done()
        if not commits(writer):  # a compaction of files that are gone: the job starts anew from its last checkpoint
            assert "write-only" not in TABLES[kind]
            head = world.snapshots()[-1]
            if head["commitUser"] != "stream":  # else the rows are there, and the job finds its commit
                case.java_writes(given, write_only=False)
    case.model.upsert(given)
    case.done()
    more = some_rows(case.chance, case.model, "xy", 6)
    case.java_writes(more, write_only=False)
    case.model.upsert(more)
    case.java_compacts()
    assert world.is_sound()


@pytest.mark.parametrize("engine", every(2, AXES["engine"]))
def test_a_writer_that_goes_on_twice(java_oracle: JavaOracle, tmp_path: Path, engine: str) -> None:
    """Two publishes, and the writer stays open over both; between them it commits."""
    case = start(java_oracle, tmp_path, engine, "plain")
    world = case.world
    with java_oracle.open_stream_writer(tmp_path, "d.t", commit_user="stream") as writer:
        for branch in ("fix", "again"):
            if branch != "fix":
                world.run("create_branch", branch=branch, snapshot=world.main.latest_snapshot_id())
            given = theirs(case)
            writer.write(given)
            published = corrected(case, branch)
            world.run("merge_branch", branch=branch)
            case.model = published
            case.done()
            assert commits(writer)
            case.model.upsert(given)
            case.done()
    case.java_compacts()


@pytest.mark.parametrize(("engine", "buckets"), every(4, product(AXES["engine"], AXES["buckets"])))
def test_a_running_writer_loses_to_no_publish(
    java_oracle: JavaOracle, tmp_path: Path, engine: str, buckets: str
) -> None:
    """New keys in dynamic buckets, of which a writer keeps track, are refused; rows that Java upserted, with high
    numbers, are folded first."""
    world = World(tmp_path, java_oracle)
    world.create(COLUMNS, **AXES["engine"][engine], **AXES["buckets"][buckets], **WRITE_ONLY)
    world.write(rows("x1 1 a"))
    world.run("create_branch", branch="fix", snapshot=1)
    highest = highest_number(world.main)
    if buckets == "dynamic":
        change(world.main, [{**r, "_row_kind": "+I"} for r in rows("x7 2 b")], "fix")
        before = world.main.latest_snapshot()
        with pytest.raises(UnsafeOperationError, match="--writers-stopped"):
            world.run("merge_branch", branch="fix")
        assert world.main.latest_snapshot() == before
        world.run("merge_branch", branch="fix", writers_stopped=True)
    else:
        world.write(rows("x1 2 b"), branch="fix")
        world.write(rows("x1 3 b"), branch="fix")
        world.run("merge_branch", branch="fix")
        assert world.same(columns=list(COLUMNS)) == world.same("fix", columns=list(COLUMNS)) != []
        assert highest_number(world.main) <= highest
    assert world.is_sound()


def highest_number(view: Table) -> int:
    return max(f.max_sequence_number for s in plan_scan(view).splits for f in s.files)


def commits(writer: Any) -> bool:
    try:
        writer.commit()
    except OracleError as error:
        assert "File deletion conflicts" in str(error)
        return False
    return True
