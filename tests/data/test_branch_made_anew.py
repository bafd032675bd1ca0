"""A branch that is deleted and made anew, which gives ids of schemas and columns to others, while it is read."""

from __future__ import annotations

import time
import uuid
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airflow_paimon.core.errors import ConflictError, FormatError
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import Context
from airflow_paimon.core.requests.requests import DiffBranches
from airflow_paimon.core.schema.schema_plan import AddColumn
from airflow_paimon.core.table.data_file_paths import data_file_path
from airflow_paimon.core.table.scan import plan_scan, with_planned_files
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import read_arrow, write_arrow
from airflow_paimon.data.arrow_read import pin_rows, read_group
from airflow_paimon.data.diff.differing_buckets import plan_diff
from airflow_paimon.data.diff.run_diff import compare_here
from airflow_paimon.data.fallback_branches import choose_branches
from airflow_paimon.data.planner import pin, plan_branches, plan_pinned
from airflow_paimon.data.read import read_split
from airflow_paimon.data.read_groups import IN_PROCESS, GroupSizes
from airflow_paimon.data.read_request import ReadRequest
from airflow_paimon.data.read_splits import plan_read
from tests.core.tables import alter_table
from tests.data.chain.tables import DAYS, chain_table, seen, set_options
from tests.data.used_tables import branch_of_columns, make_anew

EACH = GroupSizes(entries=0, files=1)


@pytest.fixture
def warehouse() -> str:
    return f"memory://{uuid.uuid4()}/wh"


def sorted_rows(found: Any) -> list[Any]:
    return sorted((tuple(row.values()) for row in found.to_pylist()), key=repr)


@pytest.mark.parametrize("version", [None, 3])
def test_pinned_rows(warehouse: str, version: int | None) -> None:
    branch = branch_of_columns(warehouse)
    expected = sorted_rows(read_arrow(branch, version=version))
    of_one = sorted_rows(read_arrow(branch, version=version, where=pc.field("a") == 1))
    pinned = pin_rows(branch, version)
    make_anew(branch)
    assert sorted_rows(pinned.batches().read_all()) == expected
    assert sorted_rows(pinned.batches(where=pc.field("a") == 1).read_all()) == of_one
    assert expected != of_one != []


def test_a_pinned_state_of_a_fallback_branch(warehouse: str) -> None:
    branch = branch_of_columns(warehouse)
    main = branch.branch("main")
    write_arrow(main, pa.table({"k": pa.array([], pa.int32())}), mode="overwrite")
    for column in "abc":
        alter_table(main, [AddColumn(name=column, type="INT")])
    set_options(main, {"scan.fallback-branch": "b"})
    expected = sorted_rows(read_arrow(main))
    assert expected == sorted_rows(read_arrow(branch))
    pinned = pin_rows(main)
    set_options(main, {"scan.fallback-branch": ""})
    make_anew(branch)
    assert sorted_rows(pinned.batches().read_all()) == expected


def test_a_pinned_chain(warehouse: str) -> None:
    table = chain_table(warehouse, DAYS)
    expected = seen(table)
    pinned = pin(table)
    for branch in (table.branch("snapshot"), table.branch("delta")):
        branch.store.delete(branch.paths.schema(0))  # a branch that is made anew has another one
    for sizes in (IN_PROCESS, EACH):
        planned = plan_pinned(pinned, sizes=sizes)
        assert planned.is_large is (sizes is EACH)
        rows = [row for group in planned.groups for batch in read_group(group) for row in batch.to_pylist()]
        assert sorted((tuple(row.values()) for row in rows), key=repr) == expected


def diff_of(branch: Table, against: str) -> Any:
    asked = {"warehouse": "w", "table": branch.name, "branch": branch.branch_name, "against": against}
    request = build_request("diff_branches", asked)
    assert isinstance(request, DiffBranches)
    return plan_diff(Context(request, branch.branch("main"), int(time.time() * 1000), time.monotonic()), request)


@pytest.mark.parametrize("against", ["main", "b@2"])
def test_a_diff(warehouse: str, against: str) -> None:
    branch = branch_of_columns(warehouse)
    expected = compare_here(diff_of(branch, against), 9)
    plan = diff_of(branch, against)
    whole = [*rows_of_scan(with_planned_files(plan.after.scan)), *rows_of_scan(with_planned_files(plan.before.scan))]
    make_anew(branch)
    assert compare_here(plan, 9) == expected
    # what is the same on both sides, which rules of a check read
    assert [
        *rows_of_scan(with_planned_files(plan.after.scan)),
        *rows_of_scan(with_planned_files(plan.before.scan)),
    ] == whole


def rows_of_scan(scan: Any) -> list[Any]:
    read, splits = plan_read(scan)
    return [row for split in splits for batch in read_split(read, split) for row in batch.to_pylist()]


def test_a_read_that_begins_before_and_plans_after(warehouse: str) -> None:
    branch = branch_of_columns(warehouse)
    chosen = choose_branches(branch)
    make_anew(branch)
    for sizes in (IN_PROCESS, EACH):
        with pytest.raises(ConflictError, match="recreated"):
            plan_branches(chosen, ReadRequest(), sizes)


def test_files_that_are_gone(warehouse: str) -> None:
    branch = branch_of_columns(warehouse)
    pinned = pin_rows(branch)
    scan = plan_scan(branch)
    for split in scan.splits:
        for file in split.files:
            branch.store.delete(data_file_path(scan.schema, split.values, split.bucket, file))
    with pytest.raises(FormatError, match="branch was deleted"):
        pinned.batches().read_all()
