"""create_tag, delete_tag and repair_table that are killed at any change of the storage, and run again."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.table.table import Table
from tests.core.branches.test_interrupted_branches import CASES, check, forget, killed, repair_all, start
from tests.core.tables import append, copied, cut_off, make_table, names, rewrite, run
from tests.randomness import moments, thorough

MADE = {"tag": "new", "snapshot": 1, "time_retained": "7 d"}


def tagged() -> Table:
    table = make_table(f"memory://{uuid.uuid4()}/wh")
    append(table, "a")
    append(table, "b")
    run(table, "create_tag", tag="old", snapshot=1)
    return table


@pytest.mark.parametrize(
    ("operation", "values", "tags"),
    [
        ("create_tag", MADE, {"old": 1, "new": 1}),
        ("create_tag", {**MADE, "tag": "old", "snapshot": 2, "if_exists": "replace"}, {"old": 2}),
        ("replace_tag", {"tag": "old", "snapshot": 2, "time_retained": "7 d"}, {"old": 2}),
        ("delete_tag", {"tag": "old"}, {}),
        ("rename_tag", {"tag": "old", "to_tag": "new"}, {"new": 1}),
    ],
    ids=["create", "replace", "replace_tag", "delete", "rename"],
)
def test_a_tag_operation_that_is_killed_is_done_once_by_its_retry(
    operation: str, values: dict[str, Any], tags: dict[str, int]
) -> None:
    """``cut_off`` kills odd steps before the change, even steps after it."""
    for step in range(1, 20):
        table = tagged()
        crashed = cut_off(table, step, operation, operation_id="op", **values)
        held = {t.name: t.snapshot.id for t in table.tags()}
        halfway = [{"old": 1, "new": 1}] if operation == "rename_tag" else []
        assert held in ({"old": 1}, tags, *halfway), f"step {step}: neither before nor after"
        assert not run(table, "check_table").details["errors"], step
        again = run(table, operation, operation_id="op", **values)
        assert again.changed, f"step {step}: the first try's result"
        assert {t.name: t.snapshot.id for t in table.tags()} == tags, step
        assert len(names(table)) == 2
        forget(table)
        if not crashed:
            assert step > 2
            return
    raise AssertionError("20 steps were not enough")


@pytest.mark.parametrize(
    ("operation", "values", "since"),
    [
        ("create_tag", MADE, ("delete_tag", {"tag": "new"})),
        ("replace_tag", {"tag": "old", "snapshot": 2}, ("replace_tag", {"tag": "old", "snapshot": 1})),
        ("delete_tag", {"tag": "old"}, ("create_tag", {"tag": "old", "snapshot": 2})),
        ("rename_tag", {"tag": "old", "to_tag": "new"}, ("rename_tag", {"tag": "new", "to_tag": "old"})),
        ("delete_branch", {"branch": "fix"}, ("create_branch", {"branch": "fix", "snapshot": 1})),
        ("rename_branch", {"branch": "fix", "to_branch": "b"}, ("rename_branch", {"branch": "b", "to_branch": "fix"})),
        ("alter_table", {"change": ["rename column v to w"]}, ("alter_table", {"change": ["rename column w to v"]})),
        ("merge_branch", {"branch": "fix"}, ("delete_branch", {"branch": "fix"})),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_the_retry_of_an_operation_that_has_ended_returns_its_result(
    operation: str, values: dict[str, Any], since: tuple[str, dict[str, Any]]
) -> None:
    """Whatever somebody did since: what was made anew is not deleted again."""
    table = tagged()
    run(table, "create_branch", branch="fix", tag="old")
    rewrite(table.branch("fix"), "a")
    first = run(table, operation, operation_id="op", **values).to_json()
    run(table, since[0], **since[1])
    before = {path: table.store.read(path) for path in table.store.walk("")}
    again = run(table, operation, operation_id="op", **values).to_json()
    assert again == {**first, "details": {**first["details"], "replayed": True}}
    assert {path: table.store.read(path) for path in table.store.walk("")} == before
    with pytest.raises(InvalidInputError, match="was used for another request"):
        run(table, "delete_tag", tag="another", operation_id="op")


@pytest.mark.parametrize("kind", ["create from a tag", "delete", "rename"])
def test_a_repair_that_is_killed_is_finished_by_the_next(kind: str) -> None:
    """Of a branch that was left half made, deleted or renamed, in some of the states that a kill leaves."""
    case, repaired, step_of_breaks = CASES[kind], 0, 8 if kind == "rename" else 3
    before = start(case)
    old = names(before.branch("fix")) if case.exists else set()
    for broken in range(1, 40):
        half_made = start(case)
        if not killed(half_made, case, broken, after=True):
            break
        if not thorough() and broken % step_of_breaks != 1:
            continue
        for step in moments(40, 5):
            table = copied(half_made)
            main, other = names(table), names(table.branch("other"))
            found = [f["id"] for f in run(table, "check_table").details["findings"] if f["repair"] is not None]
            crashed = bool(found) and cut_off(table, step, "repair_table", finding=found)
            repaired += crashed
            repair_all(table)
            check(table)
            assert (names(table), names(table.branch("other"))) == (main, other), f"{broken}, {step}"
            if case.exists and kind == "rename":
                kept = set(table.branch_names()) & {"fix", "better"}
                assert kept and all(names(table.branch(name)) == old for name in kept), "under one name, or both"
            forget(table)
            if not crashed:
                break
    assert repaired > 2 or not thorough()
