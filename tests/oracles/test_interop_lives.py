"""Random lives of a table: our branches, corrections, publishes and undos, while Paimon's Java engine writes, compacts
and expires. After every step Java and we read from main, every branch and every tag what a model says."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from airflow_paimon.core.errors import ConflictError, UnsafeOperationError
from tests.oracles.drivers import JavaOracle
from tests.oracles.interop import World, kv
from tests.randomness import chance, lives

pytestmark = [pytest.mark.oracle, pytest.mark.random]

STEPS = 40
PARTITIONS = "xyz"

State = dict[str, dict[int, str]]
"""Partition -> key -> value."""


def copied(state: State) -> State:
    return {p: dict(rows) for p, rows in state.items()}


def text(state: State) -> str:
    return " ".join(f"{p}{k}={state[p][k]}" for p in sorted(state) for k in sorted(state[p]))


@dataclass
class BranchModel:
    """``touched``: partitions whose rows were written since the branch point; ``source``: what it began with."""

    now: State
    touched: set[str] = field(default_factory=set)
    source: State = field(default_factory=dict)


def by_key(base: State, theirs: State, ours: State) -> State:
    """Main's rows after a merge: with the branch's rows of the keys that it has changed since the base."""
    out = copied(ours)
    for p in base.keys() | theirs.keys():
        before, after = base.get(p, {}), theirs.get(p, {})
        for k in (k for k in before.keys() | after.keys() if before.get(k) != after.get(k)):
            out.setdefault(p, {}).pop(k, None)
            if k in after:
                out[p][k] = after[k]
    return {p: rows for p, rows in out.items() if rows}


class Life:
    """One table, its model, and the steps that may happen to it. ``log`` tells what did.

    ``absorbed``: what main has had of each branch, since it was last published; it goes back with main.
    """

    def __init__(self, world: World, chance: random.Random) -> None:
        self.world, self.random = world, chance
        self.main: State = {}
        self.branches: dict[str, BranchModel] = {}
        self.tags: dict[str, State] = {}
        self.absorbed: dict[str, State] = {}
        self.absorbed_at: dict[str, dict[str, State]] = {}
        self.log: list[str] = []
        self.values = 0

    def start(self) -> None:
        self.world.create(
            **{
                "write-only": "true",
                "manifest.merge-min-count": str(self.random.choice([2, 3, 30])),
                "manifest.full-compaction-threshold-size": self.random.choice(["1 b", "16 mb"]),
            }
        )
        for partition in PARTITIONS:
            self._java_writes(self.main, None, partition)

    def _value(self) -> str:
        self.values += 1
        return f"v{self.values}"

    def _rows(self, partition: str) -> str:
        keys = self.random.sample(range(1, 5), self.random.randint(1, 3))
        return " ".join(f"{partition}{key}={self._value()}" for key in sorted(keys))

    def _apply(self, state: State, rows: str) -> None:
        for row in kv(rows):
            state.setdefault(row["p"], {})[row["k"]] = row["v"]

    def _java_writes(self, state: State, branch: str | None, partition: str) -> None:
        rows = self._rows(partition)
        if self.random.random() < 0.3:
            self.log.append(f"java overwrites {branch} {rows}")
            self.world.write(rows, branch, mode="overwrite", partition={"p": partition})
            state.pop(partition, None)
        else:
            self.log.append(f"java writes {branch} {rows}")
            self.world.write(rows, branch)
        self._apply(state, rows)

    # -- steps: each does one thing to the table and the same to the model

    def java_writes_main(self) -> None:
        self._java_writes(self.main, None, self.random.choice(PARTITIONS))

    def java_writes_branch(self) -> None:
        if name := self._some(self.branches):
            partition = self.random.choice(PARTITIONS)
            self._java_writes(self.branches[name].now, name, partition)
            self.branches[name].touched.add(partition)

    def we_correct(self) -> None:
        if name := self._some(self.branches):
            model = self.branches[name]
            partition = self.random.choice([p for p in PARTITIONS if p in model.now] or [""])
            if partition:
                rows = self._rows(partition)
                self.log.append(f"correct {name} {rows}")
                self.world.correct(name, rows)
                self._apply(model.now, rows)
                model.touched.add(partition)

    def java_compacts(self) -> None:
        branch = self._some([None, *self.branches])
        self.log.append(f"java compacts {branch}")
        self.world.do("compact", branch=branch, full=self.random.random() < 0.5)

    def java_expires(self) -> None:
        keep = self.random.randint(1, 4)
        self.log.append(f"java expires all but {keep}")
        old = int(time.time() * 1000) + 60_000
        self.world.do("expire_snapshots", retain_max=keep, retain_min=1, older_than_ms=old)

    def java_drops_a_tag(self) -> None:
        """A user's tag, or an undo tag whose retention has passed: Java deletes files along with it."""
        if name := self._some(self.tags):
            self.log.append(f"java deletes tag {name}")
            self.world.do("delete_tag", name=name)
            del self.tags[name]

    def tag(self) -> None:
        name = f"t{len(self.log)}"
        self.log.append(f"tag {name}")
        self.world.do("create_tag", name=name)
        self.tags[name] = copied(self.main)
        self.absorbed_at[name] = dict(self.absorbed)

    def branch(self) -> None:
        name = self.random.choice(["fix", "alt"])
        if name not in self.branches:
            tag = self._some(self.tags) if self.random.random() < 0.5 else None
            source = self.tags[tag] if tag else self.main
            self.log.append(f"create_branch {name} from {tag or 'head'}")
            where = {"tag": tag} if tag else {"snapshot": self.world.main.latest_snapshot_id()}
            self.world.run("create_branch", branch=name, **where)
            self.branches[name] = BranchModel(copied(source), source=copied(source))
            self._forget(name)

    def branch_of_a_branch(self) -> None:
        if (parent := self._some(self.branches)) and parent != "kid" and "kid" not in self.branches:
            view = self.world.branch(parent)
            self.log.append(f"create_branch kid from {parent}")
            self.world.run("create_branch", branch="kid", from_branch=parent, snapshot=view.latest_snapshot_id())
            model = self.branches[parent]
            self.branches["kid"] = BranchModel(copied(model.now), set(model.touched), model.source)
            self._forget("kid")

    def _forget(self, name: str) -> None:
        for absorbed in (self.absorbed, *self.absorbed_at.values()):
            absorbed.pop(name, None)

    def delete_branch(self) -> None:
        name = self._some(self.branches)
        if name is None or (len(self.branches) == 1 and self.random.random() < 0.8):
            return
        self.log.append(f"delete_branch {name}")
        try:
            self.world.run("delete_branch", branch=name)
            del self.branches[name]
        except UnsafeOperationError:
            assert "kid" in self.branches
            assert name != "kid"
            self.log.append("  refused: its kid lives")

    def merge(self) -> None:
        if name := self._some(self.branches):
            model = self.branches[name]
            expected = by_key(self.absorbed.get(name, model.source), model.now, self.main)
            self._publish("merge_branch", expected, branch=name, writers_stopped=True)

    def fast_forward(self) -> None:
        if name := self._some(self.branches):
            how = {"writers_stopped": True, "discard_main": True}
            self._publish("fast_forward", copied(self.branches[name].now), branch=name, **how)

    def roll_back(self) -> None:
        tag = self._some(self.tags)
        if tag and self._publish("rollback_to", copied(self.tags[tag]), tag=tag):
            self.absorbed = dict(self.absorbed_at[tag])

    def repair(self) -> None:
        self.log.append("repair_table")
        self.world.run("repair_table")

    def _publish(self, operation: str, expected: State, **values: object) -> bool:
        before, absorbed = copied(self.main), dict(self.absorbed)
        self.log.append(f"{operation} {values}")
        try:
            result = self.world.run(operation, **values)
        except ConflictError as error:
            assert "both changed" in str(error)
            self.log.append(f"  refused: {error}")
            return False
        self.main = expected
        if result.changed:
            self.tags[result.details["undo_tag"]] = before
            self.absorbed_at[result.details["undo_tag"]] = absorbed
            if "branch" in values:
                name = str(values["branch"])
                self.absorbed = {**self.absorbed, name: copied(self.branches[name].now)}
        return bool(result.changed)

    def _some(self, names):  # type: ignore[no-untyped-def]
        found = list(names)
        return self.random.choice(found) if found else None

    def step(self) -> None:
        steps: list[tuple[int, Callable[[], None]]] = [
            (5, self.java_writes_main),
            (3, self.java_writes_branch),
            (4, self.we_correct),
            (2, self.java_compacts),
            (4, self.java_expires),
            (2, self.java_drops_a_tag),
            (2, self.tag),
            (4, self.branch),
            (2, self.branch_of_a_branch),
            (2, self.delete_branch),
            (4, self.merge),
            (1, self.fast_forward),
            (3, self.roll_back),
            (1, self.repair),
        ]
        self.random.choices([step for _, step in steps], [weight for weight, _ in steps])[0]()

    def check(self) -> None:
        assert self.world.both() == text(self.main)
        for name, model in self.branches.items():
            assert self.world.both(name) == text(model.now), name
        for name, state in self.tags.items():
            assert self.world.both(tag=name) == text(state), name


@pytest.mark.parametrize("seed", range(lives(1, 5)))
def test_random_lives(java_oracle: JavaOracle, tmp_path: Path, seed: int) -> None:
    life = Life(World(tmp_path, java_oracle), chance(f"interop {seed}"))
    life.start()
    try:
        for _ in range(STEPS):
            life.step()
            life.check()
        assert life.world.is_sound()
        life.world.do("remove_orphans", older_than_ms=int(time.time() * 1000) + 60_000)
        life.check()
    except BaseException:
        print("\n".join(life.log))
        raise
