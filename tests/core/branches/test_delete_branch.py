"""What a deletion holds a branch to while it goes on, beside other engines and other operations of ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from airflow_paimon.core.errors import ConflictError
from airflow_paimon.core.table.branch_record import matching_branch_record
from airflow_paimon.core.table.table import Table
from tests.core.branches.test_interrupted_branches import (
    CASES,
    At,
    Case,
    OtherEngine,
    forget,
    killed,
    run_on,
    start,
    write,
)
from tests.core.tables import append, names, run
from tests.randomness import moments, thorough
from tests.stores import FaultStore

HEAD = 3
"""Of branch ``fix``: made from snapshot 2, written once."""


def deleting(**values: object) -> Case:
    return Case("delete_branch", {"branch": "fix", **values}, exists=True)


@pytest.fixture
def table() -> Iterator[Table]:
    table = start(CASES["delete"])
    assert table.branch("fix").latest_snapshot_id() == HEAD
    yield table
    forget(table)


def when(table: Table, method: str, path: str, act: Callable[[], object]) -> FaultStore:
    """A store that lets somebody else act right before the first such call."""
    acts = [act]

    def interfere(called: str, on: str) -> None:
        if acts and (called, on) == (method, path):
            acts.pop()()

    return FaultStore(table.store, on_mutation=interfere)


def test_a_branch_with_another_head_than_expected_stays(table: Table) -> None:
    before = {p: table.store.read(p) for p in table.store.walk("")}
    for wrong in (HEAD - 1, HEAD + 1):
        for dry_run in (True, False):
            with pytest.raises(ConflictError, match=rf"is at snapshot {HEAD}, not at {wrong} as expected"):
                run(table, "delete_branch", branch="fix", expected_branch_snapshot=wrong, dry_run=dry_run)
    assert {p: table.store.read(p) for p in table.store.walk("")} == before
    assert run(table, "delete_branch", branch="fix", expected_branch_snapshot=HEAD).changed
    assert table.branch_names() == ["other"]


@pytest.mark.parametrize("ours", [True, False], ids=["ours", "other engine"])
def test_what_is_committed_after_the_expected_snapshot_is_never_deleted(ours: bool) -> None:
    """A commit at each store call of the deletion, before its first look, too."""
    refused = 0
    for number in moments(300):
        table = start(CASES["delete"])
        written: dict[str, set[str]] = {}
        store = At(table.store, number, lambda table=table, written=written: written.update(write(table, ours=ours)))
        try:
            run_on(table, store, deleting(expected_branch_snapshot=HEAD))
        except ConflictError:
            refused += 1
        assert written.get("fix", set()) <= names(table.branch("fix")), f"a commit at call {number} is lost"
        forget(table)
        if store.left > 0:
            assert refused > 2 or not thorough()
            return
    raise AssertionError("300 calls were not enough")


def test_an_interrupted_deletion_is_finished_with_the_same_expectation() -> None:
    case = deleting(expected_branch_snapshot=HEAD, if_missing="skip")
    for step in moments(40):
        table = start(CASES["delete"])
        crashed = killed(table, case, step, after=True)
        run(table, "delete_branch", **case.values)
        assert "fix" not in table.branch_names(), step
        assert run(table, "check_table").details["ok"], step
        forget(table)
        if not crashed:
            return
    raise AssertionError("40 steps were not enough")


def test_a_commit_that_takes_the_id_of_one_that_was_rolled_back_is_seen(table: Table) -> None:
    """Another engine rolls the branch back and commits: the newest id is the same, and the snapshot another one."""
    fix = replace(table, store=OtherEngine(table.store)).branch("fix")
    new: set[str] = set()

    def rewrite_history() -> None:
        fix.store.delete(fix.paths.snapshot(HEAD))
        before = names(fix)
        append(fix, "a", 1, seq=300)
        new.update(names(fix) - before)

    store = when(table, "replace", "_airflow_paimon/branches/fix.json", rewrite_history)
    with pytest.raises(ConflictError, match="was written meanwhile"):
        run_on(table, store, deleting())
    assert new and new <= names(table.branch("fix"))
    assert run(table, "check_table").details["ok"]


def test_a_slow_deletion_leaves_the_files_of_the_branch_that_was_made_anew(table: Table) -> None:
    """It looks at the record before each file, not only before the first one and after the last."""
    fix = table.branch("fix")
    again = {"branch": "fix", "snapshot": 2, "if_exists": "replace"}
    store = when(table, "delete", fix.paths.latest_hint, lambda: run(table, "create_branch", **again))
    with pytest.raises(ConflictError, match="is being changed by another operation"):
        run_on(table, store, deleting())
    assert matching_branch_record(table, "fix") is not None
    assert fix.latest_snapshot_id() == 2 and names(fix)
    assert run(table, "check_table").details["ok"]


def test_a_creation_that_goes_on_looks_for_the_tag_of_the_try_before() -> None:
    """The tag stands already, so this try does not plan to set it; without it main's expiry would break the branch."""
    case = replace(CASES["create from a tag"], values={"branch": "fix", "tag": "base", "if_exists": "skip"})
    table = start(case)
    assert killed(table, case, 3, after=False)  # the record and the protective tag are there
    tag = table.paths.tag("airflow-paimon-branch-fix")
    assert table.store.exists(tag)
    fix = table.branch("fix")
    store = when(table, "create", fix.paths.snapshot(2), lambda: table.store.delete(tag))
    with pytest.raises(ConflictError, match="was deleted while it was being created"):
        run_on(table, store, case)
    run_on(table, table.store, case)
    assert table.store.exists(tag)
    assert run(table, "check_table").details["ok"]
