"""Publishes while Paimon's Java engine appends to the same partition, or upserts into the same bucket, between all
attempts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_paimon import diff_branches
from airflow_paimon.core.errors import ConflictError
from airflow_paimon.core.format.snapshot import approved_head
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import Context, open_context
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.data import read_arrow, write_arrow
from airflow_paimon.execution import perform
from tests.core.tables import run
from tests.data.row_statements import Row, statement, with_ids
from tests.oracles.drivers import JavaOracle
from tests.stores import RivalledStore

pytestmark = pytest.mark.oracle


@pytest.mark.parametrize("options", [{"bucket": "-1"}, {"bucket": "-1", "row-tracking.enabled": "true"}])
def test_java_appends_between_all_attempts(java_oracle: JavaOracle, tmp_path: Path, options: dict[str, str]) -> None:
    """Corrected rows and every row of Java's are there once, also after an undo."""
    warehouse = str(tmp_path)
    java_oracle.create_table(
        warehouse, "d.t", {"k": "INT", "v": "STRING", "dt": "STRING"}, partition_keys=["dt"], options=options
    )
    java_oracle.write(warehouse, "d.t", [{"k": k, "v": "old", "dt": "a"} for k in range(6)])
    table = open_table(warehouse, "d.t")
    run(table, "create_branch", branch="fix", snapshot=1)
    wanted = dict.fromkeys(range(6), "old")

    def append(number: int) -> None:
        k = 100 + len(wanted)
        java_oracle.write(warehouse, "d.t", [{"k": k, "v": "java", "dt": "a"}])
        wanted[k] = "java"

    def correct(row: Row) -> Row:
        return {**row, "v": f"fixed {round}"} if row["k"] < 3 else row

    for round in range(3):
        statement(table.branch("fix"), correct)
        wanted |= dict.fromkeys(range(3), f"fixed {round}")
        publish(table, append)
        check(java_oracle, table, wanted)
    undo = table.latest_snapshot().properties["airflow-paimon.undo-tag"]  # type: ignore[union-attr]
    append(0)
    run(table, "rollback_to", tag=undo, keep_later=True)
    wanted |= dict.fromkeys(range(3), "fixed 1")
    check(java_oracle, table, wanted)
    if "row-tracking.enabled" in options:
        ids = [r[-2] for r in with_ids(table)]
        assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("options", [
    {}, {"merge-engine": "partial-update"}, {"sequence.field": "s"}, {"deletion-vectors.enabled": "true"},
    {"changelog-producer": "input"},
])  # fmt: skip
def test_java_upserts_into_the_same_bucket_between_all_attempts(
    java_oracle: JavaOracle, tmp_path: Path, options: dict[str, str]
) -> None:
    """Merged by key: the branch's rows of its keys, and Java's of all others, are there, also after an undo. Java
    compacts the bucket as well.
    """
    warehouse = str(tmp_path)
    columns = {"k": "INT", "v": "STRING", "s": "INT", "dt": "STRING"}
    keys: dict[str, Any] = {"partition_keys": ["dt"], "primary_keys": ["dt", "k"]}
    java_oracle.create_table(warehouse, "d.t", columns, **keys, options={"bucket": "1", **options})
    java_oracle.write(warehouse, "d.t", [{"k": k, "v": "old", "s": 1, "dt": "a"} for k in range(6)])
    table = open_table(warehouse, "d.t")
    if "deletion-vectors.enabled" in options:
        java_oracle.do("compact", warehouse, "d.t", full=True)
    run(table, "create_branch", branch="fix", snapshot=table.latest_snapshot_id())
    wanted = dict.fromkeys(range(6), "old")

    def upsert(number: int) -> None:
        k = 100 + len(wanted) % 8
        java_oracle.write(warehouse, "d.t", [{"k": k, "v": f"java {number}", "s": 1, "dt": "a"}])
        wanted[k] = f"java {number}"
        if number > 1:
            java_oracle.do("compact", warehouse, "d.t", full=number == 2)

    for round in range(2):
        rows = [{"k": k, "v": f"fixed {round}", "s": 1, "dt": "a"} for k in range(3)]
        write_arrow(table.branch("fix"), pa.Table.from_pylist(rows))
        wanted |= dict.fromkeys(range(3), f"fixed {round}")
        upsert(0)
        publish(table, upsert)
        compacted(java_oracle, table, options)
        check(java_oracle, table, wanted)
    undo = max((t for t in table.tags() if t.name.startswith("airflow-paimon-undo-")), key=lambda t: t.snapshot.id).name
    upsert(7)
    run(table, "rollback_to", tag=undo, keep_later=True)
    wanted |= dict.fromkeys(range(3), "fixed 0")
    compacted(java_oracle, table, options)
    check(java_oracle, table, wanted)


