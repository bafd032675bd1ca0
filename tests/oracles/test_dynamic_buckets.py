"""Dynamic buckets, both ways: Java's writers and ours take turns, and a key is in one bucket for ever."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from airflow_paimon.core.table.table import Table
from airflow_paimon.data import write_arrow
from tests.core.tables import run
from tests.data.hash_indexes import DYNAMIC, SAME_HASH, check_indexes, indexed
from tests.data.tables import rows_of
from tests.data.test_dynamic_buckets import _copy, _forget, _lose
from tests.oracles.drivers import JavaOracle
from tests.oracles.interop import World
from tests.randomness import chance, lives
from tests.stores import Crash, FaultStore

pytestmark = pytest.mark.oracle

COLUMNS = {"k": "BIGINT NOT NULL", "v": "STRING", "p": "STRING NOT NULL"}


def arrow(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    found = rows_of(COLUMNS, [{n: r[n] for n in COLUMNS} for r in rows])
    if any("_row_kind" in r for r in rows):
        found = found.append_column("_row_kind", pa.array([r.get("_row_kind", "+I") for r in rows]))
    return found


@pytest.fixture
def world(java_oracle: JavaOracle, tmp_path: Path) -> World:
    return World(tmp_path, java_oracle)


def make(world: World, *, partitioned: bool = True, **options: str) -> None:
    world.create(
        COLUMNS,
        primary_keys=("p", "k") if partitioned else ("k",),
        partition_keys=("p",) if partitioned else (),
        **(DYNAMIC | options),
    )


def rows(text: str) -> list[dict[str, Any]]:
    """``"x1=a x2=b"``: partition x, keys 1 and 2; keys from 900 on share a hash in pairs."""
    found = []
    for word in text.split():
        key, value = word.split("=")
        number = int(key[1:])
        twin = divmod(number - 900, 2) if number >= 900 else None
        found.append({"p": key[0], "k": number if twin is None else SAME_HASH[twin[0]][twin[1]], "v": value})
    return found


def distinct(world: World) -> list[Any]:
    """What both read, each key once, with a sound index."""
    found = world.same()
    assert len(found) == len({(p, k) for p, k, _ in found})
    check_indexes(world.main)
    return found


def test_java_finds_the_keys_that_we_have_written(world: World) -> None:
    """Without our hashes in the index, each key would get a second bucket."""
    make(world)
    write_arrow(world.main, arrow(rows(" ".join(f"x{i}=ours" for i in range(20)) + " x900=ours y1=ours")))
    world.write(rows(" ".join(f"x{i}=java" for i in range(10, 30)) + " x900=java x901=java"))
    assert len(distinct(world)) == 33
    write_arrow(world.main, arrow(rows(" ".join(f"x{i}=again" for i in range(40)) + " x901=again")))
    world.write(rows(" ".join(f"x{i}=last" for i in range(40))))
    assert [v for p, k, v in distinct(world) if p == "x" and k < 100] == ["last"] * 40


@pytest.mark.parametrize("damage", ["forgotten", "lost", "twice"])
@pytest.mark.every(2)
def test_java_goes_on_after_an_index_was_built_anew(world: World, damage: str) -> None:
    """With the damaged one its next upsert puts known keys into other buckets, or fails."""
    make(world)
    world.write(rows(" ".join(f"x{i}=java" for i in range(12)) + " y1=java"))
    write_arrow(world.main, arrow(rows("x3=ours x12=ours")))
    {"forgotten": _forget, "lost": _lose, "twice": _copy}[damage](world.main)
    assert not run(world.main, "check_table", verify_keys=True).details["ok"]
    run(world.main, "repair_table", finding=("hash-index:main",))
    assert run(world.main, "check_table", verify_keys=True).details["ok"]
    world.write(rows(" ".join(f"x{i}=again" for i in range(16)) + " y1=again y2=again"))
    assert [v for _, _, v in distinct(world)] == ["again"] * 18
    write_arrow(world.main, arrow(rows(" ".join(f"x{i}=last" for i in range(20)))))
    assert len(distinct(world)) == 22


def test_keys_with_one_hash_stay_in_one_bucket(world: World) -> None:
    make(world)
    world.write(rows("x900=java"))
    write_arrow(world.main, arrow(rows(" ".join(f"x{i}=ours" for i in range(9)))))
    write_arrow(world.main, arrow(rows("x901=ours x903=ours")))
    world.write(rows("x901=java x902=java"))
    write_arrow(world.main, arrow(rows("x900=ours x902=ours")))
    assert len(distinct(world)) == 13


def test_an_overwrite_of_some_partitions_keeps_the_indexes_of_the_others(world: World) -> None:
    make(world)
    world.write(rows("x1=a x2=a x3=a x4=a x5=a x6=a y1=a y2=a y3=a y4=a y5=a z1=a"), assigners=2)
    write_arrow(world.main, arrow(rows("x6=b x9=b")), mode="overwrite", partition={"p": "x"})
    write_arrow(world.main, arrow(rows("z7=b q1=b")), mode="dynamic_overwrite")
    world.write(rows("x6=c x9=c y1=c y2=c y3=c y4=c y5=c z7=c q1=c z1=c x1=c"), assigners=3)
    assert {v for _, _, v in distinct(world)} == {"c"}
    write_arrow(world.main, arrow(rows("x1=d")), mode="overwrite")
    assert len(indexed(world.main)) == 1
    world.write(rows("x1=e y1=e"))
    assert len(distinct(world)) == 2


def test_a_correction_of_one_bucket_keeps_the_index_of_all(world: World) -> None:
    """Hazard: the entry of a rewritten bucket, or of another one of its partition, is lost."""
    make(world)
    world.write(rows("x1=a x2=a x3=a x4=a x5=a x6=a x7=a x8=a y1=a"))
    before = indexed(world.main)
    assert len(before) == 3
    world.run("create_branch", branch="fix", snapshot=1)
    world.correct("fix", rows("x1=b"))
    assert indexed(world.branch("fix")) == before
    world.correct("fix", rows("x2=b x9=b x10=b q1=b"))
    world.run("merge_branch", branch="fix", writers_stopped=True)
    world.write(rows(" ".join(f"x{i}=c" for i in range(1, 12)) + " y1=c q1=c"))
    assert [v for _, _, v in distinct(world)] == ["c"] * 13


def test_a_branch_that_java_has_written_is_published_with_its_indexes(world: World) -> None:
    make(world)
    world.write(rows("x1=a x2=a x3=a x4=a y1=a"))
    world.run("create_branch", branch="fix", snapshot=1)
    world.write(rows("x1=b x5=b x6=b x7=b x8=b x9=b"), branch="fix")
    world.write(rows("y2=main"))
    world.run("merge_branch", branch="fix", writers_stopped=True)
    write_arrow(world.main, arrow(rows("x5=c x9=c y2=c y1=c")))
    world.write(rows("x6=d x7=d x8=d x9=d x10=d"))
    assert len(distinct(world)) == 12
    assert world.is_sound()


def test_a_write_that_dies_anywhere_leaves_a_table_that_java_goes_on_with(world: World) -> None:
    """Killed before and after each change of the storage, then Java writes the same keys; a retry of ours as well."""
    make(world, partitioned=False)
    world.write([{"p": "x", "k": k, "v": "java"} for k in range(6)])
    step, last = 0, False
    while not last:
        step += 1
        given = [{"p": "x", "k": k, "v": f"ours {step}"} for k in (step % 6, 100 + step, 101 + step, 200 + step)]
        for after in (False, True):
            faulty = Table(FaultStore(world.main.store, fail_at=step, error=Crash(), after=after), world.table)
            try:
                write_arrow(faulty, arrow(given))
                last = True
            except Crash:
                check_indexes(world.main)
        write_arrow(world.main, arrow(given))
        world.write([r | {"v": f"java {step}"} for r in given])
        assert step < 60
    found = distinct(world)
    assert len(found) == 6 + (step + 1) + step
    assert {v for _, k, v in found if k == 200 + step} == {f"java {step}"}


@dataclass(slots=True)
class Life:
    """A random life of a table, and what it must hold."""

    world: World
    random: Random
    keys: list[int]
    assigners: int
    """Most of Java's: of several, one without a bucket fails ("list is empty") where max-buckets is reached."""
    model: dict[tuple[str, int], str] = field(default_factory=dict)
    step: int = 0

    def some(self) -> list[dict[str, Any]]:
        self.step += 1
        chosen = {(self.random.choice("xyz"), self.random.choice(self.keys)) for _ in range(self.random.randint(1, 20))}
        return [{"p": p, "k": k, "v": f"v{self.step}"} for p, k in sorted(chosen)]

    def put(self, given: Sequence[Mapping[str, Any]]) -> None:
        for row in given:
            if row.get("_row_kind") == "-D":
                self.model.pop((row["p"], row["k"]), None)
            else:
                self.model[row["p"], row["k"]] = row["v"]

    def upsert(self) -> None:
        given = [r | {"_row_kind": self.random.choice(["+I", "+I", "+I", "-D"])} for r in self.some()]
        if self.random.random() < 0.5:
            self.world.write(given, assigners=self.random.randint(1, self.assigners))
        else:
            write_arrow(self.world.main, arrow(given))
        self.put(given)

    def overwrite(self) -> None:
        given = self.some()
        gone = {r["p"] for r in given}
        if self.random.random() < 0.3:
            self.world.write(given, mode="dynamic_overwrite", assigners=self.random.randint(1, self.assigners))
        elif self.random.random() < 0.5:
            write_arrow(self.world.main, arrow(given), mode="dynamic_overwrite")
        else:
            gone = {"x"}
            given = [r | {"p": "x"} for r in given if r["p"] == "x"]
            write_arrow(self.world.main, arrow(given), mode="overwrite", partition={"p": "x"})
        self.model = {k: v for k, v in self.model.items() if k[0] not in gone}
        self.put(given)

    def correct(self) -> None:
        head = self.world.main.latest_snapshot()
        if head is None:
            return
        name = f"fix{self.step}"
        self.world.run("create_branch", branch=name, snapshot=head.id)
        for _ in range(self.random.randint(1, 2)):
            given = self.some()
            if self.random.random() < 0.3:
                self.world.write(given, branch=name)
            else:
                self.world.correct(name, given)
            self.put(given)
        self.world.run("merge_branch", branch=name, writers_stopped=True)

    def compact(self) -> None:
        self.world.do("compact", full=True)


@pytest.mark.random
@pytest.mark.parametrize("case", range(lives(1, 4)))
def test_lives_in_which_both_write(world: World, case: int) -> None:
    random = chance(f"dynamic buckets {case}")
    options = {"dynamic-bucket.target-row-num": str(random.randint(1, 9))}
    limited = random.random() < 0.4
    if limited:
        options["dynamic-bucket.max-buckets"] = str(random.randint(1, 4))
    make(world, **options)
    twins = [k for pair in SAME_HASH for k in pair]
    life = Life(world, random, [*range(random.choice([5, 30])), *twins], 1 if limited else 3)
    for _ in range(12):
        act = random.choice([life.upsert, life.upsert, life.upsert, life.overwrite, life.correct, life.compact])
        act()
        found = {(p, k): v for p, k, v in distinct(world)}
        assert found == life.model, f"after {act.__name__} {life.step}"
    assert world.is_sound()
