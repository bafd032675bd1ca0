"""expire_branches: what expires, what stays and why; killed anywhere, and with a writer at any moment."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from typing import Any

import pytest

from airflow_paimon.core.errors import ConflictError, InvalidInputError, NotFoundError, OutcomeUnknownError
from airflow_paimon.core.publish.undoable_publishes import last_publish
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import open_context
from airflow_paimon.core.schema.schema_plan import SetOption
from airflow_paimon.core.store import Store
from airflow_paimon.core.table.branch_record import branch_record_path
from airflow_paimon.core.table.paths import UNDO_TAG_PREFIX
from airflow_paimon.core.table.table import Table
from airflow_paimon.execution import perform
from tests.core.branches.test_interrupted_branches import At, check, forget
from tests.core.tables import alter_table, append, make_table, names, overwrite, rewrite, run
from tests.randomness import moments, thorough
from tests.stores import Crash, FaultStore, delete_tree

LATE = "2126-01-01T00:00:00Z"


@pytest.fixture
def main() -> Table:
    table = make_table(f"memory://{uuid.uuid4()}/wh")
    for dt in "ab":
        append(table, dt)
    run(table, "create_tag", tag="base")
    return table


def branch(main: Table, name: str = "fix", **values: Any) -> Table:
    run(main, "create_branch", branch=name, tag="base", **{"retention": "14 d", "owner": "ann", **values})
    return main.branch(name)


def expire(main: Table, **values: Any) -> dict[str, Any]:
    """Return the reason for each branch that expired, and for each that stays."""
    details = run(main, "expire_branches", **{"now": LATE, **values}).details
    return {key: {one["branch"]: one["why"] for one in details[key]} for key in ("expired", "kept")}


def test_a_branch_expires_when_its_retention_is_over(main: Table) -> None:
    branch(main)
    branch(main, "stays", retention="forever")
    before = main.store.walk("")
    result = run(main, "expire_branches")
    assert not result.changed and [one["branch"] for one in result.details["later"]] == ["fix"]
    planned = run(main, "expire_branches", now=LATE, dry_run=True)
    assert planned.changed and planned.details["plan"]["actions"][0]["path"] == "branch/branch-fix"
    assert main.store.walk("") == before
    assert expire(main) == {"expired": {"fix": "its retention of 14 d is over"}, "kept": {}}
    assert main.branch_names() == ["stays"] and main.tag_names() == ["airflow-paimon-branch-stays", "base"]
    assert expire(main) == {"expired": {}, "kept": {}}


def test_ages_are_for_branches_without_a_retention(main: Table) -> None:
    branch(main, "long", retention="99999 d")
    branch(main, "old", retention="forever")
    branch(main, "theirs", retention="forever", owner="data_correction/run-1")
    assert expire(main)["expired"] == {}
    assert expire(main, older_than="1 d", owner="data_correction/*", dry_run=True)["expired"].keys() == {"theirs"}
    assert expire(main, older_than="1 d", idle_for="99999 d")["expired"] == {}
    assert expire(main, idle_for="1 d")["expired"].keys() == {"old", "theirs"}
    assert main.branch_names() == ["long"]


def test_a_branch_whose_record_has_no_time_keeps_no_other_one(main: Table) -> None:
    branch(main)
    branch(main, "odd")
    path = branch_record_path("odd")
    main.store.replace(path, json.dumps(json.loads(main.store.read(path)) | {"created_at": "once"}).encode())
    assert expire(main, older_than="1 d") == {"expired": {"fix": "its retention of 14 d is over"}, "kept": {}}
    assert main.branch_names() == ["odd"]


def test_main_as_it_was_before_it_was_replaced_expires_by_a_retention_only(main: Table) -> None:
    """It has no commits of its own, but its rows are nowhere else."""
    rewrite(branch(main, retention="forever"), "a")
    run(main, "replace_main", branch="fix", keep_old_as="old", writers_stopped=True)
    assert expire(main, older_than="1 d", idle_for="1 d", dry_run=True)["expired"].keys() == {"fix"}
    run(main, "alter_branch", branch="old", retention="30 d")
    assert expire(main)["expired"].keys() == {"old"}


def test_idle_counts_from_the_last_commit_or_the_creation(main: Table) -> None:
    fix = branch(main, retention="forever", now="2020-01-01T00:00:00Z")
    assert not expire(main, idle_for="9 d", now="2020-01-09T00:00:00Z", dry_run=True)["expired"]
    rewrite(fix, "a")  # today
    run(main, "merge_branch", branch="fix")
    head = fix.latest_snapshot()
    from datetime import UTC, datetime, timedelta

    soon, later = (datetime.fromtimestamp(head.time_millis / 1000, UTC) + timedelta(days=n) for n in (8, 10))
    assert not expire(main, idle_for="9 d", now=soon.isoformat(), dry_run=True)["expired"]
    assert expire(main, idle_for="9 d", now=later.isoformat(), dry_run=True)["expired"].keys() == {"fix"}


def test_branches_that_expire_soon_are_announced(main: Table) -> None:
    """By their retention or the ages asked for; neither protected ones, nor those that have time or are due."""
    made = "2125-12-30T00:00:00Z"
    branch(main, "week", retention="7 d", now=made)
    branch(main, "month", retention="30 d", now=made)
    branch(main, "due", retention="1 h", now=made)
    branch(main, "mine", retention="7 d", protected=True, now=made)
    branch(main, "idle", retention="forever", now=made)
    assert run(main, "expire_branches", now=LATE, dry_run=True).details["expiring_soon"] == []
    asked = {"notify_before": "6 d", "idle_for": "4 d", "now": LATE}
    soon = run(main, "expire_branches", **asked, dry_run=True).details["expiring_soon"]
    ends = {"idle": "2126-01-03T00:00:00+00:00", "week": "2126-01-06T00:00:00+00:00"}
    assert {one["branch"]: one["expires_at"] for one in soon} == ends
    done = run(main, "expire_branches", **asked)
    assert [one["branch"] for one in done.details["expired"]] == ["due"]
    assert done.details["expiring_soon"] == soon and soon[0]["owner"] == "ann"
    with pytest.raises(InvalidInputError, match="notify_before must be greater than 0"):
        expire(main, notify_before="0 d")


def test_an_operation_id_is_for_one_request(main: Table) -> None:
    branch(main)
    assert not expire(main, operation_id="op", now=None)["expired"]
    with pytest.raises(InvalidInputError, match="'op' was used for another request"):
        expire(main, operation_id="op")
    assert main.branch_names() == ["fix"]
    assert not expire(main, operation_id="op", now=None)["expired"]


@pytest.mark.parametrize("age", ["0 d", "soon"])
def test_an_age_that_is_none_is_refused(main: Table, age: str) -> None:
    with pytest.raises(InvalidInputError, match="older_than"):
        expire(main, older_than=age)


def test_protected_and_needed_branches_stay(main: Table) -> None:
    branch(main, protected=True, reason="evidence")
    branch(main, "parent")
    run(main, "create_branch", branch="child", from_branch="parent", snapshot=2)
    branch(main, "fallback")
    alter_table(main, [SetOption(key="scan.fallback-branch", value="fallback")])
    kept = expire(main)["kept"]
    assert kept["fix"] == "it is protected by ann (evidence)"
    assert "'child' starts from branch 'parent'" in kept["parent"]
    assert "scan.fallback-branch" in kept["fallback"]
    assert main.branch_names() == ["child", "fallback", "fix", "parent"]


def test_another_engines_branch_stays_until_it_gets_a_retention(main: Table) -> None:
    for name in ("schema/schema-0", "snapshot/snapshot-1", "snapshot/snapshot-2"):
        main.store.create(f"branch/branch-theirs/{name}", main.store.read(name))
    assert expire(main, older_than="1 d") == {"expired": {}, "kept": {}}
    run(main, "alter_branch", branch="theirs", retention="3 d")
    append(main.branch("theirs"), "b", seq=7)
    assert "1 commit that main doesn't have" in expire(main)["kept"]["theirs"]
    assert expire(main, drop_unpublished=True)["expired"].keys() == {"theirs"}
    assert main.branch_names() == []


def test_a_branch_that_another_engine_recreated_stays(main: Table) -> None:
    branch(main)
    delete_tree(main.store, "branch/branch-fix")
    overwrite(main, "a", seq=5)
    main.store.create("branch/branch-fix/schema/schema-0", main.store.read("schema/schema-0"))
    main.store.create("branch/branch-fix/snapshot/snapshot-3", main.store.read("snapshot/snapshot-3"))
    assert "doesn't fit" in expire(main, drop_unpublished=True)["kept"]["fix"]


def test_unpublished_commits_stay_unless_told(main: Table) -> None:
    rewrite(branch(main), "a")
    assert "1 commit that main doesn't have" in expire(main)["kept"]["fix"]
    run(main, "merge_branch", branch="fix")
    assert expire(main, dry_run=True)["expired"].keys() == {"fix"}
    rewrite(main.branch("fix"), "b")
    assert "2 commits that main doesn't have" in expire(main)["kept"]["fix"]
    assert expire(main, drop_unpublished=True)["expired"].keys() == {"fix"}


def test_an_undone_publish_counts_as_none(main: Table) -> None:
    rewrite(branch(main), "a")
    run(main, "merge_branch", branch="fix")
    run(main, "rollback_to", tag=last_publish(main).undo_tag, keep_later=True)
    assert "1 commit that main doesn't have" in expire(main)["kept"]["fix"]


@pytest.mark.parametrize("operation", ["fast_forward", "replace_main"])
def test_a_publish_that_another_branch_has_replaced_counts_as_none(main: Table, operation: str) -> None:
    rewrite(branch(main), "a")
    rewrite(branch(main, "other", retention="forever"), "b")
    run(main, "merge_branch", branch="fix")
    assert expire(main, dry_run=True)["expired"].keys() == {"fix"}
    replaced = run(main, operation, branch="other", discard_main=True)
    assert "1 commit that main doesn't have" in expire(main)["kept"]["fix"]
    run(main, "rollback_to", tag=replaced.details["undo_tag"])
    assert expire(main)["expired"].keys() == {"fix"}


def forget_history(main: Table) -> None:
    """As Paimon's expiry: old snapshots and the undo tags go, tags without a retention stay."""
    for number in main.snapshot_ids()[:-1]:
        main.store.delete(main.paths.snapshot(number))
    for tag in main.tag_names():
        if tag.startswith(UNDO_TAG_PREFIX):
            main.store.delete(main.paths.tag(tag))


