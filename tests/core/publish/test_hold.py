"""What a publish or rollback takes its files from may vanish, and be cleaned up, before its snapshot is there."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_paimon.core.errors import ConflictError, FormatError
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import Context, open_context
from airflow_paimon.core.schema.schema_plan import AddColumn
from airflow_paimon.core.table.live_entries import live_entries
from airflow_paimon.core.table.manifest_lists import read_delta_lists
from airflow_paimon.core.table.paths import manifest_path
from airflow_paimon.core.table.reachability import missing_files
from airflow_paimon.core.table.record_kinds import HOLDS
from airflow_paimon.core.table.table import Table
from airflow_paimon.execution import perform
from tests.core.tables import alter_table, append, cut_off, forget_results, make_table, rewrite, run
from tests.randomness import lives, moments
from tests.stores import CountingStore

DAY_S = 24 * 3600


class _Before(CountingStore):
    """Lets somebody else act once, right before the first such call."""

    def __init__(self, inner: Any, method: str, prefix: str, act: Callable[[], object]) -> None:
        super().__init__(inner)
        self.wanted, self.act, self.done = (method, prefix), act, False

    def _call(self, method: str, path: str, action: Callable[[], Any]) -> Any:
        if not self.done and method == self.wanted[0] and path.startswith(self.wanted[1]):
            self.done = True
            self.act()
        return super()._call(method, path, action)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = make_table(tmp_path / "wh")
    append(table, "a")
    append(table, "b")
    run(table, "create_branch", branch="fix", snapshot=2)
    rewrite(table.branch("fix"), "a")
    return table


def aged(table: Table) -> None:
    """Make all files two days old, so that orphan cleaning takes them."""
    then = time.time() - 2 * DAY_S
    for path in Path(table.store.uri.removeprefix("file://")).rglob("*"):
        os.utime(path, (then, then))


def clean(table: Table) -> None:
    run(table, "delete_branch", branch="fix", force=True)
    run(table, "remove_orphan_files", older_than="1 d")


def beside(table: Table, act: Callable[[], object], when: tuple[str, str], operation: str, **values: Any) -> Any:
    asked = {"warehouse": table.store.uri.removeprefix("file://").rsplit("/", 2)[0], "table": "d.t", **values}
    context = open_context(build_request(operation, asked))
    store = _Before(table.store, *when, act)
    result = perform(
        Context(context.request, Table(store, table.name), context.now_ms, context.started), context.request
    )
    assert store.done
    return result


def unreadable(table: Table) -> list[str]:
    return missing_files(table, table.schema(), list(live_entries(table, table.latest_snapshot()).values()))


@pytest.mark.parametrize(
    "when",
    [
        ("create", f"{HOLDS.folder}/"),
        ("list", HOLDS.folder),
        ("replace", "tag/"),
        ("create", "manifest/"),
        ("create", "snapshot/"),
    ],
)
def test_a_branch_that_is_deleted_and_cleaned_away_during_its_publish(table: Table, when: tuple[str, str]) -> None:
    """Whenever it happens: main gets the rows and their files, or the publish is refused."""
    aged(table)
    try:
        assert beside(table, lambda: clean(table), when, "merge_branch", branch="fix").snapshot_after == 3
    except (ConflictError, FormatError):
        assert when == ("create", f"{HOLDS.folder}/") and table.latest_snapshot_id() == 2
    assert unreadable(table) == []
    assert table.store.walk(HOLDS.folder) == []


@pytest.mark.parametrize("when", [("create", f"{HOLDS.folder}/"), ("list", HOLDS.folder), ("create", "snapshot/")])
def test_a_snapshot_that_expires_while_main_goes_back_to_it(table: Table, when: tuple[str, str]) -> None:
    run(table, "delete_branch", branch="fix", force=True)
    rewrite(table, "a")

    def expire() -> None:
        for _ in range(2):
            run(table, "expire_snapshots", retain_max=1, retain_min=1, older_than="0 s", grace="0 s",
                retry_window="0 s", writers_stopped=True)  # fmt: skip

    try:
        beside(table, expire, when, "rollback_to", snapshot=2)
    except (ConflictError, FormatError):
        assert when == ("create", f"{HOLDS.folder}/")
    assert unreadable(table) == [] and table.store.walk(HOLDS.folder) == []


def test_what_a_killed_publish_held_goes_after_a_week(table: Table) -> None:
    step = 1
    while not table.store.walk(HOLDS.folder):
        assert cut_off(table, step, "merge_branch", branch="fix")
        step += 1
    [left] = table.store.walk(HOLDS.folder)
    root = Path(table.store.uri.removeprefix("file://"))
    then = time.time() - 6 * DAY_S
    os.utime(root / left, (then, then))
    run(table, "merge_branch", branch="fix")
    assert table.store.walk(HOLDS.folder) == [left], "its process may be alive"
    then -= 2 * DAY_S
    os.utime(root / left, (then, then))
    rewrite(table.branch("fix"), "b")
    run(table, "merge_branch", branch="fix")
    assert table.store.walk(HOLDS.folder) == [left], "it may have landed, if main's history doesn't tell"
    run(table, "delete_branch", branch="fix")
    run(table, "rollback_to", snapshot=2)
    assert table.store.walk(HOLDS.folder) == []


def test_a_retry_ends_what_its_killed_first_try_held(table: Table) -> None:
    step = 1
    while not table.store.walk(HOLDS.folder):
        assert cut_off(table, step, "merge_branch", branch="fix", operation_id="op")
        step += 1
    run(table, "merge_branch", branch="fix", operation_id="op")
    assert table.store.walk(HOLDS.folder) == []


def test_a_hold_of_what_another_engine_has_expired_is_found(table: Table) -> None:
    """Once the branch is deleted, no tag of main's, which other engines know, keeps what both had in common."""
    step = 1
    while not table.store.walk(HOLDS.folder):
        assert cut_off(table, step, "merge_branch", branch="fix")
        step += 1
    held = table.branch("fix").latest_snapshot()
    run(table, "delete_branch", branch="fix", force=True)
    assert held is not None and run(table, "check_table").details["ok"]
    table.store.delete(manifest_path(read_delta_lists(table, [held])[0].file_name))
    with pytest.raises(FormatError):
        run(table, "remove_orphan_files")
    [finding] = run(table, "check_table").details["findings"]
    assert "keeps snapshot 3 of branch 'fix'" in finding["message"]
    run(table, "repair_table", finding=[finding["id"]])
    run(table, "remove_orphan_files")


