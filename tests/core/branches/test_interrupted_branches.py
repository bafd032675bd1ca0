"""A kill at every change of the storage while a branch is created, renamed, replaced or deleted, and what follows.

After the kill another engine may write to whatever branch it can load, and our own commits are tried. Then either the
operation is run again, or check_table's findings are repaired. Main and the other branch never change, every commit
that was acknowledged is readable, unless a deletion of its branch was asked for afterwards, and check_table is content.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from typing import Any

import pytest

from airflow_paimon.core.errors import (
    AlreadyExistsError,
    ConflictError,
    NotFoundError,
    OutcomeUnknownError,
    StorageError,
)
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import open_context
from airflow_paimon.core.schema.schema_plan import SetOption
from airflow_paimon.core.store import Store
from airflow_paimon.core.table.branch_record import matching_branch_record, read_branch_record
from airflow_paimon.core.table.paths import protects
from airflow_paimon.core.table.table import Table
from airflow_paimon.execution import perform
from tests.core.tables import alter_table, append, copied, make_table, names, run
from tests.randomness import every, moments, thorough
from tests.stores import MUTATIONS, Crash, FaultStore, _Wrapper


class OtherEngine(_Wrapper):
    """The table as another engine sees it: without our records of branches."""

    def _call(self, method: str, path: str, action: Callable[[], Any]) -> Any:
        if path.startswith("_airflow_paimon/branches/"):
            raise NotFoundError(f"{path} means nothing to another engine")
        return action()


@dataclass(frozen=True)
class Case:
    """``ends_as``: the branch that is there at the end, None after a deletion."""

    operation: str
    values: dict[str, Any] = field(default_factory=dict)
    ends_as: str | None = "fix"
    exists: bool = False
    ours: bool = True


CASES = {
    "create from a tag": Case("create_branch", {"branch": "fix", "tag": "base"}),
    "create from a snapshot": Case("create_branch", {"branch": "fix", "snapshot": 2}),
    "create empty": Case("create_branch", {"branch": "fix"}),
    "replace": Case("create_branch", {"branch": "fix", "snapshot": 2, "if_exists": "replace"}, exists=True),
    "delete": Case("delete_branch", {"branch": "fix"}, ends_as=None, exists=True),
    "rename": Case("rename_branch", {"branch": "fix", "to_branch": "better"}, ends_as="better", exists=True),
    "delete another engine's": Case("delete_branch", {"branch": "fix"}, ends_as=None, exists=True, ours=False),
    "rename another engine's": Case(
        "rename_branch", {"branch": "fix", "to_branch": "better"}, ends_as="better", exists=True, ours=False
    ),
}


def start(case: Case) -> Table:
    """A table of the case's own, as it is before the operation."""
    return copied(_table_before(case.exists, case.ours))


@cache
def _table_before(exists: bool, ours: bool) -> Table:
    """Made once: the lives of this file begin a thousand times."""
    table = make_table(f"memory://{uuid.uuid4()}/wh")
    append(table, "a")
    alter_table(table, [SetOption(key="a", value="b")])
    append(table, "b", seq=1)
    run(table, "create_tag", tag="base")
    append(table, "a", seq=2)
    run(table, "create_branch", branch="other", snapshot=1)
    if exists and ours:
        run(table, "create_branch", branch="fix", tag="base")
    elif exists:
        for name in ("schema/schema-0", "schema/schema-1", "snapshot/snapshot-1", "snapshot/snapshot-2"):
            table.store.create(f"branch/branch-fix/{name}", table.store.read(name))
    if exists:
        append(table.branch("fix"), "b", seq=10)
    return table


def run_on(table: Table, store: Store, case: Case) -> None:
    """Run the case as a job would, through a store of the test's."""
    values = {"warehouse": table.store.uri.rsplit("/", 2)[0], "table": "d.t", **case.values}
    context = open_context(build_request(case.operation, values))
    perform(replace(context, table=replace(table, store=store)), context.request)


def killed(table: Table, case: Case, step: int, *, after: bool) -> bool:
    """Run the case and kill it at its n-th change; False = it has fewer."""
    try:
        run_on(table, FaultStore(table.store, fail_at=step, error=Crash(), after=after), case)
    except Crash:
        return True
    return False


