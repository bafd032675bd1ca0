"""Plans: what their id is made of, and that they list what really happens."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from airflow_paimon.core.plan import Delete, HeadIs, Plan, PutNew, Replace, ReplaceBucket
from airflow_paimon.core.schema.schema_plan import AddColumn
from airflow_paimon.core.table.table import Table
from tests.core.tables import alter_table, append, make_table, overwrite, rewrite, run

PUT = PutNew(path="a", data=b"1", reason="why")
BUCKET = ReplaceBucket(path="dt=a/bucket-0", delete=("x",), add=("y",), reason="why")


def _plan(*actions: object, head: int = 1) -> Plan:
    relied = HeadIs(branch="main", snapshot_id=head, identity="i", schema_id=0)
    return Plan(operation="o", table="d.t", preconditions=(relied,), actions=actions)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "other",
    [
        _plan(dataclasses.replace(PUT, data=b"2")),
        _plan(dataclasses.replace(PUT, same_ok=True)),
        _plan(Replace(path="a", data=b"1", reason="why")),
        _plan(Delete(path="a", reason="why")),
        _plan(PUT, PUT),
        _plan(PUT, head=2),
    ],
)
def test_the_plan_id_covers_actions_and_preconditions(other: Plan) -> None:
    assert other.plan_id != _plan(PUT).plan_id


def test_the_id_tells_which_files_a_bucket_gets_and_loses() -> None:
    ids = {_plan(BUCKET).plan_id}
    ids |= {_plan(dataclasses.replace(BUCKET, **{side: ("z",)})).plan_id for side in ("delete", "add")}
    assert len(ids) == 3


def test_the_reason_is_for_people_and_not_in_the_id() -> None:
    assert _plan(dataclasses.replace(PUT, reason="other words")).plan_id == _plan(PUT).plan_id


def test_a_publish_plan_lists_all_that_the_publish_writes(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    append(table, "a")
    append(table, "b")
    run(table, "create_branch", branch="fix", snapshot=2)
    fix = table.branch("fix")
    alter_table(fix, [AddColumn(name="extra", type="INT")])
    rewrite(fix, "a")
    asked: dict[str, Any] = {"branch": "fix", "operation_id": "op", "now": "2030-01-01T00:00:00+00:00"}
    plan = run(table, "merge_branch", **asked, dry_run=True).details["plan"]
    before = _metadata(table)
    done = run(table, "merge_branch", **asked)
    assert done.plan_id == plan["plan_id"], "the dry run and the run plan the same"
    written = {a["path"] for a in plan["actions"] if a["action"] != "ReplaceBucket"}
    on_publish = {"tag/tag-airflow-paimon-branch-fix.3", "tag/tag-airflow-paimon-publish-op"}
    assert _metadata(table) - before - on_publish == written, "but tags on the publish"


def test_a_rollback_plan_lists_all_that_the_rollback_writes(table: Table) -> None:
    overwrite(table, "a")
    plan = run(table, "rollback_to", snapshot=3, operation_id="op", dry_run=True).details["plan"]
    before = _metadata(table)
    run(table, "rollback_to", snapshot=3, operation_id="op")
    kinds = [a["action"] for a in plan["actions"]]
    assert kinds.count("ReplaceBucket") == 1
    written = {a["path"] for a in plan["actions"] if a["action"] != "ReplaceBucket"}
    on_rollback = {"tag/tag-airflow-paimon-keep-5", "tag/tag-airflow-paimon-publish-op"}
    assert _metadata(table) - before - on_rollback == written, "but tags on the new snapshot"


def _metadata(table: Table) -> set[str]:
    paths = set(table.store.walk(""))
    return {p for p in paths if p.startswith(("snapshot/snapshot-", "schema/", "tag/"))}
