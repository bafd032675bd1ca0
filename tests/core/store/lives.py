"""What a table lives through on a store: commits of several processes at once, and a correction from branch to expiry.

As a program: one of the processes that commit. Gets a pickled table, its own number and how many commits to make;
begins when a line comes on stdin, and answers with the snapshots that it published and the files that are then live.
"""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import time
import uuid
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import tests
from airflow_paimon.core.commit.files import commit_append, commit_overwrite
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import Context, OperationResult
from airflow_paimon.core.store import Store, open_store
from airflow_paimon.core.table.table import Table
from airflow_paimon.execution import perform
from tests.core.tables import append, make_table, message, names, overwrite
from tests.soundness import assert_sound
from tests.together import set_off, wait_until_ready

WRITERS = 4


def do(store: Store, operation: str, **values: Any) -> OperationResult:
    """Perform an operation on the table that a store holds, a second from now."""
    request = build_request(operation, {"warehouse": "w", "table": "d.t", **values})
    return perform(Context(request, Table(store, "d.t"), int(time.time() * 1000) + 1000, 0.0), request)


def copied(direct: Store) -> Table:
    """The table as it is now, in memory, where looking at it takes no requests."""
    store = open_store(f"memory://{uuid.uuid4()}/t")
    paths = direct.walk("")
    for path, data in zip(paths, direct.read_many(paths), strict=True):
        store.create(path, data)
    return Table(store, "d.t")


def empty_table(store: Store) -> Table:
    """Make a table on a store that holds nothing yet."""
    made = make_table(f"memory://{uuid.uuid4()}/wh", primary=False)
    for path in made.store.walk(""):
        store.create(path, made.store.read(path))
    return Table(store, "d.t")


def assert_commits_race(store: Store, commits: int = 4) -> None:
    """Several processes commit to one branch: each commit is a snapshot, and none is lost or comes twice."""
    assert_race(empty_table(store), commits)


def assert_race(table: Table, commits: int, seconds: int = 500) -> None:
    """Let processes commit to an empty table of ``COLUMNS``, each to its own partition; each third overwrites that."""
    with ExitStack() as stack:
        writers = []
        for number in range(WRITERS):
            writer = subprocess.Popen(
                [sys.executable, "-m", __name__, pickle.dumps(table).hex(), str(number), str(commits)],
                cwd=Path(tests.__file__).parent.parent, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            stack.callback(writer.wait, timeout=seconds)
            writers.append(stack.enter_context(writer))
        wait_until_ready(writers)
        set_off(writers)
        said = [json.loads((writer.stdout and writer.stdout.readline()) or "{}") for writer in writers]
    assert all(said), said
    published = sorted(number for each in said for number in each["snapshots"])
    assert published == list(range(1, WRITERS * commits + 1)), said
    now = copied(table.store)
    assert now.snapshot_ids() == published
    assert names(now) == {name for each in said for name in each["files"]}
    assert_sound(now)
    assert table.latest_snapshot_id() == len(published)


def assert_correction_lives(store: Store) -> None:
    """A branch is made, written, published and deleted, and the snapshots before it expire."""
    table = empty_table(store)
    append(table, "a")
    append(table, "b")
    do(store, "create_tag", tag="before")
    do(store, "create_branch", branch="fix", tag="before")
    overwrite(table.branch("fix"), "a")
    append(table, "c")
    assert do(store, "merge_branch", branch="fix").snapshot_after == 4
    expected = names(copied(store))
    do(store, "delete_branch", branch="fix")
    do(store, "delete_tag", tag="before")
    do(store, "expire_snapshots", older_than="0 s", retain_min=1, grace="0 s", writers_stopped=True, all_branches=True)
    done = copied(store)
    assert_sound(done, leaks=True)  # the deleted branch's manifests stay for remove_orphan_files
    assert done.snapshot_ids() == [4]
    assert names(done) == expected


def main() -> None:
    table: Table = pickle.loads(bytes.fromhex(sys.argv[1])).require()
    mine, commits = f"p{sys.argv[2]}", int(sys.argv[3])
    print("ready", flush=True)
    sys.stdin.readline()
    snapshots, files = [], []
    for number in range(commits):
        new = message(table, mine)
        names = [file.file_name for file in new.new_files]
        if number % 3 == 2:
            receipt = commit_overwrite(table, [new], partitions=[{"dt": mine}])
            files = names
        else:
            receipt = commit_append(table, [new], planned_on=table.latest_snapshot())
            files += names
        assert receipt.snapshot is not None
        snapshots.append(receipt.snapshot.id)
    print(json.dumps({"snapshots": snapshots, "files": files}), flush=True)


if __name__ == "__main__":
    main()