def write(table: Table, *, ours: bool) -> dict[str, set[str]]:
    """Try to append to both branches; give what was acknowledged, by branch."""
    seen = table if ours else replace(table, store=OtherEngine(table.store))
    done: dict[str, set[str]] = {}
    for name in ("fix", "better"):
        view = seen.branch(name)
        if not view.exists():
            continue
        before = names(table.branch(name))
        try:
            append(view, "a", 1, seq=100)
        except (ConflictError, NotFoundError):
            assert names(table.branch(name)) == before, "a refused commit changes nothing"
            continue
        done[name] = names(table.branch(name)) - before
    return done


def forget(table: Table) -> None:
    """Memory is one dictionary that each listing goes through: what is left in it slows the next lives."""
    for path in table.store.walk(""):
        table.store.delete(path)


def repair_all(table: Table) -> None:
    for _ in range(3):
        found = run(table, "check_table").details["findings"]
        ids = [f["id"] for f in found if f["repair"] is not None and f["severity"] != "info"]
        if not ids:
            return
        run(table, "repair_table", finding=ids)


def check(table: Table) -> None:
    details = run(table, "check_table").details
    assert details["ok"], details["findings"]


def retry(table: Table, case: Case) -> None:
    values = dict(case.values)
    if case.operation == "create_branch" and not case.exists:
        values["if_exists"] = "skip"
    if case.operation == "delete_branch":
        values["if_missing"] = "skip"
    try:
        run(table, case.operation, **values)
    except NotFoundError:
        assert case.operation == "rename_branch" and table.branch_names() == ["better", "other"]  # it was done
    except ConflictError as error:
        assert "both" in str(error), "nothing else is refused"


def steps(case: Case) -> int:
    table = start(case)
    store = FaultStore(table.store)
    run_on(table, store, case)
    assert 3 < len(store.mutations) < 40
    forget(table)
    return len(store.mutations)


@pytest.mark.parametrize(
    ("name", "writer", "end"),
    every(5, product(CASES, ["nobody", "other engine", "ours"], ["retry", "repair"])),
)
def test_a_kill_anywhere(name: str, writer: str, end: str) -> None:
    case = CASES[name]
    count = steps(case)
    for step in moments(count + 2, 5):  # a kill after one change is a kill before the next
        table = start(case)
        main, other = names(table), names(table.branch("other"))
        old = names(table.branch("fix")) if case.exists else set()
        assert killed(table, case, min(step, count), after=step > count)
        written = {} if writer == "nobody" else write(table, ours=writer == "ours")
        if end == "retry":
            retry(table, case)
            if not case.ours or "fix" in table.branch_names():
                run(table, "repair_table")  # protects another engine's branch
        else:
            repair_all(table)
        where = f"{case.operation} step {step}, {writer} wrote, {end}"
        assert (names(table), names(table.branch("other"))) == (main, other), where
        _nothing_is_lost(table, case, written, old, end, where)
        check(table)
        forget(table)


def _nothing_is_lost(
    table: Table, case: Case, written: dict[str, set[str]], old: set[str], end: str, where: str
) -> None:
    views = [table.branch(n) for n in ("fix", "better") if table.branch(n).exists()]
    held = [names(v) for v in views]
    asked_again = end == "retry" and (case.ends_as is None or case.values.get("if_exists") == "replace")
    for files in written.values():
        assert asked_again or any(files <= h for h in held), f"{where}: an acknowledged commit is lost"
    if end == "retry" and case.ends_as is not None:
        assert case.ends_as in [v.branch_name for v in views], where
    if case.operation == "rename_branch":
        assert any(old <= h for h in held), f"{where}: the branch is lost"
    if case.operation == "delete_branch" and end == "retry":
        assert views == [], where


MOVES = [case for case in CASES.values() if case.exists]


class At(_Wrapper):
    """Let somebody else act right before the n-th call, reads included."""

    def __init__(self, inner: Store, number: int, act: Callable[[], object]) -> None:
        super().__init__(inner)
        self.left, self.act = number, act

    def _call(self, method: str, path: str, action: Callable[[], Any]) -> Any:
        self.left -= 1
        if self.left == 0:
            self.act()
        return action()


