"""Whose a branch is and how long it lives, its protection, and changes of both while other operations are at work."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_paimon.core.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    NotFoundError,
    UnsafeOperationError,
)
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import open_context
from airflow_paimon.core.store import Store
from airflow_paimon.core.table.branch_record import read_branch_record
from airflow_paimon.core.table.inspect import inspect
from airflow_paimon.core.table.table import Table
from airflow_paimon.execution import perform
from airflow_paimon.shown.lookups import branches
from tests.core.branches.test_interrupted_branches import CASES, At, Case, check, forget, repair_all, run_on, start
from tests.core.tables import append, names, rewrite, run
from tests.randomness import moments
from tests.stores import FaultStore

WHO = {"owner": "ann", "reason": "bad prices", "retention": "14 d", "protected": True}
TAKING_AWAY: dict[str, tuple[str, dict[str, Any]]] = {
    "delete": ("delete_branch", {"branch": "fix"}),
    "rename": ("rename_branch", {"branch": "fix", "to_branch": "better"}),
    "replace": ("create_branch", {"branch": "fix", "snapshot": 2, "if_exists": "replace"}),
    "publish": ("merge_branch", {"branch": "fix"}),
    "publish strictly": ("fast_forward", {"branch": "fix"}),
    "replace main": ("replace_main", {"branch": "fix"}),
}


def listed(table: Table, name: str = "fix") -> dict[str, Any]:
    found = branches(table, 100)
    columns = [title for title, _ in found.columns]
    (row,) = [dict(zip(columns, row, strict=True)) for row in found.rows if row[0] == name]
    return row


@pytest.fixture
def protected(table: Table) -> Table:
    run(table, "create_branch", branch="fix", tag="base", **WHO)
    rewrite(table.branch("fix"), "a")
    return table


def test_what_is_said_at_creation_is_shown(protected: Table) -> None:
    row = listed(protected)
    assert (row["owner"], row["retention"], row["protected by"], row["what for"]) == (
        "ann",
        "14 d",
        "ann",
        "bad prices",
    )
    (fix,) = inspect(protected, "branches").to_pylist()
    assert (fix["retention"], fix["protected_by"]) == ("14 d", "ann")


@pytest.mark.parametrize(("operation", "values"), TAKING_AWAY.values(), ids=TAKING_AWAY.keys())
def test_a_protected_branch_is_left_alone_without_force(
    protected: Table, operation: str, values: dict[str, Any]
) -> None:
    before = {p: protected.store.read(p) for p in protected.store.walk("") if "/operations/" not in p}
    for dry_run in (False, True):
        with pytest.raises(UnsafeOperationError, match=r"protected by ann \(bad prices\).*force.*unprotect"):
            run(protected, operation, dry_run=dry_run, **values)
    assert before == {p: protected.store.read(p) for p in protected.store.walk("") if "/operations/" not in p}
    assert run(protected, operation, force=True, **values).changed


def test_a_publish_says_whose_branch_it_was_and_that_it_was_forced(protected: Table) -> None:
    run(protected, "merge_branch", branch="fix", force=True)
    properties = protected.latest_snapshot().properties
    assert {k: v for k, v in properties.items() if k.startswith("airflow-paimon.branch-") and "snap" not in k} == {
        "airflow-paimon.branch-identity": protected.branch("fix").latest_snapshot().identity,
        "airflow-paimon.branch-family": read_branch_record(protected, "fix").family,
        "airflow-paimon.branch-owner": "ann",
        "airflow-paimon.branch-reason": "bad prices",
        "airflow-paimon.branch-protected-by": "ann",
        "airflow-paimon.branch-forced": "true",
    }


def test_a_retry_of_a_publish_gets_its_result_although_the_branch_is_protected_since(table: Table, fix: Table) -> None:
    rewrite(fix, "a")
    first = run(table, "merge_branch", branch="fix", operation_id="once")
    run(table, "alter_branch", branch="fix", protect=True)
    assert run(table, "merge_branch", branch="fix", operation_id="once").snapshot_after == first.snapshot_after


@pytest.mark.parametrize(
    ("who", "why"),
    [
        ({}, "nobody approved it"),
        ({"approved_by": "bob"}, "not known who asked"),
        ({"requested_by": "ann", "approved_by": " ANN "}, "asked for it and approved it"),
    ],
)
@pytest.mark.parametrize(
    ("operation", "values"),
    [
        ("merge_branch", {"branch": "fix"}),
        ("replace_main", {"branch": "fix", "discard_main": True}),
        ("rollback_to", {"tag": "base"}),
    ],
)
def test_four_eyes_hold_when_it_is_published(
    table: Table, fix: Table, operation: str, values: dict[str, Any], who: dict[str, str], why: str
) -> None:
    rewrite(fix, "a")
    rewrite(table, "b")
    run(table, operation, four_eyes=True, dry_run=True, **values)
    before = table.store.walk("")
    with pytest.raises(UnsafeOperationError, match=why):
        run(table, operation, four_eyes=True, **values, **who)
    assert table.store.walk("") == before
    run(table, operation, four_eyes=True, requested_by="ann", approved_by="bob", **values)
    properties = table.latest_snapshot().properties
    said = [properties[f"airflow-paimon.{key}"] for key in ("requested-by", "approved-by", "four-eyes")]
    assert said == ["ann", "bob", "true"]


def test_an_undone_publish_comes_back_only_with_four_eyes(table: Table, fix: Table) -> None:
    """Rolling back to the tag of its undo brought it back without anybody's approval."""
    both = {"requested_by": "ann", "approved_by": "bob"}
    rewrite(fix, "a")
    published = run(table, "merge_branch", branch="fix", four_eyes=True, **both).details["undo_tag"]
    good = names(table)

    def undo(**how: Any) -> str:
        for named in (how, {"timestamp": "2999-01-01T00:00:00Z"}):  # a time may mean any state
            with pytest.raises(UnsafeOperationError, match="nobody approved it"):
                run(table, "rollback_to", **named)
        with pytest.raises(UnsafeOperationError, match="asked for it and approved it"):
            run(table, "rollback_to", **how, requested_by="ann", approved_by="ann")
        return str(run(table, "rollback_to", **how, **both).details["undo_tag"])

    undone = undo(tag=published, keep_later=True)
    assert names(table) != good
    again = undo(tag=undone, keep_later=True)
    assert names(table) == good
    append(table, "b", seq=7)  # what has nothing to do with the publish
    undo(tag=again)  # a whole state from before an approved one
    assert names(table) != good
    last = table.latest_snapshot_id()
    assert last is not None
    append(table, "b", seq=8)
    run(table, "rollback_to", snapshot=last)  # takes back an ordinary commit only