@pytest.mark.parametrize("fate", ["main holds it", "changed since", "undone"])
def test_a_publish_whose_traces_are_expired(main: Table, fate: str) -> None:
    rewrite(branch(main), "a")
    run(main, "merge_branch", branch="fix")
    if fate == "changed since":
        overwrite(main, "a", seq=9)
    if fate == "undone":
        run(main, "rollback_to", tag=last_publish(main).undo_tag, keep_later=True)
    append(main, "b", 1, seq=3)
    forget_history(main)
    found = expire(main)
    if fate == "main holds it":
        assert found["expired"].keys() == {"fix"}
    else:
        assert "cannot determine whether main has its 1 commit" in found["kept"]["fix"]
        assert main.branch_names() == ["fix"]


def run_on(main: Table, store: Store, **values: Any) -> Any:
    values = {"warehouse": main.store.uri.rsplit("/", 2)[0], "table": "d.t", "now": LATE, **values}
    context = open_context(build_request("expire_branches", values))
    return perform(replace(context, table=replace(main, store=store)), context.request)


def test_a_kill_anywhere_and_another_run() -> None:
    for step in moments(100):
        main = make_table(f"memory://{uuid.uuid4()}/wh")
        append(main, "a")
        run(main, "create_tag", tag="base")
        for name in ("one", "two", "kept"):
            branch(main, name)
        rewrite(main.branch("kept"), "a")
        before, kept = names(main), names(main.branch("kept"))
        try:
            run_on(main, FaultStore(main.store, fail_at=step, error=Crash(), after=step % 2 == 0))
        except Crash:
            run_on(main, main.store)
        else:
            assert step > 10
            return
        where = f"killed at change {step}"
        assert main.branch_names() == ["kept"], where
        assert (names(main), names(main.branch("kept"))) == (before, kept), where
        check(main)
        forget(main)
    raise AssertionError("100 changes were not enough")


