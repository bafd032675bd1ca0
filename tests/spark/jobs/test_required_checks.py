"""The gate at a publish: which results of checks count, and for what."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_paimon.core.errors import ConflictError, FormatError, UnsafeOperationError
from airflow_paimon.core.publish.publish_branch import publish_branch
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import open_context
from airflow_paimon.core.requests.requests import MergeBranch
from airflow_paimon.core.rules.results import CheckRecord, RuleOutcome, newest_outcomes
from airflow_paimon.core.schema.tables import create_table
from airflow_paimon.core.table.record_kinds import CHECKS
from airflow_paimon.core.table.table import Table, open_table
from airflow_paimon.data.arrow_write import write_arrow
from airflow_paimon.data.rewrite import fold_buckets
from airflow_paimon.execution import row_functions
from airflow_paimon.shown.diff_markdown import render_markdown
from airflow_paimon.spark.jobs import run_spark_operation
from airflow_paimon.spark.jobs.before_spark import run_before_spark
from tests.core.tables import append, rewrite
from tests.spark.jobs.checks import check, require, run_check
from tests.spark.jobs.operations import diff, make_branch, put, run, values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REQUIRED = [{"name": "v is there", "not_null": "v"}]


def test_nothing_is_published_without_the_required_checks(spark: SparkSession, tmp_path: Path) -> None:
    main, branch = make_branch(tmp_path)
    require(main, *REQUIRED)
    put(branch, [(3, "fixed", "a")])
    with pytest.raises(
        UnsafeOperationError, match="'v is there' has no result for its snapshot 4; nothing was published"
    ):
        run(tmp_path, "merge_branch", branch="fix")
    assert run(tmp_path, "merge_branch", branch="fix", dry_run=True).changed
    request = build_request("check_branch_data", values(tmp_path, branch="fix", dry_run=True))
    assert run_spark_operation(spark, request).details["rules"][0]["outcome"] == "passed"
    assert not main.store.names(CHECKS.folder)  # a dry run keeps nothing
    put(branch, [(4, None, "a")])  # a branch that changes has no valid checks
    with pytest.raises(UnsafeOperationError, match="for its snapshot 5"):
        run(tmp_path, "fast_forward", branch="fix")
    assert diff(spark, tmp_path)["checks"] == {"v is there": "missing"}
    assert check(spark, tmp_path)[0]["outcome"] == "failed"
    details = diff(spark, tmp_path)
    assert details["checks"] == {"v is there": "failed"}
    assert "Checks of this snapshot: 0 passed; v is there: **failed**." in render_markdown(details)
    with pytest.raises(UnsafeOperationError, match="its check 'v is there' failed"):
        run(tmp_path, "replace_main", branch="fix")
    assert main.latest_snapshot_id() == 3
    put(branch, [(4, "there", "a")])
    check(spark, tmp_path)
    committed = main.snapshot(run(tmp_path, "merge_branch", branch="fix").snapshot_after or 0)
    assert json.loads(committed.properties["airflow-paimon.checks"]) == {"v is there": "passed"}


def test_force_is_for_protected_branches_only(tmp_path: Path) -> None:
    main, branch = make_branch(tmp_path)
    require(main, *REQUIRED)
    run(tmp_path, "alter_branch", branch="fix", protect=True, protected_by="ann")
    put(branch, [(3, None, "a")])
    with pytest.raises(UnsafeOperationError, match=r"no result for its snapshot 4.*skip_checks .* publishes it"):
        run(tmp_path, "merge_branch", branch="fix", force=True)
    with pytest.raises(UnsafeOperationError, match="protected by ann"):
        run(tmp_path, "merge_branch", branch="fix", skip_checks=True)
    done = run(tmp_path, "merge_branch", branch="fix", force=True, skip_checks=True)
    committed = main.snapshot(done.snapshot_after or 0)
    assert committed.properties["airflow-paimon.checks-forced"] == "true"
    assert json.loads(committed.properties["airflow-paimon.checks"]) == {"v is there": "missing"}


def test_an_undone_undo_brings_back_what_checks_said(spark: SparkSession, tmp_path: Path) -> None:
    main, branch = make_branch(tmp_path)
    require(main, *REQUIRED)
    put(branch, [(3, None, "a")])
    check(spark, tmp_path)
    said = {"airflow-paimon.checks": json.dumps({"v is there": "failed"}), "airflow-paimon.checks-forced": "true"}

    def of(result: Any) -> dict[str, str]:
        properties = main.snapshot(result.snapshot_after or 0).properties
        return {name: text for name, text in properties.items() if name.startswith("airflow-paimon.checks")}

    published = run(tmp_path, "merge_branch", branch="fix", skip_checks=True)
    assert of(published) == said
    undone = run(tmp_path, "rollback_to", tag=published.details["undo_tag"], keep_later=True, skip_checks=True)
    assert of(undone) == {**said, "airflow-paimon.checks": json.dumps({"v is there": "missing"})}
    put(main, [(9, "later", "c")])
    undo: dict[str, Any] = {"tag": undone.details["undo_tag"], "keep_later": True}
    assert check(spark, tmp_path, branch="main", version=undo["tag"])[0]["outcome"] == "failed"
    with pytest.raises(UnsafeOperationError, match=r"'v is there' failed; nothing was changed.*--version"):
        run(tmp_path, "rollback_to", **undo)
    assert of(run(tmp_path, "rollback_to", **undo, skip_checks=True)) == said
    assert of(run(tmp_path, "rollback_to", snapshot=published.snapshot_after, skip_checks=True)) == said


def test_what_replaces_main_whole_needs_checks_in_comparison_with_it(spark: SparkSession, tmp_path: Path) -> None:
    main, branch = make_branch(tmp_path)
    require(main, {"name": "none go", "row_limits": {"deleted": 0}})
    put(branch, [(3, "fixed", "a")])
    assert check(spark, tmp_path)[0]["outcome"] == "passed"
    discards = {"branch": "fix", "discard_main": True, "dry_run": True}
    nothing: dict[str, Any] = {"missing": [], "failed": []}
    assert run(tmp_path, "replace_main", **discards).details["required_checks"] == {**nothing, "against": "main"}
    put(main, [(70, "later", "c")])  # from here on replacing main takes a row that no check has looked at
    for operation in ("fast_forward", "replace_main"):
        details = run(tmp_path, operation, **discards).details
        assert details["required_checks"] == {"missing": ["none go"], "failed": [], "against": "main"}
        with pytest.raises(UnsafeOperationError, match=r"in comparison with main as it is now.*--against main"):
            run(tmp_path, operation, branch="fix", discard_main=True)
    [found] = check(spark, tmp_path, against="main")
    assert (found["outcome"], found["rows"]) == ("failed", [{"rows": "deleted", "number": 1, "most": "0"}])
    with pytest.raises(UnsafeOperationError, match="its check 'none go' failed"):
        run(tmp_path, "replace_main", branch="fix", discard_main=True)
    assert run(tmp_path, "merge_branch", branch="fix", dry_run=True).details["required_checks"] == {
        **nothing, "against": "base",
    }  # fmt: skip
    put(branch, [(70, "later", "c")])
    assert check(spark, tmp_path, against="main")[0]["outcome"] == "passed"
    with pytest.raises(UnsafeOperationError, match="no result for its snapshot 5; nothing"):
        run(tmp_path, "merge_branch", branch="fix")  # in comparison with the base there is none
    put(main, [(71, "later", "c")])
    with pytest.raises(UnsafeOperationError, match="in comparison with main as it is now"):
        run(tmp_path, "replace_main", branch="fix", discard_main=True)
    put(branch, [(71, "later", "c")])
    check(spark, tmp_path, against="main")
    assert run(tmp_path, "replace_main", branch="fix", discard_main=True).changed


def test_a_branch_created_empty_is_compared_with_main(spark: SparkSession, tmp_path: Path) -> None:
    main, _ = make_branch(tmp_path)
    require(main, {"name": "none go", "row_limits": {"deleted": 0}})
    run(tmp_path, "create_branch", branch="empty")
    put(main.branch("empty"), [(k, f"{dt}{k}", dt) for dt in "abc" for k in range(10)])
    assert check(spark, tmp_path, branch="empty")[0]["outcome"] == "passed"
    assert run(tmp_path, "replace_main", branch="empty", discard_main=True).changed


def test_a_publish_that_folds_the_branch_keeps_its_checks(spark: SparkSession, tmp_path: Path) -> None:
    main, branch = make_branch(tmp_path)
    require(main, *REQUIRED)
    put(branch, [(3, "fixed", "a")])
    assert check(spark, tmp_path)[0]["outcome"] == "passed"
    plan = run(tmp_path, "merge_branch", branch="fix", dry_run=True)
    assert plan.details["folds"], "else this test shows nothing"

    def interrupted(*arguments: Any) -> Any:
        put(main, [(9, "later", "c")])
        return fold_buckets(*arguments)

    request = MergeBranch(**values(tmp_path, branch="fix", expected_main_snapshot=3))
    with pytest.raises(ConflictError, match="not at 3 as expected"):
        publish_branch(open_context(request), request, replace(row_functions(), fold=interrupted))
    assert branch.latest_snapshot_id() == 5
    assert run(tmp_path, "merge_branch", branch="fix").changed


def folded(main: Table, warehouse: Path, **more: Any) -> None:
    """A publish that folds the branch, and is refused then."""

    def interrupted(*arguments: Any) -> Any:
        put(main, [(9, "later", "c")])
        return fold_buckets(*arguments)

    request = MergeBranch(**values(warehouse, branch="fix", expected_main_snapshot=3, **more))
    with pytest.raises(ConflictError, match="not at 3 as expected"):
        publish_branch(open_context(request), request, replace(row_functions(), fold=interrupted))


def names(warehouse: Path, *found: str) -> None:
    table = open_table(str(warehouse), "d.names")
    write_arrow(table, pa.table({"name": list(found)}), mode="overwrite")


def test_after_a_fold_the_newest_results_count(spark: SparkSession, tmp_path: Path) -> None:
    main, branch = make_branch(tmp_path)
    create_table(str(tmp_path), "d.names", [("name", "STRING")])
    names(tmp_path, "fixed")
    require(main, {"name": "known", "relationships": {"columns": "v", "to": "d.names", "fields": "name"}})
    put(branch, [(3, "fixed", "a")])
    assert check(spark, tmp_path)[0]["outcome"] == "passed"
    folded(main, tmp_path)
    names(tmp_path, "other")
    assert check(spark, tmp_path)[0]["outcome"] == "failed"  # of the folded snapshot
    with pytest.raises(UnsafeOperationError, match="its check 'known' failed"):
        run(tmp_path, "merge_branch", branch="fix")
    names(tmp_path, "fixed")
    assert check(spark, tmp_path)[0]["outcome"] == "passed"
    assert run(tmp_path, "merge_branch", branch="fix").changed


def test_a_check_after_a_fold_is_one_of_the_branch(spark: SparkSession, tmp_path: Path) -> None:
    main, branch = make_branch(tmp_path)
    require(main, *REQUIRED)
    put(branch, [(3, "fixed", "a")])
    folded(main, tmp_path, skip_checks=True)
    assert check(spark, tmp_path)[0]["outcome"] == "passed"
    assert run(tmp_path, "merge_branch", branch="fix").changed


def test_the_clock_of_the_storage_says_which_result_is_newest(spark: SparkSession, tmp_path: Path) -> None:
    main, branch = make_branch(tmp_path)
    create_table(str(tmp_path), "d.names", [("name", "STRING")])
    require(main, {"name": "known", "relationships": {"columns": "v", "to": "d.names", "fields": "name"}})
    put(branch, [(3, "fixed", "a")])
    names(tmp_path, "fixed")
    assert check(spark, tmp_path, now="2040-01-01T00:00:00+00:00")[0]["outcome"] == "passed"
    names(tmp_path, "other")
    assert check(spark, tmp_path)[0]["outcome"] == "failed"
    with pytest.raises(UnsafeOperationError, match="its check 'known' failed"):
        run(tmp_path, "merge_branch", branch="fix")


def test_of_two_results_at_one_time_the_failed_one_counts() -> None:
    at_once = [
        CheckRecord(
            branch="b", snapshot_id=1, identity="i", rules={"d": RuleOutcome(name="n", outcome=o)}, modified_ms=7
        )
        for o in ("failed", "passed", "warned")
    ]
    assert newest_outcomes(at_once)["d"].outcome == "failed"
    assert newest_outcomes([*at_once, replace(at_once[1], modified_ms=8)])["d"].outcome == "passed"


def test_rows_that_wait_for_a_compaction_are_no_passed_check(spark: SparkSession, tmp_path: Path) -> None:
    main, branch = make_branch(tmp_path, **{"merge-engine": "first-row", "write-only": "true"})
    append(branch, "a", rows=7)  # at level 0, which no read of a first-row table shows
    for rule in ({"not_null": "v"}, {"row_limits": {"added": 0}}):
        with pytest.raises(UnsafeOperationError, match=r"7 rows in 1 file that wait for a compaction.*the branch"):
            run_check(spark, tmp_path, [rule])
        (tmp_path / "rules.json").write_text(json.dumps([rule]))
    request = build_request("check_branch_data", values(tmp_path, branch="fix", rules=str(tmp_path / "rules.json")))
    with pytest.raises(UnsafeOperationError, match="wait for a compaction"):
        run_before_spark(request)
    assert not main.store.names(CHECKS.folder)


def test_rows_of_main_that_wait_are_no_passed_check_either(spark: SparkSession, tmp_path: Path) -> None:
    main, _ = make_branch(tmp_path, **{"merge-engine": "first-row", "write-only": "true"})
    append(main, "a", rows=7)
    run(tmp_path, "create_branch", branch="other", snapshot=main.latest_snapshot_id())
    rewrite(main.branch("other"), "a")
    with pytest.raises(UnsafeOperationError, match=r"what it is compared with has 13 rows.*main, and recreate"):
        run_check(spark, tmp_path, [{"row_limits": {"deleted": 0}}], branch="other")


def test_a_publish_keeps_what_rules_of_no_table_said(spark: SparkSession, tmp_path: Path) -> None:
    main, branch = make_branch(tmp_path)
    put(branch, [(3, "fixed", "a")])
    check(spark, tmp_path, {"name": "v is there", "not_null": "v"}, {"row_limits": {"changed": 0}, "severity": "warn"})
    committed = main.snapshot(run(tmp_path, "merge_branch", branch="fix").snapshot_after or 0)
    said = json.loads(committed.properties["airflow-paimon.checks"])
    assert said == {"v is there": "passed", 'row_limits {"changed": 0}': "warned"}
    put(branch, [(4, "fixed", "a")])  # nobody has checked that
    again = main.snapshot(run(tmp_path, "merge_branch", branch="fix").snapshot_after or 0)
    assert "airflow-paimon.checks" not in again.properties


def test_an_unreadable_record_stops_only_what_needs_it(spark: SparkSession, tmp_path: Path) -> None:
    main, branch = make_branch(tmp_path)
    put(branch, [(3, "fixed", "a")])
    check(spark, tmp_path, *REQUIRED)
    [name] = main.store.names(CHECKS.folder)
    main.store.replace(f"{CHECKS.folder}/{name}", b"{}")
    assert run(tmp_path, "merge_branch", branch="fix").changed
    require(main, *REQUIRED)
    put(branch, [(4, "fixed", "a")])
    check(spark, tmp_path)
    for name in main.store.names(CHECKS.folder):
        main.store.replace(f"{CHECKS.folder}/{name}", b"{}")
    with pytest.raises(FormatError, match=r"is unreadable .*; delete it and check the branch again"):
        run(tmp_path, "merge_branch", branch="fix")