def test_a_table_asks_for_four_eyes_whoever_publishes(table: Table, fix: Table) -> None:
    """Whatever the connection, the operator or the job says, and also after main was replaced by a branch."""
    rewrite(fix, "a")
    option = "airflow-paimon.four-eyes"
    run(table, "alter_table", change=[f"set {option}=true"])
    for operation in ("merge_branch", "fast_forward", "replace_main"):
        with pytest.raises(UnsafeOperationError, match="nobody approved it"):
            run(table, operation, branch="fix")
    with pytest.raises(UnsafeOperationError, match="nobody approved it"):
        run(table, "rollback_to", tag="base")
    run(table, "replace_main", branch="fix", requested_by="ann", approved_by="bob")
    assert table.schema().options[option] == "true", "the branch's options have no such option"
    with pytest.raises(InvalidInputError, match="true or false"):
        run(table, "alter_table", change=[f"set {option}=yes"])
    schema = table.schema()
    by_another = replace(schema, id=schema.id + 1, options={**schema.options, option: "yes"})
    table.store.create(table.paths.schema(by_another.id), by_another.to_bytes())
    with pytest.raises(InvalidInputError, match="true or false"):
        run(table, "rollback_to", tag="base")


def test_each_of_it_can_be_changed_and_the_rest_stays(protected: Table) -> None:
    result = run(protected, "alter_branch", branch="fix", owner="bob", retention="forever")
    assert result.details["before"]["owner"] == "ann"
    assert result.details["branch"] == {
        "owner": "bob",
        "reason": "bad prices",
        "retention": None,
        "protected": True,
        "protected_by": "ann",
    }
    assert not run(protected, "alter_branch", branch="fix", owner="bob").changed
    run(protected, "alter_branch", branch="fix", unprotect=True)
    assert listed(protected)["protected by"] is None
    run(protected, "alter_branch", branch="fix", protect=True)
    assert listed(protected)["protected by"] == "bob"
    run(protected, "delete_branch", branch="fix", force=True)
    with pytest.raises(NotFoundError):
        run(protected, "alter_branch", branch="fix", owner="bob")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"branch": "main", "owner": "ann"}, "main has no owner"),
        ({"branch": "fix", "protect": True, "unprotect": True}, "not both"),
        ({"branch": "fix", "protected_by": "ann"}, "belongs to protect"),
        ({"branch": "fix", "retention": "soon"}, "not a duration"),
        ({"branch": "fix", "retention": "0 d"}, "greater than 0"),
    ],
)
def test_what_makes_no_sense_is_refused(table: Table, fix: Table, values: dict[str, Any], message: str) -> None:
    before = fix.store.read("_airflow_paimon/branches/fix.json")
    with pytest.raises(InvalidInputError, match=message):
        run(table, "alter_branch", **values)
    assert fix.store.read("_airflow_paimon/branches/fix.json") == before


