"""Buckets of a table with deletion vectors that a Flink job seems to have open, by the commits of the snapshots."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_paimon import (
    check_table,
    compact,
    create_branch,
    diff_branches,
    merge_branch,
    open_table,
    plan_correction,
    repair_table,
    replace_main,
    rollback_to,
)
from airflow_paimon.core.commit.committed import verified_commits
from airflow_paimon.core.commit.files import commit_append
from airflow_paimon.core.errors import UnsafeOperationError
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import open_context
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import compact as compactions
from airflow_paimon.data import drop_partitions, rescale, write_arrow
from airflow_paimon.data.erasure import erase_rows
from airflow_paimon.data.files.conform import conform_rows
from airflow_paimon.data.write import plan_write, write_rows
from airflow_paimon.execution import perform
from tests.data.tables import rows_of
from tests.data.test_compact_keyed import COLUMNS, keyed, rows, upsert
from tests.stores import FaultStore


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Its two commits and their compactions look like those of a job."""
    table = keyed(tmp_path, bucket="1", deletion_vectors__enabled="true", write_only="false")
    for number in (1, 2):
        upsert(table, ("a", number, "x"))
    pretend(table)
    return open_table(str(tmp_path), table.name)


def pretend(table: Table, **fields: Any) -> None:
    """Let the commits of a table look like those of a job."""
    for path in Path(table.store.uri.removeprefix("file://")).rglob("snapshot-[0-9]*"):
        found = json.loads(path.read_text())
        found |= {"commitUser": "flink", "commitIdentifier": (found["id"] + 1) // 2, "writerVersion": "1.4.2"}
        new = path.with_name("rewritten")  # whoever reads it meanwhile finds the one or the other
        new.write_text(json.dumps(found | fields))
        new.replace(path)


def checked(table: Table) -> Mapping[str, Any]:
    return check_table(table, verify_keys=True).details


@pytest.mark.parametrize("by_another_engine", [False, True])
def test_a_branch_that_begins_with_a_jobs_commit_is_not_open(
    table: Table, tmp_path: Path, by_another_engine: bool
) -> None:
    head = table.latest_snapshot_id()
    create_branch(table, "fix", snapshot=head)
    if by_another_engine:
        shutil.rmtree(next(tmp_path.rglob("_airflow_paimon")))
    fix = table.branch("fix")
    upsert(fix, ("a", 1, "y"))
    assert "open_buckets" not in compact(table, branch="fix").details
    rollback_to(table, branch="fix", snapshot=head)
    with pytest.raises(UnsafeOperationError, match=r"p=a/bucket-0 open \(commit user flink\)"):
        rollback_to(table, snapshot=2)


@pytest.mark.parametrize("engine", ["deduplicate", "partial-update"])
def test_a_key_that_is_twice_in_a_bucket_is_found_and_repaired(tmp_path: Path, engine: str) -> None:
    """As a job leaves it that had the bucket open while its files were replaced: nothing deletes the replaced row."""
    table = keyed(tmp_path, bucket="1", deletion_vectors__enabled="true", write_only="false", merge_engine=engine)
    upsert(table, ("a", 1, "x"), ("a", 2, "x"))
    table = open_table(str(tmp_path), table.name)
    assert checked(table)["ok"]
    data = rows_of(COLUMNS, [dict(zip(COLUMNS, ("a", 1, None, "y"), strict=True))])
    write = plan_write(table)
    (message,) = write_rows(write, [conform_rows(data, write.schema, write.label)])
    message = replace(message, new_files=tuple(f._replace(level=1) for f in message.new_files))
    commit_append(table, [message], planned_on=table.latest_snapshot())
    pretend(table)
    assert rows(table) == [("a", 1, None, "x"), ("a", 1, None, "y"), ("a", 2, None, "x")]
    (found,) = checked(table)["findings"]
    assert (found["id"], "p=a, k=1 in p=a, bucket 0" in found["message"]) == ("keys-twice:main", True)
    assert (found["repair"] is None) == ("overwrite them, each key once" in found["at_risk"])
    assert (found["repair"] is None) == (engine != "deduplicate")
    if engine != "deduplicate":
        return
    with pytest.raises(UnsafeOperationError, match="run compact with writers_stopped"):
        repair_table(table, finding=[found["id"]])
    pretend(table, timeMillis=0)
    assert repair_table(table, finding=[found["id"]]).changed
    assert checked(table)["ok"] and rows(table) == [("a", 1, None, "y"), ("a", 2, None, "x")]


@pytest.mark.parametrize("vectors", ["true", "false"])
def test_plans_diffs_and_publishes_say_who_may_have_the_buckets_open(tmp_path: Path, vectors: str) -> None:
    """Where that is wrong, the publish is refused; else the job will restart, and the result says so."""
    table = keyed(tmp_path, bucket="1", deletion_vectors__enabled=vectors, write_only="false")
    for number in range(8):
        upsert(table, (f"p{number}", 1, "x"))
    pretend(table)
    table = open_table(str(tmp_path), table.name)
    head = table.latest_snapshot()
    assert head is not None
    for partition, is_open in (("p7", True), ("p0", False)):
        create_branch(table, partition, snapshot=head.id)
        data = rows_of(COLUMNS, [dict(zip(COLUMNS, (partition, 1, None, "y"), strict=True))])
        write_arrow(table.branch(partition), data, mode="dynamic_overwrite")
        asked = {"branch": partition, "sql": f"UPDATE branch SET v = 'y' WHERE p = '{partition}'"}
        effect = ("refused" if vectors == "true" else "restart") if is_open else None
        told = [
            plan_correction(table, **asked).details["open_writers"],
            diff_branches(table, branch=partition, against="base").details["open_writers"],
            merge_branch(table, branch=partition, dry_run=True).details["open_writers"],
        ]
        assert all(one == told[0] for one in told) and told[0]["effect"] == effect
        (job,) = told[0]["jobs"]
        assert (job["commit_user"], job["snapshot"]) == ("flink", head.id)
        assert (told[0]["quiet_since"] is None) == is_open == bool(told[0]["open_buckets"])
        if effect == "refused":
            with pytest.raises(UnsafeOperationError, match=r"p=p7/bucket-0 open"):
                merge_branch(table, branch=partition)
            continue
        warnings = merge_branch(table, branch=partition).details.get("warnings", [])
        assert ["File deletion conflicts detected" in w for w in warnings] == ([True] if is_open else [])


def asked(name: str, **values: Any) -> Callable[[Table], Any]:
    """Return what runs an operation, while no writer is said to be open."""

    def act(table: Table) -> Any:
        warehouse = table.store.uri.rpartition("/d.db/")[0]
        request = build_request(name, {"warehouse": warehouse, "table": table.name, "writers_stopped": True, **values})
        with verified_commits():
            return ON_ROWS.get(name, perform)(replace(open_context(request), table=table), request)

    return act


ON_ROWS: Mapping[str, Callable[..., Any]] = {
    "rescale": rescale.rescale,
    "erase_rows": erase_rows.erase_rows,
    "compact": compactions.compact,
}
OPERATIONS: Mapping[str, Callable[[Table], Any]] = {
    "merge": asked("merge_branch", branch="fix"),
    "replace": asked("replace_main", branch="fix", discard_main=True),
    "rollback": asked("rollback_to", snapshot=2),
    "overwrite": lambda t: write_arrow(t, fixed("a"), mode="dynamic_overwrite", writers_stopped=True),
    "drop": lambda t: drop_partitions(t, ["p=a"], writers_stopped=True),
    "rescale": asked("rescale", bucket_num=2, partitions=["p=a"]),
    "erase": asked("erase_rows", where="k = 1"),
    "compact": asked("compact"),
}


def fixed(partition: str) -> Any:
    return rows_of(COLUMNS, [dict(zip(COLUMNS, (partition, 1, None, "fixed"), strict=True))])


@pytest.mark.parametrize("late", ["a", "b"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_job_that_was_started_again_is_not_stopped(table: Table, tmp_path: Path, name: str, late: str) -> None:
    """Its next commit, to whichever bucket, says that it is open: as when the driver of a publish outlives its run."""
    upsert(table, ("a", 3, "x"))
    pretend(table)
    create_branch(table, "fix", snapshot=table.latest_snapshot_id())
    write_arrow(table.branch("fix"), fixed("a"), mode="dynamic_overwrite")
    commits = [("b", 4, "x"), (late, 9, "late")]

    def meanwhile(method: str, path: str) -> None:
        if method == "create" and path.startswith("manifest/") and commits:
            upsert(table, commits.pop())
            commits.clear()
            pretend(table)

    slow = Table(FaultStore(table.store, on_mutation=meanwhile), table.name)
    if name == "compact":
        assert OPERATIONS[name](slow).details["open_buckets"]
    else:
        with pytest.raises(UnsafeOperationError, match=r"p=a/bucket-0.* open .* It is not stopped") as refused:
            OPERATIONS[name](slow)
        assert refused.value.code == "open-writer"
    assert not commits and table.latest_snapshot().commit_user == "flink"
    assert OPERATIONS[name](table)


def test_a_job_that_was_not_stopped_matters_also_where_the_branch_switches_look_ups_off(tmp_path: Path) -> None:
    table = keyed(tmp_path, bucket="1", changelog_producer="lookup", write_only="false")
    for number in (1, 2, 3):
        upsert(table, ("a", number, "x"))
    pretend(table)
    table = open_table(str(tmp_path), table.name)
    create_branch(table, "fix", snapshot=table.latest_snapshot_id())
    write_arrow(table.branch("fix"), fixed("a"), mode="dynamic_overwrite")
    commits = [("a", 9, "late")]

    def meanwhile(method: str, path: str) -> None:
        if method == "create" and path.startswith("manifest/") and commits:
            upsert(table, commits.pop())
            pretend(table)

    slow = Table(FaultStore(table.store, on_mutation=meanwhile), table.name)
    with pytest.raises(UnsafeOperationError, match="It is not stopped"):
        asked("replace_main", branch="fix", discard_main=True, option=["changelog-producer=none"])(slow)
    assert not commits


@pytest.mark.parametrize("streams", [False, True])
def test_a_job_that_commits_beside_a_merge_by_key_may_have_its_bucket_open(tmp_path: Path, streams: bool) -> None:
    """Its rows have other keys than the branch's, so they alone are no reason to plan again."""
    table = open_table(str(tmp_path), keyed(tmp_path, bucket="1", changelog_producer="lookup", write_only="false").name)
    upsert(table, ("a", 1, "x"), ("a", 2, "x"))
    create_branch(table, "fix", snapshot=1)
    upsert(table.branch("fix"), ("a", 1, "fixed"))
    upsert(table, ("a", 2, "y"))
    commits = [("a", 3, "meanwhile")]

    def meanwhile(method: str, path: str) -> None:
        if method == "create" and path.startswith("manifest/") and commits:
            upsert(table, commits.pop())
            if streams:
                pretend(table)

    slow = Table(FaultStore(table.store, on_mutation=meanwhile), table.name)
    request = build_request("merge_branch", {"warehouse": str(tmp_path), "table": table.name, "branch": "fix"})
    context = replace(open_context(request), table=slow)
    if streams:
        with pytest.raises(UnsafeOperationError, match=r"p=a/bucket-0 open \(commit user flink\)"):
            perform(context, request)
    else:
        assert perform(context, request).details["attempts"] == 2
    assert [r[3] for r in rows(table)] == ["x" if streams else "fixed", "y", "meanwhile"]


def test_a_commit_that_a_job_makes_again_after_its_branch_replaced_main_is_found(table: Table) -> None:
    create_branch(table, "v2", snapshot=table.latest_snapshot_id())
    upsert(table.branch("v2"), ("a", 5, "x"))
    pretend(table)
    replaced = replace_main(table, branch="v2", writers_stopped=True).snapshot_after
    upsert(table, ("a", 6, "y"))
    assert checked(table)["ok"]
    first = table.branch("v2").latest_snapshot()
    again = table.paths.snapshot(replaced + 1)
    raw = json.loads(table.store.read(again)) | {"writerVersion": "1.4.2"}
    raw |= {"commitUser": first.commit_user, "commitIdentifier": first.commit_identifier}
    table.store.replace(again, json.dumps(raw).encode())
    (found,) = checked(table)["findings"]
    assert found["id"] == f"committed-twice:{replaced + 1}"
    assert f"on branch v2 as snapshot {first.id}, before that branch replaced main" in found["message"]
