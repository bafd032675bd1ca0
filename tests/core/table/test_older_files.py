"""Which snapshot of a branch may have brought back older files last."""

from __future__ import annotations

import uuid

from airflow_paimon.core.table.older_files import older_files_at
from tests.core.tables import append, make_table, overwrite, rewrite, run


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
    found = [older_files_at(table.snapshot(n), "main") for n in table.snapshot_ids()]
    assert found == [0, 0, 3, *[3] * (len(found) - 5), len(found) - 1, len(found) - 1]
    assert [older_files_at(fix.snapshot(n), "fix") for n in fix.snapshot_ids()] == [None, 1], "the first is a copy"
