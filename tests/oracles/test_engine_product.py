"""Merge engine x buckets x deletion vectors x changelog x file format, every pair of them, both ways with O3 (Java).

Java upserts and deletes and leaves files of level 0; we correct on a branch by a query and by statements, and publish;
Java reads, upserts, deletes and compacts; we append and compact. After each step both read the rows of a model, each
key once. What the built-in engine refuses by name changes nothing, and is left out: what is lifted later is tested from
then on. ``make product`` runs all combinations.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_paimon.core.errors import UnsupportedFeatureError
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.options import TableOptions
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import read_arrow, write_arrow
from tests.data.corrections import arrow, change, correct, whole_rows
from tests.data.hash_indexes import check_indexes
from tests.data.test_compact import run as compact
from tests.oracles.drivers import JavaOracle
from tests.oracles.interop import World
from tests.oracles.product import (
    Combination,
    Key,
    Model,
    Row,
    everything,
    name_of,
    options_of,
    pairwise,
    some_rows,
)
from tests.randomness import chance as chance_of
from tests.randomness import every

pytestmark = [pytest.mark.oracle, pytest.mark.random]

COLUMNS = {"p": "STRING NOT NULL", "k": "INT NOT NULL", "a": "INT", "b": "STRING"}
COMBINATIONS = everything() if os.environ.get("AIRFLOW_PAIMON_PRODUCT") else every(6, pairwise())


@dataclass(slots=True)
class Case:
    """A table of a combination, its model, and a stream of Java that follows it."""

    world: World
    combination: Combination
    chance: random.Random
    model: Model
    reader: str
    told: dict[Key, Row] = field(default_factory=dict)
    exact: bool = True
    """Whether the stream has been told everything so far."""

    @property
    def changelog(self) -> str:
        return self.combination["changelog"]

    @property
    def hides(self) -> bool:
        return self.combination["vectors"] != "none" or self.combination["engine"] == "first-row"

    # ---- looking

    def check(self, branch: str = "main", model: Model | None = None) -> None:
        """Both read the same, and what a full compaction would read is the model, each key once."""
        view = self.world.main.branch(branch)
        wanted = (model or self.model).content()
        assert _sorted(whole_rows(view)) == wanted
        ours = _sorted(read_arrow(view))
        assert ours == _sorted(self.world.java.read(self.world.warehouse, "d.t", branch=branch))
        if not self.hides or not _has_level_0(view):
            assert ours == wanted
        if self.combination["buckets"] == "dynamic":
            check_indexes(view)

    def done(self, branch: str = "main", model: Model | None = None) -> None:
        """After each step of ours: nothing is wrong with the table's files either."""
        self.check(branch, model)
        assert self.world.is_sound()

    # ---- writing

    def java_writes(self, rows: Sequence[Row], *, kind: str = "+I", write_only: bool, branch: str = "main") -> None:
        options = {"write-only": "true"} if write_only else None
        self.world.write([{**r, "_row_kind": kind} for r in rows], branch=branch, options=options)

    def java_upserts(self, *, write_only: bool | None = None) -> set[Key]:
        rows = some_rows(self.chance, self.model, "xy", 8)
        if write_only is None:
            write_only = self.chance.random() < 0.5
        self.java_writes(rows, write_only=write_only)
        self.model.upsert(rows)
        self.check()
        return {self.model.key(r) for r in rows}

    def java_deletes(self) -> set[Key]:
        if not self.model.takes_deletes() or not self.model.rows:
            return set()
        rows = self.chance.sample(list(self.model.rows.values()), min(2, len(self.model.rows)))
        self.java_writes(rows, kind="-D", write_only=self.chance.random() < 0.5)
        self.model.delete(rows, by_record=True)
        self.check()
        return {self.model.key(r) for r in rows}

    def java_compacts(self) -> None:
        self.world.do("compact", full=True)
        self.model.dead.clear()
        self.check()
        assert self.hides or not _has_level_0(self.world.main)

    def attempt(self, work: Callable[[], Any], branch: str = "main") -> bool:
        """Do what may be refused by name; refused, it has changed nothing."""
        view = self.world.main.branch(branch)
        before, files = view.latest_snapshot(), self.world.data_files()
        try:
            work()
        except UnsupportedFeatureError as error:
            assert "built-in engine" in error.message and "d.t" in error.message
            assert (view.latest_snapshot(), self.world.data_files()) == (before, files)
            return False
        return True

    def we_upsert(self) -> None:
        rows = some_rows(self.chance, self.model, "xy", 8)
        if self.model.engine != "deduplicate":  # Java would take them to the partition where the key is
            rows = [r for r in rows if self.model.fits(r)]
        gone: list[Row] = []
        if self.model.takes_deletes():
            named = {self.model.key(r) for r in rows}
            gone = [r for key, r in self.model.rows.items() if key not in named][: self.chance.randrange(2)]
        given = arrow(self.world.main, [*rows, *({**r, "_row_kind": "-D"} for r in gone)])
        if self.model.engine in ("partial-update", "aggregation") and not gone and not self.model.dead:
            lacking = self.chance.choice(["a", "b"])  # as if it were null
            given, rows = given.drop_columns([lacking]), [r | {lacking: None} for r in rows]
        if self.attempt(lambda: write_arrow(self.world.main, given)):
            self.model.upsert(rows)
            self.model.delete(gone, by_record=True)
            self.done()

    def we_overwrite(self) -> bool:
        """Replace a partition; a stream is told nothing of what was in it."""
        rows = some_rows(self.chance, Model(self.model.engine, self.model.moving), "y", 5)
        rows = [r for r in rows if self.model.fits(r) and self.model.key(r) not in self.model.dead]
        data = arrow(self.world.main, rows)
        if not self.attempt(lambda: write_arrow(self.world.main, data, mode="overwrite", partition={"p": "y"})):
            return False
        self.model.drop("y")
        self.model.put(rows)
        self.exact = False
        self.done()
        return True

    def we_change(self) -> None:
        """Statements on main; streams are told what they change."""
        if self._statements("main", self.model):
            assert self.world.is_sound()

    def we_compact(self) -> None:
        if self.attempt(lambda: compact(self.world.main)):
            self.model.dead.clear()
            self.done()

    # ---- a branch

    def correct_and_publish(self) -> None:
        world, branch = self.world, f"fix{self.chance.randrange(10**6)}"
        world.run("create_branch", branch=branch, snapshot=world.main.latest_snapshot_id())
        model, stopped = self.model.copy(), self.combination["buckets"] != "fixed"
        if self.chance.random() < 0.3:
            rows = some_rows(self.chance, model, "xy", 4)
            self.java_writes(rows, write_only=True, branch=branch)
            model.upsert(rows)
            stopped = True
        changed = self._correct(branch, model)
        changed = self._statements(branch, model) or changed
        if not model.moving and self.chance.random() < 0.5:  # beside it, another partition of main grows
            rows = [{"p": "z", "k": k, "a": k, "b": "z"} for k in (40, 41)]
            rows = [r for r in rows if self.model.key(r) not in self.model.rows]
            self.java_writes(rows, write_only=False)
            self.model.put(rows)
            model.put(rows)
        self.follow()
        self.check()
        if not changed and not stopped:
            return
        result = world.run("merge_branch", branch=branch, writers_stopped=stopped)
        self.model = model
        self.done()
        warned = any("streaming readers" in w for w in result.details.get("warnings", ()))
        told = self.follow()
        if self.changelog in ("lookup", "full-compaction", "input") and result.changed:
            assert warned is not bool(told), "a publish says what its streams miss"
        self.exact = self.exact and not warned

    def _correct(self, branch: str, model: Model) -> bool:
        """Partition x by a query: some rows stay, some change, some come."""
        rows = [dict(r) for r in model.rows.values() if r["p"] == "x" and self.chance.random() < 0.7]
        rows = [r | {"a": 1000} if self.chance.random() < 0.3 else r for r in rows]
        new = some_rows(self.chance, Model("any", model.moving), "x", 3)
        new = [r for r in new if model.fits(r) and model.key(r) not in map(model.key, rows)]
        given = [*rows, *new]
        if not self.attempt(lambda: correct(self.world.main, branch, given, partitions=("p=x",)), branch):
            return False
        model.drop("x")
        model.put(given)
        self.check(branch, model)
        return True

    def _statements(self, branch: str, model: Model) -> bool:
        """DELETE, UPDATE and an insert of MERGE in partition y."""
        there = [dict(r) for r in model.rows.values() if r["p"] == "y"]
        self.chance.shuffle(there)
        gone, kept = there[:1], [r | {"a": None, "b": f"set {self.chance.random()}"} for r in there[1:3]]
        new = [{"p": "y", "k": 20 + self.chance.randrange(9), "a": 7, "b": None}]
        new = [r for r in new if model.key(r) not in model.rows and model.key(r) not in model.dead]
        done = False
        for rows, kind in ((gone, "-D"), (kept, "+U"), (new, "+I")):
            given = [{**r, "_row_kind": kind} for r in rows]
            if not given or not self.attempt(lambda g=given: change(self.world.main, g, branch), branch):
                continue
            model.delete(gone, by_record=False) if kind == "-D" else model.put(rows)
            done = True
        if done:
            self.check(branch, model)
        return done

    # ---- a stream

    def follow(self) -> list[Row]:
        """Apply what the stream tells next."""
        if self.changelog == "none":
            return []
        told = []
        while (found := self.world.java.stream_read(self.reader)[0]).num_rows:
            for row in found.to_pylist():
                told.append(dict(row))
                kind, key = row.pop("_row_kind"), self.model.key(row)
                if self.changelog != "input" and self.exact and not self.model.moving:  # one change after the other
                    assert self.told.get(key) == (None if kind in ("+I",) else row if kind[0] == "-" else None), row
                if kind[0] == "+":
                    self.told[key] = row
                elif not self.model.moving or self.told.get(key) == row:  # else the key has come to another bucket
                    self.told.pop(key, None)
        return told

    def all_told(self, keys: set[Key] | None = None) -> None:
        """After a full compaction the stream knows the rows, or those of these keys."""
        self.follow()
        if self.changelog in ("lookup", "full-compaction") or (self.changelog, self.model.engine) == (
            "input",
            "deduplicate",
        ):
            chosen = self.told.keys() | self.model.rows.keys() if keys is None else keys
            assert {k: self.told.get(k) for k in chosen} == {k: self.model.rows.get(k) for k in chosen}


