"""Four eyes and required checks, on every way by which rows come to main or leave it: each is tried here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_paimon.core.errors import UnsafeOperationError
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import OperationResult
from airflow_paimon.core.requests.operations import OPERATIONS
from airflow_paimon.core.requests.requests import Approved
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import read_arrow, write_arrow
from airflow_paimon.execution import run_here

ASKED: dict[str, dict[str, Any]] = {
    "merge_branch": {"branch": "fix"},
    "fast_forward": {"branch": "fix"},
    "replace_main": {"branch": "fix"},
    "rollback_to": {"tag": "base"},
    "erase_rows": {"where": "k = 1"},
    "expire_partitions": {"expiration_time": "1 d"},
}
"""What takes rows from main or brings some; an operation without an entry fails until it has one."""
CHANGED = sorted(ASKED)
OTHERS = """
alter_branch alter_chain_table alter_table check_branch_data check_chain_table check_table clear_consumers compact
compact_chain_table compact_manifest correct_branch create_branch create_chain_table create_table_set create_tag
delete_branch delete_tag diff_branches expire_branches expire_changelogs expire_snapshots expire_tags export_audit
find_rows mark_partition_done plan_correction rebase_branch remove_orphan_files rename_branch rename_tag repair_table
replace_tag replay_branch rescale reset_consumer storage_usage table_health trigger_tag_automatic_creation
"""
"""Neither bring rows to main nor take some: they change a branch, or write the same rows again. A correction or a
replay of a branch that readers of main see, too, is refused where four eyes are asked for.
"""
BOTH = {"requested_by": "ann", "approved_by": "bob"}


@pytest.fixture
def orders(tmp_path: Path) -> Table:
    """A table whose branch differs from main, which has moved since its tag."""
    table = create_table(
        str(tmp_path),
        "d.t",
        [("dt", "STRING NOT NULL"), ("k", "BIGINT NOT NULL"), ("v", "STRING")],
        partition_keys=["dt"],
        primary_keys=["dt", "k"],
        options={"bucket": "1", "partition.timestamp-formatter": "yyyy-MM-dd"},
    )
    put(table, 1, 2)
    run(table, "create_tag", tag="base")
    run(table, "create_branch", branch="fix", tag="base")
    put(table.branch("fix"), 1, v="fixed")
    return table


def reach(table: Table) -> dict[str, Any]:
    return {"warehouse": table.store.uri.removeprefix("file://").rsplit("/", 2)[0], "table": table.name}


def run(table: Table, operation: str, **values: Any) -> OperationResult:
    return run_here(build_request(operation, {**reach(table), **values}))


def put(table: Table, *keys: int, v: str = "old") -> None:
    write_arrow(
        table, pa.table({"dt": ["2026-01-01"] * len(keys), "k": pa.array(keys, pa.int64()), "v": [v] * len(keys)})
    )


def test_each_operation_that_changes_mains_rows_takes_an_approval() -> None:
    assert OPERATIONS.keys() == {*ASKED, *OTHERS.split()}, "a new operation belongs to one of them"
    assert ASKED.keys() == {n for n, o in OPERATIONS.items() if issubclass(o.request, Approved)}


@pytest.mark.parametrize("operation", CHANGED)
def test_a_table_with_four_eyes_and_required_checks_asks_for_both(orders: Table, operation: str) -> None:
    if operation == "rollback_to":
        put(orders, 3)
    options = ["airflow-paimon.four-eyes=true", 'airflow-paimon.required-checks=[{"row_limits": {"deleted": 0}}]']
    run(orders, "alter_table", change=[f"set {option}" for option in options])
    asked, before = ASKED[operation], orders.store.walk("")
    run(orders, operation, **asked, dry_run=True)
    for who in ({}, {"approved_by": "bob"}, {"requested_by": "ann", "approved_by": "Ann"}):
        with pytest.raises(
            UnsafeOperationError, match=f"{operation} needs the approval of a second person.*nothing was"
        ):
            run(orders, operation, **asked, **who, skip_checks=True)
    with pytest.raises(UnsafeOperationError, match=r"check.*nothing was.*--skip-checks"):
        run(orders, operation, **asked, **BOTH)
    assert orders.store.walk("") == before
    assert run(orders, operation, **asked, **BOTH, skip_checks=True).changed
    said = orders.latest_snapshot().properties
    names = ("requested-by", "approved-by", "four-eyes", "checks-forced")
    assert [said[f"airflow-paimon.{name}"] for name in names] == ["ann", "bob", "true", "true"]


def test_an_expiry_by_the_tables_own_options_is_its_owners_decision(orders: Table) -> None:
    options = ["airflow-paimon.four-eyes=true", 'airflow-paimon.required-checks=[{"row_limits": {"deleted": 0}}]']
    run(orders, "alter_table", change=[f"set {o}" for o in (*options, "partition.expiration-time=30 d")])
    for more in ({"strategy": "update-time"}, {"timestamp_pattern": "$dt"}, {"now": "2099-01-01T00:00:00Z"}):
        with pytest.raises(UnsafeOperationError, match=r"nobody approved it.*partition\.expiration-time"):
            run(orders, "expire_partitions", **more)
    assert read_arrow(orders).num_rows == 2
    assert run(orders, "expire_partitions").details["partitions"] == 1
    assert read_arrow(orders).num_rows == 0


def test_another_branch_expires_as_its_owner_says(orders: Table) -> None:
    run(orders, "alter_table", change=["set airflow-paimon.four-eyes=true"])
    assert run(orders, "expire_partitions", branch="fix", expiration_time="1 d").changed
    run(orders, "alter_table", change=["set scan.fallback-branch=fix"])
    with pytest.raises(UnsafeOperationError, match="nobody approved it"):
        run(orders, "expire_partitions", branch="fix", expiration_time="1 d")


@pytest.mark.parametrize(
    ("operation", "values"),
    [("correct_branch", {"sql": "DELETE FROM branch WHERE k = 1"}),
     ("replay_branch", {"source": ["orders=d.t"], "function": "own:replay", "tag": "base"})],
)  # fmt: skip
def test_nobody_changes_alone_what_readers_see_with_main(orders: Table, operation: str, values: dict[str, Any]) -> None:
    from airflow_paimon.spark.jobs.before_spark import run_before_spark

    run(orders, "alter_table", change=["set airflow-paimon.four-eyes=true", "set scan.fallback-branch=fix"])
    request = build_request(operation, {**reach(orders), "branch": "fix", **values})
    with pytest.raises(UnsafeOperationError, match=r"is read together with main.*correct a branch of main"):
        run_before_spark(request)


@pytest.mark.parametrize("keep_later", [True, False])
def test_what_an_undo_brings_back_is_checked(orders: Table, keep_later: bool) -> None:
    """An undone undo brings back what the publish had brought; a check of that very state lets it through."""
    from airflow_paimon.spark.jobs.before_spark import run_before_spark

    published = run(orders, "merge_branch", branch="fix")
    run(orders, "alter_table", change=['set airflow-paimon.required-checks=[{"row_limits": {"changed": 1}}]'])
    undo = {"tag": published.details["undo_tag"], "keep_later": keep_later}
    with pytest.raises(UnsafeOperationError, match=r"no result for its snapshot \d+; nothing was changed") as refused:
        run(orders, "rollback_to", **undo)
    assert f"--branch main --version {published.snapshot_before}" in refused.value.message
    version = {"version": undo["tag"], "against": "base" if keep_later else "main"}
    checked = build_request("check_branch_data", {**reach(orders), "branch": "main", **version})
    found = run_before_spark(checked)
    assert found is not None and found.details["rules"][0]["outcome"] == "passed"
    assert run(orders, "rollback_to", **undo).changed
    assert set(read_arrow(orders)["v"].to_pylist()) == {"old"}
    assert "airflow-paimon.checks-forced" not in orders.latest_snapshot().properties