@pytest.mark.parametrize("writer", ["ours", "other engine"])
@pytest.mark.parametrize("case", MOVES, ids=[k for k, c in CASES.items() if c.exists])
def test_a_commit_at_any_moment_of_it(case: Case, writer: str) -> None:
    """A whole commit at each store call of the operation: it is kept, unless the operation has not begun.

    What is committed before the operation first looks goes with the branch, as was asked for.
    """
    refused = 0
    for number in moments(300, 5):
        table = start(case)
        faulty = FaultStore(table.store)
        written: dict[str, set[str]] = {}
        begun: list[bool] = []

        def act(
            table: Table = table, faulty: FaultStore = faulty, written: dict[str, set[str]] = written, begun=begun
        ) -> None:
            written.update(write(table, ours=writer == "ours"))
            begun.append(bool(faulty.mutations))

        store = At(faulty, number, act)
        try:
            run_on(table, store, case)
        except (ConflictError, AlreadyExistsError):
            refused += 1
        held = [names(table.branch(n)) for n in ("fix", "better") if table.branch(n).exists()]
        for files in written.values():
            kept = any(files <= h for h in held)
            assert kept or not begun[0], f"{case.operation}: a commit at call {number} is lost"
        forget(table)
        if store.left > 0:
            assert refused or case.operation == "rename_branch" or not thorough()
            return
    raise AssertionError("300 calls were not enough")


@pytest.mark.parametrize("case", MOVES, ids=[k for k, c in CASES.items() if c.exists])
def test_it_at_any_moment_of_a_commit(case: Case) -> None:
    """The whole operation at each store call of a commit of ours: what is acknowledged is readable.

    Unless the commit stood when the operation began: then it goes with the branch, as was asked for.
    """
    refused = set()
    for number in moments(300, 5):
        table = start(case)
        view = table.branch("fix")
        before, main = names(view), names(table)
        heads: list[int] = []

        def act(table: Table = table, view: Table = view, heads: list[int] = heads) -> None:
            heads.append(view.latest_snapshot_id() or 0)
            run(table, case.operation, **case.values)

        store = At(table.store, number, act)
        try:
            done = append(replace(view, store=store), "a", 1, seq=100).snapshot
        except (ConflictError, NotFoundError, OutcomeUnknownError) as error:
            refused.add(type(error))
        else:
            assert done is not None
            held = [names(table.branch(n)) for n in ("fix", "better") if table.branch(n).exists()]
            kept = any(h - before - main for h in held)
            assert kept or heads[0] >= done.id, f"{case.operation}: at call {number} the commit is lost"
        if heads and heads[0] < 4 and case.ends_as == "fix":
            assert not (before - main) & names(view), f"call {number}: rows of the replaced branch are back"
        forget(table)
        if store.left > 0:
            assert refused or not thorough()
            return
    raise AssertionError("300 calls were not enough")


class AtRead(At):
    """As ``At``, but count what does not change anything: after such a look nobody else comes in between."""

    def _call(self, method: str, path: str, action: Callable[[], Any]) -> Any:
        return action() if method in MUTATIONS else super()._call(method, path, action)


class Unreachable(_Wrapper):
    """Manifest lists can't be looked for at the moment."""

    def exists(self, path: str) -> bool:
        if path.startswith("manifest/"):
            raise StorageError("503 Slow Down")
        return self.inner.exists(path)


@pytest.mark.parametrize("after", [False, True])
def test_a_retry_that_fails_keeps_the_record_of_a_half_made_branch(after: bool) -> None:
    """Without it the branch, of which only some schemas are there, would take commits and could not be finished."""
    case = replace(
        CASES["create from a snapshot"], values={**CASES["create from a snapshot"].values, "if_exists": "skip"}
    )
    for step in moments(steps(case) + 1, 3):
        table = start(case)
        assert killed(table, case, step, after=after)
        record = read_branch_record(table, "fix")
        state = None if record is None else record.state
        tags = set(table.tag_names())
        if state == "creating":
            with pytest.raises(StorageError):
                run_on(table, Unreachable(table.store), case)
            assert read_branch_record(table, "fix") == record
            assert tags <= set(table.tag_names())
            if table.branch("fix").exists():
                with pytest.raises(ConflictError, match="being created"):
                    append(table.branch("fix"), "a", seq=50)
        run_on(table, table.store, case)
        check(table)


def test_two_replaces_at_once_leave_what_stands_protected() -> None:
    """The one that gives way takes no tag with it that the other one relies on."""
    case = Case("create_branch", {"branch": "fix", "snapshot": 1, "if_exists": "replace"}, exists=True)
    refused = 0
    for number in moments(300, 5):
        table = start(case)
        store = AtRead(table.store, number, lambda table=table: run_on(table, table.store, case))
        try:
            run_on(table, store, case)
        except ConflictError:
            refused += 1
        base = table.snapshot(1).identity
        assert matching_branch_record(table, "fix") is not None
        assert any(protects(t.name) == "fix" and t.snapshot.identity == base for t in table.tags()), number
        check(table)
        if store.left > 0:
            assert refused or not thorough()
            return
    raise AssertionError("300 calls were not enough")


