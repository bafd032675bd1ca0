"""Branches are created, replaced, renamed and deleted beside writers, at the granularity of single store calls.

A round starts a few operations at once. Each runs in a thread of its own, but only one of them runs at a time: at every
call of the store the next one to go on is drawn. The model knows the files (rows) of every acknowledged commit. After
each round they are all readable, unless a deletion found them and took them along; what was refused is nowhere; what
went with a branch does not come back with the next one of that name; and check_table is content.

``AIRFLOW_PAIMON_SOAK`` sets for how many seconds.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from airflow_paimon.core.commit.files import commit_append
from airflow_paimon.core.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    UnsafeOperationError,
)
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import open_context
from airflow_paimon.core.store import Store
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.table import Table
from airflow_paimon.execution import perform
from tests.core.tables import append, make_table, message, names, run
from tests.randomness import chance, lives
from tests.stores import _Wrapper

pytestmark = pytest.mark.random

BRANCHES = ("fix", "alt", "new")
REFUSALS = (AlreadyExistsError, ConflictError, InvalidInputError, NotFoundError, UnsafeOperationError)


class Baton:
    """Lets one of several threads run at a time, and draws the next one at every call of the store."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.turn = threading.Condition()
        self.running: list[int] = []
        self.now = -1

    def run(self, jobs: list[Callable[[], None]]) -> None:
        self.running = list(range(len(jobs)))
        threads = [threading.Thread(target=self._work, args=(i, job), daemon=True) for i, job in enumerate(jobs)]
        for thread in threads:
            thread.start()
        with self.turn:
            self._draw()
        for thread in threads:
            thread.join(600)
            assert not thread.is_alive(), "an operation hangs"
        self.now = -1

    def _work(self, number: int, job: Callable[[], None]) -> None:
        self._wait(number)
        try:
            job()
        finally:
            with self.turn:
                self.running.remove(number)
                self._draw()

    def _draw(self) -> None:
        self.now = self.rng.choice(self.running) if self.running else -1
        self.turn.notify_all()

    def _wait(self, number: int) -> None:
        with self.turn:
            assert self.turn.wait_for(lambda: self.now == number, 500), "nobody hands the baton on"

    def switch(self, number: int) -> None:
        with self.turn:
            if self.rng.random() < 0.5:
                self._draw()
        self._wait(number)


class Switching(_Wrapper):
    """One operation's store: hands the baton on before each call, and tells the model what becomes of branches."""

    def __init__(
        self, inner: Store, baton: Baton, number: int, on_record: Callable[[str, dict[str, Any]], None]
    ) -> None:
        super().__init__(inner)
        self.baton, self.number, self.on_record = baton, number, on_record

    def _call(self, method: str, path: str, action: Callable[[], Any]) -> Any:
        self.baton.switch(self.number)
        return action()

    def replace(self, path: str, data: bytes) -> None:
        super().replace(path, data)
        if path.startswith("_airflow_paimon/branches/"):
            self.on_record(json.loads(data))

    def replace_same(self, path: str, data: bytes, expected: bytes) -> bool | None:
        done = super().replace_same(path, data, expected)
        if done and path.startswith("_airflow_paimon/branches/"):
            self.on_record(json.loads(data))
        return done


@dataclass
class Model:
    """``acked``: files of acknowledged commits; ``refused``: of refused ones; ``gone``: of what this round deleted.

    ``looked_at``: by branch, what the deletion that is under way found in it; ``dead``: what no branch has any more.
    """

    table: Table
    acked: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    looked_at: dict[str, set[str]] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    dead: set[str] = field(default_factory=set)

    def on_record(self, record: dict[str, Any]) -> None:
        name = record["branch"]
        if record["state"] == "deleting":
            view = self.table.branch(name)
            head = view.find_snapshot(record["head"]) if record["head"] else None
            self.looked_at[name] = {e.file.file_name for e in live_entries(view, head).values()} if head else set()
        elif record["state"] == "deleted":
            self.gone |= self.looked_at.pop(name, set())

    def alive(self) -> set[str]:
        """The files that main, a branch or a tag of theirs still holds."""
        found = names(self.table)
        for name in self.table.branch_names():
            view = self.table.branch(name)
            if view.exists():
                found |= names(view)
        return found

    def check(self) -> None:
        alive = self.alive()
        story = "\n".join(self.log[-12:])
        assert self.acked - self.gone <= alive, f"acknowledged rows are lost: {self.acked - self.gone - alive}\n{story}"
        assert not self.refused & alive, f"rows of a refused commit are readable: {self.refused & alive}\n{story}"
        self.acked &= alive
        dead = self.gone - alive
        assert not self.dead & alive, f"rows of a deleted branch are back: {self.dead & alive}\n{story}"
        self.dead |= dead
        self.gone.clear()


