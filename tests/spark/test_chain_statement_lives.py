"""Random statements on the branches of a chain table, among writes and compactions, against the model of its rows."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_paimon.core.errors import ConflictError
from airflow_paimon.spark import sql
from tests.core.tables import run
from tests.data.chain.compactions import compact, outcomes
from tests.data.chain.tables import chain_table, seen, write
from tests.randomness import chance
from tests.spark.jobs.operations import in_tasks
from tests.stateful.chain_model import DELTA, FULL, ChainModel, Partition, Row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STATEMENTS = 8
WRITTEN = ("compacted", "stale-rebuilt")
DAYS = [f"2025081{n}" for n in range(5)]


class Life:
    def __init__(self, spark: SparkSession, warehouse: Path, chance: random.Random) -> None:
        self._spark, self._warehouse, self._chance = spark, str(warehouse), chance
        self.table = chain_table(warehouse, [], buckets=chance.randint(1, 2))
        self.model = ChainModel(partial=False)
        self.last: tuple[str, Partition] = DELTA, ("", 0)
        for _ in range(3):
            self.append()

    def step(self) -> None:
        self._chance.choice([self.update, self.update, self.delete, self.merge, self.merge, self.drop])()
        self._chance.choice([self.append, self.compact, self.pending, self.look])()
        self.look()

    # -- what happens beside the statements ----------------------------------------------------------------------------

    def append(self) -> None:
        at = self._day()
        rows = [
            Row(self._chance.randint(0, 6), self._sequence(), ((0, self._text()),), self._chance.choice(["+I", "-D"]))
            for _ in range(3)
        ]
        branch = DELTA if at not in self.model.held[FULL] else FULL
        found = [(r.key, r.sequence, dict(r.values)[0], r.kind) for r in rows]
        write(self.table.branch(branch), ["k", "s", "v"], ["dt"], DAYS[at[1]], found)
        self.model.write(branch, at, rows, False)
        self.last = branch, at

    def compact(self) -> None:
        self._compacted(outcomes(compact(self.table, f"dt={DAYS[self._day()[1]]}")))

    def pending(self) -> None:
        self._compacted(outcomes(compact(self.table, pending=True, max_chain_length=2)))

    def _compacted(self, found: Mapping[str, str]) -> None:
        for text, outcome in sorted(found.items()):
            if outcome in WRITTEN:
                self.model.make_full([("", DAYS.index(text.removeprefix("dt=")))])

    # -- statements ----------------------------------------------------------------------------------------------------

    def update(self) -> None:
        branch, at, keys = self._target()
        value, more = self._text(), self._chance.randint(-1, 1)
        text = f"SET v = '{value}', s = s + {more} WHERE dt = '{DAYS[at[1]]}' AND k IN ({keys[0]}, {keys[1]})"
        changed = {
            r.key: Row(r.key, None if r.sequence is None else r.sequence + more, ((0, value),), "+U")
            for r in self._visible(branch, at)
            if r.key in keys
        }
        self._run(f"UPDATE d.`t$branch_{branch}` {text}", branch, at, changed)

    def delete(self) -> None:
        branch, at, keys = self._target()
        changed = {r.key: Row(r.key, r.sequence, r.values, "-D") for r in self._visible(branch, at) if r.key in keys}
        text = f"DELETE FROM d.`t$branch_{branch}` WHERE dt = '{DAYS[at[1]]}' AND (k = {keys[0]} OR k = {keys[1]})"
        self._run(text, branch, at, changed)

    def merge(self) -> None:
        branch, at, keys = self._target()
        value, sequence = self._text(), self._sequence()
        visible = {r.key: r for r in self._visible(branch, at)}
        changed = {k: Row(k, r.sequence, ((0, value),), "+U") for k, r in visible.items() if k in keys}
        if keys[0] in visible:
            gone = visible[keys[0]]
            changed[gone.key] = Row(gone.key, gone.sequence, gone.values, "-D")
        changed |= {k: Row(k, sequence, ((0, value),)) for k in keys if k not in visible}
        shown = "CAST(NULL AS INT)" if sequence is None else sequence
        source = " UNION ".join(f"SELECT {k} AS k" for k in sorted(set(keys)))
        text = (
            f"MERGE INTO d.`t$branch_{branch}` t USING ({source}) f ON t.k = f.k AND t.dt = '{DAYS[at[1]]}' "
            f"WHEN MATCHED AND t.k = {keys[0]} THEN DELETE WHEN MATCHED THEN UPDATE SET v = '{value}' "
            f"WHEN NOT MATCHED THEN INSERT (k, s, v, dt) VALUES (f.k, {shown}, '{value}', '{DAYS[at[1]]}')"
        )
        self._run(text, branch, at, changed)

    def drop(self) -> None:
        at = self._day()
        sql(self._spark, self._warehouse, f"DELETE FROM d.`t$branch_delta` WHERE dt = '{DAYS[at[1]]}'")
        self.model.drop(DELTA, [at])

    def _run(self, text: str, branch: str, at: Partition, changed: Mapping[int, Row]) -> None:
        """Run it on the branch itself, or on one taken from it that is published, sometimes after another commit."""
        head = self.table.branch(branch).latest_snapshot_id()
        if head is None or self._chance.random() < 0.5:
            self._statement(text, changed)
        else:
            run(self.table, "create_branch", branch="fix", from_branch=branch, snapshot=head)
            self._statement(text.replace(f"$branch_{branch}`", "$branch_fix`"), changed)
            self.look()
            elsewhere = self._chance.random() < 0.5
            if elsewhere:
                self.append()
            moved = self.table.branch(branch).latest_snapshot_id() != head and self.last == (branch, at)
            try:
                run(self.table, "merge_branch", branch="fix")
            except ConflictError:
                assert moved, "nothing else was in these buckets"
                changed = {}
            run(self.table, "delete_branch", branch="fix")
        self.model.change(branch, at, changed)

    def _statement(self, text: str, changed: Mapping[int, Row]) -> None:
        details = sql(self._spark, self._warehouse, text)["details"]
        assert sum(details[f"rows_{kind}"] for kind in ("updated", "deleted", "inserted")) == len(changed), text

    # -- what is drawn, and what must hold -----------------------------------------------------------------------------

    def _target(self) -> tuple[str, Partition, tuple[int, int]]:
        branch = self._chance.choice([DELTA, DELTA, FULL])
        held = sorted(self.model.held[branch])
        at = self._chance.choice(held) if held and self._chance.random() < 0.8 else self._day()
        one, other = self._chance.sample(range(7), 2)
        return branch, at, (one, other)

    def _visible(self, branch: str, at: Partition) -> list[Row]:
        return self.model.merged([self.model.held[branch].get(at, [])])

    def _day(self) -> Partition:
        return "", self._chance.randrange(len(DAYS))

    def _sequence(self) -> int | None:
        return self._chance.choice([None, 0, 1, 2, 3])

    def _text(self) -> str:
        return self._chance.choice("abcdef")

    def look(self) -> None:
        for branch, rows in ((None, self.model.read()), *((b, self.model.read_branch(b)) for b in (DELTA, FULL))):
            view = self.table if branch is None else self.table.branch(branch)
            shown = [(r.key, r.sequence, dict(r.values)[0], DAYS[at[1]]) for at, some in rows.items() for r in some]
            assert seen(view) == sorted(shown, key=repr)
        details: dict[str, Any] = dict(run(self.table, "check_chain_table").details)
        assert details["errors"] == 0
        stale = {("", DAYS.index(text.removeprefix("dt="))) for text in details["stale"]}
        assert self.model.surely_stale() <= stale
        assert not stale & self.model.surely_fresh()


@pytest.mark.thorough
@pytest.mark.random
@pytest.mark.parametrize("place", ["here", "in tasks"])
def test_a_life(spark: SparkSession, tmp_path: Path, place: str) -> None:
    life = Life(spark, tmp_path, chance(f"chain statements {place}"))
    if place == "here":
        for _ in range(STATEMENTS):
            life.step()
        return
    with in_tasks():
        for _ in range(3):
            life.step()