def compacted(java: JavaOracle, table: Table, options: dict[str, str]) -> None:
    """Let Java show rows that wait for a compaction."""
    if "deletion-vectors.enabled" in options:
        java.do("compact", warehouse_of(table), "d.t", full=True)


def publish(table: Table, rival: Any) -> None:
    context = open_context(
        build_request("merge_branch", {"warehouse": warehouse_of(table), "table": "d.t", "branch": "fix"})
    )
    store = RivalledStore(table.store, rival, 3)
    beside = Context(context.request, Table(store, table.name), context.now_ms, context.started)
    assert perform(beside, context.request).details["attempts"] == 4


def warehouse_of(table: Table) -> str:
    return table.store.uri.removeprefix("file://").rsplit("/", 2)[0]


def check(java: JavaOracle, table: Table, wanted: dict[int, str]) -> None:
    for rows in (read_arrow(table).to_pylist(), java.read(warehouse_of(table), "d.t").to_pylist()):
        found = sorted((r["k"], r["v"]) for r in rows)
        assert found == sorted(wanted.items())


def test_what_was_approved_is_not_what_java_has_written_after_a_rollback(
    java_oracle: JavaOracle, tmp_path: Path
) -> None:
    """A bare id would count as the same snapshot: the branch, or main, has got it again, with other rows."""
    warehouse = str(tmp_path)
    java_oracle.create_table(warehouse, "d.t", {"k": "INT", "v": "STRING"}, options={"bucket": "-1"})
    java_oracle.write(warehouse, "d.t", [{"k": 1, "v": "old"}])
    table = open_table(warehouse, "d.t")
    run(table, "create_branch", branch="fix", snapshot=1)
    for name in ("d.t$branch_fix", "d.t"):
        java_oracle.write(warehouse, name, [{"k": 2, "v": "shown"}])
    shown = diff_branches(table.name, branch="fix", warehouse=warehouse, against="main").details
    approved = {"expected_branch_snapshot": approved_head(shown, "branch"),
                "approved_main_snapshot": approved_head(shown, "main")}  # fmt: skip
    assert run(table, "merge_branch", branch="fix", dry_run=True, **approved).changed
    for name, argument in (("d.t", "approved_main_snapshot"), ("d.t$branch_fix", "expected_branch_snapshot")):
        java_oracle.do("rollback", warehouse, name, snapshot=1)
        java_oracle.write(warehouse, name, [{"k": 3, "v": "never shown"}])
        with pytest.raises(ConflictError, match=r"2 \(another one: it was rolled back since\)") as refused:
            run(table, "merge_branch", branch="fix", **approved)
        assert refused.value.details[argument] == approved[argument]
    with pytest.raises(ConflictError, match=r"not at 2 \(another one"):
        run(table, "delete_branch", branch="fix", expected_branch_snapshot=approved["expected_branch_snapshot"])
    assert table.latest_snapshot_id() == 2
    assert run(table, "merge_branch", branch="fix", expected_branch_snapshot=2, approved_main_snapshot=2).changed