def write(table: Table, name: str, model: Model, rng_key: int) -> str:
    """Append one file to a branch, as a writer does that plans on the head that it sees."""
    view = table.branch(name)
    try:
        head = view.latest_snapshot()
        new = message(view, "a", rng_key % 2, seq=rng_key * 10)
    except REFUSALS as error:
        return f"not written: {error}"
    files = {f.file_name for f in new.new_files}
    try:
        done = commit_append(view, [new], planned_on=head)
    except OutcomeUnknownError as error:
        return f"unknown: {error}"
    except REFUSALS as error:
        model.refused |= files
        return f"refused: {error}"
    model.acked |= files
    return f"snapshot {done.snapshot.id if done.snapshot else None}"


def operate(table: Table, operation: str, values: dict[str, Any]) -> str:
    base = {"warehouse": table.store.uri.rsplit("/", 2)[0], "table": "d.t"}
    context = open_context(build_request(operation, base | values))
    try:
        perform(replace(context, table=table), context.request)
    except REFUSALS as error:
        return f"refused: {error}"
    return "done"


def draw(rng: random.Random, table: Table, focus: str) -> tuple[str, dict[str, Any]]:
    """Draw an operation, mostly one on the branch that this round is about."""
    name = focus if rng.random() < 0.75 else rng.choice(BRANCHES)
    operation = rng.choices(
        ["write", "write_main", "create", "replace", "delete", "rename", "tag", "child"], [8, 1, 5, 3, 5, 4, 1, 2]
    )[0]
    snapshot = rng.choice([None, *table.snapshot_ids()[-3:]])
    match operation:
        case "write":
            return "write", {"branch": name}
        case "write_main":
            return "write", {"branch": "main"}
        case "create":
            return "create_branch", {"branch": name, "snapshot": snapshot, "if_exists": rng.choice(["fail", "skip"])}
        case "replace":
            return "create_branch", {"branch": name, "snapshot": snapshot, "if_exists": "replace"}
        case "delete":
            return "delete_branch", {"branch": name, "if_missing": rng.choice(["fail", "skip"])}
        case "rename":
            return "rename_branch", {"branch": name, "to_branch": rng.choice([b for b in BRANCHES if b != name])}
        case "tag":
            return "create_tag", {"branch": name, "tag": f"t{rng.randrange(3)}", "if_exists": "replace"}
        case _:
            ids = table.branch(name).snapshot_ids()
            child = rng.choice([b for b in BRANCHES if b != name])
            return "create_branch", {"branch": child, "from_branch": name, "snapshot": ids[-1] if ids else 1}


def live(rng: random.Random, operations: int) -> int:
    """One table's life; give the number of operations."""
    table = make_table(f"memory://{uuid.uuid4()}/wh")
    for dt in "aba":
        append(table, dt)
    model, count = Model(table), 0
    while count < operations:
        focus = rng.choice(BRANCHES)
        if rng.random() < 0.7:
            operate(table, "create_branch", {"branch": focus, "snapshot": rng.choice([None, 1, 3])})
        drawn = [draw(rng, table, focus) for _ in range(rng.choice([2, 2, 3, 4]))]
        baton = Baton(rng)
        told: list[str] = [""] * len(drawn)
        failed: list[BaseException] = []

        def job(number: int, operation: str, values: dict[str, Any], told=told, failed=failed, baton=baton) -> None:
            seen = replace(table, store=Switching(table.store, baton, number, model.on_record))
            try:
                if operation == "write":
                    told[number] = write(seen, values["branch"], model, rng.randrange(1, 10**6))
                else:
                    told[number] = operate(seen, operation, values)
            except BaseException as error:
                told[number] = f"failed: {error!r}"
                failed.append(error)

        baton.run([lambda n=n, o=o, v=v: job(n, o, v) for n, (o, v) in enumerate(drawn)])
        model.log += [f"{o} {v} -> {t}" for (o, v), t in zip(drawn, told, strict=True)] + ["--"]
        if failed:
            raise AssertionError("\n".join(model.log[-12:])) from failed[0]
        model.check()
        _content(table, model)
        count += len(drawn)
    for path in table.store.walk(""):
        table.store.delete(path)
    return count


def _content(table: Table, model: Model) -> None:
    """check_table is content, or its findings can be repaired; every branch then takes commits."""
    for _ in range(3):
        found = [f for f in run(table, "check_table").details["findings"] if f["severity"] != "info"]
        if not found:
            break
        assert all(f["repair"] for f in found), f"{found}\n" + "\n".join(model.log[-12:])
        model.log.append(str(found))
        run(table, "repair_table", finding=[f["id"] for f in found])
        model.log.append("repaired: " + ", ".join(f["id"] for f in found))
    else:
        raise AssertionError(f"{found}\n" + "\n".join(model.log[-12:]))
    model.check()


def test_branches_beside_writers() -> None:
    seconds = float(os.environ.get("AIRFLOW_PAIMON_SOAK", "0"))
    operations = lives(160, 400)
    end, done, number = time.monotonic() + seconds, 0, 0
    while done < operations or time.monotonic() < end:
        done += live(chance(f"branch races {number}"), 40)
        number += 1
