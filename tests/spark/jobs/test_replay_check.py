"""With which record a replay by streams goes on; no Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_paimon.core.errors import ConflictError, InvalidInputError, UnsafeOperationError
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import open_context
from airflow_paimon.core.requests.requests import ReplayBranch
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.sql_text.tokens import split_statements
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import write_arrow
from airflow_paimon.spark.jobs.replay_check import Replay, keep_record, plan_replay
from tests.core.tables import run


def tables(folder: Path) -> Table:
    """Make ``d.up`` and ``d.down``, a row each; returns the branch ``fix`` of the latter."""
    for name in ("up", "down"):
        table = create_table(str(folder), f"d.{name}", [("k", "BIGINT")])
        write_arrow(table, pa.table({"k": [1]}))
    run(table, "create_branch", branch="fix", snapshot=1)
    return table.branch("fix")


def planned(folder: Path, **more: Any) -> Replay:
    values = {"warehouse": str(folder), "table": "d.down", "branch": "fix", "source": ["up=d.up"], "snapshot": ["1"]}
    given = {**values, "function": "m:f", "available_now": True, **more}
    request = build_request("replay_branch", given)
    assert isinstance(request, ReplayBranch)
    found = plan_replay(open_context(request), request)
    keep_record(request, found)
    return found


def test_a_rollback_begins_anew_and_its_expiry_does_not(tmp_path: Path) -> None:
    fix = tables(tmp_path)
    first = planned(tmp_path)
    again = planned(tmp_path, until_snapshot=["7"], available_now=False, timeout="2 h")
    assert (first.resumed, again.resumed, again.record.generation) == (False, True, 0)
    with pytest.raises(InvalidInputError, match="replayed before with another function"):
        planned(tmp_path, function="m:g")
    write_arrow(fix, pa.table({"k": [2]}))
    run(fix, "rollback_to", branch="fix", snapshot=1)
    anew = planned(tmp_path, function="m:g")
    assert (anew.resumed, anew.record.generation) == (False, 3)
    write_arrow(fix, pa.table({"k": [3]}))
    for number in (1, 2, 3):
        (tmp_path / f"d.db/down/branch/branch-fix/snapshot/snapshot-{number}").unlink()
    on = planned(tmp_path, function="m:g")
    assert (on.resumed, on.record.generation) == (True, 3), "the rollback has expired, not its checkpoints"
    write_arrow(fix, pa.table({"k": [4]}))
    write_arrow(fix, pa.table({"k": [5]}))
    for number in (4, 5):
        (tmp_path / f"d.db/down/branch/branch-fix/snapshot/snapshot-{number}").unlink()
    with pytest.raises(UnsafeOperationError, match="snapshots 5 to 5 have expired since it was last replayed"):
        planned(tmp_path, function="m:g")


def test_two_tries_of_a_batch_read_the_same_snapshots(tmp_path: Path) -> None:
    """A try that stalls before it records what it reads finds that a later one has done so."""
    tables(tmp_path)
    values = {
        "warehouse": str(tmp_path),
        "table": "d.down",
        "branch": "fix",
        "source": ["up=d.up"],
        "operation_id": "o",
    }
    request = build_request("replay_branch", {**values, "function": "m:f"})
    assert isinstance(request, ReplayBranch)
    stalled = plan_replay(open_context(request), request)
    write_arrow(stalled.sources["up"], pa.table({"k": [2]}))
    later = plan_replay(open_context(request), request)
    keep_record(request, later)
    with pytest.raises(ConflictError, match="another attempt of this replay"):
        keep_record(request, stalled)
    again = plan_replay(open_context(request), request)
    assert (again.resumed, again.record.ends) == (True, {"up": 2})


def test_a_batch_needs_a_snapshot_of_each_source(tmp_path: Path) -> None:
    tables(tmp_path)
    create_table(str(tmp_path), "d.empty", [("k", "BIGINT")])
    with pytest.raises(InvalidInputError, match=r"source up\) has no snapshot yet"):
        planned(tmp_path, source=["up=d.empty"], snapshot=[], available_now=False)


def test_another_branch_of_the_name_begins_anew(tmp_path: Path) -> None:
    fix = tables(tmp_path)
    first = planned(tmp_path)
    run(fix, "delete_branch", branch="fix")
    run(fix, "create_branch", branch="fix", snapshot=1)
    second = planned(tmp_path)
    assert not second.resumed
    assert second.key != first.key


def test_semicolons_in_quotes_and_comments_divide_nothing() -> None:
    text = 'a \';\' b; -- x;\n c `;` ; /* ; */ ; "d\\";" -- end'
    assert split_statements(text) == ["a ';' b", "-- x;\n c `;`", '"d\\";" -- end']
