"""A process that works on a table without a pause until it is killed: ``python -m tests.core.metadata_expiry.beside``.

What it finds broken it says on its standard output, which is empty otherwise.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable

from airflow_paimon.core.errors import (
    AlreadyExistsError,
    ConflictError,
    NotFoundError,
    PaimonError,
    UnsafeOperationError,
)
from airflow_paimon.core.format.snapshot import Snapshot
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.reachability import missing_files
from airflow_paimon.core.table.table import Table, open_table
from tests.core.tables import append, rewrite, run

NOW = {"older_than": "0 s", "retain_min": 2, "retry_window": "0 s", "keep_undo": False}
AT_ONCE = {"grace": "0 s", "writers_stopped": True}


def write(table: Table, chance: random.Random) -> None:
    (append if chance.random() < 0.2 else rewrite)(table, chance.choice("abc"))


def tag(table: Table, chance: random.Random) -> None:
    name = f"tag{chance.randrange(10**12)}"
    run(table, "create_tag", tag=name, snapshot=chance.choice(table.snapshot_ids()[:3]))
    check_whole(table, table.tag(name).snapshot, name)
    run(table, "delete_tag", tag=name)


def branch(table: Table, chance: random.Random) -> None:
    name = f"branch{chance.randrange(10**12)}"
    run(table, "create_branch", branch=name, snapshot=chance.choice(table.snapshot_ids()[:3]))
    view = table.branch(name)
    check_whole(view, view.latest_snapshot(), name)
    for _ in range(chance.randrange(3)):
        rewrite(view, chance.choice("abc"))
    if chance.random() < 0.3:
        run(table, "rename_branch", branch=name, to_branch=f"{name}-renamed")
        view = table.branch(name := f"{name}-renamed")
    check_whole(view, view.latest_snapshot(), name)
    run(table, "delete_branch", branch=name)


def expire(table: Table, chance: random.Random) -> None:
    """With a grace time or without: all others here look again at what they have taken."""
    grace = AT_ONCE if chance.random() < 0.5 else {}
    everywhere = chance.random() < 0.3
    now = str(int(time.time() * 1000) + 1000)
    run(table, "expire_snapshots", **NOW, **grace, all_branches=everywhere, now=now)


def publish(table: Table, chance: random.Random) -> None:
    name = f"fix{chance.randrange(10**12)}"
    run(table, "create_branch", branch=name, snapshot=table.snapshot_ids()[-1])
    try:
        rewrite(table.branch(name), "z")
        run(table, "merge_branch", branch=name, undo_retention="1 s")
    finally:
        run(table, "delete_branch", branch=name)


def check_whole(view: Table, snapshot: Snapshot | None, what: str) -> None:
    for _ in range(3):
        try:
            lost = missing_files(view, view.schema(), list(live_entries(view, snapshot).values()))
        except PaimonError as error:
            lost = [error.message]
        if lost:
            print(f"{what} has lost {lost[0]}", flush=True)
        time.sleep(0.01)


ROLES: dict[str, Callable[[Table, random.Random], None]] = {
    f.__name__: f for f in (write, tag, branch, expire, publish)
}  # fmt: skip


def main(warehouse: str, role: str, seed: str) -> None:
    table, chance = open_table(warehouse, "d.t"), random.Random(seed)
    while True:
        try:
            ROLES[role](table, chance)
        except (AlreadyExistsError, ConflictError, NotFoundError, UnsafeOperationError):
            continue  # others were faster
        except PaimonError as error:
            print(f"{role}: {error.kind}: {error.message}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
