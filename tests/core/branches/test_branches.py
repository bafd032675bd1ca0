"""Branches on metadata: made from a tag, a snapshot or nothing, protected, deleted, renamed; cut off anywhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_paimon.core.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    NotFoundError,
    StorageError,
    UnsafeOperationError,
)
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.context import open_context
from airflow_paimon.core.schema.schema_plan import SetOption
from airflow_paimon.core.table.table import Table
from airflow_paimon.execution import perform
from tests.core.tables import alter_table, append, cut_off, files, make_table, run
from tests.stores import CountingStore, FaultStore


def test_a_branch_starts_as_its_tag_and_is_protected(table: Table, fix: Table) -> None:
    assert files(fix) == files(table)
    assert table.tag("airflow-paimon-branch-fix").snapshot.id == 3
    options = fix.schema().options
    assert options["write-only"] == "true"
    assert options["snapshot.time-retained"] == "36500 d"
    assert "write-only" not in table.schema().options
    assert fix.store.read("branch/branch-fix/snapshot/snapshot-3") == table.store.read("snapshot/snapshot-3")


def test_a_branch_from_an_expired_snapshot_comes_from_its_tag(table: Table) -> None:
    for i in (1, 2, 3):
        table.store.delete(f"snapshot/snapshot-{i}")
    run(table, "create_branch", branch="old", tag="base")
    assert table.branch("old").latest_snapshot().id == 3


def test_an_empty_branch_shares_nothing(table: Table) -> None:
    result = run(table, "create_branch", branch="fresh")
    assert result.snapshot_after is None
    assert table.branch("fresh").latest_snapshot() is None
    assert "write-only" not in table.branch("fresh").schema().options
    with pytest.raises(UnsafeOperationError, match="no snapshot"):
        run(table, "merge_branch", branch="fresh")
    append(table.branch("fresh"), "a")
    with pytest.raises(UnsafeOperationError, match="shares no snapshot"):
        run(table, "merge_branch", branch="fresh")


def test_an_empty_branch_of_a_branch_is_written(table: Table, fix: Table) -> None:
    run(table, "create_branch", branch="fresh", from_branch="fix")
    assert table.branch("fresh").latest_snapshot() is None
    assert append(table.branch("fresh"), "a").snapshot.id == 1


@pytest.mark.parametrize("name", ["main", "MAIN", "7", "a/b", "a.b", "a$b", "..", "", " ", "a b", "é"])
def test_bad_branch_names(table: Table, name: str) -> None:
    with pytest.raises(InvalidInputError):
        run(table, "create_branch", branch=name, tag="base")
    assert table.branch_names() == []


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"tag": "nope"}, NotFoundError),
        ({"snapshot": 99}, NotFoundError),
        ({"tag": "base", "snapshot": 1}, InvalidInputError),
        ({"tag": "base", "from_branch": "nope"}, NotFoundError),
    ],
)
def test_a_branch_needs_a_source_that_is_there(table: Table, values: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        run(table, "create_branch", branch="fix", **values)
    assert table.branch_names() == []


def test_if_exists(table: Table, fix: Table) -> None:
    with pytest.raises(AlreadyExistsError, match=r"bad prices|snapshot 3"):
        run(table, "create_branch", branch="fix", tag="base")
    assert not run(table, "create_branch", branch="fix", tag="base", if_exists="skip").changed
    with pytest.raises(AlreadyExistsError, match="another base"):
        run(table, "create_branch", branch="fix", snapshot=2, if_exists="skip")
    append(fix, "a", seq=2)
    anew = run(table, "create_branch", branch="fix", snapshot=2, if_exists="replace")
    assert fix.snapshot_ids() == [2]
    assert table.tag(anew.details["protective_tag"]).snapshot.id == 2
    assert [name for name in table.tag_names() if name != "base"] == [anew.details["protective_tag"]]


def test_a_retry_with_the_same_operation_id_is_the_same_branch(table: Table) -> None:
    first = run(table, "create_branch", branch="fix", tag="base", operation_id="op")
    again = run(table, "create_branch", branch="fix", tag="base", operation_id="op")
    assert again.details == {**first.details, "replayed": True}
    with pytest.raises(InvalidInputError, match="another request"):
        run(table, "create_branch", branch="fix2", tag="base", operation_id="op")
    run(table, "delete_branch", branch="fix")
    late = run(table, "create_branch", branch="fix", tag="base", operation_id="op")
    assert late == again
    assert table.branch_names() == [], "what was deleted since is not made again"
    run(table, "create_branch", branch="fix", snapshot=2)
    with pytest.raises(AlreadyExistsError, match="another base"):
        run(table, "create_branch", branch="fix", tag="base", operation_id="op")


def test_creating_a_branch_can_be_cut_off_anywhere(tmp_path: Path) -> None:
    for step in range(1, 30):
        table = make_table(tmp_path / f"wh{step}")
        append(table, "a")
        run(table, "create_tag", tag="base")
        before = files(table)
        crashed = cut_off(table, step, "create_branch", branch="fix", tag="base")
        assert files(table) == before
        run(table, "create_branch", branch="fix", tag="base", if_exists="skip")
        assert files(table.branch("fix")) == before
        assert table.tag("airflow-paimon-branch-fix")
        assert run(table, "check_table").details["ok"]
        if not crashed:
            return
    raise AssertionError("30 steps were not enough")


def test_deleting_a_branch(table: Table, fix: Table) -> None:
    append(fix, "a", seq=2)
    run(table, "delete_branch", branch="fix")
    assert table.branch_names() == []
    assert table.tag_names() == ["base"]
    with pytest.raises(NotFoundError):
        run(table, "delete_branch", branch="fix")
    assert not run(table, "delete_branch", branch="fix", if_missing="skip").changed


@pytest.mark.parametrize("option", ["scan.fallback-branch", "scan.primary-branch", "scan.fallback-delta-branch"])
def test_a_branch_that_an_option_names_stays(table: Table, fix: Table, option: str) -> None:
    run(table, "create_branch", branch="other", tag="base")
    alter_table(table.branch("other"), [SetOption(key=option, value="fix")])
    with pytest.raises(UnsafeOperationError, match=option):
        run(table, "delete_branch", branch="fix")
    with pytest.raises(UnsafeOperationError, match=option):
        run(table, "rename_branch", branch="fix", to_branch="better")


def test_a_branch_of_a_branch_keeps_its_parent(table: Table, fix: Table) -> None:
    append(fix, "a", seq=2)
    run(table, "create_branch", branch="child", snapshot=4, from_branch="fix")
    assert files(table.branch("child")) == files(fix)
    with pytest.raises(UnsafeOperationError, match="child"):
        run(table, "delete_branch", branch="fix")
    run(table, "delete_branch", branch="child")
    run(table, "delete_branch", branch="fix")


def test_renaming_a_branch_takes_its_protection_along(table: Table, fix: Table) -> None:
    append(fix, "a", seq=2)
    before = files(fix)
    run(table, "rename_branch", branch="fix", to_branch="better")
    assert table.branch_names() == ["better"]
    assert files(table.branch("better")) == before
    assert table.tag_names() == ["airflow-paimon-branch-better.3", "base"]
    assert run(table, "check_table").details["ok"]


def test_columns_that_a_branch_gets_while_it_is_renamed_are_not_lost(table: Table, fix: Table) -> None:
    """The schema comes after the copy was made, so engines could go on loading the old branch by it."""
    altered: list[str] = []

    def alters(method: str, path: str) -> None:
        if path.startswith("branch/branch-better/schema/") and not altered:
            altered.append(path)
            alter_table(fix, [SetOption(key="compaction.min.file-num", value="3")])

    context = open_context(
        build_request("rename_branch", {"warehouse": table.store.uri.removeprefix("file://").rsplit("/", 2)[0],
                                        "table": table.name, "branch": "fix", "to_branch": "better"})
    )  # fmt: skip
    beside = replace(context, table=Table(FaultStore(table.store, on_mutation=alters), table.name))
    with pytest.raises(ConflictError, match="was changed while it was copied"):
        perform(beside, context.request)
    run(table, "rename_branch", branch="fix", to_branch="better")
    assert table.branch_names() == ["better"]
    assert table.branch("better").schema().options["compaction.min.file-num"] == "3"


class _WithoutOldSchema(CountingStore):
    """Until the first change, each listing of the branch ``fix`` is taken while a deletion that is taken back again has
    deleted its oldest schema.
    """

    hidden = "branch/branch-fix/schema/schema-0"
    changed = False

    def _call(self, method: str, path: str, action: Callable[[], Any]) -> Any:
        self.changed |= method in ("create", "replace", "delete")
        if self.changed or method not in ("list", "names", "walk") or not path.startswith("branch/branch-fix"):
            return super()._call(method, path, action)
        data = self.inner.read(self.hidden)
        self.inner.delete(self.hidden)
        try:
            return super()._call(method, path, action)
        finally:
            self.inner.create(self.hidden, data)


@pytest.mark.parametrize(
    ("operation", "asked"),
    [
        ("rename_branch", {"branch": "fix", "to_branch": "better"}),
        ("create_branch", {"branch": "better", "from_branch": "fix", "snapshot": 4}),
    ],
)
def test_a_branch_is_not_copied_without_schemas_that_a_deletion_puts_back(
    table: Table, fix: Table, operation: str, asked: dict[str, Any]
) -> None:
    append(fix, "a", seq=2)
    warehouse = table.store.uri.removeprefix("file://").rsplit("/", 2)[0]
    context = open_context(build_request(operation, {"warehouse": warehouse, "table": table.name, **asked}))
    beside = replace(context, table=Table(_WithoutOldSchema(table.store), table.name))
    with pytest.raises(ConflictError, match="branch 'fix' is being changed by another operation"):
        perform(beside, context.request)
    assert table.branch_names() == ["fix"]
    run(table, operation, **asked)
    assert table.branch("better").schema_ids()[0] == 0


def test_a_protective_tag_stays_while_its_branch_lives(table: Table, fix: Table) -> None:
    with pytest.raises(UnsafeOperationError, match="fix"):
        run(table, "delete_tag", tag="airflow-paimon-branch-fix")
    run(table, "delete_tag", tag="base")
    run(table, "delete_branch", branch="fix")
    assert table.tag_names() == []


@pytest.mark.parametrize("if_exists", ["fail", "replace"])
def test_a_refused_creation_leaves_nothing_behind(table: Table, fix: Table, if_exists: str) -> None:
    """Missing manifests are found after the protective tag stands; the branch that was to be replaced stays whole."""
    append(fix, "a", seq=2)
    snapshot = table.snapshot(2)
    table.store.delete(f"manifest/{snapshot.base_manifest_list}")
    name = "fix" if if_exists == "replace" else "new"
    before = {path: table.store.read(path) for path in table.store.walk("")}
    with pytest.raises(ConflictError, match="branch from a later one"):
        run(table, "create_branch", branch=name, snapshot=2, if_exists=if_exists)
    assert {path: table.store.read(path) for path in table.store.walk("")} == before


def test_a_branch_is_not_replaced_by_a_branch_of_itself(table: Table, fix: Table) -> None:
    append(fix, "a", seq=2)
    with pytest.raises(InvalidInputError, match="of itself"):
        run(table, "create_branch", branch="fix", from_branch="fix", snapshot=4, if_exists="replace")
    assert fix.latest_snapshot_id() == 4


def test_a_storage_that_fails_leaves_nothing_half_made(table: Table) -> None:
    store = FaultStore(table.store, fail_at=2, error=OSError(28, "No space left on device"))
    request = build_request(
        "create_branch",
        {"warehouse": table.store.uri.rsplit("/", 2)[0], "table": "d.t", "branch": "fix", "tag": "base"},
    )
    context = open_context(request)
    with pytest.raises(StorageError, match="No space"):
        perform(replace(context, table=replace(table, store=store)), request)
    assert table.tag_names() == ["base"]
    assert run(table, "create_branch", branch="fix", tag="base").changed


def test_a_branch_of_a_tag_whose_changelog_paimon_has_expired(tmp_path: Path) -> None:
    """A tag keeps a state, not changes: Paimon's expiry deletes the list of the changelog of a tagged snapshot."""
    table = make_table(tmp_path / "wh")
    append(table, "a")
    append(table, "a", seq=1)
    run(table, "create_tag", tag="t", snapshot=1)
    raw = json.loads(table.store.read("tag/tag-t")) | {"changelogManifestList": "manifest-list-gone"}
    table.store.replace("tag/tag-t", json.dumps(raw).encode())
    table.store.delete("snapshot/snapshot-1")
    run(table, "create_branch", branch="fix", tag="t")
    assert files(table.branch("fix")).keys() and run(table, "check_table").details["errors"] == 0