def test_a_commit_at_any_moment_is_kept_or_refused() -> None:
    """With all its commits unpublished, a branch that acknowledged one is there at the end."""
    deleted = kept = 0
    for number in moments(300):
        main = make_table(f"memory://{uuid.uuid4()}/wh")
        append(main, "a")
        run(main, "create_tag", tag="base")
        fix = branch(main)
        written: list[set[str]] = []

        def write(fix: Table = fix, written: list[set[str]] = written) -> None:
            before = names(fix)
            try:
                append(fix, "a", 1, seq=100)
            except (ConflictError, NotFoundError, OutcomeUnknownError):
                return
            written.append(names(fix) - before)

        store = At(main.store, number, write)
        run_on(main, store)
        if written:
            assert fix.exists() and written[0] <= names(fix), f"a commit at call {number} is lost"
            kept += 1
        deleted += not fix.exists()
        if not fix.exists():
            check(main)
        forget(main)
        if store.left > 0:
            assert min(deleted, kept) > 3 or not thorough()
            return
    raise AssertionError("300 calls were not enough")


def test_a_branch_of_which_some_partitions_are_published_stays(main: Table) -> None:
    """Until the rest is, also by another publish of its own; and again when one of them is undone."""
    fix = branch(main)
    for dt in "ab":
        rewrite(fix, dt)
    undo = run(main, "merge_branch", branch="fix", partitions=["dt=a"]).details["undo_tag"]
    append(main, "a", seq=9)
    unpublished = {"fix": "it has 2 commits that main doesn't have; drop_unpublished (--drop-unpublished) expires it"}
    assert expire(main)["kept"] == unpublished
    run(main, "merge_branch", branch="fix", partitions=["dt=b"])
    append(main, "b", seq=9)
    assert expire(main, dry_run=True)["expired"].keys() == {"fix"}
    rewrite(fix, "c")
    assert expire(main)["kept"] == {"fix": unpublished["fix"].replace("2", "3")}
    run(main, "merge_branch", branch="fix", partitions=["dt=c"], writers_stopped=True)
    append(main, "c", seq=9)
    assert expire(main, dry_run=True)["expired"].keys() == {"fix"}
    run(main, "rollback_to", tag=undo)
    assert "fix" in expire(main)["kept"]


def test_it_is_not_told_where_what_became_of_a_published_partition_has_expired(main: Table) -> None:
    fix = branch(main)
    for dt in "ab":
        rewrite(fix, dt)
    for dt in "ab":
        run(main, "merge_branch", branch="fix", partitions=[f"dt={dt}"])
        append(main, dt, seq=9)
    for number in main.snapshot_ids()[:-1]:
        main.store.delete(main.paths.snapshot(number))
    assert "cannot determine" in expire(main)["kept"]["fix"]