def _sorted(rows: pa.Table) -> list[Any]:
    return sorted((tuple(r.values()) for r in rows.select(list(COLUMNS)).to_pylist()), key=lambda r: r[:2])


def _has_level_0(view: Table) -> bool:
    return any(e.file.level == 0 for e in live_entries(view, view.latest_snapshot()).values())


@pytest.mark.parametrize("combination", COMBINATIONS, ids=name_of)
@pytest.mark.every(2)
def test_a_table_that_both_write(java_oracle: JavaOracle, tmp_path: Path, combination: Combination) -> None:
    name = name_of(combination)
    world, chance = World(tmp_path, java_oracle), chance_of(f"product {name}")
    moving = combination["buckets"] == "moving"
    world.create(COLUMNS, primary_keys=["k"] if moving else ["p", "k"], **options_of(combination))
    case = Case(world, combination, chance, Model(combination["engine"], moving), str(tmp_path))
    case.java_upserts()
    if case.changelog != "none":
        java_oracle.open_stream_reader(tmp_path, "d.t", case.reader)
    case.java_upserts()
    case.java_deletes()
    if chance.random() < 0.7:
        case.java_compacts()
        case.all_told()
    case.java_upserts(write_only=True)
    case.correct_and_publish()
    keys = case.java_upserts() | case.java_deletes()
    case.we_upsert()
    case.we_change()
    if chance.random() < 0.5 and case.we_overwrite():
        keys = set()
    case.we_compact()
    keys |= case.java_upserts()
    case.java_compacts()
    if case.exact or combination["engine"] != "first-row":  # of a key that is there a stream is told nothing more
        case.all_told(None if case.exact else keys)
    case.correct_and_publish()
    case.java_upserts()
    case.java_compacts()
    assert TableOptions(world.main.schema().options).merge_engine == combination["engine"]