@pytest.mark.parametrize("operation", ["alter_branch", "delete_branch", "rename_branch"])
def test_a_branch_that_was_made_anew_keeps_its_record(table: Table, fix: Table, operation: str) -> None:
    """The operation stalls right before it writes the record that it has read."""
    path = "_airflow_paimon/branches/fix.json"
    acts: list[bytes] = []

    def anew(method: str, at: str) -> None:
        if method == "replace" and at == path and not acts:
            acts.append(b"")
            run(table, "delete_branch", branch="fix")
            run(table, "create_branch", branch="fix", snapshot=1, owner="ben")
            acts[0] = table.store.read(path)

    values = {"alter_branch": {"owner": "ann"}, "rename_branch": {"to_branch": "alt"}}.get(operation, {})
    with pytest.raises(ConflictError, match="'fix' is being changed by another operation"):
        run_on(table, FaultStore(table.store, on_mutation=anew), Case(operation, {"branch": "fix", **values}))
    assert table.store.read(path) == acts[0] and table.branch("fix").snapshot_ids() == [1]
    assert table.branch("alt").exists() == (operation == "rename_branch"), "whose copy is there before"
    assert run(table, "check_table").details["findings"] == []


def test_a_dry_run_changes_nothing(table: Table, fix: Table) -> None:
    before = fix.store.read("_airflow_paimon/branches/fix.json")
    result = run(table, "alter_branch", branch="fix", protect=True, dry_run=True)
    assert result.changed and result.details["branch"]["protected"]
    assert fix.store.read("_airflow_paimon/branches/fix.json") == before


def test_a_bad_retention_leaves_no_branch(table: Table) -> None:
    with pytest.raises(InvalidInputError, match="not a duration"):
        run(table, "create_branch", branch="fix", tag="base", retention="two weeks")
    assert table.branch_names() == [] and "airflow-paimon-branch-fix" not in table.tag_names()


def test_another_engines_branch_can_be_protected_and_keeps_that_when_it_is_renamed() -> None:
    table = start(CASES["rename another engine's"])
    run(table, "alter_branch", branch="fix", owner="ann", protect=True, retention="3 d")
    assert listed(table)["protected by"] == "ann"
    append(table.branch("fix"), "a", seq=200)
    run(table, "rename_branch", branch="fix", to_branch="better", force=True)
    assert (listed(table, "better")["owner"], listed(table, "better")["protected by"]) == ("ann", "ann")
    with pytest.raises(UnsafeOperationError, match="protected by ann"):
        run(table, "delete_branch", branch="better")


def test_a_deletion_that_is_undone_leaves_the_protection_of_another_engines_branch() -> None:
    table = start(CASES["delete another engine's"])
    run(table, "alter_branch", branch="fix", owner="ann", protect=True)

    written: list[str] = []

    def write(method: str, path: str) -> None:
        if not written:
            written.append(path)
            append(table.branch("fix"), "a", seq=200)

    case = Case("delete_branch", {"branch": "fix", "force": True}, ours=False)
    with pytest.raises(ConflictError, match="written meanwhile"):
        run_on(table, FaultStore(table.store, on_mutation=write), case)
    assert listed(table)["protected by"] == "ann"


def alter(table: Table, store: Store) -> None:
    values = {"warehouse": table.store.uri.rsplit("/", 2)[0], "table": "d.t", "branch": "fix", "owner": "bob"}
    context = open_context(build_request("alter_branch", values))
    perform(replace(context, table=replace(table, store=store)), context.request)


@pytest.mark.parametrize("alter_first", [True, False], ids=["during a change", "in the middle of the other"])
@pytest.mark.parametrize("name", ["delete", "rename", "replace", "delete another engine's", "rename another engine's"])
def test_a_change_beside_another_operation_at_any_moment(name: str, alter_first: bool) -> None:  # noqa: C901
    """The other operation at each store call of ``alter_branch``, and the other way round.

    Whoever is refused can be run again, and then the table is in order and nothing is lost.
    """
    case = CASES[name]
    for number in moments(300, 7):
        table = start(case)
        before = names(table.branch("fix"))
        refused: list[str] = []

        def other(store: Store, table: Table = table, refused: list[str] = refused) -> None:
            try:
                run_on(table, store, case) if alter_first else alter(table, store)
            except (ConflictError, AlreadyExistsError, NotFoundError):
                refused.append("inner")

        store = At(table.store, number, lambda table=table, other=other: other(table.store))
        try:
            alter(table, store) if alter_first else run_on(table, store, case)
        except (ConflictError, AlreadyExistsError, NotFoundError):
            refused.append("outer")
        if store.left > 0:
            assert number > 3
            return
        where = f"{name} at call {number}: {refused}"
        record, there = read_branch_record(table, "fix"), table.branch("fix").exists()
        if there and case.operation != "create_branch":
            assert before <= names(table.branch("fix")), where
        if not refused and there and record is not None and case.operation == "delete_branch":
            raise AssertionError(f"{where}: it was deleted")
        for _ in range(2):  # whoever was refused runs again
            if refused and (there or table.branch_names() == ["fix", "other"]):
                try:
                    run_on(table, table.store, case)
                except (ConflictError, NotFoundError, AlreadyExistsError):
                    continue
        repair_all(table)
        held = [names(table.branch(n)) for n in ("fix", "better") if table.branch(n).exists()]
        if case.operation == "rename_branch":
            assert any(before <= h for h in held), where
        check(table)
        forget(table)
    raise AssertionError("300 calls were not enough")
