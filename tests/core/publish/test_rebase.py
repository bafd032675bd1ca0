"""rebase_branch: the changes of a branch on a new branch of main's head; killed anywhere, and with others at work."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from airflow_paimon.core.branches.retention_tags import missing_tags_of_copy
from airflow_paimon.core.errors import AlreadyExistsError, ConflictError, InvalidInputError, PaimonError
from airflow_paimon.core.format.snapshot import CommitKind
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import OperationResult, open_context
from airflow_paimon.core.schema.schema_plan import AddColumn
from airflow_paimon.core.table.branch_record import read_branch_record
from airflow_paimon.core.table.history import branch_point
from airflow_paimon.core.table.table import Table
from airflow_paimon.execution import perform
from tests.core.metadata_expiry.test_remove_orphan_files import clean
from tests.core.tables import alter_table, append, copied, files, forget_results, make_table, rewrite, run
from tests.randomness import moments
from tests.stateful.paimon_expiry import expire_snapshots
from tests.stores import Crash, FaultStore, delete_tree


@pytest.fixture(params=[True, False], ids=["by bucket", "by file"])
def table(request: pytest.FixtureRequest) -> Table:
    """Main got rows in a new partition, and a compaction of b, after ``fix`` had changed a and b was left alone."""
    made = make_table(f"memory://{uuid.uuid4()}/wh", primary=request.param)
    for dt in "abc":
        append(made, dt, rows=2, seq=0)
    run(made, "create_branch", branch="fix", snapshot=3, owner="ann", reason="bad prices", retention="14 d")
    rewrite(made.branch("fix"), "a")
    append(made, "d")
    rewrite(made, "b", kind=CommitKind.COMPACT)
    return made


def rebase(table: Table, **values: Any) -> OperationResult:
    return run(table, "rebase_branch", **{"branch": "fix", "to_branch": "next", **values})


def days(view: Table) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for (partition, _), group in files(view).items():
        found.setdefault(partition[-8:-7].decode(), set()).update(group)
    return found


def sound(table: Table) -> bool:
    details = run(table, "check_table").details
    assert details["errors"] == 0, details["findings"]
    return True


def test_a_rebased_branch_has_main_s_head_and_the_branch_s_changes(table: Table) -> None:
    main, fix = days(table), days(table.branch("fix"))
    head, theirs = table.latest_snapshot(), table.branch("fix").latest_snapshot()
    result = rebase(table)
    assert head is not None and theirs is not None
    assert (result.branch, result.snapshot_before, result.snapshot_after) == ("next", head.id, head.id + 1)
    assert result.details["base_snapshot"] == head.id
    assert (result.details["branch_snapshot"], result.details["previous_base_snapshot"]) == (theirs.id, 3)
    view = table.branch("next")
    assert days(view) == main | {"a": fix["a"]}
    assert (days(table), days(table.branch("fix"))) == (main, fix)
    assert branch_point(table, view) == head
    record = read_branch_record(table, "next")
    assert record is not None
    assert (record.owner, record.reason, record.retention) == ("ann", "bad prices", "14 d")
    assert sound(table)
    assert run(table, "fast_forward", branch="next").changed, "main has nothing that it lacks"
    assert days(table) == days(view)
    assert not run(table, "merge_branch", branch="fix").changed, "main has it"


def test_it_goes_on_without_any_private_metadata_and_without_the_old_branch(table: Table) -> None:
    rebase(table)
    view = table.branch("next")
    run(table, "delete_branch", branch="fix")
    for _ in range(3):
        append(table, "d", seq=5)
    expire_snapshots(table, 1)
    clean(table)
    assert sound(table)
    delete_tree(table.store, "_airflow_paimon")
    rewrite(view, "c")
    assert run(table, "merge_branch", branch="next").changed
    assert {d: days(table)[d] for d in "abc"} == {d: days(view)[d] for d in "abc"}
    assert sound(table)


def test_files_that_main_has_compacted_away_and_the_branch_brings_back_are_kept(table: Table) -> None:
    """Only the old branch's tags hold them on main; the new one gets its own."""
    if not table.schema().primary_keys:
        return  # a conflict there
    fix = table.branch("fix")
    run(table, "merge_branch", branch="fix")
    rewrite(table, "a", kind=CommitKind.COMPACT)
    run(table, "rollback_to", branch="fix", snapshot=3)
    rebase(table)
    assert days(table.branch("next"))["a"] == days(fix)["a"]
    run(table, "delete_branch", branch="fix")
    for _ in range(3):
        append(table, "d", seq=5)
    expire_snapshots(table, 1)
    clean(table)
    assert sound(table)


def test_conflicts_are_listed_and_nothing_is_made(table: Table) -> None:
    rewrite(table, "a")
    before = {path: table.store.read(path) for path in table.store.walk("")}
    with pytest.raises(ConflictError) as caught:
        rebase(table)
    assert caught.value.details["conflicts"] == ["dt=a/bucket-0"]
    assert {path: table.store.read(path) for path in table.store.walk("")} == before


