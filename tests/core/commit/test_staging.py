"""Staging branches: what another engine commits there is taken over by one commit, or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_paimon.core.commit.draft import CommitIdentity
from airflow_paimon.core.commit.files import commit_append
from airflow_paimon.core.commit.staging import Staging, Taken, discard_staging, open_staging, staging_schema, take_over
from airflow_paimon.core.errors import ConflictError, UnsafeOperationError
from airflow_paimon.core.format.snapshot import CommitKind
from airflow_paimon.core.schema.schema_plan import AddColumn
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.paths import BranchPaths
from airflow_paimon.core.table.table import Table
from airflow_paimon.data import write_arrow
from tests.core.tables import alter_table, append, make_table, message, names, rewrite, run
from tests.data.row_statements import statement, with_ids

NOW = "2026-11-21T00:00:00+00:00"


@pytest.fixture
def fix(tmp_path: Path) -> Table:
    main = make_table(tmp_path / "wh", partition__expiration_time="1 d", changelog_producer="input")
    append(main, "a")
    append(main, "b")
    run(main, "create_branch", branch="fix", snapshot=2)
    return main.branch("fix")


def stage(fix: Table, operation_id: str | None = None) -> Staging:
    head = fix.latest_snapshot()
    assert head is not None
    return open_staging(fix, head, fix.schema(), operation_id, NOW)


def take(staging: Staging, properties: Mapping[str, str] | None = None) -> Taken:
    return take_over(staging, identity=CommitIdentity(), properties=lambda removed, added: properties or {})


def test_nothing_staged_is_no_commit(fix: Table) -> None:
    assert take(stage(fix)).receipt.snapshot is None and fix.latest_snapshot_id() == 2


def test_a_try_whose_branch_another_one_took_away_publishes_nothing(fix: Table) -> None:
    first = stage(fix, operation_id="op")
    append(first.view, "a", rows=3)
    stage(fix, operation_id="op")  # the retry, while the first try is still alive
    with pytest.raises(ConflictError, match="was deleted by another attempt"):
        take(first)
    assert fix.latest_snapshot_id() == 2


def test_columns_altered_while_the_rows_were_computed_are_a_conflict(fix: Table) -> None:
    head, schema = fix.latest_snapshot(), fix.schema()
    assert head is not None
    alter_table(fix, [AddColumn(name="extra", type="INT")])
    with pytest.raises(ConflictError, match="altered"):
        open_staging(fix, head, schema, None, NOW)
    assert fix.branch_names() == ["fix"]


def test_changes_on_top_of_the_branch_are_merged_in(fix: Table) -> None:
    staging = stage(fix)
    append(staging.view, "a", seq=5)
    rewrite(staging.view, "b", kind=CommitKind.COMPACT)  # by itself
    taken = take(staging, {"who": "me"})
    assert (len(taken.removed), len(taken.added)) == (1, 2)
    assert names(fix) == names(staging.view)
    head = fix.latest_snapshot()
    assert head is not None
    assert (head.id, head.commit_kind, head.properties["who"]) == (3, CommitKind.OVERWRITE, "me")
    discard_staging(staging.view)
    assert fix.branch_names() == ["fix"]
    assert run(fix, "check_table").details["findings"] == []


def test_a_branch_that_moved_is_a_conflict(fix: Table) -> None:
    staging = stage(fix)
    append(staging.view, "a")
    append(fix, "b", bucket=1)
    with pytest.raises(ConflictError, match="nothing was published"):
        take(staging)
    assert fix.latest_snapshot_id() == 3


def test_the_next_try_removes_what_the_first_one_left(fix: Table) -> None:
    first, other = stage(fix, operation_id="op"), stage(fix, operation_id="op 2")
    second = stage(fix, operation_id="op")
    assert fix.branch_names() == sorted(["fix", second.view.branch_name, other.view.branch_name])
    assert not fix.store.walk(BranchPaths(first.view.branch_name).root.rstrip("/"))
    findings = run(fix, "check_table").details["findings"]
    assert {f["id"].partition(":")[0] for f in findings} == {"staging-branch"}
    run(fix, "repair_table", finding=[f["id"] for f in findings])
    assert fix.branch_names() == ["fix"]


def test_nothing_acts_by_itself_on_a_staging_branch(fix: Table) -> None:
    main = fix.branch("main").schema()
    options = staging_schema(main).options
    assert options["write-only"] == "true" and options["snapshot.num-retained.min"] == "2147483647"
    assert not {"partition.expiration-time", "changelog-producer"} & options.keys()
    vectors = replace(main, options={**main.options, "deletion-vectors.enabled": "true"})
    assert staging_schema(vectors).options["write-only"] == "false"  # readers don't see what is not compacted


def test_row_ids_go_on_from_the_branch_s(tmp_path: Path) -> None:
    options = {"bucket": "-1", "row-tracking.enabled": "true"}
    main = create_table(str(tmp_path / "wh"), "d.t", [("dt", "STRING"), ("k", "INT")], partition_keys=["dt"],
                        options=options)  # fmt: skip
    first = message(main, "a", rows=3)
    commit_append(main, [first], planned_on=None)
    run(main, "create_branch", branch="fix", snapshot=1)
    staging = stage(main.branch("fix"))
    staged = message(staging.view, "a", rows=2)
    commit_append(staging.view, [staged], planned_on=None)
    take(staging)
    after = main.branch("fix").latest_snapshot()
    assert after is not None and after.next_row_id == 5
    assert sorted(e.file.first_row_id or 0 for e in live_entries(main, after).values()) == [0, 3]


def test_versions_of_several_commits_are_not_taken_over(tmp_path: Path) -> None:
    """Stored as numbers of the staging branch's snapshots, they would be above the target's, or mean another commit."""
    options = {"bucket": "-1", "row-tracking.enabled": "true"}
    columns = [("k", "INT"), ("v", "STRING"), ("dt", "STRING")]
    main = create_table(str(tmp_path / "wh"), "d.t", columns, partition_keys=["dt"], options=options)
    write_arrow(main, pa.table({"k": pa.array([0, 1], pa.int32()), "v": ["x", "x"], "dt": ["a", "a"]}))
    run(main, "create_branch", branch="fix", snapshot=1)
    fix = main.branch("fix")
    staging = stage(fix)
    for key in (0, 1):
        statement(staging.view, lambda row, key=key: {**row, "v": "y"} if row["k"] == key else row)
    with pytest.raises(UnsafeOperationError, match=r"store versions .* of more than one commit"):
        take(staging)
    assert fix.latest_snapshot_id() == 1
    staging = stage(fix)
    statement(staging.view, lambda row: {**row, "v": "y"} if row["k"] == 0 else row)
    take(staging)
    assert [(k, row_id, version) for k, _, _, row_id, version in with_ids(fix)] == [(0, 0, 2), (1, 1, 1)]