def test_a_branch_that_is_made_while_its_deletion_looks_for_it_keeps_its_record_and_tag() -> None:
    """The deletion, which has not found it, takes what is left of an earlier one."""
    for number in range(1, 300):
        table = start(CASES["create from a tag"])
        store = At(table.store, number, lambda table=table: run(table, "create_branch", branch="fix", tag="base"))
        with suppress(ConflictError):
            run_on(table, store, Case("delete_branch", {"branch": "fix", "if_missing": "skip"}))
        if table.branch("fix").exists():
            assert matching_branch_record(table, "fix") is not None, number
            check(table)
        if store.left > 0:
            return
    raise AssertionError("300 calls were not enough")


@pytest.mark.parametrize("operation", ["create_branch", "delete_branch"])
def test_a_branch_that_was_replaced_meanwhile_is_not_deleted_although_its_head_has_the_same_id(operation: str) -> None:
    case = CASES["replace" if operation == "create_branch" else "delete"]
    for number in moments(300, 5):
        table = start(case)
        acknowledged: set[str] = set()
        begun: list[bool] = []
        faulty = FaultStore(table.store)

        def act(
            table: Table = table, acknowledged: set[str] = acknowledged, begun=begun, faulty: FaultStore = faulty
        ) -> None:
            run(table, "create_branch", branch="fix", snapshot=2, if_exists="replace")
            begun.append(bool(faulty.mutations))
            before = names(table.branch("fix"))
            append(table.branch("fix"), "b", 1, seq=200)
            acknowledged |= names(table.branch("fix")) - before

        store = AtRead(faulty, number, act)
        with suppress(ConflictError, AlreadyExistsError, NotFoundError):
            run_on(table, store, case)
        if begun and begun[0]:
            assert acknowledged <= names(table.branch("fix")), f"call {number}: a commit on the new branch is lost"
        if store.left > 0:
            return
    raise AssertionError("300 calls were not enough")


def test_a_commit_that_goes_on_from_one_to_be_withdrawn_stays_readable() -> None:
    """A slow writer lands in a recreated branch; before it withdraws its snapshot, another commit is based on it."""
    table = start(CASES["delete"])
    view = table.branch("fix")
    head = view.latest_snapshot_id() or 0
    ours = view.paths.snapshot(head + 1)
    others: set[str] = set()
    seen: set[str] = set()

    def interfere(method: str, path: str) -> None:
        if path != ours or method in seen:
            return
        seen.add(method)
        if method == "create":
            run(table, "create_branch", branch="fix", snapshot=2, if_exists="replace")
            append(view, "b", 1, seq=10)
            assert view.latest_snapshot_id() == head
        else:
            before = names(view)
            append(view, "a", 1, seq=300)
            others.update(names(view) - before)

    with pytest.raises(OutcomeUnknownError, match="or was recreated"):
        append(replace(view, store=FaultStore(table.store, on_mutation=interfere)), "a", 1, seq=100)
    assert others and others <= names(view)
    assert [s.id for s in view.snapshots()] == [2, 3, 4, 5]
    check(table)


@pytest.mark.parametrize("name", ["rename", "rename another engine's"])
def test_a_copy_that_another_engine_has_made_anew_is_not_taken_for_the_renamed_branch(name: str) -> None:
    """Else the branch's snapshots would lie below the other one's, unseen, and the branch itself would be deleted."""
    case, met = CASES[name], 0
    for step in moments(steps(case) + 1, 1):
        table = start(case)
        for seq in (3, 4):
            append(table, "c", seq=seq)
        assert killed(table, case, step, after=True)
        there, fix = table.store.walk("branch/branch-better"), table.branch("fix")
        if not there or not fix.exists():
            continue
        for path in there:
            table.store.delete(path)
        for file in ("schema/schema-0", "schema/schema-1", "snapshot/snapshot-5"):
            table.store.create(f"branch/branch-better/{file}", table.store.read(file))
        before, rival = names(fix), names(table.branch("better"))
        try:
            run_on(table, table.store, case)
        except ConflictError:
            met += 1
        kept = names(fix) if fix.exists() else names(table.branch("better"))
        assert before <= kept, step
        assert names(table.branch("better")) == rival and table.branch("better").schema_ids() == [0, 1], step
    assert met