def test_columns_of_both_sides_come_together(table: Table) -> None:
    fix = table.branch("fix")
    alter_table(fix, [AddColumn(name="price", type="DOUBLE")])
    rewrite(fix, "c")
    alter_table(table, [AddColumn(name="extra", type="INT")])
    append(table, "d", seq=3)
    rebase(table)
    view = table.branch("next")
    assert set(view.schema().field_names) == {"k", "v", "dt", "price", "extra"}
    assert view.schema().options["write-only"] == "true"
    assert table.schema().field_names == ("k", "v", "dt", "extra")
    assert run(table, "merge_branch", branch="next").changed
    assert set(table.schema().field_names) == {"k", "v", "dt", "price", "extra"}
    assert "write-only" not in table.schema().options
    assert days(table) == days(view)


def test_only_what_main_lacks_is_brought(table: Table) -> None:
    fix = table.branch("fix")
    rewrite(fix, "c")
    run(table, "merge_branch", branch="fix", partitions=["dt=a"])
    append(table, "a", seq=9)
    moved = days(table)["a"]
    assert rebase(table).details["partitions"] == 1
    assert days(table.branch("next")) == days(table) | {"c": days(fix)["c"]}
    assert days(table.branch("next"))["a"] == moved
    run(table, "merge_branch", branch="fix")
    assert not rebase(table, to_branch="third").changed
    assert table.branch_names() == ["fix", "next"]


def test_a_dry_run_and_refusals_change_nothing(table: Table) -> None:
    before = table.store.walk("")
    planned = rebase(table, dry_run=True)
    assert planned.changed
    assert planned.details["files_added"] == 1
    for wrong, values in (
        (InvalidInputError, {"to_branch": "fix"}),
        (InvalidInputError, {"branch": "main"}),
        (ConflictError, {"expected_branch_snapshot": 9}),
    ):
        with pytest.raises(wrong):
            rebase(table, **values)
    assert table.store.walk("") == before
    rebase(table)
    with pytest.raises(AlreadyExistsError):
        rebase(table)


def test_a_retry_returns_the_first_result(table: Table) -> None:
    first = rebase(table, operation_id="op")
    append(table, "d", seq=7)
    rewrite(table.branch("next"), "c")
    forget_results(table)
    again = rebase(table, operation_id="op")
    assert (again.snapshot_after, again.details["replayed"]) == (first.snapshot_after, True)
    with pytest.raises(InvalidInputError, match="another request"):
        rebase(table, operation_id="op", keep_appended=True)


def _performed(table: Table, store: Any) -> OperationResult:
    warehouse = table.store.uri.rsplit("/", 2)[0]
    asked = {"warehouse": warehouse, "table": table.name, "branch": "fix", "to_branch": "next", "operation_id": "op"}
    context = open_context(build_request("rebase_branch", asked))
    beside = type(context)(context.request, Table(store, table.name), context.now_ms, context.started)
    return perform(beside, context.request)


@pytest.mark.parametrize("after", [False, True])
def test_killed_at_any_change_it_is_completed_by_a_retry(table: Table, after: bool) -> None:
    """Main has moved meanwhile: the retry goes on with the head that the first try took, or begins anew."""
    alter_table(table.branch("fix"), [AddColumn(name="price", type="DOUBLE")])
    rewrite(table.branch("fix"), "c")
    main, fix = days(table), days(table.branch("fix"))
    for step in moments(100):
        life = copied(table)
        try:
            _performed(life, FaultStore(life.store, fail_at=step, error=Crash(), after=after))
            break
        except Crash:
            pass
        assert (days(life), days(life.branch("fix"))) == (main, fix)
        append(life, "d", seq=5)
        _performed(life, life.store)
        view = life.branch("next")
        assert {d: days(view)[d] for d in "abc"} == {"a": fix["a"], "b": main["b"], "c": fix["c"]}
        assert days(view)["d"] in (main["d"], days(life)["d"])
        assert [f for f in run(life, "check_table").details["findings"] if f["severity"] == "error"] == []
        assert run(life, "merge_branch", branch="next").changed
        assert missing_tags_of_copy(life, "fix", "next") == []
    assert step > 8


def test_a_commit_on_the_new_branch_before_the_rebase_s_own_is_not_lost(table: Table) -> None:
    """Another engine has loaded the branch as soon as it was there."""

    class Rival(FaultStore):
        def create(self, path: str, data: bytes) -> None:
            if path.endswith("branch-next/snapshot/snapshot-6"):
                monkey.pop()()
            super().create(path, data)

    monkey = [lambda: None, lambda: append(table.branch("next"), "z")]
    with pytest.raises(PaimonError, match=r"was written before the rebase"):
        _performed(table, Rival(table.store, fail_at=None))
    assert "z" in days(table.branch("next"))