def test_a_refused_publish_leaves_no_hold(table: Table) -> None:
    rewrite(table, "a")
    with pytest.raises(ConflictError):
        run(table, "merge_branch", branch="fix")
    assert table.store.walk(HOLDS.folder) == []


def test_a_refused_publish_leaves_no_tag_though_snapshots_have_expired_meanwhile(table: Table) -> None:
    """Without an operation id nobody else can have made its commit, so nothing has to be looked for."""

    def overtake() -> None:
        """Paimon's expiry doesn't know that the undo needs snapshot 3."""
        for _ in range(3):
            rewrite(table, "a")
        for number in (1, 2, 3, 4):
            table.store.delete(table.paths.snapshot(number))

    before = set(table.tag_names())
    with pytest.raises((ConflictError, FormatError)):
        beside(table, overtake, ("create", "snapshot/"), "merge_branch", branch="fix")
    assert table.snapshot_ids() == [5]
    assert set(table.tag_names()) == before and table.store.walk(HOLDS.folder) == []


@pytest.mark.parametrize("operation", ["merge_branch", "rollback_to"])
def test_a_replayed_publish_returns_numbers_as_numbers(table: Table, operation: str) -> None:
    asked: dict[str, Any] = {"branch": "fix"}
    if operation == "rollback_to":
        asked = {"tag": run(table, "merge_branch", branch="fix").details["undo_tag"], "keep_later": True}
    first = run(table, operation, operation_id="op", **asked).details
    forget_results(table)
    again = run(table, operation, operation_id="op", **asked).details
    assert again["replayed"] is True
    same = first.keys() & again.keys()
    assert {k: again[k] for k in same} == {k: first[k] for k in same} and len(same) >= 2


class _AtCall(CountingStore):
    """Lets somebody else act once, right before the n-th call of any kind."""

    def __init__(self, inner: Any, number: int, act: Callable[[], object]) -> None:
        super().__init__(inner)
        self.left, self.act = number, act

    def _call(self, method: str, path: str, action: Callable[[], Any]) -> Any:
        self.left -= 1
        if self.left == 0:
            self.act()
        return super()._call(method, path, action)


def roll_back_as_paimon(fix: Table) -> None:
    """Paimon's own ``rollback_to``: the newest snapshot and what only that names are deleted at once."""
    gone = fix.latest_snapshot()
    assert gone is not None
    fix.store.replace(fix.paths.latest_hint, str(gone.id - 1).encode())
    fix.store.delete(fix.paths.snapshot(gone.id))
    for name in (gone.base_manifest_list, gone.delta_manifest_list):
        fix.store.delete(manifest_path(name))


def make_anew(fix: Table) -> None:
    """Delete the branch and make another one of the same name, without the column that this one had got."""
    run(fix.branch("main"), "delete_branch", branch="fix", force=True)
    run(fix.branch("main"), "create_branch", branch="fix", snapshot=2)


@pytest.mark.parametrize("act", [roll_back_as_paimon, make_anew])
@pytest.mark.parametrize("primary", [True, False])
def test_a_branch_that_others_take_away_at_any_call_is_a_conflict(primary: bool, act: Callable[[Table], None]) -> None:
    """It was reported as damage (``corrupt``), which a retry doesn't expect to go."""
    refused = 0
    for number in moments(300, 5):
        warehouse = f"memory://{uuid.uuid4()}/wh"
        table = make_table(warehouse, primary=primary)
        append(table, "a")
        append(table, "b")
        run(table, "create_branch", branch="fix", snapshot=2)
        fix = table.branch("fix")
        alter_table(fix, [AddColumn(name="extra", type="INT")])
        rewrite(fix, "a")
        context = open_context(build_request("merge_branch", {"warehouse": warehouse, "table": "d.t", "branch": "fix"}))
        store = _AtCall(table.store, number, lambda fix=fix: act(fix))  # type: ignore[misc]
        try:
            perform(Context(context.request, Table(store, "d.t"), context.now_ms, context.started), context.request)
        except ConflictError:
            refused += 1
            assert table.latest_snapshot_id() == 2
        assert unreadable(table) == []
        if store.left > 0:
            break
    else:
        raise AssertionError("300 calls were not enough")
    assert refused > lives(0, 20)
