"""Which snapshot of a branch may have brought back older files last."""

from __future__ import annotations

import uuid

from airflow_paimon.core.table.older_files import older_files_at
from airflow_paimon.core.table.table import Table
from tests.core.tables import append, make_table, overwrite, rewrite, run


def at(view: Table, number: int) -> int | None:
    before = view.find_snapshot(number - 1)
    return older_files_at(view.snapshot(number), view.branch_name, None if before is None else before.identity)


def test_writes_bring_nothing_back_and_publishes_and_rollbacks_may() -> None:
    table = make_table(f"memory://{uuid.uuid4()}/wh")
    append(table, "a")
    run(table, "create_branch", branch="fix", snapshot=1)
    fix = table.branch("fix")
    rewrite(fix, "a")
    overwrite(table, "b")
    run(table, "merge_branch", branch="fix")
    rewrite(table, "a")
    run(table, "compact_manifest")
    run(table, "rollback_to", snapshot=2)
    append(table, "b")
    found = [at(table, n) for n in table.snapshot_ids()]
    assert found == [0, 0, 3, *[3] * (len(found) - 5), len(found) - 1, len(found) - 1]
    assert [at(fix, n) for n in fix.snapshot_ids()] == [None, 1], "the first is a copy"


def test_what_a_snapshot_tells_counts_only_on_top_of_those_that_it_was_based_on() -> None:
    table = make_table(f"memory://{uuid.uuid4()}/wh")
    for _ in range(6):
        append(table, "a")
    copies = {n: table.store.read(table.paths.snapshot(n)) for n in (5, 6)}
    for number in (6, 5, 4):
        table.store.delete(table.paths.snapshot(number))
    table.store.delete(table.paths.latest_hint)
    overwrite(table, "a")
    table.store.create(table.paths.snapshot(5), copies[5])
    table.store.delete(table.paths.latest_hint)
    assert [at(table, n) for n in (4, 5)] == [0, None]
    append(table, "a")
    append(table, "a")
    assert [at(table, n) for n in (6, 7)] == [5, 5]
    table.store.replace(table.paths.snapshot(6), copies[6])
    assert at(table, 6) == 0, "on top of the same as before"
    table.store.replace(table.paths.snapshot(6), b"{")
    overwrite(table, "b")
    assert at(table, 8) == 7, "what the one before is can't be told"
